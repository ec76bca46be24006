//! Damage to the small files of a session: every bit and every length through the library, some through the daemon.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use airouter_sessiond::client::WaitFor;
use airouter_sessiond::spool::SessionDir;

use super::support::{Bench, PATIENCE, until};
use super::{active, ended, noted, refusal, starts};

const SMALL: [&str; 4] = ["submission.json", "claim.json", "record.json", "outcome.json"];

/// What a file says, in full, or that it is damaged. Anything else is a failure.
fn read(dir: &SessionDir, name: &str) -> Option<String> {
    let text = match name {
        "submission.json" => dir.submission().map(|value| format!("{value:?}")),
        "claim.json" => dir.claim().map(|value| format!("{value:?}")),
        "record.json" => dir.record().map(|value| format!("{value:?}")),
        _ => dir.outcome().map(|value| format!("{value:?}")),
    };
    match text {
        Ok(text) => Some(text),
        Err(error) => {
            assert!(error.is_damage() && error.to_string().contains(name), "{error}");
            None
        }
    }
}

#[tokio::test]
async fn every_flipped_bit_and_every_length_is_the_whole_truth_or_damage() {
    let bench = Bench::new();
    let (run_id, _) = bench.run("echo '{\"n\":1}'").await;
    let folder = ended(&bench, run_id);
    let dir = SessionDir::open(&folder).expect("opens");
    for name in SMALL {
        let right = read(&dir, name).expect("is fine");
        let bytes = fs::read(folder.join(name)).expect("read");
        let file = File::options().write(true).open(folder.join(name)).expect("opens");
        let last = bytes.len() - 1;
        for (at, &byte) in bytes.iter().enumerate() {
            for bit in 0..8 {
                file.write_all_at(&[byte ^ (1 << bit)], at as u64).expect("written");
                assert_eq!(read(&dir, name), None, "{name}: bit {bit} of byte {at}");
            }
            file.write_all_at(&[byte], at as u64).expect("written");
        }
        for length in (0..bytes.len()).rev() {
            file.set_len(length as u64).expect("cut");
            // Without its last line feed a file still says everything.
            let expected = (length == last).then(|| right.clone());
            assert_eq!(read(&dir, name), expected, "{name}: {length} bytes");
        }
        file.write_all_at(&bytes, 0).expect("written");
        assert_eq!(read(&dir, name), Some(right));
    }
}

fn truncated(path: &Path, length: usize) {
    File::options().write(true).open(path).and_then(|file| file.set_len(length as u64)).expect("cut");
}

#[tokio::test]
async fn an_ended_session_with_a_damaged_file_says_so_and_runs_no_more() {
    let mut bench = Bench::new();
    let submission = noted(&bench, "echo '{\"n\":1}'");
    let run_id = submission.run_id();
    let (_, right) = bench.run_submission(&submission, None).await;
    let events = bench.events(run_id).await;
    for restart in [false, true] {
        if restart {
            bench.kill();
            bench.start();
        }
        let client = bench.client().await;
        for name in SMALL {
            let path = ended(&bench, run_id).join(name);
            let bytes = fs::read(&path).expect("read");
            let mut flipped = bytes.clone();
            flipped[bytes.len() / 2] ^= 1;
            let mut harmed: Vec<Vec<u8>> =
                [0, 1, bytes.len() / 2, bytes.len() - 2].iter().map(|&at| bytes[..at].to_vec()).collect();
            harmed.push(flipped);
            for harmed in harmed {
                truncated(&path, 0);
                fs::write(&path, &harmed).expect("written");
                match client.status(run_id).await {
                    // The status does not rest on what was submitted or claimed.
                    Ok(status) => {
                        assert!(["submission.json", "claim.json"].contains(&name), "{name}");
                        assert_eq!(status.json(), right.json());
                    }
                    Err(error) => {
                        assert_eq!(error.refusal(), Some("Damaged"), "{name}: {error}");
                        assert!(error.to_string().contains(name), "{error}");
                    }
                }
                // The same session, or damage: never a new one.
                if let Err(error) = client.submit(&submission, None).await {
                    assert_eq!(error.refusal(), Some("Damaged"), "{name}: {error}");
                }
                assert_eq!(starts(&bench, run_id), 1, "{name}");
            }
            fs::write(&path, &bytes).expect("written");
            assert_eq!(client.status(run_id).await.expect("whole again").json(), right.json());
        }
    }
    assert_eq!(bench.events(run_id).await, events);
}

/// A session whose executor and daemon were both killed while its program ran.
async fn interrupted() -> (Bench, airouter_sessiond::model::Submission) {
    let mut bench = Bench::new();
    let client = bench.client().await;
    let submission = noted(&bench, "echo $PPID >executor; echo '{\"n\":1}'; sleep 45");
    client.submit(&submission, None).await.expect("submits");
    until("it runs", || bench.read("executor").ends_with('\n'));
    bench.kill();
    let executor = bench.read("executor").trim().parse().expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(executor), nix::sys::signal::Signal::SIGKILL)
        .expect("kill");
    until("it is gone", || !super::support::lives(&bench.read("executor")));
    (bench, submission)
}

#[tokio::test]
async fn an_interrupted_session_with_a_damaged_file_is_never_run_again() {
    for name in ["submission.json", "claim.json", "record.json"] {
        for part in [0, 2] {
            let (mut bench, submission) = interrupted().await;
            let run_id = submission.run_id();
            let path = active(&bench, run_id).join(name);
            let half = fs::metadata(&path).expect("there").len() as usize * part / 4;
            truncated(&path, half);
            bench.start();
            let client = bench.client().await;
            if name == "submission.json" {
                // It was claimed with everything that it needs.
                let status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
                assert!(status.is_uncertain(), "{:?}", status.json());
                assert_eq!(client.reconcile(run_id).await.expect("reconciles").end(), Some("interrupted"));
            } else {
                assert_eq!(refusal(client.status(run_id).await), "Damaged", "{name}");
                assert_eq!(refusal(client.submit(&submission, None).await), "Damaged", "{name}");
                assert!(bench.spool().join("damaged").join(run_id.to_string()).exists(), "{name}");
            }
            let (_, other) = bench.run("true").await;
            assert_eq!((other.end(), starts(&bench, run_id)), (Some("completed"), 1), "{name}");
        }
    }
}
