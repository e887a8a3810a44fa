//! A block that is one thread of this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferronickel_kernels::block::{Block, Pack, Reduction, Sources, Stop, Targets};
use ferronickel_kernels::element::Element;
use ferronickel_kernels::reduce::Reduce;

use super::{vector, wait};
use crate::device::context::RankContext;
use crate::device::launch::Launch;
use crate::device::work::{CollectiveWork, Kernel, Work};

/// Runs one channel of a call.
#[derive(Clone, Copy)]
pub(crate) struct HostBlock<'a> {
    pub context: &'a RankContext,
    /// What is being done, to find out what a wait is about that takes long.
    launch: &'a Launch,
}

/// Turns of waiting between two looks at the peers.
pub(crate) const LOOK_EVERY: u32 = 256;
/// The turn in which a rank that spins looks whether it keeps a peer from running: about a microsecond.
const LOOK_AROUND: u32 = 64;
/// How often a rank must find itself crowded before it naps to get away, which costs it some 50 µs.
const NAP_EVERY: u32 = 32;

/// A line is a cache line: seven words of payload, then the flag that is written last.
const PAYLOAD_WORDS: usize = 7;

impl<'a> HostBlock<'a> {
    /// The block of a launch.
    pub fn of(launch: &'a Launch) -> Self {
        HostBlock { context: &launch.context, launch }
    }

    /// Looks why a wait takes so long.
    #[cold]
    fn look_for_trouble(self) {
        let Launch { context, work, turn, epoch, call, .. } = self.launch;
        match work {
            Work::Collective(CollectiveWork { kernel, .. }) if *kernel != Kernel::Exchange => {
                context.progress.look_for_trouble(context.rank, *epoch, *call);
            }
            _ => context.look_for_trouble_in_exchange(*turn, *call),
        }
    }

    /// The system may put two ranks on one processor although another is free; then each would spin in vain for what
    /// the other cannot send. Returns the turn to go on with: the end of spinning if it is so.
    #[cold]
    fn look_around(self) -> u32 {
        let context = self.context;
        if !context.progress.shares_processor(context.rank, wait::processor()) {
            return LOOK_AROUND;
        }
        // A thread that offers its processor stays on it, one that wakes from a nap is put on a free one.
        if context.crowded.fetch_add(1, Ordering::Relaxed) % NAP_EVERY == NAP_EVERY - 1 {
            std::thread::sleep(Duration::from_micros(1));
        }
        context.spins
    }
}

// SAFETY: acquire and release are C11's; the flag of a line is stored with release after its payload and loaded with
// acquire before it; a block has one thread, so a barrier has nothing to do
unsafe impl Block for HostBlock<'_> {
    type Line = [u64; PAYLOAD_WORDS];
    const LINE_BYTES: usize = 64;

    #[inline(always)]
    fn thread(self) -> usize {
        0
    }

    #[inline(always)]
    fn threads(self) -> usize {
        1
    }

    #[inline(always)]
    fn barrier(self) {}

    #[inline(always)]
    fn any(self, value: bool) -> bool {
        value
    }

    #[inline(always)]
    fn pause(self, turns: &mut u32) -> Result<(), Stop> {
        let context = self.context;
        *turns = turns.saturating_add(1);
        if *turns > context.spins && turns.is_multiple_of(LOOK_EVERY) {
            self.look_for_trouble();
        }
        if context.progress.stopped() {
            return Err(Stop::Aborted);
        }
        if *turns == LOOK_AROUND && context.spins > LOOK_AROUND {
            *turns = self.look_around();
        }
        wait::turn(*turns, context.spins);
        Ok(())
    }

    /// There is no other thread to tell.
    #[inline(always)]
    fn raise(self, _stop: Stop) {}

    #[inline(always)]
    unsafe fn load_pack(self, from: *const Pack) -> Pack {
        // SAFETY: the caller's promise
        unsafe { from.read() }
    }

    #[inline(always)]
    unsafe fn store_pack(self, to: *mut Pack, value: Pack) {
        // SAFETY: the caller's promise
        unsafe { to.write(value) }
    }

    #[inline(always)]
    unsafe fn load<E: Element>(self, from: *const E) -> E {
        // SAFETY: the caller's promise
        unsafe { from.read() }
    }

    #[inline(always)]
    unsafe fn store<E: Element>(self, to: *mut E, value: E) {
        // SAFETY: the caller's promise
        unsafe { to.write(value) }
    }

    #[inline(always)]
    unsafe fn load_line(self, from: *const u8, flag: u64) -> Option<Self::Line> {
        let words = from.cast::<u64>();
        // SAFETY: a line is 64 valid, aligned bytes; its last word is only ever accessed atomically
        let current = unsafe { AtomicU64::from_ptr(words.add(PAYLOAD_WORDS).cast_mut()) }.load(Ordering::Acquire);
        // SAFETY: the payload was written before the flag, and is not written again before its readers have passed
        (current == flag).then(|| unsafe { words.cast::<Self::Line>().read() })
    }

    #[inline(always)]
    unsafe fn store_line(self, to: *mut u8, payload: Self::Line, flag: u64) {
        let words = to.cast::<u64>();
        // SAFETY: as in load_line
        unsafe {
            words.cast::<Self::Line>().write(payload);
            AtomicU64::from_ptr(words.add(PAYLOAD_WORDS)).store(flag, Ordering::Release);
        }
    }

    #[inline(always)]
    unsafe fn acquire(self, from: *const u64) -> u64 {
        // SAFETY: the caller's promise
        unsafe { AtomicU64::from_ptr(from.cast_mut()) }.load(Ordering::Acquire)
    }

    #[inline(always)]
    unsafe fn release(self, to: *mut u64, value: u64) {
        // SAFETY: the caller's promise
        unsafe { AtomicU64::from_ptr(to) }.store(value, Ordering::Release)
    }

    #[inline(always)]
    unsafe fn copy<E: Element>(self, to: *mut E, from: *const E, count: usize) {
        // SAFETY: the caller's promise
        unsafe { std::ptr::copy_nonoverlapping(from, to, count) }
    }

    #[inline(always)]
    unsafe fn reduce<E: Element, R: Reduce<E>>(self, work: Reduction<E, R, impl Sources<E>, impl Targets<E>>) {
        // SAFETY: the caller's promise
        unsafe { vector::reduce(work) }
    }
}
