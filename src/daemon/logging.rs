//! Where the daemon's log goes: to standard error, in the form that its reader understands.
//!
//! The journal gives each line its time and unit, and reads its priority from a prefix `<N>` (sd-daemon(3)). That
//! needs nothing but standard error, which the service manager connected: it works before everything else, in order
//! with what a panic prints, and wherever `StandardError=` leads.

use std::fmt;
use std::fs;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Begins to log. `AIROUTER_LOG` sets what, such as `debug`; `info` unless it is set.
pub(super) fn start() {
    let filter = EnvFilter::try_from_env("AIROUTER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if is_journal() {
        subscriber.with_ansi(false).event_format(ForJournal::default()).init();
    } else {
        subscriber.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
    }
}

/// Whether standard error is the journal's, by the device and inode that the service manager names (systemd.exec(5)):
/// the variable alone is inherited by those whose output leads elsewhere.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stream) = fs::metadata("/proc/self/fd/2") else { return false };
    named == format!("{}:{}", stream.dev(), stream.ino())
}

/// `<6>text key=value`, one line an event.
#[derive(Debug)]
struct ForJournal {
    text: Format<Full, ()>,
}

impl Default for ForJournal {
    fn default() -> Self {
        let text = Format::default().without_time().with_level(false).with_target(false).with_ansi(false);
        ForJournal { text }
    }
}

impl<S, N> FormatEvent<S, N> for ForJournal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.text.format_event(context, Writer::new(&mut text), event)?;
        // A second line would be an entry of its own, without a priority.
        let text = text.trim_end().replace('\n', " ");
        writeln!(writer, "<{}>{text}", priority(*event.metadata().level()))
    }
}

/// The priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}
