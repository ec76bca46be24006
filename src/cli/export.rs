use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use super::{Context, Exit, Failure};
use crate::client::{Client, FollowOptions, SessionStatus};
use crate::model::RunId;
use crate::spool::{SessionDir, SpoolError, journal};

/// Writes one session to a file or to standard output.
///
/// Of a session that has not ended this is what is durable now. With --json and --output one object: run_id, format,
/// output, bytes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
    /// Its events with the program's exact lines (jsonl), or all files of its folder (tar), the submission with its
    /// environment among them
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    pub format: Format,
    /// A file that is not there yet, which only you can read [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// The form of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A record a line.
    Jsonl,
    /// A tar archive.
    Tar,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    // Whoever asks for a session that is not there gets no file either.
    let status = client.status(run_id).await?;
    let Some(path) = &arguments.output else {
        if arguments.format == Format::Tar && io::stdout().is_terminal() {
            return Err(Failure::Usage("a tar archive is not for a terminal: give --output FILE".into()));
        }
        write(arguments.format, client, context, &status, &mut Target::new(io::stdout().lock())).await?;
        return Ok(Exit::Ok);
    };
    let trouble = |error| Failure::io(path.display().to_string(), error);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(trouble)?;
    let mut target = Target::new(BufWriter::new(&file));
    let written = write(arguments.format, client, context, &status, &mut target).await;
    let bytes = target.bytes;
    drop(target);
    if let Err(failure) = written.and_then(|()| file.sync_all().map_err(trouble)) {
        // A part of a session must not look like one.
        let _ = std::fs::remove_file(path);
        return Err(failure);
    }
    if context.out.json {
        let format = arguments.format.to_possible_value().map(|value| value.get_name().to_owned());
        context.out.value(&json!({"run_id": run_id, "format": format, "output": path, "bytes": bytes}))?;
    }
    Ok(Exit::Ok)
}

/// Where the export goes, and how much went there.
struct Target<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Target<W> {
    fn new(to: W) -> Target<W> {
        Target { to, bytes: 0 }
    }
}

impl<W: Write> Write for Target<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn unwritable(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::io("the export cannot be written", error),
    }
}

async fn write(
    format: Format,
    client: Client,
    context: &Context,
    status: &SessionStatus,
    to: &mut impl Write,
) -> Result<(), Failure> {
    match format {
        Format::Jsonl => write_events(client, context, status.run_id()?, to).await?,
        Format::Tar => {
            let spool = client.storage().await?.spool;
            let dir = find(Path::new(&spool), status.run_id()?)?;
            if let Some(foreign) = dir.contents().map_err(unreadable)?.foreign {
                context.out.note(&format!("left out: the session's folder {foreign}"));
            }
            archive(&dir, status, to)?;
        }
    }
    to.flush().map_err(unwritable)
}

/// Every record up to what is durable, each once, through restarts of the service.
async fn write_events(
    mut client: Client,
    context: &Context,
    run_id: RunId,
    to: &mut impl Write,
) -> Result<(), Failure> {
    let mut position = "start".to_owned();
    loop {
        let follow = client.follow(run_id, &position, FollowOptions { raw: true, live: false }).await;
        let read = match follow {
            Ok(mut follow) => {
                while let Some(line) = follow.next_line().await? {
                    to.write_all(line.as_bytes()).and_then(|()| to.write_all(b"\n")).map_err(unwritable)?;
                }
                position = follow.position().to_owned();
                // The end of the pipe is also what the service's death looks like; an answer on the same connection tells.
                client.status(run_id).await
            }
            Err(error) => Err(error),
        };
        match read {
            Err(error) if error.is_lost() => client = context.reconnect(&client).await?,
            Err(error) => return Err(error.into()),
            Ok(status) if status.end().is_some() && !matches!(status.text("head"), "") => {
                if status.text("head") == position {
                    return Ok(());
                }
                // It ended meanwhile, or its journal cannot be read further, which this call says.
                if client.events(run_id, &position, 1).await?.records.is_empty() {
                    return Err(Failure::Trouble("the session's events cannot be read to their end".into()));
                }
            }
            Ok(_) => return Ok(()),
        }
    }
}

fn unreadable(error: SpoolError) -> Failure {
    Failure::Trouble(format!("the session's files cannot be read: {error}"))
}

/// The session's folder. It moves once, when the session is put away, and what is open stays open.
fn find(spool: &Path, run_id: RunId) -> Result<SessionDir, Failure> {
    let active = spool.join("active").join(run_id.to_string());
    let ended = spool.join("ended").join(run_id.shard()).join(run_id.to_string());
    for place in [&active, &ended] {
        match SessionDir::open(place) {
            Err(SpoolError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other.map_err(unreadable),
        }
    }
    let problem =
        format!("session {run_id} has no folder in {}: it was removed or set aside", spool.display());
    Err(Failure::Trouble(problem))
}

/// Writes the session's own files with their modes and times, under a folder of its name.
fn archive(dir: &SessionDir, status: &SessionStatus, to: &mut impl Write) -> Result<(), Failure> {
    let mut archive = tar::Builder::new(to);
    let root = PathBuf::from(dir.run_id().to_string());
    for name in dir.file_names().map_err(unreadable)? {
        let Some(file) = dir.open_file(&name).map_err(unreadable)? else { continue };
        let found = file.metadata().map_err(|error| Failure::io(name.clone(), error))?;
        let size = match name == journal::FILE {
            true => found.len().min(durable(status)),
            false => found.len(),
        };
        add(&mut archive, &root.join(&name), file, &found, size)?;
    }
    archive.finish().map_err(unwritable)
}

/// How much of the journal counts: all of it after the end, and before that what is durable.
fn durable(status: &SessionStatus) -> u64 {
    if status.end().is_some() {
        return u64::MAX;
    }
    status.text("head").parse::<journal::Cursor>().map_or(0, |head| head.offset)
}

fn add(
    archive: &mut tar::Builder<impl Write>,
    path: &Path,
    file: File,
    found: &std::fs::Metadata,
    size: u64,
) -> Result<(), Failure> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(found.mode() & 0o7777);
    header.set_uid(found.uid().into());
    header.set_gid(found.gid().into());
    header.set_mtime(u64::try_from(found.mtime()).unwrap_or(0));
    let mut exactly = Exactly { file, left: size };
    archive.append_data(&mut header, path, &mut exactly).map_err(unwritable)
}

/// Reads so many bytes of a file, and fails if there are fewer: an archive says before each file how long it is.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if room == 0 {
            return Ok(0);
        }
        let read = self.file.read(&mut buffer[..room])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file of the session became shorter"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}
