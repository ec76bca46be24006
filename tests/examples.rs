//! The examples do what they say: whatever dies in between, every text is printed once and in order.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};

use support::broker::Broker;
use support::dbus_broker::DbusBroker;
use support::{Bench, PATIENCE};

/// The last text is one that no signal can hold.
const LONG: usize = 40_000;

/// A bus that can die, if the example uses one.
enum Bus {
    None,
    DbusDaemon(Broker),
    DbusBroker(DbusBroker),
}

impl Bus {
    fn address(&self) -> Option<String> {
        match self {
            Bus::None => None,
            Bus::DbusDaemon(bus) => Some(bus.address()),
            Bus::DbusBroker(bus) => Some(bus.address()),
        }
    }

    fn kill(&mut self) {
        match self {
            Bus::None => {}
            Bus::DbusDaemon(bus) => bus.kill(),
            Bus::DbusBroker(bus) => bus.kill(),
        }
    }

    fn restart(&mut self) {
        match self {
            Bus::None => {}
            Bus::DbusDaemon(bus) => bus.restart(),
            Bus::DbusBroker(bus) => bus.restart(),
        }
    }
}

/// An example that is running, and the session behind it: a shell that prints numbers, as many as it is told to.
struct Run {
    bench: Bench,
    bus: Bus,
    example: Child,
    lines: Receiver<String>,
    /// What is written here is how far it counts; its end is the session's.
    gate: Option<File>,
    printed: u64,
}

impl Run {
    fn start(mut bench: Bench, bus: Bus, mut example: Command) -> Run {
        if let Some(address) = bus.address() {
            bench.environment("DBUS_SESSION_BUS_ADDRESS", &address);
            example.env("DBUS_SESSION_BUS_ADDRESS", &address);
        }
        bench.start();
        let gate = bench.path().join("gate");
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let script = format!(
            "say() {{ echo \"{{\\\"type\\\":\\\"response-completed\\\",\\\"text\\\":\\\"$1\\\"}}\"; }}
             echo once >>{0}/runs
             n=0
             while read -r most; do while [ $n -lt $most ]; do n=$((n+1)); say $n; done; done <{0}/gate
             say $(head -c {LONG} /dev/zero | tr '\\0' x)",
            bench.path().display()
        );
        let mut example = example
            .args(["sh", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example runs");
        let output = BufReader::new(example.stdout.take().expect("piped"));
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
        // For both: so it need not wait for the session, which may never come.
        let gate = Some(File::options().read(true).write(true).open(gate).expect("the session's pipe"));
        Run { bench, bus, example, lines, gate, printed: 0 }
    }

    fn count_to(&mut self, most: u64) {
        writeln!(self.gate.as_ref().expect("not ended"), "{most}").expect("the session reads");
    }

    fn sees_to(&mut self, most: u64) {
        while self.printed < most {
            self.printed += 1;
            let line = self.lines.recv_timeout(PATIENCE);
            assert_eq!(line, Ok(self.printed.to_string()), "each once and in order");
        }
    }

    /// The last text comes whole, nothing comes after it, and the example ends well.
    fn ends(mut self) {
        drop(self.gate.take());
        assert_eq!(self.lines.recv_timeout(PATIENCE), Ok("x".repeat(LONG)));
        assert_eq!(self.lines.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
        let status = self.example.wait().expect("ends");
        assert!(status.success(), "{status}");
        assert_eq!(self.bench.read("runs"), "once\n", "however often it was submitted");
    }

    /// Everything that may die does, in the middle of things.
    fn survives(mut self) {
        self.count_to(10);
        self.sees_to(10);
        self.bench.kill();
        // The session goes on while there is no service.
        self.count_to(300);
        self.bench.start();
        self.sees_to(300);
        self.bus.kill();
        self.count_to(400);
        self.bus.restart();
        self.sees_to(400);
        // In the middle of many.
        self.count_to(5000);
        self.sees_to(1000);
        self.bench.kill();
        self.bench.start();
        self.sees_to(5000);
        self.ends();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.example.kill();
        let _ = self.example.wait();
    }
}

/// On a bus of each kind, which dies too.
fn survives_on_buses(example: impl Fn() -> Command) {
    let bench = Bench::prepared("bus = \"required\"\n");
    let bus = Bus::DbusDaemon(Broker::start(bench.path()));
    Run::start(bench, bus, example()).survives();
    let bench = Bench::prepared("bus = \"required\"\n");
    if let Some(bus) = DbusBroker::start(bench.path()) {
        Run::start(bench, Bus::DbusBroker(bus), example()).survives();
    }
}

/// On the private socket, by its address where a bus's is expected.
fn survives_on_the_private_socket(mut example: Command) {
    let bench = Bench::prepared("");
    example.env("DBUS_SESSION_BUS_ADDRESS", bench.address());
    Run::start(bench, Bus::None, example).survives();
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

fn shell() -> Command {
    Command::new(source("subscriber.sh"))
}

fn gio() -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(source("subscriber_gio.py"));
    command
}

#[test]
fn the_shell_one_on_buses() {
    survives_on_buses(shell);
}

#[test]
fn the_shell_one_on_the_private_socket() {
    survives_on_the_private_socket(shell());
}

#[test]
fn the_glib_one() {
    if has_gio() {
        survives_on_buses(gio);
        survives_on_the_private_socket(gio());
    }
}

/// `false`, said loudly, where Python cannot use GLib.
fn has_gio() -> bool {
    let works = works(Path::new("/usr/bin/python3"), "from gi.repository import Gio");
    if !works {
        eprintln!("SKIPPED the one with GLib: needs /usr/bin/python3 with it (Debian: python3-gi)");
    }
    works
}

fn works(python: &Path, program: &str) -> bool {
    let output = Command::new(python).args(["-c", program]).output();
    output.is_ok_and(|output| output.status.success())
}

/// With dbus-fast from the Python package index, in a virtual environment of the tests' own.
#[test]
fn the_dbus_fast_one() {
    let Some(python) = python_with_dbus_fast() else { return };
    survives_on_buses(|| dbus_fast(&python));
    survives_on_the_private_socket(dbus_fast(&python));
}

fn dbus_fast(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg(source("subscriber.py"));
    command
}

/// The virtual environment's Python, made once; `None`, said loudly, where the package cannot be had.
fn python_with_dbus_fast() -> Option<PathBuf> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MADE.get_or_init(make_python).clone()
}

fn make_python() -> Option<PathBuf> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let python = environment.join("bin/python");
    let import = "import dbus_fast.aio";
    if works(&python, import) {
        return Some(python);
    }
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment).output();
    let install = ["-m", "pip", "install", "--quiet", "dbus-fast==5.2.0"];
    let installed = Command::new(&python).args(install).output();
    if works(&python, import) {
        return Some(python);
    }
    let said = [made, installed].map(|output| output.map(|output| support::text(&output.stderr)));
    eprintln!("SKIPPED the one with dbus-fast: needs a Python virtual environment with it: {said:?}");
    None
}

#[test]
fn ours() {
    let bench = Bench::prepared("");
    let mut command = Command::new(ours_program());
    command.env("SESSIOND_SOCKET", bench.socket());
    Run::start(bench, Bus::None, command).survives();
}

/// Where cargo builds the examples with the tests.
fn ours_program() -> PathBuf {
    let daemon = support::program("airouter-sessiond");
    let program = daemon.parent().expect("a directory").join("examples/subscriber");
    assert!(
        program.exists(),
        "cargo builds it with all tests; for this one alone: cargo build --example subscriber"
    );
    program
}

/// What the service refuses is said in its words, and is not waited for.
fn says_what_is_refused(bench: &Bench, mut example: Command) {
    let output =
        example.env("DBUS_SESSION_BUS_ADDRESS", bench.address()).arg("nobody").output().expect("runs");
    let said = support::text(&output.stderr);
    assert!(!output.status.success() && said.contains("UnknownProfile: "), "{}: {said}", output.status);
    assert_eq!(support::text(&output.stdout), "");
}

#[test]
fn refusals_are_told() {
    let bench = Bench::new();
    says_what_is_refused(&bench, shell());
    if has_gio() {
        says_what_is_refused(&bench, gio());
    }
    if let Some(python) = python_with_dbus_fast() {
        says_what_is_refused(&bench, dbus_fast(&python));
    }
    let mut ours = Command::new(ours_program());
    ours.env("SESSIOND_SOCKET", bench.socket());
    says_what_is_refused(&bench, ours);
}

/// What is to be learned from is to be read at once.
#[test]
fn each_is_short() {
    for name in ["subscriber.py", "subscriber_gio.py", "subscriber.sh", "subscriber.rs"] {
        let lines = fs::read_to_string(source(name)).expect("it is there").lines().count();
        assert!(lines < 60, "{name} has {lines} lines");
    }
}
