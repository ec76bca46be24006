//! The D-Bus face as clients meet it, over a service without sessions' machinery: the contract, the private socket,
//! a real bus, subscriptions.

mod contract;
mod fake;
mod hostile;
mod objects;
mod operator;
mod private;
mod subscriptions;
mod talking;
mod userbus;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use airouter_sessiond::bus::{self, Admission, Face, PrivateSocket};
use airouter_sessiond::model::RunId;
use fake::Fake;
use tokio::net::UnixStream;
use zbus::DBusError;
use zbus::wire::Variant;

const NAME: &str = bus::NAME;
const PATH: &str = bus::PATH;
/// Long enough for a busy machine; nothing here waits for it to pass.
const SOON: Duration = Duration::from_secs(20);

fn admission() -> Admission {
    Admission { uid: nix::unistd::getuid().as_raw(), allow_root: nix::unistd::getuid().is_root() }
}

/// A private socket over a fake service.
struct Private {
    engine: Fake,
    path: PathBuf,
    face: Face,
    socket: PrivateSocket,
    _home: tempfile::TempDir,
}

impl Private {
    async fn serve() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("run/sessiond.sock");
        let engine = Fake::new();
        let face = Face::new(Arc::new(engine.clone()), admission());
        let socket = face.serve_private(&path).expect("serves");
        Private { engine, path, face, socket, _home: home }
    }

    async fn client(&self) -> zbus::Connection {
        client(&self.path).await
    }
}

async fn client(path: &Path) -> zbus::Connection {
    let stream = UnixStream::connect(path).await.expect("connects").into_std().expect("a socket");
    soon(zbus::connection::Builder::unix_stream(stream).p2p().build()).await.expect("a connection")
}

/// The future's result, which must come soon.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("comes soon")
}

async fn call<B>(connection: &zbus::Connection, method: &str, body: &B) -> zbus::Result<zbus::Message>
where
    B: serde::Serialize + zbus::wire::DynamicType,
{
    soon(connection.call_method(Some(NAME), PATH, Some(NAME), method, body)).await
}

fn minimal(run_id: RunId) -> HashMap<&'static str, Variant<'static>> {
    let binding = HashMap::from([("run_id".to_owned(), Variant::from(run_id.to_string()))]);
    HashMap::from([
        ("version", Variant::from("airouter.sessions.v1")),
        ("binding", Variant::from(binding)),
        ("profile", Variant::from("echo")),
    ])
}

fn nothing() -> HashMap<&'static str, Variant<'static>> {
    HashMap::new()
}

/// The error's name without what all names begin with, and its text.
fn refusal(result: zbus::Result<zbus::Message>) -> (String, String) {
    match result.expect_err("must be refused") {
        zbus::Error::MethodError(name, text, _) => {
            let short = name.as_str().rsplit("Error.").next().unwrap_or_default().to_owned();
            (short, text.unwrap_or_default())
        }
        zbus::Error::FDO(error) => {
            let name = error.name().rsplit("Error.").next().unwrap_or_default().to_owned();
            (name, error.description().unwrap_or_default().to_owned())
        }
        other => panic!("no refusal: {other}"),
    }
}
