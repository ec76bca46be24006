//! sessiond.toml(5): the manual page of the configuration, from the example with every key.

use super::page::Page;

/// The page of the example: comments before a key are what is said of it, `#key = …` is a key as it is by default; what
/// stands behind `#   ` is a table that is not there by default, in the same way.
pub fn page(example: &str) -> String {
    let mut page = Page::new("sessiond.toml", 5, "configuration of airouter-sessiond");
    page.section("DESCRIPTION");
    let (mut text, mut keys) = (String::new(), Vec::<String>::new());
    let mut described = false;
    for line in example.lines().chain([""]) {
        let line = line.strip_prefix("#   ").unwrap_or(line);
        let prose = line.strip_prefix("# ").or((line == "#").then_some(""));
        // A comment after keys begins what is said of the next ones; so does an empty line.
        if !keys.is_empty() && (prose.is_some() || line.is_empty() || line.starts_with('[')) {
            page.terms(&std::mem::take(&mut keys), &std::mem::take(&mut text));
        }
        if let Some(prose) = prose {
            text.push_str(prose);
            text.push('\n');
        } else if line.starts_with('[') {
            page.section(line);
            page.prose(&std::mem::take(&mut text));
        } else if line.is_empty() {
            if !described {
                // What stands above everything is about the whole file.
                page.prose(&std::mem::take(&mut text));
                page.section("KEYS");
                described = true;
            }
        } else {
            keys.push(line.strip_prefix('#').unwrap_or(line).to_owned());
        }
    }
    page.with_see_also(&[("sessionctl", 1), ("sessionctl-profiles", 1), ("airouter-sessiond", 8)])
}
