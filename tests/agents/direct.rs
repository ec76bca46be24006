//! One program driven by its talk and its reader alone, as the executor drives it: what the talk says is written, and standard
//! input is closed when the reading is settled and the talk is idle.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use airouter_sessiond::dialect::talk::{Asked, Reply};
use airouter_sessiond::dialect::{Deed, Occasion, Opening, Reader, Reading, Talk, find};
use airouter_sessiond::model::{Answer, Event, Message, MessageMode};

use super::world::{Agent, World};

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Direct {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    talk: Box<dyn Talk>,
    reader: Box<dyn Reader>,
    pub events: Vec<Event>,
    pub deeds: Vec<Deed>,
}

impl Direct {
    pub fn start(world: &World, agent: &Agent, mut opening: Opening) -> Direct {
        let dialect = find(agent.dialect).expect("a dialect");
        let schema = opening.schema.as_ref().map(ToString::to_string);
        let schema_file = world.home().join("schema.json");
        std::fs::write(&schema_file, schema.as_deref().unwrap_or_default()).expect("a schema");
        let occasion = Occasion {
            schema: schema
                .as_deref()
                .map(|text| airouter_sessiond::dialect::launch::Schema { path: &schema_file, text }),
            conversation: opening.conversation.as_deref(),
            ..Occasion::default()
        };
        let arguments = dialect.arguments(&agent.arguments, &[], &occasion).expect("arguments");
        opening.directory = world.work();
        let mut child = Command::new(&agent.program)
            .args(&arguments)
            .env_clear()
            .envs(&agent.environment)
            .current_dir(world.work())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("its output"));
        std::thread::spawn(move || {
            for line in stdout.split(b'\n').map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut direct = Direct {
            stdin: child.stdin.take(),
            child,
            lines,
            talk: dialect.talk(&arguments).expect("a talk"),
            reader: dialect.reader(&arguments),
            events: Vec::new(),
            deeds: Vec::new(),
        };
        direct.act(|talk, deeds| talk.open(opening, deeds));
        direct
    }

    pub fn prompt(world: &World, agent: &Agent, prompt: &str) -> Direct {
        Direct::start(world, agent, Opening { prompt: prompt.to_owned(), ..Opening::default() })
    }

    fn act(&mut self, act: impl FnOnce(&mut Box<dyn Talk>, &mut Vec<Deed>)) {
        let mut deeds = Vec::new();
        act(&mut self.talk, &mut deeds);
        for deed in &deeds {
            match deed {
                Deed::Write { line, .. } => {
                    let stdin = self.stdin.as_mut().expect("standard input is open");
                    let written = stdin.write_all(&[line, &b"\n"[..]].concat()).and_then(|()| stdin.flush());
                    written.expect("writes");
                }
                Deed::Fail(why) => panic!("it failed: {why}"),
                _ => {}
            }
        }
        self.deeds.extend(deeds);
    }

    /// Reads on until it is so.
    pub fn until(&mut self, what: &str, reached: impl Fn(&Direct) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !reached(self) {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.line(&line),
                Err(RecvTimeoutError::Timeout) => panic!("waited too long for {what}: {:#?}", self.events),
                Err(RecvTimeoutError::Disconnected) => panic!("no {what} in {:#?}", self.events),
            }
        }
    }

    fn line(&mut self, line: &[u8]) {
        self.reader.line(line, &mut self.events);
        self.act(|talk, deeds| talk.heard(line, deeds));
        if self.reader.reading().settled && self.talk.is_idle() {
            self.stdin = None;
        }
    }

    pub fn until_tool(&mut self) {
        self.until("a tool", |run| run.events.iter().any(|event| matches!(event, Event::ToolStarted { .. })));
    }

    pub fn until_asked(&mut self) -> Asked {
        let asked = |run: &Direct| {
            run.deeds.iter().find_map(|deed| match deed {
                Deed::Ask(asked) => Some(asked.clone()),
                _ => None,
            })
        };
        self.until("a question", |run| asked(run).is_some());
        asked(self).expect("a question")
    }

    pub fn message(&mut self, mode: MessageMode, id: &str, text: &str) {
        let message = Message { request_id: id.to_owned(), mode, text: text.to_owned() };
        self.act(|talk, deeds| talk.message(&message, deeds));
    }

    pub fn choose(&mut self, key: &str, choice: &str) {
        let answer = Answer { choice: Some(choice.to_owned()), text: None };
        self.act(|talk, deeds| talk.answer(key, Reply::Answer(&answer), deeds));
    }

    pub fn interrupt(&mut self) {
        self.act(|talk, deeds| talk.interrupt(deeds));
    }

    pub fn took(&self, id: &str) -> bool {
        self.deeds.iter().any(|deed| *deed == Deed::Took(id.to_owned()))
    }

    /// Reads all the rest, and waits for its exit by itself.
    pub fn finish(&mut self) -> Reading {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.line(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("it does not end; idle: {}; {:#?}", self.talk.is_idle(), self.deeds)
                }
            }
        }
        self.child.wait().expect("it ended");
        self.reader.end(&mut self.events);
        assert!(self.stdin.is_none(), "it ended before its input did");
        self.reader.reading().clone()
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
