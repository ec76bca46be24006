//! Peers that mean harm or know no better, against the real service on each way to it: the private socket, a
//! `dbus-daemon`, a `dbus-broker`. Each takes nothing from the others; the figures are printed.

#[path = "../support/mod.rs"]
mod support;

mod accounts;
mod crowds;
mod floods;
mod handlers;
mod wire;

use std::any::Any;
use std::time::{Duration, Instant};

use airouter_sessiond::client::{Client, WaitFor};
use airouter_sessiond::model::{RunId, Submission};
use support::broker::Broker;
use support::dbus_broker::DbusBroker;
use support::{Bench, PATIENCE};

const NAME: &str = "org.airouter.Sessions1";
const OBJECT: &str = "/org/airouter/Sessions1";

/// A service with the profiles `sh` and `talker`, and one way to it.
struct Way {
    name: &'static str,
    bench: Bench,
    address: String,
    /// The bus in between.
    bus: Option<u32>,
    _kept: Box<dyn Any>,
}

impl Way {
    fn private() -> Way {
        let mut bench = prepared("off");
        bench.start();
        Way { name: "private socket", address: bench.address(), bench, bus: None, _kept: Box::new(()) }
    }

    fn on(name: &'static str, mut bench: Bench, address: String, pid: u32, kept: impl Any) -> Way {
        bench.environment("DBUS_SESSION_BUS_ADDRESS", &address);
        bench.start();
        Way { name, bench, address, bus: Some(pid), _kept: Box::new(kept) }
    }

    /// Each way that there is on this machine.
    fn all() -> Vec<Way> {
        let mut all = vec![Way::private()];
        let bench = prepared("required");
        let broker = Broker::start(bench.path());
        all.push(Way::on("dbus-daemon", bench, broker.address(), broker.pid(), broker));
        let bench = prepared("required");
        if let Some(broker) = DbusBroker::start(bench.path()) {
            all.push(Way::on("dbus-broker", bench, broker.address(), broker.pid(), broker));
        }
        all
    }

    async fn client(&self) -> Client {
        match self.bus {
            None => self.bench.client().await,
            Some(_) => Client::connect_bus(Some(&self.address)).await.expect("connects"),
        }
    }

    /// A connection without the client's manners.
    async fn connection(&self) -> zbus::Connection {
        let builder = zbus::connection::Builder::address(self.address.as_str());
        builder.build().await.expect("connects")
    }

    /// A session that the talker of tests/talk is, once it runs.
    async fn talks(&self, prompt: &str) -> RunId {
        let mut submission = Submission::new(RunId::random(), "talker");
        submission.directory = Some(self.bench.path().display().to_string());
        let client = self.client().await;
        client.submit(&submission, Some(prompt.as_bytes().to_vec())).await.expect("submits");
        client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
        submission.run_id()
    }

    /// A new client is served, from its first call to a session's end; how long that took.
    async fn serves_others(&self) -> Duration {
        let begun = Instant::now();
        let client = self.client().await;
        let submission = self.bench.script("echo '{}'");
        client.submit(&submission, None).await.expect("submits");
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!(status.end(), Some("completed"), "{}: {:?}", self.name, status.json());
        begun.elapsed()
    }

    /// The memory of the service, in KiB.
    fn memory(&self) -> u64 {
        resident(self.bench.daemon_pid())
    }

    /// The service's descriptors.
    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.bench.daemon_pid())).expect("it lives").count()
    }
}

fn prepared(bus: &str) -> Bench {
    let bench = Bench::prepared("");
    let program = bench.write("talker.py", include_str!("../talk/talker.py"));
    let profile = format!(
        "[profiles.talker]\nprogram = \"/usr/bin/python3\"\ndialect = \"jsonl-talk\"\narguments = [\"{}\"]\n",
        program.display()
    );
    bench.configure(&format!("bus = \"{bus}\"\n"), &profile);
    bench
}

/// A process's memory in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("has memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}
