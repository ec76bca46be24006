//! `sessionctl pages DIRECTORY`: manual pages and shell completions, from the command lines themselves, the interfaces'
//! XML and the example configuration, so that none of them says what is not so. For those who install the programs;
//! hidden from everybody else.

mod configuration;
mod interface;
mod page;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Cli, Exit, Failure};
use crate::daemon;

const EXAMPLE: &str = include_str!("../../../config/sessiond.example.toml");
const INTERFACES: [&str; 3] = [
    include_str!("../../../interfaces/org.airouter.Sessions1.xml"),
    include_str!("../../../interfaces/org.airouter.Session1.xml"),
    include_str!("../../../interfaces/org.airouter.Controller1.xml"),
];

/// Writes manual pages and shell completions.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to; made if it is missing
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<Exit, Failure> {
    let directory = &arguments.directory;
    write(directory).map_err(|error| Failure::io(format!("pages in {}", directory.display()), error))?;
    Ok(Exit::Ok)
}

fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)?;
    let mut page = File::create(directory.join("airouter-sessiond.8"))?;
    Man::new(daemon::command()).section("8").render(&mut page)?;
    fs::write(directory.join("sessiond.toml.5"), configuration::page(EXAMPLE))?;
    for xml in INTERFACES {
        let (name, page) = interface::page(xml).map_err(io::Error::other)?;
        fs::write(directory.join(format!("{name}.5")), page)?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "sessionctl", directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_is_completed() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).expect(name);
        let own = read("sessionctl.1");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = read(&format!("sessionctl-{}.1", command.get_name()));
            assert!(page.contains(".SH NAME"), "{page}");
            // roff(7) has a hyphen escaped.
            let name = format!("sessionctl-{}(1)", command.get_name()).replace('-', "\\-");
            assert!(own.contains(&name), "{name} in\n{own}");
            for completions in ["sessionctl.bash", "_sessionctl", "sessionctl.fish"] {
                assert!(read(completions).contains(command.get_name()), "{completions}");
            }
        }
        for word in ["reconciliation-required", "lease-lost"] {
            assert!(read("sessionctl.bash").contains(word), "{word}");
        }
        assert!(!directory.path().join("sessionctl-pages.1").exists(), "it is hidden");
        assert!(own.contains("Exit statuses") && read("airouter-sessiond.8").contains("AIROUTER_LOG"));
    }

    #[test]
    fn every_key_of_the_configuration_is_in_its_page() {
        let page = configuration::page(EXAMPLE);
        let keys = EXAMPLE.lines().filter_map(|line| {
            // `# …` is prose, and `#   …` a table that is not there by default.
            let line = line.strip_prefix("#   ").unwrap_or(line);
            let key = line.strip_prefix('#').unwrap_or(line).split_once(" = ")?.0;
            (!key.starts_with(' ')).then_some(key)
        });
        let mut count = 0;
        for key in keys {
            assert!(page.contains(&format!("\\fB{key} = ")), "{key} in\n{page}");
            count += 1;
        }
        assert!(count > 36, "{count}");
        assert!(page.contains(".SH \"[controller]\"") && !page.contains("# What"), "{page}");
        assert!(page.contains(".SH \"[limits]\"") && page.contains("An unknown key is refused"), "{page}");
    }

    #[test]
    fn every_member_of_an_interface_is_in_its_page_with_what_is_said_of_it() {
        for xml in INTERFACES {
            let (name, page) = interface::page(xml).unwrap();
            assert!(page.contains(&name) && page.contains(".SH \"METHODS\""), "{page}");
            for tag in ["<method name=\"", "<signal name=\"", "<property name=\""] {
                for member in xml.split(tag).skip(1) {
                    let member = member.split('"').next().unwrap();
                    let at = page.find(&format!(".SS \"{member}")).expect(member);
                    assert!(page[at..].lines().nth(1).is_some_and(|line| line == ".PP"), "{member}");
                }
            }
        }
    }
}
