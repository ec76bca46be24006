//! The figures that matter, each as a ratio to something plain measured in the same run, beside the limit it is held
//! to. `cargo bench` prints the table and fails if one is beyond its limit.
//!
//! Ratios, because the machine's speed drifts and the ratio does not. Medians of several rounds in turn, A B A B.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use airouter_sessiond::client::{Client, FollowOptions, WaitFor};
use airouter_sessiond::dialect;
use airouter_sessiond::model::{Event, Part, Phase, RunId, State, Submission};
use airouter_sessiond::spool::{Record, Spool, digest, journal};

const ROUNDS: usize = 7;

/// One figure.
struct Figure {
    name: &'static str,
    ours: String,
    plain: String,
    ratio: f64,
    limit: f64,
}

fn main() -> ExitCode {
    let scratch = tempfile::tempdir().expect("scratch directory");
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o700)).expect("modes");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let mut figures = vec![journal_commit(scratch.path()), dialect_reading(), spool_opening(scratch.path())];
    figures.extend(runtime.block_on(through_the_service(scratch.path())));
    println!("{:<44} {:>16} {:>16} {:>8} {:>8}", "figure", "ours", "plain", "ratio", "limit");
    let mut good = true;
    for figure in &figures {
        let held = figure.ratio <= figure.limit;
        good &= held;
        let mark = if held { "" } else { "  BEYOND ITS LIMIT" };
        let Figure { name, ours, plain, ratio, limit } = figure;
        println!("{name:<44} {ours:>16} {plain:>16} {ratio:>8.2} {limit:>8.2}{mark}");
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Medians of two things measured in turn.
fn paired(mut ours: impl FnMut() -> Duration, mut plain: impl FnMut() -> Duration) -> (Duration, Duration) {
    let (mut a, mut b): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| (ours(), plain())).unzip();
    a.sort();
    b.sort();
    (a[ROUNDS / 2], b[ROUNDS / 2])
}

fn ratio(ours: Duration, plain: Duration) -> f64 {
    ours.as_secs_f64() / plain.as_secs_f64()
}

fn preview(number: usize) -> (Event, String) {
    let text = format!("the increment number {number} of a text that a model prints ");
    let raw = format!(
        "{{\"type\":\"stream_event\",\"event\":{{\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}},\
         \"session_id\":\"0192f3c4-5b6a-7c8d-9e0f-112233445566\",\"parent_tool_use_id\":null}}"
    );
    (Event::Preview { text, part: Part::Text, message: None, sub: None }, raw)
}

/// 50 000 records of some 400 bytes encoded, chained, written and committed in groups, against the same bytes written
/// and synced in the same groups.
fn journal_commit(scratch: &Path) -> Figure {
    const RECORDS: usize = 50_000;
    const GROUP: usize = 1_000;
    let spool = Spool::open(&scratch.join("spool-commit")).expect("spool");
    let mut bytes = Vec::new();
    let ours = || {
        let submission = Submission::new(RunId::random(), "bench");
        let record = Record::admitted(&submission, digest(&submission, None), "jsonl", 1);
        let dir = spool.admit(&submission, None, &record).expect("admits");
        let (mut encoder, mut appender) = dir.create_journal(&journal::new_epoch()).expect("journal");
        let events: Vec<_> = (0..RECORDS).map(preview).collect();
        let begun = Instant::now();
        for group in events.chunks(GROUP) {
            bytes.clear();
            for (event, raw) in group {
                encoder.encode_into(&mut bytes, 1, event, Some(raw.as_bytes()));
            }
            appender.append(&bytes).expect("appends");
            appender.commit().expect("commits");
        }
        begun.elapsed()
    };
    let group = vec![b'x'; 600 * GROUP];
    let plain = || {
        let mut file = File::create(scratch.join("plain")).expect("creates");
        let begun = Instant::now();
        for _ in 0..RECORDS / GROUP {
            file.write_all(&group).expect("writes");
            file.sync_data().expect("syncs");
        }
        begun.elapsed()
    };
    let (a, b) = paired(ours, plain);
    let rate = |took: Duration| format!("{:.0} k/s", RECORDS as f64 / took.as_secs_f64() / 1e3);
    Figure {
        name: "records journaled, against write+fdatasync",
        ours: rate(a),
        plain: rate(b),
        ratio: ratio(a, b),
        limit: 5.0,
    }
}

/// Lines of a program read into events, against parsing them to a `serde_json::Value`.
fn dialect_reading() -> Figure {
    let lines: Vec<String> = (0..20_000).map(|number| preview(number).1).collect();
    let ours = || {
        let mut reader = dialect::find("claude").expect("is there").reader(&[]);
        let mut events = Vec::new();
        let begun = Instant::now();
        for line in &lines {
            reader.line(line.as_bytes(), &mut events);
            events.clear();
        }
        begun.elapsed()
    };
    let plain = || {
        let begun = Instant::now();
        for line in &lines {
            std::hint::black_box(serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        }
        begun.elapsed()
    };
    let (a, b) = paired(ours, plain);
    let rate = |took: Duration| format!("{:.0} k/s", lines.len() as f64 / took.as_secs_f64() / 1e3);
    Figure {
        name: "lines read into events, against a JSON parse",
        ours: rate(a),
        plain: rate(b),
        ratio: ratio(a, b),
        limit: 3.0,
    }
}

/// Opening a spool with 2 000 ended sessions and showing the newest 20, against the same with
/// 500: both have more than one read of the list of ended sessions.
fn spool_opening(scratch: &Path) -> Figure {
    let [large, small] = [(2_000, "spool-large"), (500, "spool-small")].map(|(sessions, name)| {
        let path = scratch.join(name);
        let spool = Spool::open(&path).expect("spool");
        for number in 0..sessions {
            let submission = Submission::new(RunId::random(), "bench");
            let mut record = Record::admitted(&submission, digest(&submission, None), "jsonl", number);
            record.state = State::Finished;
            record.phase = Phase::Complete;
            record.ended = Some(number);
            record.end = Some(airouter_sessiond::model::End::Completed);
            spool.admit(&submission, None, &record).expect("admits");
            spool.settle(submission.run_id()).expect("settles");
        }
        path
    });
    let open = |path: &Path| {
        let begun = Instant::now();
        let spool = Spool::open(path).expect("spool");
        assert!(spool.active().expect("active").is_empty());
        assert_eq!(spool.ended(None, 20).expect("page").lines.len(), 20);
        begun.elapsed()
    };
    let (a, b) = paired(|| open(&large), || open(&small));
    let show = |took: Duration| format!("{:.2} ms", took.as_secs_f64() * 1e3);
    Figure {
        name: "start and first page, 2000 ended against 500",
        ours: show(a),
        plain: show(b),
        ratio: ratio(a, b),
        limit: 2.0,
    }
}

/// What can only be measured with a daemon.
async fn through_the_service(scratch: &Path) -> Vec<Figure> {
    let daemon = Daemon::start(scratch);
    let client = Client::connect_socket(&scratch.join("run/s.sock")).await.expect("connects");
    let submit = async |script: &str| {
        let mut submission = Submission::new(RunId::random(), "sh");
        submission.arguments = vec![script.to_owned()];
        client.submit(&submission, None).await.expect("submits");
        submission.run_id()
    };
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let begun = Instant::now();
        let run_id = submit("true").await;
        client.wait(run_id, WaitFor::Finished, Duration::from_secs(60)).await.expect("ends");
        ours.push(begun.elapsed());
        let begun = Instant::now();
        assert!(Command::new("/bin/sh").args(["-c", "true"]).status().expect("runs").success());
        plain.push(begun.elapsed());
    }
    ours.sort();
    plain.sort();
    let (a, b) = (ours[20], plain[20]);
    let show = |took: Duration| format!("{:.2} ms", took.as_secs_f64() * 1e3);
    let whole = Figure {
        name: "submit to finished of `true`, against sh -c",
        ours: show(a),
        plain: show(b),
        ratio: ratio(a, b),
        limit: 20.0,
    };

    let run_id = submit("awk 'BEGIN { for (n = 0; n < 100000; n++) print \"{\\\"n\\\":\" n \"}\" }'").await;
    client.wait(run_id, WaitFor::Finished, Duration::from_secs(60)).await.expect("ends");
    let mut took = Vec::new();
    let (mut bytes, mut copied) = (0, Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let options = FollowOptions { raw: false, live: false };
        let mut follow = client.follow(run_id, "start", options).await.expect("follows");
        bytes = 0;
        while let Some(line) = follow.next_line().await.expect("reads") {
            bytes += line.len() + 1;
        }
        took.push(begun.elapsed());
        copied.push(cat(&vec![b'x'; bytes]));
    }
    took.sort();
    copied.sort();
    let (a, b) = (took[ROUNDS / 2], copied[ROUNDS / 2]);
    let rate = |took: Duration| format!("{:.0} MB/s", bytes as f64 / took.as_secs_f64() / 1e6);
    let follow = Figure {
        name: "100 000 records followed, against cat",
        ours: rate(a),
        plain: rate(b),
        ratio: ratio(a, b),
        limit: 25.0,
    };

    let run_id = submit("sleep 60").await;
    client.wait(run_id, WaitFor::Started, Duration::from_secs(60)).await.expect("starts");
    let executor = resident(&executor_of(daemon.child.id()).to_string());
    let own = resident(&daemon.child.id().to_string());
    client.cancel(run_id).await.expect("cancels");
    client.wait(run_id, WaitFor::Finished, Duration::from_secs(60)).await.expect("ends");
    let memory = |name, kib: u64, limit_mib: f64| Figure {
        name,
        ours: format!("{:.1} MiB", kib as f64 / 1024.0),
        plain: "1 MiB".into(),
        ratio: kib as f64 / 1024.0,
        limit: limit_mib,
    };
    vec![
        whole,
        follow,
        memory("memory of the daemon after all that", own, 32.0),
        memory("memory of an executor", executor, 6.0),
    ]
}

/// Sends bytes through `cat` and reads them all.
fn cat(bytes: &[u8]) -> Duration {
    let begun = Instant::now();
    let mut child =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat runs");
    let (mut to, mut from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    std::thread::scope(|scope| {
        scope.spawn(move || to.write_all(bytes).expect("writes"));
        let mut all = Vec::with_capacity(bytes.len());
        from.read_to_end(&mut all).expect("reads");
        assert_eq!(all.len(), bytes.len());
    });
    child.wait().expect("ends");
    begun.elapsed()
}

/// Resident memory in KiB.
fn resident(pid: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("has memory");
    line.split_ascii_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

fn executor_of(daemon: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).expect("lives");
    children.split_ascii_whitespace().next().and_then(|pid| pid.parse().ok()).expect("has an executor")
}

struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(scratch: &Path) -> Daemon {
        let config = scratch.join("sessiond.toml");
        let text = format!(
            "spool = \"{0}/spool\"\nsocket = \"{0}/run/s.sock\"\nbus = \"off\"\nallow_root = {1}\n\
             containment = \"process-group\"\non_stop = \"cancel\"\n\
             [profiles.sh]\nprogram = \"/bin/sh\"\ndialect = \"jsonl\"\narguments = [\"-c\"]\n",
            scratch.display(),
            nix::unistd::geteuid().is_root()
        );
        fs::write(&config, text).expect("configuration");
        fs::set_permissions(&config, Permissions::from_mode(0o600)).expect("modes");
        let child = Command::new(env!("CARGO_BIN_EXE_airouter-sessiond"))
            .args(["--config".as_ref(), config.as_os_str()])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon's program");
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(scratch.join("run/s.sock")).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the daemon did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        Daemon { child }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}
