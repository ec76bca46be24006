//! Questions with options that a program puts together in one request and wants answered together.

use serde_json::Value;

use super::talk::{Asked, Reply};
use crate::model::{About, Choice};

/// The most questions of one request, and of options of one question; a request with more is refused.
const MOST: usize = 32;

/// The id of the choice that refuses a question.
pub(super) const REFUSE: &str = "refuse";

/// The id of the choice whose answer is the text.
const OTHER: &str = "other";

/// The questions of one request.
#[derive(Debug)]
pub(super) struct Survey {
    questions: Vec<Question>,
    answers: Vec<Option<String>>,
}

#[derive(Debug)]
struct Question {
    text: String,
    labels: Vec<String>,
    details: Value,
}

/// How far a survey has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Others of its questions are open.
    Waiting,
    /// The answers, in the order of the questions.
    Complete(Vec<String>),
    /// One was refused or ran out of time, and with it the request. The reason, where somebody gave one.
    Refused(Option<String>),
}

impl Survey {
    /// The questions of a request: objects with `question` and `options`, which have a `label`. `None` where they are none
    /// or too many.
    pub fn read(questions: &Value) -> Option<Survey> {
        let questions: Vec<Question> =
            questions.as_array()?.iter().map(Question::read).collect::<Option<_>>()?;
        let some = (1..=MOST).contains(&questions.len());
        some.then(|| Survey { answers: vec![None; questions.len()], questions })
    }

    /// The questions as they are asked, each under the key that `key` makes of its place.
    pub fn asked(&self, tool: &str, key: impl Fn(usize) -> String) -> Vec<Asked> {
        let asked = |(at, question): (usize, &Question)| Asked {
            key: key(at),
            about: if question.labels.is_empty() { About::Text } else { About::Choice },
            text: question.text.clone(),
            choices: question.choices(),
            takes_text: true,
            tool: Some(tool.to_owned()),
            details: question.details.clone(),
        };
        self.questions.iter().enumerate().map(asked).collect()
    }

    /// Takes the answer to the question at this place.
    pub fn answer(&mut self, at: usize, reply: Reply<'_>) -> Progress {
        let Reply::Answer(answer) = reply else { return Progress::Refused(None) };
        let (Some(question), Some(place)) = (self.questions.get(at), self.answers.get_mut(at)) else {
            return Progress::Refused(None);
        };
        let label = match answer.choice.as_deref() {
            Some(REFUSE) => return Progress::Refused(answer.text.clone()),
            Some(choice) => {
                choice.parse().ok().and_then(|number: usize| question.labels.get(number.checked_sub(1)?))
            }
            None => None,
        };
        *place = match (label, &answer.text) {
            (Some(label), Some(text)) => Some(format!("{label}: {text}")),
            (Some(label), None) => Some(label.clone()),
            (None, Some(text)) => Some(text.clone()),
            // "Something else", and then nothing.
            (None, None) => return Progress::Refused(None),
        };
        match self.answers.iter().cloned().collect() {
            Some(answers) => Progress::Complete(answers),
            None => Progress::Waiting,
        }
    }
}

impl Question {
    fn read(value: &Value) -> Option<Question> {
        let text = value.get("question")?.as_str()?.to_owned();
        let options: &[Value] = value.get("options").and_then(Value::as_array).map_or(&[], Vec::as_slice);
        if options.len() > MOST {
            return None;
        }
        let label = |option: &Value| Some(option.get("label")?.as_str()?.to_owned());
        let labels = options.iter().map(label).collect::<Option<_>>()?;
        Some(Question { text, labels, details: value.clone() })
    }

    fn choices(&self) -> Vec<Choice> {
        if self.labels.is_empty() {
            return Vec::new();
        }
        let numbered = self.labels.iter().enumerate();
        let numbered = numbered.map(|(at, label)| choice(&(at + 1).to_string(), label));
        let others = [choice(OTHER, "Something else, which the text says"), choice(REFUSE, "No answer")];
        numbered.chain(others).collect()
    }
}

/// A choice of that id.
pub(super) fn choice(id: &str, label: &str) -> Choice {
    Choice { id: id.to_owned(), label: label.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Answer;

    fn survey() -> Survey {
        Survey::read(&json!([
            {"question": "Which color?", "options": [{"label": "Red"}, {"label": "Blue", "description": "cold"}]},
            {"question": "Why?", "options": null},
        ]))
        .expect("a survey")
    }

    fn answer(choice: Option<&str>, text: Option<&str>) -> Answer {
        Answer { choice: choice.map(str::to_owned), text: text.map(str::to_owned) }
    }

    #[test]
    fn all_answers_go_back_together() {
        let mut survey = survey();
        let asked = survey.asked("Ask", |at| format!("r/{at}"));
        assert_eq!(
            asked[0].choices.iter().map(|choice| choice.id.as_str()).collect::<Vec<_>>(),
            ["1", "2", OTHER, REFUSE]
        );
        assert_eq!((asked[1].key.as_str(), asked[1].about, asked[1].choices.len()), ("r/1", About::Text, 0));
        assert_eq!(survey.answer(1, Reply::Answer(&answer(None, Some("so")))), Progress::Waiting);
        let all = survey.answer(0, Reply::Answer(&answer(Some("2"), None)));
        assert_eq!(all, Progress::Complete(vec!["Blue".into(), "so".into()]));
    }

    #[test]
    fn what_is_no_answer_refuses_the_request() {
        for reply in [
            answer(Some(REFUSE), None),
            answer(Some(OTHER), None),
            answer(Some("0"), None),
            answer(Some("9"), None),
        ] {
            assert_eq!(survey().answer(0, Reply::Answer(&reply)), Progress::Refused(None), "{reply:?}");
        }
        assert_eq!(survey().answer(0, Reply::Expired), Progress::Refused(None));
        let why = answer(Some(REFUSE), Some("not now"));
        assert_eq!(survey().answer(0, Reply::Answer(&why)), Progress::Refused(Some("not now".into())));
        let other = answer(Some(OTHER), Some("Green"));
        assert_eq!(survey().answer(0, Reply::Answer(&other)), Progress::Waiting);
    }

    #[test]
    fn what_is_no_survey_is_none() {
        for value in
            [json!(null), json!([]), json!([{}]), json!([{"question": "?", "options": [{}]}]), json!([1])]
        {
            assert!(Survey::read(&value).is_none(), "{value}");
        }
        let many = vec![json!({"question": "?"}); MOST + 1];
        assert!(Survey::read(&Value::Array(many)).is_none());
    }
}
