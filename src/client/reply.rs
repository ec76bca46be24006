//! Errors with which somebody answered a call, told from calls that nobody answered.

use zbus::DBusError;

/// Its name and text, if this is an answer. zbus has a kind of its own for the names of D-Bus itself; here they are as all
/// others.
pub(crate) fn error_reply(error: &zbus::Error) -> Option<(String, String)> {
    match error {
        zbus::Error::MethodError(name, text, _) => Some((name.to_string(), text.clone().unwrap_or_default())),
        zbus::Error::FDO(error) => match &**error {
            zbus::fdo::Error::ZBus(inner) => error_reply(inner),
            answer => Some((answer.name().to_string(), answer.description().unwrap_or_default().to_owned())),
        },
        _ => None,
    }
}

/// Whether a bus gives this error for a process that left, or never was there.
pub(crate) fn is_gone(name: &str) -> bool {
    ["ServiceUnknown", "NameHasNoOwner", "NoReply", "Disconnected"]
        .iter()
        .any(|short| name.strip_prefix("org.freedesktop.DBus.Error.") == Some(short))
}

#[cfg(test)]
mod tests {
    use zbus::fdo;

    use super::*;

    #[test]
    fn names_of_dbus_itself_are_answers_as_all_others_are() {
        let replied = |error: fdo::Error| error_reply(&zbus::Error::from(error));
        let (name, text) = replied(fdo::Error::NameHasNoOwner("none".into())).expect("an answer");
        assert_eq!((name.as_str(), text.as_str()), ("org.freedesktop.DBus.Error.NameHasNoOwner", "none"));
        assert!(is_gone(&name));
        let (name, _) = replied(fdo::Error::UnknownMethod("what".into())).expect("an answer");
        assert!(!is_gone(&name), "{name}");
        let call = zbus::Message::method_call("/", "Call").build(&()).expect("a message");
        let answer = zbus::Message::error(&call.header(), "org.example.Wrong");
        let answer = zbus::Error::from(answer.build(&("so",)).expect("a message"));
        assert_eq!(error_reply(&answer), Some(("org.example.Wrong".into(), "so".into())));
        assert_eq!(error_reply(&zbus::Error::InvalidReply), None);
    }
}
