//! What an executor does with its placement.

use std::io;

use super::cgroup::Cgroup;
use super::group::Group;
use super::{Backend, Containment, Marker, Placement, ProcessGroup};
use crate::model::ResourceLimits;

/// How the calling executor's tree is held.
pub struct Held {
    /// By this.
    pub containment: Box<dyn Containment>,
    /// Why it is not the backend that was chosen, for people.
    pub fell_back: Option<String>,
}

/// Makes the calling process the holder of a session's tree, in the cgroup that it was placed in. If that cannot be
/// used it is held as a process group, and says why.
///
/// # Errors
/// The process cannot become a subreaper (prctl(2)).
pub fn hold(placement: &Placement, marker: Marker, limits: &ResourceLimits) -> io::Result<Held> {
    let family = ProcessGroup::reaper(marker.clone(), limits)?;
    let fell_back = placement.fell_back.clone();
    if placement.backend == Backend::ProcessGroup {
        return Ok(Held { containment: Box::new(family), fell_back });
    }
    match own_place(placement).and_then(|group| Cgroup::take(&group, placement.backend, family, limits)) {
        Ok(cgroup) => Ok(Held { containment: Box::new(cgroup), fell_back }),
        Err(error) => {
            let why = format!("the {} cannot be used: {error}", placement.backend.name());
            let why = fell_back.map_or(why.clone(), |before| format!("{before}; {why}"));
            let family = ProcessGroup::reaper(marker, limits)?;
            Ok(Held { containment: Box::new(family), fell_back: Some(why) })
        }
    }
}

/// The cgroup of the placement, if the calling process is in it indeed.
fn own_place(placement: &Placement) -> io::Result<Group> {
    let told = placement.cgroup.as_deref().ok_or_else(|| io::Error::other("no cgroup was named"))?;
    let own = Group::of(None)?;
    if own.path() == told {
        return Ok(own);
    }
    Err(io::Error::other(format!("the executor is in {}, not in {}", own.path().display(), told.display())))
}
