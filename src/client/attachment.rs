//! Files that go along with a submission.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use sha2::{Digest, Sha256};
use zbus::Variant;

use super::Error;
use super::variant::Dictionary;

/// The largest file that is read, in bytes. The service's own limit is below.
const FILE_MAX: u64 = 1 << 30;

/// A file for [`Client::submit_with`](super::Client::submit_with), with its hash: the service takes it only if it is still
/// that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    name: String,
    media_type: Option<String>,
    sha256: String,
    bytes: Vec<u8>,
}

impl Attachment {
    /// These bytes, under this name.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Attachment {
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Attachment { name: name.into(), media_type: None, sha256, bytes }
    }

    /// A file, read whole, under its own name.
    ///
    /// # Errors
    /// It cannot be read, is larger than 1 GiB, or its name is not UTF-8.
    pub fn open(path: &Path) -> io::Result<Attachment> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| invalid("its name is not UTF-8, which D-Bus cannot carry"))?;
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > FILE_MAX {
            true => Err(invalid("it is larger than 1 GiB; give the program a file to read instead")),
            false => Ok(Attachment::new(name, bytes)),
        }
    }

    /// The same with a media type, such as `image/png`, that the service then holds against the content.
    pub fn with_media_type(self, media_type: impl Into<String>) -> Attachment {
        Attachment { media_type: Some(media_type.into()), ..self }
    }

    /// The same with a hash that somebody else made, in hex.
    pub fn with_sha256(self, sha256: impl Into<String>) -> Attachment {
        Attachment { sha256: sha256.into(), ..self }
    }

    /// As it travels: the bytes through a descriptor of its own.
    pub(super) fn entry(&self) -> Result<Dictionary, Error> {
        let mut entry = Dictionary::from([
            ("name".to_owned(), Variant::new(self.name.clone())),
            ("sha256".to_owned(), Variant::new(self.sha256.clone())),
            ("fd".to_owned(), descriptor(self.bytes.clone())?),
        ]);
        if let Some(media_type) = &self.media_type {
            entry.insert("media-type".to_owned(), Variant::new(media_type.clone()));
        }
        Ok(entry)
    }
}

/// A pipe from which these bytes come.
pub(super) fn descriptor(bytes: Vec<u8>) -> Result<Variant<'static>, Error> {
    let lost = |error: io::Error| Error::Lost(format!("no pipe to the service: {error}"));
    let (reader, mut writer) = io::pipe().map_err(lost)?;
    // A service that refuses the submission closes its end, and the write ends with an error that the reply explains.
    std::thread::Builder::new()
        .name("input".to_owned())
        .spawn(move || drop(writer.write_all(&bytes)))
        .map_err(lost)?;
    Ok(Variant::from(zbus::Fd::from(OwnedFd::from(reader))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_and_hashed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.png");
        std::fs::write(&path, "abc").unwrap();
        let attachment = Attachment::open(&path).unwrap();
        assert_eq!((attachment.name.as_str(), attachment.bytes.as_slice()), ("a.png", b"abc".as_slice()));
        assert_eq!(attachment.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(Attachment::open(directory.path()).is_err());
        let entry = attachment.with_media_type("image/png").entry().unwrap();
        assert_eq!(entry.len(), 4);
    }
}
