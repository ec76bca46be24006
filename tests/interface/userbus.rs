//! A real bus: the name, its loss, other owners, other accounts, subscribers that do not read.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use airouter_sessiond::bus::{Standing, UserBus};
use futures_util::StreamExt;
use serde_json::json;
use zbus::MessageStream;

use super::subscriptions::{Events, activity, is, subscribe};
use super::*;

/// A message bus of our own.
pub struct Bus(Child);

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `dbus-daemon` at the address; nothing where it is not installed.
pub fn start(address: &str, config: Option<&Path>) -> Option<Bus> {
    let config = config.map_or("--session".to_owned(), |path| format!("--config-file={}", path.display()));
    let spawned = Command::new("dbus-daemon")
        .args(["--nofork", "--nopidfile", "--print-address=1", &format!("--address={address}"), &config])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: dbus-daemon is not installed");
            return None;
        }
        Err(error) => panic!("dbus-daemon does not start: {error}"),
    };
    // It prints where it listens once it does.
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("its address");
    assert!(line.starts_with("unix:"), "{line}");
    Some(Bus(child))
}

pub struct Home {
    directory: tempfile::TempDir,
    pub engine: Fake,
    face: Face,
}

impl Home {
    pub fn new() -> Self {
        let engine = Fake::new();
        let face = Face::new(Arc::new(engine.clone()), admission());
        Home { directory: tempfile::tempdir().unwrap(), engine, face }
    }

    pub fn address(&self) -> String {
        format!("unix:path={}/bus", self.directory.path().display())
    }

    pub async fn serve(&self) -> UserBus {
        let served = self.face.serve_user_bus(self.address());
        soon(served.settled()).await;
        served
    }

    pub async fn client(&self) -> zbus::Connection {
        soon(zbus::connection::Builder::address(self.address().as_str()).build()).await.expect("connects")
    }
}

/// Counts panics inside the library: its tasks swallow them.
fn library_panics() -> &'static std::sync::atomic::AtomicUsize {
    static PANICS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.location().is_some_and(|location| location.file().contains("zbus")) {
                PANICS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            usual(panic);
        }));
    });
    &PANICS
}

#[tokio::test]
async fn the_name_is_owned_and_taken_again_after_the_bus_was_away() {
    let panics = library_panics();
    let home = Home::new();
    let Some(bus) = start(&home.address(), None) else { return };
    let served = home.serve().await;
    assert_eq!(served.standing(), Standing::Serving);
    let client = home.client().await;
    call(&client, "Submit", &(minimal(RunId::random()),)).await.expect("is taken");
    let wait = {
        let client = client.clone();
        let run_id = home.engine.sessions.lock().unwrap().keys().next().unwrap().to_string();
        tokio::spawn(async move {
            let _ = call(&client, "Wait", &(run_id, "finished", 0_u32)).await;
        })
    };
    let mut waiting = home.engine.waiting.subscribe();
    soon(waiting.wait_for(|n| *n == 1)).await.unwrap();
    drop(bus);
    soon(served.stands(|standing| matches!(standing, Standing::NoBus(_)))).await;
    // Everybody on it is gone with it; the session is not.
    soon(waiting.wait_for(|n| *n == 0)).await.unwrap();
    wait.await.unwrap();
    std::fs::remove_file(home.directory.path().join("bus")).ok();
    let _bus = start(&home.address(), None).unwrap();
    assert_eq!(soon(served.stands(|standing| *standing == Standing::Serving)).await, Standing::Serving);
    call(&home.client().await, "List", &(nothing(),)).await.expect("serves again");
    home.face.stop();
    soon(served.closed()).await;
    let bus = zbus::fdo::DBusProxy::new(&home.client().await).await.unwrap();
    assert!(!bus.name_has_owner(NAME.try_into().unwrap()).await.unwrap());
    assert_eq!(panics.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_name_that_is_taken_is_taken_over_when_it_is_free() {
    let home = Home::new();
    let Some(_bus) = start(&home.address(), None) else { return };
    let owner = home.client().await;
    owner.request_name(NAME).await.unwrap();
    let served = home.serve().await;
    assert_eq!(served.standing(), Standing::NameTaken);
    owner.release_name(NAME).await.unwrap();
    soon(served.stands(|standing| *standing == Standing::Serving)).await;
}

#[tokio::test]
async fn no_bus_and_a_foreign_bus_are_told_apart() {
    let home = Home::new();
    let served = home.serve().await;
    assert!(matches!(served.standing(), Standing::NoBus(why) if why.contains("cannot be reached")));
    let Some(_bus) = start(&home.address(), None) else { return };
    let stranger = Admission { uid: admission().uid + 1, allow_root: false };
    let refused = Face::new(Arc::new(home.engine.clone()), stranger).serve_user_bus(home.address());
    let standing = soon(refused.settled()).await;
    assert!(matches!(standing, Standing::NoBus(why) if why.contains("belongs to the account")));
}

#[tokio::test]
async fn other_accounts_are_refused_before_anything_is_dispatched() {
    if !nix::unistd::getuid().is_root() {
        eprintln!("skipped: only root can call as another account");
        return;
    }
    let home = Home::new();
    // A bus that lets everybody in, in a directory that everybody can enter.
    let config = home.directory.path().join("open.conf");
    std::fs::write(
        &config,
        r#"<busconfig><type>session</type><listen>unix:tmpdir=/tmp</listen><auth>EXTERNAL</auth><policy context="default"><allow user="*"/>
        <allow send_destination="*"/><allow own="*"/><allow eavesdrop="true"/></policy></busconfig>"#,
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(home.directory.path(), mode(0o755)).unwrap();
    let Some(_bus) = start(&home.address(), Some(&config)) else { return };
    std::fs::set_permissions(home.directory.path().join("bus"), mode(0o777)).unwrap();
    let _served = home.serve().await;
    let as_nobody = |member: &'static str, interface: &'static str| {
        let address = home.address();
        async move {
            use std::os::unix::process::CommandExt;
            let output = tokio::task::spawn_blocking(move || {
                Command::new("dbus-send")
                    .args([&format!("--bus={address}"), "--print-reply", &format!("--dest={NAME}"), PATH])
                    .arg(format!("{interface}.{member}"))
                    .uid(65534)
                    .gid(65534)
                    .output()
            });
            let output = soon(output).await.unwrap().expect("dbus-send runs");
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        }
    };
    for (member, interface) in [
        ("Introspect", "org.freedesktop.DBus.Introspectable"),
        ("Ping", "org.freedesktop.DBus.Peer"),
        ("GetAll", "org.freedesktop.DBus.Properties"),
        ("List", NAME),
    ] {
        let (answered, said) = as_nobody(member, interface).await;
        assert!(!answered, "{member}");
        assert!(said.contains("AccessDenied") && said.contains("belongs to the account"), "{member}: {said}");
    }
    call(&home.client().await, "List", &(nothing(),)).await.expect("our account is served");
}

fn fill(engine: &Fake, bytes: usize) {
    for _ in 0..bytes / 1000 {
        engine.push("preview", json!({ "text": "x".repeat(1000) }));
    }
}

#[tokio::test]
async fn a_subscriber_that_answers_gets_everything() {
    let home = Home::new();
    let Some(_bus) = start(&home.address(), None) else { return };
    let _served = home.serve().await;
    fill(&home.engine, 2 << 20);
    home.engine.push("ended", json!({ "end": "completed" }));
    let all = home.engine.events.borrow().len();
    let client = home.client().await;
    // With an object server the library answers pings.
    let _ = client.object_server();
    let other = home.client().await;
    let mut others = MessageStream::from(&other);
    let mut messages = MessageStream::from(&client);
    subscribe(&client).await.expect("subscribes");
    let mut seen = 0;
    while seen < all {
        let (.., events, size) = activity(&mut messages).await;
        assert!(size <= 16 << 10);
        for (cursor, ..) in events {
            seen += 1;
            assert_eq!(cursor, format!("e-{seen}"));
        }
    }
    // Nobody else gets any of it.
    call(&other, "List", &(nothing(),)).await.unwrap();
    let first = soon(others.next()).await.unwrap().unwrap();
    assert!(!is(&first, "Activity"));
}

#[tokio::test]
async fn a_subscriber_that_does_not_answer_lags_and_can_go_on() {
    let home = Home::new();
    let Some(_bus) = start(&home.address(), None) else { return };
    let _served = home.serve().await;
    fill(&home.engine, 2 << 20);
    let client = home.client().await;
    let mut messages = MessageStream::from(&client);
    subscribe(&client).await.expect("subscribes");
    let (mut bytes, mut last) = (0, String::new());
    while bytes < 240 << 10 {
        let (_, next, _, size) = activity(&mut messages).await;
        bytes += size;
        last = next;
    }
    // From here on nothing happens but the time for the answer to the ping running out: it need not be waited for.
    tokio::time::pause();
    let resume = loop {
        let message = messages.next().await.expect("a message").expect("readable");
        if is(&message, "Lagged") {
            break message.body().deserialize::<(String, String)>().unwrap().1;
        }
        if is(&message, "Activity") {
            let body = message.body();
            bytes += body.len();
            last = body.deserialize::<(String, String, String, Events)>().unwrap().2;
        }
    };
    assert!(bytes < 300 << 10, "{bytes} bytes were sent without an answer");
    assert_eq!(resume, last);
}
