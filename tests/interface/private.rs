//! The private socket: calls, order, what ends with a connection.

use std::io::Write;
use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zbus::MessageStream;
use zbus::message::Type;

use super::*;

#[tokio::test]
async fn a_submission_arrives_whole() {
    let private = Private::serve().await;
    let client = private.client().await;
    let run_id = RunId::random();
    let mut submission = minimal(run_id);
    submission.insert("input", Variant::from("the prompt"));
    let reply = call(&client, "Submit", &(submission,)).await.expect("is taken");
    let body = reply.body();
    let (path, status): (zbus::ObjectPath<'_>, HashMap<String, zbus::OwnedVariant>) =
        body.deserialize().expect("an object and a status");
    assert_eq!(path, bus::session_path(run_id));
    assert_eq!(String::try_from(status["state"].try_clone().unwrap()).unwrap(), "accepted");
    let sessions = private.engine.sessions.lock().unwrap();
    assert_eq!(sessions[&run_id].1.as_deref(), Some(&b"the prompt"[..]));
}

#[tokio::test]
async fn the_reply_comes_before_the_signals_that_the_call_causes() {
    let private = Private::serve().await;
    let client = private.client().await;
    let mut messages = MessageStream::from(&client);
    private.engine.slow.store(true, Ordering::Relaxed);
    let submitted = {
        let client = client.clone();
        tokio::spawn(async move { call(&client, "Submit", &(minimal(RunId::random()),)).await.is_ok() })
    };
    // The service has told of the change by then, and the call is not answered.
    let mut changes = private.engine.changes.subscribe();
    let other = RunId::random();
    while private.engine.sessions.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    // Other sessions' changes are not held back.
    private.engine.changes.send(airouter_sessiond::service::Change::Added(other)).unwrap();
    soon(changes.recv()).await.unwrap();
    let first = soon(messages.next()).await.unwrap().unwrap();
    assert_eq!(first.message_type(), Type::Signal);
    assert!(first.body().deserialize::<(String, zbus::ObjectPath<'_>)>().unwrap().0 == other.to_string());
    private.engine.proceed.notify_one();
    let reply = soon(messages.next()).await.unwrap().unwrap();
    assert_eq!(reply.message_type(), Type::MethodReturn, "{reply:?}");
    let signal = soon(messages.next()).await.unwrap().unwrap();
    assert_eq!(signal.header().member().unwrap(), "SessionAdded");
    assert_eq!(signal.header().sender().unwrap(), ":1.0");
    assert!(submitted.await.unwrap());
}

#[tokio::test]
async fn calls_about_one_session_take_effect_in_the_order_sent() {
    let private = Private::serve().await;
    let client = private.client().await;
    let run_id = RunId::random();
    let (read, mut write) = std::io::pipe().unwrap();
    let mut submission = minimal(run_id);
    submission.insert("input-fd", Variant::from(zbus::Fd::from(std::os::fd::OwnedFd::from(read))));
    let submission = (submission,);
    let submit = call(&client, "Submit", &submission);
    let id = run_id.to_string();
    let id = (id.as_str(),);
    let status = call(&client, "Status", &id);
    let everything = (nothing(),);
    let other = call(&client, "List", &everything);
    let finish = async {
        // The submission waits for its input, and a call about nothing in particular does not wait for it.
        other.await.expect("answers");
        write.write_all(b"late").unwrap();
        drop(write);
    };
    let (submitted, known, ()) = tokio::join!(submit, status, finish);
    submitted.expect("is taken");
    known.expect("was sent after the submission");
}

#[tokio::test]
async fn a_wait_ends_with_its_caller() {
    let private = Private::serve().await;
    let client = private.client().await;
    let run_id = RunId::random();
    call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move {
            let _ = call(&client, "Wait", &(run_id.to_string(), "finished", 0_u32)).await;
        })
    };
    let mut count = private.engine.waiting.subscribe();
    soon(count.wait_for(|n| *n == 1)).await.unwrap();
    waiting.abort();
    client.close().await.unwrap();
    soon(count.wait_for(|n| *n == 0)).await.unwrap();
}

#[tokio::test]
async fn many_waits_leave_room_for_calls_and_have_a_bound() {
    let private = Private::serve().await;
    let client = private.client().await;
    let run_id = RunId::random();
    call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
    let waits: Vec<_> = (0..64)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                call(&client, "Wait", &(run_id.to_string(), "finished", 0_u32)).await.is_ok()
            })
        })
        .collect();
    let mut count = private.engine.waiting.subscribe();
    soon(count.wait_for(|n| *n == 64)).await.unwrap();
    call(&client, "Status", &(run_id.to_string(),)).await.expect("answers");
    let (name, _) = refusal(call(&client, "Wait", &(run_id.to_string(), "finished", 0_u32)).await);
    assert_eq!(name, "LimitsExceeded");
    private.engine.proceed.notify_waiters();
    for wait in waits {
        assert!(wait.await.unwrap());
    }
}

#[tokio::test]
async fn refusals_have_names_and_say_them() {
    let private = Private::serve().await;
    let client = private.client().await;
    let unknown = RunId::random().to_string();
    let cases = [
        (call(&client, "Status", &(unknown.as_str(),)).await, "NotFound"),
        (call(&client, "Status", &("nonsense",)).await, "InvalidArgument"),
        (call(&client, "Submit", &(nothing(),)).await, "InvalidSubmission"),
        (call(&client, "Subscribe", &(unknown.as_str(), "x", nothing())).await, "InvalidCursor.Malformed"),
        (call(&client, "Wait", &(unknown.as_str(), "lunch", 0_u32)).await, "InvalidArgument"),
        (call(&client, "Unsubscribe", &(9_u32,)).await, "InvalidArgument"),
    ];
    for (result, expected) in cases {
        let (name, text) = refusal(result);
        assert_eq!(name, expected);
        assert!(text.starts_with(&format!("{expected}: ")), "{text}");
    }
}

#[tokio::test]
async fn follow_gives_a_pipe() {
    let private = Private::serve().await;
    let client = private.client().await;
    let reply = call(&client, "Follow", &(RunId::random().to_string(), "start", nothing())).await.unwrap();
    let fd: zbus::OwnedFd = reply.body().deserialize().unwrap();
    let mut pipe = tokio::net::unix::pipe::Receiver::from_owned_fd(fd.into()).unwrap();
    let mut text = String::new();
    soon(pipe.read_to_string(&mut text)).await.unwrap();
    assert_eq!(text, "{}\n");
}

#[tokio::test]
async fn streams_have_a_bound_for_each_sender_and_for_all() {
    let private = Private::serve().await;
    let follow = async |client: &zbus::Connection| {
        call(client, "Follow", &(RunId::random().to_string(), "start", nothing())).await
    };
    let client = private.client().await;
    for _ in 0..64 {
        follow(&client).await.expect("there is room");
    }
    let (name, text) = refusal(follow(&client).await);
    assert_eq!(name, "AtCapacity");
    assert!(text.contains("close the descriptor"), "says what to do: {text}");
    private.engine.following.lock().unwrap().pop();
    follow(&client).await.expect("there is room again");
    // Streams outlive their connections: new connections do not make new room without end.
    client.close().await.unwrap();
    let mut open = 64;
    'connections: loop {
        let client = private.client().await;
        for _ in 0..64 {
            match follow(&client).await {
                Ok(_) => open += 1,
                Err(error) => {
                    assert_eq!(refusal(Err(error)).0, "AtCapacity");
                    break 'connections;
                }
            }
        }
        assert!(open <= 1024, "streams are opened without bound");
    }
    assert_eq!(open, 1024);
}

#[tokio::test]
async fn wrong_arguments_and_settings_are_refused_by_name() {
    let private = Private::serve().await;
    let client = private.client().await;
    let run_id = RunId::random();
    call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
    let (name, text) = refusal(call(&client, "Status", &(7_i32,)).await);
    assert_eq!(
        (name.as_str(), text.as_str()),
        ("InvalidArgument", "InvalidArgument: Status takes (s run_id), got (i)")
    );
    let session = bus::session_path(run_id);
    let cancel = client.call_method(Some(NAME), &session, Some("org.airouter.Session1"), "Cancel", &("x",));
    let (name, text) = refusal(soon(cancel).await);
    assert_eq!(
        (name.as_str(), text.as_str()),
        ("InvalidArgument", "InvalidArgument: Cancel takes (), got (s)")
    );
    let set = (NAME, "State", Variant::from("stopping"));
    let set = client.call_method(Some(NAME), PATH, Some("org.freedesktop.DBus.Properties"), "Set", &set);
    let (name, text) = refusal(soon(set).await);
    assert_eq!(name, "PropertyReadOnly");
    assert!(text.starts_with("PropertyReadOnly: "), "{text}");
}

#[tokio::test]
async fn changed_properties_are_told_once() {
    let private = Private::serve().await;
    let client = private.client().await;
    let mut messages = MessageStream::from(&client);
    call(&client, "List", &(nothing(),)).await.unwrap();
    soon(messages.next()).await.unwrap().unwrap();
    private.engine.facts.lock().unwrap().active = 3;
    for _ in 0..10 {
        private.face.refresh();
    }
    let changed = soon(messages.next()).await.unwrap().unwrap();
    assert_eq!(changed.header().member().unwrap(), "PropertiesChanged");
    let body = changed.body();
    let (interface, values, gone): (&str, HashMap<&str, Variant<'_>>, Vec<&str>) =
        body.deserialize().unwrap();
    assert_eq!((interface, gone.len()), (NAME, 0));
    assert_eq!(values, HashMap::from([("Active", Variant::from(3_u32))]));
}

#[tokio::test]
async fn stopping_takes_the_socket_away_and_ends_connections() {
    let private = Private::serve().await;
    let client = private.client().await;
    private.face.stop();
    soon(private.socket.closed()).await;
    soon(client.closed()).await;
    assert!(!private.path.exists());
}

/// Libraries that are made for buses take nothing before the answer to their Hello.
#[tokio::test]
async fn nothing_is_told_before_hello_is_answered_nor_what_nobody_asked_for() {
    let private = Private::serve().await;
    let mut stream = UnixStream::connect(&private.path).await.unwrap();
    stream.write_all(b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n").await.unwrap();
    let mut lines = Vec::new();
    while !lines.ends_with(b"\r\n") || !lines.windows(2).any(|two| two == b"OK") {
        lines.push(soon(stream.read_u8()).await.unwrap());
    }
    // Told while it is about to say Hello; another peer shows when all has been told.
    let other = private.client().await;
    call(&other, "List", &(nothing(),)).await.expect("is answered");
    let mut told = MessageStream::from(&other);
    for _ in 0..3 {
        private.engine.changes.send(airouter_sessiond::service::Change::Added(RunId::random())).unwrap();
        soon(told.next()).await.unwrap().unwrap();
    }
    for member in ["Hello", "GetId"] {
        let call = zbus::Message::method_call(BUS_PATH, member).interface(BUS).build(&()).unwrap();
        stream.write_all(call.data()).await.unwrap();
        let kind = next_message(&mut stream).await;
        assert_eq!(kind, Type::MethodReturn as u8, "the first message after {member}");
    }
}

const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

/// Reads a message; its type (specification, "Message Format").
async fn next_message(stream: &mut UnixStream) -> u8 {
    let mut head = [0; 16];
    soon(stream.read_exact(&mut head)).await.unwrap();
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
    let mut rest = vec![0; number(12).next_multiple_of(8) + number(4)];
    soon(stream.read_exact(&mut rest)).await.unwrap();
    head[1]
}

#[tokio::test]
async fn a_client_of_a_bus_is_served_as_on_one() {
    let private = Private::serve().await;
    // Not p2p: says Hello, and adds match rules, as on a bus.
    let address = format!("unix:path={}", private.path.display());
    let client =
        soon(zbus::connection::Builder::address(address.as_str()).build()).await.expect("says Hello");
    assert!(client.unique_name().unwrap().as_str().starts_with(":1."));
    let bus = zbus::fdo::DBusProxy::new(&client).await.unwrap();
    assert_eq!(bus.get_name_owner(NAME.try_into().unwrap()).await.unwrap().as_str(), ":1.0");
    assert!(!bus.name_has_owner("org.example.Nobody".try_into().unwrap()).await.unwrap());
    let proxy = zbus::Proxy::new(&client, NAME, PATH, NAME).await.unwrap();
    let mut added = proxy.receive_signal("SessionAdded").await.unwrap();
    let run_id = RunId::random();
    call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
    let signal = soon(added.next()).await.expect("a signal");
    assert_eq!(signal.body().deserialize::<(String, zbus::ObjectPath<'_>)>().unwrap().0, run_id.to_string());
}
