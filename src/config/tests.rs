use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::*;

const FILE: &str = "/nonexistent/sessiond.toml";

fn refused(text: &str) -> String {
    Config::parse(text, Path::new(FILE)).expect_err("must be refused").to_string()
}

fn profile(more: &str) -> String {
    format!("[profiles.echo]\nprogram = \"/bin/cat\"\ndialect = \"jsonl\"\n{more}")
}

#[test]
fn a_small_file_means_the_defaults() {
    let config = Config::parse(&profile(""), Path::new(FILE)).unwrap();
    let default = Config::default_for_account().unwrap();
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.environment["PATH"], DEFAULT_PATH);
    assert!(config.environment.contains_key("HOME"));
    assert_eq!((&config.spool, &config.socket, config.bus), (&default.spool, &default.socket, BusMode::Auto));
    assert_eq!(config.profiles["echo"].problem(), None);
    assert!(default.profiles.is_empty() && default.spool.is_absolute() && default.socket.is_absolute());
}

#[test]
fn unknown_keys_are_refused_with_line_and_known_keys() {
    let error = refused(&format!("{}\nshell = true\n", profile("")));
    assert!(error.starts_with("/nonexistent/sessiond.toml, line 5: "), "{error}");
    assert!(error.contains("`shell`") && error.contains("`idle_seconds`"), "{error}");
    assert!(refused(&format!("[limits]\nactiv = 3\n{}", profile(""))).contains("`active`"));
    assert!(refused(&format!("colour = 3\n{}", profile(""))).contains("`on_stop`"));
}

#[test]
fn refusals_never_show_values() {
    for text in [
        "environment = { TOKEN = 31337 }\n".to_owned() + &profile(""),
        profile("arguments = \"31337\"\n"),
        profile("arguments = [31337]\n"),
        profile("environment = \"31337\"\n"),
        profile("environment = { TOKEN = \"31337\\u0000\" }\n"),
        "environment = { TOKEN = \"31337 }\n".to_owned(),
    ] {
        let error = refused(&text);
        assert!(!error.contains("31337"), "{error}");
    }
    assert!(refused(&profile("environment = { TOKEN = 1 }\n")).contains("profiles.echo.environment.TOKEN"));
    let config = Config::parse(&profile("environment = { TOKEN = \"31337\" }\n"), Path::new(FILE)).unwrap();
    assert!(!format!("{config:?}").contains("31337"));
}

#[test]
fn values_out_of_range_are_refused_by_key() {
    for (text, key) in [
        (format!("[limits]\nactive = 65\n{}", profile("")), "limits.active"),
        (format!("[limits]\nactive = 0\n{}", profile("")), "limits.active"),
        (format!("spool = \"state\"\n{}", profile("")), "spool"),
        (format!("spool = \"/a/../b\"\n{}", profile("")), "spool"),
        (format!("socket = \"/{}\"\n{}", "x".repeat(107), profile("")), "socket"),
        (profile("deadline_seconds = 0\n"), "profiles.echo.deadline_seconds"),
        (profile("[profiles.echo.limits]\ncpu_weight = 10001\n"), "profiles.echo.limits.cpu_weight"),
        (profile("directory = \"work\"\n"), "profiles.echo.directory"),
        ("[profiles.x]\nprogram = \"cat\"\ndialect = \"jsonl\"\n".into(), "profiles.x.program"),
        ("[profiles.x]\nprogram = \"/bin/cat\"\ndialect = \"perl\"\n".into(), "profiles.x.dialect"),
        ("[profiles.\"a b\"]\nprogram = \"/bin/cat\"\ndialect = \"jsonl\"\n".into(), "profiles.\"a b\""),
    ] {
        let error = refused(&text);
        assert!(error.starts_with(&format!("{FILE}: {key}: ")), "{error}");
    }
}

#[test]
fn wrong_kinds_and_numbers_name_the_key_and_what_is_right_and_no_value() {
    let ranged = |key: &str| format!("{key}: must be a whole number from 1 to 64, without quotes");
    let program = "program = \"/bin/cat\"\ndialect = \"jsonl\"\n";
    for (text, problem) in [
        ("limits.active = -31337", ranged("limits.active")),
        ("limits.active = 18446744073709551616", ranged("limits.active")),
        ("limits.active = 99999999999999999999999999999999999999999999", ranged("limits.active")),
        ("limits.active = \"31337\"", ranged("limits.active")),
        ("limits.active = 31337.5", ranged("limits.active")),
        ("limits.active = 1979-05-27", ranged("limits.active")),
        ("limits.active = [31337]", ranged("limits.active")),
        ("limits = 31337", "limits: must be a table: [limits]".into()),
        ("profiles = [31337]", "profiles: must be a table".into()),
        ("profiles.x = \"31337\"", "profiles.x: must be a table".into()),
        ("environment = true", "environment: must be a table".into()),
        ("spool = 31337", "spool: must be an absolute path".into()),
        ("bus = \"maybe31337\"", "bus: must be one of \"auto\", \"off\", \"required\"".into()),
        ("on_stop = 31337", "on_stop: must be one of \"detach\", \"cancel\"".into()),
        ("containment = \"31337\"", "containment: must be one of \"auto\", \"systemd-scope\"".into()),
        ("allow_root = \"31337\"", "allow_root: must be true or false".into()),
        ("host = 31337", "host: must be a text".into()),
        ("profiles.x.dialect = \"jsonl\"", "profiles.x.program: is missing".into()),
        ("profiles.x.program = \"/bin/cat\"", "profiles.x.dialect: is missing".into()),
        (
            &format!("[profiles.x]\n{program}arguments = \"31337\""),
            "profiles.x.arguments: must be a list".into(),
        ),
        (
            &format!("[profiles.x]\n{program}arguments = [\"a\", 31337]"),
            "profiles.x.arguments, text 2: ".into(),
        ),
        (
            &format!("[profiles.x]\n{program}capture = 31337"),
            "profiles.x.capture: must be one of \"pipe\"".into(),
        ),
        (
            &format!("[profiles.x]\n{program}limits.tasks_max = -31337"),
            "profiles.x.limits.tasks_max: ".into(),
        ),
        (&format!("[profiles.x]\n{program}limits = -31337"), "profiles.x.limits: must be a table".into()),
    ] {
        let error = refused(text);
        assert!(error.starts_with(&format!("{FILE}: {problem}")), "{text}: {error}");
        assert!(!error.contains("31337") && !error.contains("File") && !error.contains("u64"), "{error}");
    }
    let error = refused("limits = 1979-05-27");
    assert!(!error.contains("1979") && error.contains("a date"), "{error}");
}

#[test]
fn a_file_without_profiles_is_refused_and_no_file_is_not() {
    let error = refused("bus = \"off\"\n");
    assert!(error.contains("sessionctl profiles detect"), "{error}");
    let error = Config::load(Some(Path::new(FILE))).expect_err("asked for by name").to_string();
    assert!(error.contains(FILE), "{error}");
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sessiond.toml");
    fs::write(&file, profile("")).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    assert!(Config::load(Some(&file)).is_ok());
    fs::set_permissions(&file, Permissions::from_mode(0o646)).unwrap();
    let error = Config::load(Some(&file)).expect_err("others can write it").to_string();
    assert!(error.contains("chmod o-w"), "{error}");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    for mode in [0o777, 0o1777] {
        fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        let error = Config::load(Some(&file)).expect_err("others can replace it").to_string();
        assert!(
            error.contains(&format!("{} can be written by everybody", directory.path().display())),
            "{error}"
        );
    }
    fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
    assert!(Config::load(Some(&file)).is_ok());
    let error = Config::load(Some(directory.path())).expect_err("a directory").to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn a_missing_program_is_a_problem_of_its_profile_alone() {
    let text = "[profiles.gone]\nprogram = \"/nonexistent/agent\"\ndialect = \"codex\"\n";
    let config = Config::parse(text, Path::new(FILE)).unwrap();
    assert!(config.profiles["gone"].problem().unwrap().contains("/nonexistent/agent"));
}

const EXAMPLE: &str = include_str!("../../config/sessiond.example.toml");

/// The example with every key in force: what is commented out stands directly behind its `#`.
fn example_in_full() -> String {
    EXAMPLE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|first: char| first.is_ascii_alphabetic()) => key,
            _ => line,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_example_shows_the_defaults() {
    let short = Config::parse(EXAMPLE, Path::new(FILE)).unwrap();
    let full = Config::parse(&example_in_full(), Path::new(FILE)).unwrap();
    let default = Config::default_for_account().unwrap();
    assert_eq!((&short.limits, &full.limits), (&default.limits, &default.limits));
    assert_eq!((&short.environment, &full.environment), (&default.environment, &default.environment));
    assert_eq!(
        (full.bus, full.allow_root, full.containment),
        (default.bus, default.allow_root, default.containment)
    );
    assert_eq!((short.on_stop, full.on_stop), (None, Some(OnStop::Detach)));
    assert_eq!(full.application, default.application);
    let off = Retention { acknowledged_only: true, max_age_days: None, max_bytes: None };
    assert_eq!((&short.retention, &default.retention), (&off, &off));
    assert_eq!((full.retention.max_age_days, full.retention.max_bytes), (Some(90), Some(20 << 30)));
    assert_eq!(full.profiles["cat"].limits.journal_max, Some(256 << 20));
}

#[test]
fn the_example_shows_every_key() {
    let full: toml::Table = example_in_full().parse().unwrap();
    for (context, table) in [
        ("", &full),
        ("limits.", full["limits"].as_table().unwrap()),
        ("retention.", full["retention"].as_table().unwrap()),
        ("profiles.cat.", full["profiles"]["cat"].as_table().unwrap()),
        ("profiles.cat.limits.", full["profiles"]["cat"]["limits"].as_table().unwrap()),
    ] {
        // The refusal of an unknown key lists those that are known.
        let error = refused(&format!(
            "{context}no_such_key = 1\n{}",
            if context.is_empty() { profile("") } else { String::new() }
        ));
        let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert!(known.len() >= 3, "{error}");
        // A framework has an example of its own.
        for key in known.into_iter().filter(|key| *key != "controller") {
            assert!(table.contains_key(key), "{context}{key} is missing in the example");
        }
    }
}

/// The example's framework in force, for an application; its token's file is not there.
fn example_of_a_framework() -> String {
    let table: Vec<&str> = EXAMPLE
        .lines()
        .filter_map(|line| line.strip_prefix("#   "))
        .filter(|line| !line.starts_with("token_file"))
        .collect();
    format!("application = \"app\"\n{}\n{}", table.join("\n"), profile(""))
}

#[test]
fn the_example_of_a_framework_shows_its_defaults_and_every_key() {
    let config = Config::parse(&example_of_a_framework(), Path::new(FILE)).unwrap();
    let shown = config.controller.unwrap();
    let least = "application = \"app\"\n[controller]\nbus = \"session\"\nname = \"org.example.Framework\"\n\
                 path = \"/org/example/Framework\"\n";
    let config = Config::parse(&format!("{least}{}", profile("")), Path::new(FILE)).unwrap();
    assert_eq!(config.controller.as_ref(), Some(&shown));
    assert_eq!((shown.lease_seconds, shown.call_seconds, shown.bus), (60, 10, ControllerBus::Session));
    let error = refused(&format!("{least}no_such_key = 1\n{}", profile("")));
    let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
    assert_eq!(known.len(), 6, "{error}");
    for key in known {
        assert!(EXAMPLE.contains(&format!("\n#   {key} = ")), "{key} is missing in the example");
    }
}

#[test]
fn a_framework_that_cannot_be_meant_is_refused_by_key() {
    let right = example_of_a_framework();
    for (from, to, key) in [
        ("application = \"app\"", "", "application"),
        ("application = \"app\"", "application = \"app\"\nhost = \"\"", "host"),
        ("application = \"app\"", "application = \"app\"\nlease_seconds = 60", "lease_seconds"),
        ("bus = \"session\"", "", "controller.bus"),
        ("bus = \"session\"", "bus = \"tcp:host=example.org\"", "controller.bus"),
        ("bus = \"session\"", "bus = 3", "controller.bus"),
        ("name = \"org.example.Framework\"", "", "controller.name"),
        ("name = \"org.example.Framework\"", "name = \":1.5\"", "controller.name"),
        ("path = \"/org/example/Framework\"", "path = \"org\"", "controller.path"),
        ("lease_seconds = 60", "lease_seconds = 2", "controller.lease_seconds"),
        ("lease_seconds = 60", "lease_seconds = 100000", "controller.lease_seconds"),
        ("call_seconds = 10", "call_seconds = 21", "controller.call_seconds"),
        ("call_seconds = 10", "token_file = \"token\"", "controller.token_file"),
        ("call_seconds = 10", "token_file = \"/nonexistent/token\"", "controller.token_file"),
    ] {
        let text = right.replacen(from, to, 1);
        assert_ne!(text, right, "{from}");
        let error = refused(&text);
        assert!(error.contains(&format!(": {key}: ")), "{key}: {error}");
    }
}

#[test]
fn the_example_names_every_dialect() {
    for name in crate::dialect::NAMES {
        assert!(EXAMPLE.contains(&format!("\"{name}\"")), "{name} is missing in the example");
    }
}
