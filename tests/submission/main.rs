//! What a submission can bring along: attachments, a schema for the answer, an earlier conversation. Over the real daemon,
//! the real bus and real processes.

#[path = "../support/mod.rs"]
mod support;

mod attachments;
mod continues;
mod faults;
mod output;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use airouter_sessiond::client::{Attachment, Client, Error, Submitted};
use airouter_sessiond::model::{RunId, Submission};
use support::Bench;

/// Speaks like `codex exec`: its arguments and every file among them into files of the session's own, then a turn whose
/// answer is `$ANSWER` and whose conversation is `$THREAD`. It waits for the file `$GATE` where there is one to wait for, and
/// kills its executor where there is a `$DIE`.
const PROGRAM: &str = r#"#!/bin/sh
echo start >>"starts-$ID"
for argument in "$@"; do
  printf '%s\n' "$argument" >>"arguments-$ID"
  file=${argument#*=}
  case $file in
    /*) cp "$file" "got-$ID-${file##*/}" && stat -c '%a %n' "$file" >>"modes-$ID" ;;
  esac
done
cat >/dev/null
printf '{"type":"thread.started","thread_id":"%s"}\n{"type":"turn.started"}\n' "$THREAD"
[ -z "$DIE" ] || { sleep 0.3; kill -9 $PPID; sleep 60; }
[ -z "$GATE" ] || until [ -e "$GATE" ]; do sleep 0.02; done
printf '{"type":"item.completed","item":{"id":"i","type":"agent_message","text":%s}}\n' "${ANSWER:-\"done\"}"
printf '{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":1}}\n'
"#;

const THREAD: &str = "01a22ca6-386c-7071-a05d-b989233d4fc6";

/// A running service with the profiles `sh`, `agent` of the dialect codex, and `talker` of the dialect pi-rpc, which notes
/// the first two lines that it is told; `configuration` comes before them.
fn bench(configuration: &str) -> Bench {
    let mut bench = prepared(configuration);
    bench.start();
    bench
}

/// The same, not started.
fn prepared(configuration: &str) -> Bench {
    let bench = Bench::prepared(configuration);
    let program = bench.write("agent", PROGRAM);
    let talker = bench.write("talker", "#!/bin/sh\nhead -n 2 >\"heard-$ID\"\n");
    let profiles = format!(
        "[profiles.agent]\nprogram = \"{}\"\ndialect = \"codex\"\n\
         [profiles.talker]\nprogram = \"{}\"\ndialect = \"pi-rpc\"\n\
         [profiles.other]\nprogram = \"/bin/cat\"\ndialect = \"pi\"\n\
         [profiles.claude]\nprogram = \"/bin/cat\"\ndialect = \"claude\"\n",
        program.display(),
        talker.display()
    );
    bench.configure(configuration, &profiles);
    bench
}

/// A submission of the profile `agent`.
fn agent(bench: &Bench) -> Submission {
    let mut submission = Submission::new(RunId::random(), "agent");
    submission.directory = Some(bench.path().display().to_string());
    submission.environment.insert("ID".into(), submission.run_id().to_string());
    submission.environment.insert("THREAD".into(), THREAD.into());
    submission
}

/// What programs are asked here.
fn prompt() -> Option<Vec<u8>> {
    Some(b"What is it?".to_vec())
}

async fn submit(
    client: &Client,
    submission: &Submission,
    attachments: &[Attachment],
) -> Result<Submitted, Error> {
    client.submit_with(submission, prompt(), attachments).await
}

/// The text of a refusal.
fn refusal<T>(answer: Result<T, Error>) -> String {
    match answer {
        Ok(_) => panic!("it was not refused"),
        Err(error) => {
            assert!(error.refusal().is_some(), "{error}");
            error.to_string()
        }
    }
}

/// Everything in the spool, by path, with lengths.
fn spool(bench: &Bench) -> BTreeSet<(PathBuf, u64)> {
    fn walk(path: &Path, all: &mut BTreeSet<(PathBuf, u64)>) {
        for entry in std::fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry")) {
            let found = entry.metadata().expect("metadata");
            all.insert((entry.path(), if found.is_file() { found.len() } else { 0 }));
            if found.is_dir() {
                walk(&entry.path(), all);
            }
        }
    }
    let mut all = BTreeSet::new();
    walk(&bench.spool(), &mut all);
    all
}

/// The folder of an ended session.
fn ended(bench: &Bench, run_id: RunId) -> PathBuf {
    bench.spool().join("ended").join(run_id.shard()).join(run_id.to_string())
}
