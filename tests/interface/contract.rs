//! `interfaces/*.xml` is what is served: the same methods, signals, properties, arguments, types and annotations.

#[path = "../support/shape.rs"]
mod shape;

use shape::{attributes, parse, shape};

use super::*;
use airouter_sessiond::model::{
    About, MessageMode, MessageStatus, PruneAction, PrunePolicy, Receipt, Settled,
};

async fn introspect(connection: &zbus::Connection, path: &str) -> String {
    let interface = Some("org.freedesktop.DBus.Introspectable");
    let reply = soon(connection.call_method(Some(NAME), path, interface, "Introspect", &())).await;
    reply.expect("introspects").body().deserialize().expect("a text")
}

#[tokio::test]
async fn the_documented_interface_is_the_served_one() {
    let private = Private::serve().await;
    let served = introspect(&private.client().await, PATH).await;
    let documented = include_str!("../../interfaces/org.airouter.Sessions1.xml");
    let (served, documented) = (shape(&parse(&served), NAME), shape(&parse(documented), NAME));
    assert!(documented.len() > 25, "{documented:#?}");
    assert_eq!(documented, served);
    for (member, arguments) in &documented {
        for argument in arguments {
            assert!(argument.contains("name="), "{member}: an argument without a name: {argument}");
        }
    }
}

#[tokio::test]
async fn the_documented_session_is_the_served_one() {
    let private = Private::serve().await;
    let client = private.client().await;
    let run_id = RunId::random();
    call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
    let served = introspect(&client, &bus::session_path(run_id)).await;
    let documented = include_str!("../../interfaces/org.airouter.Session1.xml");
    let session = "org.airouter.Session1";
    let (served, documented) = (shape(&parse(&served), session), shape(&parse(documented), session));
    assert_eq!(documented, served);
    assert_eq!(documented.len(), 14, "{documented:#?}");
}

#[test]
fn everything_documented_is_explained() {
    explained(include_str!("../../interfaces/org.airouter.Sessions1.xml"));
    explained(include_str!("../../interfaces/org.airouter.Session1.xml"));
}

fn explained(xml: &str) {
    for node in parse(xml).descendants() {
        if ["method", "signal", "property"].iter().any(|tag| node.has_tag_name(*tag)) {
            let before = node.prev_siblings().skip(1).find(|node| !node.is_text());
            assert!(before.is_some_and(|node| node.is_comment()), "{}", attributes(node));
        }
    }
}

#[test]
fn every_error_and_status_key_is_documented() {
    let documented = include_str!("../../interfaces/org.airouter.Sessions1.xml");
    let mut status = fake::status(RunId::random(), "echo");
    status.questions.push(fake::question("q1", &["allow"]));
    status.acknowledged = Some("e-1".into());
    let keys = serde_json::to_value(&status).expect("JSON");
    for key in keys.as_object().expect("an object").keys() {
        assert!(documented.contains(&format!("\n    {key} ")), "{key}");
    }
    for kind in airouter_sessiond::model::kind::ALL {
        assert!(documented.contains(kind), "{kind}");
    }
    for end in airouter_sessiond::model::End::ALL {
        assert!(documented.contains(&end.to_string()), "{end}");
    }
    for error in [
        "MessageChanged",
        "TooManyMessages",
        "Unsupported",
        "UnknownQuestion",
        "QuestionSettled",
        "NotSettled",
        "Kept",
    ] {
        assert!(documented.contains(&format!("\n    {error} ")), "{error}");
    }
    // Of what is kept: every key, and every word of an action.
    let storage = serde_json::to_value(fake::storage()).expect("JSON");
    let pruned = serde_json::to_value(fake::pruned(RunId::random())).expect("JSON");
    let policy = PrunePolicy {
        older_than_seconds: Some(1),
        keep_bytes: Some(1),
        limit: Some(1),
        ..PrunePolicy::default()
    };
    let policy = serde_json::to_value(policy).expect("JSON");
    let all = [&storage, &storage["retention"], &pruned, &policy];
    for key in all.into_iter().flat_map(|value| value.as_object().expect("an object").keys()) {
        assert!(documented.contains(key.as_str()), "{key}");
    }
    for action in [PruneAction::Removed, PruneAction::WouldRemove, PruneAction::Kept] {
        assert!(documented.contains(&action.to_string()), "{action}");
    }
    // Of what is said and asked: every key, and every word that a key may have.
    let mut question = fake::question("q1", &["allow"]);
    (question.takes_text, question.tool, question.expires) = (true, Some("sh".into()), Some(1));
    let message =
        MessageStatus { request_id: "1".into(), mode: MessageMode::Steer, receipt: Receipt::Stored };
    let values =
        [serde_json::to_value(question), serde_json::to_value(message)].map(|value| value.expect("JSON"));
    for key in values.iter().flat_map(|value| value.as_object().expect("an object").keys()) {
        assert!(documented.contains(&format!("{key} (")), "{key}");
    }
    let word =
        |value: serde_json::Result<serde_json::Value>| value.expect("JSON").as_str().unwrap().to_owned();
    let abouts = [About::Permission, About::Choice, About::Confirm, About::Text].map(serde_json::to_value);
    let settled =
        [Settled::Answered, Settled::Expired, Settled::Withdrawn, Settled::Ended].map(serde_json::to_value);
    let receipts = [Receipt::Stored, Receipt::Written, Receipt::Seen, Receipt::Undeliverable];
    let modes = [MessageMode::Steer, MessageMode::FollowUp].map(serde_json::to_value);
    for word in
        abouts.into_iter().chain(settled).chain(receipts.map(serde_json::to_value)).chain(modes).map(word)
    {
        assert!(documented.contains(&word), "{word}");
    }
}
