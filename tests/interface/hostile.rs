//! Clients that do not behave: bounded, and nobody else notices.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zbus::Message;

use super::*;

/// A connection past the handshake, without a library.
async fn raw(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).await.expect("connects");
    stream.write_all(b"\0AUTH EXTERNAL\r\nDATA\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"AGREE_UNIX_FD\r\n") {
        assert_ne!(soon(stream.read_buf(&mut answer)).await.unwrap(), 0);
    }
    stream
}

async fn is_closed(stream: &mut UnixStream) {
    let mut rest = Vec::new();
    // Reset or end of file: closed either way.
    let _ = soon(stream.read_to_end(&mut rest)).await;
}

fn ping() -> Message {
    Message::method_call("/", "Ping").interface("org.freedesktop.DBus.Peer").build(&()).unwrap()
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused_and_the_connection_lives() {
    let private = Private::serve().await;
    let client = private.client().await;
    let (name, text) = refusal(call(&client, "Status", &("x".repeat(33 << 20),)).await);
    assert_eq!(name, "LimitsExceeded", "{text}");
    let (name, text) = refusal(call(&client, "Status", &("x".repeat(300 << 10),)).await);
    assert_eq!(name, "LimitsExceeded", "{text}");
    call(&client, "List", &(nothing(),)).await.expect("the connection lives");
}

#[tokio::test]
async fn descriptors_where_none_belong_are_refused_and_closed() {
    let private = Private::serve().await;
    let client = private.client().await;
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..20 {
        let file = std::fs::File::open("/dev/null").unwrap();
        let options = HashMap::from([("raw", Variant::from(zbus::Fd::from(&file)))]);
        let (name, _) =
            refusal(call(&client, "Follow", &(RunId::random().to_string(), "start", options)).await);
        assert_eq!(name, "LimitsExceeded");
    }
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(after < before + 20, "{before} descriptors before, {after} after");
}

#[tokio::test]
async fn calls_without_reading_answers_are_not_read_further() {
    let private = Private::serve().await;
    let stream = raw(&private.path).await;
    // Until neither the kernel nor the service takes any more.
    let mut calls = 0;
    loop {
        let message = ping();
        let write = async {
            let mut sent = 0;
            while sent < message.data().len() {
                stream.writable().await.unwrap();
                if let Ok(n) = stream.try_write(&message.data()[sent..]) {
                    sent += n;
                }
            }
        };
        if tokio::time::timeout(Duration::from_millis(500), write).await.is_err() {
            break;
        }
        calls += 1;
        assert!(calls < 100_000, "the service reads without bound");
    }
    call(&private.client().await, "List", &(nothing(),)).await.expect("others are served");
}

#[tokio::test]
async fn garbage_ends_only_its_own_connection() {
    let private = Private::serve().await;
    let client = private.client().await;
    for bytes in [&[0xff; 64][..], b"l\x01\0\x01\xff\xff\xff\xff\x01\0\0\0\xff\xff\xff\xff", &[b'l'; 4096]] {
        let mut stream = raw(&private.path).await;
        let _ = stream.write_all(bytes).await;
        is_closed(&mut stream).await;
    }
    for bytes in [&b"\n"[..], b"\0AUTH EXTERNAL\r\n\n", b"\0BEGIN\r\n"] {
        let mut stream = UnixStream::connect(&private.path).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        is_closed(&mut stream).await;
    }
    call(&client, "List", &(nothing(),)).await.expect("others are served");
}

#[tokio::test]
async fn silent_connections_have_a_bound_and_keep_nobody_out() {
    let private = Private::serve().await;
    let client = private.client().await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(UnixStream::connect(&private.path).await.unwrap());
    }
    call(&client, "List", &(nothing(),)).await.expect("open connections are served");
    let newcomer = soon(raw(&private.path)).await;
    is_closed(&mut silent[0]).await;
    drop((silent, newcomer));
    call(&private.client().await, "List", &(nothing(),)).await.expect("everybody is served");
}

#[tokio::test]
async fn a_serial_number_in_use_is_refused() {
    let private = Private::serve().await;
    let mut stream = raw(&private.path).await;
    let run_id = RunId::random();
    call(&private.client().await, "Submit", &(minimal(run_id),)).await.expect("is taken");
    let wait = Message::method_call(PATH, "Wait")
        .interface(NAME)
        .build(&(run_id.to_string(), "finished", 0_u32))
        .unwrap();
    stream.write_all(wait.data()).await.unwrap();
    let mut waiting = private.engine.waiting.subscribe();
    soon(waiting.wait_for(|n| *n == 1)).await.unwrap();
    stream.write_all(wait.data()).await.unwrap();
    // Signals come here too.
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains("is not answered yet") {
        assert_ne!(soon(stream.read_buf(&mut answer)).await.unwrap(), 0);
    }
    assert_eq!(*waiting.borrow(), 1);
}

#[tokio::test]
async fn another_account_is_refused_even_where_the_files_let_it_in() {
    if !nix::unistd::getuid().is_root() {
        eprintln!("skipped: only root can connect as another account");
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let private = Private::serve().await;
    for path in private.path.ancestors().take(3) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let ping = |uid: u32| {
        let mut command = std::process::Command::new("dbus-send");
        command.arg(format!("--peer=unix:path={}", private.path.display()));
        command.args(["--print-reply", "/", "org.freedesktop.DBus.Peer.Ping"]).uid(uid).gid(uid);
        async move { soon(tokio::task::spawn_blocking(move || command.output())).await.unwrap() }
    };
    let Ok(ours) = ping(0).await else {
        eprintln!("skipped: dbus-send is not installed");
        return;
    };
    assert!(ours.status.success());
    let theirs = ping(65534).await.unwrap();
    assert!(!theirs.status.success());
    let said = String::from_utf8_lossy(&theirs.stderr);
    assert!(!said.contains("Permission denied"), "refused by the file system, not by the service: {said}");
}
