//! Which families cannot be told something while they run, and what to use instead.

use super::{Dialect, Unable};
use crate::model::MessageMode;

/// Why a running program of the family takes no such message; `None` if it does.
pub fn unable_to_hear(dialect: &dyn Dialect, mode: MessageMode) -> Option<Unable> {
    let features = dialect.features();
    let (can, what) = match mode {
        MessageMode::Steer => (features.steer, "steering"),
        MessageMode::FollowUp => (features.follow_up, "follow-up messages"),
    };
    (!can).then(|| Unable { dialect: dialect.name(), what, instead: instead(dialect.name()) })
}

/// What to do where a family cannot be talked to.
fn instead(dialect: &str) -> &'static str {
    match dialect {
        "jsonl" => "use a profile with the dialect jsonl-talk",
        "claude" => "use a profile with the dialect claude-stream",
        "codex" => "use a profile with the dialect codex-app",
        "pi" => "use a profile with the dialect pi-rpc",
        _ => "wait for its end, and say it in a new session",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{NAMES, find};

    #[test]
    fn a_family_that_cannot_hear_says_what_to_do() {
        let claude = find("claude").expect("known");
        let unable = unable_to_hear(claude, MessageMode::Steer).expect("it cannot");
        assert_eq!(
            unable.to_string(),
            "the dialect claude takes no steering; use a profile with the dialect claude-stream"
        );
        let talk = find("jsonl-talk").expect("known");
        assert_eq!(unable_to_hear(talk, MessageMode::FollowUp), None);
        for dialect in NAMES.into_iter().filter_map(find) {
            let unable = unable_to_hear(dialect, MessageMode::FollowUp);
            assert!(unable.is_none_or(|unable| !unable.instead.is_empty()));
        }
    }
}
