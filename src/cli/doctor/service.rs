//! Who answers.

use std::env;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};
use zbus::connection::Builder;

use super::{Check, framework};
use crate::client::{BUS_NAME, Client, Error, location};
use crate::config::{BusMode, Config};

/// How long anybody may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The service on its private socket.
pub async fn private_socket(socket: &Path) -> Vec<Check> {
    const NAME: &str = "socket";
    let shown = socket.display();
    match std::fs::symlink_metadata(socket) {
        Ok(found) if !found.file_type().is_socket() => {
            return vec![Check::fail(NAME, format!("{shown} is not a socket"), "move it away")];
        }
        Ok(_) => {}
        Err(_) => return vec![not_running(format!("{shown} is not there"))],
    }
    let ask = async {
        let client = Client::connect_socket(socket).await?;
        client.properties().await
    };
    match tokio::time::timeout(ANSWER_WITHIN, ask).await {
        Ok(Ok(properties)) => {
            let mut checks = vec![Check::ok(NAME, shown.to_string()), answering(&properties)];
            checks.extend(framework::undelivered(&properties));
            checks
        }
        Ok(Err(Error::NoService { .. })) => vec![not_running(format!("nobody listens on {shown}"))],
        Ok(Err(error)) => vec![Check::fail(NAME, error.to_string(), "look at the service's log")],
        Err(_) => vec![Check::fail(
            NAME,
            format!("the service on {shown} does not answer within {} seconds", ANSWER_WITHIN.as_secs()),
            "it may be stopped (SIGSTOP) or stuck: look at its log",
        )],
    }
}

/// What to do after an upgrade.
const UPGRADE: &str = "another program stands on disk than the one that runs: restart it, `systemctl --user restart airouter-sessiond`";

fn not_running(text: String) -> Check {
    let advice = "the next command starts it, or `systemctl --user start airouter-sessiond`";
    Check::warn("service", format!("{text}: no service runs"), advice)
}

fn answering(properties: &Map<String, Value>) -> Check {
    let text = |key: &str| properties.get(key).and_then(Value::as_str).unwrap_or("?");
    let number = |key: &str| properties.get(key).and_then(Value::as_u64).unwrap_or_default();
    let found = format!(
        "version {}, interface {}, {}, {} of {} running, {} of {} waiting, containment {}",
        text("Version"),
        number("InterfaceVersion"),
        text("State"),
        number("Active"),
        number("MaxActive"),
        number("Queued"),
        number("MaxQueued"),
        text("Containment")
    );
    if properties.get("UpgradePending") == Some(&Value::Bool(true)) {
        return Check::warn("service", found, UPGRADE);
    }
    match text("Version") == env!("CARGO_PKG_VERSION") {
        true => Check::ok("service", found),
        false => Check::warn(
            "service",
            found,
            format!("this program is {}: restart the service after an upgrade", env!("CARGO_PKG_VERSION")),
        ),
    }
}

/// The account's bus, and whether the service is on it. Asking for the name starts nothing.
pub async fn user_bus(config: &Config) -> Check {
    const NAME: &str = "bus";
    if config.bus == BusMode::Off {
        return Check::ok(NAME, "not used (bus = \"off\")");
    }
    let missing = |text: String| match config.bus {
        BusMode::Required => {
            Check::fail(NAME, text, "the daemon does not start without it (bus = \"required\")")
        }
        _ => Check::ok(NAME, format!("{text}; the private socket serves alone")),
    };
    let address = match env::var("DBUS_SESSION_BUS_ADDRESS") {
        Ok(address) if !address.is_empty() => address,
        _ => match location::bus_socket() {
            Some(path) => format!("unix:path={}", path.display()),
            None => return missing("this account has no bus".to_owned()),
        },
    };
    match tokio::time::timeout(ANSWER_WITHIN, has_owner(&address)).await {
        Ok(Ok(true)) => Check::ok(NAME, format!("{BUS_NAME} is served on {address}")),
        Ok(Ok(false)) => Check::warn(
            NAME,
            format!("{address} answers; nobody has the name {BUS_NAME} there"),
            "it is taken when the service runs with this bus",
        ),
        Ok(Err(error)) => missing(format!("{address}: {error}")),
        Err(_) => missing(format!("{address} does not answer")),
    }
}

async fn has_owner(address: &str) -> zbus::Result<bool> {
    const BUS: &str = "org.freedesktop.DBus";
    let connection = Builder::address(address).build().await?;
    let reply = connection
        .call_method(Some(BUS), "/org/freedesktop/DBus", Some(BUS), "NameHasOwner", &(BUS_NAME,))
        .await?;
    reply.body().deserialize()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Level;
    use super::*;

    #[test]
    fn another_version_is_said() {
        let properties = |version: &str| json!({"Version": version}).as_object().unwrap().clone();
        assert_eq!(answering(&properties(env!("CARGO_PKG_VERSION"))).level, Level::Ok);
        assert_eq!(answering(&properties("0.0.0")).level, Level::Warn);
        let mut upgraded = properties(env!("CARGO_PKG_VERSION"));
        upgraded.insert("UpgradePending".into(), true.into());
        assert_eq!(answering(&upgraded).advice, UPGRADE);
    }

    #[tokio::test]
    async fn a_socket_without_a_service_and_a_file_in_its_place_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessiond.sock");
        assert_eq!(private_socket(&path).await[0].level, Level::Warn);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(private_socket(&path).await[0].text.contains("nobody listens"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(private_socket(&path).await[0].level, Level::Fail);
    }
}
