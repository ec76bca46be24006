use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::limits::{MAX_ARGUMENT, MAX_LABEL, shown};
use super::{Attachment, Limits, RunId, attachment};

/// The value of a submission's `version`.
pub const SUBMISSION_VERSION: &str = "airouter.sessions.v1";

/// The identity under which a session may run. With the embedded controller only `run_id` is used; a framework
/// needs all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Binding {
    /// The session's name.
    pub run_id: RunId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
}

impl Binding {
    /// The binding of a session that needs only its name.
    pub fn of_run(run_id: RunId) -> Binding {
        Binding {
            run_id,
            application: None,
            host: None,
            task_id: None,
            lease_id: None,
            worker: None,
            operation: None,
        }
    }

    /// It names what only a framework knows.
    pub fn names_framework(&self) -> bool {
        [&self.task_id, &self.lease_id, &self.worker, &self.operation].iter().any(|part| part.is_some())
    }
}

/// What happens after the session's owner died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Nothing is started again.
    #[default]
    Never,
}

/// Limits on what a session's processes and its journal may take. Absent: the profile's, then the configuration's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ResourceLimits {
    /// Memory of the whole tree, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u64>,
    /// Tasks (processes and threads) of the whole tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_max: Option<u64>,
    /// The share of the processor, 1 to 10000 (cgroup v2 `cpu.weight`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<u64>,
    /// Size of the journal, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_max: Option<u64>,
}

/// Everything that says what to run, except the bytes of its input and its attachments, which travel and are kept beside
/// it.
///
/// A submission is refused, naming the key, if it has a key that is not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Submission {
    /// [`SUBMISSION_VERSION`].
    pub version: String,
    /// The identity under which it may run.
    pub binding: Binding,
    /// The name of a registered profile.
    pub profile: String,
    /// Arguments after the profile's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// The files that go along with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// The JSON Schema that the final answer must fit, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<String>,
    /// The ended session whose conversation goes on in this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<RunId>,
    /// The absolute directory it runs in. Absent: that of the session that it continues, else the profile's, else the
    /// account's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Environment on top of the configuration's and the profile's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// End it this many seconds (boot time, sleep counts) after its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// End it after this many seconds (running time) without output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// End it if it prints nothing for this many seconds after its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_seconds: Option<u64>,
    /// Limits on what it may take.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: ResourceLimits,
    /// What happens after its owner died.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recovery: Recovery,
    /// Leave running what the program started and left behind, instead of stopping it at the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leave_descendants: bool,
    /// A name for people, up to 256 characters. It is shown in statuses: nothing private belongs here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Why a submission is refused: the key and what is wrong with it, without its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct InvalidSubmission {
    /// The key, such as `environment.PATH`.
    pub key: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl InvalidSubmission {
    /// A refusal of `key`, which may hold a name that the submitter chose: it is cut as [`shown`] says.
    pub fn new(key: impl AsRef<str>, problem: impl Into<String>) -> Self {
        InvalidSubmission { key: shown(key.as_ref()), problem: problem.into() }
    }
}

impl Submission {
    /// A submission of `profile` under `run_id` with everything else left out.
    pub fn new(run_id: RunId, profile: impl Into<String>) -> Self {
        Submission {
            version: SUBMISSION_VERSION.to_owned(),
            binding: Binding::of_run(run_id),
            profile: profile.into(),
            arguments: Vec::new(),
            attachments: Vec::new(),
            output_schema: None,
            continues: None,
            directory: None,
            environment: BTreeMap::new(),
            deadline_seconds: None,
            idle_seconds: None,
            start_seconds: None,
            limits: ResourceLimits::default(),
            recovery: Recovery::Never,
            leave_descendants: false,
            label: None,
        }
    }

    /// The session's name.
    pub fn run_id(&self) -> RunId {
        self.binding.run_id
    }
}

/// Checks everything about a submission that can be known without the configuration's profiles and the disk.
/// `input` is the length of its input in bytes.
pub fn validate(submission: &Submission, input: u64, limits: &Limits) -> Result<(), InvalidSubmission> {
    let bad = |key: &str, problem: &str| Err(InvalidSubmission::new(key, problem));
    if submission.version != SUBMISSION_VERSION {
        return bad("version", &format!("must be {SUBMISSION_VERSION:?}"));
    }
    if submission.profile.is_empty() {
        return bad("profile", "is empty; name one of the Profiles property");
    }
    check_sizes(submission, input, limits)?;
    for (index, argument) in submission.arguments.iter().enumerate() {
        check_exec_text(&format!("arguments[{index}]"), argument)?;
    }
    if let Some(directory) = &submission.directory {
        check_directory(directory)?;
    }
    for (name, value) in &submission.environment {
        if name.is_empty() || name.contains(['=', '\0']) {
            return bad("environment", "a name is empty or holds '=' or NUL");
        }
        check_exec_text(&format!("environment.{name}"), value)?;
    }
    attachment::check(&submission.attachments, limits)?;
    if let Some(schema) = &submission.output_schema {
        let most = limits.output_schema;
        if schema.chars().count() as u64 > most {
            return bad(
                "output-schema",
                &format!("is longer than {most} characters (Limits: output-schema)"),
            );
        }
    }
    if submission.continues == Some(submission.run_id()) {
        return bad("continues", "is the session itself; name an earlier one");
    }
    if let Some(label) = &submission.label {
        if label.chars().count() > MAX_LABEL {
            return bad("label", &format!("is longer than {MAX_LABEL} characters"));
        }
        if label.chars().any(char::is_control) {
            return bad("label", "holds a control character");
        }
    }
    check_numbers(submission)
}

fn check_sizes(submission: &Submission, input: u64, limits: &Limits) -> Result<(), InvalidSubmission> {
    let arguments: u64 = submission.arguments.iter().map(|a| a.len() as u64 + 9).sum();
    let environment: u64 = submission.environment.iter().map(|(k, v)| (k.len() + v.len()) as u64 + 10).sum();
    let schema = submission.output_schema.as_ref().map_or(0, |schema| schema.len() as u64);
    let total = arguments + environment + schema + input;
    if total > limits.submission {
        return Err(InvalidSubmission::new(
            "submission",
            format!(
                "is {total} bytes with its input; the limit is {} (Limits: submission)",
                limits.submission
            ),
        ));
    }
    // execve(2): arguments and environment together may take a quarter of the stack limit, 2 MiB by default.
    let exec = arguments + environment;
    if exec > 1 << 20 {
        return Err(InvalidSubmission::new(
            "arguments",
            format!(
                "with the environment they take {exec} bytes; a program takes 1048576: send text as input"
            ),
        ));
    }
    Ok(())
}

fn check_exec_text(key: &str, text: &str) -> Result<(), InvalidSubmission> {
    if text.contains('\0') {
        return Err(InvalidSubmission::new(key, "holds a NUL byte"));
    }
    if text.len() >= MAX_ARGUMENT {
        return Err(InvalidSubmission::new(
            key,
            format!(
                "is {} bytes long; a program takes less than {MAX_ARGUMENT}: send text as input",
                text.len()
            ),
        ));
    }
    Ok(())
}

fn check_directory(directory: &str) -> Result<(), InvalidSubmission> {
    let bad = |problem: &str| Err(InvalidSubmission::new("directory", problem));
    if !directory.starts_with('/') {
        return bad("is not an absolute path");
    }
    if directory.contains('\0') {
        return bad("holds a NUL byte");
    }
    if directory.split('/').any(|part| part == "..") {
        return bad("holds '..'; name the directory itself");
    }
    if directory.len() >= 4096 {
        return bad("is longer than 4095 bytes");
    }
    Ok(())
}

fn check_numbers(submission: &Submission) -> Result<(), InvalidSubmission> {
    const YEAR: u64 = 366 * 24 * 3600;
    for (key, value, least, most) in [
        ("deadline-seconds", submission.deadline_seconds, 1, YEAR),
        ("idle-seconds", submission.idle_seconds, 1, YEAR),
        ("start-seconds", submission.start_seconds, 1, YEAR),
        ("limits.memory-max", submission.limits.memory_max, 1 << 20, 1 << 50),
        ("limits.tasks-max", submission.limits.tasks_max, 1, 1 << 22),
        ("limits.cpu-weight", submission.limits.cpu_weight, 1, 10_000),
        ("limits.journal-max", submission.limits.journal_max, 64 << 10, 1 << 50),
    ] {
        if let Some(value) = value
            && !(least..=most).contains(&value)
        {
            return Err(InvalidSubmission::new(key, format!("must be from {least} to {most}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Submission)) -> String {
        let mut submission = Submission::new(RunId::random(), "echo");
        change(&mut submission);
        validate(&submission, 0, &Limits::default()).expect_err("must be refused").key
    }

    #[test]
    fn a_plain_submission_is_valid() {
        let submission = Submission::new(RunId::random(), "echo");
        assert_eq!(validate(&submission, 5 << 20, &Limits::default()), Ok(()));
    }

    #[test]
    fn refusals_name_the_key() {
        assert_eq!(refused(|s| s.version = "2".into()), "version");
        assert_eq!(refused(|s| s.arguments.push("a\0b".into())), "arguments[0]");
        assert_eq!(refused(|s| s.arguments.push("x".repeat(MAX_ARGUMENT))), "arguments[0]");
        assert_eq!(refused(|s| s.directory = Some("work".into())), "directory");
        assert_eq!(refused(|s| s.directory = Some("/a/../b".into())), "directory");
        assert_eq!(
            refused(|s| s.environment.insert("A=B".into(), "".into()).map_or((), drop)),
            "environment"
        );
        assert_eq!(
            refused(|s| s.environment.insert("A".into(), "\0".into()).map_or((), drop)),
            "environment.A"
        );
        assert_eq!(refused(|s| s.deadline_seconds = Some(0)), "deadline-seconds");
        assert_eq!(refused(|s| s.limits.cpu_weight = Some(u64::MAX)), "limits.cpu-weight");
        assert_eq!(refused(|s| s.label = Some("x".repeat(257))), "label");
        assert_eq!(refused(|s| s.arguments = vec!["x".repeat(100_000); 20]), "arguments");
        assert_eq!(refused(|s| s.output_schema = Some("x".repeat(262_145))), "output-schema");
        assert_eq!(refused(|s| s.continues = Some(s.run_id())), "continues");
    }

    #[test]
    fn input_counts_towards_the_size() {
        let submission = Submission::new(RunId::random(), "echo");
        let error = validate(&submission, 9 << 20, &Limits::default()).expect_err("too large");
        assert_eq!(error.key, "submission");
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let json = r#"{"version":"airouter.sessions.v1","binding":{"run_id":"0192f3c4-5b6a-7c8d-9e0f-112233445566"},"profile":"p","shell":"rm"}"#;
        let error = serde_json::from_str::<Submission>(json).expect_err("unknown key").to_string();
        assert!(error.contains("shell"), "{error}");
    }
}
