//! The program `airouter-sessiond`: configuration, spool, service and bus put together, and signals.
//!
//! | signal | what happens |
//! |---|---|
//! | `SIGTERM`, `SIGINT` | new work is refused; by `on_stop` the sessions are left to their executors, or stopped first |
//! | a second one | leaves the sessions to their executors and exits |
//! | `SIGHUP` | the configuration is read again: profiles, limits and environment |

mod logging;
mod manager;
mod narration;

use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use crate::bus::{self, Admission, Face, Standing, Waiting};
use crate::config::{BusMode, Config, ControllerBus, OnStop};
use crate::containment::Placer;
use crate::controller::{Controller, Embedded, Framework};
use crate::program;
use crate::service::{ExecutorProgram, Sessions, Stopping};
use crate::spool::{Spool, SpoolError};

/// Owns this account's sessions and serves them on D-Bus.
///
/// It is normally started by the user's service manager, by D-Bus activation or by sessionctl. The configuration is
/// $XDG_CONFIG_HOME/airouter/sessiond.toml; everything in it is optional. AIROUTER_LOG sets what is logged, such as
/// `debug` (default `info`).
#[derive(Debug, Parser)]
#[command(name = "airouter-sessiond", version)]
struct Options {
    /// Read this configuration instead of the account's.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and the spool's place, print where everything is and which programs cannot be started
    /// now, and exit: with status 1 where the service would not start. Changes nothing.
    #[arg(long)]
    check: bool,
    /// Write one line to this open descriptor once ready, `ready`, or `error: …` if it fails to start.
    #[arg(long, value_name = "N")]
    ready_fd: Option<i32>,
}

/// What a bus sets that starts the program itself.
const STARTER: &str = "DBUS_STARTER_ADDRESS";
/// Threads for the disk. More only wait for each other, and each keeps memory of its own.
const DISK_THREADS: usize = 16;

/// The daemon's command line, for its manual page.
pub fn command() -> clap::Command {
    Options::command()
}

type Failure = Box<dyn std::error::Error>;

/// Runs the daemon until it is told to stop.
pub fn main() -> ExitCode {
    let options = Options::parse();
    let mut ready = match options.ready_fd.map(take_descriptor).transpose() {
        Ok(ready) => ready,
        Err(problem) => {
            eprintln!("airouter-sessiond: --ready-fd: {problem}");
            return ExitCode::from(2);
        }
    };
    logging::start();
    if let Err(error) = program::keep_descriptors_from_children() {
        warn!("inherited descriptors may reach the sessions: {error}");
    }
    if let Err(errno) = allow_many_descriptors() {
        warn!("the limit on open files stays as it is: {errno}");
    }
    match serve(&options, &mut ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!("{failure}");
            if !options.check {
                tell_waiting(&failure.to_string());
            }
            if let Some(ready) = &mut ready {
                let _ = writeln!(ready, "error: {}", failure.to_string().replace('\n', " "));
            }
            ExitCode::FAILURE
        }
    }
}

fn take_descriptor(number: i32) -> Result<File, String> {
    if number < 3 || nix::fcntl::fcntl(borrowed(number), nix::fcntl::FcntlArg::F_GETFD).is_err() {
        return Err(format!("{number} is no open descriptor above 2"));
    }
    // SAFETY: it is open, and whoever started us made it for this alone.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    let close_on_exec = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
    nix::fcntl::fcntl(&file, close_on_exec).map_err(|errno| errno.to_string())?;
    Ok(file)
}

fn borrowed(number: i32) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: only asked for its flags, which fails cleanly on a descriptor that is not open; never kept.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(number) }
}

/// Every session, follower and connection takes descriptors; the usual soft limit is for programs that use select(2).
/// An executor sets it back for its program.
fn allow_many_descriptors() -> nix::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
}

fn serve(options: &Options, ready: &mut Option<File>) -> Result<(), Failure> {
    let config = Config::load(options.config.as_deref())?;
    let uid = nix::unistd::geteuid().as_raw();
    if uid == 0 && !config.allow_root {
        return Err(format!(
            "root runs no sessions: start this as the account that owns them, or set allow_root = true in {} where \
             there is nobody else",
            config.file.display()
        )
        .into());
    }
    if options.check {
        return check(&config);
    }
    let spool = Spool::open(&config.spool).map_err(|error| match error {
        SpoolError::Locked { .. } => {
            Failure::from(format!("{error}; one daemon owns a spool, so this one ends"))
        }
        error => error.into(),
    })?;
    let executor = program::sibling(program::EXECUTOR)?;
    let executor = ExecutorProgram { path: executor.path, name: executor.arg0.to_owned() };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(DISK_THREADS)
        .enable_all()
        .build()?;
    let admission = Admission { uid, allow_root: config.allow_root };
    runtime.block_on(run(options, config, spool, executor, admission, ready))
}

/// Says where everything is and what is wrong with it.
fn check(config: &Config) -> Result<(), Failure> {
    let mut said = format!(
        "configuration  {}\nspool          {}\nsocket         {}\n",
        config.file.display(),
        config.spool.display(),
        config.socket.display()
    );
    if let Some(framework) = &config.controller {
        said.push_str(&format!("controller     {} for {}\n", framework.name, config.application));
    }
    for (name, profile) in &config.profiles {
        // One that cannot be started keeps no other session from running, and so not the service from starting.
        let found = profile.problem().unwrap_or_else(|| profile.program.display().to_string());
        said.push_str(&format!("profile        {name}: {found}\n"));
    }
    std::io::stdout().write_all(said.as_bytes())?;
    Ok(Spool::check(&config.spool)?)
}

async fn run(
    options: &Options,
    config: Config,
    spool: Spool,
    executor: ExecutorProgram,
    admission: Admission,
    ready: &mut Option<File>,
) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let placer = Placer::choose(config.containment.forced()).await?;
    for (backend, why) in placer.missing() {
        info!("containment {} cannot be had: {why}", backend.name());
    }
    placer.prepare();
    let containment = placer.backend().name();
    let sessions =
        Sessions::start(spool, config.clone(), controller(&config, admission.uid), executor, placer).await?;
    tokio::spawn(narration::keep(sessions.changes()));
    let face = Face::new(Arc::new(sessions.clone()), admission);
    let socket = face.serve_private(&config.socket)?;
    let user_bus = match config.bus {
        BusMode::Off => None,
        BusMode::Auto => Some(face.serve_user_bus(bus::user_bus_address(admission.uid))),
        BusMode::Required => {
            let user_bus = face.serve_user_bus(bus::user_bus_address(admission.uid));
            match user_bus.settled().await {
                Standing::Serving => Some(user_bus),
                Standing::NoBus(why) => {
                    return Err(format!("bus = \"required\", and there is no bus: {why}").into());
                }
                Standing::NameTaken | Standing::Connecting => {
                    return Err(format!("bus = \"required\", and another process owns {}", bus::NAME).into());
                }
            }
        }
    };
    info!(spool = %config.spool.display(), socket = %config.socket.display(), containment, "ready");
    if let Some(ready) = ready {
        let _ = writeln!(ready, "ready");
    }
    *ready = None;
    manager::ready();
    let note = manager::logout_note();
    if !note.is_empty() {
        warn!("{note}; `loginctl enable-linger` lets them live on");
    }
    // They end with the runtime.
    tokio::spawn(manager::keep_status(sessions.clone(), note));
    tokio::spawn(manager::keep_watchdog(config.socket.clone()));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {
                reload(options, &sessions);
                face.refresh();
            }
        }
    }
    manager::stopping();
    let how = stopping(&config);
    info!(sessions = sessions.live().len(), detach = how == Stopping::Detach, "stopping");
    face.refresh();
    tokio::select! {
        () = sessions.stop(how) => {}
        _ = terminate.recv() => sessions.stop(Stopping::Detach).await,
        _ = interrupt.recv() => sessions.stop(Stopping::Detach).await,
    }
    face.stop();
    if let Some(user_bus) = user_bus {
        user_bus.closed().await;
    }
    socket.closed().await;
    Ok(())
}

/// Who owns runs and leases. A framework that is away keeps no daemon from starting.
fn controller(config: &Config, uid: u32) -> Box<dyn Controller> {
    match framework(config, uid) {
        None => Box::new(Embedded::new(&config.application, &config.host)),
        Some(framework) => Box::new(framework),
    }
}

/// The framework that the configuration names, as the account `uid` reaches it. Nothing is connected yet.
pub(crate) fn framework(config: &Config, uid: u32) -> Option<Framework> {
    let framework = config.controller.as_ref()?;
    let address = match &framework.bus {
        ControllerBus::Session => bus::user_bus_address(uid),
        ControllerBus::Address(address) => address.clone(),
    };
    Some(Framework::new(framework, address, &config.application, &config.host, uid))
}

/// Under a service manager that starts us again, sessions go on; elsewhere nobody would come back for them.
fn stopping(config: &Config) -> Stopping {
    match config.on_stop {
        Some(OnStop::Detach) => Stopping::Detach,
        Some(OnStop::Cancel) => Stopping::Cancel,
        None if manager::is_there() => Stopping::Detach,
        None => Stopping::Cancel,
    }
}

fn reload(options: &Options, sessions: &Sessions) {
    manager::reloading();
    match Config::load(options.config.as_deref()) {
        Ok(config) => {
            sessions.reload(config);
            info!("the configuration was read again");
        }
        Err(error) => warn!("the configuration was not read again, the old one stays: {error}"),
    }
    manager::ready();
}

/// Says why it does not start to the service manager, and to those whose calls activated it.
fn tell_waiting(why: &str) {
    if !manager::is_there() && std::env::var_os(STARTER).is_none() {
        return;
    }
    manager::failed(why);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    // Root that may not run the service may know why.
    let admission = Admission { uid: nix::unistd::geteuid().as_raw(), allow_root: false };
    runtime.block_on(async {
        let Some(waiting) = Waiting::take(admission, &bus::user_bus_address(admission.uid)).await else {
            return;
        };
        if waiting.any() {
            manager::give_up_start().await;
        }
        waiting.refuse(why).await;
    });
}
