//! Clients that call while they are told something.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use futures_util::StreamExt;
use zbus::message::Type;
use zbus::{MessageStream, OwnedVariant};

use super::{NAME, OBJECT, PATIENCE, Way};

type Events = Vec<(String, u64, String, HashMap<String, OwnedVariant>)>;

#[tokio::test]
async fn a_client_may_call_from_inside_its_signal_handler() {
    for way in Way::all() {
        let submission = way.bench.script("seq -f '{\"n\":%.0f}' 20000");
        let id = submission.run_id().to_string();
        way.client().await.submit(&submission, None).await.expect("submits");
        let connection = way.connection().await;
        // The library answers the service's pings where there is an object server.
        let _ = connection.object_server();
        let mut stream = MessageStream::from(&connection);
        // As other libraries do: what comes during a call waits, however much it is.
        stream.set_max_queued(NonZeroUsize::new(100_000).expect("is not zero"));
        let call = async |method: &str, cursor: Option<&str>| {
            let (to, name) = (Some(NAME), Some(NAME));
            let answer = match cursor {
                Some(cursor) => connection.call_method(to, OBJECT, name, method, &(&id, cursor, 4_u32)).await,
                None => connection.call_method(to, OBJECT, name, method, &(&id,)).await,
            };
            answer.expect("is answered")
        };
        let body = (&id, "start", HashMap::<&str, OwnedVariant>::new());
        connection.call_method(Some(NAME), OBJECT, Some(NAME), "Subscribe", &body).await.expect("subscribes");
        let (mut lines, mut cursor, mut calls, mut ended) = (0, "start".to_owned(), 0, false);
        while !ended {
            let message = tokio::time::timeout(PATIENCE, stream.next())
                .await
                .expect("comes")
                .expect("one")
                .expect("readable");
            let header = message.header();
            let is_activity = header.member().is_some_and(|member| member == "Activity");
            if message.message_type() != Type::Signal || !is_activity {
                continue;
            }
            // Inside the handler: nothing further is taken from the stream before these are answered.
            tokio::time::timeout(PATIENCE, async {
                call("Status", None).await;
                call("Events", Some(&cursor)).await;
            })
            .await
            .expect("no deadlock");
            calls += 2;
            let (_, from, next, events): (String, String, String, Events) =
                message.body().deserialize().expect("an Activity");
            assert!(from == cursor || cursor == "start", "{}: {from} after {cursor}", way.name);
            cursor = next;
            lines += events.iter().filter(|(_, _, kind, _)| kind == "raw").count();
            ended = events.iter().any(|(_, _, kind, _)| kind == "ended");
        }
        eprintln!("{}: {lines} lines, {calls} calls from inside the handler", way.name);
        assert_eq!(lines, 20_000, "{}", way.name);
    }
}
