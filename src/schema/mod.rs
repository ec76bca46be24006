//! Structured output: the JSON Schema of a submission, and whether the final answer fits it.
//!
//! Neither can be trusted. A schema of a few lines can take longer than anybody lives, or more memory than there is, and
//! an answer can nest as deep as its author likes. Both are looked at in a process of its own, the *checker*: it has
//! limits on processor time and memory, and whatever it dies of, neither the daemon nor an executor does. References
//! lead nowhere but into the schema itself, and patterns are matched in linear time.

mod check;
mod process;

pub use check::{Fault, Schema};
pub use process::{Checker, Failure, Finding, checker_main, is_checker};

/// The largest structured output that is kept, in bytes of JSON.
pub const VALUE_MAX: usize = 1 << 20;
