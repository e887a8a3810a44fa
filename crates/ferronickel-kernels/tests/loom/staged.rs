//! The heart of TwoShot's staging between two ranks, good and broken: a place is filled again only after its reader
//! has been heard from.

use crate::machine::CacheLine;
use crate::memory::{Fault, Memory};
use crate::scenario::{LoomBlock, address, bases, block, explore};
use ferronickel_kernels::block::Block;
use ferronickel_kernels::protocol::FLAG_STRIDE;
use loom::sync::Arc;

/// Places, each a flag and an element.
const CONTRIBUTION: usize = 0;
const RESULT: usize = 2 * FLAG_STRIDE;

struct Staging<'m> {
    block: LoomBlock<'m, CacheLine>,
    rank: usize,
}

impl Staging<'_> {
    /// Fills `place` at the peer.
    fn fill(&self, place: usize, value: u64, step: u64) {
        let peer = 1 - self.rank;
        // SAFETY: the place is only written by this rank
        unsafe {
            self.block.store(address(peer, place + FLAG_STRIDE, 0), value);
            self.block.post(address(peer, place, 0), step);
        }
    }

    /// What the peer filled in `place`.
    fn take(&self, place: usize, step: u64) -> u64 {
        // SAFETY: the place is read after its flag
        unsafe {
            self.block.wait(address(self.rank, place, 0), step).unwrap();
            self.block.load(address(self.rank, place + FLAG_STRIDE, 0))
        }
    }

    fn contribute(&self, step: u64) {
        self.fill(CONTRIBUTION, 100 * step + self.rank as u64, step);
    }

    fn reduce(&self, step: u64) {
        let sum = self.take(CONTRIBUTION, step) + 1;
        self.fill(RESULT, sum, step);
    }

    fn collect(&self, step: u64) {
        assert_eq!(self.take(RESULT, step), 100 * step + self.rank as u64 + 1, "wrong data");
    }
}

/// Two steps; `eager` contributes to the second before the result of the first has come.
fn two_steps(eager: bool) {
    explore(0, move || {
        let mut memory = Memory::new(false);
        for base in bases(2) {
            for place in [CONTRIBUTION, RESULT] {
                memory.add_atomic(base.addr() + place);
                memory.add_plain(base.addr() + place + FLAG_STRIDE, 1);
            }
        }
        let memory = Arc::new(memory);
        let run = move |memory: &Memory, rank: usize| {
            let staging = Staging { block: block(memory, Fault::None), rank };
            staging.contribute(1);
            staging.reduce(1);
            if eager {
                staging.contribute(2);
                staging.collect(1);
            } else {
                staging.collect(1);
                staging.contribute(2);
            }
            staging.reduce(2);
            staging.collect(2);
        };
        let theirs = memory.clone();
        let peer = loom::thread::spawn(move || run(&theirs, 1));
        run(&memory, 0);
        peer.join().unwrap();
    });
}

#[test]
fn place_reused_after_its_reader() {
    two_steps(false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn place_reused_too_early() {
    two_steps(true);
}
