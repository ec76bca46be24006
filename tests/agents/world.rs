//! The real programs, where `tests/tools/install-agents` put them, and a scripted model for them on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use airouter_sessiond::dialect;
use serde_json::json;

/// A picture, 16 by 16 pixels.
pub const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAF0lEQVR4nGP4z8BAEiJN9aiGUQ1DSgMAkPn/Afnh+ngAAAAASUVORK5CYII=";

/// Programs, a model, and a home directory for each test.
pub struct World {
    agents: PathBuf,
    home: tempfile::TempDir,
    model: Child,
    port: u16,
}

/// One program as a profile has it.
pub struct Agent {
    pub dialect: &'static str,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
}

impl World {
    pub fn new() -> World {
        let agents = std::env::var_os("AIROUTER_AGENTS").map(PathBuf::from);
        let agents = agents.expect("AIROUTER_AGENTS names the real programs; use `make test-agents`");
        // Not below the temporary directory, where codex does not like to live.
        let home = tempfile::Builder::new().prefix("home-").tempdir_in(&agents).expect("a home");
        fs::create_dir(home.path().join("log")).expect("a log");
        let stub = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/stub_model.py");
        let mut model = Command::new("python3")
            .arg(stub)
            .arg("0")
            .arg(home.path().join("log"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the model starts");
        let mut port = String::new();
        BufReader::new(model.stdout.take().expect("its output")).read_line(&mut port).expect("its port");
        let port = port.trim().parse().expect("a port");
        World { agents, home, model, port }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The directory in which programs work.
    pub fn work(&self) -> PathBuf {
        let work = self.home().join("work");
        fs::create_dir_all(&work).expect("a directory");
        work
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(&path, text).expect("a file");
        path
    }

    /// A file with the picture.
    pub fn picture(&self) -> PathBuf {
        let path = self.home().join("attachments/red.png");
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(&path, self.picture_bytes()).expect("a picture");
        path
    }

    pub fn picture_bytes(&self) -> Vec<u8> {
        let decode = Command::new("python3")
            .args([
                "-c",
                "import base64, sys; sys.stdout.buffer.write(base64.b64decode(sys.argv[1]))",
                PICTURE,
            ])
            .output()
            .expect("python3 runs");
        decode.stdout
    }

    /// Whether a request to the model held these words.
    pub fn model_saw(&self, words: &str) -> bool {
        self.model_saw_together(&[words])
    }

    /// Whether one request to the model held all of these.
    pub fn model_saw_together(&self, words: &[&str]) -> bool {
        let log = fs::read_dir(self.home().join("log")).expect("the log");
        let mut files = log.map(|file| file.expect("a file").path());
        files.any(|file| {
            fs::read_to_string(file).is_ok_and(|text| words.iter().all(|words| text.contains(words)))
        })
    }

    /// The program of this dialect, which does what it is told without asking.
    pub fn agent(&self, dialect: &str) -> Agent {
        let (program, own, environment) = match dialect {
            "codex" | "codex-app" => self.codex(dialect),
            "claude" | "claude-stream" => self.claude(),
            "pi" | "pi-rpc" => self.pi(),
            "gemini" => self.gemini(),
            "opencode" => self.opencode(),
            other => panic!("no program speaks {other}"),
        };
        let dialect = dialect::find(dialect).expect("a dialect");
        let home = self.home().display().to_string();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.agents.join("node/bin").display());
        let temporary = self.home().join("tmp");
        fs::create_dir_all(&temporary).expect("a directory");
        let base = [("HOME", home), ("PATH", path), ("TMPDIR", temporary.display().to_string())];
        let launch = dialect.launch();
        let own_environment = launch.environment.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let environment = base.into_iter().chain(own_environment).chain(environment);
        Agent {
            dialect: dialect.name(),
            program,
            arguments: [launch.arguments, own].concat(),
            environment: environment.map(|(key, value)| (key.to_owned(), value)).collect(),
        }
    }

    /// The same, which asks before it runs a tool.
    pub fn asking(&self, dialect: &str) -> Agent {
        let mut agent = self.agent(dialect);
        match dialect {
            "codex-app" => {
                agent.arguments.truncate(1);
                agent.arguments.extend(["-c", "approval_policy=\"on-request\""].map(str::to_owned));
            }
            "claude-stream" => {
                let mode =
                    agent.arguments.iter().position(|word| word == "bypassPermissions").expect("a mode");
                "default".clone_into(&mut agent.arguments[mode]);
            }
            _ => {
                let extension = self.home().join("ask.js");
                let code = "export default (pi) => pi.on('tool_call', async (event, context) => {\n\
                            if (!await context.ui.confirm('Run it?', String(event.input.command)))\n\
                            return { block: true, reason: 'refused' };\n});\n";
                fs::write(&extension, code).expect("an extension");
                agent.arguments.extend(["-e".to_owned(), extension.display().to_string()]);
            }
        }
        agent
    }

    fn codex(&self, dialect: &str) -> Started {
        let config = format!(
            "model = \"gpt-5\"\nmodel_provider = \"stub\"\n[model_providers.stub]\nname = \"stub\"\n\
             base_url = \"http://127.0.0.1:{}/v1\"\nwire_api = \"responses\"\nenv_key = \"STUB_API_KEY\"\n\
             request_max_retries = 0\nstream_max_retries = 0\n",
            self.port
        );
        let config = self.write("codex/config.toml", &config);
        let home = config.parent().expect("a directory").display().to_string();
        let program = only(&self.agents.join("codex/node_modules/@openai"), "vendor/*/bin/codex");
        let own = match dialect {
            "codex" => vec!["--dangerously-bypass-approvals-and-sandbox"],
            _ => vec!["-c", "approval_policy=\"never\"", "-c", "sandbox_mode=\"danger-full-access\""],
        };
        (program, words(&own), vec![("CODEX_HOME", home), ("STUB_API_KEY", "none".into())])
    }

    fn claude(&self) -> Started {
        let program = only(&self.agents.join("claude-code/node_modules/@anthropic-ai"), "claude");
        let own = ["--model", "claude-sonnet-4-5", "--permission-mode", "bypassPermissions"];
        let config = self.home().join("claude").display().to_string();
        let environment = vec![
            ("ANTHROPIC_BASE_URL", format!("http://127.0.0.1:{}", self.port)),
            ("ANTHROPIC_API_KEY", "none".into()),
            ("CLAUDE_CONFIG_DIR", config),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into()),
            ("CLAUDE_CODE_MAX_RETRIES", "0".into()),
            ("IS_SANDBOX", "1".into()),
        ];
        (program, words(&own), environment)
    }

    fn pi(&self) -> Started {
        let model = json!({
            "id": "stub-model", "name": "stub", "reasoning": false, "input": ["text", "image"],
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
            "contextWindow": 128_000, "maxTokens": 8192,
        });
        let base = format!("http://127.0.0.1:{}/v1", self.port);
        let stub = json!({"baseUrl": base, "apiKey": "none", "api": "openai-completions", "models": [model]});
        let models = self.write("pi/models.json", &json!({"providers": {"stub": stub}}).to_string());
        let home = models.parent().expect("a directory").display().to_string();
        let program = self.agents.join("pi-coding-agent/node_modules/.bin/pi");
        let own = words(&["--provider", "stub", "--model", "stub-model"]);
        (program, own, vec![("PI_CODING_AGENT_DIR", home), ("PI_OFFLINE", "1".into())])
    }

    fn gemini(&self) -> Started {
        let settings = json!({"security": {"auth": {"selectedType": "gemini-api-key"}}});
        self.write(".gemini/settings.json", &settings.to_string());
        let program = self.agents.join("gemini-cli/node_modules/.bin/gemini");
        let environment = vec![
            ("GEMINI_API_KEY", "none".into()),
            ("GOOGLE_GEMINI_BASE_URL", format!("http://127.0.0.1:{}", self.port)),
        ];
        (program, words(&["--yolo", "--skip-trust", "-m", "gemini-2.5-pro"]), environment)
    }

    fn opencode(&self) -> Started {
        let model = json!({"name": "stub", "attachment": true, "modalities": {"input": ["text", "image"], "output": ["text"]}});
        let options = json!({"baseURL": format!("http://127.0.0.1:{}/v1", self.port), "apiKey": "none"});
        let stub = json!({"npm": "@ai-sdk/openai-compatible", "name": "stub", "options": options, "models": {"stub-model": model}});
        let config = self.write("opencode.json", &json!({"provider": {"stub": stub}}).to_string());
        let program = only(&self.agents.join("opencode-ai/node_modules"), "bin/opencode");
        let environment = vec![
            ("OPENCODE_CONFIG", config.display().to_string()),
            ("OPENCODE_DISABLE_MODELS_FETCH", "true".into()),
        ];
        (program, words(&["-m", "stub/stub-model", "--auto"]), environment)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.model.kill();
        let _ = self.model.wait();
    }
}

/// A program, its arguments after those of the dialect, its environment.
type Started = (PathBuf, Vec<String>, Vec<(&'static str, String)>);

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The native program in the package for this machine, whose name ends in the machine's: `PACKAGE-linux-x64/END`.
fn only(packages: &Path, end: &str) -> PathBuf {
    let machine = if cfg!(target_arch = "aarch64") { "-linux-arm64" } else { "-linux-x64" };
    let mut found: Vec<PathBuf> = entries(packages);
    found.retain(|path| path.to_string_lossy().ends_with(machine));
    for part in end.split('/') {
        found = match part {
            "*" => found.iter().flat_map(|path| entries(path)).collect(),
            part => found.iter().map(|path| path.join(part)).collect(),
        };
    }
    found.retain(|path| path.is_file());
    let [program] = found.try_into().unwrap_or_else(|found| panic!("one program of {found:?}"));
    program
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    read.map(|entry| entry.expect("an entry").path()).collect()
}
