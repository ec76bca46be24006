//! The journal against everything that can happen to its bytes.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::{Entry, Event, Part, Plan, RunId, VerdictResult};
use crate::spool::{CLAIM_VERSION, Claim, Ownership, SessionDir};

const EPOCH: &str = "0123456789abcdef";
const ALL: (usize, u64) = (usize::MAX, u64::MAX);
const ONE: (usize, u64) = (1, u64::MAX);

/// A session's folder with an owner's lock and, where it says so, a claim.
struct Bench {
    _folder: tempfile::TempDir,
    session: SessionDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(RunId::random().to_string());
        private_dir(&path);
        let session = SessionDir::open(&path).expect("the session");
        private_file(&path.join("owner.lock"), b"");
        Bench { _folder: folder, session }
    }

    fn claimed() -> Bench {
        let bench = Bench::new();
        let plan = Plan::sample();
        let claim = Claim {
            version: CLAIM_VERSION,
            run_id: bench.session.run_id(),
            attempt: 1,
            epoch: EPOCH.into(),
            boot_id: "boot".into(),
            time: 1,
            digest: "digest".into(),
            plan,
        };
        bench.session.write_claim(&claim).expect("a claim");
        bench
    }

    fn path(&self) -> PathBuf {
        self.session.path().join(FILE)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).expect("the journal")
    }

    fn put(&self, bytes: &[u8]) {
        let _ = fs::remove_file(self.path());
        private_file(&self.path(), bytes);
    }

    fn reader(&self) -> JournalReader {
        self.session.journal().expect("a journal").expect("there is one")
    }

    fn repair(&self) -> Repaired {
        let Ok(Ownership::Taken(lock)) = self.session.lock_owner() else { panic!("the lock is free") };
        self.session.repair_journal(&lock).expect("repaired").expect("there is a journal")
    }

    /// Everything up to `head`, page by page.
    fn read(&self, head: u64, (records, bytes): (usize, u64)) -> Vec<Entry> {
        let reader = self.reader();
        let mut entries = Vec::new();
        let mut at = reader.start();
        loop {
            let chunk = reader.read(at, head, records, bytes).expect("a chunk");
            assert!(chunk.next > at || chunk.entries.is_empty(), "reading goes on");
            assert!(chunk.entries.len() <= records);
            entries.extend(chunk.entries);
            at = chunk.next;
            if let Some(last) = entries.last() {
                assert_eq!(last.cursor, reader.cursor(at));
            }
            if !chunk.more {
                assert!(at >= head, "everything is told: {at} of {head}");
                return entries;
            }
        }
    }
}

fn private_dir(path: &std::path::Path) {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(path).expect("a folder");
}

fn private_file(path: &std::path::Path, bytes: &[u8]) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).expect("a new file");
    file.write_all(bytes).expect("written");
}

fn preview(text: &str) -> Event {
    Event::Preview { text: text.into(), part: Part::Text, message: None, sub: None }
}

/// A journal of `count` records with and without source lines; gives the bytes and the right entries.
fn written(bench: &Bench, count: u64) -> (Vec<u8>, Vec<Entry>) {
    let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
    for number in 0..count {
        let raw = format!("{{\"n\":{number}}}");
        let raw = (number % 2 == 0).then_some(raw.as_bytes());
        appender
            .append(&encoder.encode(1000 + number, &preview(&number.to_string()), raw))
            .expect("appended");
    }
    let head = appender.commit().expect("committed");
    let entries = bench.read(head, ALL);
    assert_eq!(entries.len() as u64, count);
    (bench.bytes(), entries)
}

fn is_gap(entry: &Entry) -> bool {
    entry.seq == 0 && entry.kind == "notice" && entry.details["reason"] == "damaged"
}

/// Holds what was read against what was written: no wrong record, none out of order, every hole told where it is.
fn check(read: &[Entry], right: &[Entry], same_cursors: bool) -> usize {
    let mut seq = 0;
    let mut gap: Option<&Entry> = None;
    for entry in read {
        if is_gap(entry) {
            assert!(gap.replace(entry).is_none(), "one gap for one stretch");
            continue;
        }
        let mut original = right[entry.seq as usize - 1].clone();
        if !same_cursors {
            original.cursor.clone_from(&entry.cursor);
        }
        assert_eq!(*entry, original, "a record is what was written");
        assert!(entry.seq > seq, "in order");
        match gap.take() {
            Some(gap) => assert_eq!(gap.details["records"], json!(entry.seq - seq - 1)),
            None => assert_eq!(entry.seq, seq + 1, "no hole without a gap"),
        }
        seq = entry.seq;
    }
    let told = read.iter().any(is_gap);
    assert!(seq == right.len() as u64 || told, "missing records are told");
    read.iter().filter(|entry| !is_gap(entry)).count()
}

/// All records and a way to damage them, read in every way that must come to the same.
fn read_damaged(bench: &Bench, damaged: &[u8], head: u64, right: &[Entry], same_cursors: bool) -> usize {
    bench.put(damaged);
    let at_once = bench.read(head, ALL);
    assert_eq!(bench.read(head, ONE), at_once, "the size of pages changes nothing");
    check(&at_once, right, same_cursors)
}

#[test]
fn records_come_back_as_they_were_written() {
    let bench = Bench::new();
    let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
    let more = json!({"attempt": 2, "time": 7, "seq": 9, "kind": "x"});
    let events = [
        (preview("a\n\u{2028}\u{0}\"\\ü"), Some(b"plain \xc2\x85 \x00".as_slice())),
        (Event::Raw {}, Some(b"not utf-8 \xff\xfe".as_slice())),
        (
            Event::Verdict { result: VerdictResult::Success, rule: "r".into(), message: None },
            Some(b"".as_slice()),
        ),
        (
            Event::Notice {
                reason: "retry".into(),
                text: "t".into(),
                more: more.as_object().cloned().unwrap_or_default(),
            },
            None,
        ),
    ];
    for (time, (event, raw)) in events.iter().enumerate() {
        appender.append(&encoder.encode(time as u64, event, *raw)).expect("appended");
    }
    assert_eq!(encoder.seq(), 4);
    assert_eq!(appender.head(), bench.reader().start(), "nothing is durable yet");
    let head = appender.commit().expect("committed");
    assert_eq!((head, appender.head(), appender.offset()), (bench.bytes().len() as u64, head, head));

    let entries = bench.read(head, ALL);
    assert_eq!(entries.iter().map(|e| (e.seq, e.time)).collect::<Vec<_>>(), [(1, 0), (2, 1), (3, 2), (4, 3)]);
    assert_eq!(entries[0].kind, "preview");
    assert_eq!(entries[0].details["text"], "a\n\u{2028}\u{0}\"\\ü");
    assert_eq!(entries[0].raw.as_deref(), Some("plain \u{85} \u{0}"));
    assert_eq!((entries[1].raw.as_deref(), entries[1].raw64.as_deref()), (None, Some("bm90IHV0Zi04IP/+")));
    assert_eq!(entries[2].raw.as_deref(), Some(""));
    assert_eq!(entries[3].raw, None);
    assert_eq!(entries[3].kind, "notice", "an event cannot give itself another kind");
    assert_eq!(entries[3].details["attempt"], 2);
    assert_eq!(entries[3].cursor, format!("{EPOCH}-{head}"));
}

#[test]
fn the_form_on_disk_is_what_the_documentation_says() {
    let bench = Bench::new();
    let (bytes, _) = written(&bench, 1);
    let text = String::from_utf8(bytes).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let header: Value = serde_json::from_str(lines[0]).expect("json");
    assert_eq!((&header["journal"], &header["epoch"]), (&json!(1), &json!(EPOCH)));
    assert_eq!(header["run_id"], json!(bench.session.run_id()));
    let (body, tail) = lines[1].split_at(lines[1].len() - (super::chain::TAIL - 1));
    assert!(body.starts_with(r#"{"seq":1,"time":1000,"kind":"preview","text":"0","#), "{body}");
    assert!(body.ends_with(r#","raw":"{\"n\":0}""#), "{body}");
    let sum = crate::spool::record::hex(
        &<sha2::Sha256 as sha2::Digest>::digest(format!("{}{body}", header["sum"].as_str().expect("a sum")))
            [..16],
    );
    assert_eq!(tail, format!(r#","sum":"{sum}"}}"#));
}

#[test]
fn json_that_is_too_deep_for_readers_is_kept_as_text() {
    let bench = Bench::new();
    let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
    let deep = (0..127).fold(json!(1), |inner, _| json!([inner]));
    let event = Event::ToolStarted { tool: "1".into(), name: "t".into(), input: deep.clone(), sub: None };
    appender.append(&encoder.encode(1, &event, None)).expect("appended");
    let entries = bench.read(appender.commit().expect("committed"), ALL);
    assert_eq!(entries[0].details["input"], json!(deep.to_string()));
}

#[test]
fn pages_hold_what_was_asked_for() {
    let bench = Bench::new();
    let (bytes, right) = written(&bench, 20);
    let (reader, head) = (bench.reader(), bytes.len() as u64);
    let page = reader.read(reader.start(), head, 7, u64::MAX).expect("a page");
    assert_eq!((&page.entries[..], page.more), (&right[..7], true));
    let page = reader.read(page.next, head, 100, 1).expect("a page");
    assert_eq!((&page.entries[..], page.more), (&right[7..8], true), "one record, however small the page");
    let page = reader.read(page.next, head, 100, 1000).expect("a page");
    let size = page.next - reader.resolve(&right[7].cursor, head).expect("a cursor");
    assert!(size <= 1000 && page.entries.len() > 1, "{size}");
    let page = reader.read(reader.start(), page.next, 100, u64::MAX).expect("a page");
    assert!(!page.more, "nothing beyond the head given");
    let page = reader.read(head, head, 100, u64::MAX).expect("a page");
    assert_eq!((page.entries.len(), page.next, page.more), (0, head, false));
}

#[test]
fn long_lines_are_read_whole() {
    let bench = Bench::new();
    let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
    let long = "x\u{1}".repeat(150_000);
    for text in [long.as_str(), "short", long.as_str()] {
        appender.append(&encoder.encode(1, &preview(text), Some(text.as_bytes()))).expect("appended");
    }
    let head = appender.commit().expect("committed");
    for pages in [ALL, ONE] {
        let entries = bench.read(head, pages);
        let texts: Vec<&str> = entries.iter().filter_map(|e| e.raw.as_deref()).collect();
        assert!(texts == [long.as_str(), "short", long.as_str()]);
    }
}

#[test]
fn the_tail_is_the_last_record_that_verifies_wherever_it_was_torn() {
    let bench = Bench::claimed();
    let (bytes, right) = written(&bench, 4);
    let ends: Vec<usize> = (1..=bytes.len()).filter(|&at| bytes[at - 1] == b'\n').collect();
    for length in 0..=bytes.len() {
        bench.put(&bytes[..length]);
        let whole = ends.iter().filter(|&&end| end <= length).count();
        let tail = bench.reader().tail().expect("a tail");
        assert_eq!(tail.last.as_ref(), right.get(whole.wrapping_sub(2)), "{length}");
        assert_eq!(tail.torn as usize, length - whole.checked_sub(1).map_or(0, |at| ends[at]), "{length}");
    }
    for at in ends[3]..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        bench.put(&flipped);
        let tail = bench.reader().tail().expect("a tail");
        assert_eq!((tail.last.as_ref(), tail.torn as usize), (right.get(2), bytes.len() - ends[3]), "{at}");
    }
}

#[test]
fn the_tail_of_a_long_journal_is_found_behind_a_long_stretch() {
    let bench = Bench::new();
    let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
    for _ in 0..3 {
        let long = "x".repeat(1 << 20);
        appender.append(&encoder.encode(1, &preview("long"), Some(long.as_bytes()))).expect("appended");
    }
    let head = appender.commit().expect("committed");
    for torn in [0, 2 << 20] {
        bench.put(&[bench.bytes(), vec![0; torn]].concat());
        let tail = bench.reader().tail().expect("a tail");
        let last = tail.last.expect("a record");
        assert_eq!((last.seq, last.cursor, tail.torn), (3, bench.reader().cursor(head), torn as u64));
    }
}

#[test]
fn cursors_have_five_errors() {
    let bench = Bench::new();
    let (bytes, right) = written(&bench, 3);
    let (reader, head) = (bench.reader(), bytes.len() as u64);
    let start = reader.start();
    let durable = reader.resolve(&right[1].cursor, head).expect("a cursor");
    for (cursor, head, answer) in [
        ("start".to_owned(), head, Ok(start)),
        ("end".to_owned(), head, Ok(head)),
        ("end".to_owned(), durable, Ok(durable)),
        (reader.cursor(start), head, Ok(start)),
        (reader.cursor(head), head, Ok(head)),
        (right[0].cursor.clone(), head, Ok(start + (durable - start) / 2 + 7)),
        ("START".to_owned(), head, Err(CursorError::Malformed)),
        (String::new(), head, Err(CursorError::Malformed)),
        (format!("fedcba9876543210-{start}"), head, Err(CursorError::OtherJournal)),
        (reader.cursor(head + 1), head, Err(CursorError::BeyondHead)),
        (reader.cursor(head), durable, Err(CursorError::BeyondHead)),
        (reader.cursor(u64::MAX), head, Err(CursorError::BeyondHead)),
        (reader.cursor(durable + 1), head, Err(CursorError::InsideRecord)),
        (reader.cursor(durable - 1), head, Err(CursorError::InsideRecord)),
        (reader.cursor(start - 1), head, Err(CursorError::InsideRecord)),
        (reader.cursor(0), head, Err(CursorError::InsideRecord)),
    ] {
        let resolved = reader.resolve(&cursor, head);
        match (&answer, cursor == right[0].cursor) {
            (Ok(_), true) => assert!(resolved.is_ok_and(|at| start < at && at < durable)),
            _ => assert_eq!(resolved, answer, "{cursor} with head {head}"),
        }
    }
    // Every place but the ends of lines is refused.
    let ends: Vec<u64> = (start..=head).filter(|at| bytes[*at as usize - 1] == b'\n').collect();
    let taken: Vec<u64> = (0..=head).filter(|at| reader.resolve(&reader.cursor(*at), head).is_ok()).collect();
    assert_eq!(taken, ends);
}

#[test]
fn a_cut_at_every_byte_is_repaired_and_said() {
    let bench = Bench::claimed();
    let (bytes, right) = written(&bench, 3);
    let ends: Vec<usize> = (1..=bytes.len()).filter(|&end| bytes[end - 1] == b'\n').collect();
    for length in 0..bytes.len() {
        let torn = format!("{TORN_FILE}1");
        let _ = fs::remove_file(bench.session.path().join(&torn));
        bench.put(&bytes[..length]);
        let mut repaired = bench.repair();
        let whole = ends.iter().rposition(|&end| end <= length).map_or(0, |at| ends[at]);
        let records = ends.iter().filter(|&&end| end <= length).count().saturating_sub(1);
        let clean = length == whole && length > 0;
        assert_eq!(repaired.cut, (!clean).then_some((length - whole) as u64), "length {length}");
        assert_eq!((repaired.last_seq, repaired.epoch.as_str()), (records as u64, EPOCH));
        assert_eq!(repaired.last.as_ref(), right[..records].last());
        assert_eq!(repaired.damaged, []);

        let line = repaired.encoder.encode(5, &preview("goes on"), None);
        repaired.appender.append(&line).expect("appended");
        let head = repaired.appender.commit().expect("committed");
        drop(repaired);
        let read = bench.read(head, ALL);
        assert_eq!(read[..records], right[..records], "length {length}");
        let (notice, last) = (&read[records], read.last().expect("a record"));
        assert_eq!(last.details["text"], "goes on");
        assert_eq!(read.len(), records + if clean { 1 } else { 2 });
        if !clean {
            assert_eq!((notice.kind.as_str(), &notice.details["reason"]), ("notice", &json!("repaired")));
            assert_eq!(notice.details["bytes"], json!(length - whole));
            assert_eq!(notice.details["file"], json!(torn));
            let kept = fs::read(bench.session.path().join(&torn)).expect("what was cut off");
            assert_eq!(kept, bytes[whole..length]);
        }
        let again = bench.repair();
        assert_eq!((again.cut, again.appender.head()), (None, head), "a second repair finds nothing");
    }
}

const TORN_FILE: &str = "journal.torn-";

#[test]
fn a_repair_that_crashed_is_finished_by_the_next() {
    let bench = Bench::claimed();
    let (bytes, right) = written(&bench, 3);
    let torn = |number: u32| bench.session.path().join(format!("{TORN_FILE}{number}"));
    let cut = bytes.len() - 10;
    let whole = bytes[..cut].iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);

    // After the tail was kept, before it was cut off.
    bench.put(&bytes[..cut]);
    private_file(&torn(1), &bytes[whole..cut]);
    assert_eq!(bench.repair().cut, Some((cut - whole) as u64));
    assert!(!torn(2).exists(), "it is not kept twice");

    // After it was cut off, before that was said.
    fs::remove_file(torn(1)).expect("removed");
    private_file(&torn(1), &bytes[whole..cut]);
    bench.put(&bytes[..whole]);
    let repaired = bench.repair();
    assert_eq!(repaired.cut, None);
    let read = bench.read(repaired.appender.head(), ALL);
    assert_eq!((&read[..2], read.len()), (&right[..2], 3));
    assert_eq!(read[2].details["file"], format!("{TORN_FILE}1"));
    assert_eq!(read[2].details["bytes"], json!(cut - whole));

    // A second torn tail after that is another one, also if it is the same bytes.
    drop(repaired);
    let mut grown = bench.bytes();
    grown.extend_from_slice(&bytes[whole..cut]);
    bench.put(&grown);
    assert_eq!(bench.repair().cut, Some((cut - whole) as u64));
    assert!(torn(2).exists());
}

#[test]
fn every_flipped_bit_costs_two_records_at_most() {
    let bench = Bench::claimed();
    let (bytes, right) = written(&bench, 6);
    let head = bytes.len() as u64;
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let shown = read_damaged(&bench, &damaged, head, &right, true);
        assert!(shown + 2 >= right.len(), "bit {bit}: {shown} left");
        let gaps = bench.read(head, ALL).iter().filter(|entry| is_gap(entry)).count();
        assert_eq!(gaps, 1, "bit {bit}: the damage is told");
    }
}

/// The lines of a journal, the header first.
fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|&b| b == b'\n').map(<[u8]>::to_vec).collect()
}

#[test]
fn foreign_missing_doubled_and_swapped_lines_are_found_where_they_are() {
    let bench = Bench::claimed();
    let (bytes, right) = written(&bench, 8);
    let original = lines(&bytes);
    let shown = |lines: &[Vec<u8>]| {
        let bytes = lines.concat();
        read_damaged(&bench, &bytes, bytes.len() as u64, &right, false)
    };
    for at in 1..original.len() {
        for foreign in [b"hello\n".as_slice(), b"\n", b"{\"seq\":3,\"time\":1,\"kind\":\"raw\"}\n", &[0; 300]]
        {
            let mut lines = original.clone();
            lines.insert(at, foreign.to_vec());
            if foreign.ends_with(b"\n") {
                assert_eq!(shown(&lines), 8, "a foreign line costs none of ours");
            } else {
                assert!(shown(&lines) >= 6, "what swallows a line's beginning costs that line");
            }
        }
        let other = Bench::claimed();
        let (theirs, _) = written(&other, 8);
        let mut mixed = original.clone();
        mixed[at] = self::lines(&theirs)[at].clone();
        assert!(shown(&mixed) >= 6, "a record of another journal is none of this one");
        let mut doubled = original.clone();
        doubled.insert(at, original[at].clone());
        assert_eq!(shown(&doubled), 8, "a doubled line is shown once");
    }
    for at in 1..original.len() - 1 {
        let mut missing = original.clone();
        missing.remove(at);
        assert_eq!(shown(&missing), 6, "a missing line and the one that would follow it");
        let mut swapped = original.clone();
        swapped.swap(at, at + 1);
        let expected = if at + 2 < original.len() { 6 } else { 7 };
        assert_eq!(shown(&swapped), expected, "swapped at {at}");
    }
    // What verifies by the line before it and is still not shown must not be built upon, wherever a page begins.
    let order = [1, 2, 0, 1, 3, 4, 5, 6, 7, 8];
    assert_eq!(shown(&order.map(|at| original[at].clone())), 7);
    // A whole stretch that stands there a second time verifies among itself and is still not shown twice.
    let mut repeated = original.clone();
    repeated.splice(6..6, original[2..6].iter().cloned());
    assert_eq!(shown(&repeated), 8);
}

#[test]
fn a_journal_shorter_than_its_head_says_so() {
    let bench = Bench::claimed();
    let (bytes, right) = written(&bench, 3);
    let head = bytes.len() as u64;
    let second = bench.reader().resolve(&right[1].cursor, head).expect("a cursor") as usize;
    assert_eq!(read_damaged(&bench, &bytes[..second], head, &right, true), 2);
    let gap = bench.read(head, ALL).pop().expect("a gap");
    assert_eq!((&gap.details["bytes"], gap.details.get("records")), (&json!(head - second as u64), None));
}

#[test]
fn long_stretches_of_zeros_are_one_gap() {
    let bench = Bench::claimed();
    let (bytes, right) = written(&bench, 6);
    for size in [10, 100_000, 3 << 20] {
        let mut damaged = bytes.clone();
        let at = bench.reader().resolve(&right[2].cursor, bytes.len() as u64).expect("a cursor") as usize;
        damaged.splice(at..at + 5, vec![0; size]);
        assert_eq!(read_damaged(&bench, &damaged, damaged.len() as u64, &right, false), 5);
        bench.put(&bytes);
    }
}

#[test]
fn a_damaged_header_is_told_and_the_claim_knows_the_epoch() {
    let bench = Bench::claimed();
    let (bytes, right) = written(&bench, 2);
    let mut damaged = bytes.clone();
    let at = bytes.windows(16).position(|part| part == EPOCH.as_bytes()).expect("the epoch");
    damaged[at] = b'f';
    bench.put(&damaged);
    let reader = bench.reader();
    assert_eq!((reader.epoch(), reader.start()), (EPOCH, 0));
    let read = bench.read(bytes.len() as u64, ALL);
    assert!(is_gap(&read[0]) && read[0].details["records"] == 0);
    assert_eq!(read[1..], right);
    let repaired = bench.repair();
    assert_eq!((repaired.cut, repaired.epoch.as_str(), repaired.last_seq), (None, EPOCH, 2));
    assert_eq!(repaired.damaged[0].offset, 0);
    assert_eq!(bench.bytes(), damaged, "what is there is not rewritten");

    let unclaimed = Bench::new();
    unclaimed.put(&damaged);
    assert!(matches!(unclaimed.session.journal(), Err(JournalError::Damaged { .. })));
    let Ok(Ownership::Taken(lock)) = unclaimed.session.lock_owner() else { panic!("the lock is free") };
    assert!(matches!(unclaimed.session.repair_journal(&lock), Err(JournalError::Damaged { .. })));
}

#[test]
fn a_journal_of_another_session_is_refused() {
    let (bench, other) = (Bench::claimed(), Bench::claimed());
    let (bytes, _) = written(&other, 2);
    bench.put(&bytes);
    let error = bench.session.journal().expect_err("refused");
    assert!(error.to_string().contains(&other.session.run_id().to_string()), "{error}");
    assert!(error.is_damage());
}

#[test]
fn a_session_has_one_journal() {
    let bench = Bench::new();
    assert!(!bench.session.has_journal().expect("looked"));
    assert!(bench.session.journal().expect("none").is_none());
    assert!(matches!(bench.session.create_journal("nope"), Err(JournalError::BadEpoch(_))));
    let (bytes, _) = written(&bench, 1);
    assert!(bench.session.has_journal().expect("looked"));
    assert!(matches!(bench.session.create_journal(EPOCH), Err(JournalError::Exists(_))));
    assert_eq!(bench.bytes(), bytes);
    assert!(valid_epoch(&new_epoch()) && new_epoch() != new_epoch());
}

#[test]
fn repair_needs_the_lock_of_this_session() {
    let (bench, other) = (Bench::new(), Bench::new());
    written(&bench, 1);
    let Ok(Ownership::Taken(lock)) = other.session.lock_owner() else { panic!("the lock is free") };
    let error = bench.session.repair_journal(&lock).expect_err("refused");
    assert!(matches!(error, JournalError::Spool(crate::spool::SpoolError::ForeignLock(_))), "{error}");
}

#[test]
fn after_a_failed_write_nothing_more_is_taken() {
    let bench = Bench::new();
    let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
    let line = encoder.encode(1, &preview("kept"), None);
    appender.append(&line).expect("appended");
    let head = appender.commit().expect("committed");
    appender.replace_file(fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full"));
    let line = encoder.encode(2, &preview("lost"), None);
    let error = appender.append(&line).expect_err("the disk is full");
    assert!(error.is_no_space(), "{error}");
    // Also once there is room again.
    appender.replace_file(fs::OpenOptions::new().write(true).open(bench.path()).expect("the journal"));
    for error in [appender.append(&line).expect_err("refused"), appender.commit().expect_err("refused")] {
        assert!(matches!(error, JournalError::Failed { .. }), "{error}");
    }
    assert_eq!((appender.head(), bench.read(head, ALL).len()), (head, 1));
}

#[test]
fn after_a_failed_sync_nothing_more_is_taken() {
    let bench = Bench::new();
    let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
    let head = appender.head();
    appender.append(&encoder.encode(1, &preview("unsure"), None)).expect("appended");
    // fdatasync(2) fails on a pipe with EINVAL.
    let (_reading, writing) = nix::unistd::pipe().expect("a pipe");
    appender.replace_file(writing.into());
    assert!(matches!(appender.commit(), Err(JournalError::Io { .. })));
    appender.replace_file(fs::OpenOptions::new().write(true).open(bench.path()).expect("the journal"));
    assert!(matches!(appender.commit(), Err(JournalError::Failed { .. })), "never retried into success");
    assert_eq!(appender.head(), head);
}

#[test]
fn a_torn_append_is_cut_back() {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    let bench = Bench::new();
    let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
    let whole = appender.offset();
    // A file that takes 8192 bytes and then no more.
    let file: fs::File = memfd_create("small", MFdFlags::MFD_ALLOW_SEALING).expect("a memfd").into();
    file.set_len(8192).expect("its size");
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).expect("sealed");
    let reading = file.try_clone().expect("a clone");
    appender.replace_file(file);
    assert!(appender.append(&encoder.encode(1, &preview(&"x".repeat(10_000)), None)).is_err());
    let size = reading.metadata().expect("its size").len();
    assert_eq!((size, appender.offset(), appender.head()), (whole, whole, whole));
}

/// One way in which bytes can come to harm.
#[derive(Debug, Clone)]
enum Harm {
    Flip(prop::sample::Index, u8),
    Zero(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Swap(prop::sample::Index, prop::sample::Index),
    Copy(prop::sample::Index, prop::sample::Index),
    Truncate(prop::sample::Index),
}

fn harm() -> impl Strategy<Value = Harm> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (index(), 0..8u8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        (index(), 1..400usize).prop_map(|(at, size)| Harm::Zero(at, size)),
        (index(), prop::collection::vec(any::<u8>(), 1..200)).prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
        (index(), 1..400usize).prop_map(|(at, size)| Harm::Remove(at, size)),
        (index(), index()).prop_map(|(a, b)| Harm::Swap(a, b)),
        (index(), index()).prop_map(|(a, b)| Harm::Copy(a, b)),
        index().prop_map(Harm::Truncate),
    ]
}

fn harmed(mut bytes: Vec<u8>, harm: &Harm) -> Vec<u8> {
    if bytes.is_empty() {
        return bytes;
    }
    match harm {
        Harm::Flip(at, bit) => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        Harm::Zero(at, size) => {
            let at = at.index(bytes.len());
            let end = (at + size).min(bytes.len());
            bytes[at..end].fill(0);
        }
        Harm::Insert(at, more) => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, more.iter().copied());
        }
        Harm::Remove(at, size) => {
            let at = at.index(bytes.len());
            bytes.drain(at..(at + size).min(bytes.len()));
        }
        Harm::Swap(a, b) => {
            let mut lines = lines(&bytes);
            let (a, b) = (a.index(lines.len()), b.index(lines.len()));
            lines.swap(a, b);
            bytes = lines.concat();
        }
        Harm::Copy(a, b) => {
            let mut lines = lines(&bytes);
            let copy = lines[a.index(lines.len())].clone();
            lines.insert(b.index(lines.len()), copy);
            bytes = lines.concat();
        }
        Harm::Truncate(at) => bytes.truncate(at.index(bytes.len())),
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_records_come_back(
        records in prop::collection::vec((any::<u64>(), any::<String>(), prop::option::of(any::<Vec<u8>>())), 0..20),
        page in 1..5usize,
    ) {
        let bench = Bench::new();
        let (mut encoder, mut appender) = bench.session.create_journal(EPOCH).expect("a new journal");
        let mut batch = Vec::new();
        for (time, text, raw) in &records {
            encoder.encode_into(&mut batch, *time, &preview(text), raw.as_deref());
        }
        appender.append(&batch).expect("appended");
        let head = appender.commit().expect("committed");
        let read = bench.read(head, (page, u64::MAX));
        prop_assert_eq!(read.len(), records.len());
        for (number, (entry, (time, text, raw))) in read.iter().zip(&records).enumerate() {
            prop_assert_eq!((entry.seq, entry.time), (number as u64 + 1, *time));
            prop_assert_eq!(&entry.details["text"], &json!(text));
            let exact = match (&entry.raw, &entry.raw64) {
                (Some(text), None) => Some(text.clone().into_bytes()),
                (None, Some(text)) => {
                    let engine = base64::engine::general_purpose::STANDARD;
                    Some(base64::Engine::decode(&engine, text).expect("base64"))
                }
                (None, None) => None,
                both => panic!("{both:?}"),
            };
            prop_assert_eq!(&exact, raw);
        }
    }

    #[test]
    fn whatever_happens_nothing_wrong_is_shown_and_every_hole_is_told(
        count in 0..12u64,
        harms in prop::collection::vec(harm(), 1..4),
    ) {
        let bench = Bench::claimed();
        let (bytes, right) = written(&bench, count);
        let damaged = harms.iter().fold(bytes.clone(), harmed);
        let head = (damaged.len() as u64).max(bytes.len() as u64);
        read_damaged(&bench, &damaged, head, &right, false);

        let counted = bench.reader().counted().expect("read");
        let before = bench.read(damaged.len() as u64, ALL);
        let shown_first = bench.read(counted, ALL);
        let shown: Vec<_> = before.iter().filter(|entry| !is_gap(entry)).cloned().collect();
        let mut repaired = bench.repair();
        prop_assert_eq!(repaired.last.as_ref(), shown.last());
        let line = repaired.encoder.encode(9, &preview("goes on"), None);
        repaired.appender.append(&line).expect("appended");
        let head = repaired.appender.commit().expect("committed");
        drop(repaired);
        let after = bench.read(head, ALL);
        prop_assert_eq!(&after, &bench.read(head, ONE));
        let kept: Vec<_> = after.iter().filter(|entry| !is_gap(entry)).take(shown.len()).cloned().collect();
        prop_assert_eq!(&kept, &shown, "a repair takes nothing away");
        prop_assert_eq!(&after[..shown_first.len()], &shown_first, "what was shown before it stays, with its cursors");
        prop_assert_eq!(&after.last().expect("a record").details["text"], &json!("goes on"));
        let again = bench.repair();
        prop_assert_eq!((again.cut, again.appender.head()), (None, head));
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), from in 0..2100u64) {
        let bench = Bench::claimed();
        bench.put(&bytes);
        let reader = bench.reader();
        for cursor in [reader.cursor(from), "start".into(), "end".into()] {
            if let Ok(at) = reader.resolve(&cursor, bytes.len() as u64) {
                let chunk = reader.read(at, bytes.len() as u64, 10, 1000).expect("a chunk");
                prop_assert!(chunk.entries.iter().all(is_gap), "random bytes are no records");
            }
        }
    }
}
