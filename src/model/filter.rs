use serde::Serialize;

use super::{End, Phase, State};

/// Which sessions `List` gives; an absent condition holds for all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Filter {
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// In this phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// With this end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Of this profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// With exactly this label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// At most this many, 1 to 1000; 100 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Go on after a page that gave this `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
