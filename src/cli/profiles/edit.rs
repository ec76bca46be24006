//! The configuration file, changed as text: comments, order and everything else that people wrote stay.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, value};

use crate::cli::Failure;
use crate::config::Config;

/// A change of the registered programs.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Register one.
    Add {
        /// The profile's name.
        name: String,
        /// The absolute program.
        program: PathBuf,
        /// The dialect that reads it.
        dialect: String,
        /// Its fixed arguments; `None`: the dialect's.
        arguments: Option<Vec<String>>,
        /// Its environment.
        environment: BTreeMap<String, String>,
        /// Where it runs by default.
        directory: Option<PathBuf>,
        /// Replace one of that name.
        replace: bool,
    },
    /// Take one out.
    Remove {
        /// The profile's name.
        name: String,
    },
}

/// What was changed.
#[derive(Debug)]
pub struct Edited {
    /// The file.
    pub file: PathBuf,
    /// The profiles that were registered or taken out.
    pub names: Vec<String>,
}

/// Applies `changes` to the configuration file, all or none. The new text is checked as the daemon would check it
/// before it replaces the old one; the file keeps its mode, and is made with 0600 where there is none.
pub fn edit(path: Option<&Path>, changes: &[Change]) -> Result<Edited, Failure> {
    let named = Config::path(path)?;
    // A symbolic link (a folder of dotfiles) stays one: what it leads to is replaced.
    let file = named.canonicalize().unwrap_or_else(|_| named.clone());
    let directory = file.parent().ok_or_else(|| Failure::Usage(format!("{} is no file", file.display())))?;
    let failed = |what: &Path, error: io::Error| Failure::io(what.display().to_string(), error);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| failed(directory, error))?;
    let opened = File::open(directory).map_err(|error| failed(directory, error))?;
    // Two at once would lose one's change. The directory is locked, since the file itself is replaced.
    let lock =
        Flock::lock(opened, FlockArg::LockExclusive).map_err(|(_, error)| failed(directory, error.into()))?;
    let old = Config::text(&file)?.unwrap_or_default();
    let new = changed(&old, &named, changes)?;
    let mode = fs::metadata(&file).map_or(0o600, |found| found.permissions().mode() & 0o777);
    replace(&file, &new, mode).map_err(|error| failed(&file, error))?;
    lock.sync_all().map_err(|error| failed(directory, error))?;
    let names = changes.iter().map(|change| match change {
        Change::Add { name, .. } | Change::Remove { name } => name.clone(),
    });
    Ok(Edited { file: named, names: names.collect() })
}

/// The text of the file after the changes, valid as a whole.
fn changed(old: &str, file: &Path, changes: &[Change]) -> Result<String, Failure> {
    let mut document: DocumentMut = match old.parse() {
        Ok(document) => document,
        // The daemon's message on the same fault names the line and shows nothing of the text.
        Err(_) => {
            return Err(Config::parse(old, file).err().map_or_else(
                || Failure::Trouble(format!("{} is not TOML that can be edited", file.display())),
                Failure::Config,
            ));
        }
    };
    for change in changes {
        apply(&mut document, file, change)?;
    }
    let new = document.to_string();
    Config::parse(&new, file)?;
    Ok(new)
}

fn apply(document: &mut DocumentMut, file: &Path, change: &Change) -> Result<(), Failure> {
    let profiles = document.entry("profiles").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let profiles = profiles
        .as_table_like_mut()
        .ok_or_else(|| Failure::Trouble(format!("{}: `profiles` is not a table", file.display())))?;
    match change {
        Change::Add { name, replace, .. } if profiles.contains_key(name) && !replace => {
            Err(Failure::Usage(format!("there is a profile {name} already; --replace replaces it")))
        }
        Change::Add { name, .. } => {
            insert(profiles, name, change);
            Ok(())
        }
        Change::Remove { name } => match profiles.remove(name) {
            Some(_) => Ok(()),
            None => Err(Failure::Usage(format!(
                "{} has no profile {name}; `sessionctl profiles list` shows those that it has",
                file.display()
            ))),
        },
    }
}

fn insert(profiles: &mut dyn TableLike, key: &str, change: &Change) {
    let Change::Add { program, dialect, arguments, environment, directory, .. } = change else { return };
    let mut table = Table::new();
    table.insert("program", value(program.to_string_lossy().as_ref()));
    table.insert("dialect", value(dialect.as_str()));
    if let Some(arguments) = arguments {
        table.insert("arguments", value(arguments.iter().map(String::as_str).collect::<Array>()));
    }
    if let Some(directory) = directory {
        table.insert("directory", value(directory.to_string_lossy().as_ref()));
    }
    if !environment.is_empty() {
        let pairs = environment.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        table.insert("environment", value(pairs.collect::<InlineTable>()));
    }
    profiles.insert(key, Item::Table(table));
}

/// Replaces the file as a whole: whoever reads it sees the old text or the new.
fn replace(file: &Path, text: &str, mode: u32) -> io::Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut writer = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    let written = (|| {
        // The umask may have taken bits away that the old file had.
        writer.set_permissions(fs::Permissions::from_mode(mode))?;
        writer.write_all(text.as_bytes())?;
        writer.sync_all()?;
        fs::rename(&new, file)
    })();
    if written.is_err() {
        // What is left of it is ours alone, and nothing reads it.
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn add(name: &str, program: &str) -> Change {
        Change::Add {
            name: name.into(),
            program: program.into(),
            dialect: "jsonl".into(),
            arguments: None,
            environment: BTreeMap::new(),
            directory: None,
            replace: false,
        }
    }

    fn remove(name: &str) -> Change {
        Change::Remove { name: name.into() }
    }

    #[test]
    fn what_people_wrote_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sessiond.toml");
        let text = "# mine\nbus = \"off\"   # no bus\n\n[profiles.cat]\n# the cat\nprogram = \"/bin/cat\"\ndialect = \"jsonl\"\n";
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let link = directory.path().join("link.toml");
        symlink(&file, &link).unwrap();

        let mut change = add("echo", "/bin/echo");
        if let Change::Add { arguments, environment, directory, .. } = &mut change {
            *arguments = Some(vec!["a \"b\"".into()]);
            environment.insert("A".into(), "b\nc".into());
            *directory = Some("/".into());
        }
        let edited = edit(Some(&link), &[change]).unwrap();
        assert_eq!(edited.names, ["echo"]);
        let new = fs::read_to_string(&file).unwrap();
        assert!(new.starts_with(text), "{new}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let config = Config::load(Some(&file)).unwrap();
        assert_eq!(config.profiles["echo"].arguments.as_deref(), Some(["a \"b\"".to_owned()].as_slice()));
        assert_eq!(config.profiles["echo"].environment["A"], "b\nc");

        edit(Some(&file), &[remove("echo")]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn a_new_file_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("airouter/sessiond.toml");
        edit(Some(&file), &[add("echo", "/bin/echo")]).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Config::load(Some(&file)).unwrap().profiles.contains_key("echo"));
    }

    #[test]
    fn what_the_daemon_would_refuse_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sessiond.toml");
        edit(Some(&file), &[add("echo", "/bin/echo")]).unwrap();
        let before = fs::read_to_string(&file).unwrap();
        for changes in [
            vec![add("bad name", "/bin/echo")],
            vec![add("relative", "echo")],
            vec![add("echo", "/bin/cat")],
            vec![remove("cat")],
            vec![remove("echo")],
            vec![add("cat", "/bin/cat"), remove("dog")],
        ] {
            assert!(edit(Some(&file), &changes).is_err(), "{changes:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), before);
        }
        fs::write(&file, "colour = 1\n").unwrap();
        let error = edit(Some(&file), &[add("echo", "/bin/echo")]).unwrap_err().to_string();
        assert!(error.contains("colour"), "{error}");
    }

    #[test]
    fn profiles_in_one_line_can_be_edited() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sessiond.toml");
        fs::write(&file, "profiles = { cat = { program = \"/bin/cat\", dialect = \"jsonl\" } }\n").unwrap();
        edit(Some(&file), &[add("echo", "/bin/echo")]).unwrap();
        assert_eq!(Config::load(Some(&file)).unwrap().profiles.len(), 2);
    }
}
