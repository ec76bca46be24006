//! The D-Bus face with the tools that operators have: busctl and gdbus, on the user's bus and on the private socket.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use airouter_sessiond::client::{Client, Delivery, WaitFor};
use airouter_sessiond::model::RunId;
use support::broker::Broker;
use support::{Bench, PATIENCE, text, until};

const NAME: &str = "org.airouter.Sessions1";
const OBJECT: &str = "/org/airouter/Sessions1";

/// A service on both transports.
struct Both {
    bench: Bench,
    broker: Broker,
}

impl Both {
    fn start() -> Both {
        let mut bench = Bench::prepared("bus = \"required\"\n");
        let broker = Broker::start(bench.path());
        bench.environment("DBUS_SESSION_BUS_ADDRESS", &broker.address());
        bench.start();
        Both { bench, broker }
    }

    fn addresses(&self) -> [String; 2] {
        [self.bench.address(), self.broker.address()]
    }
}

fn busctl(address: &str, arguments: &[&str]) -> Output {
    Command::new("busctl").arg(format!("--address={address}")).args(arguments).output().expect("busctl runs")
}

fn gdbus(address: &str, verb: &str, arguments: &[&str]) -> Output {
    Command::new("gdbus")
        .args([verb, "--address", address, "--dest", NAME])
        .args(arguments)
        .output()
        .expect("gdbus runs")
}

fn good(output: Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn busctl_submits_reads_and_cancels_on_both_transports() {
    let both = Both::start();
    for address in both.addresses() {
        let run_id = RunId::random().to_string();
        let submission = [
            "call",
            NAME,
            OBJECT,
            NAME,
            "Submit",
            "a{sv}",
            "5",
            "version",
            "s",
            "airouter.sessions.v1",
            "binding",
            "a{sv}",
            "1",
            "run_id",
            "s",
            &run_id,
            "profile",
            "s",
            "sh",
            "arguments",
            "as",
            "1",
            "echo '{\"n\":1}'",
            "environment",
            "a{ss}",
            "1",
            "KEY",
            "value",
        ];
        let answer = good(busctl(&address, &submission));
        assert!(answer.contains(&format!("{OBJECT}/session/{}", run_id.replace('-', "_"))), "{answer}");
        let wait = good(busctl(
            &address,
            &["call", NAME, OBJECT, NAME, "Wait", "ssu", &run_id, "finished", "60000"],
        ));
        assert!(wait.contains("\"end\" s \"completed\""), "{wait}");
        let json =
            good(busctl(&address, &["--json=short", "call", NAME, OBJECT, NAME, "Status", "s", &run_id]));
        let status: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(status["data"][0]["state"]["data"], "finished");
        let events =
            good(busctl(&address, &["call", NAME, OBJECT, NAME, "Events", "ssu", &run_id, "start", "0"]));
        assert!(events.contains("\"started\"") && events.contains("{\\\"n\\\":1}"), "{events}");
        let cancel = good(busctl(&address, &["call", NAME, OBJECT, NAME, "Cancel", "s", &run_id]));
        assert!(cancel.contains("\"completed\""), "an ended session answers with its end: {cancel}");
        let version = good(busctl(&address, &["get-property", NAME, OBJECT, NAME, "InterfaceVersion"]));
        assert_eq!(version.trim(), "u 1");
        let introspection = good(busctl(&address, &["introspect", NAME, OBJECT]));
        for member in ["Submit", "Reconcile", "StateChanged", "Limits"] {
            assert!(introspection.contains(member), "{member}: {introspection}");
        }
        good(busctl(&address, &["tree", NAME]));
    }
}

#[test]
fn gdbus_calls_and_introspects_on_both_transports() {
    let both = Both::start();
    for address in both.addresses() {
        let run_id = RunId::random().to_string();
        let submission = format!(
            "{{'version': <'airouter.sessions.v1'>, 'binding': <{{'run_id': <'{run_id}'>}}>, 'profile': <'sh'>, \
             'arguments': <['exit 4']>}}"
        );
        let method = |name: &str| format!("{NAME}.{name}");
        let call = |name: &str, arguments: &[&str]| {
            let method = method(name);
            let mut all = vec!["--object-path", OBJECT, "--method", &method];
            all.extend(arguments);
            good(gdbus(&address, "call", &all))
        };
        call("Submit", &[&submission]);
        let status = call("Wait", &[&run_id, "finished", "60000"]);
        assert!(
            status.contains("'end': <'failed'>") && status.contains("'exit-code': <uint64 4>"),
            "{status}"
        );
        let introspection = good(gdbus(&address, "introspect", &["--object-path", OBJECT]));
        assert!(introspection.contains("interface org.airouter.Sessions1"), "{introspection}");
    }
}

#[test]
fn errors_say_their_name_what_was_wrong_and_what_to_do() {
    let both = Both::start();
    for address in both.addresses() {
        let unknown = RunId::random().to_string();
        let refused = |arguments: &[&str]| {
            let mut all = vec!["call", NAME, OBJECT, NAME];
            all.extend(arguments);
            let output = busctl(&address, &all);
            assert!(!output.status.success());
            text(&output.stderr)
        };
        assert!(refused(&["Status", "s", &unknown]).contains("NotFound: "));
        assert!(refused(&["Status", "s", "x"]).contains("InvalidArgument: "));
        let base = ["version", "s", "airouter.sessions.v1", "binding", "a{sv}", "1", "run_id", "s", &unknown];
        let submit = |count: &str, more: &[&str]| {
            let mut all = vec!["Submit", "a{sv}", count];
            all.extend(base);
            all.extend(more);
            refused(&all)
        };
        let error = submit("4", &["profile", "s", "sh", "shell", "s", "rm"]);
        assert!(error.contains("InvalidSubmission: ") && error.contains("shell"), "{error}");
        let error = submit("4", &["profile", "s", "sh", "directory", "s", "relative"]);
        assert!(error.contains("InvalidSubmission: ") && error.contains("directory"), "{error}");
        let error = submit("4", &["profile", "s", "sh", "deadline-seconds", "s", "soon"]);
        assert!(error.contains("InvalidSubmission: ") && error.contains("deadline-seconds"), "{error}");
        for profile in ["x".repeat(100_000), "\u{1f4a5}".repeat(20_000)] {
            let error = submit("3", &["profile", "s", &profile]);
            assert!(error.contains("UnknownProfile: ") && error.len() < 1000, "{} bytes", error.len());
            let error = submit("4", &["profile", "s", "sh", &profile, "s", "x"]);
            assert!(error.contains("InvalidSubmission: ") && error.len() < 1000, "{} bytes", error.len());
        }
        let error = refused(&["Status", "i", "1"]);
        assert!(error.contains("InvalidArgument: Status takes (s run_id), got (i)"), "{error}");
        let error = submit("3", &["profile", "s", "nobody"]);
        assert!(
            error.contains("UnknownProfile: ") && error.contains("sh"),
            "names those that exist: {error}"
        );
    }
}

#[test]
fn monitors_see_the_signals_on_both_transports() {
    let both = Both::start();
    for (address, monitor) in [
        (both.bench.address(), "busctl"),
        (both.broker.address(), "busctl"),
        (both.bench.address(), "gdbus"),
        (both.broker.address(), "gdbus"),
    ] {
        let mut command = Command::new(monitor);
        match monitor {
            "busctl" => command.arg(format!("--address={address}")).args(["monitor", NAME]),
            _ => command.args(["monitor", "--address", &address, "--dest", NAME]),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (seen, lines_seen) = std::sync::mpsc::channel();
        let reader =
            std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(seen.send(line))));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        // A monitor does not say when it listens: sessions are submitted until one of them is seen.
        let mut all = String::new();
        until("the signals of a session are seen", || {
            runtime.block_on(both.bench.run("true"));
            all.extend(lines_seen.try_iter().map(|line| line + "\n"));
            ["SessionAdded", "StateChanged", "ActivityAdvanced"].iter().all(|signal| all.contains(signal))
        });
        child.kill().expect("kill");
        child.wait().expect("ends");
        reader.join().expect("reader");
    }
}

#[tokio::test]
async fn the_bus_may_die_and_come_back_and_sessions_do_not_notice() {
    let Both { bench, mut broker } = Both::start();
    let submission = bench.script("until [ -e go ]; do sleep 0.02; done");
    let on_bus = Client::connect_bus(Some(&broker.address())).await.expect("connects");
    on_bus.submit(&submission, None).await.expect("submits");
    broker.kill();
    let client = bench.client().await;
    let status =
        client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("the socket serves on");
    assert_eq!(status.state(), "driving");
    broker.restart();
    until("the name comes back", || text(&busctl(&broker.address(), &["list"]).stdout).contains(NAME));
    bench.write("go", "");
    let on_bus = Client::connect_bus(Some(&broker.address())).await.expect("connects again");
    let status = on_bus.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"));
}

#[test]
fn a_name_that_is_taken_is_taken_over_when_it_is_free() {
    let mut bench = Bench::prepared("bus = \"auto\"\n");
    let broker = Broker::start(bench.path());
    bench.environment("DBUS_SESSION_BUS_ADDRESS", &broker.address());
    let mut first = Bench::prepared("bus = \"required\"\n");
    first.environment("DBUS_SESSION_BUS_ADDRESS", &broker.address());
    first.start();
    bench.start();
    let owner = || text(&busctl(&broker.address(), &["status", NAME]).stdout);
    assert!(owner().contains(&format!("PID={}", first.daemon_pid())), "{}", owner());
    assert!(
        bench.busctl(&["get-property", NAME, OBJECT, NAME, "Version"]).status.success(),
        "serves its socket"
    );
    first.stop();
    until("the second has it", || owner().contains(&format!("PID={}", bench.daemon_pid())));
}

#[tokio::test]
async fn a_subscription_ends_when_the_service_leaves_the_bus_and_goes_on_when_it_is_back() {
    let mut both = Both::start();
    let client = Client::connect_bus(Some(&both.broker.address())).await.expect("connects");
    let submission =
        both.bench.script("echo '{\"n\":1}'; until [ -e go ]; do sleep 0.02; done; echo '{\"n\":2}'");
    let run_id = submission.run_id();
    client.submit(&submission, None).await.expect("submits");
    let mut subscription = client.subscribe(run_id, "start").await.expect("subscribes");
    let mut kinds = Vec::new();
    while kinds != ["started", "raw"] {
        match subscription.next().await.expect("delivers") {
            Some(Delivery::Activity { records, .. }) => kinds.extend(records.into_iter().map(|r| r.kind)),
            other => panic!("{other:?}"),
        }
    }
    both.bench.kill();
    let end = tokio::time::timeout(PATIENCE, subscription.next()).await.expect("it is told");
    assert_eq!(end.expect("no error"), None);
    both.bench.start();
    both.bench.write("go", "");
    let mut subscription = client.subscribe(run_id, subscription.position()).await.expect("subscribes again");
    while kinds.last().is_none_or(|kind| kind != "ended") {
        match subscription.next().await.expect("delivers") {
            Some(Delivery::Activity { records, .. }) => kinds.extend(records.into_iter().map(|r| r.kind)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(kinds, ["started", "raw", "raw", "exited", "ended"]);
}
