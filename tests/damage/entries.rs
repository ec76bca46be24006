//! What does not belong into a spool, or is not as it has to be: set aside or refused by name, and the others run.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use airouter_sessiond::client::{Filter, WaitFor};
use airouter_sessiond::model::{RunId, Submission};

use super::support::{Bench, PATIENCE};
use super::{active, noted, refusal, starts};

/// A service that was killed while these sessions waited behind one that runs: they are admitted and not started.
async fn killed_with_waiting(count: usize) -> (Bench, Vec<Submission>) {
    let mut bench = Bench::with("[limits]\nactive = 1\n");
    let client = bench.client().await;
    let first = noted(&bench, "until [ -e go ]; do sleep 0.02; done");
    client.submit(&first, None).await.expect("submits");
    client.wait(first.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    let mut all = vec![first];
    for _ in 0..count {
        let submission = noted(&bench, "echo '{\"n\":1}'");
        client.submit(&submission, Some(b"its input".to_vec())).await.expect("submits");
        all.push(submission);
    }
    bench.kill();
    (bench, all)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("modes");
}

/// What is done to a waiting session, and a part of the reason that is given for setting it aside.
type Harm = (fn(&Bench, &Path), &'static str);

const HARMS: [Harm; 12] = [
    (|_, folder| set_mode(folder, 0o755), "has mode 0755 and must have 0700"),
    (
        |bench, folder| {
            fs::rename(folder, bench.path().join("elsewhere")).expect("moved");
            symlink(bench.path().join("elsewhere"), folder).expect("linked");
        },
        "is not a folder (or a symbolic link to one)",
    ),
    (
        |_, folder| {
            fs::remove_dir_all(folder).expect("removed");
            fs::write(folder, "a file").expect("written");
        },
        "is not a folder",
    ),
    (|_, folder| set_mode(&folder.join("record.json"), 0o644), "record.json has mode 0644"),
    (
        |bench, folder| {
            fs::hard_link(folder.join("record.json"), bench.path().join("another name")).expect("linked");
        },
        "record.json has 2 hard links",
    ),
    (
        |bench, folder| {
            fs::rename(folder.join("submission.json"), bench.path().join("submission")).expect("moved");
            symlink(bench.path().join("submission"), folder.join("submission.json")).expect("linked");
        },
        "submission.json is a symbolic link",
    ),
    (
        |_, folder| {
            fs::remove_file(folder.join("record.json")).expect("removed");
            let made = Command::new("mkfifo").args(["-m", "600"]).arg(folder.join("record.json")).status();
            assert!(made.expect("mkfifo").success());
        },
        "record.json is not a regular file",
    ),
    (
        |_, folder| {
            fs::remove_file(folder.join("submission.json")).expect("removed");
            fs::create_dir(folder.join("submission.json")).expect("made");
        },
        "submission.json is not a regular file",
    ),
    (
        |_, folder| fs::remove_file(folder.join("record.json")).expect("removed"),
        "record.json is damaged: it is missing",
    ),
    (
        |_, folder| fs::remove_file(folder.join("owner.lock")).expect("removed"),
        "owner.lock is damaged: it is missing",
    ),
    (|_, folder| fs::write(folder.join("record.json"), "{}").expect("written"), "record.json is damaged"),
    (
        |_, folder| fs::write(folder.join("submission.json"), vec![0; 700]).expect("written"),
        "submission.json is damaged",
    ),
];

#[tokio::test]
async fn a_harmed_session_is_set_aside_by_name_and_the_others_run() {
    let (mut bench, all) = killed_with_waiting(HARMS.len() + 1).await;
    let (first, rest) = all.split_first().expect("sessions");
    let (fine, harmed) = rest.split_last().expect("sessions");
    for ((harm, _), submission) in HARMS.iter().zip(harmed) {
        harm(&bench, &active(&bench, submission.run_id()));
    }
    bench.start();
    let client = bench.client().await;
    for ((_, why), submission) in HARMS.iter().zip(harmed) {
        let run_id = submission.run_id();
        let error = client.status(run_id).await.expect_err(why);
        assert_eq!(error.refusal(), Some("Damaged"), "{why}: {error}");
        assert!(error.to_string().contains(why), "{why}: {error}");
        assert!(error.to_string().contains(&run_id.to_string()), "{error}");
        let again = client.submit(submission, Some(b"its input".to_vec())).await;
        assert_eq!(refusal(again), "Damaged", "{why}: it may have run");
        let kept = bench.spool().join("damaged").join(run_id.to_string());
        assert!(kept.symlink_metadata().is_ok(), "{why}: kept");
        assert!(active(&bench, run_id).symlink_metadata().is_err(), "{why}: out of the way");
    }
    bench.write("go", "");
    for submission in [first, fine] {
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!((status.end(), starts(&bench, submission.run_id())), (Some("completed"), 1));
    }
    assert!(harmed.iter().all(|s| starts(&bench, s.run_id()) == 0));
    // It stays so.
    bench.kill();
    bench.start();
    let client = bench.client().await;
    for submission in harmed {
        assert_eq!(refusal(client.status(submission.run_id()).await), "Damaged");
    }
}

#[tokio::test]
async fn an_input_that_is_not_what_was_submitted_is_not_run() {
    let (mut bench, all) = killed_with_waiting(2).await;
    fs::write(active(&bench, all[1].run_id()).join("input"), "its inpuT").expect("written");
    bench.start();
    bench.write("go", "");
    let client = bench.client().await;
    let status = client.wait(all[1].run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
    assert!(
        status.is_uncertain() && status.text("error").contains("is not what was admitted"),
        "{:?}",
        status.json()
    );
    let status = client.wait(all[2].run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
    assert_eq!(status.end(), Some("completed"));
    let status = client.reconcile(all[1].run_id()).await.expect("reconciles");
    assert_eq!((status.end(), starts(&bench, all[1].run_id())), (Some("interrupted"), 0));
    assert!(status.text("error").contains("is not what was admitted"), "{}", status.text("error"));
}

#[tokio::test]
async fn a_session_that_is_owned_stays_where_it_is_although_its_record_is_damaged() {
    let mut bench = Bench::new();
    let client = bench.client().await;
    let submission = noted(&bench, "until [ -e go ]; do sleep 0.02; done; echo done >\"done-$ID\"");
    let run_id = submission.run_id();
    client.submit(&submission, None).await.expect("submits");
    client.wait(run_id, WaitFor::Started, PATIENCE).await.expect("starts");
    bench.kill();
    fs::write(active(&bench, run_id).join("record.json"), "{").expect("written");
    bench.start();
    let client = bench.client().await;
    assert_eq!(refusal(client.status(run_id).await), "Damaged");
    assert_eq!(refusal(client.submit(&submission, None).await), "Damaged");
    assert!(active(&bench, run_id).exists(), "its executor is at work in there");
    bench.write("go", "");
    let outcome = active(&bench, run_id).join("outcome.json");
    super::support::until("it goes on to its end", || outcome.exists());
    assert_eq!((bench.read(&format!("done-{run_id}")).as_str(), starts(&bench, run_id)), ("done\n", 1));
    // Nobody owns it any more: without another restart it is set aside like any other.
    let aside = bench.spool().join("damaged").join(run_id.to_string());
    super::support::until("it is set aside", || aside.exists());
    assert_eq!(refusal(client.status(run_id).await), "Damaged");
    assert!(aside.join("outcome.json").exists(), "untouched");
}

/// The executor is dead and cannot be asked, the files cannot be trusted, and the program lives.
#[tokio::test]
async fn what_a_damaged_session_left_running_is_ended_before_it_is_set_aside() {
    for file in ["record.json", "claim.json"] {
        let mut bench = Bench::new();
        let client = bench.client().await;
        let submission = noted(
            &bench,
            "(trap '' TERM; setsid sh -c 'echo $$ >hidden; exec sleep 600' &); echo $$ >main; exec sleep 600",
        );
        let run_id = submission.run_id();
        client.submit(&submission, None).await.expect("submits");
        super::support::until("it runs", || {
            bench.read("hidden").ends_with('\n') && bench.read("main").ends_with('\n')
        });
        bench.kill();
        let executor = nix::unistd::Pid::from_raw(super::support::executor_of(&bench.read("main")));
        nix::sys::signal::kill(executor, nix::sys::signal::Signal::SIGKILL).expect("kills");
        fs::write(active(&bench, run_id).join(file), "{").expect("written");
        assert!(super::support::lives(&bench.read("main")) && super::support::lives(&bench.read("hidden")));
        bench.start();
        let client = bench.client().await;
        let error = client.status(run_id).await.expect_err("is damaged").to_string();
        assert!(error.contains("2 processes that it had left running were ended"), "{file}: {error}");
        assert!(!super::support::lives(&bench.read("main")) && !super::support::lives(&bench.read("hidden")));
        assert_eq!(
            (refusal(client.submit(&submission, None).await).as_str(), starts(&bench, run_id)),
            ("Damaged", 1)
        );
    }
}

/// Nothing that is asked of a session that could not be read is answered as if it were done.
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
#[tokio::test]
async fn a_session_that_could_not_be_read_is_looked_at_by_whoever_asks() {
    let (mut bench, all) = killed_with_waiting(1).await;
    let run_id = all[1].run_id();
    // Both cannot be read at the start, nor can the one when it is asked for first.
    bench.environment(
        "AIROUTER_FAULTS",
        "read:record.json:1:EIO,read:record.json:2:EIO,read:record.json:3:EIO",
    );
    bench.start();
    let client = bench.client().await;
    assert_eq!(refusal(client.cancel(run_id).await), "StorageFailed");
    let status = client.cancel(run_id).await.expect("it can be read now");
    assert_eq!(
        status.json().get("cancel-requested"),
        Some(&true.into()),
        "{:?}\n{}",
        status.json(),
        bench.log()
    );
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    // The one that runs has its place, though nothing else is known of it.
    assert_eq!((status.end(), starts(&bench, run_id)), (Some("cancelled"), 0));
    bench.write("go", "");
    let status = client.wait(all[0].run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), starts(&bench, all[0].run_id())), (Some("completed"), 1));
}

/// A disk that does not answer when the service starts says nothing of its sessions.
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
#[tokio::test]
async fn a_session_that_cannot_be_read_at_the_start_goes_on_when_it_can() {
    let (mut bench, all) = killed_with_waiting(2).await;
    bench.environment("AIROUTER_FAULTS", "read:record.json:1:EIO,read:record.json:3:EMFILE");
    bench.write("go", "");
    bench.start();
    let client = bench.client().await;
    for submission in &all {
        let run_id = submission.run_id();
        // It may not be readable yet.
        while !client.status(run_id).await.is_ok_and(|status| status.is_over()) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(client.status(run_id).await.expect("a status").end(), Some("completed"));
        assert_eq!(starts(&bench, run_id), 1);
    }
    assert!(bench.log().contains("can be read again"), "{}", bench.log());
}

#[tokio::test]
async fn foreign_things_are_left_alone() {
    let (mut bench, all) = killed_with_waiting(1).await;
    let spool = bench.spool();
    let foreign = ["active/notes", "active/not-a-session", "ended/lost+found", "notes", "damaged/x"];
    for name in foreign {
        fs::create_dir(spool.join(name)).expect("made");
        fs::write(spool.join(name).join("inside"), "kept").expect("written");
    }
    let inside = active(&bench, all[1].run_id()).join("a note of mine");
    fs::write(&inside, "kept").expect("written");
    fs::create_dir(spool.join("active/.new-half-done")).expect("made");
    bench.start();
    bench.write("go", "");
    let client = bench.client().await;
    for submission in &all {
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!((status.end(), starts(&bench, submission.run_id())), (Some("completed"), 1));
    }
    for name in foreign {
        assert_eq!(fs::read_to_string(spool.join(name).join("inside")).expect("there"), "kept", "{name}");
    }
    let inside = super::ended(&bench, all[1].run_id()).join("a note of mine");
    assert_eq!(fs::read_to_string(inside).expect("moved with its session"), "kept");
    assert!(!spool.join("active/.new-half-done").exists(), "what a crash left half done goes");
}

async fn listed(bench: &Bench) -> Vec<RunId> {
    let client = bench.client().await;
    let (sessions, _) = client.list(&Filter::default()).await.expect("lists");
    sessions.iter().map(|s| s.run_id().expect("run_id")).collect()
}

#[tokio::test]
async fn the_list_of_the_ended_is_built_again_whatever_became_of_it() {
    let mut bench = Bench::new();
    let mut all = Vec::new();
    for _ in 0..3 {
        all.insert(0, bench.run("true").await.0);
    }
    let log = bench.spool().join("ended.log");
    let harms: [fn(&Path); 8] = [
        |log| fs::remove_file(log).expect("removed"),
        |log| fs::write(log, "").expect("written"),
        |log| fs::write(log, vec![0xff; 100_000]).expect("written"),
        |log| {
            let mut bytes = fs::read(log).expect("read");
            let at = bytes.len() - 60;
            bytes[at] ^= 4;
            fs::write(log, bytes).expect("written");
        },
        |log| set_mode(log, 0o666),
        |log| {
            fs::remove_file(log).expect("removed");
            symlink("/etc/passwd", log).expect("linked");
        },
        |log| {
            fs::remove_file(log).expect("removed");
            fs::create_dir(log).expect("made");
        },
        |log| fs::hard_link(log, log.with_extension("too")).expect("linked"),
    ];
    for (number, harm) in harms.iter().enumerate() {
        bench.stop();
        harm(&log);
        bench.start();
        assert_eq!(listed(&bench).await, all, "harm {number}");
        all.insert(0, bench.run("true").await.0);
        assert_eq!(listed(&bench).await, all, "harm {number}");
    }
}

#[tokio::test]
async fn a_log_of_the_removed_that_cannot_be_used_is_named_and_nothing_runs_twice() {
    let mut bench = Bench::new();
    let (known, _) = bench.run("true").await;
    let log = bench.spool().join("removed.log");
    // Whole lines of garbage name nobody.
    bench.stop();
    fs::write(&log, "garbage\n\0\0\0\nmore").expect("written");
    set_mode(&log, 0o600);
    bench.start();
    let (_, status) = bench.run("true").await;
    assert_eq!(status.end(), Some("completed"));
    // A file that others could have changed tells nothing of anybody: what is not here may have been removed.
    bench.stop();
    set_mode(&log, 0o666);
    bench.start();
    let client = bench.client().await;
    let error = client.submit(&noted(&bench, "true"), None).await.expect_err("refused");
    assert_eq!(error.refusal(), Some("Damaged"), "{error}");
    assert!(error.to_string().contains("removed.log has mode 0666"), "{error}");
    assert_eq!(client.status(known).await.expect("what is here is known").end(), Some("completed"));
    set_mode(&log, 0o600);
    client.submit(&noted(&bench, "true"), None).await.expect("taken without a restart");
}
