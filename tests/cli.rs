//! sessionctl as an operator uses it: what it prints, how it exits, what it says when something is wrong.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Bench, text, until};

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stdout)))
}

#[test]
fn run_submits_follows_and_exits_as_the_session_ended() {
    let bench = Bench::new();
    let output = bench.sessionctl(&[
        "run",
        "--profile",
        "sh",
        "--",
        "echo '{\"type\":\"response-completed\",\"text\":\"hello there\"}'",
    ]);
    let printed = good(&output);
    assert!(printed.contains("hello there"), "{printed}");
    for (script, code) in [("exit 3", 1), ("kill -9 $$", 20)] {
        let output = bench.sessionctl(&["run", "--profile", "sh", "--", script]);
        assert_eq!(output.status.code(), Some(code), "{script}: {}", text(&output.stderr));
    }
}

#[test]
fn input_comes_from_an_option_a_file_or_a_pipe() {
    let bench = Bench::new();
    let file = bench.write("prompt", "from a file");
    let submit = |arguments: &[&str]| {
        let mut all = vec!["run", "--profile", "sh"];
        all.extend(arguments);
        all.extend(["--", "cat >got"]);
        bench.sessionctl_command(&all)
    };
    good(&submit(&["--input", "from an option"]).output().expect("runs"));
    assert_eq!(bench.read("got"), "from an option");
    good(&submit(&["--input-file", &file.display().to_string()]).output().expect("runs"));
    assert_eq!(bench.read("got"), "from a file");
    let mut piped = submit(&[]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("runs");
    piped.stdin.take().expect("piped").write_all(b"from a pipe").expect("writes");
    assert!(piped.wait().expect("ends").success());
    assert_eq!(bench.read("got"), "from a pipe");
}

/// A prompt is often a list, or speaks of options.
#[test]
fn input_may_begin_like_an_option() {
    let bench = Bench::new();
    for input in ["- one\n- two", "--help", "-", "--", "-x --json"] {
        for option in ["-p", "--input", "--prompt"] {
            let arguments = ["run", option, input, "--profile", "sh", "--", "cat >got"];
            good(&bench.sessionctl(&arguments));
            assert_eq!(bench.read("got"), input, "{option}");
        }
    }
}

#[test]
fn every_command_speaks_json() {
    let bench = Bench::new();
    let submitted = bench.sessionctl(&[
        "--json",
        "submit",
        "--profile",
        "sh",
        "--label",
        "mine",
        "--",
        "echo '{\"n\":1}'",
    ]);
    good(&submitted);
    let run_id = json(&submitted)["run_id"].as_str().expect("a run_id").to_owned();
    let waited = bench.sessionctl(&["--json", "wait", &run_id]);
    assert_eq!(json(&waited)["end"], "completed");
    assert_eq!(json(&bench.sessionctl(&["--json", "status", &run_id]))["label"], "mine");
    let events = good(&bench.sessionctl(&["--json", "events", &run_id]));
    let kinds: Vec<String> = events
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON lines")["kind"]
                .as_str()
                .expect("kind")
                .to_owned()
        })
        .collect();
    assert_eq!(kinds, ["started", "raw", "exited", "ended"]);
    let followed = good(&bench.sessionctl(&["--json", "follow", &run_id]));
    let last: serde_json::Value =
        serde_json::from_str(followed.lines().last().expect("lines")).expect("JSON");
    assert_eq!((followed.lines().count(), &last["status"]["end"]), (5, &"completed".into()));
    assert!(good(&bench.sessionctl(&["--json", "list"])).contains(&run_id));
    assert_eq!(json(&bench.sessionctl(&["--json", "cancel", &run_id]))["end"], "completed");
    assert!(json(&bench.sessionctl(&["--json", "reconcile", &run_id]))["evidence"].is_array());
    let profiles = json(&bench.sessionctl(&["--json", "profiles", "list"]));
    assert_eq!(profiles["sh"]["program"], "/bin/sh");
    assert!(profiles["sh"]["features"].is_array(), "{profiles}");
    serde_json::from_slice::<serde_json::Value>(&bench.sessionctl(&["--json", "doctor"]).stdout)
        .expect("JSON");
}

#[test]
fn a_unique_beginning_of_an_id_is_enough() {
    let bench = Bench::new();
    let submitted = bench.sessionctl(&["--json", "submit", "--profile", "sh", "--", "true"]);
    let run_id = json(&submitted)["run_id"].as_str().expect("a run_id").to_owned();
    assert!(bench.sessionctl(&["wait", &run_id[..8]]).status.success());
    let error = bench.sessionctl(&["status", "ffffffff-0000"]);
    assert!(!error.status.success());
    assert!(!error.stderr.is_empty());
}

#[test]
fn ctrl_c_detaches_and_says_how_to_come_back() {
    let bench = Bench::new();
    let mut child = bench
        .sessionctl_command(&["run", "--profile", "sh", "--", "echo '{\"type\":\"response-completed\",\"text\":\"begun\"}'; until [ -e go ]; do sleep 0.02; done; echo end >ended"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("reads").contains("begun")));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("signal");
    let status = child.wait().expect("ends");
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("reads");
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("sessionctl follow "), "{said}");
    bench.write("go", "");
    until("the session goes on", || !bench.read("ended").is_empty());
}

#[test]
fn ctrl_c_ends_a_wait_and_says_how_to_come_back() {
    let bench = Bench::new();
    let script = "until [ -e go ]; do sleep 0.02; done; echo end >ended";
    let submitted = bench.sessionctl(&["--json", "submit", "--profile", "sh", "--", script]);
    let run_id = json(&submitted)["run_id"].as_str().expect("a run_id").to_owned();
    let child =
        bench.sessionctl_command(&["wait", &run_id]).stderr(Stdio::piped()).spawn().expect("sessionctl runs");
    let pid = child.id();
    until("it listens for Ctrl-C", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        u64::from_str_radix(caught.trim(), 16).expect("a mask") & (1 << (Signal::SIGINT as u64 - 1)) != 0
    });
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).expect("signal");
    let output = child.wait_with_output().expect("ends");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains(&format!("sessionctl wait {run_id} --for finished")), "{said}");
    bench.write("go", "");
    until("the session goes on", || !bench.read("ended").is_empty());
}

#[test]
fn a_stopped_service_is_waited_for_and_not_started_twice() {
    let bench = Bench::new();
    bench.signal(Signal::SIGSTOP);
    let mut child = bench
        .sessionctl_base()
        .arg("list")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sessionctl runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let said = lines.next().expect("it says something").expect("reads");
    bench.signal(Signal::SIGCONT);
    assert!(said.contains(&format!("waiting for the service (process {})", bench.daemon_pid())), "{said}");
    assert!(child.wait().expect("ends").success());
    assert_eq!(lines.count(), 0, "once, and no other was started");
}

#[test]
fn a_wrong_command_line_is_one_line_of_json_where_json_is_asked_for() {
    let bench = Bench::prepared("");
    let output = bench.sessionctl(&["--json", "foo"]);
    assert_eq!(output.status.code(), Some(2));
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).expect("JSON alone");
    assert_eq!((&error["error"], &error["status"]), (&"usage".into(), &2.into()));
    assert_eq!(text(&output.stderr).lines().count(), 1);
}

#[test]
fn a_check_of_the_daemon_tells_what_it_would_refuse() {
    let bench = Bench::new();
    let check = || {
        Command::new(support::program("airouter-sessiond"))
            .args(["--check", "--config"])
            .arg(bench.config())
            .output()
            .expect("runs")
    };
    let config = std::fs::read_to_string(bench.config()).expect("reads");
    bench.write(
        "sessiond.toml",
        &format!("{config}\n[profiles.gone]\nprogram = \"/nonexistent/x\"\ndialect = \"jsonl\"\n"),
    );
    let output = check();
    let said = text(&output.stdout);
    assert!(output.status.success(), "the daemon runs, and that is fine: {said}{}", text(&output.stderr));
    assert!(said.contains("gone: the program /nonexistent/x cannot be used"), "{said}");
    let spool = bench.path().join("spool");
    std::fs::set_permissions(&spool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("modes");
    let output = check();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("mode 0755"), "{said}");
}

#[test]
fn without_a_daemon_one_is_started_and_said() {
    let bench = Bench::prepared("");
    let output = bench.sessionctl_configured(&[
        "run",
        "--profile",
        "sh",
        "--",
        "echo '{\"type\":\"response-completed\",\"text\":\"hello\"}'",
    ]);
    let said = text(&output.stderr);
    assert!(good(&output).contains("hello"), "{said}");
    assert!(said.contains("started"), "{said}");
    let lock = bench.read("spool/service.lock");
    let pid: i32 = lock
        .split(|c: char| !c.is_ascii_digit())
        .find_map(|number| number.parse().ok().filter(|&pid| pid > 1))
        .expect("the lock names its holder");
    assert!(support::lives(&pid.to_string()), "{lock}");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("ours");
    until("it stops", || !support::lives(&pid.to_string()));
}

#[test]
fn mistakes_are_explained() {
    let bench = Bench::new();
    for (arguments, words) in [
        (vec!["run", "--profile", "nobody"], vec!["nobody", "sh"]),
        (vec!["status", "00000000-0000-4000-8000-000000000000"], vec!["00000000"]),
        (vec!["events", "--cursor", "now", "00000000-0000-4000-8000-000000000000"], vec!["00000000"]),
    ] {
        let output = bench.sessionctl(&arguments);
        let said = text(&output.stderr);
        assert!(!output.status.success());
        for word in words {
            assert!(said.contains(word), "{arguments:?}: {said}");
        }
    }
}

/// A session that can be talked to is tried elsewhere; here is what is said where nobody listens.
#[test]
fn an_ended_session_is_not_talked_to() {
    let bench = Bench::new();
    let submitted = bench.sessionctl(&["--json", "submit", "--profile", "sh", "--", "true"]);
    let run_id = json(&submitted)["run_id"].as_str().expect("a run_id").to_owned();
    good(&bench.sessionctl(&["wait", &run_id]));
    let long = "ä".repeat(16_385);
    for (arguments, names) in [
        (vec!["steer", &run_id, "my secret"], vec!["NotRunning", "Unsupported"]),
        (vec!["follow-up", &run_id, "my secret"], vec!["NotRunning", "Unsupported"]),
        (vec!["steer", &run_id, &long], vec!["InvalidArgument"]),
        (vec!["steer", &run_id, " ", "--request-id", "x"], vec!["InvalidArgument"]),
        (vec!["steer", &run_id, "my secret", "--request-id", "a\nb"], vec!["InvalidArgument"]),
        (vec!["answer", &run_id, "q1", "my secret"], vec!["UnknownQuestion", "NotRunning"]),
    ] {
        let mut all = vec!["--json"];
        all.extend(&arguments);
        let output = bench.sessionctl(&all);
        assert_eq!(output.status.code(), Some(50), "{arguments:?}");
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).expect("JSON alone");
        assert!(names.contains(&error["error"].as_str().expect("a name")), "{error}");
        let said = error["text"].as_str().expect("a text");
        assert!(said.len() < 1000 && !said.contains("secret"), "{said}");
    }
    for arguments in [vec!["--json", "questions"], vec!["--json", "questions", &run_id]] {
        assert_eq!(good(&bench.sessionctl(&arguments)), "");
    }
    let none = bench.sessionctl(&["questions"]);
    assert!(none.status.success() && text(&none.stderr).contains("no question waits"), "{none:?}");
}

#[test]
fn talking_needs_a_text_and_its_help_says_where_it_is_seen() {
    let bench = Bench::prepared("");
    for arguments in [vec!["steer"], vec!["answer", "abcd"], vec!["questions", "abcd", "q1"]] {
        assert_eq!(bench.sessionctl(&arguments).status.code(), Some(2), "{arguments:?}");
    }
    let mut piped = bench.sessionctl_command(&["steer", "abcd"]).stdin(Stdio::piped()).spawn().expect("runs");
    piped.stdin.take().expect("piped").write_all(&[0xff]).expect("writes");
    assert_eq!(piped.wait().expect("ends").code(), Some(2), "a text is UTF-8");
    for (command, words) in [
        ("steer", &["--request-id", "process list", "undeliverable"][..]),
        ("follow-up", &["--request-id", "process list", "turn is over"]),
        ("answer", &["<QUESTION>", "[CHOICE]", "--text", "process list"]),
        ("questions", &["[SESSION]", "--json"]),
        ("wait", &["a question waits for an answer"]),
    ] {
        let help = good(&bench.sessionctl(&[command, "--help"]));
        // Where a line ends is the help's own matter.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            assert!(help.contains(word), "{command}: {word}: {help}");
        }
    }
    assert!(good(&bench.sessionctl(&["--help"])).contains("43  the program never took the message"));
}

#[test]
fn profiles_are_added_and_removed_and_the_daemon_knows_at_once() {
    let bench = Bench::new();
    bench.write("program.sh", "#!/bin/sh\necho '{}'\n");
    let program = bench.path().join("program.sh").display().to_string();
    good(&bench.sessionctl(&["profiles", "add", "mine", "--dialect", "jsonl", &program]));
    assert!(good(&bench.sessionctl(&["profiles", "list"])).contains("mine"));
    until("the daemon has read it", || bench.sessionctl(&["run", "--profile", "mine"]).status.success());
    good(&bench.sessionctl(&["profiles", "remove", "mine"]));
    until("the daemon has read it", || !bench.sessionctl(&["run", "--profile", "mine"]).status.success());
    let before = bench.read("sessiond.toml");
    let refused = bench.sessionctl(&["profiles", "add", "bad", "--dialect", "jsonl", "relative/program"]);
    assert!(!refused.status.success());
    assert_eq!(bench.read("sessiond.toml"), before, "a refused change changes nothing");
}

#[test]
fn the_demo_holds_and_leaves_nothing() {
    let scratch = tempfile::tempdir().expect("scratch");
    let output = Command::new(env!("CARGO_BIN_EXE_sessionctl"))
        .args(["--json", "demo"])
        .env("TMPDIR", scratch.path())
        .output()
        .expect("runs");
    good(&output);
    let result = json(&output);
    assert_eq!((&result["executions"], &result["lines"]), (&1.into(), &400.into()));
    assert_eq!(std::fs::read_dir(scratch.path()).expect("reads").count(), 0, "nothing is left");
}
