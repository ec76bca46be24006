//! Subscriptions on the private socket: replay, live, sizes, ends.

use futures_util::StreamExt;
use serde_json::json;
use zbus::message::Type;
use zbus::{Message, MessageStream};

use super::*;

pub type Events = Vec<(String, u64, String, HashMap<String, zbus::OwnedVariant>)>;

/// The next `Activity`: from, next, events, and the size of its body.
pub async fn activity(messages: &mut MessageStream) -> (String, String, Events, usize) {
    loop {
        let message = soon(messages.next()).await.expect("a message").expect("readable");
        if is(&message, "Activity") {
            let body = message.body();
            let (_, from, next, events): (String, String, String, Events) = body.deserialize().unwrap();
            return (from, next, events, body.len());
        }
    }
}

pub fn is(message: &Message, member: &str) -> bool {
    message.message_type() == Type::Signal && message.header().member().is_some_and(|name| name == member)
}

pub async fn subscribe(client: &zbus::Connection) -> zbus::Result<u32> {
    let reply = call(client, "Subscribe", &(RunId::random().to_string(), "start", nothing())).await?;
    reply.body().deserialize()
}

#[tokio::test]
async fn replay_then_live_without_a_gap_after_the_reply() {
    let private = Private::serve().await;
    for n in 0..2000 {
        private.engine.push("preview", json!({ "text": format!("piece {n}") }));
    }
    let client = private.client().await;
    let mut messages = MessageStream::from(&client);
    subscribe(&client).await.expect("subscribes");
    // The reply is the first message, whatever there is to replay.
    assert_eq!(soon(messages.next()).await.unwrap().unwrap().message_type(), Type::MethodReturn);
    let (mut seen, mut cursor) = (0, "start".to_owned());
    while seen < 3001 {
        let (from, next, events, size) = activity(&mut messages).await;
        assert_eq!(from, cursor);
        assert!(size <= 16 << 10, "{size}");
        for (at, ..) in &events {
            seen += 1;
            assert_eq!(*at, format!("e-{seen}"));
        }
        assert_eq!(events.last().unwrap().0, next);
        cursor = next;
        if seen == 2000 {
            for _ in 0..1000 {
                private.engine.push("preview", json!({ "text": "live" }));
            }
            private.engine.push("ended", json!({ "end": "completed" }));
        }
    }
}

#[tokio::test]
async fn a_record_larger_than_a_signal_is_shortened_and_says_so() {
    let private = Private::serve().await;
    let many: Vec<String> = (0..5000).map(|n| format!("line {n}")).collect();
    private.engine.push("tool-started", json!({ "tool": "1", "name": "x", "input": {"lines": many} }));
    private.engine.push("response-completed", json!({ "text": "y".repeat(1 << 20) }));
    private.engine.push("preview", json!({ "text": "small" }));
    let client = private.client().await;
    let mut messages = MessageStream::from(&client);
    subscribe(&client).await.expect("subscribes");
    let mut all = Vec::new();
    while all.len() < 3 {
        let (.., events, size) = activity(&mut messages).await;
        assert!(size <= 16 << 10, "{size}");
        all.extend(events);
    }
    assert!(all[0].3.contains_key("shortened") && all[0].3.contains_key("input-cut"));
    assert_eq!(u64::try_from(&all[1].3["text-cut"]).unwrap(), 1 << 20);
    assert!(all[1].3.contains_key("shortened"));
    assert!(!all[2].3.contains_key("shortened"));
}

#[tokio::test]
async fn unsubscribing_ends_it() {
    let private = Private::serve().await;
    let client = private.client().await;
    let mut messages = MessageStream::from(&client);
    let id = subscribe(&client).await.expect("subscribes");
    private.engine.push("preview", json!({ "text": "one" }));
    activity(&mut messages).await;
    call(&client, "Unsubscribe", &(id,)).await.expect("ends");
    call(&client, "Unsubscribe", &(id,)).await.expect("is ended already");
    private.engine.push("preview", json!({ "text": "two" }));
    // Whatever was on its way would come before this answer's successor: broadcasts go by the same connection.
    call(&client, "Submit", &(minimal(RunId::random()),)).await.expect("is taken");
    loop {
        let message = soon(messages.next()).await.unwrap().unwrap();
        assert!(!is(&message, "Activity"), "an event after the end");
        if is(&message, "SessionAdded") {
            break;
        }
    }
}

#[tokio::test]
async fn subscriptions_of_one_caller_have_a_bound() {
    let private = Private::serve().await;
    let client = private.client().await;
    for _ in 0..64 {
        subscribe(&client).await.expect("subscribes");
    }
    let refused = call(&client, "Subscribe", &(RunId::random().to_string(), "start", nothing())).await;
    assert_eq!(refusal(refused).0, "AtCapacity");
    subscribe(&private.client().await).await.expect("others have their own");
}

#[tokio::test]
async fn all_sessions_come_each_with_its_name_until_some_may_be_missing() {
    let private = Private::serve().await;
    let client = private.client().await;
    let (one, named) = (RunId::random(), RunId::random());
    call(&client, "Submit", &(minimal(one),)).await.expect("is taken");
    for n in 0..500 {
        private.engine.push("preview", json!({ "text": format!("piece {n}") }));
    }
    private.engine.push("ended", json!({ "end": "completed" }));
    let subscribe = async |cursor: &str, options: HashMap<&str, Variant<'_>>| {
        call(&client, "Subscribe", &("", cursor, options)).await
    };
    let cursors = |id: &str| {
        let cursors = HashMap::from([(id.to_owned(), "start".to_owned())]);
        HashMap::from([("cursors", Variant::from(cursors))])
    };
    assert_eq!(refusal(subscribe("e-1", nothing()).await).0, "InvalidCursor.Malformed");
    assert_eq!(refusal(subscribe("start", cursors("x")).await).0, "InvalidArgument");
    let (name, text) = refusal(subscribe("start", HashMap::from([("run_ids", Variant::from("x"))])).await);
    assert_eq!(name, "InvalidArgument");
    assert!(text.contains("known are cursors"), "{text}");

    let mut messages = MessageStream::from(&client);
    subscribe("start", cursors(&named.to_string())).await.expect("subscribes");
    let mut seen: HashMap<String, Vec<String>> = HashMap::new();
    loop {
        let message = soon(messages.next()).await.expect("a message").expect("readable");
        if is(&message, "Activity") {
            let body = message.body();
            assert!(body.len() <= 16 << 10);
            let (run_id, _, _, events): (String, String, String, Events) = body.deserialize().unwrap();
            seen.entry(run_id).or_default().extend(events.into_iter().map(|event| event.0));
        } else if is(&message, "Lagged") {
            let places: (String, String) = message.body().deserialize().unwrap();
            assert_eq!(places, (String::new(), String::new()));
            break;
        }
    }
    let right: Vec<String> = (1..=501).map(|n| format!("e-{n}")).collect();
    assert_eq!(seen, [one, named].map(|run_id| (run_id.to_string(), right.clone())).into());
}
