//! Text of programs, made fit for a terminal.

/// `text` with every character replaced that would do something to a terminal instead of standing there: control
/// characters by their pictures, C1 controls and bidirectional overrides by U+FFFD. Line feeds and tabs stay, and
/// CR LF is a line feed.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\n' | '\t' => out.push(character),
            '\r' if characters.peek() == Some(&'\n') => {}
            '\0'..='\x1f' => out.push(picture(character)),
            '\x7f' => out.push('\u{2421}'),
            _ if acts(character) => out.push('\u{fffd}'),
            _ => out.push(character),
        }
    }
    out
}

/// `json` with the same characters written as JSON's `\uXXXX`, where serde_json leaves them: the value stays the same.
pub fn visible_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match acts(character) {
            // All of them are below U+10000, and stand in strings: nothing else of JSON is beyond ASCII.
            true => out.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => out.push(character),
        }
    }
    out
}

/// Whether a character beyond C0 does something to a terminal: DEL, C1 controls, separators of lines and paragraphs,
/// marks and overrides of direction.
fn acts(character: char) -> bool {
    matches!(
        character,
        '\u{7f}'..='\u{9f}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// The picture of a C0 control character: U+2400 and following.
fn picture(control: char) -> char {
    char::from_u32(0x2400 + u32::from(control)).unwrap_or('\u{fffd}')
}

/// The first line of `text`, at most `most` characters of it, with a mark of how much is missing.
pub fn shortened(text: &str, most: usize) -> String {
    let text = text.trim();
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let first = first.trim_end();
    let mut shown: String = first.chars().take(most).collect();
    if shown.len() < first.len() {
        shown.push('…');
    }
    match rest.lines().count() {
        0 => shown,
        1 => format!("{shown} (+1 line)"),
        more => format!("{shown} (+{more} lines)"),
    }
}

/// A number of bytes, for people: `17 B`, `1.0 KiB`, `3.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    let Some(unit) = power.checked_sub(1).and_then(|index| UNITS.get(index)) else {
        return format!("{bytes} B");
    };
    // Rounded down: what is shown is never more than there is.
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A duration in µs, for people: `0.4 s`, `12.3 s`, `3 min 05 s`, `2 h 07 min`, `30 d 04 h`.
pub fn duration(microseconds: u64) -> String {
    let seconds = microseconds / 1_000_000;
    match seconds {
        0..60 => format!("{seconds}.{} s", microseconds % 1_000_000 / 100_000),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..172_800 => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// The number with spaces between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_a_program_prints_reaches_the_terminal_as_a_command() {
        let attack = "\x1b]0;title\x07\x1b[2Jclean\rover\x08\x7f\u{9b}31m\u{202e}txt\u{2066}\0";
        let shown = visible(attack);
        assert!(shown.chars().all(|c| !c.is_control()), "{shown:?}");
        assert_eq!(shown, "␛]0;title␇␛[2Jclean␍over␈␡\u{fffd}31m\u{fffd}txt\u{fffd}␀");
        assert_eq!(visible("a\tb\r\nc — ä 日本 🎉"), "a\tb\nc — ä 日本 🎉");
    }

    #[test]
    fn json_for_a_terminal_is_the_same_value_without_commands() {
        let mut attack: String = ('\0'..='\u{9f}').collect();
        attack
            .extend("\u{200e}\u{200f}".chars().chain('\u{2028}'..='\u{202e}').chain('\u{2066}'..='\u{2069}'));
        attack.push_str("ä 日本 🎉 \u{200d} \\u202e");
        let value = serde_json::json!({ attack.clone(): [attack] });
        let shown = visible_json(&value.to_string());
        let acting = |c: char| c.is_control() || acts(c);
        assert!(!shown.contains(acting) && shown.contains("ä 日本 🎉 \u{200d}"), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        assert!(
            shown.contains("\\u009b") && shown.contains("\\u202e") && shown.contains("\\u007f"),
            "{shown}"
        );
    }

    #[test]
    fn shortened_says_what_is_missing() {
        assert_eq!(shortened("one\n", 10), "one");
        assert_eq!(shortened("one\ntwo", 10), "one (+1 line)");
        assert_eq!(shortened("äöüäöü\ntwo\nthree\n", 3), "äöü… (+2 lines)");
    }

    #[test]
    fn durations_and_counts_are_for_people() {
        assert_eq!(duration(0), "0.0 s");
        assert_eq!(duration(12_345_678), "12.3 s");
        assert_eq!(duration(185_000_000), "3 min 05 s");
        assert_eq!(duration(7_620_000_000), "2 h 07 min");
        assert_eq!(duration(30 * 86_400_000_000 + 14_400_000_000), "30 d 04 h");
        assert_eq!([0, 1023, 1024].map(size), ["0 B", "1023 B", "1.0 KiB"]);
        assert_eq!([(7 << 30) - 1, u64::MAX].map(size), ["6.9 GiB", "15.9 EiB"]);
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234_567), "1 234 567");
    }
}
