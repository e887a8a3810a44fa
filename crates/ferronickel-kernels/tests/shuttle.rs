//! Whole algorithms under random schedules: random sequences of calls by two to four ranks, on one count of epochs.
//!
//! `FERRONICKEL_SHUTTLE_ITERATIONS` (default 400 for each test) runs more; `FERRONICKEL_SHUTTLE_SEED` repeats a run,
//! whose seed is printed.

#[path = "support/buffer.rs"]
mod buffer;
#[path = "support/erased.rs"]
mod erased;
#[path = "support/job.rs"]
mod job;
#[path = "support/links.rs"]
mod links;
#[path = "support/machine.rs"]
mod machine;
#[path = "support/over_links.rs"]
mod over_links;
#[path = "support/rank.rs"]
mod rank;
#[path = "../../ferronickel/src/device/shape.rs"]
#[allow(dead_code)] // only the trees
mod shape;
#[path = "support/value.rs"]
mod value;

use buffer::Buffer;
use ferronickel_kernels::block::Stop;
use ferronickel_kernels::element::Element;
use ferronickel_kernels::protocol::{Lending, Lends};
use job::AnyJob;
use links::Tables;
use machine::{CacheLine, Halves, LineKind, Machine, TestBlock};
use rank::{Areas, Rank, Shape};
use shuttle::rand::Rng;
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicBool, AtomicU64};
use shuttle::thread;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{self, SeqCst};
use std::sync::{Arc, Mutex};
use value::Random;

/// What the ranks share: a shuttle atomic for every flag or half of a line, by address; all else is real memory.
struct World {
    atomics: Mutex<HashMap<usize, Arc<AtomicU64>>>,
    abort: AtomicBool,
}

impl World {
    fn atomic(&self, address: usize) -> Arc<AtomicU64> {
        self.atomics.lock().unwrap().entry(address).or_insert_with(|| Arc::new(AtomicU64::new(0))).clone()
    }
}

/// A rank's thread.
#[derive(Clone, Copy)]
struct ShuttleMachine<'w> {
    world: &'w World,
    accesses: &'w Cell<u32>,
}

impl ShuttleMachine<'_> {
    /// Lets another thread run, now and then, between plain accesses.
    fn interrupt(self) {
        self.accesses.set(self.accesses.get() + 1);
        if self.accesses.get() & 15 == 0 {
            self.world.abort.load(SeqCst);
        }
    }
}

// SAFETY: shuttle runs one thread at a time, in an order that is sequentially consistent
unsafe impl Machine for ShuttleMachine<'_> {
    fn pause(self, _turns: &mut u32) -> Result<(), Stop> {
        thread::yield_now();
        if self.world.abort.load(SeqCst) { Err(Stop::Aborted) } else { Ok(()) }
    }

    unsafe fn load<E: Element>(self, from: *const E) -> E {
        self.interrupt();
        // SAFETY: the caller's promise
        unsafe { from.read() }
    }

    unsafe fn store<E: Element>(self, to: *mut E, value: E) {
        self.interrupt();
        // SAFETY: the caller's promise
        unsafe { to.write(value) }
    }

    unsafe fn load_atomic(self, from: *const u64, _order: Ordering) -> u64 {
        self.world.atomic(from.addr()).load(SeqCst)
    }

    unsafe fn store_atomic(self, to: *mut u64, value: u64, _order: Ordering) {
        self.world.atomic(to.addr()).store(value, SeqCst);
    }
}

type ShuttleBlock<'w, K> = TestBlock<ShuttleMachine<'w>, K>;

/// What a communicator's ranks share.
struct Communicator {
    world: World,
    shape: Shape,
    start: u64,
    memory: Vec<Buffer>,
    tables: Vec<Tables>,
    jobs: Vec<AnyJob>,
}

impl Communicator {
    /// Two to four ranks that will make `calls` random calls.
    fn random<K: LineKind>(random: &mut Random, calls: usize) -> Self {
        let ranks = 2 + random.below(3);
        let shape = Shape { ranks, capacity: 256, slot_bytes: random.pick(&[32, 64]), channels: 1 + random.below(2) };
        // at the very beginning, or where the low 32 bits of an epoch are about to wrap
        let near_the_wrap = (1 << 32) - 1 - random.below(calls) as u64;
        let start = random.pick(&[0, near_the_wrap]);
        let bytes = Areas::of::<ShuttleBlock<K>>(shape).bytes;
        let memory: Vec<_> = (0..ranks).map(|_| Buffer::new(bytes, 0)).collect();
        let starts: Vec<_> = memory.iter().map(Buffer::start).collect();
        let tables = |rank| Tables::new::<ShuttleBlock<K>>(rank, shape, &starts, start, Lends::Never, &[]);
        let tables = (0..ranks).map(tables).collect();
        let jobs = (0..calls).map(|_| AnyJob::random(random, ranks, shape.capacity, 100)).collect();
        let world = World { atomics: Mutex::new(HashMap::new()), abort: AtomicBool::new(false) };
        Communicator { world, shape, start, memory, tables, jobs }
    }

    /// Hands rank `rank` to `work`.
    fn with_rank<K: LineKind, T>(&self, rank: usize, work: impl FnOnce(Rank<ShuttleBlock<K>>) -> T) -> T {
        let accesses = Cell::new(0);
        let block = TestBlock::new(ShuttleMachine { world: &self.world, accesses: &accesses });
        let bases: Vec<_> = self.memory.iter().map(Buffer::start).collect();
        work(Rank::new(block, rank, self.shape, &bases, self.tables[rank].start(), Lending::NONE, self.start))
    }

    /// Runs all ranks; `abort` says after how many turns the communicator is aborted, if at all.
    fn run<K: LineKind>(self, abort: Option<usize>) {
        let all = Arc::new(self);
        (0..all.shape.ranks).for_each(|rank| all.with_rank::<K, _>(rank, |rank| rank.set_flags()));
        let threads: Vec<_> = (0..all.shape.ranks)
            .map(|rank| {
                let all = all.clone();
                thread::spawn(move || all.with_rank::<K, _>(rank, |rank| all.calls(rank)))
            })
            .collect();
        if let Some(turns) = abort {
            (0..turns).for_each(|_| thread::yield_now());
            all.world.abort.store(true, SeqCst);
        }
        for (rank, thread) in threads.into_iter().enumerate() {
            let (done, end) = thread.join().unwrap();
            match end {
                Ok(()) => assert_eq!(done, all.jobs.len()),
                Err(stop) => assert!(stop == Stop::Aborted && abort.is_some(), "{stop:?}"),
            }
            all.jobs[..done].iter().for_each(|job| job.check(rank));
        }
        all.jobs.iter().for_each(AnyJob::check_guards);
        assert!(all.memory.iter().all(Buffer::is_intact), "bytes around a rank's memory changed");
    }

    /// One rank's calls; how many it did, and how it ended.
    fn calls<K: LineKind>(&self, mut rank: Rank<ShuttleBlock<K>>) -> (usize, Result<(), Stop>) {
        for (done, job) in self.jobs.iter().enumerate() {
            if let Err(stop) = job.run(&mut rank) {
                return (done, Err(stop));
            }
        }
        (self.jobs.len(), Ok(()))
    }
}

/// A setting of the environment, or a default.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs `model` under random schedules.
fn explore(model: impl Fn(&mut Random) + Send + Sync + 'static) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = setting("FERRONICKEL_SHUTTLE_SEED", now.as_nanos() as u64);
    let iterations = setting("FERRONICKEL_SHUTTLE_ITERATIONS", 400) as usize;
    println!("FERRONICKEL_SHUTTLE_SEED={seed} FERRONICKEL_SHUTTLE_ITERATIONS={iterations}");
    let scheduler = RandomScheduler::new_from_seed(seed, iterations);
    let mut config = shuttle::Config::new();
    config.max_steps = shuttle::MaxSteps::FailAfter(10_000_000);
    shuttle::Runner::new(scheduler, config).run(move || {
        // shuttle's own source, so that a schedule repeats its calls as well
        model(&mut Random(shuttle::rand::thread_rng().gen_range(0..u64::MAX)));
    });
}

fn sequences<K: LineKind>() {
    explore(|random| Communicator::random::<K>(random, 10).run::<K>(None));
}

fn aborted<K: LineKind>() {
    explore(|random| {
        let turns = random.below(2000);
        Communicator::random::<K>(random, 6).run::<K>(Some(turns));
    });
}

#[test]
fn sequences_in_halves() {
    sequences::<Halves>();
}

#[test]
fn sequences_in_cache_lines() {
    sequences::<CacheLine>();
}

#[test]
fn aborted_in_halves() {
    aborted::<Halves>();
}

#[test]
fn aborted_in_cache_lines() {
    aborted::<CacheLine>();
}
