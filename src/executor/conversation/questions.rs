//! The questions that are open, and those that wait for their turn.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::super::clock::{BootTimer, now_us};
use crate::dialect::talk::Asked;
use crate::model::{Answer, Choice, OpenQuestion, Question};

/// Questions that are open at once; those beyond are asked when one of them is settled. Statuses show as many.
const OPEN: usize = 16;
/// Choices that one question offers.
const CHOICES: usize = 16;
/// The longest name of a choice or a tool in a status, in bytes and in characters.
const SHORT: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Questions {
    open: Vec<Open>,
    waiting: VecDeque<Asked>,
    asked: u32,
    /// How long each waits for an answer, in seconds.
    seconds: Option<u64>,
}

#[derive(Debug)]
struct Open {
    shown: OpenQuestion,
    key: String,
    /// The program's own ids of the choices.
    choices: Vec<String>,
    expires: Option<BootTimer>,
}

impl Questions {
    /// None yet; each is going to wait for so many seconds, or for ever.
    pub fn new(seconds: Option<u64>) -> Questions {
        Questions { open: Vec::new(), waiting: VecDeque::new(), asked: 0, seconds }
    }

    /// Takes a question; [`Questions::ask_next`] asks it when there is room.
    pub fn take(&mut self, asked: Asked) {
        self.waiting.push_back(asked);
    }

    /// Asks what waits, if there is room: its record, how a status shows it, and why it will not expire if it should.
    pub fn ask_next(&mut self) -> Option<(Question, OpenQuestion, Option<io::Error>)> {
        if self.open.len() >= OPEN {
            return None;
        }
        let asked = self.waiting.pop_front()?;
        self.asked = self.asked.saturating_add(1);
        let now = now_us();
        let (timer, untimed) =
            match self.seconds.map(|s| BootTimer::after(Duration::from_secs(s))).transpose() {
                Ok(timer) => (timer, None),
                Err(error) => (None, Some(error)),
            };
        let limit = self.seconds.filter(|_| timer.is_some());
        let expires = limit.map(|s| now.saturating_add(s.saturating_mul(1_000_000)));
        let own: Vec<String> = asked.choices.iter().take(CHOICES).map(|choice| choice.id.clone()).collect();
        let choices: Vec<Choice> = asked.choices.into_iter().take(CHOICES).enumerate().map(plain).collect();
        let question = Question {
            question: format!("q{}", self.asked),
            about: asked.about,
            text: asked.text,
            choices,
            takes_text: asked.takes_text,
            tool: asked.tool,
            details: asked.details,
            expires,
        };
        let short = |tool: &String| tool.chars().filter(|c| !c.is_control()).take(SHORT).collect::<String>();
        let shown = OpenQuestion {
            question: question.question.clone(),
            about: question.about,
            choices: question.choices.iter().map(|choice| choice.id.clone()).collect(),
            takes_text: question.takes_text,
            tool: question.tool.as_ref().map(short),
            asked: now,
            expires,
        };
        self.open.push(Open { shown: shown.clone(), key: asked.key, choices: own, expires: timer });
        Some((question, shown, untimed))
    }

    /// How many were asked.
    pub fn asked(&self) -> u32 {
        self.asked
    }

    /// No question is open or about to be.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.waiting.is_empty()
    }

    /// Settles the question of that id: the program's name of it. `None` if it is not open.
    pub fn settle(&mut self, id: &str) -> Option<String> {
        let at = self.open.iter().position(|open| open.shown.question == id)?;
        Some(self.open.remove(at).key)
    }

    /// The same with an answer, which is given back as the program's protocol has it. `None` if the question is not open
    /// or does not take it.
    pub fn answer(&mut self, id: &str, answer: &Answer) -> Option<(String, Answer)> {
        let at = self.open.iter().position(|open| open.shown.question == id)?;
        let open = &self.open[at];
        // How long a text may be was checked when it was stored.
        open.shown.check(answer, u64::MAX).ok()?;
        let own = match &answer.choice {
            Some(choice) => {
                let at = open.shown.choices.iter().position(|shown| shown == choice)?;
                Some(open.choices.get(at)?.clone())
            }
            None => None,
        };
        let open = self.open.remove(at);
        Some((open.key, Answer { choice: own, text: answer.text.clone() }))
    }

    /// The program does not want to know any more: the id, if it was asked.
    pub fn withdraw(&mut self, key: &str) -> Option<String> {
        self.waiting.retain(|asked| asked.key != key);
        let at = self.open.iter().position(|open| open.key == key)?;
        Some(self.open.remove(at).shown.question)
    }

    /// All are over: the ids of those that were open.
    pub fn end(&mut self) -> Vec<String> {
        self.waiting.clear();
        self.open.drain(..).map(|open| open.shown.question).collect()
    }

    /// Waits for the first to expire; for ever if none does. Safe to drop at any await. Asked oldest first, with one limit
    /// for all, so that the first of them is the next.
    pub async fn expired(&self) -> String {
        match self.open.iter().find_map(|open| Some((open, open.expires.as_ref()?))) {
            Some((open, timer)) => {
                timer.passed().await;
                open.shown.question.clone()
            }
            None => std::future::pending().await,
        }
    }
}

/// A choice under a name that a status can show and a command line can repeat.
fn plain((at, choice): (usize, Choice)) -> Choice {
    let id = &choice.id;
    let odd = |c: char| c.is_control() || c == '"' || c == '\\';
    match id.is_empty() || id.len() > SHORT || id.contains(odd) {
        true => Choice { id: format!("choice-{}", at + 1), label: choice.label },
        false => choice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::About;

    fn asked(key: &str, choices: &[&str]) -> Asked {
        let choice = |&id: &&str| Choice { id: id.to_owned(), label: "l".into() };
        Asked {
            key: key.into(),
            about: About::Choice,
            text: "?".into(),
            choices: choices.iter().map(choice).collect(),
            takes_text: choices.is_empty(),
            tool: Some("t\n".repeat(100)),
            details: serde_json::Value::Null,
        }
    }

    fn choose(choice: &str) -> Answer {
        Answer { choice: Some(choice.into()), text: None }
    }

    #[test]
    fn answers_name_choices_as_they_are_shown_and_the_program_gets_its_own() {
        let mut questions = Questions::new(None);
        let long = "x".repeat(65);
        questions.take(asked("k", &["yes", &long, "a\"b"]));
        let (question, shown, untimed) = questions.ask_next().unwrap();
        assert!(untimed.is_none());
        assert_eq!((question.question.as_str(), question.expires), ("q1", None));
        assert_eq!(shown.choices, ["yes", "choice-2", "choice-3"]);
        assert_eq!(shown.tool.unwrap().chars().count(), 64);
        assert_eq!(questions.answer("q2", &choose("yes")), None);
        assert_eq!(questions.answer("q1", &choose(&long)), None, "only what is shown");
        assert_eq!(questions.answer("q1", &choose("choice-2")), Some(("k".into(), choose(&long))));
        assert_eq!(questions.answer("q1", &choose("yes")), None, "settled");
    }

    #[test]
    fn sixteen_are_open_at_once_and_the_rest_waits_its_turn() {
        let mut questions = Questions::new(None);
        (1..=18).for_each(|n| questions.take(asked(&format!("k{n}"), &[])));
        let open = std::iter::from_fn(|| questions.ask_next()).count();
        assert_eq!(open, 16);
        assert_eq!(questions.withdraw("k17"), None, "it was never asked");
        assert_eq!(questions.withdraw("k3").as_deref(), Some("q3"));
        let (question, ..) = questions.ask_next().unwrap();
        assert_eq!(question.question, "q17");
        assert_eq!(questions.settle("q17").as_deref(), Some("k18"));
        assert!(questions.ask_next().is_none() && !questions.is_empty());
        assert_eq!(questions.end().len(), 15);
        assert!(questions.is_empty());
    }

    #[tokio::test]
    async fn the_oldest_expires_first() {
        let mut questions = Questions::new(Some(1));
        questions.take(asked("a", &[]));
        questions.take(asked("b", &[]));
        let (first, ..) = questions.ask_next().unwrap();
        questions.ask_next().unwrap();
        assert!(first.expires.is_some());
        assert_eq!(questions.expired().await, "q1");
        assert_eq!(questions.settle("q1").as_deref(), Some("a"));
    }
}
