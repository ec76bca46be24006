use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};

use super::Op;
use crate::spool::private::TEMPORARY;

const VARIABLE: &str = "AIROUTER_FAULTS";

const OPERATIONS: [(&str, Op); 11] = [
    ("write", Op::Write),
    ("short", Op::Short),
    ("fsync", Op::Fsync),
    ("dirsync", Op::DirSync),
    ("rename", Op::Rename),
    ("unlink", Op::Unlink),
    ("create", Op::Create),
    ("mkdir", Op::MakeDir),
    ("allocate", Op::Allocate),
    ("truncate", Op::Truncate),
    ("read", Op::Read),
];

const ERRORS: [(&str, Errno); 6] = [
    ("EIO", Errno::EIO),
    ("ENOSPC", Errno::ENOSPC),
    ("EDQUOT", Errno::EDQUOT),
    ("EROFS", Errno::EROFS),
    ("EMFILE", Errno::EMFILE),
    ("EACCES", Errno::EACCES),
];

/// One entry of the variable.
#[derive(Debug)]
struct Rule {
    op: Op,
    name: String,
    nth: u64,
    from_then_on: bool,
    what: What,
    seen: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Fail(Errno),
    Kill,
}

impl Rule {
    fn parse(entry: &str) -> Option<Rule> {
        let [op, name, which, what] = entry.split(':').collect::<Vec<_>>().try_into().ok()?;
        let from_then_on = which.ends_with('+');
        Some(Rule {
            op: OPERATIONS.iter().find(|(word, _)| *word == op)?.1,
            name: name.to_owned(),
            nth: which.trim_end_matches('+').parse().ok().filter(|nth| *nth > 0)?,
            from_then_on,
            what: match what {
                "KILL" => What::Kill,
                errno => What::Fail(ERRORS.iter().find(|(word, _)| *word == errno)?.1),
            },
            seen: AtomicU64::new(0),
        })
    }

    /// What happens to this operation, which is counted.
    fn meets(&self, op: Op, name: &str) -> Option<What> {
        if self.op != op || !matches(self.name.as_bytes(), name.as_bytes()) {
            return None;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let hit = seen == self.nth || (self.from_then_on && seen > self.nth);
        hit.then_some(self.what)
    }
}

/// The error that the operation shall end with.
pub(super) fn next(op: Op, name: &OsStr) -> Option<io::Error> {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let entries = text.split([',', ' ']).filter(|entry| !entry.is_empty());
        entries
            .map(|entry| {
                Rule::parse(entry).unwrap_or_else(|| {
                    // Only a test sets the variable, and one that misspelled it must not pass.
                    eprintln!("{VARIABLE}: {entry:?} is not OPERATION:NAME:WHICH:ERROR");
                    std::process::exit(2)
                })
            })
            .collect()
    });
    if rules.is_empty() {
        return None;
    }
    let name = plain(&name.to_string_lossy());
    // Every rule counts, whichever is met.
    match rules.iter().filter_map(|rule| rule.meets(op, &name)).reduce(|first, _| first)? {
        What::Fail(errno) => Some(errno.into()),
        What::Kill => {
            let _ = raise(Signal::SIGKILL);
            None
        }
    }
}

/// The name that a temporary file is going to get; any other as it is, without the folders before it.
fn plain(name: &str) -> String {
    let name = Path::new(name).file_name().map_or(name.into(), OsStr::to_string_lossy);
    let Some(rest) = name.strip_prefix(TEMPORARY) else { return name.into_owned() };
    rest.rsplitn(3, '-').last().unwrap_or(rest).to_owned()
}

/// `*` stands for any text, `?` for one byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([b'*', after @ ..], _) => (0..=name.len()).any(|at| matches(after, &name[at..])),
        ([b'?', after @ ..], [_, rest @ ..]) => matches(after, rest),
        ([byte, after @ ..], [first, rest @ ..]) => byte == first && matches(after, rest),
        ([], name) => name.is_empty(),
        (_, []) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_counts_and_meets_what_it_names() {
        let rule = Rule::parse("fsync:journal.*:2:EIO").expect("a rule");
        let seen: Vec<_> = (0..3).map(|_| rule.meets(Op::Fsync, "journal.jsonl")).collect();
        assert_eq!(seen, [None, Some(What::Fail(Errno::EIO)), None]);
        let rule = Rule::parse("rename:*:2+:KILL").expect("a rule");
        assert_eq!(rule.meets(Op::Write, "x"), None);
        let seen: Vec<_> = (0..3).map(|_| rule.meets(Op::Rename, "x")).collect();
        assert_eq!(seen, [None, Some(What::Kill), Some(What::Kill)]);
        for wrong in ["", "fsync", "fsync:a:0:EIO", "fsync:a:1:EWHAT", "sync:a:1:EIO", "fsync:a:1:EIO:x"] {
            assert!(Rule::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_temporary_file_has_the_name_that_it_will_get() {
        assert_eq!(plain(".tmp-record.json-12-0123456789abcdef"), "record.json");
        assert_eq!(plain("/a/journal.jsonl"), "journal.jsonl");
        let matches = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        assert!(matches("*-*-x", "a-b-c-x") && !matches("*-x", "a-xy") && matches("*", ""));
        assert!(matches("??", "ab") && !matches("??", "a") && !matches("", "a"));
    }
}
