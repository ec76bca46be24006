//! The file's own form: its keys, and the checks on their values.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::controller::{self, FileController};
use super::given::{Given, Optional, Problem, Section, refuse};
use super::{
    Account, BusMode, Capture, Config, ConfigError, ContainmentMode, DEFAULT_PATH, OnStop, Profile,
    Retention, trust,
};
use crate::client::location;
use crate::dialect;
use crate::model::{Limits, ResourceLimits};

/// The largest configuration that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// The longest name of a profile, in characters.
const MAX_PROFILE_NAME: usize = 64;
/// The longest deadline, idle and start limit: a leap year, in seconds, as for submissions.
const MAX_SECONDS: u64 = 366 * 24 * 3600;
/// How long a question waits for an answer where the configuration does not say: a day, in seconds.
const QUESTION_SECONDS: u64 = 24 * 3600;

const BUS_MODES: [(&str, BusMode); 3] =
    [("auto", BusMode::Auto), ("off", BusMode::Off), ("required", BusMode::Required)];
const ON_STOPS: [(&str, OnStop); 2] = [("detach", OnStop::Detach), ("cancel", OnStop::Cancel)];
const CONTAINMENTS: [(&str, ContainmentMode); 4] = [
    ("auto", ContainmentMode::Auto),
    ("systemd-scope", ContainmentMode::SystemdScope),
    ("cgroup", ContainmentMode::Cgroup),
    ("process-group", ContainmentMode::ProcessGroup),
];
const CAPTURES: [(&str, Capture); 2] = [("pipe", Capture::Pipe), ("file", Capture::File)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    spool: Option<Given>,
    socket: Option<Given>,
    bus: Option<Given>,
    allow_root: Option<Given>,
    on_stop: Option<Given>,
    lease_seconds: Option<Given>,
    question_seconds: Option<Given>,
    application: Option<Given>,
    host: Option<Given>,
    controller: Option<Section<FileController>>,
    containment: Option<Given>,
    #[serde(default)]
    limits: Section<FileLimits>,
    #[serde(default)]
    retention: Section<FileRetention>,
    #[serde(default)]
    environment: Section<BTreeMap<String, Given>>,
    #[serde(default)]
    profiles: Section<BTreeMap<String, Section<FileProfile>>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileLimits {
    submission: Option<Given>,
    attachments: Option<Given>,
    attachment_bytes: Option<Given>,
    output_schema: Option<Given>,
    line: Option<Given>,
    journal: Option<Given>,
    stderr: Option<Given>,
    page_records: Option<Given>,
    page_bytes: Option<Given>,
    messages: Option<Given>,
    message: Option<Given>,
    active: Option<Given>,
    queued: Option<Given>,
    free_space: Option<Given>,
    grace_ms: Option<Given>,
    drain_ms: Option<Given>,
    linger_ms: Option<Given>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileRetention {
    acknowledged_only: Option<Given>,
    max_age_days: Option<Given>,
    max_bytes: Option<Given>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileProfile {
    program: Option<Given>,
    dialect: Option<Given>,
    arguments: Option<Given>,
    #[serde(default)]
    environment: Section<BTreeMap<String, Given>>,
    directory: Option<Given>,
    #[serde(default)]
    limits: Section<FileResourceLimits>,
    capture: Option<Given>,
    deadline_seconds: Option<Given>,
    idle_seconds: Option<Given>,
    start_seconds: Option<Given>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileResourceLimits {
    memory_max: Option<Given>,
    tasks_max: Option<Given>,
    cpu_weight: Option<Given>,
    journal_max: Option<Given>,
}

/// Reads a file that nobody but us and root can write or replace.
pub(super) fn read(path: &Path, uid: u32) -> Result<String, ConfigError> {
    let file = || path.to_owned();
    let unreadable = |error: io::Error| ConfigError::Unreadable { file: file(), error };
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    let opened =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    let found = opened.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(ConfigError::NotAFile { file: file(), problem: "is not a regular file" });
    }
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    trust::check_way(&absolute, uid)
        .and_then(|_| trust::check(path, &found, uid))
        .map_err(|untrusted| ConfigError::Untrusted { file: file(), untrusted })?;
    let mut text = String::new();
    opened.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE {
        return Err(ConfigError::NotAFile { file: file(), problem: "is larger than 1 MiB" });
    }
    Ok(text)
}

/// The configuration that `text` means for `account`.
pub(super) fn parse(text: &str, path: &Path, account: &Account) -> Result<Config, ConfigError> {
    let file: File = toml::from_str(text).map_err(|error| malformed(&error, text, path))?;
    resolve(file, path, account).map_err(|(key, problem)| ConfigError::Invalid {
        file: path.to_owned(),
        key,
        problem,
    })
}

fn malformed(error: &toml::de::Error, text: &str, path: &Path) -> ConfigError {
    let start = error.span().map_or(0, |span: Range<usize>| span.start.min(text.len()));
    let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
    ConfigError::Malformed { file: path.to_owned(), line, problem: problem(error.message()) }
}

/// The toml crate reads a date as a table with a key of its own.
fn problem(message: &str) -> String {
    match message.contains("$__toml") {
        true => "a date stands where a table must".to_owned(),
        false => message.to_owned(),
    }
}

fn resolve(file: File, path: &Path, account: &Account) -> Result<Config, Problem> {
    let profiles = file.profiles.table("profiles")?;
    let profiles = profiles
        .into_iter()
        .map(|(name, profile)| Ok((name.clone(), resolve_profile(&name, profile, account)?)))
        .collect::<Result<_, Problem>>()?;
    let mut environment = base_environment(account);
    environment.extend(texts("environment", file.environment)?);
    let spool = match file.spool.checked("spool", absolute)? {
        Some(spool) => spool,
        None => state_directory(account).join("airouter/sessiond"),
    };
    let socket = match file.socket.checked("socket", absolute)? {
        Some(socket) => socket,
        None => location::socket_path()
            .unwrap_or_else(|| state_directory(account).join("airouter/run/sessiond.sock")),
    };
    // The defaults follow from variables and the password database.
    check_absolute("spool", &spool)?;
    check_absolute("socket", &socket)?;
    if socket.as_os_str().len() > location::MAX_SOCKET_PATH {
        let most = location::MAX_SOCKET_PATH;
        return refuse("socket", format!("a socket's path takes at most {most} bytes; name a shorter one"));
    }
    let controller = match file.controller {
        Some(section) => Some(controller::resolve(section.table("controller")?, account)?),
        None => None,
    };
    let application = file.application.checked("application", Given::text)?.unwrap_or_default();
    let host = file.host.checked("host", Given::text)?.unwrap_or_else(host_name);
    if controller.is_some() {
        for (key, text) in [("application", &application), ("host", &host)] {
            if text.is_empty() {
                return refuse(
                    key,
                    "is empty; the framework in [controller] gives its runs to an application on a host",
                );
            }
        }
        if file.lease_seconds.is_some() {
            return refuse(
                "lease_seconds",
                "stands beside [controller], whose lease_seconds holds; leave this one out",
            );
        }
    }
    Ok(Config {
        file: path.to_owned(),
        spool,
        socket,
        bus: file.bus.checked("bus", |given, key| given.word(key, &BUS_MODES))?.unwrap_or_default(),
        allow_root: file.allow_root.checked("allow_root", Given::flag)?.unwrap_or_default(),
        on_stop: file.on_stop.checked("on_stop", |given, key| given.word(key, &ON_STOPS))?,
        lease_seconds: file
            .lease_seconds
            .checked("lease_seconds", |given, key| given.number(key, 3, MAX_SECONDS))?,
        question_seconds: file
            .question_seconds
            .checked("question_seconds", |given, key| given.number(key, 0, MAX_SECONDS))?
            .map_or(Some(QUESTION_SECONDS), |seconds| (seconds > 0).then_some(seconds)),
        controller,
        application,
        host,
        limits: resolve_limits(file.limits.table("limits")?)?,
        environment,
        profiles,
        containment: file
            .containment
            .checked("containment", |given, key| given.word(key, &CONTAINMENTS))?
            .unwrap_or_default(),
        retention: resolve_retention(file.retention.table("retention")?)?,
    })
}

fn state_directory(account: &Account) -> PathBuf {
    location::state_directory().unwrap_or_else(|| account.home.join(".local/state"))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// What every program finds in its environment, whoever started the daemon and from wherever.
fn base_environment(account: &Account) -> BTreeMap<String, String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    [
        ("PATH", DEFAULT_PATH.to_owned()),
        ("HOME", text(&account.home)),
        ("USER", account.name.clone()),
        ("LOGNAME", account.name.clone()),
        ("SHELL", text(&account.shell)),
        ("LANG", "C.UTF-8".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn resolve_profile(name: &str, profile: Section<FileProfile>, account: &Account) -> Result<Profile, Problem> {
    if !is_profile_name(name) {
        return refuse(
            format!("profiles.{name:?}"),
            format!("a profile's name is 1 to {MAX_PROFILE_NAME} of the characters A-Z a-z 0-9 . _ -"),
        );
    }
    let profile = profile.table(&format!("profiles.{name}"))?;
    let key = |rest: &str| format!("profiles.{name}.{rest}");
    let seconds = |rest: &str, given: Option<Given>| {
        given.checked(&key(rest), |given, key| given.number(key, 1, MAX_SECONDS))
    };
    let Some(dialect) = profile.dialect.checked(&key("dialect"), known_dialect)? else {
        return refuse(key("dialect"), format!("is missing; use one of {}", dialect::NAMES.join(", ")));
    };
    let Some(program) = profile.program.checked(&key("program"), absolute)? else {
        return refuse(key("program"), "is missing; name the program by its absolute path");
    };
    trust::check_program(&program, account.uid)
        .map_err(|untrusted| (key("program"), untrusted.to_string()))?;
    Ok(Profile {
        program,
        dialect,
        arguments: profile.arguments.checked(&key("arguments"), Given::texts)?,
        environment: texts(&key("environment"), profile.environment)?,
        directory: profile.directory.checked(&key("directory"), absolute)?,
        limits: resolve_resource_limits(&key("limits"), profile.limits)?,
        capture: profile.capture.checked(&key("capture"), |given, key| given.word(key, &CAPTURES))?,
        deadline_seconds: seconds("deadline_seconds", profile.deadline_seconds)?,
        idle_seconds: seconds("idle_seconds", profile.idle_seconds)?,
        start_seconds: seconds("start_seconds", profile.start_seconds)?,
    })
}

fn known_dialect(given: Given, key: &str) -> Result<String, Problem> {
    let words = dialect::NAMES.map(|name| (name, name));
    given.word(key, &words).map(str::to_owned)
}

fn resolve_resource_limits(
    section: &str,
    limits: Section<FileResourceLimits>,
) -> Result<ResourceLimits, Problem> {
    let limits = limits.table(section)?;
    let limit = |rest: &str, given: Option<Given>, least, most| {
        given.checked(&format!("{section}.{rest}"), |given, key| given.number(key, least, most))
    };
    Ok(ResourceLimits {
        memory_max: limit("memory_max", limits.memory_max, 1 << 20, 1 << 50)?,
        tasks_max: limit("tasks_max", limits.tasks_max, 1, 1 << 22)?,
        cpu_weight: limit("cpu_weight", limits.cpu_weight, 1, 10_000)?,
        journal_max: limit("journal_max", limits.journal_max, 64 << 10, 1 << 50)?,
    })
}

/// Whether a profile may be called so.
fn is_profile_name(name: &str) -> bool {
    (1..=MAX_PROFILE_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn resolve_limits(file: FileLimits) -> Result<Limits, Problem> {
    const HOUR_MS: u64 = 3_600_000;
    let default = Limits::default();
    let size = |name: &str, given: Option<Given>, least, most, default: u64| {
        let value = given.checked(&format!("limits.{name}"), |given, key| given.number(key, least, most))?;
        Ok::<u64, Problem>(value.unwrap_or(default))
    };
    // The largest value of each is far below u32::MAX.
    let count = |name: &str, given: Option<Given>, least, most, default: u32| {
        size(name, given, least, most, u64::from(default)).map(|value| value as u32)
    };
    Ok(Limits {
        submission: size("submission", file.submission, 64 << 10, 1 << 30, default.submission)?,
        attachments: count("attachments", file.attachments, 0, 60, default.attachments)?,
        attachment_bytes: size(
            "attachment_bytes",
            file.attachment_bytes,
            0,
            1 << 30,
            default.attachment_bytes,
        )?,
        output_schema: size("output_schema", file.output_schema, 1, 1 << 20, default.output_schema)?,
        line: size("line", file.line, 4 << 10, 1 << 30, default.line)?,
        journal: size("journal", file.journal, 64 << 10, 1 << 50, default.journal)?,
        stderr: size("stderr", file.stderr, 0, 1 << 30, default.stderr)?,
        page_records: count("page_records", file.page_records, 1, 10_000, default.page_records)?,
        page_bytes: size("page_bytes", file.page_bytes, 4 << 10, 16 << 20, default.page_bytes)?,
        messages: count("messages", file.messages, 0, 10_000, default.messages)?,
        message: size("message", file.message, 1, 1 << 20, default.message)?,
        active: count("active", file.active, 1, 64, default.active)?,
        queued: count("queued", file.queued, 0, 100_000, default.queued)?,
        free_space: size("free_space", file.free_space, 0, 1 << 50, default.free_space)?,
        grace_ms: size("grace_ms", file.grace_ms, 0, HOUR_MS, default.grace_ms)?,
        drain_ms: size("drain_ms", file.drain_ms, 0, HOUR_MS, default.drain_ms)?,
        linger_ms: size("linger_ms", file.linger_ms, 0, 24 * HOUR_MS, default.linger_ms)?,
    })
}

fn resolve_retention(file: FileRetention) -> Result<Retention, Problem> {
    let limit = |name: &str, given: Option<Given>, least, most| {
        given.checked(&format!("retention.{name}"), |given, key| given.number(key, least, most))
    };
    Ok(Retention {
        acknowledged_only: file
            .acknowledged_only
            .checked("retention.acknowledged_only", Given::flag)?
            .unwrap_or(true),
        // A session that ended today is never too old.
        max_age_days: limit("max_age_days", file.max_age_days, 1, 36_600)?,
        max_bytes: limit("max_bytes", file.max_bytes, 0, 1 << 60)?,
    })
}

fn texts(key: &str, table: Section<BTreeMap<String, Given>>) -> Result<BTreeMap<String, String>, Problem> {
    let table = table.table(key)?;
    let checked = table.into_iter().map(|(name, given)| {
        if name.is_empty() || name.contains(['=', '\0']) {
            return refuse(key, "a name is empty or holds '=' or NUL");
        }
        let text = given.text(&format!("{key}.{name}"))?;
        Ok((name, text))
    });
    checked.collect()
}

pub(super) fn absolute(given: Given, key: &str) -> Result<PathBuf, Problem> {
    let path = given.path(key)?;
    check_absolute(key, &path)?;
    Ok(path)
}

fn check_absolute(key: &str, path: &Path) -> Result<(), Problem> {
    if !path.is_absolute() {
        return refuse(key, "must be an absolute path; `~` and variables mean nothing here");
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return refuse(key, "holds `..`; name the place itself");
    }
    Ok(())
}
