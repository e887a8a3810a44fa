//! A scenario: ranks that make a sequence of calls, with or without a fault, all of whose executions are explored.

use crate::links::{FLAGS, Tables};
use crate::machine::{CacheLine, LineKind, TestBlock};
use crate::memory::{Fault, Gate, LoomMachine, Memory, RANK_BYTES};
use crate::rank::{Algorithm, Areas, Collective, Data, Rank, Shape};
use ferronickel_kernels::block::{Block, Stop};
use ferronickel_kernels::protocol::{FLAG_STRIDE, Lending, Lends, SLOTS, ll, simple};
use ferronickel_kernels::reduce::Sum;
use loom::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A block under loom.
pub type LoomBlock<'m, K> = TestBlock<LoomMachine<'m>, K>;

/// Where a rank's own elements lie in its memory.
pub const SEND: usize = 0x8000;
/// Where its results lie.
pub const RECEIVE: usize = 0xc000;

/// Explores every execution of `model` within the preemption bound, less `fewer`; says how many there were.
pub fn explore(fewer: usize, model: impl Fn() + Send + Sync + 'static) {
    static HOOK: std::sync::Once = std::sync::Once::new();
    // a backtrace would not fit the small stacks of loom's threads
    HOOK.call_once(|| std::panic::set_hook(Box::new(|info| eprintln!("{info}"))));
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let counter = executions.clone();
    let mut builder = loom::model::Builder::new();
    let bound: usize =
        std::env::var("LOOM_PREEMPTIONS").map_or(2, |v| v.parse().expect("LOOM_PREEMPTIONS is a number"));
    builder.preemption_bound = Some(bound.saturating_sub(fewer));
    builder.max_branches = 50_000;
    builder.check(move || {
        counter.fetch_add(1, Relaxed);
        model();
    });
    let executions = executions.load(Relaxed);
    println!("{executions} executions");
    assert!(executions > 1, "nothing was explored");
}

/// What happens in a model.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Ranks.
    pub ranks: usize,
    /// The calls they make: how, and of how many elements.
    pub calls: &'static [(Algorithm, usize)],
    /// What is wrong with every block.
    pub fault: Fault,
    /// By how much the bound on preemptions is lowered, where there is much to explore.
    pub fewer: usize,
    /// Whether results replace the elements.
    pub in_place: bool,
    /// Whether the last rank's block has two threads.
    pub wide: bool,
    /// Whether all epochs have one parity.
    pub one_parity: bool,
    /// Whether somebody aborts the communicator at some moment.
    pub abort: bool,
    /// Whether the last rank makes another call than the others.
    pub differ: bool,
    /// Whether the last rank does nothing at all.
    pub absent: bool,
}

/// Two ranks, one thread each, nothing wrong, no calls.
pub const PLAIN: Scenario = Scenario {
    ranks: 2,
    calls: &[],
    fault: Fault::None,
    fewer: 0,
    in_place: false,
    wide: false,
    one_parity: false,
    abort: false,
    differ: false,
    absent: false,
};

impl Scenario {
    /// What the ranks agree on: memory just large enough.
    pub fn shape(&self) -> Shape {
        let capacity = 8 * self.calls.iter().map(|&(_, count)| count).max().unwrap_or(1);
        Shape { ranks: self.ranks, capacity, slot_bytes: 16, channels: 1 }
    }

    /// Explores it with lines of kind `K`.
    pub fn explore<K: LineKind>(self) {
        explore(self.fewer, move || self.execute::<K>());
    }

    fn execute<K: LineKind>(self) {
        let algorithms: Vec<_> = self.calls.iter().map(|call| call.0).collect();
        let memory = Arc::new(memory::<K>(self.shape(), &algorithms, self.abort));
        let gate = Arc::new(Gate::new(2));
        let tables = Arc::new(tables::<K>(self.shape()));
        let mut threads = Vec::new();
        for rank in 1..self.ranks - self.absent as usize {
            let wide = self.wide && rank == self.ranks - 1;
            for thread in 0..1 + wide as usize {
                let (memory, gate, tables) = (memory.clone(), gate.clone(), tables.clone());
                threads.push(loom::thread::spawn(move || {
                    self.run::<K>(&memory, &tables[rank], rank, thread, wide.then_some(&gate));
                }));
            }
        }
        if self.abort {
            let memory = memory.clone();
            threads.push(loom::thread::spawn(move || memory.abort.as_ref().unwrap().store(true, Relaxed)));
        }
        self.run::<K>(&memory, &tables[0], 0, 0, None);
        for thread in threads {
            thread.join().unwrap();
        }
        if self.differ || self.absent {
            self.check_untouched::<K>(&memory);
        }
    }

    /// What one thread of a rank does.
    fn run<K: LineKind>(&self, memory: &Memory, tables: &Tables, rank: usize, thread: usize, gate: Option<&Gate>) {
        let block: LoomBlock<K> =
            TestBlock::new(LoomMachine { memory, fault: self.fault, thread, gate: gate.map(|gate| (gate, 2)) });
        let mut this = Rank::new(block, rank, self.shape(), &bases(self.ranks), tables.start(), Lending::NONE, 0);
        for (round, &(how, count)) in self.calls.iter().enumerate() {
            if thread == 0 {
                for i in 0..count {
                    // SAFETY: this rank's own buffer, before the call
                    unsafe { block.store(address(rank, SEND, i), own(round, rank, i)) };
                }
            }
            // one launch ends before the next begins
            gate.map(|gate| gate.any(false));
            this.skip_epoch(self.one_parity);
            let receive = if self.in_place { SEND } else { RECEIVE };
            let data = Data { send: address(rank, SEND, 0).cast_const(), receive: address(rank, receive, 0), count };
            let call = self.call_of(round, rank);
            // SAFETY: the buffers are larger than any count, and all ranks run the same scenario
            let result = unsafe { this.call(Collective::AllReduce, how, Sum, data, call) };
            if let Err(stop) = result {
                self.check_stop(round, rank, stop);
                break;
            }
            assert!(!self.differ, "a mismatch went unnoticed");
            gate.map(|gate| gate.any(false));
            for i in (0..count).filter(|_| thread == 0) {
                // SAFETY: this rank's own buffer, after the call
                let got = unsafe { block.load(data.receive.wrapping_add(i)) };
                assert_eq!(got, (0..self.ranks).map(|rank| own(round, rank, i)).sum(), "wrong data");
            }
        }
        if let Some(gate) = gate {
            gate.leave();
        }
    }

    fn call_of(&self, round: usize, rank: usize) -> u64 {
        7 + 10 * round as u64 + (self.differ && rank == self.ranks - 1) as u64
    }

    /// Whether a call may end like that.
    fn check_stop(&self, round: usize, rank: usize, stop: Stop) {
        match stop {
            Stop::Aborted => assert!(self.abort, "nobody aborted"),
            Stop::Mismatch { peer, theirs } => {
                assert!(self.differ, "no call differs, yet {stop:?}");
                assert_eq!(theirs, self.call_of(round, peer as usize));
                assert_ne!(theirs, self.call_of(round, rank));
            }
        }
    }

    /// Results were zero and still are.
    fn check_untouched<K: LineKind>(&self, memory: &Memory) {
        let block: LoomBlock<K> = block(memory, Fault::None);
        for rank in 0..self.ranks {
            for i in 0..self.calls[0].1 {
                // SAFETY: all threads have ended
                assert_eq!(unsafe { block.load(address(rank, RECEIVE, i)) }, 0, "wrong data");
            }
        }
    }
}

/// A block of one thread.
pub fn block<K: LineKind>(memory: &Memory, fault: Fault) -> LoomBlock<'_, K> {
    TestBlock::new(LoomMachine { memory, fault, thread: 0, gate: None })
}

/// The ranks' links.
pub fn tables<K: LineKind>(shape: Shape) -> Vec<Tables> {
    let bases = bases(shape.ranks);
    (0..shape.ranks).map(|rank| Tables::new::<LoomBlock<K>>(rank, shape, &bases, 0, Lends::Never, &[])).collect()
}

/// The links of ranks that lend to each other by address.
pub fn tables_lending(shape: Shape) -> Vec<Tables> {
    let bases = bases(shape.ranks);
    let tables = |rank| Tables::new::<LoomBlock<CacheLine>>(rank, shape, &bases, 0, Lends::Address, &[]);
    (0..shape.ranks).map(tables).collect()
}

/// The starts of the ranks' memories.
pub fn bases(ranks: usize) -> Vec<*mut u8> {
    (0..ranks).map(|rank| std::ptr::without_provenance_mut((rank + 1) * RANK_BYTES)).collect()
}

/// Element `i` of a buffer of a rank.
pub fn address(rank: usize, buffer: usize, i: usize) -> *mut u64 {
    std::ptr::without_provenance_mut((rank + 1) * RANK_BYTES + buffer + 8 * i)
}

/// Element `i` that `rank` brings to call number `round`.
fn own(round: usize, rank: usize, i: usize) -> u64 {
    (1000 * (round + 1) + 100 * (rank + 1) + i) as u64
}

/// The memory that `algorithms` use, and sixteen elements in each user's buffer.
pub fn memory<K: LineKind>(shape: Shape, algorithms: &[Algorithm], abortable: bool) -> Memory {
    let mut memory = Memory::new(abortable);
    let areas = Areas::of::<LoomBlock<K>>(shape);
    assert!(areas.bytes <= SEND);
    for base in bases(shape.ranks) {
        let base = base.addr();
        for buffer in [SEND, RECEIVE] {
            memory.add_plain(base + buffer, 16);
        }
        let mut seen = Vec::new();
        for &algorithm in algorithms.iter().flat_map(uses) {
            if !seen.contains(&algorithm) {
                add_area::<K>(&mut memory, base, shape, &areas, algorithm);
                seen.push(algorithm);
            }
        }
    }
    memory
}

/// The algorithms whose memory this one uses.
fn uses(algorithm: &Algorithm) -> &[Algorithm] {
    match algorithm {
        Algorithm::DirectApart => &[Algorithm::Direct],
        Algorithm::DirectOutOfReach => &[Algorithm::Direct, Algorithm::Staged],
        Algorithm::FlatLl | Algorithm::TreeLl => &[Algorithm::RingLl],
        Algorithm::FlatSimple | Algorithm::TreeSimple | Algorithm::HierarchicalRing | Algorithm::HierarchicalTree => {
            &[Algorithm::RingSimple]
        }
        _ => std::slice::from_ref(algorithm),
    }
}

fn add_area<K: LineKind>(memory: &mut Memory, base: usize, shape: Shape, areas: &Areas, algorithm: Algorithm) {
    let places = 2 * shape.ranks;
    let place = |area: usize, next: usize, k: usize| base + area + k * ((next - area) / places);
    match algorithm {
        Algorithm::OneShotLl => (0..places).for_each(|k| {
            add_lines::<K>(memory, place(areas.ll_inbox, areas.simple_inbox, k), shape.capacity);
        }),
        Algorithm::OneShotSimple => (0..places).for_each(|k| {
            add_slot(memory, place(areas.simple_inbox, areas.boards, k), shape.capacity);
        }),
        Algorithm::Direct => (0..places).for_each(|k| {
            let board = place(areas.boards, areas.stage, k);
            memory.add_atomic(board);
            memory.add_plain(board + 8, 5);
        }),
        Algorithm::Staged => (0..places).for_each(|k| {
            add_slot(memory, place(areas.stage, areas.ll_slots, k), shape.slot_bytes);
        }),
        Algorithm::RingLl => {
            let stride = ll::lines::<LoomBlock<K>>(shape.slot_bytes) * K::BYTES;
            for slot in 0..shape.ranks * SLOTS as usize {
                add_lines::<K>(memory, base + areas.ll_slots + slot * stride, shape.slot_bytes);
            }
            add_flags(memory, base, shape, areas, &[0]);
        }
        Algorithm::RingSimple => {
            for slot in 0..shape.ranks * SLOTS as usize {
                let slot = base + areas.simple_slots + slot * simple::slot_stride(shape.slot_bytes);
                // the call, the bytes, whether they are lent, and where they are then
                memory.add_plain(slot, 4);
                memory.add_plain(slot + simple::HEADER_BYTES, shape.slot_bytes / 8);
            }
            add_flags(memory, base, shape, areas, &[1, 2]);
        }
        other => unreachable!("{other:?} has no memory of its own"),
    }
}

/// Flags of the links with every rank.
fn add_flags(memory: &mut Memory, base: usize, shape: Shape, areas: &Areas, flags: &[usize]) {
    for peer in 0..shape.ranks {
        for flag in flags {
            memory.add_atomic(base + areas.flags + (peer * FLAGS + flag) * FLAG_STRIDE);
        }
    }
}

/// The lines of a message.
fn add_lines<K: LineKind>(memory: &mut Memory, start: usize, bytes: usize) {
    for line in 0..ll::lines::<LoomBlock<K>>(bytes) {
        for word in 0..K::BYTES / 8 {
            let at = start + line * K::BYTES + 8 * word;
            if K::is_atomic(word) { memory.add_atomic(at) } else { memory.add_plain(at, 1) }
        }
    }
}

/// A flag, a header, a payload.
fn add_slot(memory: &mut Memory, start: usize, bytes: usize) {
    memory.add_atomic(start);
    memory.add_plain(start + FLAG_STRIDE, 2);
    memory.add_plain(start + FLAG_STRIDE + simple::HEADER_BYTES, bytes / 8);
}
