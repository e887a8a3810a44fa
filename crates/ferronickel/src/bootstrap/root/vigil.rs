//! Watching over ranks that have met but are not connected yet: one that dies now would be waited for in vain.

use std::sync::Arc;

use super::Root;
use super::guest::Visit;
use crate::device::progress::Failure;

/// A rank's way to learn from the root what has become of another.
#[derive(Debug)]
pub(crate) enum Vigil {
    /// The root is in this process.
    Here(Arc<Root>),
    Elsewhere(Box<Visit>),
}

impl Vigil {
    /// What has become of a rank, if anything. Lets the root know that this one is alive.
    pub fn look(&mut self) -> Option<Failure> {
        match self {
            Vigil::Here(root) => root.lock().lost.clone(),
            Vigil::Elsewhere(visit) => visit.look(),
        }
    }

    /// This rank will not go on, for this cause.
    pub fn fail(self, failure: &Failure) {
        match self {
            Vigil::Here(root) => root.lose(failure.clone()),
            Vigil::Elsewhere(visit) => visit.fail(failure),
        }
    }

    /// The rank is connected to the others, who will notice what becomes of it.
    pub fn end(self) {
        if let Vigil::Elsewhere(visit) = self {
            visit.end();
        }
    }
}
