//! Kills at random moments of conversations: whoever dies, each message is taken at most once and in order, each answer is
//! given at most once, and no receipt says more than is known.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::support::random::Random;
use super::*;

/// What is said in each round, in this order.
const WORDS: [&str; 5] = ["on", "ask", "on", "ask on", "on"];
const ROUNDS: u32 = 300;

/// What a sender knows of a conversation.
#[derive(Debug, Default)]
struct Known {
    /// The best receipt that an answer told, by message.
    receipts: BTreeMap<String, Receipt>,
    /// The questions whose answers were acknowledged.
    answered: Vec<String>,
    /// The session takes no more.
    over: bool,
}

/// Says everything, and answers what is asked, whatever becomes of the daemon.
async fn converse(socket: PathBuf, run_id: RunId) -> Known {
    let mut known = Known::default();
    for (n, text) in WORDS.iter().enumerate() {
        say_one(&socket, run_id, &format!("m{n}"), text, &mut known).await;
        answer_all(&socket, run_id, &mut known).await;
    }
    known
}

async fn connected(socket: &Path) -> Client {
    let begun = Instant::now();
    loop {
        match Client::connect_socket(socket).await {
            Ok(client) => return client,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

async fn say_one(socket: &Path, run_id: RunId, id: &str, text: &str, known: &mut Known) {
    let begun = Instant::now();
    while !known.over {
        match connected(socket).await.steer(run_id, id, text).await {
            Ok(sent) => {
                known.receipts.insert(id.to_owned(), sent.receipt);
                return;
            }
            Err(error) if error.refusal().is_none() => {
                assert!(begun.elapsed() < PATIENCE, "{id} is never taken: {error}");
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            Err(error) => {
                assert_eq!(error.refusal(), Some("NotRunning"), "{error}");
                known.over = true;
            }
        }
    }
}

/// Answers what is open now.
async fn answer_all(socket: &Path, run_id: RunId, known: &mut Known) {
    let client = connected(socket).await;
    let Ok(status) = client.status(run_id).await else { return };
    let questions = status.typed().expect("known words").questions;
    for question in questions {
        let id = question.question;
        match client.answer(run_id, &id, &choose("allow")).await {
            Ok(()) => known.answered.push(id),
            Err(error) => {
                // The daemon died, or the session ended, or its executor died and nobody has settled that yet.
                let refusal = error.refusal();
                assert!(matches!(refusal, None | Some("QuestionSettled" | "NotRunning")), "{id}: {error}");
            }
        }
    }
}

/// Kills whoever this number names, at once: the daemon, the executor, both.
fn strike(talk: &mut Talk, run_id: RunId, whom: u64) {
    let victim = executors(run_id).first().copied();
    if whom != 1 {
        talk.bench.kill();
    }
    if let (1 | 2, Some(victim)) = (whom, victim) {
        // It may have ended by itself meanwhile, but nothing else has its pid so soon.
        let _ = nix::sys::signal::kill(Pid::from_raw(victim), Signal::SIGKILL);
    }
    if whom != 1 {
        talk.bench.start();
    }
}

/// Brings the session to its end.
async fn finished(talk: &Talk, run_id: RunId, known: &mut Known) -> SessionStatus {
    let client = talk.bench.client().await;
    let socket = talk.bench.socket();
    let begun = Instant::now();
    loop {
        let status = client.wait(run_id, WaitFor::Attention, Duration::from_millis(30)).await.expect("waits");
        if status.is_uncertain() {
            return client.reconcile(run_id).await.expect("reconciles");
        }
        if status.is_over() {
            return status;
        }
        say_one(&socket, run_id, "last", "done", known).await;
        answer_all(&socket, run_id, known).await;
        let (json, log) = (status.json(), talk.bench.log());
        assert!(begun.elapsed() < PATIENCE, "never ends: {json:?} {known:?}\n{log}");
    }
}

/// Starts another daemon if this one died of the point.
#[cfg(feature = "crash-points")]
fn revive(talk: &mut Talk) {
    if talk.bench.died() {
        talk.bench.reap();
        talk.bench.start();
    }
}

#[cfg(feature = "crash-points")]
#[tokio::test]
async fn a_death_at_every_step_of_a_conversation_keeps_what_was_said() {
    use airouter_sessiond::crash;
    for point in crash::ALL.into_iter().chain(crash::TALKING) {
        let mut talk = Talk::prepared("");
        let reached = talk.bench.path().join("reached");
        talk.bench.environment(crash::VARIABLE, &format!("{point}:{}", reached.display()));
        talk.bench.start();
        let submission = talk.submission();
        let run_id = submission.run_id();
        let begun = Instant::now();
        while let Err(error) = submit(&talk, &submission).await {
            assert!(error.refusal().is_none() && begun.elapsed() < PATIENCE, "{point}: {error}");
            revive(&mut talk);
        }
        let socket = talk.bench.socket();
        let talking = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            runtime.block_on(async {
                let mut known = converse(socket.clone(), run_id).await;
                while !known.over && !is_over(&socket, run_id).await {
                    say_one(&socket, run_id, "last", "done", &mut known).await;
                    answer_all(&socket, run_id, &mut known).await;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                known
            })
        });
        while !(talking.is_finished() && reached.exists()) {
            assert!(begun.elapsed() < PATIENCE, "{point}: {:?}", talk.heard());
            revive(&mut talk);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // It may be dying of the last of them just now.
        let dies = point.starts_with("daemon.");
        if dies && talk.bench.client().await.status(run_id).await.is_err() {
            revive(&mut talk);
        }
        let mut known = talking.join().expect("no panic");
        let status = finished(&talk, run_id, &mut known).await;
        hold(&talk, run_id, &talk.heard(), &known, &status).await;
        let interrupted = point.starts_with("executor.")
            && !["executor.adopted", "executor.ended", "executor.outcome"].contains(&point);
        let end = if interrupted { "interrupted" } else { "completed" };
        assert_eq!(status.end(), Some(end), "{point}: {:?}", status.json());
    }
}

#[cfg(feature = "crash-points")]
async fn submit(talk: &Talk, submission: &Submission) -> Result<(), Error> {
    let client = Client::connect_socket(&talk.bench.socket()).await?;
    client.submit(submission, Some(b"ask".to_vec())).await.map(drop)
}

#[cfg(feature = "crash-points")]
async fn is_over(socket: &Path, run_id: RunId) -> bool {
    connected(socket).await.status(run_id).await.is_ok_and(|status| status.is_over() || status.is_uncertain())
}

/// Holds everything that can be seen of an ended conversation against what was promised.
async fn hold(talk: &Talk, run_id: RunId, heard: &[String], known: &Known, status: &SessionStatus) {
    let client = talk.bench.client().await;
    let events = talk.bench.events(run_id).await;
    let completed = status.end() == Some("completed");
    assert!(completed || status.end() == Some("interrupted"), "{:?}", status.json());
    assert!(!status.asks(), "{:?}", status.json());
    let numbers: Vec<u64> = events.iter().map(|entry| entry.seq).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "no hole: {numbers:?}");
    assert_eq!(events.iter().filter(|entry| entry.kind == "ended").count(), 1);
    assert_eq!(events.last().map(|entry| entry.kind.as_str()), Some("ended"));
    assert!(heard.iter().filter(|line| *line == "start").count() <= 1, "started at most once: {heard:?}");

    let taken = |id: &str| heard.iter().filter(|line| line.starts_with(&format!("steer {id} "))).count();
    let ids: Vec<String> = (0..WORDS.len()).map(|n| format!("m{n}")).chain(["last".to_owned()]).collect();
    let order: Vec<usize> = heard
        .iter()
        .filter_map(|line| ids.iter().position(|id| line.starts_with(&format!("steer {id} "))))
        .collect();
    assert!(order.is_sorted_by(|one, other| one < other), "once and in order: {heard:?}");
    let said = talk.said(run_id, "message").await;
    for (n, id) in ids.iter().enumerate() {
        let text = WORDS.get(n).copied().unwrap_or("done");
        let trail: Vec<&str> = said.iter().filter_map(|said| said.strip_suffix(&format!(" {id}"))).collect();
        let sent = match client.steer(run_id, id, text).await {
            Ok(sent) => sent.receipt,
            Err(error) => {
                assert_eq!(error.refusal(), Some("NotRunning"), "{id}: {error}");
                assert_eq!((known.receipts.get(id), taken(id)), (None, 0), "{id} was acknowledged");
                assert!(trail.is_empty(), "{id}: {trail:?}");
                continue;
            }
        };
        assert_eq!(refusal(client.steer(run_id, id, "other").await), "MessageChanged");
        match sent {
            Receipt::Seen => assert_eq!(taken(id), 1, "{id}: {heard:?}"),
            Receipt::Undeliverable => assert_eq!(taken(id), 0, "{id} came back: {heard:?}"),
            Receipt::Stored => assert!(!completed, "{id}: neither taken nor given back"),
            Receipt::Written => {}
        }
        if let Some(&before) = known.receipts.get(id) {
            let stays = matches!(before, Receipt::Seen | Receipt::Undeliverable);
            assert!(if stays { sent == before } else { sent >= before }, "{id}: {before:?}, then {sent:?}");
        }
        // Its records tell the same, each once.
        let last = trail.last().copied();
        let shown = serde_json::to_value(sent).expect("a word");
        assert!(last.is_none() || last == shown.as_str(), "{id}: {trail:?} and {sent:?}");
        let mut once = trail.clone();
        once.dedup();
        assert_eq!(once.len(), trail.len(), "{id}: {trail:?}");
    }

    let asked = talk.said(run_id, "question").await;
    let mut settled = talk.said(run_id, "question-settled").await;
    assert_eq!(settled.len(), asked.len(), "each is settled once: {asked:?} {settled:?}");
    for id in &known.answered {
        let carried = heard.iter().filter(|line| **line == format!("answer p{} allow", &id[1..])).count();
        assert!(carried <= 1, "{id} was answered {carried} times");
        assert!(!completed || carried == 1, "{id}: {heard:?}");
        client.answer(run_id, id, &choose("allow")).await.expect("the same answer, for ever");
        assert_eq!(refusal(client.answer(run_id, id, &choose("deny")).await), "QuestionSettled");
    }
    settled.retain(|how| how.starts_with("answered"));
    let carried = heard.iter().filter(|line| line.starts_with("answer p")).count();
    assert!(carried <= settled.len(), "nobody answered that: {heard:?} {settled:?}");
}

#[tokio::test]
async fn three_hundred_random_kills_of_conversations() {
    let mut talk = Talk::new();
    let begun = Instant::now();
    let mut random = Random::seeded();
    let mut ends = BTreeMap::<String, u32>::new();
    for round in 0..ROUNDS {
        let folder = talk.bench.path().join(format!("round-{round}"));
        std::fs::create_dir(&folder).expect("a folder");
        let mut submission = talk.submission();
        submission.directory = Some(folder.display().to_string());
        let run_id = submission.run_id();
        let client = talk.bench.client().await;
        client.submit(&submission, Some(b"ask".to_vec())).await.expect("submits");
        let socket = talk.bench.socket();
        // On a thread of its own: it goes on while this one waits for another daemon.
        let talking = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(converse(socket, run_id))
        });
        let (moment, whom) = (Duration::from_micros(random.below(250_000)), random.below(3));
        tokio::time::sleep(moment).await;
        strike(&mut talk, run_id, whom);
        let mut known = talking.join().expect("no panic");
        let status = finished(&talk, run_id, &mut known).await;
        let heard = std::fs::read_to_string(folder.join("heard")).unwrap_or_default();
        let heard: Vec<String> = heard.lines().map(str::to_owned).collect();
        eprintln!("seed {}, round {round}: {whom} after {moment:?}, {:?}", random.seed, status.end());
        hold(&talk, run_id, &heard, &known, &status).await;
        *ends.entry(status.end().unwrap_or_default().to_owned()).or_default() += 1;
        let _ = std::fs::remove_dir_all(folder);
    }
    eprintln!("seed {}: {ends:?} in {:?}", random.seed, begun.elapsed());
    assert_eq!(ends.len(), 2, "both kinds of end were reached: {ends:?}");
}
