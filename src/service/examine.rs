//! What lock, claim, journal, outcome and processes say of a session that no connection speaks for.
//!
//! | lock | outcome | journal | then |
//! |---|---|---|---|
//! | held | | | an executor owns it: [`Finding::Owned`] |
//! | free | there | | it ended: [`Finding::Ended`] |
//! | free | none | none, and no start is recorded | the program was provably never started: [`Finding::NeverStarted`] |
//! | free | none | there, or a start is recorded | its executor died, it may have had effects: [`Finding::Died`] |

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::Error;
use crate::containment::{Marker, Remains};
use crate::model::{Evidence, Leftover, Outcome, RunId};
use crate::spool::journal::Tail;
use crate::spool::{Claim, OwnerLock, Ownership, SessionDir};

/// How long processes may take to vanish after SIGKILL.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(super) enum Finding {
    Owned,
    Ended(Box<Outcome>),
    NeverStarted(OwnerLock),
    Died(OwnerLock),
}

/// Looks. Changes nothing; a lock that is returned is held until it is dropped.
pub(super) fn examine(dir: &SessionDir) -> Result<Finding, Error> {
    let lock = match dir.lock_owner()? {
        Ownership::Held => return Ok(Finding::Owned),
        Ownership::Taken(lock) => lock,
    };
    if let Some(outcome) = dir.outcome()? {
        return Ok(Finding::Ended(Box::new(outcome)));
    }
    Ok(if may_have_run(dir)? { Finding::Died(lock) } else { Finding::NeverStarted(lock) })
}

/// There is a journal, or the record says that its program was started: a journal that is gone proves nothing.
pub(super) fn may_have_run(dir: &SessionDir) -> Result<bool, Error> {
    Ok(dir.has_journal()? || dir.record()?.started.is_some())
}

/// This boot's id (random(4)): processes of another boot are gone.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The processes of a claimed session, as its containment finds them without its executor.
fn remains(run_id: RunId, claim: &Claim, cgroup: Option<&Path>) -> std::io::Result<Remains> {
    Remains::of(run_id, Marker::new(run_id, &claim.epoch), cgroup)
}

/// Ends what is left of a session whose executor died, and had been placed in `cgroup`. Returns what could not be
/// stopped.
pub(super) async fn clear_tree(
    run_id: RunId,
    claim: &Claim,
    cgroup: Option<PathBuf>,
) -> std::io::Result<Vec<Leftover>> {
    if claim.boot_id != boot_id() {
        return Ok(Vec::new());
    }
    let claim = claim.clone();
    let clear = move || remains(run_id, &claim, cgroup.as_deref())?.clear(KILL_PATIENCE);
    tokio::task::spawn_blocking(clear).await?
}

/// Ends what is left of a session whose files cannot be trusted, of whichever attempt. Blocks. Says what became of it, for
/// people.
pub(super) fn clear_unread(run_id: RunId, cgroup: Option<&Path>) -> String {
    let left = Remains::of(run_id, Marker::of_any_attempt(run_id), cgroup)
        .and_then(|remains| Ok((remains.members()?.len(), remains.clear(KILL_PATIENCE)?)));
    match left {
        Ok((0, _)) => "no process of it is found".to_owned(),
        Ok((found, left)) if left.is_empty() => {
            format!("{found} processes that it had left running were ended")
        }
        Ok((_, left)) => {
            let names: Vec<String> = left.iter().map(|l| format!("{} ({})", l.pid, l.command)).collect();
            format!("these processes of it could not be stopped: {}", names.join(", "))
        }
        Err(error) => format!("its processes cannot be looked for: {error}"),
    }
}

/// Everything that an answer about the session can rest on, for operators and programs. What cannot be read is itself
/// evidence.
pub(super) fn evidence(dir: &SessionDir, controller: &str) -> Vec<Evidence> {
    let claim = dir.claim();
    let started = dir.record().is_ok_and(|record| record.started.is_some());
    let mut all = vec![
        lock_evidence(dir),
        claim_evidence(&claim, started),
        journal_evidence(dir, started),
        outcome_evidence(dir),
        controller_evidence(dir, controller),
    ];
    if let Ok(Some(claim)) = &claim {
        let same = claim.boot_id == boot_id();
        let finding =
            if same { "claimed in this boot" } else { "the machine was started again since the claim" };
        all.push(fact("boot", finding, json!({ "same": same })));
        let cgroup = dir.record().ok().and_then(|record| record.cgroup);
        if let Some(cgroup) = cgroup.as_deref().filter(|_| same) {
            all.push(cgroup_evidence(dir.run_id(), claim, cgroup));
        }
        all.push(processes_evidence(dir.run_id(), claim, cgroup.as_deref(), same));
    }
    all
}

fn fact(source: &str, finding: impl Into<String>, value: serde_json::Value) -> Evidence {
    Evidence { source: source.to_owned(), finding: finding.into(), value }
}

fn unreadable(source: &str, error: impl std::fmt::Display) -> Evidence {
    fact(source, format!("cannot be read: {error}"), json!({ "readable": false }))
}

fn lock_evidence(dir: &SessionDir) -> Evidence {
    match dir.lock_owner() {
        Ok(Ownership::Held) => fact("lock", "held: an executor owns the session", json!({ "held": true })),
        Ok(Ownership::Taken(_)) => fact("lock", "free: no executor lives", json!({ "held": false })),
        Err(error) => unreadable("lock", error),
    }
}

fn claim_evidence(claim: &Result<Option<Claim>, crate::spool::SpoolError>, started: bool) -> Evidence {
    match claim {
        Ok(Some(claim)) => fact(
            "claim",
            format!("attempt {} was claimed", claim.attempt),
            json!({ "attempt": claim.attempt, "time": claim.time }),
        ),
        Ok(None) if started => fact("claim", "missing, though a start is recorded", json!({ "attempt": 0 })),
        Ok(None) => fact("claim", "none: never claimed, so never started", json!({ "attempt": 0 })),
        Err(error) => unreadable("claim", error),
    }
}

fn journal_evidence(dir: &SessionDir, started: bool) -> Evidence {
    match dir.journal() {
        Ok(Some(journal)) => match (journal.size(), journal.tail()) {
            (Ok(size), Ok(tail)) => tail_evidence(size, journal.epoch(), &tail),
            (Err(error), _) | (_, Err(error)) => unreadable("journal", error),
        },
        Ok(None) if started => fact("journal", "missing, though a start is recorded", json!({ "bytes": 0 })),
        Ok(None) => fact("journal", "none: the program was never started", json!({ "bytes": 0 })),
        Err(error) => unreadable("journal", error),
    }
}

/// What the end of a journal shows, without its content.
fn tail_evidence(size: u64, epoch: &str, tail: &Tail) -> Evidence {
    let mut finding = format!("there, {size} bytes; ");
    finding += &match &tail.last {
        Some(last) => format!("its last record is number {}, of kind {}", last.seq, last.kind),
        None => "no record stands at its end".to_owned(),
    };
    if tail.torn > 0 {
        finding += &format!("; {} bytes after that are no record", tail.torn);
    }
    let mut value = json!({ "bytes": size, "epoch": epoch, "torn": tail.torn });
    if let Some(last) = &tail.last {
        value["last"] =
            json!({ "seq": last.seq, "kind": last.kind, "time": last.time, "cursor": last.cursor });
    }
    fact("journal", finding, value)
}

fn controller_evidence(dir: &SessionDir, name: &str) -> Evidence {
    let record = match dir.record() {
        Ok(record) => record,
        Err(error) => return unreadable("controller", error),
    };
    let (phase, delivered) = (record.phase, record.delivered);
    let finding = match delivered {
        true => format!("{name}: it has the outcome, and says {phase}"),
        false => format!("{name}: it has no outcome yet, and the run is {phase}"),
    };
    fact("controller", finding, json!({ "name": name, "delivered": delivered, "phase": phase }))
}

/// Adds what a source says itself to what is known of it here.
pub(super) fn add(evidence: &mut Vec<Evidence>, word: Evidence) {
    let Some(known) = evidence.iter_mut().find(|fact| fact.source == word.source) else {
        return evidence.push(word);
    };
    known.finding = format!("{}; {}", known.finding, word.finding);
    if let (Some(known), serde_json::Value::Object(said)) = (known.value.as_object_mut(), word.value) {
        known.extend(said);
    }
}

fn outcome_evidence(dir: &SessionDir) -> Evidence {
    match dir.outcome() {
        Ok(Some(outcome)) => fact(
            "outcome",
            format!("saved: {}", outcome.end),
            json!({ "end": outcome.end, "ended": outcome.ended }),
        ),
        Ok(None) => fact("outcome", "none", json!({})),
        Err(error) => unreadable("outcome", error),
    }
}

fn cgroup_evidence(run_id: RunId, claim: &Claim, path: &Path) -> Evidence {
    let finding = match remains(run_id, claim, Some(path)).and_then(|remains| remains.cgroup()) {
        Ok(None) => "gone, so nothing lives in it",
        Ok(Some(false)) => "nothing lives in it",
        Ok(Some(true)) => "processes live in it",
        Err(error) => return unreadable("cgroup", error),
    };
    let populated = finding == "processes live in it";
    fact("cgroup", finding, json!({ "path": path, "populated": populated }))
}

fn processes_evidence(run_id: RunId, claim: &Claim, cgroup: Option<&Path>, same_boot: bool) -> Evidence {
    if !same_boot {
        return fact("processes", "none: they did not outlive the boot", json!({ "living": [] }));
    }
    match remains(run_id, claim, cgroup).and_then(|remains| remains.members()) {
        Ok(living) if living.is_empty() => {
            let proof = cgroup.is_some();
            let finding =
                if proof { "none is left" } else { "none is found by what the session's processes carry" };
            fact("processes", finding, json!({ "living": [], "proof": proof }))
        }
        Ok(living) => fact("processes", format!("{} live", living.len()), json!({ "living": living })),
        Err(error) => unreadable("processes", error),
    }
}
