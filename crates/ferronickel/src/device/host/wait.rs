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

/// The processors that this process's threads may run on, a bit for each; empty if the system does not say.
pub(crate) fn affinity() -> Vec<u64> {
    const MOST: usize = 1024;
    let mut mask = vec![0u64; MOST / 64];
    // SAFETY: the mask has as many bytes as the call is told
    let filled = unsafe { libc::sched_getaffinity(0, MOST / 8, mask.as_mut_ptr().cast()) };
    if filled == 0 { mask } else { Vec::new() }
}

/// Turns worth spinning when `threads` threads of each of some processes wait for each other, which may run where
/// their affinities say: none when some of them have no processor.
pub(crate) fn spins_for(threads: usize, all: usize, affinities: &[&[u64]]) -> u32 {
    let may_run =
        |word: usize| affinities.iter().map(|mask| mask.get(word).copied().unwrap_or(0)).fold(0, |a, b| a | b);
    let own: usize = affinities.first().map_or(0, |mask| mask.iter().map(|word| word.count_ones() as usize).sum());
    let together: usize = (0..16).map(|word| may_run(word).count_ones() as usize).sum();
    // fewer than the affinity says are there where a control group limits the time; that limits all
    let together = if processors() < own { processors() } else { together.max(processors()) };
    if threads <= processors() && all <= together { SPINS } else { 0 }
}

/// Turns worth spinning when two threads of this process wait for each other.
fn spins_for_two() -> u32 {
    if processors() >= 2 { SPINS } else { 0 }
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
        Backoff { turns: 0, spins: spins_for_two() / 8 }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_spin_where_each_has_a_processor() {
        let all = processors();
        let one: &[u64] = &[1];
        let other: &[u64] = &[1 << 40];
        let own = affinity();
        assert!(spins_for(1, all, &[&own]) > 0 && spins_for(all, all, &[&own]) > 0);
        assert_eq!(spins_for(all + 1, all + 1, &[&own]), 0, "this process has not so many");
        assert_eq!(spins_for(1, all + own.len() * 64, &[&own, one]), 0);
        if all == 1 || own.iter().map(|word| word.count_ones()).sum::<u32>() as usize == all {
            // as if each were bound to a processor of its own
            assert!(spins_for(1, 2, &[one, other]) > 0);
        }
    }
}
