use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{InvalidSubmission, Limits};

/// The longest name of an attachment, in characters.
pub const MAX_ATTACHMENT_NAME: usize = 256;

/// The media types that attachments can have, and how the names of such files end.
const TYPES: [(&str, &str); 4] =
    [("image/png", "png"), ("image/jpeg", "jpg"), ("image/gif", "gif"), ("image/webp", "webp")];

/// A file that goes along with a submission. Its bytes are kept beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Attachment {
    /// The submitter's name of it: 1 to 256 characters, unique in its submission.
    pub name: String,
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`, as [`media_type`] recognises it.
    pub media_type: String,
    /// The SHA-256 of its bytes, as 64 digits of lower-case hex.
    pub sha256: String,
    /// Its length in bytes.
    pub size: u64,
}

impl Attachment {
    /// The name under which its bytes are kept. Programs tell types by a name's ending, so it has one.
    pub fn file_name(&self) -> String {
        let ending = TYPES.iter().find(|(known, _)| *known == self.media_type).map_or("bin", |(_, e)| e);
        format!("{}.{ending}", self.sha256)
    }
}

/// The media type of a file's bytes, told by how they begin; `None` for one that cannot be attached.
pub fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Whether it is a SHA-256 as 64 digits of lower-case hex.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Checks names, hashes, number and size of a submission's attachments.
pub(super) fn check(attachments: &[Attachment], limits: &Limits) -> Result<(), InvalidSubmission> {
    let count = attachments.len();
    if count > limits.attachments as usize {
        let most = limits.attachments;
        let problem = format!("are {count}; the limit is {most} (Limits: attachments)");
        return Err(InvalidSubmission::new("attachments", problem));
    }
    let size = attachments.iter().fold(0u64, |sum, attachment| sum.saturating_add(attachment.size));
    if size > limits.attachment_bytes {
        let most = limits.attachment_bytes;
        let problem = format!("are {size} bytes together; the limit is {most} (Limits: attachment-bytes)");
        return Err(InvalidSubmission::new("attachments", problem));
    }
    let mut names = BTreeSet::new();
    for (index, attachment) in attachments.iter().enumerate() {
        let bad = |key: &str, problem: &str| {
            Err(InvalidSubmission::new(format!("attachments[{index}].{key}"), problem))
        };
        let name = attachment.name.as_str();
        if name.is_empty() || name.chars().count() > MAX_ATTACHMENT_NAME {
            return bad("name", &format!("must have 1 to {MAX_ATTACHMENT_NAME} characters"));
        }
        if name.contains('/') || name.chars().any(char::is_control) {
            return bad("name", "holds '/' or a control character; give a file's name, not its path");
        }
        if !names.insert(name) {
            return bad("name", "is that of an attachment before it; give each its own");
        }
        if !is_sha256(&attachment.sha256) {
            return bad("sha256", "is not 64 hexadecimal digits");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(name: &str) -> Attachment {
        Attachment {
            name: name.into(),
            media_type: "image/webp".into(),
            sha256: "0a".repeat(32),
            size: 8 << 20,
        }
    }

    fn refused(attachments: &[Attachment]) -> String {
        check(attachments, &Limits::default()).expect_err("must be refused").key
    }

    #[test]
    fn types_are_told_by_content() {
        assert_eq!(media_type(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(media_type(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(media_type(b"GIF87a"), Some("image/gif"));
        assert_eq!(media_type(b"GIF89a"), Some("image/gif"));
        assert_eq!(media_type(b"RIFF\0\0\0\0WEBPVP8 "), Some("image/webp"));
        for other in [&b""[..], b"%PDF-1.7", b"RIFF\0\0\0\0WAVE", b"GIF88a", b"\x89PNG", b"<svg/>"] {
            assert_eq!(media_type(other), None, "{other:?}");
        }
    }

    #[test]
    fn files_are_named_by_hash_and_type() {
        assert_eq!(attachment("a").file_name(), format!("{}.webp", "0a".repeat(32)));
    }

    #[test]
    fn refusals_name_the_attachment() {
        let fine = attachment("a");
        assert_eq!(check(std::slice::from_ref(&fine), &Limits::default()), Ok(()));
        assert_eq!(refused(&[fine.clone(), attachment("b"), attachment("c")]), "attachments");
        assert_eq!(refused(&[fine.clone(), fine.clone()]), "attachments[1].name");
        for name in ["", "a/b", "a\nb", "\u{85}", &"ä".repeat(257)] {
            assert_eq!(refused(&[attachment(name)]), "attachments[0].name", "{name:?}");
        }
        let long = "ä".repeat(256);
        assert_eq!(check(&[attachment(&long)], &Limits::default()), Ok(()));
        for hash in ["", "0A", &"0A".repeat(32), &"g".repeat(64)] {
            let wrong = Attachment { sha256: hash.into(), ..fine.clone() };
            assert_eq!(refused(&[wrong]), "attachments[0].sha256", "{hash}");
        }
        let many: Vec<_> = (0..33).map(|n| Attachment { size: 1, ..attachment(&n.to_string()) }).collect();
        assert_eq!(refused(&many), "attachments");
    }
}
