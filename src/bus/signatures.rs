//! The arguments of our methods, so that a call with others is told what it should have had.

use zbus::fdo;
use zbus::message::Header;

use super::gate::Refused;
use super::session1::SESSION_INTERFACE;
use super::{BusError, INTERFACE};
use crate::model::shown;

/// Each method with its arguments, as type and name.
type Methods = &'static [(&'static str, &'static [(&'static str, &'static str)])];

const RUN_ID: (&str, &str) = ("s", "run_id");
const CURSOR: (&str, &str) = ("s", "cursor");
const OPTIONS: (&str, &str) = ("a{sv}", "options");
const REQUEST_ID: (&str, &str) = ("s", "request_id");
const TEXT: (&str, &str) = ("s", "text");
const QUESTION: (&str, &str) = ("s", "question");
const ANSWER: (&str, &str) = ("a{sv}", "answer");

const SESSIONS: Methods = &[
    ("Submit", &[("a{sv}", "submission")]),
    ("Status", &[RUN_ID]),
    ("List", &[("a{sv}", "filter")]),
    ("Events", &[RUN_ID, CURSOR, ("u", "limit")]),
    ("Follow", &[RUN_ID, CURSOR, OPTIONS]),
    ("Wait", &[RUN_ID, ("s", "condition"), ("u", "timeout_ms")]),
    ("Subscribe", &[RUN_ID, CURSOR, OPTIONS]),
    ("Unsubscribe", &[("u", "subscription")]),
    ("Cancel", &[RUN_ID]),
    ("Reconcile", &[RUN_ID]),
    ("Steer", &[RUN_ID, REQUEST_ID, TEXT]),
    ("FollowUp", &[RUN_ID, REQUEST_ID, TEXT]),
    ("Answer", &[RUN_ID, QUESTION, ANSWER]),
    ("Acknowledge", &[RUN_ID, CURSOR]),
    ("Remove", &[RUN_ID]),
    ("Storage", &[]),
    ("Prune", &[("a{sv}", "policy")]),
];

const SESSION: Methods = &[
    ("Follow", &[CURSOR, OPTIONS]),
    ("Cancel", &[]),
    ("Steer", &[REQUEST_ID, TEXT]),
    ("FollowUp", &[REQUEST_ID, TEXT]),
    ("Answer", &[QUESTION, ANSWER]),
    ("Acknowledge", &[CURSOR]),
];

/// Refuses a call of one of our methods that comes with other arguments than the method has, and any call that sets a
/// property, since none can be set. Says nothing of methods that do not exist.
pub fn check(call: &Header<'_>) -> Result<(), Refused> {
    let (Some(interface), Some(member)) = (call.interface(), call.member()) else { return Ok(()) };
    let methods = match interface.as_str() {
        INTERFACE => SESSIONS,
        SESSION_INTERFACE => SESSION,
        "org.freedesktop.DBus.Properties" if member.as_str() == "Set" => {
            let why = "PropertyReadOnly: no property of this service can be set; each can be read";
            return Err(fdo::Error::PropertyReadOnly(why.into()).into());
        }
        _ => return Ok(()),
    };
    let Some((_, arguments)) = methods.iter().find(|(name, _)| *name == member.as_str()) else {
        return Ok(());
    };
    // The types one after the other, as a message carries them.
    let given = call.signature().to_string_no_parens();
    let wanted: String = arguments.iter().map(|(kind, _)| *kind).collect();
    if given == wanted {
        return Ok(());
    }
    let wanted: Vec<String> = arguments.iter().map(|(kind, name)| format!("{kind} {name}")).collect();
    let given = shown(&given);
    Err(BusError::argument(format_args!("{member} takes ({}), got ({given})", wanted.join(", "))).into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use zbus::DBusError;
    use zbus::message::Message;

    use super::*;

    /// What the documented interface says of its methods' arguments.
    fn documented(xml: &str) -> BTreeMap<String, Vec<(String, String)>> {
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let document = roxmltree::Document::parse_with_options(xml, options).unwrap();
        let text = |node: roxmltree::Node<'_, '_>, name| node.attribute(name).unwrap().to_owned();
        let arguments = |method: roxmltree::Node<'_, '_>| {
            let given = method.children().filter(|node| node.attribute("direction") == Some("in"));
            given.map(|node| (text(node, "type"), text(node, "name"))).collect()
        };
        let methods = document.descendants().filter(|node| node.has_tag_name("method"));
        methods.map(|method| (text(method, "name"), arguments(method))).collect()
    }

    #[test]
    fn the_documented_arguments_are_the_checked_ones() {
        for (xml, methods) in [
            (include_str!("../../interfaces/org.airouter.Sessions1.xml"), SESSIONS),
            (include_str!("../../interfaces/org.airouter.Session1.xml"), SESSION),
        ] {
            let owned = |(kind, name): &(&str, &str)| ((*kind).to_owned(), (*name).to_owned());
            let checked: BTreeMap<String, Vec<(String, String)>> = methods
                .iter()
                .map(|(name, arguments)| ((*name).to_owned(), arguments.iter().map(owned).collect()))
                .collect();
            assert_eq!(documented(xml), checked);
        }
    }

    fn call<B: serde::Serialize + zbus::wire::DynamicType>(
        interface: &'static str,
        member: &'static str,
        body: &B,
    ) -> Message {
        Message::method_call("/", member).interface(interface).build(body).unwrap()
    }

    fn refused(call: &Message) -> String {
        match check(&call.header()).expect_err("must be refused") {
            Refused::Ours(error) => error.to_string(),
            Refused::Standard(error) => {
                format!("{} {}", error.name(), error.description().unwrap_or_default())
            }
        }
    }

    #[test]
    fn a_call_with_other_arguments_is_told_what_it_should_have_had() {
        for (call, text) in [
            (call(INTERFACE, "Status", &(1_i32,)), "Status takes (s run_id), got (i)"),
            (call(INTERFACE, "Status", &()), "Status takes (s run_id), got ()"),
            (
                call(INTERFACE, "Wait", &("x", "y", "z")),
                "Wait takes (s run_id, s condition, u timeout_ms), got (sss)",
            ),
            (call(INTERFACE, "Submit", &("x", vec![1_u8])), "Submit takes (a{sv} submission), got (say)"),
            (call(SESSION_INTERFACE, "Cancel", &("x",)), "Cancel takes (), got (s)"),
        ] {
            assert_eq!(refused(&call), format!("InvalidArgument: {text}"));
        }
        check(&call(INTERFACE, "Status", &("x",)).header()).unwrap();
        check(&call(SESSION_INTERFACE, "Cancel", &()).header()).unwrap();
        // Others say that it does not exist.
        check(&call(INTERFACE, "Nonsense", &(1_i32,)).header()).unwrap();
        check(&call("org.freedesktop.DBus.Peer", "Ping", &()).header()).unwrap();
    }

    #[test]
    fn properties_cannot_be_set() {
        let set = call("org.freedesktop.DBus.Properties", "Set", &(INTERFACE, "State", "x"));
        let text = refused(&set);
        assert!(text.starts_with("org.freedesktop.DBus.Error.PropertyReadOnly PropertyReadOnly: "), "{text}");
        check(&call("org.freedesktop.DBus.Properties", "Get", &(INTERFACE, "State")).header()).unwrap();
    }
}
