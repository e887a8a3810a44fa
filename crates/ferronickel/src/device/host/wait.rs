//! Waiting without a queue of waiters: spin a little, then let others run, then sleep in short naps.

use std::sync::OnceLock;
use std::time::Duration;

/// Turns that are spent spinning where everyone who is waited for has a processor of its own: about 30 µs.
const SPINS: u32 = 2_000;
/// Turns after spinning in which the processor is offered to others without sleeping.
const YIELDS: u32 = 400;
/// The longest nap: it bounds how late an abort is noticed.
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// Processors this process may use.
pub(crate) fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Turns worth spinning when `threads` threads wait for each other: none when some of them have no processor.
pub(crate) fn spins_for(threads: usize) -> u32 {
    if threads <= processors() { SPINS } else { 0 }
}

/// The processor this thread runs on at the moment.
#[inline(always)]
pub(crate) fn processor() -> u32 {
    // SAFETY: the call has no precondition; it fails only where the kernel lacks it, and then all seem to share one,
    // which costs spinning and nothing else
    unsafe { libc::sched_getcpu() }.unsigned_abs()
}

/// What a waiting loop does in turn number `turn`, counted from 1, of which the first `spins` spin.
#[inline(always)]
pub(crate) fn turn(turn: u32, spins: u32) {
    if turn <= spins {
        std::hint::spin_loop();
    } else {
        long_turn(turn - spins);
    }
}

#[cold]
fn long_turn(turn: u32) {
    if turn <= YIELDS {
        std::thread::yield_now();
    } else {
        // 20 µs, then longer and longer
        let nap = Duration::from_micros(20).saturating_mul((turn - YIELDS) / 8 + 1);
        std::thread::sleep(nap.min(LONGEST_NAP));
    }
}

/// A waiting loop's state, for waits outside kernels.
pub(crate) struct Backoff {
    turns: u32,
    spins: u32,
}

impl Backoff {
    pub fn new() -> Self {
        Backoff { turns: 0, spins: spins_for(2) / 8 }
    }

    /// Whether it is still early: nobody would gain from a sleep that another must end.
    pub fn is_short(&self) -> bool {
        self.turns < self.spins + YIELDS / 4
    }

    pub fn wait(&mut self) {
        self.turns = self.turns.saturating_add(1);
        turn(self.turns, self.spins);
    }
}
