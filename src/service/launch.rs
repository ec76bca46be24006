//! From an admitted session to a running executor.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::live::Conversation;
use crate::config::{Capture, Config, Profile};
use crate::containment::Backend;
use crate::dialect::launch::{Attached, Schema};
use crate::dialect::{self, Dialect, Occasion, Unable};
use crate::model::{Plan, ResourceLimits, Submission};
use crate::spool::{self, OwnerLock};

/// How an executor is started.
#[derive(Debug, Clone)]
pub struct ExecutorProgram {
    /// The absolute program.
    pub path: PathBuf,
    /// What it sees as its own name: a program that serves several roles tells them apart by it.
    pub name: String,
}

impl ExecutorProgram {
    /// Starts an executor for the session in `folder`. It gets `lock` and one end of a socket, whose other end is
    /// returned; the caller's copy of the lock is closed, or a dead executor would look alive.
    pub(super) fn spawn(
        &self,
        folder: &Path,
        lock: OwnerLock,
    ) -> io::Result<(tokio::process::Child, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // Nothing here needs code between fork and exec: std uses posix_spawn, whose cost does not grow with us.
        let mut command = tokio::process::Command::new(&self.path);
        command.arg0(&self.name).arg(folder).env_clear();
        #[cfg(feature = "crash-points")]
        command.envs(std::env::var_os(crate::crash::VARIABLE).map(|point| (crate::crash::VARIABLE, point)));
        #[cfg(feature = "faults")]
        command.envs(std::env::var_os("AIROUTER_FAULTS").map(|faults| ("AIROUTER_FAULTS", faults)));
        let child = command
            .stdin(Stdio::from(lock.into_file()))
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stderr(Stdio::null())
            .spawn()?;
        Ok((child, ours))
    }
}

/// What a session's program is started with, besides what its submission says itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    /// The session's folder.
    pub folder: &'a Path,
    /// The conversation that goes on.
    pub conversation: Option<&'a Conversation>,
}

/// The whole arguments of a session's program.
pub(super) fn arguments(
    profile: &Profile,
    dialect: &dyn Dialect,
    submission: &Submission,
    given: Given<'_>,
) -> Result<Vec<String>, Unable> {
    let folder = given.folder;
    let paths: Vec<PathBuf> =
        submission.attachments.iter().map(|attachment| spool::attachment_path(folder, attachment)).collect();
    let attached = submission.attachments.iter().zip(&paths).map(|(attachment, path)| Attached {
        name: &attachment.name,
        media_type: &attachment.media_type,
        path,
    });
    let schema = spool::output_schema_path(folder);
    let occasion = Occasion {
        attachments: attached.collect(),
        schema: submission.output_schema.as_ref().map(|text| Schema { path: &schema, text }),
        conversation: given.conversation.map(|conversation| conversation.id.as_str()),
    };
    let own = profile.arguments.clone().unwrap_or_else(|| dialect.launch().arguments);
    dialect.arguments(&own, &submission.arguments, &occasion)
}

/// Everything that the executor needs, from the configuration as it is now. The text of an error says what to do.
pub(super) fn plan(
    config: &Config,
    submission: &Submission,
    given: Given<'_>,
    containment: Backend,
) -> Result<Plan, String> {
    let name = &submission.profile;
    let profile = config.profiles.get(name).ok_or_else(|| {
        format!(
            "the profile {name:?} was taken out of {} after the session was admitted",
            config.file.display()
        )
    })?;
    let dialect = dialect::find(&profile.dialect)
        .ok_or_else(|| format!("the profile {name:?} names an unknown dialect {:?}", profile.dialect))?;
    if given.conversation.is_some_and(|conversation| conversation.family != dialect.family()) {
        let now = &profile.dialect;
        return Err(format!(
            "the profile {name:?} is of the dialect {now} now, which cannot go on with the session's conversation"
        ));
    }
    let launch = dialect.launch();
    let arguments = arguments(profile, dialect, submission, given).map_err(|unable| {
        format!("the profile {name:?} was changed after the session was admitted: {unable}")
    })?;
    let mut environment = config.environment.clone();
    for (key, value) in launch.environment {
        environment.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    environment.extend(profile.environment.clone());
    environment.extend(submission.environment.clone());
    let home = environment.get("HOME").map(PathBuf::from);
    let directory = submission.directory.as_ref().map(PathBuf::from).or(profile.directory.clone()).or(home);
    let resources = merged(&submission.limits, &profile.limits);
    let limits = &config.limits;
    Ok(Plan {
        program: profile.program.clone(),
        arguments,
        environment,
        attachments: submission.attachments.clone(),
        output_schema: submission.output_schema.is_some(),
        conversation: given.conversation.map(|conversation| conversation.id.clone()),
        directory: directory.unwrap_or_else(|| PathBuf::from("/")),
        dialect: profile.dialect.clone(),
        capture_file: match profile.capture {
            Some(capture) => capture == Capture::File,
            None => launch.capture == dialect::Capture::File,
        },
        containment: containment.name().to_owned(),
        journal_max: resources.journal_max.map_or(limits.journal, |max| max.min(limits.journal)),
        resources,
        line_max: limits.line,
        stderr_max: limits.stderr,
        grace_ms: limits.grace_ms,
        drain_ms: limits.drain_ms,
        linger_ms: limits.linger_ms,
        deadline_seconds: submission.deadline_seconds.or(profile.deadline_seconds),
        idle_seconds: submission.idle_seconds.or(profile.idle_seconds),
        start_seconds: submission.start_seconds.or(profile.start_seconds),
        lease_seconds: config.lease_seconds,
        question_seconds: config.question_seconds,
        leave_descendants: submission.leave_descendants,
    })
}

/// How long an executor may need for a session's end: interrupt, SIGTERM, SIGKILL and its patience, the pipes, the disk.
pub(super) fn stop_patience(plan: &Plan) -> Duration {
    Duration::from_millis(plan.grace_ms.saturating_mul(3).saturating_add(plan.drain_ms))
        + Duration::from_secs(20)
}

fn merged(first: &ResourceLimits, then: &ResourceLimits) -> ResourceLimits {
    ResourceLimits {
        memory_max: first.memory_max.or(then.memory_max),
        tasks_max: first.tasks_max.or(then.tasks_max),
        cpu_weight: first.cpu_weight.or(then.cpu_weight),
        journal_max: first.journal_max.or(then.journal_max),
    }
}
