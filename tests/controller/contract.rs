//! `interfaces/org.airouter.Controller1.xml` is what the reference controller serves and the service calls.

#[path = "../support/shape.rs"]
mod shape;

use shape::{parse, shape};

use super::framework::{NAME, PATH};
use super::*;

const INTERFACE: &str = "org.airouter.Controller1";

#[tokio::test]
async fn the_documented_interface_is_the_served_one() {
    let framework = Framework::start();
    let address = framework.broker.address();
    let client = zbus::connection::Builder::address(address.as_str()).build().await.expect("connects");
    let introspectable = Some("org.freedesktop.DBus.Introspectable");
    let reply = client.call_method(Some(NAME), PATH, introspectable, "Introspect", &()).await;
    let served: String = reply.expect("introspects").body().deserialize().expect("a text");
    let documented = include_str!("../../interfaces/org.airouter.Controller1.xml");
    let (served, documented) = (shape(&parse(&served), INTERFACE), shape(&parse(documented), INTERFACE));
    assert_eq!(documented.len(), 5, "{documented:#?}");
    assert_eq!(documented, served);
}

#[test]
fn every_method_and_error_is_explained() {
    let documented = include_str!("../../interfaces/org.airouter.Controller1.xml");
    let guide = include_str!("../../docs/controller.md");
    for word in ["Authenticate", "ReadHost", "RenewLease", "CancelRun", "DeliverOutcome"] {
        assert!(
            documented.contains(&format!("name=\"{word}\"")) && guide.contains(&format!("### {word}")),
            "{word}"
        );
    }
    for error in ["UnknownRun", "ForeignLease", "LeaseLost", "Terminal", "NotAuthenticated"] {
        assert!(documented.contains(error) && guide.contains(&format!("| `{error}` |")), "{error}");
    }
}
