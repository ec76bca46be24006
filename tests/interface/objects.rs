//! Sessions as objects: there when Submit answers, told of, taken away.

use futures_util::StreamExt;
use zbus::fdo::{ManagedObjects, ObjectManagerProxy};
use zbus::{Message, MessageStream};

use super::subscriptions::is;
use super::*;

const SESSION: &str = "org.airouter.Session1";

async fn property(connection: &zbus::Connection, run_id: RunId, name: &str) -> zbus::Result<String> {
    let properties = Some("org.freedesktop.DBus.Properties");
    let path = bus::session_path(run_id);
    let reply = soon(connection.call_method(Some(NAME), path, properties, "Get", &(SESSION, name))).await?;
    let value: zbus::OwnedVariant = reply.body().deserialize()?;
    String::try_from(value)
}

async fn managed(connection: &zbus::Connection) -> ManagedObjects {
    let manager = ObjectManagerProxy::new(connection, NAME, PATH).await.unwrap();
    soon(manager.get_managed_objects()).await.unwrap()
}

async fn signal(messages: &mut MessageStream, member: &str) -> Message {
    loop {
        let message = soon(messages.next()).await.expect("a message").expect("readable");
        if is(&message, member) {
            return message;
        }
    }
}

#[tokio::test]
async fn the_path_in_the_answer_leads_to_the_session_at_once() {
    let private = Private::serve().await;
    let (client, other) = (private.client().await, private.client().await);
    let mut messages = MessageStream::from(&client);
    let run_id = RunId::random();
    call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
    for connection in [&client, &other, &private.client().await] {
        assert_eq!(property(connection, run_id, "RunId").await.unwrap(), run_id.to_string());
        assert_eq!(property(connection, run_id, "State").await.unwrap(), "accepted");
        assert_eq!(managed(connection).await.len(), 1);
    }
    let added = signal(&mut messages, "InterfacesAdded").await;
    let path = bus::session_path(run_id);
    assert!(
        added
            .body()
            .deserialize::<(zbus::ObjectPath<'_>, HashMap<String, HashMap<String, Variant<'_>>>)>()
            .unwrap()
            .0
            == path
    );

    private.engine.end(run_id);
    let changed = signal(&mut messages, "PropertiesChanged").await;
    assert_eq!(changed.header().path().unwrap(), &path);
    let body = changed.body();
    let (interface, values, _): (&str, HashMap<&str, Variant<'_>>, Vec<&str>) = body.deserialize().unwrap();
    assert_eq!(interface, SESSION);
    let mut names: Vec<_> = values.keys().copied().collect();
    names.sort();
    assert_eq!(names, ["End", "Phase", "State"]);
    assert_eq!(values["End"], Variant::from("completed"));
}

#[tokio::test]
async fn the_last_ended_stay_and_the_others_go() {
    let private = Private::serve().await;
    let client = private.client().await;
    let mut messages = MessageStream::from(&client);
    let open = RunId::random();
    call(&client, "Submit", &(minimal(open),)).await.expect("is taken");
    let ended: Vec<RunId> = (0..70).map(|_| RunId::random()).collect();
    for run_id in &ended[..64] {
        private.engine.end(*run_id);
        signal(&mut messages, "InterfacesAdded").await;
    }
    for (new, oldest) in ended[64..].iter().zip(&ended) {
        private.engine.end(*new);
        let removed = signal(&mut messages, "InterfacesRemoved").await;
        let (path, _): (zbus::OwnedObjectPath, Vec<String>) = removed.body().deserialize().unwrap();
        assert_eq!(*path, bus::session_path(*oldest));
    }
    // A stream that nobody reads stops its connection when it is full.
    drop(messages);
    let objects = managed(&client).await;
    assert_eq!(objects.len(), 65);
    for run_id in ended[6..].iter().chain([&open]) {
        assert!(objects.keys().any(|path| **path == bus::session_path(*run_id)));
        property(&client, *run_id, "State").await.expect("is there");
    }
    property(&client, ended[0], "State").await.expect_err("is gone");
}

#[tokio::test]
async fn what_was_there_before_has_objects_from_the_first_message() {
    let home = tempfile::tempdir().unwrap();
    let engine = Fake::new();
    let (run_id, path) = (RunId::random(), home.path().join("run/s"));
    engine.end(run_id);
    let face = Face::new(Arc::new(engine), admission());
    let _socket = face.serve_private(&path).unwrap();
    let client = client(&path).await;
    assert_eq!(property(&client, run_id, "End").await.unwrap(), "completed");
}

#[tokio::test]
async fn a_removed_session_has_no_object() {
    let private = Private::serve().await;
    let client = private.client().await;
    let mut messages = MessageStream::from(&client);
    let run_id = RunId::random();
    private.engine.end(run_id);
    signal(&mut messages, "InterfacesAdded").await;
    private.engine.sessions.lock().unwrap().clear();
    private.engine.changes.send(airouter_sessiond::service::Change::Removed(run_id)).unwrap();
    signal(&mut messages, "InterfacesRemoved").await;
    property(&client, run_id, "State").await.expect_err("is gone");
    assert!(managed(&client).await.is_empty());
}

#[tokio::test]
async fn a_removal_is_answered_before_it_is_told_of() {
    let private = Private::serve().await;
    let client = private.client().await;
    let mut messages = MessageStream::from(&client);
    let run_id = RunId::random();
    call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
    signal(&mut messages, "InterfacesAdded").await;
    let (name, text) = refusal(call(&client, "Remove", &(run_id.to_string(),)).await);
    assert_eq!(name, "NotSettled", "{text}");
    private.engine.end(run_id);
    signal(&mut messages, "PropertiesChanged").await;
    call(&client, "Remove", &(run_id.to_string(),)).await.expect("is removed");
    let mut answered = false;
    loop {
        let message = soon(messages.next()).await.expect("a message").expect("readable");
        answered |= message.message_type() == zbus::message::Type::MethodReturn;
        if is(&message, "SessionRemoved") {
            assert!(answered, "the answer comes first");
            let (id, path): (String, zbus::OwnedObjectPath) = message.body().deserialize().unwrap();
            assert_eq!((id, &*path), (run_id.to_string(), &bus::session_path(run_id)));
            break;
        }
    }
    signal(&mut messages, "InterfacesRemoved").await;
}

#[tokio::test]
async fn what_is_kept_is_told_and_pruned() {
    let private = Private::serve().await;
    let client = private.client().await;
    let run_id = RunId::random();
    private.engine.end(run_id);
    let storage = call(&client, "Storage", &()).await.expect("is told");
    let storage: HashMap<String, zbus::OwnedVariant> = storage.body().deserialize().unwrap();
    assert_eq!(storage["ended"].value_signature(), "t");
    assert_eq!(storage["retention"].value_signature(), "a{sv}");
    let prune = async |policy: HashMap<&str, Variant<'_>>| {
        let answer = call(&client, "Prune", &(policy,)).await.expect("is answered");
        let mut sessions: Vec<HashMap<String, zbus::OwnedVariant>> = answer.body().deserialize().unwrap();
        let session = sessions.pop().expect("one is due");
        assert_eq!(session["bytes"].value_signature(), "t");
        String::try_from(session["action"].try_clone().unwrap()).unwrap()
    };
    assert_eq!(prune(HashMap::new()).await, "would-remove");
    assert_eq!(prune(HashMap::from([("dry-run", Variant::from(false))])).await, "removed");
    let (name, text) = refusal(call(&client, "Prune", &(HashMap::from([("age", Variant::from(1))]),)).await);
    assert_eq!(name, "InvalidArgument");
    assert!(
        text.contains("known are dry-run, acknowledged, older-than-seconds, keep-bytes, limit"),
        "{text}"
    );
}

#[tokio::test]
async fn a_session_answers_for_itself() {
    let private = Private::serve().await;
    let client = private.client().await;
    let run_id = RunId::random();
    call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
    let path = bus::session_path(run_id);
    soon(client.call_method(Some(NAME), &path, Some(SESSION), "Cancel", &()))
        .await
        .expect("is asked to stop");
    let follow = ("start", nothing());
    let reply =
        soon(client.call_method(Some(NAME), &path, Some(SESSION), "Follow", &follow)).await.expect("follows");
    reply.body().deserialize::<zbus::OwnedFd>().expect("a pipe");
}
