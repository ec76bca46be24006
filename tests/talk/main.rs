//! Talking to a running session, through the real binaries: messages and their receipts, questions and their answers, and
//! what remains of both when the daemon, the executor or the program dies.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "faults")]
mod disk;
mod ends;
mod kills;
mod messages;
mod questions;

use std::time::Duration;

use airouter_sessiond::client::{Client, Error, SessionStatus, WaitFor};
use airouter_sessiond::model::{Answer, Entry, Receipt, RunId, Submission};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use support::{Bench, PATIENCE, refusal, until};

/// A service with the profile `talker`: what it is told, it notes in the file `heard`, and does.
struct Talk {
    bench: Bench,
}

impl Talk {
    fn new() -> Talk {
        Talk::with("")
    }

    fn with(configuration: &str) -> Talk {
        let mut talk = Talk::prepared(configuration);
        talk.bench.start();
        talk
    }

    fn prepared(configuration: &str) -> Talk {
        let bench = Bench::prepared("");
        let program = bench.write("talker.py", include_str!("talker.py"));
        let configuration = format!("on_stop = \"detach\"\n{configuration}");
        let profile = format!(
            "[profiles.talker]\nprogram = \"/usr/bin/python3\"\ndialect = \"jsonl-talk\"\narguments = [\"{}\"]\n",
            program.display()
        );
        bench.configure(&configuration, &profile);
        Talk { bench }
    }

    fn submission(&self) -> Submission {
        let mut submission = Submission::new(RunId::random(), "talker");
        submission.directory = Some(self.bench.path().display().to_string());
        submission
    }

    /// Starts a session that does the words of this prompt.
    async fn start(&self, prompt: &str) -> (Client, RunId) {
        let client = self.bench.client().await;
        let submission = self.submission();
        client.submit(&submission, Some(prompt.as_bytes().to_vec())).await.expect("submits");
        self.hears("prompt");
        (client, submission.run_id())
    }

    /// Waits until the program has noted a line that begins so.
    fn hears(&self, line: &str) {
        until(line, || self.heard().iter().any(|heard| heard.starts_with(line)));
    }

    fn heard(&self) -> Vec<String> {
        self.bench.read("heard").lines().map(str::to_owned).collect()
    }

    /// How often the program heard exactly this.
    fn times(&self, line: &str) -> usize {
        self.heard().iter().filter(|heard| *heard == line).count()
    }

    /// Kills the daemon and starts another.
    async fn another_daemon(&mut self) -> Client {
        self.bench.kill();
        self.bench.start();
        self.bench.client().await
    }

    /// The session's events of a kind, each as `receipt-or-how id`.
    async fn said(&self, run_id: RunId, kind: &str) -> Vec<String> {
        let text = |entry: &Entry, key: &str| {
            entry.details.get(key).and_then(|value| value.as_str()).unwrap_or_default().to_owned()
        };
        let of_kind = |entry: &&Entry| entry.kind == kind;
        let word = |entry: &Entry| match kind {
            "message" => format!("{} {}", text(entry, "receipt"), text(entry, "request-id")),
            "question-settled" => format!("{} {}", text(entry, "how"), text(entry, "question")),
            _ => text(entry, "question"),
        };
        self.bench.events(run_id).await.iter().filter(of_kind).map(word).collect()
    }
}

/// The receipt of a message that was sent before: asks until it is as far as that.
async fn receipt(client: &Client, run_id: RunId, id: &str, text: &str, wanted: Receipt) {
    let begun = std::time::Instant::now();
    loop {
        let found = client.steer(run_id, id, text).await.expect("known").receipt;
        if found == wanted {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{id} is {found:?}, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the session to ask and gives the question's id.
async fn asked(client: &Client, run_id: RunId) -> String {
    let status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
    assert!(status.asks(), "{:?}", status.json());
    status.typed().expect("known words").questions[0].question.clone()
}

async fn ended(client: &Client, run_id: RunId) -> SessionStatus {
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
    assert!(status.is_over(), "{:?}", status.json());
    status
}

fn choose(choice: &str) -> Answer {
    Answer { choice: Some(choice.to_owned()), text: None }
}

fn say(text: &str) -> Answer {
    Answer { choice: None, text: Some(text.to_owned()) }
}

/// Kills a session's executor.
fn kill_executor(run_id: RunId) {
    let [executor] = executors(run_id)[..] else { panic!("{:?}", executors(run_id)) };
    nix::sys::signal::kill(Pid::from_raw(executor), Signal::SIGKILL).expect("kill");
}

/// The executor of a session while there is one: the process whose arguments name the session's folder.
fn executors(run_id: RunId) -> Vec<i32> {
    let name = run_id.to_string();
    std::fs::read_dir("/proc")
        .expect("proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).into_owned();
            arguments.contains("airouter-native-exec") && arguments.contains(&name)
        })
        .collect()
}
