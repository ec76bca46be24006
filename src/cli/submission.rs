//! The command line as a submission.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use super::{Context, Failure, words};
use crate::client::{Attachment, Client, Submitted};
use crate::model::{RunId, Submission};

/// The largest input that is read, in bytes. The service's own limit is below.
const MAX_INPUT: u64 = 1 << 30;
/// How often a Submit whose reply was lost is sent again.
const ATTEMPTS: u32 = 3;

/// What to run.
#[derive(Debug, Args)]
#[group(skip)]
pub struct Arguments {
    /// The registered program to run [default: the only one, where there is one]
    #[arg(long, short = 'P', value_name = "NAME")]
    pub profile: Option<String>,
    /// The input, such as a prompt [default: standard input, where it is a file or a pipe]. The process list shows it
    /// to every account while sessionctl runs; it does not show --input-file or a pipe
    #[arg(
        long,
        short = 'p',
        visible_alias = "prompt",
        value_name = "TEXT",
        conflicts_with = "input_file",
        allow_hyphen_values = true
    )]
    pub input: Option<String>,
    /// A file with the input, which the process list does not show
    #[arg(long, value_name = "FILE")]
    pub input_file: Option<PathBuf>,
    /// A picture that goes along with it: PNG, JPEG, GIF or WebP. May be given several times
    #[arg(long, value_name = "FILE")]
    pub attach: Vec<PathBuf>,
    /// A file with a JSON Schema that the final answer must fit
    #[arg(long, value_name = "FILE")]
    pub output_schema: Option<PathBuf>,
    /// Go on with the conversation of this session, which has ended: its run_id, or the first 4 or more characters of it
    #[arg(long = "continues", value_name = "SESSION")]
    pub continues: Option<String>,
    /// The directory it runs in [default: the current one]
    #[arg(long, short = 'C', value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// A variable of its environment. The process list shows a value given here to every account while sessionctl runs;
    /// a name alone takes the value from our own environment, which it does not show
    #[arg(long = "env", short = 'e', value_name = "NAME[=VALUE]")]
    pub environment: Vec<String>,
    /// A name for people, shown in statuses
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// End it so long after its start (90, 90s, 15m, 2h)
    #[arg(long, value_name = "DURATION", value_parser = words::seconds)]
    pub deadline: Option<u64>,
    /// End it if it prints nothing for so long
    #[arg(long, value_name = "DURATION", value_parser = words::seconds)]
    pub idle: Option<u64>,
    /// End it if it prints nothing for so long after its start
    #[arg(long, value_name = "DURATION", value_parser = words::seconds)]
    pub start: Option<u64>,
    /// The memory that all its processes may take (512M, 4G)
    #[arg(long, value_name = "SIZE", value_parser = words::bytes)]
    pub memory_max: Option<u64>,
    /// The processes and threads that it may have
    #[arg(long, value_name = "NUMBER")]
    pub tasks_max: Option<u64>,
    /// Its share of the processor, 1 to 10000
    #[arg(long, value_name = "NUMBER")]
    pub cpu_weight: Option<u64>,
    /// The size that its journal may have
    #[arg(long, value_name = "SIZE", value_parser = words::bytes)]
    pub journal_max: Option<u64>,
    /// Leave running what it started and left behind
    #[arg(long)]
    pub leave_descendants: bool,
    /// The session's name [default: a new one]. Submitting the same again under the same name is the same session
    #[arg(long, value_name = "UUID")]
    pub run_id: Option<RunId>,
    /// Arguments of the program, after the profile's own
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<String>,
}

/// Submits what the command line says. A reply that is lost is asked for again: the same submission under the same
/// name is the same session.
pub async fn submit(
    arguments: Arguments,
    context: &Context,
    client: &mut Client,
) -> Result<Submitted, Failure> {
    let input = input(&arguments)?;
    let profile = match &arguments.profile {
        Some(profile) => profile.clone(),
        None => only_profile(&client.properties().await?)?,
    };
    let attachments = attachments(&arguments.attach)?;
    let continues = match &arguments.continues {
        Some(session) => Some(context.session(client, session).await?),
        None => None,
    };
    let submission = Submission { continues, ..to_submission(arguments, profile)? };
    let mut attempt = 1;
    loop {
        match client.submit_with(&submission, input.clone(), &attachments).await {
            Err(error) if error.is_lost() && attempt < ATTEMPTS => {
                attempt += 1;
                *client = context.reconnect(client).await?;
            }
            other => return Ok(other?),
        }
    }
}

fn to_submission(arguments: Arguments, profile: String) -> Result<Submission, Failure> {
    let mut submission = Submission::new(arguments.run_id.unwrap_or_else(RunId::random), profile);
    submission.directory = Some(directory(arguments.directory.as_deref())?);
    for entry in &arguments.environment {
        let (name, value) = environment_entry(entry)?;
        submission.environment.insert(name, value);
    }
    if let Some(path) = &arguments.output_schema {
        submission.output_schema = Some(text_file("the output schema", path)?);
    }
    submission.arguments = arguments.arguments;
    submission.label = arguments.label;
    submission.deadline_seconds = arguments.deadline;
    submission.idle_seconds = arguments.idle;
    submission.start_seconds = arguments.start;
    submission.limits.memory_max = arguments.memory_max;
    submission.limits.tasks_max = arguments.tasks_max;
    submission.limits.cpu_weight = arguments.cpu_weight;
    submission.limits.journal_max = arguments.journal_max;
    submission.leave_descendants = arguments.leave_descendants;
    Ok(submission)
}

fn attachments(paths: &[PathBuf]) -> Result<Vec<Attachment>, Failure> {
    let open = |path: &PathBuf| {
        let failed = |error| Failure::io(format!("the attachment {}", path.display()), error);
        Attachment::open(path).map_err(failed)
    };
    paths.iter().map(open).collect()
}

fn text_file(what: &str, path: &Path) -> Result<String, Failure> {
    let what = format!("{what} {}", path.display());
    let bytes = read(File::open(path).map_err(|error| Failure::io(what.clone(), error))?, what.clone())?;
    String::from_utf8(bytes).map_err(|_| Failure::Usage(format!("{what} is not UTF-8")))
}

/// The service's only profile.
fn only_profile(properties: &Map<String, Value>) -> Result<String, Failure> {
    let names: Vec<&String> =
        properties.get("Profiles").and_then(Value::as_object).into_iter().flat_map(Map::keys).collect();
    match names.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(Failure::Usage(
            "no profile is registered: `sessionctl profiles detect` registers the agent programs on PATH, \
             `sessionctl profiles add` any other"
                .to_owned(),
        )),
        several => {
            let names: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            Err(Failure::Usage(format!("say which with --profile: {}", names.join(", "))))
        }
    }
}

/// The absolute directory, without symbolic links and `..`, which the service refuses.
fn directory(asked: Option<&Path>) -> Result<String, Failure> {
    let path = asked.unwrap_or(Path::new("."));
    let absolute = path
        .canonicalize()
        .map_err(|error| Failure::io(format!("the directory {}", path.display()), error))?;
    if !absolute.is_dir() {
        return Err(Failure::Usage(format!("{} is not a directory", path.display())));
    }
    absolute.into_os_string().into_string().map_err(|path| {
        Failure::Usage(format!("the directory {} is not UTF-8, which D-Bus cannot carry", path.display()))
    })
}

fn environment_entry(entry: &str) -> Result<(String, String), Failure> {
    let (name, value) = match entry.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (entry, std::env::var(entry).ok()),
    };
    match value {
        Some(value) if !name.is_empty() => Ok((name.to_owned(), value)),
        Some(_) => Err(Failure::Usage("--env: a name is empty".to_owned())),
        None => Err(Failure::Usage(format!(
            "--env {name}: our own environment has no such text; give NAME=VALUE"
        ))),
    }
}

/// The input: what was given, or standard input where somebody put something there.
fn input(arguments: &Arguments) -> Result<Option<Vec<u8>>, Failure> {
    if let Some(text) = &arguments.input {
        return Ok(Some(text.clone().into_bytes()));
    }
    if let Some(path) = &arguments.input_file {
        let what = || format!("the input {}", path.display());
        return read(File::open(path).map_err(|error| Failure::io(what(), error))?, what()).map(Some);
    }
    let stdin = io::stdin();
    if stdin.is_terminal() || !carries_data(&stdin) {
        return Ok(None);
    }
    let read = read(stdin.lock(), "standard input".to_owned())?;
    Ok((!read.is_empty()).then_some(read))
}

/// Whether it is a file, a pipe or a socket: a device such as `/dev/null` is nothing to wait for.
fn carries_data(stream: &impl AsFd) -> bool {
    let Ok(copy) = stream.as_fd().try_clone_to_owned() else { return false };
    fs::File::from(copy).metadata().is_ok_and(|found| {
        let kind = found.file_type();
        kind.is_file() || kind.is_fifo() || kind.is_socket()
    })
}

fn read(from: impl Read, what: String) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    match from.take(MAX_INPUT + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 > MAX_INPUT => Err(Failure::Usage(format!(
            "{what} is larger than 1 GiB; give the program a file to read instead"
        ))),
        Ok(_) => Ok(bytes),
        Err(error) => Err(Failure::io(what, error)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &[&str]) -> Arguments {
        Line::try_parse_from(std::iter::once(&"run").chain(line)).unwrap().arguments
    }

    #[test]
    fn every_argument_reaches_the_submission() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let schema = directory.path().join("schema.json");
        fs::write(&schema, "{}").unwrap();
        let arguments = parse(&[
            "-P",
            "codex",
            "-p",
            "hello",
            "-C",
            path,
            "-e",
            "A=b=c",
            "--attach",
            "/a.png",
            "--attach",
            "/b.jpg",
            "--output-schema",
            schema.to_str().unwrap(),
            "--continues",
            "0192f3c4-5b6a-7c8d-9e0f-112233445577",
            "--label",
            "night",
            "--deadline",
            "2h",
            "--idle",
            "90",
            "--start",
            "15m",
            "--memory-max",
            "4G",
            "--tasks-max",
            "64",
            "--cpu-weight",
            "50",
            "--journal-max",
            "1M",
            "--leave-descendants",
            "--run-id",
            "0192f3c4-5b6a-7c8d-9e0f-112233445566",
            "--",
            "--model",
            "x",
        ]);
        assert_eq!(input(&arguments).unwrap().as_deref(), Some(b"hello".as_slice()));
        assert_eq!(arguments.continues.as_deref(), Some("0192f3c4-5b6a-7c8d-9e0f-112233445577"));
        assert_eq!(arguments.attach, [Path::new("/a.png"), Path::new("/b.jpg")]);
        let submission = to_submission(arguments, "codex".into()).unwrap();
        assert_eq!(
            serde_json::to_value(submission).unwrap(),
            json!({
                "version": "airouter.sessions.v1", "binding": {"run_id": "0192f3c4-5b6a-7c8d-9e0f-112233445566"},
                "profile": "codex", "arguments": ["--model", "x"], "output-schema": "{}",
                "directory": directory.path().canonicalize().unwrap(), "environment": {"A": "b=c"},
                "deadline-seconds": 7200, "idle-seconds": 90, "start-seconds": 900,
                "limits": {"memory-max": 4u64 << 30, "tasks-max": 64, "cpu-weight": 50, "journal-max": 1 << 20},
                "leave-descendants": true, "label": "night"
            })
        );
    }

    #[test]
    fn the_help_says_what_the_process_list_shows() {
        use clap::CommandFactory;
        let command = Line::command();
        for (name, instead) in [("input", "--input-file or a pipe"), ("environment", "a name alone")] {
            let argument = command.get_arguments().find(|argument| argument.get_id() == name).unwrap();
            let help = argument.get_help().unwrap().to_string();
            assert!(help.contains("process list shows") && help.contains(instead), "{help}");
        }
    }

    #[test]
    fn a_variable_without_a_value_is_taken_from_ours() {
        // cargo sets it for tests.
        assert_eq!(environment_entry("CARGO_PKG_NAME").unwrap().1, "airouter-sessiond");
        let error = environment_entry("NO_SUCH_VARIABLE_HERE").unwrap_err().to_string();
        assert!(error.contains("NO_SUCH_VARIABLE_HERE"), "{error}");
        assert!(environment_entry("=x").is_err());
    }

    #[test]
    fn input_files_are_read_whole_and_devices_are_not_input() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("prompt");
        fs::write(&file, [0xff, 0, 10]).unwrap();
        let arguments = parse(&["--input-file", file.to_str().unwrap()]);
        assert_eq!(input(&arguments).unwrap(), Some(vec![0xff, 0, 10]));
        assert!(carries_data(&File::open(&file).unwrap()));
        assert!(carries_data(&io::pipe().unwrap().0));
        assert!(!carries_data(&File::open("/dev/null").unwrap()));
    }

    #[test]
    fn the_profile_may_be_left_out_where_there_is_one() {
        let properties = |profiles: Value| json!({"Profiles": profiles}).as_object().unwrap().clone();
        assert_eq!(only_profile(&properties(json!({"echo": {}}))).unwrap(), "echo");
        let error = only_profile(&properties(json!({"a": {}, "b": {}}))).unwrap_err().to_string();
        assert!(error.contains("a, b"), "{error}");
        assert!(only_profile(&properties(json!({}))).unwrap_err().to_string().contains("profiles detect"));
    }
}
