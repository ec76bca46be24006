//! Agent programs on `PATH`.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::edit::Change;
use crate::cli::Failure;
use crate::config::Config;
use crate::dialect;

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// What can be registered.
    pub changes: Vec<Change>,
    /// What cannot, or is already, and why.
    pub skipped: Vec<String>,
}

/// The agent programs on our `PATH` that `config` does not have yet, each under the names of all dialects that it speaks.
pub fn on_path(config: &Config) -> Found {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found = Found::default();
    let families =
        dialect::NAMES.into_iter().filter_map(|name| Some((name, dialect::find(name)?.commands())));
    for (dialect, commands) in families.filter(|(_, commands)| !commands.is_empty()) {
        match commands.iter().find_map(|command| find(&path, command)) {
            Some(program) => consider(config, &path, dialect, program, &mut found),
            None => found.skipped.push(format!("{dialect}: no {} on PATH", commands.join(" or "))),
        }
    }
    found
}

fn consider(config: &Config, path: &OsStr, dialect: &str, program: PathBuf, found: &mut Found) {
    // Several dialects may be ways of one program: each is a profile of its own.
    let mut profiles = config.profiles.iter();
    if let Some((name, _)) =
        profiles.find(|(_, profile)| profile.program == program && profile.dialect == dialect)
    {
        found.skipped.push(format!("{dialect}: {} is registered already, as {name}", program.display()));
        return;
    }
    if config.profiles.contains_key(dialect) {
        found.skipped.push(format!(
            "{dialect}: the name is taken; register {} by `sessionctl profiles add NAME {} --dialect {dialect}`",
            program.display(),
            program.display()
        ));
        return;
    }
    let default_path = config.environment.get("PATH").map(String::as_str).unwrap_or_default();
    let environment = match needed_path(&program, default_path, path) {
        Ok(Some(needed)) => BTreeMap::from([("PATH".to_owned(), needed)]),
        Ok(None) => BTreeMap::new(),
        Err(problem) => {
            found.skipped.push(format!("{dialect}: {problem}"));
            return;
        }
    };
    let change = Change::Add {
        name: dialect.to_owned(),
        program,
        dialect: dialect.to_owned(),
        arguments: None,
        environment,
        directory: None,
        replace: false,
    };
    match acceptable(&change) {
        Ok(()) => found.changes.push(change),
        Err(problem) => found.skipped.push(format!("{dialect}: {problem}")),
    }
}

/// Whether the daemon would take a configuration with this profile: others must not be able to write the program.
fn acceptable(change: &Change) -> Result<(), String> {
    let Change::Add { name, program, dialect, .. } = change else { return Ok(()) };
    let mut table = toml_edit::DocumentMut::new();
    table["profiles"][name]["program"] = toml_edit::value(program.to_string_lossy().as_ref());
    table["profiles"][name]["dialect"] = toml_edit::value(dialect.as_str());
    let place = Path::new("the detected profile");
    Config::parse(&table.to_string(), place).map(drop).map_err(|error| error.to_string())
}

/// A script that `env` starts needs its interpreter on the path that the service gives it, which is not ours: the path
/// with that interpreter's directory, where it is not there anyway.
fn needed_path(program: &Path, default_path: &str, ours: &OsStr) -> Result<Option<String>, String> {
    let Some(interpreter) = missing_interpreter(program, default_path) else { return Ok(None) };
    let found = find(ours, &interpreter)
        .ok_or_else(|| format!("{} needs {interpreter}, which is not on PATH", program.display()))?;
    let directory = found.parent().unwrap_or(Path::new("/")).to_string_lossy();
    Ok(Some(format!("{directory}:{default_path}")))
}

/// The interpreter that a script asks `env` for, if it is not on `path`.
pub fn missing_interpreter(program: &Path, path: &str) -> Option<String> {
    env_interpreter(program).filter(|interpreter| find(OsStr::new(path), interpreter).is_none())
}

/// The interpreter of a script that begins with `#!/usr/bin/env NAME`.
fn env_interpreter(program: &Path) -> Option<String> {
    let mut head = Vec::new();
    File::open(program).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
    let first = words.next()?;
    if Path::new(first).file_name()? != "env" {
        return None;
    }
    words.find(|word| !word.starts_with('-') && !word.contains('=')).map(str::to_owned)
}

/// The absolute program that the command line names: a path, or a name looked for on `PATH`.
pub fn named(program: &Path) -> Result<PathBuf, Failure> {
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        let path = std::path::absolute(program)
            .map_err(|error| Failure::io(format!("the program {}", program.display()), error))?;
        if !is_executable(&path) {
            return Err(Failure::Usage(format!(
                "{} is no executable file; nothing was changed",
                path.display()
            )));
        }
        return Ok(path);
    }
    let name = program.to_string_lossy();
    let path = env::var_os("PATH").unwrap_or_default();
    find(&path, &name).ok_or_else(|| Failure::Usage(format!("no program {name} on PATH; give its path")))
}

/// The first executable file of that name in the absolute directories of a search path.
fn find(path: &OsStr, name: &str) -> Option<PathBuf> {
    env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn program(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn config() -> Config {
        Config::default_for_account().unwrap()
    }

    fn consider_one(config: &Config, path: &Path, dialect: &str, program: &Path) -> Found {
        let mut found = Found::default();
        consider(config, path.as_os_str(), dialect, program.to_owned(), &mut found);
        found
    }

    #[test]
    fn a_script_gets_the_path_to_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let script = program(directory.path(), "codex", "#!/usr/bin/env -S oddjs --flag\n");
        let found = consider_one(&config(), directory.path(), "codex", &script);
        assert!(found.changes.is_empty() && found.skipped[0].contains("needs oddjs"), "{found:?}");
        program(directory.path(), "oddjs", "");
        let found = consider_one(&config(), directory.path(), "codex", &script);
        let [Change::Add { environment, .. }] = found.changes.as_slice() else { panic!("{found:?}") };
        assert_eq!(
            environment["PATH"],
            format!("{}:/usr/local/bin:/usr/bin:/bin", directory.path().display())
        );
        let shell = program(directory.path(), "claude", "#!/usr/bin/env sh\n");
        assert_eq!(needed_path(&shell, "/usr/bin:/bin", OsStr::new("")), Ok(None));
        assert_eq!(env_interpreter(Path::new("/bin/sh")), None);
    }

    #[test]
    fn what_others_can_write_is_skipped_and_said() {
        let directory = tempfile::tempdir().unwrap();
        let file = program(directory.path(), "codex", "");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o777)).unwrap();
        let found = consider_one(&config(), directory.path(), "codex", &file);
        assert!(found.changes.is_empty() && found.skipped[0].contains("chmod o-w"), "{found:?}");
    }

    #[test]
    fn what_is_registered_is_not_registered_again() {
        let text = "[profiles.codex]\nprogram = \"/bin/cat\"\ndialect = \"codex\"\n";
        let config = Config::parse(text, Path::new("/sessiond.toml")).unwrap();
        let again = consider_one(&config, Path::new("/bin"), "codex", Path::new("/bin/cat"));
        assert!(again.changes.is_empty() && again.skipped[0].contains("already"), "{again:?}");
        let taken = consider_one(&config, Path::new("/bin"), "codex", Path::new("/bin/echo"));
        assert!(taken.changes.is_empty() && taken.skipped[0].contains("taken"), "{taken:?}");
    }

    #[test]
    fn a_program_is_registered_in_each_of_its_ways() {
        let text = "[profiles.codex]\nprogram = \"/bin/cat\"\ndialect = \"codex\"\n";
        let config = Config::parse(text, Path::new("/sessiond.toml")).unwrap();
        let found = consider_one(&config, Path::new("/bin"), "codex-app", Path::new("/bin/cat"));
        let [Change::Add { name, program, dialect, .. }] = found.changes.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(
            (name.as_str(), program.as_path(), dialect.as_str()),
            ("codex-app", Path::new("/bin/cat"), "codex-app")
        );
        for (one, two) in [("codex", "codex-app"), ("claude", "claude-stream"), ("pi", "pi-rpc")] {
            let commands = |name| dialect::find(name).unwrap().commands();
            assert_eq!(commands(one), commands(two));
        }
    }

    #[test]
    fn only_executable_files_in_absolute_directories_are_found() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("plain"), "").unwrap();
        let file = program(directory.path(), "codex", "");
        let path = env::join_paths([Path::new("relative"), directory.path()]).unwrap();
        assert_eq!(find(&path, "codex"), Some(file));
        assert_eq!(find(&path, "plain"), None);
        assert!(named(Path::new("no-such-program-anywhere")).is_err());
    }
}
