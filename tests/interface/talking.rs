//! Messages to a session's program and answers to its questions, on both transports.

use airouter_sessiond::client::Client;
use airouter_sessiond::model::{Answer, MessageMode, Receipt};
use futures_util::StreamExt;
use zbus::message::{Flags, Type};
use zbus::{Message, MessageStream};

use super::fake::question;
use super::subscriptions::is;
use super::userbus::{Bus, Home, start};
use super::*;

const SESSION: &str = "org.airouter.Session1";

type Dictionary = HashMap<String, zbus::OwnedVariant>;

/// A client with a session on one of the transports.
struct Talking {
    engine: Fake,
    client: zbus::Connection,
    run_id: RunId,
    _served: Box<dyn std::any::Any>,
}

impl Talking {
    async fn new(engine: Fake, client: zbus::Connection, served: impl std::any::Any) -> Talking {
        let run_id = RunId::random();
        call(&client, "Submit", &(minimal(run_id),)).await.expect("is taken");
        Talking { engine, client, run_id, _served: Box::new(served) }
    }

    async fn private() -> Talking {
        let private = Private::serve().await;
        Talking::new(private.engine.clone(), private.client().await, private).await
    }

    /// Nothing where there is no bus to be had.
    async fn on_bus() -> Option<Talking> {
        let home = Home::new();
        let bus: Bus = start(&home.address(), None)?;
        let served = home.serve().await;
        Some(Talking::new(home.engine.clone(), home.client().await, (served, bus, home)).await)
    }

    /// One for each transport.
    async fn both() -> Vec<Talking> {
        std::iter::once(Talking::private().await).chain(Talking::on_bus().await).collect()
    }

    fn id(&self) -> String {
        self.run_id.to_string()
    }

    async fn send(&self, method: &str, request_id: &str, text: &str) -> zbus::Result<Message> {
        call(&self.client, method, &(self.id(), request_id, text)).await
    }

    async fn answer(&self, id: &str, answer: &[(&str, &str)]) -> zbus::Result<Message> {
        call(&self.client, "Answer", &(self.id(), id, dictionary(answer))).await
    }

    /// A call of the session's own object.
    async fn own<B>(&self, method: &str, body: &B) -> zbus::Result<Message>
    where
        B: serde::Serialize + zbus::wire::DynamicType,
    {
        let path = bus::session_path(self.run_id);
        soon(self.client.call_method(Some(NAME), path, Some(SESSION), method, body)).await
    }
}

fn dictionary<'a>(texts: &[(&'a str, &'a str)]) -> HashMap<&'a str, Variant<'a>> {
    texts.iter().map(|&(key, text)| (key, Variant::from(text))).collect()
}

fn texts(reply: zbus::Result<Message>) -> [String; 3] {
    let body = reply.expect("is taken").body();
    let mut status: Dictionary = body.deserialize().expect("a dictionary");
    assert_eq!(status.len(), 3, "{status:?}");
    ["request-id", "mode", "receipt"].map(|key| String::try_from(status.remove(key).unwrap()).unwrap())
}

#[tokio::test]
async fn messages_are_sent_once_and_have_receipts() {
    for talking in Talking::both().await {
        assert_eq!(texts(talking.send("Steer", "a", "left").await), ["a", "steer", "stored"]);
        assert_eq!(texts(talking.send("Steer", "a", "left").await), ["a", "steer", "seen"]);
        assert_eq!(texts(talking.send("FollowUp", "b", "right").await), ["b", "follow-up", "stored"]);
        assert_eq!(texts(talking.own("Steer", &("c", "on")).await), ["c", "steer", "stored"]);
        assert_eq!(texts(talking.own("FollowUp", &("b", "right")).await), ["b", "follow-up", "seen"]);
        let messages = talking.engine.messages.lock().unwrap();
        let kept: Vec<_> =
            messages.iter().map(|sent| (sent.request_id.as_str(), sent.text.as_str())).collect();
        assert_eq!(kept, [("a", "left"), ("b", "right"), ("c", "on")]);
    }
}

#[tokio::test]
async fn refused_messages_are_told_why() {
    for talking in Talking::both().await {
        for (id, text) in [("a", "left"), ("b", "right"), ("c", "on")] {
            talking.send("Steer", id, text).await.expect("is taken");
        }
        let mute = RunId::random();
        let mut submission = minimal(mute);
        submission.insert("profile", Variant::from("mute"));
        call(&talking.client, "Submit", &(submission,)).await.expect("is taken");
        let to = async |run_id: &str| call(&talking.client, "Steer", &(run_id, "a", "left")).await;
        let long = "x".repeat(16_385);
        for (result, name, text) in [
            (talking.send("FollowUp", "a", "left").await, "MessageChanged", "under a new request_id"),
            (talking.send("Steer", "a", "secret").await, "MessageChanged", "\"a\""),
            (talking.send("Steer", "d", "off").await, "TooManyMessages", "3 messages"),
            (talking.send("Steer", "", "left").await, "InvalidArgument", "request_id: must be 1 to 256"),
            (talking.send("Steer", "e", " ").await, "InvalidArgument", "text: is empty"),
            (
                talking.own("Steer", &("e", long.as_str())).await,
                "InvalidArgument",
                "text: is 16385 characters",
            ),
            (to(&mute.to_string()).await, "Unsupported", "takes no messages"),
            (to(&RunId::random().to_string()).await, "NotFound", "List"),
            (to("nonsense").await, "InvalidArgument", "nonsense"),
            (
                call(&talking.client, "Steer", &(talking.id(), "a")).await,
                "InvalidArgument",
                "Steer takes (s run_id, s request_id, s text), got (ss)",
            ),
            (
                talking.own("FollowUp", &("a",)).await,
                "InvalidArgument",
                "FollowUp takes (s request_id, s text), got (s)",
            ),
        ] {
            let (refused, said) = refusal(result);
            assert_eq!(refused, name, "{said}");
            assert!(said.starts_with(&format!("{name}: ")) && said.contains(text), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }
}

#[tokio::test]
async fn messages_arrive_in_the_order_in_which_they_were_sent() {
    for talking in Talking::both().await {
        let (first, second) = (talking.send("Steer", "1", "a"), talking.send("FollowUp", "2", "b"));
        let third = talking.own("Steer", &("3", "c"));
        let (first, second, third) = tokio::join!(first, second, third);
        for sent in [first, second, third] {
            assert_eq!(texts(sent)[2], "stored");
        }
        let messages = talking.engine.messages.lock().unwrap();
        let order: Vec<_> = messages.iter().map(|sent| sent.request_id.as_str()).collect();
        assert_eq!(order, ["1", "2", "3"]);
    }
}

#[tokio::test]
async fn what_nobody_wants_to_be_answered_has_its_effect() {
    for talking in Talking::both().await {
        talking.engine.ask(talking.run_id, question("q1", &[]));
        let quiet = |method: &'static str| {
            let call = Message::method_call(PATH, method).interface(NAME).destination(NAME);
            call.with_flags(Flags::NO_REPLY_EXPECTED)
        };
        let steer = quiet("Steer").build(&(talking.id(), "a", "left")).unwrap();
        let answer = quiet("Answer").build(&(talking.id(), "q1", dictionary(&[("text", "blue")]))).unwrap();
        talking.client.send(&steer).await.unwrap();
        talking.client.send(&answer).await.unwrap();
        // Calls about one session take effect in the order sent: the answer to this one tells that those did.
        call(&talking.client, "Status", &(talking.id(),)).await.expect("answers");
        assert_eq!(talking.engine.messages.lock().unwrap().len(), 1);
        assert_eq!(talking.engine.answers.lock().unwrap()["q1"].text.as_deref(), Some("blue"));
    }
}

/// The next signal of that name, and everything that came before it.
async fn until_signal(messages: &mut MessageStream, member: &str) -> (Message, Vec<Message>) {
    let mut before = Vec::new();
    loop {
        let message = soon(messages.next()).await.expect("a message").expect("readable");
        if is(&message, member) {
            return (message, before);
        }
        before.push(message);
    }
}

/// How many questions the next change of the session's property shows.
async fn next_count(messages: &mut MessageStream) -> usize {
    loop {
        let (changed, _) = until_signal(messages, "PropertiesChanged").await;
        let body = changed.body();
        let (interface, mut values, _): (String, Dictionary, Vec<String>) = body.deserialize().unwrap();
        if interface == SESSION
            && let Some(value) = values.remove("Questions")
        {
            assert_eq!(value.value_signature(), "aa{sv}");
            let questions: Vec<Dictionary> = value.try_into().expect("dictionaries");
            return questions.len();
        }
    }
}

#[tokio::test]
async fn a_question_is_shown_told_of_and_answered() {
    for talking in Talking::both().await {
        if talking.client.is_bus() {
            let bus = zbus::fdo::DBusProxy::new(&talking.client).await.expect("a bus");
            let rule = zbus::MatchRule::builder().msg_type(Type::Signal).build().expect("a rule");
            bus.add_match_rule(rule).await.expect("is added");
        }
        let mut messages = MessageStream::from(&talking.client);
        let mut asked = question("q1", &["allow", "deny"]);
        (asked.tool, asked.takes_text) = (Some("Bash".into()), true);
        talking.engine.ask(talking.run_id, asked);
        let (signal, _) = until_signal(&mut messages, "QuestionAsked").await;
        let told: (String, String) = signal.body().deserialize().unwrap();
        assert_eq!(told, (talking.id(), "q1".to_owned()));
        assert_eq!(next_count(&mut messages).await, 1);

        let reply = call(&talking.client, "Status", &(talking.id(),)).await.expect("answers");
        let mut status: Dictionary = reply.body().deserialize().unwrap();
        let questions: Vec<Dictionary> =
            status.remove("questions").unwrap().try_into().expect("dictionaries");
        let mut keys: Vec<_> = questions[0].keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["about", "asked", "choices", "question", "takes-text", "tool"]);

        for (result, name, text) in [
            (talking.answer("q1", &[("choice", "maybe")]).await, "InvalidArgument", "allow, deny"),
            (talking.answer("q1", &[]).await, "InvalidArgument", "answer.choice: is missing"),
            (
                talking.answer("q1", &[("choice", "allow"), ("colour", "red")]).await,
                "InvalidArgument",
                "answer.colour: is no known key; known are choice, text",
            ),
            (
                call(
                    &talking.client,
                    "Answer",
                    &(talking.id(), "q1", HashMap::from([("choice", Variant::from(1))])),
                )
                .await,
                "InvalidArgument",
                "answer.choice: must be s (text), and is an integer",
            ),
            (talking.answer("q2", &[("choice", "allow")]).await, "UnknownQuestion", "\"q2\""),
            (
                talking.own("Answer", &("q1",)).await,
                "InvalidArgument",
                "Answer takes (s question, a{sv} answer)",
            ),
        ] {
            let (refused, said) = refusal(result);
            assert_eq!(refused, name, "{said}");
            assert!(said.contains(text), "{said}");
        }

        let reply =
            talking.own("Answer", &("q1", dictionary(&[("choice", "deny"), ("text", "not today")]))).await;
        let reply = reply.expect("is taken");
        assert_eq!(reply.body().signature().to_string(), "");
        // Everything that was sent so far stands in the stream: the reply, then what it causes.
        let (signal, before) = until_signal(&mut messages, "QuestionSettled").await;
        let told: (String, String) = signal.body().deserialize().unwrap();
        assert_eq!(told, (talking.id(), "q1".to_owned()));
        let number = reply.header().reply_serial();
        assert!(
            before.iter().any(|message| message.header().reply_serial() == number),
            "the reply comes first"
        );
        assert_eq!(next_count(&mut messages).await, 0);
        // A stream that nobody reads stops its connection when it is full.
        drop(messages);

        talking.answer("q1", &[("choice", "deny"), ("text", "not today")]).await.expect("the same again");
        let (refused, said) = refusal(talking.answer("q1", &[("choice", "allow")]).await);
        assert_eq!(refused, "QuestionSettled", "{said}");
        let kept = talking.engine.answers.lock().unwrap()["q1"].clone();
        assert_eq!(kept, Answer { choice: Some("deny".into()), text: Some("not today".into()) });
    }
}

#[tokio::test]
async fn profiles_tell_what_their_sessions_can_do() {
    let talking = Talking::private().await;
    let get = (NAME, "Profiles");
    let properties = Some("org.freedesktop.DBus.Properties");
    let reply = soon(talking.client.call_method(Some(NAME), PATH, properties, "Get", &get)).await.unwrap();
    let value: zbus::OwnedVariant = reply.body().deserialize().unwrap();
    let mut profiles: HashMap<String, Dictionary> = value.try_into().expect("dictionaries");
    let features: Vec<String> =
        profiles.get_mut("echo").unwrap().remove("features").unwrap().try_into().unwrap();
    assert_eq!(features, ["steer", "questions"]);
    assert!(profiles["gone"].contains_key("problem") && !profiles["gone"].contains_key("features"));
}

#[tokio::test]
async fn the_client_talks_in_types() {
    let private = Private::serve().await;
    let client = soon(Client::connect_socket(&private.path)).await.expect("connects");
    let submission = airouter_sessiond::model::Submission::new(RunId::random(), "echo");
    let run_id = submission.run_id();
    soon(client.submit(&submission, None)).await.expect("is taken");
    let sent = soon(client.steer(run_id, "a", "left")).await.expect("is taken");
    assert_eq!(
        (sent.request_id.as_str(), sent.mode, sent.receipt),
        ("a", MessageMode::Steer, Receipt::Stored)
    );
    let sent = soon(client.follow_up(run_id, "b", "right")).await.expect("is taken");
    assert_eq!((sent.mode, sent.receipt), (MessageMode::FollowUp, Receipt::Stored));
    let refused = soon(client.follow_up(run_id, "a", "left")).await.expect_err("is another mode");
    assert_eq!(refused.refusal(), Some("MessageChanged"));
    let refused = soon(client.steer(run_id, "c", "a\0b")).await.expect_err("cannot travel");
    assert_eq!(
        refused.to_string().split(';').next(),
        Some("InvalidArgument: text: has a NUL character, which D-Bus does not carry")
    );

    private.engine.ask(run_id, question("q1", &["allow"]));
    let status = soon(client.status(run_id)).await.expect("answers");
    assert!(status.asks());
    assert_eq!(status.typed().expect("this version's words").questions, [question("q1", &["allow"])]);
    let answer = Answer { choice: Some("allow".into()), text: None };
    soon(client.answer(run_id, "q1", &answer)).await.expect("is taken");
    soon(client.answer(run_id, "q1", &answer)).await.expect("is the same");
    assert!(!soon(client.status(run_id)).await.expect("answers").asks());
    let refused = soon(client.answer(run_id, "q1", &Answer::default())).await.expect_err("is another");
    assert_eq!(refused.refusal(), Some("QuestionSettled"));
}
