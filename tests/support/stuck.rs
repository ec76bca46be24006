//! A file system that never answers (FUSE): a process that looks into it cannot be killed until it is gone.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Gone with this value; whoever is stuck in it dies then.
pub struct Stuck {
    pub at: PathBuf,
    device: Option<File>,
}

/// `FUSE_INIT`, the first request of the kernel (include/uapi/linux/fuse.h).
const INIT: u32 = 26;

impl Stuck {
    /// Mounted at a new folder. `None`, said loudly, where this account cannot do that.
    pub fn mount(at: &Path) -> Option<Stuck> {
        std::fs::create_dir(at).expect("a folder");
        let skipped = || eprintln!("SKIPPED: needs root and FUSE to make processes that cannot be killed");
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let Ok(mut device) = device else {
            skipped();
            return None;
        };
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let text = |text: &str| std::ffi::CString::new(text).expect("no NUL");
        let (source, target, kind, options) =
            (text("stuck"), text(at.to_str().expect("UTF-8")), text("fuse"), text(&options));
        // SAFETY: all four strings end with NUL and live through the call.
        let mounted = unsafe {
            libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
        };
        if mounted != 0 {
            skipped();
            return None;
        }
        let mut request = vec![0; 1 << 17];
        let _ = device.read(&mut request).expect("the kernel's first request");
        assert_eq!(request[4..8], INIT.to_ne_bytes());
        // The header (length, no error, its number), then what this side speaks: 7.31, nothing optional.
        let mut answer = Vec::new();
        answer.extend(80u32.to_ne_bytes());
        answer.extend(0i32.to_ne_bytes());
        answer.extend(&request[8..16]);
        answer.extend([7u32, 31, 0, 0, 0, 4096].map(u32::to_ne_bytes).concat());
        answer.resize(80, 0);
        device.write_all(&answer).expect("the kernel takes it");
        let stuck = Stuck { at: at.to_owned(), device: Some(device.try_clone().expect("a copy")) };
        // A request that was taken is waited for by a process that not even SIGKILL wakes.
        std::thread::spawn(move || while device.read(&mut request).is_ok() {});
        Some(stuck)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        drop(self.device.take());
        let _ = std::process::Command::new("umount").args(["-f", "-l"]).arg(&self.at).status();
    }
}
