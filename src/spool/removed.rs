use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::error::SpoolError;
use super::private::{Dir, cut_file, sync_data, write_at};
use super::record::Tombstone;
use super::sealed::{seal, unseal};
use crate::model::RunId;

const FILE: &str = "removed.log";
/// See [`may_name`].
const WRONG: usize = 6;

/// The tombstones of removed sessions: `removed.log`, and where in it each one stands.
///
/// The index is built when it is first needed, so that it costs nothing at start, and then kept.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    index: Option<Index>,
}

#[derive(Debug)]
struct Index {
    file: File,
    size: u64,
    /// The last line has its line feed.
    ended: bool,
    /// Offset and length of each session's last line.
    lines: HashMap<RunId, (u64, u32)>,
    /// Lines that are not what was written: they may name any session.
    damaged: Vec<Vec<u8>>,
    /// A write or sync failed: no more in this process.
    failed: bool,
}

impl Removed {
    /// The tombstone of a session. A damaged line that bears its name is damage, not absence: the session may have run.
    pub(crate) fn find(&mut self, dir: &Dir, run_id: RunId) -> Result<Option<Tombstone>, SpoolError> {
        let path = dir.path().join(FILE);
        if self.index.is_none() && !dir.has(FILE)? {
            return Ok(None);
        }
        let index = self.index(dir)?;
        if let Some(&(offset, length)) = index.lines.get(&run_id) {
            let mut line = vec![0; length as usize];
            index.file.read_exact_at(&mut line, offset).map_err(|e| SpoolError::io("read", &path, e))?;
            return match unseal(&line) {
                Some(tombstone) => Ok(Some(tombstone)),
                None => Err(SpoolError::damaged(path, format!("the line of session {run_id} changed"))),
            };
        }
        let name = run_id.to_string();
        match index.damaged.iter().any(|line| may_name(line, name.as_bytes())) {
            true => Err(SpoolError::damaged(path, format!("the line of session {run_id} does not verify"))),
            false => Ok(None),
        }
    }

    /// Adds a tombstone, durably.
    pub(crate) fn add(&mut self, dir: &Dir, tombstone: &Tombstone) -> Result<(), SpoolError> {
        let path = dir.path().join(FILE);
        let line = seal(tombstone).map_err(|e| SpoolError::malformed(&path, &e))?;
        self.index(dir)?.append(tombstone.run_id, &line, &path)
    }

    fn index(&mut self, dir: &Dir) -> Result<&mut Index, SpoolError> {
        let index = match self.index.take() {
            Some(index) => index,
            None => Index::build(dir)?,
        };
        Ok(self.index.insert(index))
    }
}

/// Whether a damaged line may be that of a session: it bears its name, also one with up to [`WRONG`] bytes wrong,
/// since the damage can be in the name itself. Two random names are never that close.
fn may_name(line: &[u8], name: &[u8]) -> bool {
    line.windows(name.len()).any(|part| part.iter().zip(name).filter(|(a, b)| a != b).count() <= WRONG)
}

impl Index {
    fn build(dir: &Dir) -> Result<Index, SpoolError> {
        let file = match dir.open_write(FILE)? {
            Some(file) => file,
            None => {
                let file = dir.create(FILE)?;
                dir.sync()?;
                file
            }
        };
        let mut index =
            Index { file, size: 0, ended: true, lines: HashMap::new(), damaged: Vec::new(), failed: false };
        index.load().map_err(|e| SpoolError::io("read", dir.path().join(FILE), e))?;
        Ok(index)
    }

    fn load(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(self.file.try_clone()?);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            self.ended = line.ends_with(b"\n");
            match unseal::<Tombstone>(&line) {
                Some(tombstone) => {
                    self.lines.insert(tombstone.run_id, (self.size, line.len() as u32));
                }
                None => self.damaged.push(line.clone()),
            }
            self.size += line.len() as u64;
            line.clear();
        }
        Ok(())
    }

    fn append(&mut self, run_id: RunId, line: &[u8], path: &Path) -> Result<(), SpoolError> {
        if self.failed {
            return Err(SpoolError::Unsynced { path: path.to_owned() });
        }
        // What a crash left in the middle of a line must not swallow this one.
        let separator: &[u8] = if self.ended { b"" } else { b"\n" };
        let bytes = [separator, line].concat();
        if let Err(e) = write_at(&self.file, &bytes, self.size, FILE) {
            // What was cut off here was never acknowledged. If it cannot be cut off, it must not be built upon.
            self.failed = cut_file(&self.file, self.size, FILE).is_err();
            return Err(SpoolError::io("append to", path, e));
        }
        self.failed = true;
        sync_data(&self.file, FILE).map_err(|e| SpoolError::io("sync", path, e))?;
        self.failed = false;
        self.lines.insert(run_id, (self.size + separator.len() as u64, line.len() as u32));
        self.size += bytes.len() as u64;
        self.ended = true;
        Ok(())
    }
}
