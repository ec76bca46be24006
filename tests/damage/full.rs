//! File systems that are really full or read-only. They are small ones of memory, mounted as the spool.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use airouter_sessiond::client::WaitFor;
use airouter_sessiond::model::Answer;

use super::support::{Bench, PATIENCE, lives, until};
use super::{active, noted, refusal, starts};

const NO_FLOOR: &str = "[limits]\nfree_space = 0\n";

/// A small file system where a bench's spool is: in memory, or ext4 in a file. It is gone with this value.
struct Small {
    at: PathBuf,
}

impl Small {
    /// In memory. `None` for accounts that cannot mount.
    fn mount(bench: &Bench, size: &str) -> Option<Small> {
        Small::mounted(bench, &["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "tmpfs"])
    }

    /// ext4, 16 MiB; an error that it finds makes it read-only at once. `None` also where there are no loop devices.
    fn ext4(bench: &Bench) -> Option<Small> {
        let image = bench.path().join("image");
        File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("an image");
        let made = Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image).status();
        if !made.is_ok_and(|status| status.success()) || !Path::new("/dev/loop-control").exists() {
            eprintln!("left out: no ext4 file system can be made here (mkfs.ext4, loop devices)");
            return None;
        }
        let small =
            Small::mounted(bench, &["-o", "loop,errors=remount-ro", image.to_str().expect("a path")])?;
        fs::remove_dir(small.at.join("lost+found")).expect("removed");
        fs::set_permissions(&small.at, Permissions::from_mode(0o700)).expect("modes");
        Some(small)
    }

    fn mounted(bench: &Bench, arguments: &[&str]) -> Option<Small> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("left out: only root can mount a small file system for this test");
            return None;
        }
        let at = bench.spool();
        fs::create_dir(&at).expect("a folder");
        let mounted = Command::new("mount").args(arguments).arg(&at).output().expect("mount");
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        Some(Small { at })
    }

    /// Makes an ext4 file system find an error, so that it is read-only with everything open that is.
    fn break_down(&self) {
        let device = Command::new("findmnt").args(["-no", "SOURCE"]).arg(&self.at).output().expect("findmnt");
        let device = String::from_utf8_lossy(&device.stdout).trim().replace("/dev/", "");
        fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").expect("an error");
    }

    fn unmount(&self) {
        let done = Command::new("umount").arg(&self.at).output().expect("umount");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Takes every byte that is left.
    fn fill(&self) {
        let mut filler = File::options().create(true).append(true).open(self.filler()).expect("a file");
        let zeros = vec![0; 64 << 10];
        for size in [zeros.len(), 4096, 1] {
            while filler.write(&zeros[..size]).is_ok() {}
        }
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    fn free(&self) {
        fs::remove_file(self.filler()).expect("removed");
    }

    fn remount(&self, options: &str) {
        let done = Command::new("mount").args(["-o", options]).arg(&self.at).output().expect("mount");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: the daemon may still be there.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// Waits for a file to appear, then prints without end.
const PRINTS: &str = "echo $$ >\"main-$ID\"; echo '{\"first\":1}'; until [ -e go ]; do sleep 0.02; done; \
                      while :; do echo '{\"text\":\"a line that takes some room in the journal\"}'; done";

#[tokio::test]
async fn running_sessions_end_with_their_outcome_saved_and_work_goes_on_when_there_is_room() {
    let bench = Bench::prepared(NO_FLOOR);
    if let Some(small) = Small::mount(&bench, "4m") {
        fills_up(bench, small).await;
    }
    let bench = Bench::prepared(NO_FLOOR);
    if let Some(small) = Small::ext4(&bench) {
        fills_up(bench, small).await;
    }
}

async fn fills_up(mut bench: Bench, small: Small) {
    bench.start();
    let client = bench.client().await;
    let printing: Vec<_> = (0..3).map(|_| noted(&bench, PRINTS)).collect();
    let quiet = noted(&bench, "until [ -e free ]; do sleep 0.02; done; echo '{\"last\":1}'");
    for submission in printing.iter().chain([&quiet]) {
        client.submit(submission, None).await.expect("there is room");
        client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    }
    small.fill();
    bench.write("go", "");
    for submission in &printing {
        let run_id = submission.run_id();
        let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!(
            (status.end(), status.state()),
            (Some("journal-failed"), "finished"),
            "{:?}",
            status.json()
        );
        assert!(status.text("error").contains("No space left"), "{}", status.text("error"));
        assert_eq!(status.json().get("activity-complete"), Some(&false.into()));
        assert!(!lives(&bench.read(&format!("main-{run_id}"))), "the program was stopped");
        let events = bench.events(run_id).await;
        assert_eq!(events.first().map(|e| e.kind.as_str()), Some("started"), "what was durable is readable");
        assert!(events.iter().any(|e| e.raw.as_deref() == Some("{\"first\":1}")));
        small.fill();
    }
    let refused = noted(&bench, "true");
    assert_eq!(refusal(client.submit(&refused, None).await), "StorageFull");
    assert_eq!(refusal(client.status(refused.run_id()).await), "NotFound");
    assert!(!active(&bench, refused.run_id()).exists(), "nothing is left behind");
    let left: Vec<_> = fs::read_dir(bench.spool().join("active")).expect("active").collect();
    assert!(left.iter().flatten().all(|e| !e.file_name().to_string_lossy().starts_with('.')), "{left:?}");

    // The daemon also starts on a full disk, and the answers are the same.
    bench.kill();
    small.fill();
    bench.start();
    let client = bench.client().await;
    for submission in &printing {
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("known");
        assert_eq!(status.end(), Some("journal-failed"), "{:?}", status.json());
    }
    assert_eq!(client.status(quiet.run_id()).await.expect("known").phase(), "running", "others go on");

    small.free();
    client.submit(&refused, None).await.expect("taken without a restart");
    bench.write("free", "");
    for submission in [&refused, &quiet] {
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
        assert_eq!(starts(&bench, submission.run_id()), 1);
    }
    for submission in &printing {
        until("what ended on the full disk is put away", || !active(&bench, submission.run_id()).exists());
        assert_eq!(starts(&bench, submission.run_id()), 1);
        let status = client.status(submission.run_id()).await.expect("known");
        assert_eq!(status.end(), Some("journal-failed"));
    }
}

#[tokio::test]
async fn what_waits_for_its_turn_waits_for_the_disk_too() {
    let mut bench = Bench::prepared(&format!("{NO_FLOOR}active = 1\n"));
    let Some(small) = Small::mount(&bench, "2m") else { return };
    bench.start();
    let client = bench.client().await;
    let first = noted(&bench, "until [ -e go ]; do sleep 0.02; done");
    let second = noted(&bench, "echo '{\"n\":1}'");
    let third = noted(&bench, "echo '{\"n\":1}'");
    for submission in [&first, &second, &third] {
        client.submit(submission, None).await.expect("there is room");
    }
    client.wait(first.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    small.fill();
    client.cancel(third.run_id()).await.expect("the wish to cancel needs no room for long");
    bench.write("go", "");
    client.wait(first.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    small.fill();
    let status = client.status(second.run_id()).await.expect("known");
    assert!(["queued", "accepted", "driving", "finished"].contains(&status.state()), "{:?}", status.json());
    small.free();
    let status = client.wait(second.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    // The first one's reserve was free for a moment: the second may have found just enough room to begin, and no more.
    assert!(matches!(status.end(), Some("completed" | "journal-failed")), "{:?}", status.json());
    assert_eq!(starts(&bench, second.run_id()), usize::from(status.end() == Some("completed")));
    let status = client.wait(third.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), starts(&bench, third.run_id())), (Some("cancelled"), 0));
}

/// A session that somebody talks to.
#[tokio::test]
async fn a_message_that_finds_no_room_is_refused_and_taken_once_when_there_is_some() {
    let mut bench = Bench::prepared("");
    let program = bench.write("talker.py", include_str!("../talk/talker.py"));
    let profile = format!(
        "[profiles.talker]\nprogram = \"/usr/bin/python3\"\ndialect = \"jsonl-talk\"\narguments = [\"{}\"]\n",
        program.display()
    );
    bench.configure(NO_FLOOR, &profile);
    let Some(small) = Small::mount(&bench, "2m") else { return };
    bench.start();
    let mut submission = noted(&bench, "");
    (submission.profile, submission.arguments) = ("talker".into(), Vec::new());
    let run_id = submission.run_id();
    let mut client = bench.client().await;
    client.submit(&submission, Some(b"ask".to_vec())).await.expect("there is room");
    let status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
    let question = status.typed().expect("known words").questions[0].question.clone();
    let allow = Answer { choice: Some("allow".into()), text: None };
    small.fill();
    for restart in [false, true] {
        if restart {
            bench.kill();
            bench.start();
            client = bench.client().await;
        }
        for n in 0..3 {
            let answer = client.steer(run_id, &format!("m{n}"), "hello").await;
            assert_eq!(refusal(answer), "StorageFull", "{restart}");
        }
        assert_eq!(refusal(client.answer(run_id, &question, &allow).await), "StorageFull");
        let status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
        assert!(status.asks() && status.state() == "driving", "it still asks: {:?}", status.json());
    }
    small.free();
    for n in 0..3 {
        client.steer(run_id, &format!("m{n}"), "hello").await.expect("there is room again");
    }
    client.answer(run_id, &question, &allow).await.expect("there is room again");
    client.steer(run_id, "last", "done").await.expect("is stored");
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    let heard: Vec<String> = bench.read("heard").lines().skip(2).map(str::to_owned).collect();
    let wanted = [
        "steer m0  hello",
        "steer m1  hello",
        "steer m2  hello",
        "answer p1 allow",
        "steer last  done",
        "end of file",
    ];
    assert_eq!(heard, wanted);
}

#[tokio::test]
async fn below_the_floor_work_is_refused_before_anything_is_written() {
    let mut bench = Bench::prepared("[limits]\nfree_space = 1048576\n");
    let Some(small) = Small::mount(&bench, "4m") else { return };
    bench.start();
    let client = bench.client().await;
    File::create(small.filler()).and_then(|mut f| f.write_all(&vec![0; 3 << 20])).expect("filled");
    let submission = noted(&bench, "true");
    let error = client.submit(&submission, None).await.expect_err("below the floor");
    assert_eq!(error.refusal(), Some("StorageFull"), "{error}");
    assert!(error.to_string().contains("limits.free-space"), "{error}");
    assert_eq!(fs::read_dir(bench.spool().join("active")).expect("active").count(), 0);
    small.free();
    client.submit(&submission, None).await.expect("taken without a restart");
    client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
}

#[tokio::test]
async fn a_disk_that_breaks_down_under_running_sessions_takes_only_certainty_away() {
    let mut bench = Bench::prepared(NO_FLOOR);
    let Some(small) = Small::ext4(&bench) else { return };
    bench.start();
    let (before, _) = bench.run("echo '{\"n\":1}'").await;
    let client = bench.client().await;
    let running = noted(&bench, PRINTS);
    let run_id = running.run_id();
    client.submit(&running, None).await.expect("submits");
    client.wait(run_id, WaitFor::Started, PATIENCE).await.expect("starts");
    small.break_down();
    assert_eq!(refusal(client.submit(&noted(&bench, "true"), None).await), "StorageFull");
    bench.write("go", "");
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
    // Its end could not be written down, and what cannot be kept is not said.
    assert!(status.is_uncertain() && status.end().is_none(), "{:?}", status.json());
    assert!(!lives(&bench.read(&format!("main-{run_id}"))), "the program was stopped");
    assert!(bench.events(run_id).await.iter().any(|e| e.raw.as_deref() == Some("{\"first\":1}")));
    assert_eq!(client.status(before).await.expect("known").end(), Some("completed"));
    let reconciled = client.reconcile(run_id).await.expect("says what it knows");
    assert_eq!(reconciled.end(), None, "{:?}", reconciled.json());
    bench.kill();
    small.unmount();
    let image = bench.path().join("image");
    let _ = Command::new("fsck.ext4").args(["-p", "-f"]).arg(&image).output().expect("fsck");
    let mounted =
        Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&small.at).status().expect("mount");
    assert!(mounted.success());
    bench.start();
    let client = bench.client().await;
    client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
    let status = client.reconcile(run_id).await.expect("reconciles");
    assert_eq!((status.end(), starts(&bench, run_id)), (Some("interrupted"), 1), "{:?}", status.json());
    assert_eq!(client.status(before).await.expect("known").end(), Some("completed"));
}

#[tokio::test]
async fn a_read_only_spool_is_refused_at_start_by_name_and_taken_again_later() {
    let mut bench = Bench::prepared(NO_FLOOR);
    let Some(small) = Small::mount(&bench, "4m") else { return };
    bench.start();
    let (run_id, _) = bench.run("echo '{\"n\":1}'").await;
    bench.stop();
    small.remount("remount,ro");
    let error = bench.try_start().expect_err("read-only");
    assert!(error.contains(&spool_name(&small.at)) && error.contains("Read-only"), "{error}");
    small.remount("remount,rw");
    bench.start();
    let status = bench.client().await.status(run_id).await.expect("known");
    assert_eq!(status.end(), Some("completed"));
}

fn spool_name(path: &Path) -> String {
    path.display().to_string()
}
