//! What the ranks of a communicator know of each other while they run: where each one is, and whether all must stop.
//!
//! A rank that waits looks here now and then, and so notices what no data would tell it: that a peer made another
//! call, has left, or that the communicator was aborted.

mod place;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use self::place::{Place, StopWord};
use crate::error::{Error, ErrorKind};
use crate::types::CallDescription;

/// The shared record of one communicator.
#[derive(Debug)]
pub(crate) struct Progress {
    stop: StopWord,
    failure: Mutex<Option<Failure>>,
    ranks: Vec<RankProgress>,
}

/// Why a communicator stopped: the first cause, the same for every rank.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub kind: ErrorKind,
    pub seen: String,
    pub hint: Option<String>,
}

/// Where one rank is. Alone on its cache lines: its owner writes it with every call.
#[derive(Debug, Default)]
#[repr(align(128))]
struct RankProgress {
    /// The call that the rank began last, and its number; the number is written last.
    call: AtomicU64,
    started: AtomicU64,
    place: Place,
    /// The processor on which the rank began its last call.
    processor: AtomicU32,
    /// The number of the last call the rank will make, once it has said that it makes no more.
    last: AtomicU64,
}

/// Stands for the last call of a rank that may make more.
const MORE: u64 = 0;

impl Progress {
    pub fn new(ranks: usize) -> Self {
        let ranks = (0..ranks).map(|_| RankProgress::default()).collect();
        Progress { stop: StopWord::default(), failure: Mutex::new(None), ranks }
    }

    /// Whether every rank must stop.
    #[inline(always)]
    pub fn stopped(&self) -> bool {
        self.stop.given()
    }

    /// Stops every rank, for this cause unless there was one before.
    pub fn fail(&self, failure: Failure) {
        let mut first = self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        first.get_or_insert(failure);
        self.stop.give();
    }

    /// Why every rank must stop, if it must.
    pub fn failure(&self) -> Option<Failure> {
        let failure = self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        failure.clone()
    }

    /// Says that `rank` begins call number `epoch`, on `processor`. False if it must not, because all must stop.
    #[inline(always)]
    pub fn enter(&self, rank: usize, epoch: u64, call: u64, processor: u32) -> bool {
        let own = &self.ranks[rank];
        own.processor.store(processor, Ordering::Relaxed);
        own.call.store(call, Ordering::Relaxed);
        own.started.store(epoch, Ordering::Release);
        own.place.enter(&self.stop)
    }

    /// Whether another rank began its last call on `processor`, where `rank` runs: it may be waiting for this one to
    /// make room.
    #[cold]
    pub fn shares_processor(&self, rank: usize, processor: u32) -> bool {
        let others = self.ranks.iter().enumerate().filter(|&(other, _)| other != rank);
        others.map(|(_, at)| at.processor.load(Ordering::Relaxed)).any(|other| other == processor)
    }

    /// Says that `rank` is done with call number `epoch` and touches nobody's memory any more. Follows every
    /// [`enter`](Self::enter), even one that was refused.
    #[inline(always)]
    pub fn leave(&self, rank: usize, epoch: u64) {
        self.ranks[rank].place.leave(epoch);
    }

    /// Says that a call of `rank` was given up before its turn came.
    pub fn skip(&self, rank: usize) {
        self.ranks[rank].place.skip();
    }

    /// Whether every call of `rank` before number `epoch` is done.
    #[inline(always)]
    pub fn is_turn_of(&self, rank: usize, epoch: u64) -> bool {
        self.ranks[rank].place.is_turn_of(epoch)
    }

    /// How many calls `rank` is done with.
    #[inline(always)]
    pub fn finished(&self, rank: usize) -> u64 {
        self.ranks[rank].place.done()
    }

    /// After a stop, waits, with turns of `wait`, until no rank but this one may touch its peers' memory any more:
    /// each leaves at its next wait, so this ends soon.
    pub fn quiesce(&self, rank: usize, wait: impl FnMut()) {
        let others = self.ranks.iter().enumerate().filter(|&(other, _)| other != rank);
        self.stop.await_exits(others.map(|(_, at)| &at.place), wait);
    }

    /// Whether no call of `rank` is under way.
    pub fn is_between_calls(&self, rank: usize) -> bool {
        self.ranks[rank].place.is_outside()
    }

    /// Says that `rank` makes no more calls after number `last`.
    pub fn depart(&self, rank: usize, last: u64) {
        // shifted by one, so that a rank that leaves without any call is told from one that stays
        self.ranks[rank].last.store(last + 1, Ordering::Release);
    }

    /// As [`look_for_trouble`](Self::look_for_trouble), for the call that `rank` began last.
    pub fn look_for_trouble_in_last_call(&self, rank: usize) {
        let own = &self.ranks[rank];
        let (epoch, call) = (own.started.load(Ordering::Acquire), own.call.load(Ordering::Relaxed));
        self.look_for_trouble(rank, epoch, call);
    }

    /// Looks whether a peer can still come to call number `epoch` of `rank`; if one cannot, that is the failure.
    #[cold]
    pub fn look_for_trouble(&self, rank: usize, epoch: u64, call: u64) {
        for (peer, at) in self.ranks.iter().enumerate().filter(|&(peer, _)| peer != rank) {
            let last = at.last.load(Ordering::Acquire);
            let started = at.started.load(Ordering::Acquire);
            let theirs = at.call.load(Ordering::Relaxed);
            // the description belongs to `started` only if the peer has not gone on meanwhile
            if started == epoch && theirs != call && at.started.load(Ordering::Acquire) == epoch {
                return self.fail(mismatch(rank, call, peer, theirs, epoch));
            }
            if last != MORE && last <= epoch {
                let (call, number) = (CallDescription::from_bits(call), epoch);
                let seen = format!("rank {peer} left before call {number}, in which rank {rank} made {call}");
                let hint = Some("let every rank make the same calls before it finalizes or drops".into());
                return self.fail(Failure { kind: ErrorKind::Remote, seen, hint });
            }
        }
    }
}

/// The failure when two ranks made calls that do not belong together.
pub(crate) fn mismatch(rank: usize, call: u64, peer: usize, theirs: u64, epoch: u64) -> Failure {
    // lower rank first, so that every rank that notices says the same
    let mut calls = [(rank, CallDescription::from_bits(call)), (peer, CallDescription::from_bits(theirs))];
    calls.sort_by_key(|&(rank, _)| rank);
    let [(first, a), (second, b)] = calls;
    Failure {
        kind: ErrorKind::Mismatch,
        seen: format!("in call {epoch} rank {first} made {a} and rank {second} made {b}"),
        hint: Some("make the same calls, with the same count, type and operation, in the same order".into()),
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = Error::new(failure.kind, failure.seen);
        match failure.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Collective, DataType, RedOp};

    fn call(count: usize) -> u64 {
        CallDescription::new(Collective::AllReduce, DataType::Float32, RedOp::Sum, count).to_bits()
    }

    #[test]
    fn a_peer_in_another_call_is_trouble_and_one_that_is_late_is_not() {
        let progress = Progress::new(3);
        assert!(progress.enter(0, 1, call(10), 0));
        progress.look_for_trouble(0, 1, call(10));
        assert!(progress.failure().is_none(), "the others have not come yet");
        assert!(progress.enter(2, 1, call(20), 0));
        progress.look_for_trouble(2, 1, call(20));
        let failure = progress.failure().unwrap();
        assert_eq!(failure.kind, ErrorKind::Mismatch);
        assert_eq!(
            failure.seen,
            "in call 1 rank 0 made all_reduce(count 10, float32, sum) and rank 2 made all_reduce(count 20, float32, sum)"
        );
        assert!(progress.stopped() && !progress.enter(1, 1, call(10), 0));
    }

    #[test]
    fn a_peer_that_left_is_trouble_only_for_calls_it_will_not_make() {
        let progress = Progress::new(2);
        progress.depart(1, 1);
        progress.look_for_trouble(0, 1, call(1));
        assert!(progress.failure().is_none());
        progress.look_for_trouble(0, 2, call(1));
        let failure = progress.failure().unwrap();
        assert_eq!(failure.kind, ErrorKind::Remote);
        assert!(failure.seen.starts_with("rank 1 left before call 2"), "{}", failure.seen);
    }

    #[test]
    fn the_first_failure_stays() {
        let progress = Progress::new(1);
        let failure = |seen: &str| Failure { kind: ErrorKind::Aborted, seen: seen.into(), hint: None };
        progress.fail(failure("first"));
        progress.fail(failure("second"));
        assert_eq!(progress.failure().unwrap().seen, "first");
    }
}
