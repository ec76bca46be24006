//! HAZARDS of the program: whatever it prints is kept, and exit, verdict and end are three facts.

mod support;

use airouter_sessiond::model::{Entry, Submission};
use support::Bench;

/// The exact bytes of a session's standard output, as its journal has them.
fn stdout_of(events: &[Entry]) -> Vec<u8> {
    use base64::Engine;
    let mut bytes = Vec::new();
    for entry in events.iter().filter(|e| e.raw.is_some() || e.raw64.is_some()) {
        match (&entry.raw, &entry.raw64) {
            (Some(raw), _) => bytes.extend(raw.as_bytes()),
            (None, Some(raw)) => {
                bytes.extend(base64::engine::general_purpose::STANDARD.decode(raw).expect("base64"));
            }
            (None, None) => {}
        }
        if entry.details.get("partial") != Some(&true.into()) {
            bytes.push(b'\n');
        }
    }
    bytes
}

#[tokio::test]
async fn every_byte_is_kept_whatever_it_is() {
    let bench = Bench::new();
    let mut printed: Vec<u8> = Vec::new();
    printed.extend("{\"type\":\"x\",\"u\":\"\u{2028}\u{85}\u{7f}\u{9b}\"}\r\n\n".as_bytes());
    printed.extend(b"banner \xff\xfe\x00 not UTF-8\n{\"a\":\"\\ud83d\"}\n");
    printed.extend(vec![b'x'; 1 << 20]);
    printed.extend(b"\n{\"id\":1,\"id\":2}\n");
    printed.extend("{\"half\":\"\u{1F600}".as_bytes());
    std::fs::write(bench.path().join("what"), &printed).expect("writes");
    let (run_id, status) = bench.run("cat what").await;
    assert_eq!(status.end(), Some("completed"));
    assert_eq!(status.json().get("activity-complete"), Some(&true.into()));
    let events = bench.events(run_id).await;
    assert!(stdout_of(&events) == printed, "the same bytes");
    assert_eq!(events.first().map(|e| e.kind.as_str()), Some("started"));
    assert_eq!(events.last().map(|e| e.kind.as_str()), Some("ended"));
}

#[tokio::test]
async fn a_line_of_twenty_mebibytes_ends_nothing_and_is_marked() {
    let bench = Bench::new();
    let (run_id, status) =
        bench.run("head -c 20971520 /dev/zero | tr '\\0' y; echo; echo '{\"after\":1}'").await;
    assert_eq!(status.end(), Some("completed"));
    assert_eq!(status.json().get("activity-complete"), Some(&false.into()), "some bytes are not there");
    let events = bench.events(run_id).await;
    let long =
        events.iter().find(|e| e.details.get("reason") == Some(&"line-too-long".into())).expect("is marked");
    assert_eq!(long.details.get("bytes"), Some(&20_971_520.into()));
    assert_eq!(long.details.get("sha256").and_then(|s| s.as_str()).map(str::len), Some(64));
    assert!(long.raw.as_ref().is_some_and(|head| head.len() == 65_536 && head.starts_with("yyy")));
    assert!(events.iter().any(|e| e.raw.as_deref() == Some("{\"after\":1}")), "the session went on");
}

#[tokio::test]
async fn stderr_is_drained_bounded_and_counted() {
    let bench = Bench::new();
    let script = "i=0; while [ $i -lt 40 ]; do head -c 65536 /dev/zero | tr '\\0' e >&2; echo >&2; i=$((i+1)); done; echo '{\"ok\":1}'";
    let (run_id, status) = bench.run(script).await;
    assert_eq!(status.end(), Some("completed"));
    let events = bench.events(run_id).await;
    let kept: usize = events
        .iter()
        .filter(|e| e.kind == "stderr")
        .filter_map(|e| e.details.get("text")?.as_str().map(str::len))
        .sum();
    assert!((1_000_000..=1_048_576).contains(&kept), "{kept}");
    let cut = events.iter().find(|e| e.details.get("reason") == Some(&"stderr-cut".into())).expect("is said");
    let cut = cut.details.get("bytes").and_then(|b| b.as_u64()).expect("counted");
    assert!(cut >= 40 * 65_537 - 1_048_576 - 64, "{cut}");
}

#[tokio::test]
async fn a_grandchild_that_holds_stdout_does_not_hold_the_session() {
    let bench = Bench::new();
    let begun = std::time::Instant::now();
    let (_, status) = bench.run("sleep 600 & echo $! >sleeper; echo '{\"done\":1}'").await;
    assert_eq!(status.end(), Some("completed"));
    assert!(begun.elapsed().as_secs() < 30);
    assert!(!support::lives(&bench.read("sleeper")), "what is left of the tree is stopped");
}

#[tokio::test]
async fn what_was_asked_to_stay_stays() {
    let bench = Bench::new();
    let mut submission = bench.script("setsid sleep 600 >/dev/null 2>&1 & echo $! >server; sleep 0.1");
    submission.leave_descendants = true;
    let (_, status) = bench.run_submission(&submission, None).await;
    assert_eq!(status.end(), Some("completed"));
    let server = bench.read("server");
    assert!(support::lives(&server), "it was asked to stay");
    let pid = nix::unistd::Pid::from_raw(server.trim().parse().expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("ours");
}

#[tokio::test]
async fn exit_verdict_and_end_are_three_facts() {
    let bench = Bench::new();
    let say = |verdict: &str| format!("echo '{{\"type\":\"verdict\",\"result\":\"{verdict}\"}}'; ");
    for (script, code, verdict, end) in [
        ("true".to_owned(), Some(0), None, "completed"),
        ("exit 7".to_owned(), Some(7), None, "failed"),
        (say("success"), Some(0), Some("success"), "completed"),
        (say("failure"), Some(0), Some("failure"), "failed"),
        (say("success") + "exit 1", Some(1), Some("success"), "failed"),
        (say("failure") + &say("success"), Some(0), Some("success"), "completed"),
        ("kill -9 $$".to_owned(), None, None, "killed"),
        (
            "echo '{\"type\":\"verdict\",\"result\":\"failure\",\"limit\":\"3 pm\"}'".to_owned(),
            Some(0),
            Some("failure"),
            "limit-reached",
        ),
    ] {
        let (_, status) = bench.run(&script).await;
        let json = status.json();
        assert_eq!(status.end(), Some(end), "{script}: {json:?}");
        assert_eq!(status.number("exit-code"), code, "{script}");
        assert_eq!(json.get("verdict").and_then(|v| v.as_str()), verdict, "{script}");
        assert_eq!(status.number("exit-signal"), code.is_none().then_some(9), "{script}");
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_the_path_that_was_tried() {
    let bench = Bench::prepared("");
    let plain = bench.write("not-executable", "x");
    std::fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("modes");
    let profiles = format!(
        "[profiles.missing]\nprogram = \"{0}/missing\"\ndialect = \"jsonl\"\n\
         [profiles.plain]\nprogram = \"{0}/not-executable\"\ndialect = \"jsonl\"\n",
        bench.path().display()
    );
    bench.configure("", &profiles);
    let mut bench = bench;
    bench.start();
    for (profile, path) in [("missing", "/missing"), ("plain", "/not-executable")] {
        let submission = Submission::new(airouter_sessiond::model::RunId::random(), profile);
        let (run_id, status) = bench.run_submission(&submission, None).await;
        assert_eq!(status.end(), Some("spawn-failed"), "{:?}", status.json());
        assert!(status.text("error").contains(path), "{}", status.text("error"));
        assert_eq!(bench.events(run_id).await.last().map(|e| e.kind.as_str()), Some("ended"));
    }
    let mut gone = bench.script("true");
    gone.directory = Some(bench.path().join("vanished").display().to_string());
    let (_, status) = bench.run_submission(&gone, None).await;
    assert_eq!(status.end(), Some("spawn-failed"));
    assert!(status.text("error").contains("/vanished"), "{}", status.text("error"));
}

#[tokio::test]
async fn the_environment_is_the_submissions_and_never_the_daemons() {
    let mut bench = Bench::prepared("[environment]\nBASE = \"base\"\nBOTH = \"base\"\n");
    bench.environment("HTTPS_PROXY", "http://daemon");
    bench.environment("HOME", "/nowhere");
    bench.start();
    let mut submission = bench.script("env >environment; pwd -P >directory; ls /proc/self/fd >descriptors");
    submission.environment.insert("BOTH".into(), "submission".into());
    let (_, status) = bench.run_submission(&submission, None).await;
    assert_eq!(status.end(), Some("completed"));
    let environment = bench.read("environment");
    let has = |line: &str| environment.lines().any(|l| l == line);
    assert!(has("BASE=base") && has("BOTH=submission"), "{environment}");
    assert!(!environment.contains("HTTPS_PROXY") && !has("HOME=/nowhere"), "{environment}");
    assert_eq!(
        bench.read("directory").trim(),
        bench.path().canonicalize().expect("path").display().to_string()
    );
    // 0, 1, 2, and the one with which ls reads the directory.
    assert_eq!(bench.read("descriptors").lines().count(), 4, "{}", bench.read("descriptors"));
}

#[tokio::test]
async fn the_input_reaches_the_program_whole_also_when_it_is_large_or_empty() {
    let bench = Bench::new();
    for input in [Vec::new(), b"- starts with a dash\n".to_vec(), vec![b'p'; 5 << 20], vec![0, 255, 10, 0]] {
        let submission = bench.script("cat >got; cksum <got");
        let (_, status) = bench.run_submission(&submission, Some(input.clone())).await;
        assert_eq!(status.end(), Some("completed"));
        assert!(
            std::fs::read(bench.path().join("got")).expect("was written") == input,
            "{} bytes",
            input.len()
        );
    }
    let (_, status) = bench.run("cat >got-nothing; test -s got-nothing && exit 1; exit 0").await;
    assert_eq!(status.end(), Some("completed"), "without input it reads end of file");
}

#[tokio::test]
async fn output_through_a_file_is_kept_whole_and_the_file_does_not_stay() {
    let mut bench = Bench::prepared("");
    let profile = "[profiles.file]\nprogram = \"/bin/sh\"\ndialect = \"jsonl\"\narguments = [\"-c\"]\ncapture = \"file\"\n";
    bench.configure("", profile);
    bench.start();
    // A burst beyond what is punched away at once, a pause, a line without an end, and a grandchild that goes on.
    let script = "test -f /proc/self/fd/1 || exit 9; i=0; while [ $i -lt 12 ]; do head -c 1000000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; \
                  sleep 0.3; (while :; do echo late; sleep 0.05; done) & printf end";
    let mut submission = bench.script(script);
    submission.profile = "file".into();
    let (run_id, status) = bench.run_submission(&submission, None).await;
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    let events = bench.events(run_id).await;
    let mut expected: Vec<u8> = [vec![b'x'; 1_000_000], b"\n".to_vec()].concat().repeat(12);
    expected.extend(b"end");
    let got = stdout_of(&events);
    assert!(got.starts_with(&expected), "{} bytes", got.len());
    let folder = bench.spool().join("ended").join(&run_id.to_string()[..2]).join(run_id.to_string());
    assert!(!folder.join("stdout.capture").exists());
}

#[tokio::test]
async fn limits_of_time_end_a_session_with_their_own_names() {
    let bench = Bench::with("[limits]\ngrace_ms = 300\n");
    for (key, script, end) in [
        ("deadline", "while :; do echo '{}'; sleep 0.1; done", "deadline"),
        ("idle", "echo '{}'; sleep 600", "idle"),
        ("start", "sleep 600", "no-output"),
    ] {
        let mut submission = bench.script(script);
        match key {
            "deadline" => submission.deadline_seconds = Some(1),
            "idle" => submission.idle_seconds = Some(1),
            _ => submission.start_seconds = Some(1),
        }
        let (run_id, status) = bench.run_submission(&submission, None).await;
        assert_eq!(status.end(), Some(end), "{:?}", status.json());
        let events = bench.events(run_id).await;
        let reason = |reason: &str| events.iter().any(|e| e.details.get("reason") == Some(&reason.into()));
        assert!(reason("stopping"), "the reason is written before anything is signalled");
        assert!(end != "idle" || reason("idle"), "the idle limit warns first");
    }
}

/// The executor keeps them by itself.
#[tokio::test]
async fn every_limit_ends_its_session_while_no_daemon_lives() {
    let mut bench = Bench::with("on_stop = \"detach\"\n[limits]\ngrace_ms = 300\n");
    let client = bench.client().await;
    let mut all = Vec::new();
    for (name, script, end) in [
        ("deadline", "while :; do echo '{}'; sleep 0.1; done", "deadline"),
        ("idle", "echo '{}'; sleep 600", "idle"),
        ("start", "sleep 600", "no-output"),
        (
            "journal",
            "until [ -e dead ]; do sleep 0.02; done; while :; do echo '{\"text\":\"it fills the journal\"}'; done",
            "journal-full",
        ),
    ] {
        let mut submission = bench.script(&format!("echo $$ >>main-{name}; {script}"));
        match name {
            "deadline" => submission.deadline_seconds = Some(2),
            "idle" => submission.idle_seconds = Some(2),
            "start" => submission.start_seconds = Some(2),
            _ => submission.limits.journal_max = Some(128 << 10),
        }
        client.submit(&submission, None).await.expect("submits");
        support::until("it runs", || bench.read(&format!("main-{name}")).ends_with('\n'));
        all.push((submission.run_id(), name, end));
    }
    bench.kill();
    bench.write("dead", "");
    for (run_id, name, _) in &all {
        let outcome = bench.spool().join("active").join(run_id.to_string()).join("outcome.json");
        support::until(name, || outcome.exists());
        assert!(!support::lives(&bench.read(&format!("main-{name}"))), "{name}: stopped with nobody there");
    }
    bench.start();
    let client = bench.client().await;
    for (run_id, name, end) in all {
        let finished = airouter_sessiond::client::WaitFor::Finished;
        let status = client.wait(run_id, finished, support::PATIENCE).await.expect("is delivered");
        assert_eq!(status.end(), Some(end), "{:?}", status.json());
        assert_eq!(bench.read(&format!("main-{name}")).lines().count(), 1);
    }
}

#[tokio::test]
async fn a_full_journal_ends_the_session_and_says_what_is_missing() {
    let bench = Bench::with("[limits]\ngrace_ms = 300\n");
    let mut submission =
        bench.script("while :; do echo '{\"filler\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}'; done");
    submission.limits.journal_max = Some(256 << 10);
    let (run_id, status) = bench.run_submission(&submission, None).await;
    assert_eq!(status.end(), Some("journal-full"), "{:?}", status.json());
    assert_eq!(status.json().get("activity-complete"), Some(&false.into()));
    let events = bench.events(run_id).await;
    let gap =
        events.iter().find(|e| e.details.get("reason") == Some(&"gap".into())).expect("the gap is stated");
    assert!(gap.details.get("lines").and_then(|l| l.as_u64()).is_some_and(|lines| lines > 0));
    let journal = std::fs::metadata(
        bench
            .spool()
            .join("ended")
            .join(&run_id.to_string()[..2])
            .join(run_id.to_string())
            .join("journal.jsonl"),
    );
    assert!(journal.expect("is there").len() <= 256 << 10);
}

#[tokio::test]
async fn a_firehose_is_kept_whole() {
    let bench = Bench::new();
    let (run_id, status) = bench.run("awk 'BEGIN { for (n = 0; n < 200000; n++) print n }'").await;
    assert_eq!(status.end(), Some("completed"));
    let events = bench.events(run_id).await;
    let lines = events.iter().filter(|e| e.kind == "raw").filter_map(|e| e.raw.as_deref());
    assert!(lines.eq((0..200_000).map(|n| n.to_string())), "each line once, in order");
}

#[tokio::test]
async fn a_program_that_prints_without_a_pause_is_still_stopped_and_seen() {
    let bench = Bench::with("[limits]\ngrace_ms = 300\n");
    let client = bench.client().await;
    let mut with_deadline = bench.script("exec yes a-line-that-a-program-prints-without-a-pause");
    with_deadline.deadline_seconds = Some(2);
    let begun = std::time::Instant::now();
    let (_, status) = bench.run_submission(&with_deadline, None).await;
    assert_eq!(status.end(), Some("deadline"), "{:?}", status.json());
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    // What is left behind prints on: the session ends all the same.
    let (_, status) = bench.run("(exec yes a-line-that-a-program-prints-without-a-pause) & exit 0").await;
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    let cancelled = bench.script("exec yes a-line-that-a-program-prints-without-a-pause");
    client.submit(&cancelled, None).await.expect("submits");
    support::until("observers see it", || false_until_records(&bench, &cancelled));
    client.cancel(cancelled.run_id()).await.expect("cancels");
    let status = client
        .wait(cancelled.run_id(), airouter_sessiond::client::WaitFor::Finished, support::PATIENCE)
        .await;
    assert_eq!(status.expect("ends").end(), Some("cancelled"));
}

fn false_until_records(bench: &Bench, submission: &Submission) -> bool {
    let output = bench.sessionctl(&["--json", "events", "--limit", "50", &submission.run_id().to_string()]);
    output.stdout.iter().filter(|&&byte| byte == b'\n').count() >= 50
}

#[tokio::test]
async fn a_death_by_a_signal_without_a_name_is_told() {
    let bench = Bench::new();
    let (_, status) = bench.run("kill -40 $$").await;
    assert_eq!(
        (status.end(), status.number("exit-signal")),
        (Some("killed"), Some(40)),
        "{:?}",
        status.json()
    );
    let orphans =
        "i=0; while [ $i -lt 20 ]; do (sleep 0.3; kill -41 $(sh -c 'echo $PPID')) & i=$((i+1)); done; exit 0";
    let (_, status) = bench.run(orphans).await;
    assert_eq!(
        (status.end(), status.number("exit-code")),
        (Some("completed"), Some(0)),
        "{:?}",
        status.json()
    );
}
