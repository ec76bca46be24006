//! The members of an interface, as its XML has them.

use std::collections::BTreeMap;

use roxmltree::{Document, Node, ParsingOptions};

/// What an interface has: each element by its kind and name, with what is in it in order.
pub type Shape = BTreeMap<String, Vec<String>>;

pub fn parse(xml: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(xml, options).expect("well-formed")
}

pub fn attributes(node: Node<'_, '_>) -> String {
    let mut all: Vec<String> = node.attributes().map(|a| format!("{}={}", a.name(), a.value())).collect();
    all.sort();
    format!("{} {}", node.tag_name().name(), all.join(" "))
}

pub fn shape(document: &Document<'_>, interface: &str) -> Shape {
    let node = document
        .descendants()
        .find(|node| node.has_tag_name("interface") && node.attribute("name") == Some(interface))
        .expect("the interface");
    node.children()
        .filter(Node::is_element)
        .map(|member| {
            (attributes(member), member.children().filter(Node::is_element).map(attributes).collect())
        })
        .collect()
}
