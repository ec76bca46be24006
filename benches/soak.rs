//! A subscriber that stands still for ten minutes while a session prints a thousand lines a second, on `dbus-daemon` and
//! on `dbus-broker`: the service's memory and the bus's stay flat, others are served, and nothing is lost or told twice.
//!
//! `make soak` prints the figures, each beside its limit, and fails if one is beyond it. `SOAK_SECONDS` (600) says
//! how long the subscriber stands still, at least 60.

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use airouter_sessiond::client::{Client, Delivery, Record, WaitFor};
use airouter_sessiond::model::RunId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::Bench;
use support::broker::Broker;
use support::dbus_broker::DbusBroker;

/// Between two looks at the memory.
const SAMPLE: Duration = Duration::from_secs(10);
/// What the service and the bus may grow by after the first minute, in KiB.
const GROWTH: u64 = 2 << 10;
/// How long a reader that was behind may take to the end of everything.
const CATCHES_UP: Duration = Duration::from_secs(600);
/// A thousand lines a second by the kernel's clock, however late each turn of the loop is; then a last one.
const PRINTER: &str = r#"
clock() { read -r up _ </proc/uptime; now=${up%.*}${up#*.}; }
clock; begun=$now; n=0
until [ -e go ]; do
    clock; due=$(((now - begun) * 10))
    [ "$due" -le "$n" ] || seq -f '{"n":%.0f}' $((n + 1)) "$due"
    n=$due; sleep 0.1
done"#;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    if let [mode, address, run_id] = &arguments[..]
        && mode == "subscriber"
    {
        let run_id = run_id.parse().expect("a run id");
        println!("{}", runtime.block_on(read_all(address, run_id, || println!("subscribed"))).told());
        return ExitCode::SUCCESS;
    }
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(600);
    let still = Duration::from_secs(std::cmp::max(seconds, 60));
    let reports = runtime.block_on(async {
        tokio::join!(soak("dbus-daemon", still, start_daemon), soak("dbus-broker", still, start_broker))
    });
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    println!("a subscriber stood still for {} s; {build} build; memory in KiB", still.as_secs());
    let mut good = true;
    for report in [reports.0, reports.1].into_iter().flatten() {
        good &= report.print();
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A bus: what keeps it running, its address, and the process whose memory counts.
struct Bus(Box<dyn std::any::Any>, String, u32);

fn start_daemon(bench: &Bench) -> Option<Bus> {
    let broker = Broker::start(bench.path());
    let (address, pid) = (broker.address(), broker.pid());
    Some(Bus(Box::new(broker), address, pid))
}

fn start_broker(bench: &Bench) -> Option<Bus> {
    let broker = DbusBroker::start(bench.path())?;
    let (address, pid) = (broker.address(), broker.pid());
    Some(Bus(Box::new(broker), address, pid))
}

/// What one bus's run showed.
struct Report {
    bus: &'static str,
    /// By process, a sample each [`SAMPLE`], in KiB.
    memory: BTreeMap<&'static str, Vec<u64>>,
    /// The same once the subscriber had caught up.
    after: BTreeMap<&'static str, u64>,
    /// The longest that a new client's first answer took.
    slowest: Duration,
    /// How many lines there were.
    lines: u64,
    reader: String,
    stopped: String,
}

impl Report {
    /// Prints it; whether everything is within its limit.
    fn print(&self) -> bool {
        let mut good = true;
        println!("\n{}: {} lines", self.bus, self.lines);
        println!(
            "{:<10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "process", "first", "settled", "last", "max", "growth", "limit"
        );
        for (process, samples) in &self.memory {
            // The first minute is for caches and buffers to find their size; of a short run, the first half.
            let settled = std::cmp::min(6, samples.len() / 2);
            let most = samples[settled..].iter().max().copied().unwrap_or_default();
            let growth = most.saturating_sub(samples[settled]);
            let held = growth < GROWTH;
            good &= held;
            println!(
                "{process:<10} {:>8} {:>8} {:>8} {most:>8} {growth:>8} {GROWTH:>8}{}",
                samples[0],
                samples[settled],
                samples[samples.len() - 1],
                if held { "" } else { "  BEYOND ITS LIMIT" },
            );
        }
        println!("caught up: {:?}; the slowest new client was answered in {:?}", self.after, self.slowest);
        let lines = self.lines;
        for (who, told, expected) in [
            ("reader", &self.reader, format!("{lines} lines, 0 out of order, 0 lagged")),
            ("stopped", &self.stopped, format!("{lines} lines, 0 out of order, 1 lagged")),
        ] {
            let held = *told == expected;
            good &= held;
            println!("{who}: {told}{}", if held { String::new() } else { format!("  EXPECTED {expected}") });
        }
        good
    }
}

/// One run on one bus; nothing where this machine cannot start it.
async fn soak(bus: &'static str, still: Duration, start: fn(&Bench) -> Option<Bus>) -> Option<Report> {
    let mut bench = Bench::prepared("bus = \"required\"\n");
    let Bus(_kept, address, bus_pid) = start(&bench)?;
    bench.environment("DBUS_SESSION_BUS_ADDRESS", &address);
    bench.start();
    let client = connect(&address).await;
    let submission = bench.script(PRINTER);
    let run_id = submission.run_id();
    client.submit(&submission, None).await.expect("submits");
    client.wait(run_id, WaitFor::Started, support::PATIENCE).await.expect("starts");
    let reader = {
        let address = address.clone();
        tokio::spawn(async move { read_all(&address, run_id, || ()).await })
    };
    let stopped = Stopped::start(&address, run_id);
    let processes = [("bus", bus_pid), ("service", bench.daemon_pid())];
    let mut memory: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    let mut slowest = Duration::ZERO;
    let begun = Instant::now();
    while begun.elapsed() < still {
        for (process, pid) in processes {
            memory.entry(process).or_default().push(resident(pid));
        }
        let asked = Instant::now();
        connect(&address).await.status(run_id).await.expect("others are served");
        slowest = slowest.max(asked.elapsed());
        tokio::time::sleep(SAMPLE).await;
        assert!(stopped.stands_still(), "somebody else woke the subscriber: the figures say nothing");
    }
    bench.write("go", "");
    let status = client.wait(run_id, WaitFor::Finished, support::PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    let stopped = stopped.goes_on();
    let stopped = tokio::task::spawn_blocking(move || stopped.last_words()).await.expect("ends");
    let reader = tokio::time::timeout(CATCHES_UP, reader).await.expect("catches up").expect("ends");
    let after = processes.iter().map(|(process, pid)| (*process, resident(*pid))).collect();
    let lines = lines_of(&client, run_id).await;
    Some(Report { bus, memory, after, slowest, lines, reader: reader.told(), stopped })
}

async fn connect(address: &str) -> Client {
    Client::connect_bus(Some(address)).await.expect("connects")
}

/// A subscriber in a process of its own, which can be made to stand still.
struct Stopped(Child, BufReader<ChildStdout>);

impl Stopped {
    /// Returns when it has received something and stands still.
    fn start(address: &str, run_id: RunId) -> Stopped {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["subscriber", address, &run_id.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // In ours, the kernel would wake it when a shell that started us in the background ends (setpgid(2)).
            .process_group(0)
            .spawn()
            .expect("runs");
        let mut says = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        says.read_line(&mut line).expect("reads");
        assert_eq!(line, "subscribed\n");
        let stopped = Stopped(child, says);
        stopped.signal(Signal::SIGSTOP);
        stopped
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("signal");
    }

    fn stands_still(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    fn goes_on(self) -> Stopped {
        self.signal(Signal::SIGCONT);
        self
    }

    /// What it says when it has read everything.
    fn last_words(mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("reads");
        line.trim().to_owned()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a subscriber got.
#[derive(Default)]
struct Got {
    lines: u64,
    out_of_order: u64,
    lagged: u64,
}

impl Got {
    fn told(&self) -> String {
        format!("{} lines, {} out of order, {} lagged", self.lines, self.out_of_order, self.lagged)
    }

    /// Lines are numbered: a lost one and a repeated one are both out of order.
    fn take(&mut self, record: &Record) {
        if let Some(number) = number(record) {
            self.out_of_order += u64::from(number != self.lines + 1);
            self.lines += 1;
        }
    }
}

/// The number that a line of [`PRINTER`] carries.
fn number(record: &Record) -> Option<u64> {
    if record.kind != "raw" {
        return None;
    }
    record
        .details
        .values()
        .find_map(|value| serde_json::from_str::<serde_json::Value>(value.as_str()?).ok()?.get("n")?.as_u64())
}

/// Subscribes from the start and reads to the session's end, going on wherever it is told that it lagged.
async fn read_all(address: &str, run_id: RunId, mut begun: impl FnMut()) -> Got {
    let mut subscription = connect(address).await.subscribe(run_id, "start").await.expect("subscribes");
    let mut got = Got::default();
    loop {
        match subscription.next().await.expect("delivers") {
            Some(Delivery::Activity { records, .. }) => {
                let before = got.lines;
                records.iter().for_each(|record| got.take(record));
                if before == 0 && got.lines > 0 {
                    begun();
                }
                if records.iter().any(|record| record.kind == "ended") {
                    return got;
                }
            }
            Some(Delivery::Lagged { .. }) => got.lagged += 1,
            None => panic!("the connection is gone"),
        }
    }
}

/// How many lines the session printed, as its last page tells.
async fn lines_of(client: &Client, run_id: RunId) -> u64 {
    let (mut lines, mut cursor) = (0, "start".to_owned());
    loop {
        let page = client.events(run_id, &cursor, 0).await.expect("a page");
        lines = page.records.iter().filter_map(number).max().unwrap_or(lines);
        cursor = page.next;
        if !page.more {
            return lines;
        }
    }
}

/// A process's memory in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("has memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}
