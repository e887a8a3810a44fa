//! One direction between two ranks: a message of LL, and links of both protocols with their credits.

use crate::links::{FLAGS, Tables};
use crate::machine::{CacheLine, Halves, LineKind};
use crate::memory::{Fault, Gate, LoomMachine, Memory};
use crate::rank::Algorithm::{self, OneShotLl, RingLl, RingSimple};
use crate::rank::{Areas, Rank, Shape};
use crate::scenario::{LoomBlock, RECEIVE, SEND, address, bases, block, explore, memory, tables, tables_lending};
use ferronickel_kernels::block::{Block, Stop};
use ferronickel_kernels::protocol::{FLAG_STRIDE, Lending, Link, PassOn, Step, Wire, ll};
use ferronickel_kernels::reduce::Sum;
use loom::sync::Arc;

const SHAPE: Shape = Shape { ranks: 2, capacity: 8, slot_bytes: 16, channels: 1 };
const CALL: u64 = 7;

/// Three messages of one element through one place; a flag says that the place is free again.
fn message<K: LineKind>(fault: Fault) {
    explore(0, move || {
        let mut memory = memory::<K>(SHAPE, &[OneShotLl], false);
        let free = SEND - FLAG_STRIDE;
        memory.add_atomic(address(0, free, 0).addr());
        let place: usize = address(1, Areas::of::<LoomBlock<K>>(SHAPE).ll_inbox, 0).addr();
        let line = move |i: usize| std::ptr::without_provenance_mut::<u8>(place + i * K::BYTES);
        let memory = Arc::new(memory);
        let sender = {
            let memory = memory.clone();
            loom::thread::spawn(move || {
                let block: LoomBlock<K> = block(&memory, fault);
                for epoch in 1..=3 {
                    // SAFETY: the element is this thread's; the place is free once the receiver has said so
                    unsafe {
                        block.store(address(0, SEND, 0), 100 * epoch);
                        block.wait(address(0, free, 0), epoch - 1).unwrap();
                        for i in 0..ll::lines::<LoomBlock<K>>(8) {
                            let composed = ll::compose(block, Sum, CALL, address(0, SEND, 0), 1, i);
                            block.store_line(line(i), composed, epoch);
                        }
                    }
                }
            })
        };
        let block: LoomBlock<K> = block(&memory, fault);
        for epoch in 1..=3 {
            // SAFETY: the result is this thread's; lines are read before the place is said to be free
            unsafe {
                for i in 0..ll::lines::<LoomBlock<K>>(8) {
                    let payload = ll::receive_line(block, line(i), epoch, i, CALL, 0).unwrap();
                    ll::decompose::<_, u64>(block, payload, address(1, RECEIVE, 0), 1, i);
                }
                block.post(address(0, free, 0), epoch);
                assert_eq!(block.load(address(1, RECEIVE, 0)), 100 * epoch, "wrong data");
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn message_in_halves() {
    message::<Halves>(Fault::None);
}

#[test]
fn message_in_cache_lines() {
    message::<CacheLine>(Fault::None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn message_in_a_cache_line_posted_relaxed() {
    message::<CacheLine>(Fault::RelaxedPost);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn message_in_a_cache_line_awaited_relaxed() {
    message::<CacheLine>(Fault::RelaxedWait);
}

/// A link from rank 0 to rank 1.
#[derive(Clone, Copy)]
struct Crossing {
    how: Algorithm,
    /// Slots already filled when the receiver begins, so that a model of credits stays short.
    before: u64,
    /// Slots in all.
    steps: u64,
    fault: Fault,
    /// Whether the receiver's block has two threads.
    wide: bool,
}

/// Two elements a step.
const COUNT: usize = 2;

impl Crossing {
    fn explore<K: LineKind>(self, fewer: usize) {
        explore(fewer, move || self.execute::<K>());
    }

    fn execute<K: LineKind>(self) {
        let memory = Arc::new(memory::<K>(SHAPE, &[self.how], false));
        let tables = Arc::new(tables::<K>(SHAPE));
        let gate = Arc::new(Gate::new(2));
        self.send::<K>(&memory, &tables[0], 0, self.before);
        let mut threads = Vec::new();
        if self.wide {
            let (memory, gate, tables) = (memory.clone(), gate.clone(), tables.clone());
            threads.push(loom::thread::spawn(move || self.receive::<K>(&memory, &tables[1], 1, Some(&gate))));
        }
        let (theirs, sender) = (memory.clone(), tables.clone());
        threads.push(loom::thread::spawn(move || self.send::<K>(&theirs, &sender[0], self.before, self.steps)));
        self.receive::<K>(&memory, &tables[1], 0, self.wide.then_some(&gate));
        for thread in threads {
            thread.join().unwrap();
        }
    }

    fn send<K: LineKind>(&self, memory: &Memory, tables: &Tables, from: u64, to: u64) {
        let rank = Rank::new(block::<K>(memory, self.fault), 0, SHAPE, &bases(2), tables.start(), Lending::NONE, 0);
        let link = rank.tables(self.how == RingLl).1.wrapping_add(1);
        if self.how == RingLl {
            send_steps(rank.block, rank.ll_wire(CALL), link, from..to);
        } else {
            send_steps(rank.block, rank.simple_wire(CALL), link, from..to);
        }
    }

    fn receive<K: LineKind>(&self, memory: &Memory, tables: &Tables, thread: usize, gate: Option<&Gate>) {
        let machine = LoomMachine { memory, fault: self.fault, thread, gate: gate.map(|gate| (gate, 2)) };
        let block = LoomBlock::<K>::new(machine);
        let rank = Rank::new(block, 1, SHAPE, &bases(2), tables.start(), Lending::NONE, 0);
        let link = rank.tables(self.how == RingLl).0;
        if self.how == RingLl {
            receive_steps(rank.block, rank.ll_wire(CALL), link, self.steps);
        } else {
            receive_steps(rank.block, rank.simple_wire(CALL), link, self.steps);
        }
    }
}

fn send_steps<B: Block>(block: B, wire: impl Wire<B>, link: *mut Link, steps: std::ops::Range<u64>) {
    for step in steps {
        let own = address(0, SEND, COUNT * step as usize);
        // SAFETY: the elements are this thread's, and fit a slot
        unsafe {
            for i in 0..COUNT {
                block.store(own.wrapping_add(i), 100 * step + i as u64);
            }
            wire.step(Step::of(Sum, COUNT).with_own(own.cast_const()).send(link)).unwrap();
        }
    }
}

fn receive_steps<B: Block>(block: B, wire: impl Wire<B>, link: *mut Link, steps: u64) {
    for step in 0..steps {
        // not on a pack, so that each thread of the block has elements
        let result = address(1, RECEIVE, 1 + COUNT * step as usize);
        // SAFETY: the elements are this block's, and fit a slot; each thread looks at its own
        unsafe {
            wire.step(Step::of(PassOn, COUNT).receive(link).keep(result)).unwrap();
            for i in (block.thread()..COUNT).step_by(block.threads()) {
                assert_eq!(block.load(result.wrapping_add(i)), 100 * step + i as u64, "wrong data");
            }
        }
    }
}

const SIMPLE: Crossing = Crossing { how: RingSimple, before: 0, steps: 3, fault: Fault::None, wide: false };
const LL: Crossing = Crossing { how: RingLl, ..SIMPLE };
/// The fifth slot is the first again.
const FULL: Crossing = Crossing { before: 4, steps: 6, ..SIMPLE };
const WIDE: Crossing = Crossing { before: 4, steps: 5, wide: true, ..SIMPLE };

/// Nobody heeds the count of drained slots.
fn no_credits<K: LineKind>() -> Fault {
    let flags = Areas::of::<LoomBlock<K>>(SHAPE).flags;
    // the heads of LL and of Simple, of the links with rank 1
    Fault::Ignore(flags + FLAGS * FLAG_STRIDE, flags + (FLAGS + 2) * FLAG_STRIDE)
}

#[test]
fn simple() {
    SIMPLE.explore::<CacheLine>(0);
}

#[test]
fn simple_runs_out_of_slots() {
    FULL.explore::<CacheLine>(0);
}

#[test]
fn simple_to_two_threads() {
    WIDE.explore::<CacheLine>(1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn simple_posted_relaxed() {
    Crossing { fault: Fault::RelaxedPost, ..SIMPLE }.explore::<CacheLine>(0);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn simple_awaited_relaxed() {
    Crossing { fault: Fault::RelaxedWait, ..SIMPLE }.explore::<CacheLine>(0);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn simple_lapped() {
    Crossing { fault: no_credits::<CacheLine>(), ..FULL }.explore::<CacheLine>(0);
}

/// The slot is counted before the second thread has read it.
#[test]
#[should_panic(expected = "wrong data")]
fn simple_to_two_threads_without_barrier() {
    Crossing { fault: Fault::NoBarrier, ..WIDE }.explore::<CacheLine>(0);
}

/// The second thread reads the slot before the first has seen its flag.
#[test]
#[should_panic(expected = "Mismatch { peer: 0, theirs: 0 }")]
fn simple_to_two_threads_without_vote() {
    Crossing { fault: Fault::NoVote, before: 0, steps: 1, ..WIDE }.explore::<CacheLine>(0);
}

#[test]
fn ll_in_cache_lines() {
    LL.explore::<CacheLine>(0);
}

#[test]
fn ll_in_halves() {
    Crossing { steps: 2, ..LL }.explore::<Halves>(0);
}

#[test]
fn ll_runs_out_of_slots() {
    Crossing { how: RingLl, ..FULL }.explore::<CacheLine>(0);
}

#[test]
fn ll_to_two_threads() {
    Crossing { how: RingLl, before: 0, steps: 1, ..WIDE }.explore::<Halves>(1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn ll_cache_line_lapped() {
    Crossing { how: RingLl, fault: no_credits::<CacheLine>(), ..FULL }.explore::<CacheLine>(0);
}

/// The line's flag is overwritten before it is seen.
#[test]
#[should_panic(expected = "a wait without end")]
fn ll_halves_lapped() {
    Crossing { how: RingLl, fault: no_credits::<Halves>(), ..FULL }.explore::<Halves>(0);
}

/// Rank 0 lends its elements three times, and changes them in between; if it `settles`, only once they have been read.
fn lending(settles: bool) {
    explore(0, move || {
        let memory = Arc::new(memory::<CacheLine>(SHAPE, &[RingSimple], false));
        let tables = Arc::new(tables_lending(SHAPE));
        let theirs = (memory.clone(), tables.clone());
        let sender = loom::thread::spawn(move || {
            let (memory, tables) = theirs;
            let lending = Lending { least: 1, ..Lending::NONE };
            let block = block::<CacheLine>(&memory, Fault::None);
            let rank = Rank::new(block, 0, SHAPE, &bases(2), tables[0].start(), lending, 0);
            let (wire, link) = (rank.simple_wire(CALL), rank.tables(false).1.wrapping_add(1));
            for step in 0..3 {
                let own = address(0, SEND, 0);
                // SAFETY: the elements are this thread's, and fit a slot
                unsafe {
                    block.store(own, 100 + step);
                    wire.step(Step::of(Sum, 1).with_own(own.cast_const()).send(link)).unwrap();
                    if settles {
                        wire.settle(link, 8).unwrap();
                    }
                }
            }
        });
        let block = block::<CacheLine>(&memory, Fault::None);
        let rank = Rank::new(block, 1, SHAPE, &bases(2), tables[1].start(), Lending::NONE, 0);
        let (wire, link) = (rank.simple_wire(CALL), rank.tables(false).0);
        for step in 0..3 {
            let result = address(1, RECEIVE, 0);
            // SAFETY: the element is this thread's
            unsafe {
                wire.step(Step::of(PassOn, 1).receive(link).keep(result)).unwrap();
                assert_eq!(block.load(result), 100 + step, "wrong data");
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn what_is_lent_stays_until_it_has_been_read() {
    lending(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_is_lent_is_changed_too_early() {
    lending(false);
}

/// Two ranks send each other two messages at the same time; those with elements are lent if `least` says so.
fn exchanging(least: usize, differ: bool) {
    explore(1, move || {
        let memory = Arc::new(memory::<CacheLine>(SHAPE, &[RingSimple], false));
        let tables = Arc::new(tables_lending(SHAPE));
        let run = move |memory: &Memory, tables: &Tables, at: usize| {
            let block = block::<CacheLine>(memory, Fault::None);
            let lending = Lending { least, ..Lending::NONE };
            let rank = Rank::new(block, at, SHAPE, &bases(2), tables.start(), lending, 0);
            let peer = 1 - at;
            // SAFETY: the elements are this thread's
            (0..2).for_each(|i| unsafe { block.store(address(at, SEND, i), (100 * at + i) as u64) });
            let message = |sends: bool, k: usize| {
                let from = if sends { at } else { peer };
                let buffer = address(at, if sends { SEND } else { RECEIVE }, k).cast();
                let call = (10 * from + k + 1) as u64 + (differ && at == 1 && sends) as u64 * 1000;
                let mut transfer = rank.transfer(peer, sends, buffer, 8, call);
                transfer.follows = k > 0;
                transfer
            };
            let mut transfers = [message(false, 0), message(false, 1), message(true, 0), message(true, 1)];
            // SAFETY: the buffers hold an element each, and both ranks have the same messages
            let end = unsafe {
                match (differ, at) {
                    (false, _) => rank.exchange(&mut transfers),
                    // rank 0 only receives, and rank 1 only sends
                    (true, 0) => rank.exchange(&mut transfers[..2]),
                    (true, _) => rank.exchange(&mut transfers[2..]),
                }
            };
            if differ {
                let mismatch = Err(Stop::Mismatch { peer: 1, theirs: 1011 });
                return assert_eq!(end, if at == 0 { mismatch } else { Ok(()) });
            }
            end.unwrap();
            for i in 0..2 {
                // SAFETY: as above; what was lent may be changed now
                unsafe {
                    assert_eq!(block.load(address(at, RECEIVE, i)), (100 * peer + i) as u64, "wrong data");
                    block.store(address(at, SEND, i), 7);
                }
            }
        };
        let theirs = (memory.clone(), tables.clone());
        let peer = loom::thread::spawn(move || run(&theirs.0, &theirs.1[1], 1));
        run(&memory, &tables[0], 0);
        peer.join().unwrap();
    });
}

#[test]
fn messages_both_ways() {
    exchanging(usize::MAX, false);
}

#[test]
fn messages_both_ways_lent() {
    exchanging(1, false);
}

#[test]
fn a_message_that_differs_is_noticed() {
    exchanging(usize::MAX, true);
}
