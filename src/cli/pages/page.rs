//! A manual page in the roff that man(7) describes.

use std::fmt::Write;

/// A page being written.
pub struct Page {
    text: String,
}

impl Page {
    /// A page with its heading and NAME; `summary` is one line without a full stop.
    pub fn new(name: &str, section: u8, summary: &str) -> Page {
        let mut page = Page { text: String::new() };
        page.line(&format!(".TH {} {section} \"\" airouter-sessiond", escaped(name)));
        page.section("NAME");
        page.line(&format!("{} \\- {}", escaped(name), escaped(summary)));
        page
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str) {
        self.line(&format!(".SH \"{}\"", escaped(title)));
    }

    /// Begins a part of a section.
    pub fn part(&mut self, title: &str) {
        self.line(&format!(".SS \"{}\"", escaped(title)));
    }

    /// Text: blocks with an empty line between them. One that is set in columns stays as it is.
    pub fn prose(&mut self, text: &str) {
        self.blocks(text, ".PP");
    }

    /// Terms, and what is said of them all.
    pub fn terms(&mut self, terms: &[String], text: &str) {
        for (at, term) in terms.iter().enumerate() {
            self.line(if at == 0 { ".TP" } else { ".TQ" });
            self.line(&format!("\\fB{}\\fP", escaped(term)));
        }
        if !text.is_empty() {
            self.blocks(text, ".IP");
        }
    }

    fn blocks(&mut self, text: &str, between: &str) {
        for block in dedented(text).split("\n\n").map(str::trim_end).filter(|block| !block.is_empty()) {
            // After a term the first block follows at once, and this begins another one with the same indent.
            if !(between == ".IP" && self.text.ends_with("\\fP\n")) {
                self.line(between);
            }
            let columns = block.lines().any(|line| line.trim_start().contains("   "));
            let lines = block.lines().map(|line| if columns { line } else { line.trim() });
            if columns {
                self.line(".EX");
            }
            for line in lines {
                self.line(&text_line(line));
            }
            if columns {
                self.line(".EE");
            }
        }
    }

    fn line(&mut self, line: &str) {
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// The page, with the pages that go with it at its end.
    pub fn with_see_also(mut self, others: &[(&str, u8)]) -> String {
        self.section("SEE ALSO");
        let others: Vec<String> =
            others.iter().map(|(name, section)| format!("\\fB{}\\fP({section})", escaped(name))).collect();
        self.line(&others.join(", "));
        self.text
    }
}

/// Hyphens stay hyphens, so that what is copied from the page works.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq").replace('`', "\\(ga")
}

/// A line of text, also where it begins with what would be a request.
fn text_line(line: &str) -> String {
    let text = escaped(line);
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

/// Without the indent that all lines have; the first line, which may begin behind a comment's mark, does not count.
fn dedented(text: &str) -> String {
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let least = text.lines().skip(1).filter(|line| !line.trim().is_empty()).map(|line| indent(&line)).min();
    let cut = |(at, line): (usize, &str)| match at {
        0 => line.trim_start().to_owned(),
        _ => line.get(least.unwrap_or(0)..).unwrap_or("").to_owned(),
    };
    text.lines().enumerate().map(cut).collect::<Vec<_>>().join("\n").trim_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_filled_and_columns_stay() {
        let mut page = Page::new("a-b", 5, "what it is");
        page.section("X");
        page.prose("one\n  two\n\n  key      s   text\n    more   t   .other\n\n  .dot");
        page.terms(&["a = 1".to_owned(), "b = 2".to_owned()], "both\n\nand more");
        assert_eq!(
            page.with_see_also(&[("c", 1)]),
            ".TH a\\-b 5 \"\" airouter-sessiond\n.SH \"NAME\"\na\\-b \\- what it is\n.SH \"X\"\n.PP\none\ntwo\n.PP\n.EX\n\
             key      s   text\n  more   t   .other\n.EE\n.PP\n\\&.dot\n.TP\n\\fBa = 1\\fP\n.TQ\n\\fBb = 2\\fP\nboth\n\
             .IP\nand more\n.SH \"SEE ALSO\"\n\\fBc\\fP(1)\n"
        );
    }
}
