//! org.airouter.Sessions1(5) and its like: the manual page of an interface, from the XML and what its comments say.

use roxmltree::{Document, Node, ParsingOptions};

use super::page::Page;

/// The page of the interface in `xml`, which is one of ours: in its root a comment on the whole, in the interface one
/// before each member.
///
/// # Errors
/// It is not XML, or has no interface; for people.
pub fn page(xml: &str) -> Result<(String, String), String> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(xml, options).map_err(|error| error.to_string())?;
    let interface = document
        .descendants()
        .find(|node| node.has_tag_name("interface"))
        .ok_or_else(|| "there is no interface in it".to_owned())?;
    let name = interface.attribute("name").unwrap_or_default().to_owned();
    let about = document.root().children().find_map(|node| comment(node)).unwrap_or_default();
    let mut page = Page::new(&name, 5, "D-Bus interface of airouter-sessiond");
    page.section("DESCRIPTION");
    page.prose(about);
    for (title, tag) in [("METHODS", "method"), ("SIGNALS", "signal"), ("PROPERTIES", "property")] {
        let members: Vec<Node> = interface.children().filter(|node| node.has_tag_name(tag)).collect();
        if !members.is_empty() {
            page.section(title);
        }
        for member in members {
            page.part(&heading(member));
            page.prose(before(member).unwrap_or_default());
            for argument in member.children().filter(|node| node.has_tag_name("arg")) {
                if let Some(text) = before(argument) {
                    page.terms(&[argument.attribute("name").unwrap_or_default().to_owned()], text);
                }
            }
        }
    }
    let others = [("sessionctl", 1), ("airouter-sessiond", 8), ("busctl", 1)];
    Ok((name, page.with_see_also(&others)))
}

fn comment<'a>(node: Node<'a, 'a>) -> Option<&'a str> {
    node.is_comment().then(|| node.text()).flatten()
}

/// The comment right before a node.
fn before<'a>(node: Node<'a, 'a>) -> Option<&'a str> {
    let before = node.prev_siblings().skip(1).find(|node| !node.is_text())?;
    comment(before)
}

/// `Name(type argument, …) → (type result, …)`, and of a property `Name: type`.
fn heading(member: Node) -> String {
    let name = member.attribute("name").unwrap_or_default();
    if let Some(signature) = member.attribute("type") {
        return format!("{name}: {signature}");
    }
    let arguments = |out: bool| {
        let all = member.children().filter(|node| node.has_tag_name("arg"));
        let wanted = all.filter(|node| (node.attribute("direction") == Some("out")) == out);
        let shown = wanted.map(|node| {
            format!(
                "{} {}",
                node.attribute("type").unwrap_or_default(),
                node.attribute("name").unwrap_or_default()
            )
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    match arguments(true) {
        results if results.is_empty() => format!("{name}({})", arguments(false)),
        results => format!("{name}({}) -> ({results})", arguments(false)),
    }
}
