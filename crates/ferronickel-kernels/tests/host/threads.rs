//! Ranks on real threads.

use crate::buffer::Buffer;
use crate::links::Tables;
use crate::machine::{LineKind, Machine, TestBlock};
use crate::rank::{Areas, Rank, Shape};
use ferronickel_kernels::block::{Block, Stop};
use ferronickel_kernels::element::Element;
use ferronickel_kernels::protocol::{Arena, Lending, Lends};
use std::sync::Barrier;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The least bytes that are lent here.
pub const LEND_BYTES: usize = 4096;
/// Ranks lend to each other by address.
const LENDING: Lending = Lending { arena: Arena::NONE, least: LEND_BYTES };

/// The threads of one block.
pub struct Team {
    barrier: Barrier,
    votes: AtomicBool,
    raised: AtomicBool,
}

impl Team {
    fn any(&self, value: bool) -> bool {
        self.votes.fetch_or(value, Relaxed);
        self.barrier.wait();
        let result = self.votes.load(Relaxed);
        if self.barrier.wait().is_leader() {
            self.votes.store(false, Relaxed);
        }
        self.barrier.wait();
        result
    }
}

/// A thread of a block, in this process's memory.
#[derive(Clone, Copy)]
pub struct HostMachine<'a> {
    abort: &'a AtomicBool,
    thread: usize,
    threads: usize,
    team: &'a Team,
}

// SAFETY: real atomics, and a real barrier between the threads of a block
unsafe impl Machine for HostMachine<'_> {
    fn thread(self) -> usize {
        self.thread
    }

    fn threads(self) -> usize {
        self.threads
    }

    fn barrier(self) {
        if self.threads > 1 {
            self.team.barrier.wait();
        }
    }

    fn any(self, value: bool) -> bool {
        if self.threads > 1 { self.team.any(value) } else { value }
    }

    fn pause(self, turns: &mut u32) -> Result<(), Stop> {
        *turns += 1;
        if *turns > 16 {
            std::thread::yield_now();
        }
        if self.abort.load(Relaxed) || self.team.raised.load(Relaxed) { Err(Stop::Aborted) } else { Ok(()) }
    }

    fn raise(self) {
        self.team.raised.store(true, Relaxed);
    }

    unsafe fn load<E: Element>(self, from: *const E) -> E {
        // SAFETY: the caller's promise
        unsafe { from.read() }
    }

    unsafe fn store<E: Element>(self, to: *mut E, value: E) {
        // SAFETY: the caller's promise
        unsafe { to.write(value) }
    }

    unsafe fn load_atomic(self, from: *const u64, order: Ordering) -> u64 {
        // SAFETY: the caller's promise
        unsafe { AtomicU64::from_ptr(from.cast_mut()) }.load(order)
    }

    unsafe fn store_atomic(self, to: *mut u64, value: u64, order: Ordering) {
        // SAFETY: the caller's promise
        unsafe { AtomicU64::from_ptr(to) }.store(value, order);
    }
}

/// A block of real threads.
pub type HostBlock<'a, K> = TestBlock<HostMachine<'a>, K>;

/// Runs `work` as every thread of every rank's block, and gives what thread 0 of each rank returned. If `absent`, the
/// last rank does not come, and the communicator is aborted after a moment.
pub fn run<K: LineKind, T: Send>(
    shape: Shape,
    threads: usize,
    absent: bool,
    work: impl Fn(Rank<HostBlock<K>>) -> T + Sync,
) -> Vec<T> {
    let bytes = Areas::of::<HostBlock<K>>(shape).bytes;
    let memory: Vec<_> = (0..shape.ranks).map(|_| Buffer::new(bytes, 0)).collect();
    let bases: Vec<_> = memory.iter().map(|buffer| Address(buffer.start())).collect();
    let starts: Vec<_> = memory.iter().map(Buffer::start).collect();
    // ranks lend to each other by address
    let tables = |rank| Tables::new::<HostBlock<K>>(rank, shape, &starts, 0, Lends::Address, &[]);
    let tables: Vec<_> = (0..shape.ranks).map(tables).collect();
    let abort = AtomicBool::new(false);
    let team =
        || Team { barrier: Barrier::new(threads), votes: AtomicBool::new(false), raised: AtomicBool::new(false) };
    let teams: Vec<_> = (0..shape.ranks).map(|_| team()).collect();
    let present = shape.ranks - absent as usize;
    let results = std::thread::scope(|scope| {
        let (work, abort, bases, tables) = (&work, &abort, &bases, &tables);
        let mut first = Vec::new();
        for (rank, team) in teams.iter().enumerate().take(present) {
            for thread in 0..threads {
                let handle = scope.spawn(move || {
                    let bases: Vec<_> = bases.iter().map(|base| base.0).collect();
                    let block = TestBlock::new(HostMachine { abort, thread, threads, team });
                    work(Rank::new(block, rank, shape, &bases, tables[rank].start(), LENDING, 0))
                });
                if thread == 0 {
                    first.push(handle);
                }
            }
        }
        if absent {
            std::thread::sleep(std::time::Duration::from_millis(20));
            abort.store(true, Relaxed);
        }
        first.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    assert!(memory.iter().all(Buffer::is_intact), "bytes around a rank's memory changed");
    results
}

/// An address that threads may share.
struct Address(*mut u8);

// SAFETY: only a number until it is used, which is the user's responsibility
unsafe impl Sync for Address {}

/// One launch ends before the next begins.
pub fn launch_boundary<B: Block>(block: B) {
    block.barrier();
}
