//! Memory, threads and faults as loom models them.
//!
//! A pointer is only a number here: it names a cell, which is either plain, and checked for races, or atomic.

use crate::machine::Machine;
use ferronickel_kernels::block::Stop;
use ferronickel_kernels::element::Element;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::sync::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{self, Relaxed};

/// How a broken block differs from a good one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Not at all.
    None,
    /// A flag is written without release.
    RelaxedPost,
    /// A flag is read without acquire.
    RelaxedWait,
    /// The barrier before a post is missing.
    NoBarrier,
    /// The barrier after a wait is missing.
    NoVote,
    /// Nobody waits for a flag in this range of a rank's memory.
    Ignore(usize, usize),
}

/// The memory of rank `r` begins at `(r + 1) * RANK_BYTES`.
pub const RANK_BYTES: usize = 0x1_0000;

enum Cell {
    Plain(UnsafeCell<u64>),
    Atomic(AtomicU64),
}

/// All memory of a model.
pub struct Memory {
    cells: HashMap<usize, Cell>,
    /// Set when the communicator is aborted, in a model that does so.
    pub abort: Option<AtomicBool>,
}

impl Memory {
    /// Empty memory.
    pub fn new(abortable: bool) -> Self {
        Memory { cells: HashMap::new(), abort: abortable.then(|| AtomicBool::new(false)) }
    }

    /// Adds `words` plain words at `address`.
    pub fn add_plain(&mut self, address: usize, words: usize) {
        for word in 0..words {
            self.add(address + 8 * word, Cell::Plain(UnsafeCell::new(0)));
        }
    }

    /// Adds an atomic word at `address`.
    pub fn add_atomic(&mut self, address: usize) {
        self.add(address, Cell::Atomic(AtomicU64::new(0)));
    }

    fn add(&mut self, address: usize, cell: Cell) {
        assert!(self.cells.insert(address, cell).is_none(), "two cells at {address:#x}");
    }

    fn plain(&self, address: usize) -> &UnsafeCell<u64> {
        match self.cells.get(&address) {
            Some(Cell::Plain(cell)) => cell,
            Some(Cell::Atomic(_)) => panic!("plain access to the flag at {address:#x}"),
            None => panic!("no memory at {address:#x}"),
        }
    }

    fn atomic(&self, address: usize) -> &AtomicU64 {
        match self.cells.get(&address) {
            Some(Cell::Atomic(cell)) => cell,
            Some(Cell::Plain(_)) => panic!("atomic access to the plain word at {address:#x}"),
            None => panic!("no memory at {address:#x}"),
        }
    }
}

/// The barrier of a block, which loom lacks. It blocks: a spinning one would multiply the executions. A thread that
/// has left counts as arrived.
pub struct Gate {
    state: Mutex<GateState>,
    open: Condvar,
}

struct GateState {
    threads: usize,
    arrived: usize,
    generation: u64,
    votes: bool,
    result: bool,
}

impl Gate {
    /// A barrier for `threads` threads.
    pub fn new(threads: usize) -> Self {
        let state = GateState { threads, arrived: 0, generation: 0, votes: false, result: false };
        Gate { state: Mutex::new(state), open: Condvar::new() }
    }

    /// Waits for all and says whether any brought `true`.
    pub fn any(&self, value: bool) -> bool {
        let mut state = self.state.lock().unwrap();
        let generation = state.generation;
        state.arrived += 1;
        state.votes |= value;
        self.open_if_full(&mut state);
        while state.generation == generation {
            state = self.open.wait(state).unwrap();
        }
        state.result
    }

    /// Waits for nobody, and is waited for no longer.
    pub fn leave(&self) {
        let mut state = self.state.lock().unwrap();
        state.threads -= 1;
        self.open_if_full(&mut state);
    }

    fn open_if_full(&self, state: &mut GateState) {
        if state.arrived == state.threads {
            state.result = std::mem::take(&mut state.votes);
            state.arrived = 0;
            state.generation += 1;
            self.open.notify_all();
        }
    }
}

/// A thread of a block.
#[derive(Clone, Copy)]
pub struct LoomMachine<'m> {
    /// The memory.
    pub memory: &'m Memory,
    /// What is wrong with the block.
    pub fault: Fault,
    /// The thread's index.
    pub thread: usize,
    /// The block's barrier, if it has more threads than one.
    pub gate: Option<(&'m Gate, usize)>,
}

/// Turns after which nothing new is learnt from waiting longer: the execution goes on, but branches no more.
const PATIENCE: u32 = 2;
/// Turns after which a wait counts as endless; no good model comes near.
const ENDLESS: u32 = 100;

// SAFETY: memory is loom's, which checks the order
unsafe impl Machine for LoomMachine<'_> {
    fn thread(self) -> usize {
        self.thread
    }

    fn threads(self) -> usize {
        self.gate.map_or(1, |(_, threads)| threads)
    }

    fn barrier(self) {
        if let (Some((gate, _)), true) = (self.gate, self.fault != Fault::NoBarrier) {
            gate.any(false);
        }
    }

    fn any(self, value: bool) -> bool {
        match self.gate {
            Some((gate, _)) if self.fault != Fault::NoVote => gate.any(value),
            _ => value,
        }
    }

    fn pause(self, turns: &mut u32) -> Result<(), Stop> {
        if self.memory.abort.as_ref().is_some_and(|abort| abort.load(Relaxed)) {
            return Err(Stop::Aborted);
        }
        *turns += 1;
        if *turns == PATIENCE {
            loom::skip_branch();
        }
        assert!(*turns < ENDLESS, "a wait without end");
        loom::thread::yield_now();
        Ok(())
    }

    unsafe fn load<E: Element>(self, from: *const E) -> E {
        assert_eq!(size_of::<E>(), 8);
        // SAFETY: loom has just checked that nobody writes the cell meanwhile
        E::from_bits(self.memory.plain(from.addr()).with(|cell| unsafe { *cell }))
    }

    unsafe fn store<E: Element>(self, to: *mut E, value: E) {
        assert_eq!(size_of::<E>(), 8);
        // SAFETY: loom has just checked that nobody accesses the cell meanwhile
        self.memory.plain(to.addr()).with_mut(|cell| unsafe { *cell = value.to_bits() });
    }

    unsafe fn load_atomic(self, from: *const u64, order: Ordering) -> u64 {
        let address = from.addr();
        match self.fault {
            Fault::Ignore(begin, end) if (begin..end).contains(&(address % RANK_BYTES)) => u64::MAX,
            Fault::RelaxedWait => self.memory.atomic(address).load(Relaxed),
            _ => self.memory.atomic(address).load(order),
        }
    }

    unsafe fn store_atomic(self, to: *mut u64, value: u64, order: Ordering) {
        let order = if self.fault == Fault::RelaxedPost { Relaxed } else { order };
        self.memory.atomic(to.addr()).store(value, order);
    }
}
