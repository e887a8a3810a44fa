//! Where one rank is with its calls, and the word that all must stop.
//!
//! Memory safety after a stop rests on this file: a rank returns a buffer to its owner only when no peer is inside a
//! kernel that may still write it, nor can enter one.

use crate::device::host::sync::{AtomicU64, Ordering, fence};

/// The word that all must stop. Once given, it stays. Each process has its own, which all processes of the machine
/// can give.
#[derive(Default, Debug)]
#[repr(transparent)]
pub struct StopWord(AtomicU64);

/// Where one rank is. Its calls enter one at a time, in order, whatever streams they are on.
#[derive(Default, Debug)]
#[repr(C)]
pub struct Place {
    /// 1 while a kernel of the rank may touch its peers' memory.
    inside: AtomicU64,
    /// The number of the last call that entered and left.
    finished: AtomicU64,
    /// How many calls gave up before they entered, after the stop.
    skipped: AtomicU64,
}

impl StopWord {
    /// Tells everyone to stop.
    pub fn give(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Whether everyone must stop. As cheap as can be: for loops.
    #[inline(always)]
    pub fn given(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Once the stop was given to everyone at work in `places`: waits, with turns of `wait`, until nobody is
    /// at work there. Nobody will be, from then on.
    pub fn await_exits<'a>(places: impl Iterator<Item = &'a Place> + Clone, mut wait: impl FnMut()) {
        // Whoever enters either saw the stop or is seen here. The stop may have been seen with a relaxed load, which
        // the loads below could overtake without this.
        fence(Ordering::SeqCst);
        while places.clone().any(|place| !place.is_outside()) {
            wait();
        }
    }
}

impl Place {
    /// Whether every call before number `epoch` is done.
    #[inline(always)]
    pub fn is_turn_of(&self, epoch: u64) -> bool {
        self.finished.load(Ordering::Acquire) + 1 >= epoch
    }

    /// Goes in, in turn. False if nothing may be done there, because all must stop; [`leave`](Self::leave) follows in
    /// any case.
    #[inline(always)]
    pub fn enter(&self, stop: &StopWord) -> bool {
        // Either this rank sees the stop, or whoever waits in `await_exits` after it sees this rank inside.
        self.inside.store(1, Ordering::SeqCst);
        stop.0.load(Ordering::SeqCst) == 0
    }

    /// Comes out of call number `epoch`: the rank touches nobody's memory any more.
    #[inline(always)]
    pub fn leave(&self, epoch: u64) {
        self.inside.store(0, Ordering::Release);
        self.finished.store(epoch, Ordering::Release);
    }

    /// Gives up a call whose turn has not come, after the stop. Calls before it may still be inside.
    pub fn skip(&self) {
        self.skipped.fetch_add(1, Ordering::Release);
    }

    /// How many calls are done, one way or the other.
    #[inline(always)]
    pub fn done(&self) -> u64 {
        // Those that enter are the first ones, so that the number of the last is how many they are.
        self.finished.load(Ordering::Acquire) + self.skipped.load(Ordering::Acquire)
    }

    /// Whether no call is under way.
    pub fn is_outside(&self) -> bool {
        self.inside.load(Ordering::SeqCst) == 0
    }

    /// Copies, for a rank whose memory is not shared with this process, how many calls it has done.
    pub fn mirror(&self, done: u64) {
        self.finished.store(done, Ordering::Release);
    }

    /// Takes the rank out, for it has died: it touches nothing any more.
    pub fn bury(&self) {
        self.inside.store(0, Ordering::SeqCst);
    }
}
