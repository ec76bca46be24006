//! The real agent programs, through the whole service and by their talks alone, against a scripted model on this machine.
//! `make test-agents` installs and runs them; `make test` does not.

#[path = "../support/mod.rs"]
mod support;

mod direct;
mod service;
mod talks;
mod world;

/// The dialects that can be talked to.
const TWO_WAY: [&str; 3] = ["codex-app", "claude-stream", "pi-rpc"];

/// A prompt for the scripted model, of a case that no other prompt counts in.
fn prompt(case: &str) -> String {
    format!("do it STUB:{case}:{}", uuid::Uuid::new_v4().simple())
}
