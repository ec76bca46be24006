//! What applications told a session: `inbox.jsonl`, one sealed line an entry.
//!
//! The daemon alone appends, and acknowledges an entry only once it is durable ([`Inbox`]). The executor reads on
//! behind it ([`InboxReader`]). Both count every line that has its line feed, so that the how-manieth entry means the same
//! to both; one that does not verify counts and says nothing. A line that was cut off by a crash was never acknowledged:
//! it is cut away before the next one is written, and the reader has not taken it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use sha2::{Digest, Sha256};

use super::error::SpoolError;
use super::faults::{self, Op};
use super::private::{Dir, cut_file, sync_data, write_at};
use super::sealed::{seal, unseal};
use crate::model::{InboxEntry, Word};

pub(crate) const INBOX: &str = "inbox.jsonl";
/// What the reading end calls it where a test makes the disk fail, so that it is told from the writing end.
const READING: &str = "inbox.reading";

/// What an entry is, without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// What it is known by.
    pub name: Named,
    digest: [u8; 32],
}

/// What an entry of the inbox is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// A message: its `request_id`.
    Message(String),
    /// An answer: its question's id.
    Answer(String),
}

impl Slot {
    fn of(word: &Word) -> Slot {
        Slot { name: Named::of(word), digest: digest(word) }
    }

    /// Whether it is exactly this.
    pub fn says(&self, word: &Word) -> bool {
        self.digest == digest(word)
    }
}

impl Named {
    /// What this is known by.
    pub fn of(word: &Word) -> Named {
        match word {
            Word::Message(message) => Named::Message(message.request_id.clone()),
            Word::Answer { question, .. } => Named::Answer(question.clone()),
        }
    }
}

fn digest(word: &Word) -> [u8; 32] {
    // Writing these types into memory cannot fail: their keys are strings.
    Sha256::digest(serde_json::to_vec(word).unwrap_or_default()).into()
}

/// The writing end. One at a time, in the daemon.
#[derive(Debug)]
pub struct Inbox {
    dir: Dir,
    file: Option<File>,
    slots: Vec<Option<Slot>>,
    /// Up to here stand whole lines.
    size: u64,
    /// Something stands after them that no crash left behind whole.
    torn: bool,
    /// A write or sync failed: no more in this process.
    failed: bool,
}

impl Inbox {
    /// Reads what there is. `fresh`: nobody has read in it yet, so that a last line that does not verify is one that was
    /// never acknowledged, even with its line feed.
    pub(crate) fn open(dir: &Dir, fresh: bool) -> Result<Inbox, SpoolError> {
        let mut inbox =
            Inbox { dir: dir.clone(), file: None, slots: Vec::new(), size: 0, torn: false, failed: false };
        if let Some(file) = dir.open_read(INBOX)? {
            inbox.load(file, fresh).map_err(|e| SpoolError::io("read", dir.path().join(INBOX), e))?;
        }
        Ok(inbox)
    }

    fn load(&mut self, file: File, fresh: bool) -> io::Result<()> {
        // What an earlier daemon wrote it may not have lived to make durable, and from here on it is acknowledged.
        sync_data(&file, INBOX)?;
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        let mut last = 0;
        while reader.read_until(b'\n', &mut line)? > 0 {
            if line.last() != Some(&b'\n') {
                self.torn = true;
                break;
            }
            self.slots.push(unseal(&line).map(|entry: InboxEntry| Slot::of(&entry.word)));
            last = line.len() as u64;
            self.size += last;
            line.clear();
        }
        if fresh && !self.torn && self.slots.last() == Some(&None) {
            self.slots.pop();
            self.size -= last;
            self.torn = true;
        }
        Ok(())
    }

    /// How many entries there are, with those that do not verify.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The entries in their order; `None`: one that does not verify.
    pub fn slots(&self) -> &[Option<Slot>] {
        &self.slots
    }

    /// The entry of that name, and the how-manieth it is, from 0.
    pub fn find(&self, name: &Named) -> Option<(usize, &Slot)> {
        let found = |(at, slot): (usize, &'_ Option<Slot>)| {
            slot.as_ref().is_some_and(|s| s.name == *name).then_some(at)
        };
        let at = self.slots.iter().enumerate().find_map(found)?;
        Some((at, self.slots[at].as_ref()?))
    }

    /// How many messages there are; one that does not verify counts as one.
    pub fn messages(&self) -> usize {
        let is_message =
            |slot: &&Option<Slot>| slot.as_ref().is_none_or(|slot| matches!(slot.name, Named::Message(_)));
        self.slots.iter().filter(is_message).count()
    }

    /// Adds an entry, durably.
    ///
    /// # Errors
    /// [`SpoolError::Damaged`] where an earlier line does not verify: it may have been this very entry.
    pub fn append(&mut self, entry: &InboxEntry) -> Result<(), SpoolError> {
        let path = self.dir.path().join(INBOX);
        if self.slots.contains(&None) {
            return Err(SpoolError::damaged(path, "a line of it does not verify; it takes nothing more"));
        }
        if self.failed {
            return Err(SpoolError::Unsynced { path });
        }
        let line = seal(entry).map_err(|e| SpoolError::malformed(&path, &e))?;
        let size = self.size;
        let torn = self.torn;
        let file = self.open_write()?;
        if torn {
            cut_file(file, size, INBOX).map_err(|e| SpoolError::io("cut the torn end of", &path, e))?;
        }
        let written = write_at(file, &line, size, INBOX);
        if let Err(e) = written {
            // What stands there was never acknowledged. If it cannot be cut off, it must not be built upon.
            let cut = cut_file(file, size, INBOX);
            self.failed = cut.is_err();
            return Err(SpoolError::io("append to", &path, e));
        }
        let synced = sync_data(file, INBOX);
        self.torn = false;
        self.failed = synced.is_err();
        synced.map_err(|e| SpoolError::io("sync", &path, e))?;
        self.slots.push(Some(Slot::of(&entry.word)));
        self.size += line.len() as u64;
        Ok(())
    }

    fn open_write(&mut self) -> Result<&File, SpoolError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => match self.dir.open_write(INBOX)? {
                Some(file) => file,
                None => {
                    let file = self.dir.create(INBOX)?;
                    self.dir.sync()?;
                    file
                }
            },
        };
        Ok(self.file.insert(file))
    }
}

/// The reading end, in the executor.
#[derive(Debug)]
pub struct InboxReader {
    dir: Dir,
    file: Option<File>,
    offset: u64,
    /// The end of the last line that was read: it must still stand there.
    last: Vec<u8>,
    /// A sync failed: what is read from now on may not be durable, whatever a later one says.
    failed: bool,
}

/// So much of a line tells it from others: its checksum.
const MARK: usize = 20;

impl InboxReader {
    pub(crate) fn new(dir: &Dir) -> InboxReader {
        InboxReader { dir: dir.clone(), file: None, offset: 0, last: Vec::new(), failed: false }
    }

    /// The entries that were not read yet, made durable by this call; `None`: one that does not verify. A line that is
    /// being written is left for the next time.
    ///
    /// # Errors
    /// It cannot be read or made durable, or what was read before does not stand in it any more.
    pub fn read_on(&mut self) -> Result<Vec<Option<InboxEntry>>, SpoolError> {
        let path = self.dir.path().join(INBOX);
        if self.failed {
            return Err(SpoolError::Unsynced { path });
        }
        if self.file.is_none() {
            self.file = self.dir.open_read(INBOX)?;
        }
        let Some(file) = &mut self.file else { return Ok(Vec::new()) };
        let mut bytes = Vec::new();
        let from = self.offset - self.last.len() as u64;
        faults::check(Op::Read, READING)
            .and_then(|()| file.seek(SeekFrom::Start(from)))
            .and_then(|_| file.read_to_end(&mut bytes))
            .map_err(|e| SpoolError::io("read", &path, e))?;
        let Some(bytes) = bytes.strip_prefix(&self.last[..]) else {
            return Err(SpoolError::damaged(
                path,
                "what was read in it before does not stand there any more",
            ));
        };
        if !bytes.is_empty() {
            // Nothing is passed on that a power loss could still take back.
            let synced = sync_data(file, READING);
            self.failed = synced.is_err();
            synced.map_err(|e| SpoolError::io("sync", &path, e))?;
        }
        let mut entries = Vec::new();
        let mut rest = bytes;
        let mut last = None;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            let entry = unseal(line);
            if entry.is_none() && after.is_empty() {
                // The daemon may still cut it off.
                break;
            }
            entries.push(entry);
            self.offset += line.len() as u64;
            last = Some(line);
            rest = after;
        }
        if let Some(line) = last {
            self.last = line[line.len().saturating_sub(MARK)..].to_vec();
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    use std::path::PathBuf;

    use super::*;
    use crate::model::{Answer, Message, MessageMode};

    struct Folder {
        scratch: tempfile::TempDir,
        dir: Dir,
    }

    fn folder() -> Folder {
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        Folder { scratch, dir }
    }

    impl Folder {
        fn file(&self) -> PathBuf {
            self.scratch.path().join(INBOX)
        }

        fn write(&self, bytes: &[u8]) {
            let mut options = fs::File::options();
            let file = options.create(true).truncate(true).write(true).mode(0o600).open(self.file()).unwrap();
            write_at(&file, bytes, 0, INBOX).unwrap();
        }
    }

    fn message(id: &str, text: &str) -> InboxEntry {
        let word = Word::Message(Message {
            request_id: id.to_owned(),
            mode: MessageMode::Steer,
            text: text.to_owned(),
        });
        InboxEntry { time: 7, word }
    }

    fn answer(question: &str, choice: &str) -> InboxEntry {
        let answer = Answer { choice: Some(choice.to_owned()), text: None };
        InboxEntry { time: 8, word: Word::Answer { question: question.to_owned(), answer } }
    }

    #[test]
    fn what_was_appended_is_found_by_name_and_read_once() {
        let folder = folder();
        let mut reader = InboxReader::new(&folder.dir);
        assert_eq!(reader.read_on().unwrap(), vec![]);
        let mut inbox = Inbox::open(&folder.dir, true).unwrap();
        assert!(inbox.is_empty() && !folder.file().exists(), "made at its first use");
        let (first, second) = (message("a", "one\ntwo"), answer("q1", "yes"));
        inbox.append(&first).unwrap();
        assert_eq!(reader.read_on().unwrap(), vec![Some(first.clone())]);
        inbox.append(&second).unwrap();
        assert_eq!(reader.read_on().unwrap(), vec![Some(second.clone())]);
        assert_eq!(reader.read_on().unwrap(), vec![]);
        for inbox in [&inbox, &Inbox::open(&folder.dir, false).unwrap()] {
            assert_eq!((inbox.len(), inbox.messages()), (2, 1));
            let (at, slot) = inbox.find(&Named::Answer("q1".into())).expect("there");
            assert_eq!(at, 1);
            assert!(slot.says(&second.word) && !slot.says(&answer("q1", "no").word));
            assert!(inbox.find(&Named::Message("q1".into())).is_none());
        }
        assert_eq!(fs::metadata(folder.file()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_line_torn_at_any_byte_was_never_said() {
        let folder = folder();
        let (first, second, third) = (message("a", "x"), message("b", "y"), message("c", "z"));
        let (whole, torn) = (seal(&first).unwrap(), seal(&second).unwrap());
        for length in 0..torn.len() {
            folder.write(&[&whole[..], &torn[..length]].concat());
            let mut reader = InboxReader::new(&folder.dir);
            assert_eq!(reader.read_on().unwrap(), vec![Some(first.clone())], "at {length}");
            let mut inbox = Inbox::open(&folder.dir, false).unwrap();
            assert_eq!(inbox.len(), 1, "at {length}");
            inbox.append(&third).unwrap();
            assert_eq!(reader.read_on().unwrap(), vec![Some(third.clone())], "at {length}");
            assert_eq!(Inbox::open(&folder.dir, false).unwrap().len(), 2);
        }
    }

    #[test]
    fn a_last_line_of_zeros_is_cut_off_before_anybody_read_in_it() {
        let folder = folder();
        let mut bad = seal(&message("b", "y")).unwrap();
        bad[..9].fill(0);
        folder.write(&[&seal(&message("a", "x")).unwrap()[..], &bad].concat());
        let mut reader = InboxReader::new(&folder.dir);
        assert_eq!(reader.read_on().unwrap().len(), 1);
        let mut inbox = Inbox::open(&folder.dir, true).unwrap();
        inbox.append(&message("c", "z")).unwrap();
        assert_eq!(reader.read_on().unwrap(), vec![Some(message("c", "z"))]);
        // Where somebody may have read it as it was, nothing is cut off.
        folder.write(&[&seal(&message("a", "x")).unwrap()[..], &bad].concat());
        let mut inbox = Inbox::open(&folder.dir, false).unwrap();
        assert!(matches!(inbox.append(&message("c", "z")), Err(SpoolError::Damaged { .. })));
    }

    #[test]
    fn damage_in_the_middle_keeps_the_rest_readable_and_takes_nothing_more() {
        let folder = folder();
        let entries = [message("a", "secret"), message("b", "y"), answer("q1", "yes")];
        let mut lines: Vec<Vec<u8>> = entries.iter().map(|entry| seal(entry).unwrap()).collect();
        lines[1][12] ^= 1;
        folder.write(&lines.concat());
        let mut inbox = Inbox::open(&folder.dir, true).unwrap();
        assert_eq!((inbox.len(), inbox.messages()), (3, 2));
        assert_eq!(inbox.find(&Named::Answer("q1".into())).map(|found| found.0), Some(2));
        let error = inbox.append(&message("d", "z")).unwrap_err();
        assert!(matches!(error, SpoolError::Damaged { .. }) && !error.to_string().contains("secret"));
        let read = InboxReader::new(&folder.dir).read_on().unwrap();
        assert_eq!(read, vec![Some(entries[0].clone()), None, Some(entries[2].clone())]);
    }
}
