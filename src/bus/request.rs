//! The dictionaries of the calls as the service's types: submissions, filters, options.
//!
//! Integers may come in any width. A key that is not known, or of another type, is refused by name; values never
//! appear in a refusal, since they may be private.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use tokio::time::Instant;

use super::BusError;
use super::descriptor::{READ_TIME, Unread, read_descriptor};
use super::given::{Given, GivenDict, Keys};
use crate::model::{
    Answer, Binding, InvalidSubmission, Limits, PrunePolicy, Recovery, ResourceLimits, RunId, Submission,
};
use crate::service::{Filter, FollowOptions, SubmitRequest, SubmittedAttachment, WaitFor};

/// A submission whose input and attachments may still have to be read.
#[derive(Debug)]
pub struct Submitted {
    /// Everything but the input and the attachments.
    pub submission: Submission,
    /// Where the input is.
    pub input: Input,
    /// Where the attachments are.
    pub attachments: Vec<GivenAttachment>,
}

/// An attachment that is still to be read.
#[derive(Debug)]
pub struct GivenAttachment {
    name: String,
    media_type: Option<String>,
    sha256: String,
    fd: OwnedFd,
}

/// Where the input of a submission is.
#[derive(Debug)]
pub enum Input {
    /// It has none.
    None,
    /// It came with the call.
    Here(Vec<u8>),
    /// It is to be read from this descriptor.
    Descriptor(OwnedFd),
}

/// Reads a run id.
pub fn run_id(text: &str) -> Result<RunId, BusError> {
    text.parse().map_err(BusError::argument)
}

/// Reads the dictionary of `Submit`.
pub fn submission(dict: GivenDict) -> Result<Submitted, BusError> {
    let mut keys = Keys::of_submission(dict, "");
    let version = required(&mut keys, "version")?;
    let binding = keys.dict("binding")?.ok_or_else(|| keys.refuse("binding", "is missing"))?;
    let binding = binding_of(binding)?;
    let profile = required(&mut keys, "profile")?;
    let mut submission = Submission::new(binding.run_id, profile);
    submission.version = version;
    submission.binding = binding;
    submission.arguments = keys.texts("arguments")?.unwrap_or_default();
    submission.directory = keys.text("directory")?;
    submission.environment = keys.text_dict("environment")?.unwrap_or_default();
    let input = input_of(&mut keys)?;
    let attachments = attachments_of(&mut keys)?;
    submission.output_schema = keys.text("output-schema")?;
    if let Some(earlier) = keys.text("continues")? {
        submission.continues = Some(earlier.parse().map_err(|error| keys.refuse("continues", error))?);
    }
    submission.deadline_seconds = keys.unsigned("deadline-seconds")?;
    submission.idle_seconds = keys.unsigned("idle-seconds")?;
    submission.start_seconds = keys.unsigned("start-seconds")?;
    if let Some(limits) = keys.dict("limits")? {
        submission.limits = limits_of(limits)?;
    }
    submission.recovery = recovery_of(&mut keys)?;
    submission.leave_descendants = keys.boolean("leave-descendants")?.unwrap_or(false);
    submission.label = keys.text("label")?;
    for key in ["not-before", "retry-of"] {
        keys.not_yet(key, "this version does not take it")?;
    }
    keys.finish()?;
    Ok(Submitted { submission, input, attachments })
}

fn required(keys: &mut Keys, key: &'static str) -> Result<String, BusError> {
    keys.text(key)?.ok_or_else(|| keys.refuse(key, "is missing"))
}

fn binding_of(dict: GivenDict) -> Result<Binding, BusError> {
    let mut keys = Keys::of_submission(dict, "binding.");
    let run_id = required(&mut keys, "run_id")?;
    let run_id = run_id.parse().map_err(|error| keys.refuse("run_id", error))?;
    let binding = Binding {
        run_id,
        application: keys.text("application")?,
        host: keys.text("host")?,
        task_id: keys.text("task_id")?,
        lease_id: keys.text("lease_id")?,
        worker: keys.text("worker")?,
        operation: keys.text("operation")?,
    };
    keys.finish()?;
    Ok(binding)
}

fn limits_of(dict: GivenDict) -> Result<ResourceLimits, BusError> {
    let mut keys = Keys::of_submission(dict, "limits.");
    let limits = ResourceLimits {
        memory_max: keys.unsigned("memory-max")?,
        tasks_max: keys.unsigned("tasks-max")?,
        cpu_weight: keys.unsigned("cpu-weight")?,
        journal_max: keys.unsigned("journal-max")?,
    };
    keys.finish()?;
    Ok(limits)
}

fn recovery_of(keys: &mut Keys) -> Result<Recovery, BusError> {
    match keys.text("recovery")?.as_deref() {
        None | Some("never") => Ok(Recovery::Never),
        Some("resume") => {
            Err(keys.refuse("recovery", "this version does not take \"resume\", only \"never\""))
        }
        Some(_) => Err(keys.refuse("recovery", "must be \"never\"")),
    }
}

fn input_of(keys: &mut Keys) -> Result<Input, BusError> {
    let here = match keys.take("input") {
        None => None,
        Some(Given::Text(text)) => Some(text.into_bytes()),
        Some(Given::Bytes(bytes)) => Some(bytes),
        Some(_) => return Err(keys.refuse("input", "must be s (text) or ay (bytes)")),
    };
    let descriptor = match keys.take("input-fd") {
        None => None,
        Some(Given::Descriptor(fd)) => Some(fd),
        Some(_) => return Err(keys.refuse("input-fd", "must be h (a file descriptor)")),
    };
    match (here, descriptor) {
        (Some(_), Some(_)) => Err(keys.refuse("input-fd", "is given beside input; give one of them")),
        (Some(bytes), None) => Ok(Input::Here(bytes)),
        (None, Some(fd)) => Ok(Input::Descriptor(fd)),
        (None, None) => Ok(Input::None),
    }
}

fn attachments_of(keys: &mut Keys) -> Result<Vec<GivenAttachment>, BusError> {
    let given = keys.dicts("attachments")?.unwrap_or_default();
    given.into_iter().enumerate().map(|(index, dict)| attachment_of(index, dict)).collect()
}

fn attachment_of(index: usize, dict: GivenDict) -> Result<GivenAttachment, BusError> {
    let mut keys = Keys::of_submission(dict, format!("attachments[{index}]."));
    let attachment = GivenAttachment {
        name: required(&mut keys, "name")?,
        media_type: keys.text("media-type")?,
        sha256: required(&mut keys, "sha256")?,
        fd: match keys.take("fd") {
            Some(Given::Descriptor(fd)) => fd,
            Some(_) => return Err(keys.refuse("fd", "must be h (a file descriptor)")),
            None => return Err(keys.refuse("fd", "is missing")),
        },
    };
    keys.finish()?;
    Ok(attachment)
}

impl Submitted {
    /// Reads the input and the attachments, as much as `limits` allow, and gives the whole request.
    pub async fn read(self, limits: &Limits) -> Result<SubmitRequest, BusError> {
        let (count, most) = (self.attachments.len(), limits.attachments);
        if count > most as usize {
            let problem = format!("are {count}; the limit is {most} (Limits: attachments)");
            return Err(InvalidSubmission::new("attachments", problem).into());
        }
        // One time for all of them together.
        let deadline = Instant::now() + READ_TIME;
        let input = match self.input {
            Input::None => None,
            Input::Here(bytes) => Some(bytes),
            Input::Descriptor(fd) => {
                let most = limits.submission;
                let read = read_descriptor(fd, most, deadline).await;
                Some(read.map_err(|error| refused("input-fd", &error, most, "submission"))?)
            }
        };
        let mut attachments = Vec::with_capacity(count);
        let mut left = limits.attachment_bytes;
        for (index, given) in self.attachments.into_iter().enumerate() {
            let GivenAttachment { name, media_type, sha256, fd } = given;
            let bytes = read_descriptor(fd, left, deadline).await.map_err(|error| match error {
                Unread::TooLarge => {
                    refused("attachments", &error, limits.attachment_bytes, "attachment-bytes")
                }
                _ => refused(&format!("attachments[{index}].fd"), &error, 0, ""),
            })?;
            left = left.saturating_sub(bytes.len() as u64);
            attachments.push(SubmittedAttachment { name, media_type, sha256, bytes });
        }
        Ok(SubmitRequest { submission: self.submission, input, attachments })
    }
}

/// The refusal of a key whose descriptor could not be read; `limit` is the one that says `most`.
fn refused(key: &str, error: &Unread, most: u64, limit: &str) -> BusError {
    let problem = match error {
        Unread::TooLarge if key == "attachments" => {
            format!("are more than {most} bytes together (Limits: {limit})")
        }
        Unread::TooLarge => format!("holds more than {most} bytes (Limits: {limit})"),
        Unread::CutOff => return BusError::new("Internal", format_args!("the reading of {key} was cut off")),
        other => other.to_string(),
    };
    InvalidSubmission::new(key, problem).into()
}

/// Reads the dictionary of `List`.
pub fn filter(dict: GivenDict) -> Result<Filter, BusError> {
    let mut keys = Keys::of_argument(dict, "");
    let filter = Filter {
        state: keys.word("state", "queued, accepted, driving, finished, reconciliation-required")?,
        phase: keys.word("phase", "pending, running, complete, failed, cancelled")?,
        end: keys.word("end", "the ends, such as completed, failed, cancelled")?,
        profile: keys.text("profile")?,
        label: keys.text("label")?,
        limit: match keys.unsigned("limit")? {
            None => None,
            Some(limit) if (1..=1000).contains(&limit) => Some(limit as u32),
            Some(_) => return Err(keys.refuse("limit", "must be from 1 to 1000")),
        },
        cursor: keys.text("cursor")?,
    };
    keys.finish()?;
    Ok(filter)
}

/// Reads the options of `Follow`: `raw` (default false) and `live` (default true).
pub fn follow_options(dict: GivenDict) -> Result<FollowOptions, BusError> {
    let mut keys = Keys::of_argument(dict, "");
    let options = FollowOptions {
        raw: keys.boolean("raw")?.unwrap_or(false),
        replay_only: !keys.boolean("live")?.unwrap_or(true),
    };
    keys.finish()?;
    Ok(options)
}

/// Places in several sessions that a subscription may begin with.
const MOST_CURSORS: usize = 1000;

/// Reads the options of `Subscribe` to one session, which has none in this version.
pub fn subscribe_options(dict: GivenDict) -> Result<(), BusError> {
    Keys::of_argument(dict, "").finish()
}

/// Reads the options of `Subscribe` to all sessions: `cursors`, by run_id.
pub fn subscribe_all_options(dict: GivenDict) -> Result<BTreeMap<RunId, String>, BusError> {
    let mut keys = Keys::of_argument(dict, "");
    let cursors = keys.text_dict("cursors")?.unwrap_or_default();
    if cursors.len() > MOST_CURSORS {
        return Err(keys.refuse("cursors", format_args!("has more than {MOST_CURSORS} sessions")));
    }
    keys.finish()?;
    cursors.into_iter().map(|(id, cursor)| Ok((run_id(&id)?, cursor))).collect()
}

/// Reads the dictionary of `Answer`: `choice` and `text`. Whether they fit the question is the service's to say.
pub fn answer(dict: GivenDict) -> Result<Answer, BusError> {
    let mut keys = Keys::of_argument(dict, "answer.");
    let answer = Answer { choice: keys.text("choice")?, text: keys.text("text")? };
    keys.finish()?;
    Ok(answer)
}

/// Reads the policy of `Prune`. Whether it asks for anything is the service's to say.
pub fn prune_policy(dict: GivenDict) -> Result<PrunePolicy, BusError> {
    let mut keys = Keys::of_argument(dict, "");
    let default = PrunePolicy::default();
    let policy = PrunePolicy {
        dry_run: keys.boolean("dry-run")?.unwrap_or(default.dry_run),
        acknowledged: keys.boolean("acknowledged")?.unwrap_or(default.acknowledged),
        older_than_seconds: keys.unsigned("older-than-seconds")?,
        keep_bytes: keys.unsigned("keep-bytes")?,
        limit: match keys.unsigned("limit")? {
            None => None,
            Some(limit) if (1..=1000).contains(&limit) => Some(limit as u32),
            Some(_) => return Err(keys.refuse("limit", "must be from 1 to 1000")),
        },
    };
    keys.finish()?;
    Ok(policy)
}

/// Reads the condition of `Wait`.
pub fn condition(text: &str) -> Result<WaitFor, BusError> {
    match text {
        "started" => Ok(WaitFor::Started),
        "attention" => Ok(WaitFor::Attention),
        "finished" => Ok(WaitFor::Finished),
        _ => Err(BusError::argument("condition must be one of started, attention, finished")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use zbus::wire::Variant;
    use zbus::{Message, OwnedVariant};

    use super::*;

    const ID: &str = "0192f3c4-5b6a-7c8d-9e0f-112233445566";

    type Dict<'a> = HashMap<&'a str, Variant<'a>>;

    /// Through a real message, as a caller's dictionary comes.
    fn given(dict: &Dict<'_>) -> Result<GivenDict, zbus::Error> {
        let message = Message::method_call("/", "M").build(&(dict,)).expect("a message");
        message.body().deserialize::<(GivenDict,)>().map(|(dict,)| dict)
    }

    fn minimal<'a>() -> Dict<'a> {
        let binding = HashMap::from([("run_id", Variant::from(ID))]);
        HashMap::from([
            ("version", Variant::from("airouter.sessions.v1")),
            ("binding", Variant::from(binding)),
            ("profile", Variant::from("echo")),
        ])
    }

    fn with<'a>(key: &'a str, value: impl Into<Variant<'a>>) -> Dict<'a> {
        let mut dict = minimal();
        dict.insert(key, value.into());
        dict
    }

    fn refusal(dict: Dict<'_>) -> String {
        submission(given(&dict).expect("decodes")).expect_err("must be refused").to_string()
    }

    #[test]
    fn a_minimal_submission_is_read() {
        let read = submission(given(&minimal()).unwrap()).unwrap();
        assert_eq!(read.submission, Submission::new(ID.parse().unwrap(), "echo"));
        assert!(matches!(read.input, Input::None));
    }

    #[test]
    fn integers_of_every_width_are_taken() {
        for value in [
            Variant::from(7_u8),
            Variant::from(7_i16),
            Variant::from(7_u16),
            Variant::from(7_i32),
            Variant::from(7_u32),
            Variant::from(7_i64),
            Variant::from(7_u64),
        ] {
            let mut dict = minimal();
            dict.insert("deadline-seconds", value);
            let read = submission(given(&dict).unwrap()).unwrap();
            assert_eq!(read.submission.deadline_seconds, Some(7));
        }
        assert_eq!(
            refusal(with("idle-seconds", -1_i32)),
            "InvalidSubmission: idle-seconds: is negative; it must be 0 or more"
        );
    }

    #[test]
    fn environment_comes_as_texts_or_variants() {
        let texts = with("environment", HashMap::from([("A", "1")]));
        let variants = with("environment", HashMap::from([("A", Variant::from("1"))]));
        for dict in [texts, variants] {
            let read = submission(given(&dict).unwrap()).unwrap();
            assert_eq!(read.submission.environment["A"], "1");
        }
        assert_eq!(
            refusal(with("environment", HashMap::from([("A", Variant::from(1_u32))]))),
            "InvalidSubmission: environment.A: must be s (text), and is an integer"
        );
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_named() {
        let text = refusal(with("shell", "rm"));
        assert!(
            text.starts_with("InvalidSubmission: shell: is no known key; known are version, binding"),
            "{text}"
        );
        assert!(!text.contains("not-before"), "{text}");
        assert_eq!(
            refusal(with("label", 5_u32)),
            "InvalidSubmission: label: must be s (text), and is an integer"
        );
        assert_eq!(
            refusal(with("arguments", vec![(1_u8, "x")])),
            "InvalidSubmission: arguments: must be as (texts), and is a(ys)"
        );
        assert_eq!(
            refusal(with("limits", HashMap::from([("gold", Variant::from(1_u32))]))),
            "InvalidSubmission: limits.gold: is no known key; known are memory-max, tasks-max, cpu-weight, journal-max"
        );
        assert_eq!(
            refusal(with("not-before", 5_u64)),
            "InvalidSubmission: not-before: this version does not take it"
        );
        assert!(refusal(with("recovery", "resume")).contains("recovery: this version does not take"));
    }

    #[test]
    fn input_is_text_bytes_or_one_descriptor() {
        for value in [Variant::from("hi"), Variant::from(b"hi".to_vec())] {
            let mut dict = minimal();
            dict.insert("input", value);
            let read = submission(given(&dict).unwrap()).unwrap();
            assert!(matches!(read.input, Input::Here(bytes) if bytes == b"hi"));
        }
        let file = tempfile::tempfile().unwrap();
        let mut both = with("input", "hi");
        both.insert("input-fd", Variant::from(zbus::Fd::from(&file)));
        assert!(refusal(both).starts_with("InvalidSubmission: input-fd: is given beside input"));
    }

    #[test]
    fn attachments_are_dictionaries_with_a_descriptor() {
        let file = tempfile::tempfile().unwrap();
        let attachment = |leave_out: &str| {
            let mut dict = HashMap::from([
                ("name", Variant::from("a.png")),
                ("sha256", Variant::from("ab")),
                ("fd", Variant::from(zbus::Fd::from(&file))),
            ]);
            dict.remove(leave_out);
            dict
        };
        let read = submission(given(&with("attachments", vec![attachment(""), attachment("")])).unwrap());
        assert_eq!(read.unwrap().attachments.len(), 2);
        let refused = |second| refusal(with("attachments", vec![attachment(""), second]));
        for key in ["name", "sha256", "fd"] {
            let text = refused(attachment(key));
            assert_eq!(text, format!("InvalidSubmission: attachments[1].{key}: is missing"));
        }
        let mut sized = attachment("");
        sized.insert("size", Variant::from(1_u32));
        assert_eq!(
            refused(sized),
            "InvalidSubmission: attachments[1].size: is no known key; known are name, media-type, sha256, fd"
        );
        let mut path = attachment("");
        path.insert("fd", Variant::from("/etc/passwd"));
        assert_eq!(refused(path), "InvalidSubmission: attachments[1].fd: must be h (a file descriptor)");
        assert_eq!(
            refusal(with("attachments", vec!["a.png"])),
            "InvalidSubmission: attachments: must be aa{sv}, and is as (texts)"
        );
        let none = submission(given(&with("attachments", Vec::<Dict<'_>>::new())).unwrap()).unwrap();
        assert!(none.attachments.is_empty());
    }

    #[test]
    fn continues_is_a_run_id() {
        let read = submission(given(&with("continues", ID)).unwrap()).unwrap();
        assert_eq!(read.submission.continues, ID.parse().ok());
        assert!(refusal(with("continues", "latest")).starts_with("InvalidSubmission: continues: "));
    }

    #[test]
    fn a_key_given_twice_is_refused() {
        // A map cannot hold a key twice, but a peer can write it so: two entries of one dictionary.
        let mut once = Dict::new();
        once.insert("k", Variant::from(true));
        let one = Message::method_call("/", "M").build(&(&once,)).unwrap();
        let entry = one.body().data().bytes()[8..].to_vec();
        let mut padded = entry.clone();
        padded.resize(entry.len().div_ceil(8) * 8, 0);
        let mut body = ((padded.len() + entry.len()) as u32).to_le_bytes().to_vec();
        body.extend([0; 4]);
        body.extend(&padded);
        body.extend(&entry);
        // SAFETY: the body holds no descriptors.
        let twice = unsafe { Message::method_call("/", "M").build_raw_body(&body, "a{sv}", vec![]) }.unwrap();
        let as_map: HashMap<String, OwnedVariant> = twice.body().deserialize().expect("well-formed");
        assert_eq!(as_map.len(), 1);
        let error = twice.body().deserialize::<GivenDict>().unwrap_err().to_string();
        assert!(error.contains("given twice"), "{error}");
    }

    #[test]
    fn filters_and_options_are_read() {
        let dict = HashMap::from([
            ("state", Variant::from("driving")),
            ("end", Variant::from("out-of-memory")),
            ("limit", Variant::from(5_i32)),
        ]);
        let read = filter(given(&dict).unwrap()).unwrap();
        assert_eq!(read.state, Some(crate::model::State::Driving));
        assert_eq!(read.end, Some(crate::model::End::OutOfMemory));
        assert_eq!(read.limit, Some(5));
        let bad = HashMap::from([("state", Variant::from("asleep"))]);
        assert!(
            filter(given(&bad).unwrap())
                .unwrap_err()
                .to_string()
                .starts_with("InvalidArgument: state: must be")
        );

        let options =
            follow_options(given(&HashMap::from([("live", Variant::from(false))])).unwrap()).unwrap();
        assert_eq!(options, FollowOptions { raw: false, replay_only: true });
        let read = answer(given(&HashMap::from([("choice", Variant::from("allow"))])).unwrap()).unwrap();
        assert_eq!(read, Answer { choice: Some("allow".into()), text: None });
        assert_eq!(answer(given(&HashMap::new()).unwrap()).unwrap(), Answer::default());
        for (key, value, text) in [
            ("colour", Variant::from("red"), "answer.colour: is no known key; known are choice, text"),
            ("text", Variant::from(true), "answer.text: must be s (text), and is b (true or false)"),
        ] {
            let refused = answer(given(&HashMap::from([(key, value)])).unwrap()).unwrap_err();
            assert_eq!(refused.to_string(), format!("InvalidArgument: {text}"));
        }
        let dict = HashMap::from([("dry-run", Variant::from(false)), ("keep-bytes", Variant::from(7_u8))]);
        let policy = PrunePolicy { dry_run: false, keep_bytes: Some(7), ..PrunePolicy::default() };
        assert_eq!(prune_policy(given(&dict).unwrap()).unwrap(), policy);
        let nothing = prune_policy(given(&HashMap::new()).unwrap()).unwrap();
        assert!(nothing.dry_run && nothing.acknowledged, "nothing goes that was not asked for twice");
        for (key, value, text) in [
            ("older", Variant::from(1_u8), "older: is no known key; known are dry-run, acknowledged, "),
            ("limit", Variant::from(0_u8), "limit: must be from 1 to 1000"),
            ("older-than-seconds", Variant::from(-1_i32), "older-than-seconds: is negative"),
            ("dry-run", Variant::from("no"), "dry-run: must be b (true or false)"),
        ] {
            let refused = prune_policy(given(&HashMap::from([(key, value)])).unwrap()).unwrap_err();
            assert!(refused.to_string().starts_with(&format!("InvalidArgument: {text}")), "{refused}");
        }
        let unknown = given(&HashMap::from([("speed", Variant::from(1_u8))])).unwrap();
        assert_eq!(
            subscribe_options(unknown).unwrap_err().to_string(),
            "InvalidArgument: speed: is no known key; none is known here"
        );
    }
}
