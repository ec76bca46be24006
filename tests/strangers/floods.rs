//! Calls without end.

use std::collections::HashMap;
use std::time::Duration;

use airouter_sessiond::client::WaitFor;
use airouter_sessiond::model::RunId;
use futures_util::future::join_all;
use zbus::{Message, Variant};

use super::support::PATIENCE;
use super::wire::{Wire, call};
use super::{NAME, OBJECT, Way, resident};

/// More than a session takes, and than any peer may have unanswered.
const CALLS: usize = 4_000;
/// What the service may keep of all that, in KiB: the bytes of unanswered calls have a bound of 64 MiB.
const MEMORY: u64 = 64 << 10;
/// Messages that a session takes.
const MESSAGES: usize = 128;

fn nothing() -> HashMap<&'static str, Variant<'static>> {
    HashMap::new()
}

/// Writes calls and reads no answer, until that many or until nobody takes more.
fn flood(address: &str, mut message: impl FnMut(usize) -> Message) -> usize {
    let mut wire = Wire::open(address);
    (0..CALLS).take_while(|&n| wire.send(&message(n))).count()
}

#[tokio::test]
async fn calls_whose_answers_nobody_reads_take_nothing_from_others() {
    for way in Way::all() {
        for _ in 0..8 {
            way.serves_others().await;
        }
        let before = (way.memory(), way.bus.map(resident));
        let run_id = RunId::random().to_string();
        let mut wires: Vec<Wire> = (0..4).map(|_| Wire::open(&way.address)).collect();
        let mut sent = 0;
        for wire in &mut wires {
            sent += (0..CALLS)
                .take_while(|n| {
                    wire.send(&match n % 4 {
                        0 => call("List", &(nothing(),)),
                        1 => call("Storage", &()),
                        2 => call("Status", &(&run_id,)),
                        _ => call("Submit", &(nothing(),)),
                    })
                })
                .count();
        }
        let took = way.serves_others().await;
        let after = (way.memory(), way.bus.map(resident));
        eprintln!(
            "{}: {sent} calls taken, answers unread; memory of service and bus {before:?} {after:?} KiB; a session of \
             others {took:?}",
            way.name
        );
        assert!(after.0 < before.0 + MEMORY, "{}: {before:?} {after:?}", way.name);
        drop(wires);
        way.serves_others().await;
    }
}

#[tokio::test]
async fn messages_without_end_reach_a_session_up_to_its_bound_and_hold_up_nobody() {
    for way in Way::all() {
        let run_id = way.talks("quiet").await;
        let id = run_id.to_string();
        let text = "x".repeat(16_000);
        let before = way.memory();
        let address = way.address.clone();
        let steers = {
            let (address, id, text) = (address.clone(), id.clone(), text.clone());
            tokio::task::spawn_blocking(move || {
                flood(&address, |n| {
                    let method = if n % 2 == 0 { "Steer" } else { "FollowUp" };
                    call(method, &(&id, format!("r{n}"), &text))
                })
            })
        };
        let others = {
            let (address, id) = (address.clone(), id.clone());
            tokio::task::spawn_blocking(move || {
                flood(&address, |n| match n % 4 {
                    0 => {
                        call("Answer", &(&id, format!("q{n}"), HashMap::from([("text", Variant::from("x"))])))
                    }
                    1 => call("Acknowledge", &(&id, "nonsense")),
                    2 => call("Remove", &(&id,)),
                    _ => call("Subscribe", &("", "end", nothing())),
                })
            })
        };
        let (steers, others) = tokio::join!(steers, others);
        let took = way.serves_others().await;
        let after = way.memory();
        eprintln!(
            "{}: {} messages and {} other calls taken, memory {before} {after} KiB; then a session of others {took:?}",
            way.name,
            steers.expect("ends"),
            others.expect("ends")
        );
        assert!(after < before + MEMORY, "{}: {before} {after}", way.name);
        let client = way.client().await;
        let status = client.status(run_id).await.expect("is there");
        assert_eq!(status.state(), "driving", "nothing of that ended it");
        // It fills up to its bound, then says so; what a flood left is room for no more than that.
        let mut taken = 0;
        let refused = loop {
            match client.steer(run_id, &format!("last-{taken}"), "quiet").await {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
            assert!(taken <= MESSAGES, "nothing bounds them");
        };
        assert_eq!(refused.refusal(), Some("TooManyMessages"), "{refused}");
        eprintln!("{}: {taken} more were taken after the flood", way.name);
        client.cancel(run_id).await.expect("cancels");
        let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!(status.end(), Some("cancelled"));
    }
}

#[tokio::test]
async fn a_thousand_looks_at_the_storage_at_once_stop_nobody() {
    for way in Way::all() {
        for _ in 0..4 {
            way.serves_others().await;
        }
        let connection = way.connection().await;
        let dry = || {
            HashMap::from([("dry-run", Variant::from(true)), ("older-than-seconds", Variant::from(0_u64))])
        };
        let looks = join_all((0..1_000).map(|n| {
            let connection = connection.clone();
            async move {
                let (object, name) = (OBJECT, Some(NAME));
                if n % 2 == 0 {
                    connection.call_method(name, object, name, "Storage", &()).await
                } else {
                    connection.call_method(name, object, name, "Prune", &(dry(),)).await
                }
            }
        }));
        let looks = tokio::spawn(looks);
        let mut slowest = Duration::ZERO;
        for _ in 0..4 {
            slowest = slowest.max(way.serves_others().await);
        }
        let looks = tokio::time::timeout(PATIENCE, looks).await.expect("all are answered").expect("no panic");
        let mut answered = 0;
        for look in looks {
            match look {
                Ok(_) => answered += 1,
                Err(zbus::Error::FDO(error)) if matches!(*error, zbus::fdo::Error::LimitsExceeded(_)) => {}
                Err(zbus::Error::MethodError(name, text, _)) => {
                    assert!(
                        name.ends_with(".LimitsExceeded") || name.ends_with(".AtCapacity"),
                        "{name} {text:?}"
                    );
                }
                Err(other) => panic!("{}: {other}", way.name),
            }
        }
        eprintln!(
            "{}: {answered} of 1000 answered; the slowest of four sessions of others {slowest:?}",
            way.name
        );
        assert!(answered >= 64, "{}: {answered}", way.name);
    }
}
