use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The name of a session: a UUID that the submitter chooses (RFC 9562), always shown hyphenated and in lower case.
///
/// ```
/// use airouter_sessiond::model::RunId;
/// let id: RunId = "0192F3C4-5B6A-7C8D-9E0F-112233445566".parse().unwrap();
/// assert_eq!(id.to_string(), "0192f3c4-5b6a-7c8d-9e0f-112233445566");
/// assert!("not-a-run".parse::<RunId>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(Uuid);

/// The text is not a hyphenated UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("run_id {0:?} is not a UUID of the form 0192f3c4-5b6a-7c8d-9e0f-112233445566")]
pub struct BadRunId(String);

impl RunId {
    /// A new random name (UUID version 4).
    pub fn random() -> Self {
        RunId(Uuid::new_v4())
    }

    /// The first two digits: the folder under `ended/` that holds the session.
    pub fn shard(&self) -> String {
        self.to_string()[..2].to_owned()
    }

    /// The last element of the session's object path: the id with underscores for hyphens, since object paths
    /// (D-Bus specification, "Valid Object Paths") know no hyphen.
    pub fn path_element(&self) -> String {
        self.to_string().replace('-', "_")
    }
}

impl FromStr for RunId {
    type Err = BadRunId;

    fn from_str(text: &str) -> Result<Self, BadRunId> {
        // Uuid also takes braces, URNs and no hyphens at all: one session must not have four spellings.
        if text.len() != 36 {
            return Err(BadRunId(super::shown(text)));
        }
        Uuid::try_parse(text).map(RunId).map_err(|_| BadRunId(text.to_owned()))
    }
}

impl TryFrom<String> for RunId {
    type Error = BadRunId;

    fn try_from(text: String) -> Result<Self, BadRunId> {
        text.parse()
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> String {
        id.to_string()
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
