//! Too many connections, bytes, descriptors.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use zbus::Variant;

use super::support::until;
use super::wire::{Wire, call};
use super::{NAME, OBJECT, Way, resident};

/// What none of it may add to the service's memory, in KiB. One message that is taken has at most 32 MiB.
const MEMORY: u64 = 40 << 10;

#[tokio::test]
async fn two_thousand_silent_connections_lock_nobody_out() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(8_192).max(soft), hard).expect("limits");
    let way = Way::private();
    let before = (way.memory(), way.descriptors());
    let socket = way.bench.socket();
    let connect = || UnixStream::connect(&socket).expect("somebody accepts");
    let silent: Vec<UnixStream> = (0..2_000).map(|_| connect()).collect();
    let took = way.serves_others().await;
    let after = (way.memory(), way.descriptors());
    eprintln!(
        "{} silent connections: memory and descriptors of the service {before:?} {after:?}; a session of others {took:?}",
        silent.len()
    );
    assert!(after.0 < before.0 + MEMORY && after.1 < before.1 + 256, "{before:?} {after:?}");
    drop(silent);
    until("all descriptors come back", || way.descriptors() <= before.1 + 8);
}

#[tokio::test]
async fn the_largest_message_there_is_is_not_kept() {
    // The specification's limit for a message, with its header.
    let body = "x".repeat((128 << 20) - 1024);
    for way in Way::all() {
        let before = (way.memory(), way.bus.map(resident));
        let address = way.address.clone();
        let message = call("Status", &(&body,));
        let taken = tokio::task::spawn_blocking(move || {
            let mut wire = Wire::open(&address);
            (wire.send(&message), wire)
        });
        let (whole, wire) = taken.await.expect("no panic");
        way.serves_others().await;
        let after = (way.memory(), way.bus.map(resident));
        eprintln!(
            "{}: 128 MiB, taken whole: {whole}; memory of service and bus {before:?} {after:?} KiB",
            way.name
        );
        assert!(after.0 < before.0 + MEMORY, "{}: {before:?} {after:?}", way.name);
        drop(wire);
        way.serves_others().await;
    }
}

#[tokio::test]
async fn as_many_descriptors_as_a_message_carries_do_not_stay() {
    for way in Way::all() {
        way.serves_others().await;
        let before = way.descriptors();
        let mut refused = 0;
        for _ in 0..10 {
            let file = std::fs::File::open("/dev/null").expect("is there");
            let many: Vec<zbus::Fd<'_>> = (0..253).map(|_| zbus::Fd::from(&file)).collect();
            let connection = way.connection().await;
            let body = (HashMap::from([("attachments", Variant::from(many))]),);
            let sent = connection.call_method(Some(NAME), OBJECT, Some(NAME), "Submit", &body);
            // The bus, or the service, refuses it or closes.
            let answer = tokio::time::timeout(super::PATIENCE, sent).await.expect("is not left waiting");
            refused += usize::from(answer.is_err());
            if refused == 1 {
                eprintln!("{}: 253 descriptors: {:?}", way.name, answer.err());
            }
        }
        assert_eq!(refused, 10, "{}", way.name);
        way.serves_others().await;
        until("no descriptor stays", || way.descriptors() <= before + 8);
    }
}
