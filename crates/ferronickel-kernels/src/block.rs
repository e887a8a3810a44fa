//! The machine a kernel runs on, as far as a kernel can see it.

use crate::element::Element;
use crate::reduce::Reduce;

/// Why a kernel ended before its work was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The communicator was aborted while the kernel waited.
    Aborted,
    /// A peer takes part in another call: the kernel read `theirs` where its own call's description belonged.
    Mismatch {
        /// The rank whose call differs.
        peer: u32,
        /// The description that rank sent.
        theirs: u64,
    },
}

/// Sixteen bytes of payload: the unit of every wide access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(16))]
pub struct Pack(pub [u64; 2]);

/// What one line of the LL protocol carries besides its flag: a few eight-byte words.
pub trait Payload: Copy {
    /// Words in a line.
    const WORDS: usize;
    /// A line of zeros.
    fn zeroed() -> Self;
    /// The word at `index`, which is less than [`WORDS`](Self::WORDS).
    fn get(&self, index: usize) -> u64;
    /// Replaces the word at `index`, which is less than [`WORDS`](Self::WORDS).
    fn set(&mut self, index: usize, word: u64);
}

impl<const W: usize> Payload for [u64; W] {
    const WORDS: usize = W;

    #[inline(always)]
    fn zeroed() -> Self {
        [0; W]
    }

    #[inline(always)]
    fn get(&self, index: usize) -> u64 {
        self[index]
    }

    #[inline(always)]
    fn set(&mut self, index: usize, word: u64) {
        self[index] = word;
    }
}

/// A line's flag where a line has only 32 bits for it: never zero, which is what memory holds before the first line.
///
/// Flags that differ by 2^32 - 1 look alike, so no line may keep its content over so many steps of a link or epochs
/// of a communicator: memory for such lines is cleared, at a moment when nobody uses it, at least that often.
#[inline(always)]
pub const fn narrow_flag(flag: u64) -> u32 {
    (flag % u32::MAX as u64) as u32 + 1
}

/// A group of threads that runs one channel of a collective.
///
/// Only the primitives at the top differ between machines; what is built from them at the bottom may be overridden
/// where a machine does it better.
///
/// # Safety
/// * [`acquire`](Self::acquire) and [`release`](Self::release) order plain accesses between every two blocks that
///   share memory, and [`barrier`](Self::barrier) between the threads of one block.
/// * [`load_line`](Self::load_line) returns a payload only if all of it was stored by the one
///   [`store_line`](Self::store_line) that stored that flag.
pub unsafe trait Block: Copy {
    /// The payload of an LL line on this machine.
    type Line: Payload;
    /// The bytes an LL line takes in memory, flags included.
    const LINE_BYTES: usize;

    /// This thread's index in the block.
    fn thread(self) -> usize;
    /// The number of threads in the block.
    fn threads(self) -> usize;
    /// Waits until every thread of the block is here.
    fn barrier(self);
    /// A barrier that tells every thread whether any of them brought `true`.
    fn any(self, value: bool) -> bool;
    /// One turn of a waiting loop; `turns` is that loop's own counter, zero at its start.
    ///
    /// # Errors
    /// [`Stop::Aborted`] when the communicator was aborted: the kernel must return.
    fn pause(self, turns: &mut u32) -> Result<(), Stop>;

    /// Tells the other threads of the block that the kernel must end: their [`pause`](Self::pause) says so from now
    /// on. A block of one thread has nobody to tell.
    fn raise(self, stop: Stop);

    /// Reads sixteen bytes.
    ///
    /// # Safety
    /// `from` is valid, aligned and not written meanwhile.
    unsafe fn load_pack(self, from: *const Pack) -> Pack;
    /// Writes sixteen bytes.
    ///
    /// # Safety
    /// `to` is valid, aligned and not accessed meanwhile.
    unsafe fn store_pack(self, to: *mut Pack, value: Pack);
    /// Reads an element.
    ///
    /// # Safety
    /// `from` is valid, aligned and not written meanwhile.
    unsafe fn load<E: Element>(self, from: *const E) -> E;
    /// Writes an element.
    ///
    /// # Safety
    /// `to` is valid, aligned and not accessed meanwhile.
    unsafe fn store<E: Element>(self, to: *mut E, value: E);
    /// The payload of a line, if it carries `flag`, which is never zero; see [`narrow_flag`] where it does not fit.
    ///
    /// # Safety
    /// `from` is the start of a line that is only ever written by [`store_line`](Self::store_line).
    unsafe fn load_line(self, from: *const u8, flag: u64) -> Option<Self::Line>;
    /// Writes a line: the payload and the flag that says it is there.
    ///
    /// # Safety
    /// `to` is the start of a line; nobody else stores there, and every reader of what it held has passed.
    unsafe fn store_line(self, to: *mut u8, payload: Self::Line, flag: u64);
    /// Reads a flag; what was written before the matching [`release`](Self::release) is visible after it.
    ///
    /// # Safety
    /// `from` is valid, aligned and only ever written by [`release`](Self::release).
    unsafe fn acquire(self, from: *const u64) -> u64;
    /// Writes a flag, after everything this thread wrote before.
    ///
    /// # Safety
    /// `to` is valid, aligned and only ever accessed as a flag.
    unsafe fn release(self, to: *mut u64, value: u64);

    /// Waits, as a block, until `flag` reaches `value`.
    ///
    /// # Errors
    /// What [`pause`](Self::pause) says, to every thread of the block alike.
    ///
    /// # Safety
    /// As for [`acquire`](Self::acquire).
    #[inline(always)]
    unsafe fn wait(self, flag: *const u64, value: u64) -> Result<(), Stop> {
        let mut stopped = false;
        if self.thread() == 0 {
            let mut turns = 0;
            // SAFETY: the caller's promise
            while !stopped && unsafe { self.acquire(flag) } < value {
                stopped = self.pause(&mut turns).is_err();
            }
        }
        if self.any(stopped) { Err(Stop::Aborted) } else { Ok(()) }
    }

    /// Whether, for the whole block, `flag` has reached `value`.
    ///
    /// # Safety
    /// As for [`acquire`](Self::acquire).
    #[inline(always)]
    unsafe fn has_reached(self, flag: *const u64, value: u64) -> bool {
        // SAFETY: the caller's promise
        self.any(self.thread() == 0 && unsafe { self.acquire(flag) } >= value)
    }

    /// One turn, as a block, of a loop that waits; `turns` is that loop's own counter, zero at its start.
    ///
    /// # Errors
    /// What [`pause`](Self::pause) says, to every thread of the block alike.
    #[inline(always)]
    fn pause_together(self, turns: &mut u32) -> Result<(), Stop> {
        let stopped = self.thread() == 0 && self.pause(turns).is_err();
        if self.any(stopped) { Err(Stop::Aborted) } else { Ok(()) }
    }

    /// Publishes, as a block, everything the block wrote before.
    ///
    /// # Safety
    /// As for [`release`](Self::release).
    #[inline(always)]
    unsafe fn post(self, flag: *mut u64, value: u64) {
        self.barrier();
        if self.thread() == 0 {
            // SAFETY: the caller's promise
            unsafe { self.release(flag, value) };
        }
    }

    /// Copies `count` elements as they are, shared out over the block's threads.
    ///
    /// # Safety
    /// Both ranges are valid and aligned for `E`, do not overlap, and nobody else writes either meanwhile.
    #[inline(always)]
    unsafe fn copy<E: Element>(self, to: *mut E, from: *const E, count: usize) {
        let per_pack = 16 / size_of::<E>();
        let aligned = (to as usize | from as usize) & 15 == 0;
        let packs = if aligned { count / per_pack } else { 0 };
        let mut i = self.thread();
        while i < packs {
            // SAFETY: both are aligned, and `i` is less than the packs in `count`
            unsafe { self.store_pack(to.cast::<Pack>().add(i), self.load_pack(from.cast::<Pack>().add(i))) };
            i += self.threads();
        }
        let mut i = packs * per_pack + self.thread();
        while i < count {
            // SAFETY: `i < count`
            unsafe { self.store(to.add(i), self.load(from.add(i))) };
            i += self.threads();
        }
    }

    /// Copies `bytes` bytes as [`copy`](Self::copy) does: in words where all of it is words.
    ///
    /// # Safety
    /// Both ranges are valid, do not overlap, and nobody else writes either meanwhile.
    #[inline(always)]
    unsafe fn copy_bytes(self, to: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: the caller's promise
        unsafe {
            if (to as usize | from as usize | bytes) & 7 == 0 {
                self.copy(to.cast::<u64>(), from.cast::<u64>(), bytes / 8);
            } else {
                self.copy(to, from, bytes);
            }
        }
    }

    /// Reduces `count` elements of `sources` ranges, in that order, into `targets` ranges, shared out over the
    /// block's threads.
    ///
    /// `input(k)` says whether source `k` holds a caller's own elements, which the operation prepares first;
    /// `last` says whether the result is final, so that the operation finishes it.
    ///
    /// # Safety
    /// Every range is valid and aligned for `E`; nobody else writes any of them meanwhile. A target may be one of
    /// the sources, but may not overlap one otherwise; targets do not overlap each other.
    #[inline(always)]
    unsafe fn reduce<E: Element, R: Reduce<E>>(self, work: Reduction<E, R, impl Sources<E>, impl Targets<E>>) {
        let mut i = self.thread();
        while i < work.count {
            let source = |k: usize| {
                // SAFETY: `k` is less than the sources, `i` less than the count
                let e = unsafe { self.load(work.from.source(k).add(i)) };
                if work.from.is_input(k) { work.op.prepare(e) } else { e }
            };
            let mut sum = source(0);
            let mut k = 1;
            while k < work.from.sources() {
                sum = work.op.combine(sum, source(k));
                k += 1;
            }
            if work.last {
                sum = work.op.finish(sum);
            }
            let mut k = 0;
            while k < work.to.targets() {
                // SAFETY: as above
                unsafe { self.store(work.to.target(k).add(i), sum) };
                k += 1;
            }
            i += self.threads();
        }
    }
}

/// What [`Block::reduce`] is asked to do.
#[derive(Clone, Copy)]
pub struct Reduction<E, R, S, T> {
    /// The operation.
    pub op: R,
    /// Where the elements come from, in the order in which they are combined.
    pub from: S,
    /// Where the result goes.
    pub to: T,
    /// Elements in each range.
    pub count: usize,
    /// Whether the result is final.
    pub last: bool,
    /// The element.
    pub element: core::marker::PhantomData<E>,
}

impl<E, R, S, T> Reduction<E, R, S, T> {
    /// A reduction of `count` elements.
    #[inline(always)]
    pub fn new(op: R, to: T, from: S, count: usize, last: bool) -> Self {
        Reduction { op, from, to, count, last, element: core::marker::PhantomData }
    }
}

/// The ranges a reduction reads.
pub trait Sources<E>: Copy {
    /// How many; at least one.
    fn sources(&self) -> usize;
    /// The start of range `k`.
    fn source(&self, k: usize) -> *const E;
    /// Whether range `k` holds a caller's own elements, not yet prepared.
    fn is_input(&self, k: usize) -> bool;
}

/// The ranges a reduction writes.
pub trait Targets<E>: Copy {
    /// How many; at least one.
    fn targets(&self) -> usize;
    /// The start of range `k`.
    fn target(&self, k: usize) -> *mut E;
}

/// Sources in an array; the first of them holds the caller's own elements.
impl<E, const N: usize> Sources<E> for [*const E; N] {
    #[inline(always)]
    fn sources(&self) -> usize {
        N
    }

    #[inline(always)]
    fn source(&self, k: usize) -> *const E {
        self[k]
    }

    #[inline(always)]
    fn is_input(&self, k: usize) -> bool {
        k == 0
    }
}

impl<E, const N: usize> Targets<E> for [*mut E; N] {
    #[inline(always)]
    fn targets(&self) -> usize {
        N
    }

    #[inline(always)]
    fn target(&self, k: usize) -> *mut E {
        self[k]
    }
}
