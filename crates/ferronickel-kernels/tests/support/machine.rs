//! One [`Block`] for every machine the tests run on: only the memory, the threads and the line differ.

use ferronickel_kernels::block::{Block, Pack, Payload, Stop, narrow_flag};
use ferronickel_kernels::element::Element;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// What stands in for memory and threads.
///
/// # Safety
/// Atomic accesses order plain ones as their [`Ordering`] says, and [`any`](Self::any) the threads of one block.
pub unsafe trait Machine: Copy {
    /// This thread's index in its block.
    fn thread(self) -> usize {
        0
    }
    /// The number of threads in the block.
    fn threads(self) -> usize {
        1
    }
    /// A barrier.
    fn barrier(self) {}
    /// A barrier that votes.
    fn any(self, value: bool) -> bool {
        value
    }
    /// One turn of a waiting loop.
    fn pause(self, turns: &mut u32) -> Result<(), Stop>;
    /// Makes [`pause`](Self::pause) of the block's other threads say that they must stop. A block of one thread has
    /// none.
    fn raise(self) {}
    /// A plain load.
    ///
    /// # Safety
    /// As for [`Block::load`].
    unsafe fn load<E: Element>(self, from: *const E) -> E;
    /// A plain store.
    ///
    /// # Safety
    /// As for [`Block::store`].
    unsafe fn store<E: Element>(self, to: *mut E, value: E);
    /// An atomic load.
    ///
    /// # Safety
    /// `from` is valid, aligned and only accessed atomically.
    unsafe fn load_atomic(self, from: *const u64, order: Ordering) -> u64;
    /// An atomic store.
    ///
    /// # Safety
    /// `to` is valid, aligned and only accessed atomically.
    unsafe fn store_atomic(self, to: *mut u64, value: u64, order: Ordering);
}

/// How a line of the LL protocol lies in memory.
pub trait LineKind: Copy + Send + 'static {
    /// Its payload.
    type Payload: Payload;
    /// Its bytes.
    const BYTES: usize;
    /// Whether its eight-byte word `word` is accessed atomically.
    #[allow(dead_code)] // only loom asks
    fn is_atomic(word: usize) -> bool;
    /// See [`Block::load_line`].
    ///
    /// # Safety
    /// As there.
    unsafe fn load<M: Machine>(machine: M, from: *const u64, flag: u64) -> Option<Self::Payload>;
    /// See [`Block::store_line`].
    ///
    /// # Safety
    /// As there.
    unsafe fn store<M: Machine>(machine: M, to: *mut u64, payload: Self::Payload, flag: u64);
}

/// The GPU's kind of line: two halves, each four bytes of payload and four of flag, written and read as one.
#[derive(Clone, Copy)]
pub struct Halves;

impl LineKind for Halves {
    type Payload = [u64; 1];
    const BYTES: usize = 16;

    fn is_atomic(_word: usize) -> bool {
        true
    }

    unsafe fn load<M: Machine>(machine: M, from: *const u64, flag: u64) -> Option<[u64; 1]> {
        let half = |k: usize| {
            // SAFETY: the caller's promise; a line is two words
            let half = unsafe { machine.load_atomic(from.add(k), Relaxed) };
            (half as u32 == narrow_flag(flag)).then_some(half >> 32)
        };
        Some([half(0)? | half(1)? << 32])
    }

    unsafe fn store<M: Machine>(machine: M, to: *mut u64, payload: [u64; 1], flag: u64) {
        let flag = narrow_flag(flag) as u64;
        // SAFETY: the caller's promise; a line is two words
        unsafe {
            machine.store_atomic(to, payload[0] << 32 | flag, Relaxed);
            machine.store_atomic(to.add(1), payload[0] >> 32 << 32 | flag, Relaxed);
        }
    }
}

/// The host's kind of line: seven plain words and a flag.
#[derive(Clone, Copy)]
pub struct CacheLine;

impl LineKind for CacheLine {
    type Payload = [u64; 7];
    const BYTES: usize = 64;

    fn is_atomic(word: usize) -> bool {
        word == 7
    }

    unsafe fn load<M: Machine>(machine: M, from: *const u64, flag: u64) -> Option<[u64; 7]> {
        // SAFETY: the caller's promise; a line is eight words, the last of them the flag, which vouches for the others
        unsafe {
            let full = machine.load_atomic(from.add(7), Acquire) == flag;
            full.then(|| std::array::from_fn(|k| machine.load(from.add(k))))
        }
    }

    unsafe fn store<M: Machine>(machine: M, to: *mut u64, payload: [u64; 7], flag: u64) {
        // SAFETY: the caller's promise; the flag follows what it vouches for
        unsafe {
            for (k, word) in payload.into_iter().enumerate() {
                machine.store(to.add(k), word);
            }
            machine.store_atomic(to.add(7), flag, Release);
        }
    }
}

/// A block on a machine, with a kind of line.
pub struct TestBlock<M, K> {
    /// The machine.
    pub machine: M,
    kind: PhantomData<K>,
}

impl<M: Copy, K> Clone for TestBlock<M, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Copy, K> Copy for TestBlock<M, K> {}

impl<M, K> TestBlock<M, K> {
    /// A block on `machine`.
    pub fn new(machine: M) -> Self {
        TestBlock { machine, kind: PhantomData }
    }
}

// SAFETY: the machine orders accesses, and a kind of line checks its flag before it hands out its payload
unsafe impl<M: Machine, K: LineKind> Block for TestBlock<M, K> {
    type Line = K::Payload;
    const LINE_BYTES: usize = K::BYTES;

    fn thread(self) -> usize {
        self.machine.thread()
    }

    fn threads(self) -> usize {
        self.machine.threads()
    }

    fn barrier(self) {
        self.machine.barrier();
    }

    fn any(self, value: bool) -> bool {
        self.machine.any(value)
    }

    fn pause(self, turns: &mut u32) -> Result<(), Stop> {
        self.machine.pause(turns)
    }

    fn raise(self, _stop: Stop) {
        self.machine.raise();
    }

    unsafe fn load_pack(self, from: *const Pack) -> Pack {
        assert!(from.is_aligned());
        let from = from.cast::<u64>();
        // SAFETY: the caller's promise; a pack is two words
        Pack(unsafe { [self.machine.load(from), self.machine.load(from.add(1))] })
    }

    unsafe fn store_pack(self, to: *mut Pack, value: Pack) {
        assert!(to.is_aligned());
        let to = to.cast::<u64>();
        // SAFETY: the caller's promise; a pack is two words
        unsafe {
            self.machine.store(to, value.0[0]);
            self.machine.store(to.add(1), value.0[1]);
        }
    }

    unsafe fn load<E: Element>(self, from: *const E) -> E {
        assert!(from.is_aligned());
        // SAFETY: the caller's promise
        unsafe { self.machine.load(from) }
    }

    unsafe fn store<E: Element>(self, to: *mut E, value: E) {
        assert!(to.is_aligned());
        // SAFETY: the caller's promise
        unsafe { self.machine.store(to, value) }
    }

    unsafe fn load_line(self, from: *const u8, flag: u64) -> Option<K::Payload> {
        assert_eq!(from.addr() % K::BYTES, 0);
        // SAFETY: the caller's promise
        unsafe { K::load(self.machine, from.cast(), flag) }
    }

    unsafe fn store_line(self, to: *mut u8, payload: K::Payload, flag: u64) {
        assert_eq!(to.addr() % K::BYTES, 0);
        // SAFETY: the caller's promise
        unsafe { K::store(self.machine, to.cast(), payload, flag) }
    }

    unsafe fn acquire(self, from: *const u64) -> u64 {
        // SAFETY: the caller's promise
        unsafe { self.machine.load_atomic(from, Acquire) }
    }

    unsafe fn release(self, to: *mut u64, value: u64) {
        // SAFETY: the caller's promise
        unsafe { self.machine.store_atomic(to, value, Release) }
    }
}
