use super::report::{now, plural};
use super::text::{count, duration, size};
use super::{Context, Exit, Failure};
use crate::model::{RetentionReport, Storage};

pub async fn run(context: &Context) -> Result<Exit, Failure> {
    let storage = context.connect().await?.storage().await?;
    match context.out.json {
        true => context.out.value(&storage)?,
        false => context.out.line(&context.out.style.text(&lines(&storage)))?,
    }
    Ok(Exit::Ok)
}

fn lines(storage: &Storage) -> String {
    let line = |label: &str, value: String| format!("{label:<13} {value}");
    let of = |number: u64, bytes: u64| format!("{:>10}  {:>10}", count(number), size(bytes));
    let mut lines = vec![
        line("spool", storage.spool.clone()),
        line("active", of(storage.active, storage.active_bytes)),
        line("ended", of(storage.ended, storage.ended_bytes)),
        line("damaged", of(storage.damaged, storage.damaged_bytes)),
        line("free", format!("{:>22}", size(storage.free_bytes))),
    ];
    if let Some(oldest) = storage.oldest {
        lines.push(line("first ended", format!("{} ago", duration(now().saturating_sub(oldest)))));
    }
    lines.push(line("retention", storage.retention.as_ref().map_or("off".to_owned(), rules)));
    if let Some(retention) = &storage.retention {
        let more = if retention.due_at_least { "at least " } else { "" };
        let due = format!("{more}{}, {}", plural(retention.due, "session"), size(retention.due_bytes));
        lines.push(line("due", due));
    }
    lines.join("\n")
}

fn rules(retention: &RetentionReport) -> String {
    let mut rules = Vec::new();
    rules.extend(retention.max_age_days.map(|days| format!("older than {}", plural(days, "day"))));
    rules.extend(retention.max_bytes.map(|bytes| format!("beyond {}", size(bytes))));
    let whose = if retention.acknowledged_only { ", acknowledged ones only" } else { "" };
    format!("{}{whose}", rules.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_spool_holds_is_shown() {
        let mut storage = Storage {
            spool: "/the/spool".into(),
            active: 1,
            active_bytes: 4096,
            ended: 100_000,
            ended_bytes: 3 << 30,
            damaged: 0,
            damaged_bytes: 0,
            free_bytes: 7 << 30,
            oldest: None,
            retention: None,
        };
        let shown = lines(&storage);
        assert!(shown.contains("ended            100 000     3.0 GiB\n"), "{shown}");
        assert!(shown.ends_with("\nretention     off"), "{shown}");
        storage.retention = Some(RetentionReport {
            acknowledged_only: true,
            max_age_days: Some(30),
            max_bytes: Some(1 << 30),
            due: 1,
            due_bytes: 2 << 20,
            due_at_least: true,
        });
        let shown = lines(&storage);
        let rules = "retention     older than 30 days, beyond 1.0 GiB, acknowledged ones only\n";
        assert!(shown.ends_with(&format!("{rules}due           at least 1 session, 2.0 MiB")), "{shown}");
    }
}
