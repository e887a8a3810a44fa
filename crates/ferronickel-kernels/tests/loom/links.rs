//! One direction between two ranks: a message of LL, and links of both protocols with their credits.

use crate::machine::{CacheLine, Halves, LineKind};
use crate::memory::{Fault, Gate, LoomMachine, Memory};
use crate::rank::Algorithm::{self, OneShotLl, RingLl, RingSimple};
use crate::rank::{Areas, Rank, Shape};
use crate::scenario::{LoomBlock, RECEIVE, SEND, address, bases, block, explore, memory};
use ferronickel_kernels::block::Block;
use ferronickel_kernels::protocol::{FLAG_STRIDE, Wire, ll};
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
        let gate = Arc::new(Gate::new(2));
        self.send::<K>(&memory, 0, self.before);
        let mut threads = Vec::new();
        if self.wide {
            let (memory, gate) = (memory.clone(), gate.clone());
            threads.push(loom::thread::spawn(move || self.receive::<K>(&memory, 1, Some(&gate))));
        }
        let theirs = memory.clone();
        threads.push(loom::thread::spawn(move || self.send::<K>(&theirs, self.before, self.steps)));
        self.receive::<K>(&memory, 0, self.wide.then_some(&gate));
        for thread in threads {
            thread.join().unwrap();
        }
    }

    fn send<K: LineKind>(&self, memory: &Memory, from: u64, to: u64) {
        let rank = Rank::new(block::<K>(memory, self.fault), 0, SHAPE, &bases(2), 0);
        if self.how == RingLl {
            let mut wire = rank.ll_wire(CALL);
            wire.to_next.step = from;
            send_steps(rank.block, &mut wire, from..to);
        } else {
            let mut wire = rank.simple_wire(CALL);
            wire.to_next.step = from;
            send_steps(rank.block, &mut wire, from..to);
        }
    }

    fn receive<K: LineKind>(&self, memory: &Memory, thread: usize, gate: Option<&Gate>) {
        let machine = LoomMachine { memory, fault: self.fault, thread, gate: gate.map(|gate| (gate, 2)) };
        let rank = Rank::new(LoomBlock::<K>::new(machine), 1, SHAPE, &bases(2), 0);
        if self.how == RingLl {
            receive_steps(rank.block, &mut rank.ll_wire(CALL), self.steps);
        } else {
            receive_steps(rank.block, &mut rank.simple_wire(CALL), self.steps);
        }
    }
}

fn send_steps<B: Block>(block: B, wire: &mut impl Wire<B>, steps: std::ops::Range<u64>) {
    for step in steps {
        let own = address(0, SEND, COUNT * step as usize);
        // SAFETY: the elements are this thread's, and fit a slot
        unsafe {
            for i in 0..COUNT {
                block.store(own.wrapping_add(i), 100 * step + i as u64);
            }
            wire.send(Sum, own.cast_const(), COUNT).unwrap();
        }
    }
}

fn receive_steps<B: Block>(block: B, wire: &mut impl Wire<B>, steps: u64) {
    for step in 0..steps {
        // not on a pack, so that each thread of the block has elements
        let result = address(1, RECEIVE, 1 + COUNT * step as usize);
        // SAFETY: the elements are this block's, and fit a slot; each thread looks at its own
        unsafe {
            wire.receive(result, COUNT).unwrap();
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
fn no_credits() -> Fault {
    let flags = Areas::of::<LoomBlock<CacheLine>>(SHAPE).flags;
    Fault::Ignore(flags, flags + 2 * FLAG_STRIDE)
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
    Crossing { fault: no_credits(), ..FULL }.explore::<CacheLine>(0);
}

/// The slot is given back before the second thread has read it.
#[test]
#[should_panic(expected = "Causality violation")]
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
    Crossing { how: RingLl, fault: no_credits(), ..FULL }.explore::<CacheLine>(0);
}

/// The line's flag is overwritten before it is seen.
#[test]
#[should_panic(expected = "a wait without end")]
fn ll_halves_lapped() {
    let flags = Areas::of::<LoomBlock<Halves>>(SHAPE).flags;
    let fault = Fault::Ignore(flags, flags + 2 * FLAG_STRIDE);
    Crossing { how: RingLl, fault, ..FULL }.explore::<Halves>(0);
}
