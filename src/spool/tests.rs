//! A spool and its sessions: what is made, refused, found again, moved and recognised.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::admission::RESERVE_SIZE;
use super::*;
use crate::model::{End, Event, OUTCOME_VERSION, Outcome, Plan, Progress, State, Submission, Verdict};

struct Bench {
    folder: tempfile::TempDir,
    spool: Spool,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = Spool::open(&folder.path().join("spool")).expect("a spool");
        Bench { folder, spool }
    }

    /// As after the daemon's death.
    fn again(self) -> Bench {
        let Bench { folder, spool } = self;
        let path = spool.path().to_owned();
        drop(spool);
        Bench { folder, spool: Spool::open(&path).expect("the spool again") }
    }

    fn admit(&self) -> SessionDir {
        self.admit_with(Some(b"hello"))
    }

    fn admit_with(&self, input: Option<&[u8]>) -> SessionDir {
        let submission = Submission::new(RunId::random(), "echo");
        let record = Record::admitted(&submission, digest(&submission, input), "jsonl", 7);
        self.spool.admit(&submission, input, &record).expect("admitted")
    }

    /// A session that ended at `time` and is settled.
    fn ended(&self, time: u64) -> RunId {
        let session = self.admit();
        end(&session, time);
        self.spool.settle(session.run_id()).expect("settled").run_id()
    }

    fn path(&self, rest: &str) -> PathBuf {
        self.spool.path().join(rest)
    }
}

fn end(session: &SessionDir, time: u64) {
    let mut record = session.record().expect("the record");
    (record.state, record.ended, record.end) = (State::Finished, Some(time), Some(End::Completed));
    session.write_record(&record).expect("written");
}

fn claim(session: &SessionDir) -> Claim {
    let plan = Plan { environment: [("SECRET".to_owned(), "value".to_owned())].into(), ..Plan::sample() };
    Claim {
        version: CLAIM_VERSION,
        run_id: session.run_id(),
        attempt: 1,
        epoch: journal::new_epoch(),
        boot_id: "boot".into(),
        time: 1,
        digest: session.record().expect("the record").digest,
        plan,
    }
}

fn outcome(session: &SessionDir, text: Option<String>) -> Outcome {
    Outcome {
        version: OUTCOME_VERSION,
        run_id: session.run_id(),
        attempt: 1,
        epoch: journal::new_epoch(),
        head: 1,
        end: End::Completed,
        error: None,
        exit: None,
        verdict: Verdict::default(),
        text,
        text_cut: false,
        value: serde_json::Value::Null,
        receipts: Vec::new(),
        asked: 0,
        usage: None,
        conversation: None,
        progress: Progress::default(),
        leftovers: Vec::new(),
        activity_complete: true,
        started: None,
        ended: 2,
    }
}

fn taken(session: &SessionDir) -> OwnerLock {
    match session.lock_owner().expect("asked") {
        Ownership::Taken(lock) => lock,
        Ownership::Held => panic!("the lock is free"),
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn place(spool: &Spool, run_id: RunId) -> &'static str {
    match spool.locate(run_id).expect("looked") {
        Place::Active(_) => "active",
        Place::Ended(_) => "ended",
        Place::Removed(_) => "removed",
        Place::Damaged(_) => "damaged",
        Place::Absent => "absent",
    }
}

#[test]
fn a_new_spool_is_private_and_found_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a/b/spool");
    let spool = Spool::open(&path).expect("a spool");
    assert_eq!(spool.path(), path.canonicalize().expect("there"));
    for dir in ["", "active", "ended", "damaged", "..", "../.."] {
        assert_eq!(mode(&path.join(dir)), 0o700, "{dir:?}");
    }
    assert_eq!(mode(&path.join("service.lock")), 0o600);
    assert!(spool.free_space().expect("measured") > 0);
    drop(spool);
    Spool::open(&path).expect("the same spool");
}

#[test]
fn a_second_opening_names_the_holder_by_whatever_path() {
    let bench = Bench::new();
    let alias = bench.folder.path().join("alias");
    symlink(bench.folder.path(), &alias).expect("a link");
    for path in [bench.spool.path().to_owned(), alias.join("spool")] {
        match Spool::open(&path).expect_err("in use") {
            error @ SpoolError::Locked { .. } => {
                let text = error.to_string();
                assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
            }
            other => panic!("{other}"),
        }
    }
    // Whatever stands in the file is no reason to think that it is free, or to show it raw.
    fs::write(bench.path("service.lock"), b"\x1b[31m").expect("written");
    let text = Spool::open(bench.spool.path()).expect_err("in use").to_string();
    assert!(text.contains("in use by [31m;"), "{text:?}");
    fs::write(bench.path("service.lock"), b"").expect("written");
    assert!(matches!(Spool::open(bench.spool.path()), Err(SpoolError::Locked { .. })));
    let bench = bench.again();
    let holder = fs::read_to_string(bench.path("service.lock")).expect("read");
    assert!(holder.starts_with(&format!("process {} on host ", std::process::id())), "{holder}");
}

#[test]
fn removing_the_lock_s_file_frees_nothing() {
    let bench = Bench::new();
    fs::remove_file(bench.path("service.lock")).expect("removed");
    let text = Spool::open(bench.spool.path()).expect_err("in use").to_string();
    assert!(text.contains("a service whose service.lock was removed"), "{text}");
    bench.again();
}

#[test]
fn a_spool_that_is_not_private_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let refusal = |path: &Path| {
        let foreseen = Spool::check(path).expect_err("refused").to_string();
        match Spool::open(path).expect_err("refused") {
            error @ SpoolError::Refused { .. } => assert_eq!(error.to_string(), foreseen),
            other => panic!("{other:?}"),
        }
        foreseen
    };
    fs::create_dir(root.join("open")).expect("a folder");
    set_mode(&root.join("open"), 0o755);
    let text = refusal(&root.join("open"));
    assert!(text.contains("mode 0755") && text.contains("chmod 700"), "{text}");

    Spool::open(&root.join("real")).expect("a spool");
    symlink(root.join("real"), root.join("link")).expect("a link");
    assert!(refusal(&root.join("link")).contains("symbolic link"));
    symlink(root.join("nowhere"), root.join("dangling")).expect("a link");
    assert!(refusal(&root.join("dangling")).contains("symbolic link"));

    fs::write(root.join("file"), "").expect("a file");
    assert!(refusal(&root.join("file")).contains("not a folder"));
    assert!(refusal(Path::new("spool")).contains("not an absolute path"));
    assert!(refusal(Path::new("/")).contains("folder of its own"));

    fs::create_dir(root.join("shared")).expect("a folder");
    set_mode(&root.join("shared"), 0o777);
    let text = refusal(&root.join("shared/spool"));
    assert!(text.contains("shared has mode 0777, writable for everybody"), "{text}");

    let inside = root.join("real/active");
    fs::remove_dir(&inside).expect("removed");
    symlink(root.join("shared"), &inside).expect("a link");
    assert!(refusal(&root.join("real")).contains("active"));
    fs::remove_file(&inside).expect("removed");
    set_mode(&root.join("real/service.lock"), 0o666);
    assert!(refusal(&root.join("real")).contains("service.lock has mode 0666"));
}

#[test]
fn a_check_makes_nothing_and_minds_no_lock() {
    let bench = Bench::new();
    let before = names(bench.spool.path());
    Spool::check(bench.spool.path()).expect("in use, and fine");
    assert_eq!(names(bench.spool.path()), before);
    for rest in ["new", "a/b/new"] {
        Spool::check(&bench.folder.path().join(rest)).expect("can be made");
    }
    assert_eq!(names(bench.folder.path()), ["spool"]);
    fs::write(bench.folder.path().join("file"), "").expect("a file");
    let text = Spool::check(&bench.folder.path().join("file/spool")).expect_err("no place").to_string();
    assert!(text.contains("not a folder"), "{text}");
    // The kernel's own file system, where root makes nothing either.
    let text = Spool::check(Path::new("/proc/self/airouter/spool")).expect_err("no place").to_string();
    assert!(text.contains("/proc/"), "{text}");
}

#[test]
fn an_admission_is_whole_and_private() {
    let bench = Bench::new();
    let session = bench.admit();
    let files = ["input", "outcome.reserve", "owner.lock", "record.json", "submission.json"];
    assert_eq!(names(session.path()), files);
    assert_eq!(mode(session.path()), 0o700);
    for file in files {
        let data = fs::metadata(session.path().join(file)).expect("there");
        assert_eq!((data.mode() & 0o7777, data.nlink()), (0o600, 1), "{file}");
    }
    let reserve = fs::metadata(session.path().join("outcome.reserve")).expect("there");
    assert!(reserve.blocks() * 512 >= RESERVE_SIZE, "its blocks are allocated");

    let submission = session.submission().expect("the submission");
    let record = session.record().expect("the record");
    assert_eq!(submission.run_id(), session.run_id());
    assert_eq!(record.digest, digest(&submission, Some(b"hello")));
    assert_eq!((record.state, record.attempt, record.accepted), (State::Queued, 0, 7));
    let mut input = String::new();
    std::io::Read::read_to_string(&mut session.input().expect("opened").expect("there is one"), &mut input)
        .expect("read");
    assert_eq!(input, "hello");
    assert!(bench.admit_with(None).input().expect("looked").is_none());
    assert_eq!(bench.spool.active().expect("listed").len(), 2);
}

#[test]
fn a_session_is_admitted_once_wherever_it_is_by_now() {
    let bench = Bench::new();
    let again = |run_id: RunId| {
        let submission = Submission::new(run_id, "echo");
        let record = Record::admitted(&submission, digest(&submission, None), "jsonl", 8);
        bench.spool.admit(&submission, None, &record).map(drop)
    };
    let session = bench.admit();
    let run_id = session.run_id();
    assert!(matches!(again(run_id), Err(SpoolError::Exists(id)) if id == run_id));
    end(&session, 1);
    bench.spool.settle(run_id).expect("settled");
    assert!(matches!(again(run_id), Err(SpoolError::Exists(_))));
    bench.spool.remove(run_id).expect("removed");
    assert!(matches!(again(run_id), Err(SpoolError::Exists(_))));
    let aside = bench.admit().run_id();
    bench.spool.set_aside(aside, "it was odd").expect("set aside");
    assert!(again(aside).expect_err("refused").to_string().contains("it was odd"));
    assert_eq!(names(&bench.path("active")), [""; 0], "refusals leave nothing behind");
}

#[test]
fn a_hundred_racing_admissions_admit_one() {
    let bench = Bench::new();
    let submission = Submission::new(RunId::random(), "echo");
    let record = Record::admitted(&submission, digest(&submission, None), "jsonl", 8);
    let admitted: usize = std::thread::scope(|scope| {
        let admit = || bench.spool.admit(&submission, None, &record).is_ok();
        let threads: Vec<_> = (0..100).map(|_| scope.spawn(admit)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).filter(|&admitted| admitted).count()
    });
    assert_eq!(admitted, 1);
    assert_eq!(names(&bench.path("active")), [submission.run_id().to_string()]);
}

#[test]
fn what_a_crash_left_half_done_is_cleared_away() {
    let bench = Bench::new();
    let kept = bench.admit().run_id();
    let leftover = bench.path("active").join(format!(".new-{}-0", RunId::random()));
    fs::create_dir_all(leftover.join("attachments/deep")).expect("folders");
    fs::write(leftover.join("attachments/deep/file"), "x").expect("a file");
    symlink("/etc", leftover.join("link")).expect("a link");
    let removing = bench.path("ended").join(format!(".removing-{}", RunId::random()));
    fs::create_dir(&removing).expect("a folder");
    let bench = bench.again();
    assert!(!leftover.exists() && !removing.exists() && Path::new("/etc/passwd").exists());
    assert_eq!(names(&bench.path("active")), [kept.to_string()]);
}

#[test]
fn foreign_names_are_told_and_left_alone() {
    let bench = Bench::new();
    let run_id = bench.admit().run_id();
    let upper = RunId::random().to_string().to_uppercase();
    for name in ["notes.txt", upper.as_str()] {
        fs::write(bench.path("active").join(name), "x").expect("a file");
    }
    let mut foreign = bench.spool.foreign().expect("listed");
    foreign.sort();
    let mut expected = [upper, "notes.txt".to_owned()];
    expected.sort();
    assert_eq!(foreign, expected);
    let active = bench.spool.active().expect("listed");
    assert_eq!(active.iter().map(|entry| entry.run_id).collect::<Vec<_>>(), [run_id]);
}

#[test]
fn files_that_are_not_private_are_refused_by_name() {
    let bench = Bench::new();
    let outside = bench.folder.path().join("outside");
    fs::write(&outside, "{}").expect("a file");
    set_mode(&outside, 0o600);
    let refusal = |prepare: &dyn Fn(&Path)| {
        let session = bench.admit();
        let path = session.path().join("record.json");
        prepare(&path);
        match session.record().expect_err("refused") {
            SpoolError::Refused { path: named, problem } => {
                assert_eq!(named, path);
                problem
            }
            other => panic!("{other}"),
        }
    };
    assert!(refusal(&|path| set_mode(path, 0o640)).contains("mode 0640"));
    assert!(refusal(&|path| set_mode(path, 0o4600)).contains("mode 4600"));
    assert!(
        refusal(&|path| fs::hard_link(path, path.with_extension("2")).expect("a link")).contains("2 hard")
    );
    let replaced = |make: &dyn Fn(&Path)| {
        refusal(&|path| {
            fs::remove_file(path).expect("removed");
            make(path);
        })
    };
    assert!(replaced(&|path| symlink(&outside, path).expect("a link")).contains("symbolic link"));
    assert!(replaced(&|path| fs::create_dir(path).expect("a folder")).contains("not a regular file"));
    let fifo = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    assert!(replaced(&fifo).contains("not a regular file"), "and it does not wait for a writer");
    let socket = |path: &Path| {
        let short = bench.folder.path().join(RunId::random().shard());
        std::os::unix::net::UnixListener::bind(&short).expect("a socket");
        fs::rename(short, path).expect("moved");
    };
    assert!(replaced(&socket).contains("not a regular file"));
}

#[test]
fn a_session_folder_that_is_not_private_spoils_only_itself() {
    let bench = Bench::new();
    let (open, fine) = (bench.admit(), bench.admit());
    set_mode(open.path(), 0o755);
    let linked = RunId::random();
    symlink(fine.path(), bench.path("active").join(linked.to_string())).expect("a link");
    let bench = bench.again();
    let active = bench.spool.active().expect("listed");
    assert_eq!(active.len(), 3);
    for entry in active {
        assert_eq!(entry.dir.is_ok(), entry.run_id == fine.run_id());
        assert!(entry.dir.is_ok() || place(&bench.spool, entry.run_id) == "damaged");
    }
    bench.spool.set_aside(linked, "a link").expect("set aside");
    assert!(fine.record().is_ok(), "what it pointed to is untouched");
}

#[test]
fn damaged_files_are_told_without_their_content() {
    let bench = Bench::new();
    let (session, other) = (bench.admit(), bench.admit());
    let path = session.path().join("submission.json");
    for content in ["", "{", "null", "{\"version\":\"a secret\"}", "\u{0}\u{0}"] {
        fs::write(&path, content).expect("written");
        let error = session.submission().expect_err("damaged");
        assert!(error.is_damage() && !error.to_string().contains("secret"), "{error}");
        assert!(error.to_string().contains("submission.json"), "{error}");
    }
    fs::write(&path, fs::read(other.path().join("submission.json")).expect("read")).expect("written");
    let text = session.submission().expect_err("damaged").to_string();
    assert!(text.contains(&other.run_id().to_string()), "{text}");
    fs::File::options().write(true).open(&path).expect("opened").set_len(1 << 30).expect("long");
    assert!(session.submission().expect_err("damaged").to_string().contains("longer than"));
    fs::remove_file(&path).expect("removed");
    assert!(session.submission().expect_err("damaged").to_string().contains("missing"));
}

#[test]
fn a_record_is_replaced_whole() {
    let bench = Bench::new();
    let session = bench.admit();
    let mut record = session.record().expect("the record");
    record.cancel_requested = Some(5);
    session.write_record(&record).expect("written");
    assert_eq!(session.record().expect("the record"), record);
    assert!(names(session.path()).iter().all(|name| !name.starts_with(".tmp-")));
    assert_eq!(mode(&session.path().join("record.json")), 0o600);
}

#[test]
fn a_claim_is_written_once_and_taken_back_only_while_nothing_can_have_run() {
    let bench = Bench::new();
    let session = bench.admit();
    assert_eq!(session.claim().expect("looked"), None);
    let first = claim(&session);
    session.write_claim(&first).expect("claimed");
    assert!(matches!(session.write_claim(&claim(&session)), Err(SpoolError::AlreadyClaimed(_))));
    assert_eq!(session.claim().expect("looked"), Some(first.clone()));
    assert!(names(session.path()).iter().all(|name| !name.starts_with(".tmp-")));

    let lock = taken(&session);
    session.remove_claim(&lock).expect("taken back");
    assert_eq!(session.claim().expect("looked"), None);
    session.write_claim(&first).expect("claimed again");
    session.create_journal(&first.epoch).expect("a journal");
    assert!(matches!(session.remove_claim(&lock), Err(SpoolError::MayHaveRun(_))));
    let foreign = taken(&bench.admit());
    assert!(matches!(session.remove_claim(&foreign), Err(SpoolError::ForeignLock(_))));
    assert_eq!(session.claim().expect("looked"), Some(first));
}

#[test]
fn a_session_has_one_owner_until_its_last_descriptor_is_closed() {
    let bench = Bench::new();
    let session = bench.admit();
    let lock = taken(&session);
    assert!(matches!(session.lock_owner().expect("asked"), Ownership::Held));
    let same = SessionDir::open(session.path()).expect("the session");
    assert!(matches!(same.lock_owner().expect("asked"), Ownership::Held));
    // As an executor inherits it: the daemon drops its own copy, and the lock stays.
    let inherited = lock.as_file().try_clone().expect("a clone");
    drop(lock);
    assert!(matches!(session.lock_owner().expect("asked"), Ownership::Held));
    let adopted = session.adopt_lock(inherited).expect("adopted");
    assert!(matches!(session.lock_owner().expect("asked"), Ownership::Held));
    drop(adopted);
    drop(taken(&session));
}

#[test]
fn only_a_session_s_own_lock_is_adopted() {
    let bench = Bench::new();
    let (session, other) = (bench.admit(), bench.admit());
    let foreign = taken(&other).into_file();
    assert!(matches!(session.adopt_lock(foreign), Err(SpoolError::ForeignLock(_))));
    let holder = taken(&session);
    let not_locked = fs::File::options().write(true).open(session.path().join("owner.lock")).expect("opened");
    assert!(matches!(session.adopt_lock(not_locked), Err(SpoolError::ForeignLock(_))));
    drop(holder);
    fs::remove_file(session.path().join("owner.lock")).expect("removed");
    assert!(session.lock_owner().expect_err("damage").is_damage(), "it is not made again");
}

#[test]
fn an_outcome_is_written_once_into_its_reserve() {
    let bench = Bench::new();
    let session = bench.admit();
    assert_eq!(session.outcome().expect("looked"), None);
    let reserve = fs::metadata(session.path().join("outcome.reserve")).expect("there").ino();
    let first = outcome(&session, Some("the answer".into()));
    session.write_outcome(&first).expect("written");
    let written = fs::metadata(session.path().join("outcome.json")).expect("there");
    assert_eq!(written.ino(), reserve, "no new room is needed");
    let second = outcome(&session, None);
    assert!(matches!(session.write_outcome(&second), Err(SpoolError::AlreadyEnded(_))));
    assert_eq!(session.outcome().expect("looked"), Some(first));
    assert!(!session.path().join("outcome.reserve").exists());
}

#[test]
fn long_outcomes_are_kept_and_too_long_ones_without_their_text() {
    let bench = Bench::new();
    for (length, kept) in [(100 << 10, true), (18 << 20, false)] {
        let session = bench.admit();
        session.write_outcome(&outcome(&session, Some("x".repeat(length)))).expect("written");
        let read = session.outcome().expect("looked").expect("there is one");
        assert_eq!((read.text.map(|t| t.len()), read.text_cut), (kept.then_some(length), !kept));
    }
}

#[test]
fn an_outcome_does_not_need_its_reserve() {
    let bench = Bench::new();
    let session = bench.admit();
    fs::remove_file(session.path().join("outcome.reserve")).expect("removed");
    let outcome = outcome(&session, None);
    session.write_outcome(&outcome).expect("written");
    assert_eq!(session.outcome().expect("looked"), Some(outcome));
}

#[test]
fn the_control_socket_is_reached_however_deep_the_spool_lies() {
    let folder = tempfile::tempdir().expect("a folder");
    let deep = folder.path().join("d".repeat(200)).join("spool");
    let spool = Spool::open(&deep).expect("a spool");
    let submission = Submission::new(RunId::random(), "echo");
    let record = Record::admitted(&submission, digest(&submission, None), "jsonl", 7);
    let session = spool.admit(&submission, None, &record).expect("admitted");
    let _listener = std::os::unix::net::UnixListener::bind(session.control_socket()).expect("bound");
    let file = fs::metadata(session.path().join("control.sock")).expect("there");
    assert!(file.file_type().is_socket());
    let other = SessionDir::open(session.path()).expect("the session");
    std::os::unix::net::UnixStream::connect(other.control_socket()).expect("connected");
}

#[test]
fn a_settled_session_is_moved_and_tidy() {
    let bench = Bench::new();
    let session = bench.admit();
    let run_id = session.run_id();
    assert!(bench.spool.settle(run_id).expect_err("not ended").to_string().contains("record.json"));
    assert_eq!(place(&bench.spool, run_id), "active");
    end(&session, 5);
    fs::write(session.path().join(".tmp-record.json-0-x"), "half").expect("a leftover");
    std::os::unix::net::UnixListener::bind(session.control_socket()).expect("a socket");
    let settled = bench.spool.settle(run_id).expect("settled");
    assert_eq!(settled.path(), bench.path("ended").join(run_id.shard()).join(run_id.to_string()));
    assert_eq!(names(settled.path()), ["input", "owner.lock", "record.json", "submission.json"]);
    assert_eq!(place(&bench.spool, run_id), "ended");
    assert_eq!(session.record().expect("through the old handle"), settled.record().expect("the record"));
    assert!(matches!(bench.spool.settle(RunId::random()), Err(SpoolError::Missing { .. })));
}

#[test]
fn a_settling_that_crashed_is_finished_and_listed_once() {
    let bench = Bench::new();
    let (before_move, after_move) = (bench.admit(), bench.admit());
    for session in [&before_move, &after_move] {
        end(session, 5);
    }
    // Between the line and the move.
    let line = ended_line(&before_move).expect("a line");
    lock(&bench.spool.ended_log).add(&bench.spool.dir, &line).expect("added");
    bench.spool.settle(after_move.run_id()).expect("settled");
    let bench = bench.again();
    let listed = |bench: &Bench| {
        let page = bench.spool.ended(None, 10).expect("a page");
        page.lines.iter().map(|line| line.run_id).collect::<Vec<_>>()
    };
    assert_eq!(listed(&bench), [after_move.run_id()], "what is still active is not among the ended");
    bench.spool.settle(before_move.run_id()).expect("settled");
    // After the move, before it was told.
    bench.spool.settle(after_move.run_id()).expect("settled before");
    assert_eq!(listed(&bench), [after_move.run_id(), before_move.run_id()]);
}

#[test]
fn ended_sessions_are_paged_from_the_newest() {
    let bench = Bench::new();
    let mut right: Vec<RunId> = (0..25).map(|time| bench.ended(time)).collect();
    right.reverse();
    let pages = |bench: &Bench, size: usize| {
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let page = bench.spool.ended(before.as_deref(), size).expect("a page");
            assert!(page.lines.len() <= size);
            all.extend(page.lines.iter().map(|line| line.run_id));
            before = page.next;
            if before.is_none() {
                return all;
            }
        }
    };
    for size in [1, 7, 25, 100] {
        assert_eq!(pages(&bench, size), right, "pages of {size}");
    }
    let first = bench.spool.ended(None, 10).expect("a page");
    let token = first.next.expect("more");
    let newest = bench.ended(100);
    let second = bench.spool.ended(Some(&token), 10).expect("the next page");
    assert_eq!(second.lines[0].run_id, right[10], "what ended meanwhile moves nothing");
    right.insert(0, newest);
    let line = &bench.spool.ended(None, 1).expect("a page").lines[0];
    assert_eq!((line.ended, line.end, line.profile.as_str()), (100, End::Completed, "echo"));

    let bench = bench.again();
    assert_eq!(pages(&bench, 9), right);
    let page = bench.spool.ended(Some(&token), 10).expect("a token outlives the daemon");
    assert_eq!(page.lines[0].run_id, right[11]);
    let removed = right.remove(3);
    bench.spool.remove(removed).expect("removed");
    assert_eq!(pages(&bench, 9), right);
}

#[test]
fn tokens_that_were_not_given_are_refused() {
    let bench = Bench::new();
    for time in 0..3 {
        bench.ended(time);
    }
    let token = bench.spool.ended(None, 1).expect("a page").next.expect("more");
    let (id, offset) = token.split_once('-').expect("a token");
    for bad in ["", "x", "end", &format!("{id}-"), &format!("{id}-0"), &format!("{id}-99999999"), id] {
        assert!(matches!(bench.spool.ended(Some(bad), 1), Err(SpoolError::BadToken(_))), "{bad:?}");
    }
    let offset: u64 = offset.parse().expect("a number");
    let inside = format!("{id}-{}", offset - 1);
    assert!(matches!(bench.spool.ended(Some(&inside), 1), Err(SpoolError::BadToken(_))));
    let other = format!("{}-{offset}", "0".repeat(16));
    assert!(matches!(bench.spool.ended(Some(&other), 1), Err(SpoolError::ListChanged)));
}

#[test]
fn a_list_that_is_missing_or_damaged_is_built_again() {
    let damages: [&dyn Fn(&Path); 4] = [
        &|log| fs::remove_file(log).expect("removed"),
        &|log| fs::write(log, "").expect("emptied"),
        &|log| flip(log, 20),
        &|log| flip(log, fs::metadata(log).expect("there").len() as usize / 2),
    ];
    for damage in damages {
        let bench = Bench::new();
        let mut right: Vec<RunId> = (0..9).map(|time| bench.ended(time)).collect();
        let token = bench.spool.ended(None, 2).expect("a page").next.expect("more");
        let path = bench.spool.path().to_owned();
        drop(bench.spool);
        damage(&path.join("ended.log"));
        let bench = Bench { folder: bench.folder, spool: Spool::open(&path).expect("the spool") };
        // What ends before anybody asks for the list is on it too.
        right.push(bench.ended(100));
        right.reverse();
        let page = bench.spool.ended(None, 100).expect("a page");
        assert_eq!(page.lines.iter().map(|line| line.run_id).collect::<Vec<_>>(), right);
        assert!(matches!(bench.spool.ended(Some(&token), 2), Err(SpoolError::ListChanged)));
        let bench = bench.again();
        assert_eq!(bench.spool.ended(None, 100).expect("a page").lines.len(), right.len());
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("read");
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_torn_line_of_the_list_is_cut_off() {
    let bench = Bench::new();
    let first = bench.ended(1);
    let log = bench.path("ended.log");
    let whole = fs::read(&log).expect("read");
    let torn = [whole.as_slice(), &whole[whole.len() - 40..whole.len() - 1]].concat();
    fs::write(&log, torn).expect("written");
    let bench = bench.again();
    let second = bench.ended(2);
    let page = bench.spool.ended(None, 10).expect("a page");
    assert_eq!(page.lines.iter().map(|line| line.run_id).collect::<Vec<_>>(), [second, first]);
    assert!(fs::read(&log).expect("read").starts_with(&whole), "nothing was built again");
}

#[test]
fn many_removed_sessions_do_not_hide_the_ones_before_them() {
    let bench = Bench::new();
    let kept = bench.ended(0);
    for time in 1..40 {
        bench.spool.remove(bench.ended(time)).expect("removed");
    }
    let (mut before, mut found, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = bench.spool.ended(before.as_deref(), 1).expect("a page");
        found.extend(page.lines.iter().map(|line| line.run_id));
        (before, pages) = (page.next, pages + 1);
        if before.is_none() {
            break;
        }
    }
    assert_eq!(found, [kept]);
    assert!(pages > 1, "one page does not pass over any number of them");
}

#[test]
fn what_is_set_aside_is_untouched_and_says_why() {
    let bench = Bench::new();
    let session = bench.admit();
    let run_id = session.run_id();
    fs::write(session.path().join("record.json"), "broken").expect("written");
    let before = names(session.path());
    bench.spool.set_aside(run_id, "its record is broken").expect("set aside");
    let aside = bench.path("damaged").join(run_id.to_string());
    assert_eq!(names(&aside), before);
    assert_eq!(mode(&bench.path("damaged").join(format!("{run_id}.why"))), 0o600);
    match bench.spool.locate(run_id).expect("looked") {
        Place::Damaged(why) => {
            assert!(why.contains("its record is broken") && why.contains(&*aside.to_string_lossy()), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(bench.spool.set_aside(run_id, "again"), Err(SpoolError::Missing { .. })));
    // Whatever stands under the name, and however often.
    fs::write(bench.path("active").join(run_id.to_string()), "a file").expect("written");
    bench.spool.set_aside(run_id, "not even a folder").expect("set aside");
    assert!(bench.path("damaged").join(format!("{run_id}.2")).is_file());
    assert_eq!(bench.spool.active().expect("listed").len(), 0);
}

#[test]
fn a_removed_session_leaves_a_tombstone() {
    let bench = Bench::new();
    let run_id = bench.ended(5);
    let Place::Ended(session) = bench.spool.locate(run_id).expect("looked") else { panic!("it ended") };
    let digest = session.record().expect("the record").digest;
    let tombstone = bench.spool.remove(run_id).expect("removed");
    assert_eq!((tombstone.run_id, &tombstone.digest, tombstone.end), (run_id, &digest, Some(End::Completed)));
    assert_eq!(names(&bench.path("ended").join(run_id.shard())), [""; 0]);
    assert_eq!(bench.spool.remove(run_id).expect("removed before"), tombstone);
    let (never, active) = (RunId::random(), bench.admit().run_id());
    for other in [never, active] {
        assert!(matches!(bench.spool.remove(other), Err(SpoolError::Missing { .. })));
    }
    let bench = bench.again();
    match bench.spool.locate(run_id).expect("looked") {
        Place::Removed(found) => assert_eq!(found, tombstone),
        other => panic!("{other:?}"),
    }
    assert_eq!((place(&bench.spool, never), place(&bench.spool, active)), ("absent", "active"));
}

#[test]
fn a_removal_that_crashed_after_its_tombstone_is_finished_by_the_next() {
    let bench = Bench::new();
    let run_id = bench.ended(5);
    let tombstone = Tombstone { run_id, digest: "d".into(), end: None, removed: 9 };
    bench.spool.removed().add(&bench.spool.dir, &tombstone).expect("added");
    let bench = bench.again();
    assert_eq!(place(&bench.spool, run_id), "removed", "its folder is still there");
    assert_eq!(bench.spool.remove(run_id).expect("finished"), tombstone);
    assert_eq!(names(&bench.path("ended").join(run_id.shard())), [""; 0]);
}

#[test]
fn a_reader_finishes_on_a_session_that_is_removed() {
    let bench = Bench::new();
    let session = bench.admit();
    let (mut encoder, mut appender) = session.create_journal(&journal::new_epoch()).expect("a journal");
    appender.append(&encoder.encode(1, &Event::Raw {}, Some(b"x"))).expect("appended");
    let head = appender.commit().expect("committed");
    let reader = session.journal().expect("opened").expect("there is one");
    end(&session, 5);
    bench.spool.settle(session.run_id()).expect("settled");
    bench.spool.remove(session.run_id()).expect("removed");
    let chunk = reader.read(reader.start(), head, 10, 1000).expect("read");
    assert_eq!(chunk.entries.len(), 1);
}

#[test]
fn tombstones_survive_torn_and_damaged_lines() {
    let bench = Bench::new();
    let removed: Vec<RunId> = (0..3).map(|time| bench.ended(time)).collect();
    for run_id in &removed {
        bench.spool.remove(*run_id).expect("removed");
    }
    let path = bench.path("removed.log");
    let log = fs::read_to_string(&path).expect("read");
    let lines: Vec<&str> = log.split_inclusive('\n').collect();
    // The first bears its name and does not verify; the last is torn.
    let torn = &lines[2][..lines[2].len() - 20];
    let damaged = [lines[0].replace("removed", "removex").as_str(), lines[1], torn].concat();
    fs::write(&path, damaged).expect("written");
    let bench = bench.again();
    let places = removed.iter().map(|run_id| place(&bench.spool, *run_id)).collect::<Vec<_>>();
    assert_eq!(places, ["damaged", "removed", "damaged"], "never as if it had not run");
    let next = bench.ended(9);
    bench.spool.remove(next).expect("removed");
    let bench = bench.again();
    assert_eq!(place(&bench.spool, next), "removed", "a torn line swallows nothing");
    assert_eq!(place(&bench.spool, removed[1]), "removed");
}

#[test]
fn a_flipped_bit_in_a_tombstone_never_makes_its_session_new() {
    let bench = Bench::new();
    let removed: Vec<RunId> = (0..3).map(|time| bench.ended(time)).collect();
    for run_id in &removed {
        bench.spool.remove(*run_id).expect("removed");
    }
    let path = bench.path("removed.log");
    let log = fs::read(&path).expect("read");
    let mut bench = bench;
    for at in 0..log.len() {
        flip(&path, at);
        bench = bench.again();
        let damaged = removed.iter().filter(|id| place(&bench.spool, **id) == "damaged").count();
        let known = removed.iter().filter(|id| place(&bench.spool, **id) == "removed").count();
        assert_eq!(damaged + known, 3, "byte {at}: never as if it had not run");
        assert!((1..=2).contains(&damaged), "byte {at}: {damaged}");
        assert_eq!(place(&bench.spool, RunId::random()), "absent", "byte {at}: others are not held up");
        fs::write(&path, &log).expect("written");
    }
}

#[test]
fn a_session_is_opened_by_its_whole_name_only() {
    let bench = Bench::new();
    let session = bench.admit();
    assert_eq!(SessionDir::open(session.path()).expect("opened").run_id(), session.run_id());
    let other = bench.folder.path().join("no-session");
    fs::DirBuilder::new().mode(0o700).create(&other).expect("a folder");
    assert!(SessionDir::open(&other).expect_err("refused").is_damage());
}

/// An ended session with its outcome, so that it can be acknowledged.
fn ended_with_outcome(bench: &Bench, time: u64) -> SessionDir {
    let session = bench.admit();
    session.write_outcome(&outcome(&session, None)).expect("written");
    end(&session, time);
    bench.spool.settle(session.run_id()).expect("settled")
}

#[test]
fn an_acknowledgement_moves_forward_only_and_with_its_session() {
    let bench = Bench::new();
    let session = bench.admit();
    let last = Outcome { head: 10, ..outcome(&session, None) };
    let at = |offset| journal::Cursor { epoch: last.epoch.clone(), offset };
    assert_eq!(session.acknowledged().expect("read"), None);
    for (to, stands) in [(5, 5), (3, 5), (5, 5), (9, 9)] {
        assert_eq!(session.acknowledge(&at(to), 10).expect("acknowledged"), at(stands));
        assert_eq!(session.acknowledged().expect("read"), Some(at(stands)));
    }
    session.write_outcome(&last).expect("written");
    end(&session, 5);
    let session = bench.spool.settle(session.run_id()).expect("settled");
    assert_eq!(session.acknowledged().expect("read"), Some(at(9)));
    assert!(!session.is_acknowledged().expect("read"));
    session.acknowledge(&at(10), 10).expect("acknowledged");
    assert!(session.is_acknowledged().expect("read"));
    // What was acknowledged of a part that is lost counts for nothing.
    assert_eq!(session.acknowledge(&at(4), 8).expect("acknowledged"), at(4));
    // Of another journal it says nothing.
    let other = journal::Cursor { epoch: journal::new_epoch(), offset: 3 };
    assert_eq!(session.acknowledge(&other, 10).expect("acknowledged"), other);
    assert!(!session.is_acknowledged().expect("read"));
}

#[test]
fn a_damaged_acknowledgement_acknowledges_nothing() {
    let bench = Bench::new();
    let session = ended_with_outcome(&bench, 5);
    let outcome = session.outcome().expect("read").expect("there is one");
    let all = journal::Cursor { epoch: outcome.epoch, offset: outcome.head };
    session.acknowledge(&all, all.offset).expect("acknowledged");
    assert!(session.is_acknowledged().expect("read"));
    let path = session.path().join("acknowledged.json");
    for at in 0..fs::read(&path).expect("read").len() - 1 {
        flip(&path, at);
        assert!(!session.is_acknowledged().expect("read"), "byte {at}");
        flip(&path, at);
    }
    fs::write(&path, "").expect("written");
    assert!(!session.is_acknowledged().expect("read"));
    session.acknowledge(&all, all.offset).expect("it is written anew");
    assert!(session.is_acknowledged().expect("read"));
}

#[test]
fn what_is_not_the_session_s_own_is_told() {
    let bench = Bench::new();
    let session = ended_with_outcome(&bench, 5);
    let path = |name: &str| session.path().join(name);
    let foreign = || session.contents().expect("looked").foreign;
    assert_eq!(foreign(), None);
    for own in
        [".tmp-record.json-1-x", "journal.torn-1", "inbox.jsonl", "acknowledged.json", "stdout.capture"]
    {
        fs::write(path(own), "x").expect("written");
        set_mode(&path(own), 0o600);
        assert_eq!(foreign(), None, "{own}");
    }
    fs::DirBuilder::new().mode(0o700).create(path("attachments")).expect("a folder");
    let hash = "a".repeat(64);
    for own in [hash.clone(), format!("{hash}.png")] {
        fs::write(path("attachments").join(&own), "x").expect("written");
        set_mode(&path("attachments").join(&own), 0o600);
        assert_eq!(foreign(), None, "{own}");
    }
    let listed = session.file_names().expect("listed");
    assert!(
        listed.contains(&"record.json".to_owned()) && listed.contains(&format!("attachments/{hash}.png"))
    );
    assert!(!listed.iter().any(|name| name == "owner.lock" || name.starts_with('.')), "{listed:?}");
    for other in
        ["notes", "journal.torn-", "journal.torn-x", "record.json.bak", "attachments/notes", "deep/er"]
    {
        if let Some((folder, _)) = other.split_once('/') {
            fs::create_dir_all(path(folder)).expect("a folder");
        }
        fs::write(path(other), "x").expect("written");
        set_mode(&path(other), 0o600);
        let why = foreign().expect("told");
        assert!(why.starts_with("has an unknown file "), "{other}: {why}");
        fs::remove_file(path(other)).expect("removed");
        let _ = fs::remove_dir(path("deep"));
    }
    assert_eq!(foreign(), None);
    let other = bench.folder.path().join("second");
    fs::hard_link(path("record.json"), &other).expect("linked");
    assert!(foreign().expect("told").contains("2 hard links"));
    fs::remove_file(&other).expect("removed");
    set_mode(&path("record.json"), 0o644);
    assert!(foreign().expect("told").contains("mode 0644"));
    set_mode(&path("record.json"), 0o600);
    symlink("/nowhere", path("input.link")).expect("linked");
    assert!(foreign().is_some());
}

#[test]
fn a_survey_finds_every_ended_session_once_in_the_order_of_their_ends() {
    let bench = Bench::new();
    // The clock was set back meanwhile: the order is that in which they were put away.
    let mut right: Vec<RunId> = [9, 8, 100, 3].map(|time| bench.ended(time)).into();
    let found = bench.spool.survey().expect("surveyed");
    assert_eq!(found.iter().map(|session| session.run_id).collect::<Vec<_>>(), right);
    for session in &found {
        let Place::Ended(dir) = bench.spool.locate(session.run_id).expect("looked") else {
            panic!("it ended")
        };
        assert_eq!(session.bytes, Some(dir.contents().expect("looked").bytes));
    }
    bench.spool.remove(right.remove(1)).expect("removed");
    let surveyed = |bench: &Bench| -> Vec<RunId> {
        bench.spool.survey().expect("surveyed").iter().map(|session| session.run_id).collect()
    };
    assert_eq!(surveyed(&bench), right);
    bench.spool.compact().expect("written anew");
    assert_eq!(surveyed(&bench), right);
    assert_eq!(fs::read(bench.path("ended.log")).expect("read").iter().filter(|&&b| b == b'\n').count(), 4);
    right.push(bench.ended(1));
    assert_eq!(surveyed(&bench), right);
    // One whose record cannot be read is there all the same, and its age is not known.
    let unread = right[0];
    fs::write(bench.path("ended").join(unread.shard()).join(unread.to_string()).join("record.json"), "x")
        .expect("written");
    fs::remove_file(bench.path("ended.log")).expect("removed");
    let bench = bench.again();
    let last = *bench.spool.survey().expect("surveyed").last().expect("there are some");
    assert_eq!((last.run_id, last.ended), (unread, None));
    assert_eq!(bench.spool.survey().expect("surveyed").len(), right.len());
}

#[test]
fn usage_counts_what_is_there() {
    let bench = Bench::new();
    let session = bench.admit();
    let active = bench.spool.usage_of_active().expect("looked");
    assert_eq!((active.count, active.bytes), (1, session.contents().expect("looked").bytes));
    assert_eq!(bench.spool.usage_of_damaged().expect("looked"), Usage::default());
    bench.spool.set_aside(session.run_id(), "broken").expect("set aside");
    let damaged = bench.spool.usage_of_damaged().expect("looked");
    assert_eq!(damaged.count, 1, "the reason beside it is none");
    assert!(damaged.bytes >= active.bytes, "{damaged:?}");
    assert_eq!(bench.spool.usage_of_active().expect("looked"), Usage::default());
}
