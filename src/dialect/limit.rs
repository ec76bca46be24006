//! Usage limits in a program's words for a failure.
//!
//! No program has a field for it, so the words are what there is. They are searched only in what a program gives as the
//! reason of a failure, never in answers or in the output of tools. A rate limit that passes by itself in seconds (429
//! after all retries), a context that is too long and a limit on turns are failures, not usage limits.

use super::json::cut_at;

/// Words that tell of a usage limit, in lower case.
const PHRASES: [&str; 16] = [
    "usage limit",
    "usage_limit_reached",
    "hit your limit",
    "session limit reached",
    "hit your session limit",
    "hit your weekly limit",
    "weekly limit reached",
    "daily limit reached",
    "hour limit reached",
    "opus limit reached",
    "sonnet limit reached",
    "out of extra usage",
    "exceeded your current quota",
    "quota exceeded",
    "exhausted your daily quota",
    "exhausted your capacity",
];

/// What stands before the time of its end in seconds since 1970, in lower case.
const BEFORE_SECONDS: [&str; 2] = ["limit reached|", "\"resets_at\":"];

/// What stands before the words for its end, in lower case, longer ones first.
const BEFORE_WORDS: [&str; 10] = [
    "try again at ",
    "try again in ",
    "reset after ",
    "retry in ",
    "resets at ",
    "resets in ",
    "resets ",
    "reset at ",
    "reset in ",
    "try again ",
];

/// A message is searched as far as this, in bytes.
const SEARCHED: usize = 4096;

/// If `message` reports a usage limit: its words for when it ends, or an empty text where it has none.
pub(super) fn usage_limit(message: &str) -> Option<String> {
    let message = cut_at(message, SEARCHED);
    // ASCII only: places in both texts are the same.
    let lower = message.to_ascii_lowercase();
    let reached = PHRASES.iter().any(|phrase| lower.contains(phrase))
        || (lower.contains("hit your ") || lower.contains("reached your "))
            && lower.contains(" limit · resets");
    if !reached {
        return None;
    }
    let after = |before: &&str| Some(&message[lower.find(before)? + before.len()..]);
    let seconds = BEFORE_SECONDS.iter().find_map(after).map(digits).filter(|digits| !digits.is_empty());
    let words = || BEFORE_WORDS.iter().find_map(after).map(first_words).filter(|words| *words != "later");
    Some(seconds.or_else(words).unwrap_or_default().to_owned())
}

fn digits(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())]
}

/// Up to the end of the sentence, the line, or the text in quotation marks: some programs show the server's JSON as it is.
fn first_words(text: &str) -> &str {
    let line = text.split(['\n', '\r', '"', '\\']).next().unwrap_or_default();
    let end = line
        .match_indices(". ")
        // An abbreviation's dot ("p. m.") is followed by a small letter.
        .find(|(at, _)| line[at + 2..].chars().next().is_none_or(char::is_uppercase))
        .map_or(line.len(), |(at, _)| at);
    line[..end].trim().trim_end_matches('.').trim_start_matches(':').trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_their_ends_are_found() {
        for (message, until) in [
            (
                "You've hit your usage limit. Upgrade to Pro (https://openai.com/chatgpt/pricing) or try again at Dec 3rd, 2025 5:00 PM.",
                "Dec 3rd, 2025 5:00 PM",
            ),
            (
                "You've hit your usage limit. Try again in 3 days 2 hours 5 minutes.",
                "3 days 2 hours 5 minutes",
            ),
            ("You've hit your usage limit. To get more access now, send a request to your admin.", ""),
            ("You've hit your usage limit. Try again Aug 18.", "Aug 18"),
            ("You've hit your usage limit. Please try again later.", ""),
            ("Claude AI usage limit reached|1735689600", "1735689600"),
            (
                r#"Codex error: {"type":"usage_limit_reached","message":"The usage limit has been reached","resets_at":1777936568,"x":1}"#,
                "1777936568",
            ),
            (
                "Claude usage limit reached. Your limit will reset at 3pm (America/New_York).",
                "3pm (America/New_York)",
            ),
            ("5-hour limit reached ∙ resets 10:30pm", "10:30pm"),
            ("You've hit your limit · resets 3am (Europe/Berlin)", "3am (Europe/Berlin)"),
            ("You've hit your Opus limit · resets Oct 9 at 5pm", "Oct 9 at 5pm"),
            ("You exceeded your current quota, please check your plan and billing details.", ""),
            (
                r#"429: {"message":"The usage limit has been reached. Try again at Dec 3rd, 2027 5:00 PM.","type":"x"}"#,
                "Dec 3rd, 2027 5:00 PM",
            ),
            (
                r#"[API Error: {\"message\":\"The usage limit has been reached; try again in 3 hours\"}]"#,
                "3 hours",
            ),
            (
                "You have exhausted your capacity on this model. Your quota will reset after 2h5m10s.",
                "2h5m10s",
            ),
            ("You exceeded your current quota. Please retry in 21h4m28.5s.", "21h4m28.5s"),
        ] {
            let found = usage_limit(message).expect(message);
            assert_eq!(found, until, "{message}");
        }
    }

    #[test]
    fn other_limits_are_failures() {
        for message in [
            "exceeded retry limit, last status: 429 Too Many Requests",
            "prompt is too long: 250000 tokens > 200000 maximum",
            "Reached maximum number of turns (1)",
            "Incomplete response returned, reason: max_output_tokens",
            "API Error: 429 rate_limit_error",
        ] {
            assert_eq!(usage_limit(message), None, "{message}");
        }
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        assert_eq!(usage_limit(&"é".repeat(100_000)), None);
    }
}
