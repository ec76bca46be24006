//! The attachments of a submission: what they are is told by their bytes, not by who sent them.

use super::SubmittedAttachment;
use crate::model::{Attachment, InvalidSubmission, media_type};
use crate::spool;

/// The attachments as the submission has them, if each is what its hash and its type say.
pub(super) fn verified(sent: &[SubmittedAttachment]) -> Result<Vec<Attachment>, InvalidSubmission> {
    sent.iter().enumerate().map(|(index, attachment)| verify(index, attachment)).collect()
}

fn verify(index: usize, sent: &SubmittedAttachment) -> Result<Attachment, InvalidSubmission> {
    let key = format!("attachments[{index}]");
    let sha256 = spool::sha256(&sent.bytes);
    if !sent.sha256.eq_ignore_ascii_case(&sha256) {
        let problem =
            "is not the SHA-256 of what came, as 64 hexadecimal digits; send the file and its hash again";
        return Err(InvalidSubmission::new(format!("{key}.sha256"), problem));
    }
    let Some(found) = media_type(&sent.bytes) else {
        let problem =
            "is neither PNG, JPEG, GIF nor WebP by its content; let the program read other files itself";
        return Err(InvalidSubmission::new(key, problem));
    };
    if sent.media_type.as_ref().is_some_and(|said| !said.eq_ignore_ascii_case(found)) {
        let problem = format!("is not what the content is: {found}");
        return Err(InvalidSubmission::new(format!("{key}.media-type"), problem));
    }
    Ok(Attachment {
        name: sent.name.clone(),
        media_type: found.to_owned(),
        sha256,
        size: sent.bytes.len() as u64,
    })
}
