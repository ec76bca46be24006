//! The table `[controller]`: the framework that owns runs and leases.

use serde::Deserialize;
use zbus::names::OwnedWellKnownName;
use zbus::wire::OwnedObjectPath;

use super::file::absolute;
use super::given::{Given, Optional, Problem, refuse};
use super::{Account, TokenFile};
use crate::client::address::socket_paths;

/// The longest lease of a framework: a day, in seconds.
const MAX_LEASE: u64 = 24 * 3600;

/// Where the framework's bus is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerBus {
    /// The account's session bus.
    Session,
    /// The bus at this address, which names a Unix socket.
    Address(String),
}

/// The framework that owns runs and leases: its name and object on its bus, and how long it may take.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerConfig {
    /// Its bus.
    pub bus: ControllerBus,
    /// The well-known name that it owns there.
    pub name: OwnedWellKnownName,
    /// Its object, with the interface `org.airouter.Controller1`.
    pub path: OwnedObjectPath,
    /// What it is to know us by; `None`: it needs nothing.
    pub token_file: Option<TokenFile>,
    /// How long a lease holds after each renewal, in seconds.
    pub lease_seconds: u64,
    /// How long one call may take, in seconds; at most a third of the lease.
    pub call_seconds: u64,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct FileController {
    bus: Option<Given>,
    name: Option<Given>,
    path: Option<Given>,
    token_file: Option<Given>,
    lease_seconds: Option<Given>,
    call_seconds: Option<Given>,
}

/// The framework that the table means.
pub(super) fn resolve(file: FileController, account: &Account) -> Result<ControllerConfig, Problem> {
    let key = |rest: &str| format!("controller.{rest}");
    let needed =
        |rest: &str, given: Option<Given>, what: &str| match given.checked(&key(rest), Given::text)? {
            Some(text) => Ok(text),
            None => refuse(key(rest), format!("is missing; name {what}")),
        };
    let bus = match needed("bus", file.bus, "the framework's bus: \"session\", or an address")?.as_str() {
        "session" => ControllerBus::Session,
        address if !socket_paths(address).is_empty() => ControllerBus::Address(address.to_owned()),
        _ => return refuse(key("bus"), "must be \"session\", or an address such as \"unix:path=/run/bus\""),
    };
    let name = needed("name", file.name, "what the framework owns on its bus")?;
    let name = OwnedWellKnownName::try_from(name).map_err(|_| {
        (key("name"), "must be a well-known bus name, such as \"org.example.Framework\"".to_owned())
    })?;
    let path = needed("path", file.path, "the framework's object")?;
    let path = OwnedObjectPath::try_from(path).map_err(|_| {
        (key("path"), "must be an object path, such as \"/org/example/Framework\"".to_owned())
    })?;
    let token_file = file.token_file.checked(&key("token_file"), absolute)?.map(TokenFile::new);
    if let Some(token) = &token_file {
        token.read(account.uid).map_err(|problem| (key("token_file"), problem.to_string()))?;
    }
    let seconds = |rest: &str, given: Option<Given>, least, most, default: u64| {
        let seconds = given.checked(&key(rest), |given, key| given.number(key, least, most))?;
        Ok::<u64, Problem>(seconds.unwrap_or(default))
    };
    let lease_seconds = seconds("lease_seconds", file.lease_seconds, 3, MAX_LEASE, 60)?;
    let call_seconds = seconds("call_seconds", file.call_seconds, 1, MAX_LEASE, 10.min(lease_seconds / 3))?;
    if call_seconds > lease_seconds / 3 {
        return refuse(
            key("call_seconds"),
            "must be at most a third of lease_seconds: a renewal may fail and be repeated",
        );
    }
    Ok(ControllerConfig { bus, name, path, token_file, lease_seconds, call_seconds })
}
