//! The list of sessions: those that have not ended, newest first, then the ended ones, last ended first. A page costs
//! what it shows, never what the spool holds.

use std::sync::Arc;

use super::blocking::blocking;
use super::live;
use super::{Error, Filter, Hub, Listing};
use crate::model::{RunId, State, Status};
use crate::spool::EndedLine;

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;

/// Where a page begins. As text: empty, `live:<accepted>:<run_id>`, or `ended:<token of the spool>`.
#[derive(Debug, PartialEq, Eq)]
enum From {
    Newest,
    /// After this one among those that have not ended.
    Live(u64, RunId),
    Ended(Option<String>),
}

/// See [`Sessions::list`](super::Sessions::list).
pub(super) async fn list(hub: &Arc<Hub>, filter: Filter) -> Result<Listing, Error> {
    let limit = filter.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Error::InvalidArgument(format!("limit: must be from 1 to {MAX_LIMIT}")));
    }
    let limit = limit as usize;
    let from = parse(filter.cursor.as_deref())?;
    let mut sessions = Vec::new();
    let token = match from {
        From::Ended(token) => token,
        from => {
            sessions = live_page(hub, &filter, &from);
            if sessions.len() > limit {
                sessions.truncate(limit);
                let next =
                    sessions.last().map_or(String::new(), |s| format!("live:{}:{}", s.accepted, s.run_id));
                return Ok(Listing { sessions, next });
            }
            None
        }
    };
    if filter.state.is_some_and(|state| state != State::Finished) {
        return Ok(Listing { sessions, next: String::new() });
    }
    let wanted = limit - sessions.len();
    let hub = hub.clone();
    let (ended, next) = blocking(move || ended_page(&hub, &filter, token, wanted)).await?;
    sessions.extend(ended);
    Ok(Listing { sessions, next: next.map_or(String::new(), |token| format!("ended:{token}")) })
}

fn parse(cursor: Option<&str>) -> Result<From, Error> {
    let wrong = || Error::InvalidArgument("cursor: is none that List gave".to_owned());
    let Some(cursor) = cursor.filter(|cursor| !cursor.is_empty()) else { return Ok(From::Newest) };
    if let Some(token) = cursor.strip_prefix("ended:") {
        return Ok(From::Ended((!token.is_empty()).then(|| token.to_owned())));
    }
    let rest = cursor.strip_prefix("live:").ok_or_else(wrong)?;
    let (accepted, run_id) = rest.split_once(':').ok_or_else(wrong)?;
    Ok(From::Live(accepted.parse().map_err(|_| wrong())?, run_id.parse().map_err(|_| wrong())?))
}

fn live_page(hub: &Hub, filter: &Filter, from: &From) -> Vec<Status> {
    let all: Vec<_> = hub.live().values().cloned().collect();
    let mut found: Vec<Status> =
        all.iter().map(|live| hub.status_of(live)).filter(|status| matches(filter, status)).collect();
    found.sort_by_key(|status| std::cmp::Reverse((status.accepted, status.run_id)));
    if let From::Live(accepted, run_id) = from {
        found.retain(|status| (status.accepted, status.run_id) < (*accepted, *run_id));
    }
    found
}

fn ended_page(
    hub: &Hub,
    filter: &Filter,
    mut token: Option<String>,
    wanted: usize,
) -> Result<(Vec<Status>, Option<String>), Error> {
    let mut found = Vec::new();
    loop {
        if found.len() >= wanted {
            // A full page: the rest, if there is any, begins where this one stopped; without a token, at the newest.
            let more = !hub.spool.ended(token.as_deref(), 1)?.lines.is_empty();
            return Ok((found, more.then(|| token.unwrap_or_default())));
        }
        let page = hub.spool.ended(token.as_deref(), wanted - found.len())?;
        for line in page.lines.iter().filter(|line| may_match(filter, line)) {
            // What a driver still has is on the first part of the list.
            if hub.live().contains_key(&line.run_id) {
                continue;
            }
            if let Ok(crate::spool::Place::Ended(dir)) = hub.spool.locate(line.run_id)
                && let Ok((_, status)) = live::settled(&dir)
            {
                found.extend(Some(status).filter(|status| matches(filter, status)));
            }
        }
        match page.next {
            Some(next) => token = Some(next),
            None => return Ok((found, None)),
        }
    }
}

fn matches(filter: &Filter, status: &Status) -> bool {
    filter.state.is_none_or(|state| state == status.state)
        && filter.phase.is_none_or(|phase| phase == status.phase)
        && filter.end.is_none_or(|end| Some(end) == status.end)
        && filter.profile.as_ref().is_none_or(|profile| *profile == status.profile)
        && filter.label.as_ref().is_none_or(|label| Some(label) == status.label.as_ref())
}

/// What the derived log can already exclude, before anything is opened.
fn may_match(filter: &Filter, line: &EndedLine) -> bool {
    filter.end.is_none_or(|end| end == line.end)
        && filter.profile.as_ref().is_none_or(|profile| *profile == line.profile)
        && filter.label.as_ref().is_none_or(|label| Some(label) == line.label.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_what_list_gave_or_refused() {
        assert_eq!(parse(None).expect("newest"), From::Newest);
        assert_eq!(parse(Some("ended:")).expect("newest ended"), From::Ended(None));
        assert_eq!(parse(Some("ended:x-4")).expect("token"), From::Ended(Some("x-4".into())));
        let id = RunId::random();
        assert_eq!(parse(Some(&format!("live:7:{id}"))).expect("live"), From::Live(7, id));
        for wrong in ["start", "live:", "live:x:y", "live:7:nope"] {
            assert!(parse(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
