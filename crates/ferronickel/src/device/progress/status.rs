//! The page on which a process says where its ranks are: shared with the other processes of the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::place::{Place, StopWord};
use crate::device::region::Region;

/// Where one rank is. Alone on its cache lines: its owner writes it with every call.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct RankStatus {
    /// The call that the rank began last, and its number. The number is zero while the call changes.
    call: AtomicU64,
    started: AtomicU64,
    pub place: Place,
    /// The processor on which the rank began its last call.
    pub processor: AtomicU32,
    /// One more than the number of the last call the rank will make; zero while it may make more.
    last: AtomicU64,
}

impl RankStatus {
    /// Says which call the rank begins.
    #[inline(always)]
    pub fn begin(&self, epoch: u64, call: u64) {
        // Whoever reads the new call reads, after it, either zero or the new number.
        self.started.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.call.store(call, Ordering::Relaxed);
        self.started.store(epoch, Ordering::Release);
    }

    /// The number and the description of the call that the rank began last; None while it changes.
    pub fn current(&self) -> Option<(u64, u64)> {
        let started = self.started.load(Ordering::Acquire);
        let call = self.call.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (started == self.started.load(Ordering::Relaxed)).then_some((started, call))
    }

    /// Says that the rank makes no call after number `last`.
    pub fn depart(&self, last: u64) {
        self.last.store(last + 1, Ordering::Release);
    }

    /// The number of the rank's last call, once it has said that it makes no more.
    pub fn last(&self) -> Option<u64> {
        self.last.load(Ordering::Acquire).checked_sub(1)
    }
}

/// One process's page: its stop word, and a place for every rank of the communicator. It fills in those of its own
/// ranks, and for itself alone those of ranks on other machines.
#[derive(Clone, Debug)]
pub(crate) struct StatusPage {
    region: Arc<Region>,
    ranks: usize,
}

/// The stop word has the first lines of the page for itself.
const RANKS_AT: usize = 128;

impl StatusPage {
    /// Bytes of a page.
    pub fn bytes(ranks: usize) -> usize {
        RANKS_AT + ranks * size_of::<RankStatus>()
    }

    /// The page in a region of at least [`bytes`](Self::bytes) that was zeroed when it was made.
    pub fn new(region: Arc<Region>, ranks: usize) -> StatusPage {
        assert!(region.bytes() >= Self::bytes(ranks), "a page of {} bytes for {ranks} ranks", region.bytes());
        StatusPage { region, ranks }
    }

    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(super) fn stop(&self) -> &StopWord {
        // SAFETY: mappings are aligned to pages; the word is atomic, any bits are a value of it, and the region lives
        // as long as `self`
        unsafe { &*self.region.at(0).cast() }
    }

    pub(super) fn rank(&self, rank: usize) -> &RankStatus {
        assert!(rank < self.ranks);
        // SAFETY: as in `stop`; `new` has checked the length, and everything in it is atomic
        unsafe { &*self.region.at(RANKS_AT + rank * size_of::<RankStatus>()).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_never_seen_with_another_calls_number() {
        let status = RankStatus::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (1..20_000).for_each(|epoch| status.begin(epoch, epoch * 3)));
            let mut last = 0;
            while last < 19_999 {
                if let Some((epoch, call)) = status.current() {
                    assert!(epoch == 0 || call == epoch * 3, "call {call} in {epoch}");
                    last = last.max(epoch);
                }
            }
        });
    }

    #[test]
    fn a_rank_that_leaves_without_a_call_is_told_from_one_that_stays() {
        let page = StatusPage::new(Region::private(StatusPage::bytes(3)).unwrap(), 3);
        assert_eq!(page.rank(2).last(), None);
        page.rank(2).depart(0);
        assert_eq!((page.rank(2).last(), page.rank(1).last()), (Some(0), None));
    }
}
