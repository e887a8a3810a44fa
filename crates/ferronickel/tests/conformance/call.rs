//! One call of every rank: its buffers, poisoned and guarded, and the check of what became of them.

use std::ops::Range;

use ferronickel::{DeviceBuffer, Operation, RedOp, Result, group};

use crate::random::Random;
use crate::reference::{Op, Value, is_right, sample};
use crate::world::{Rank, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collective {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    /// Every rank sends to the next, and to itself.
    SendReceive,
}

impl Collective {
    pub const ALL: [Collective; 9] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
        Collective::SendReceive,
    ];

    /// Whether the settings leave it an algorithm: a call is refused before it is queued otherwise.
    pub fn is_possible(self, rank: &Rank) -> bool {
        let case = Case { collective: self, op: Op::Sum, count: 1, in_place: false, shift: 0, root: 0, seed: 0 };
        let size = rank.communicator.size();
        let part = Part::<i32>::new(rank, &case, size, 0);
        // a group that is given up queues nothing
        let mut allowed = false;
        let _ = group(|| {
            part.call(rank, &case)?;
            allowed = true;
            Err(rank.communicator.device().alloc::<u64>(usize::MAX).unwrap_err())
        });
        allowed
    }

    /// Parts of the count that a rank gives, and that it gets.
    fn parts(self, ranks: usize, is_root: bool) -> (usize, usize) {
        match self {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => (1, 1),
            Collective::AllGather => (1, ranks),
            Collective::ReduceScatter => (ranks, 1),
            Collective::AllToAll => (ranks, ranks),
            Collective::Gather => (1, if is_root { ranks } else { 1 }),
            Collective::Scatter => (if is_root { ranks } else { 1 }, 1),
            Collective::SendReceive => (2, 2),
        }
    }

    fn has_in_place(self) -> bool {
        !matches!(self, Collective::AllToAll | Collective::SendReceive)
    }
}

/// A call, but for its type.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub collective: Collective,
    pub op: Op,
    pub count: usize,
    pub in_place: bool,
    /// By how many elements buffers begin off alignment.
    pub shift: usize,
    pub root: usize,
    pub seed: u64,
}

/// Elements before and after what a call may touch.
const GUARD: usize = 65;
/// Bytes of elements that nobody wrote.
const POISON: u8 = 0xa5;

/// A rank's buffers.
struct Part<T> {
    /// The elements it gives.
    input: Vec<T>,
    scalar: T,
    whole_send: DeviceBuffer<T>,
    whole_receive: DeviceBuffer<T>,
    send: DeviceBuffer<T>,
    receive: DeviceBuffer<T>,
    /// Where the results lie in the whole buffer.
    results: Range<usize>,
    in_place: bool,
}

fn poisoned<T: Value>(count: usize) -> Vec<T> {
    let bytes = u64::from_ne_bytes([POISON; 8]);
    // SAFETY: every pattern is an element, and none is longer than eight bytes
    vec![unsafe { std::mem::transmute_copy::<u64, T>(&bytes) }; count]
}

impl<T: Value> Part<T> {
    fn new(rank: &Rank, case: &Case, ranks: usize, number: usize) -> Part<T> {
        let (given, got) = case.collective.parts(ranks, number == case.root);
        let mut random = Random(case.seed ^ (number as u64).wrapping_mul(0x1234_5678_9abc_def1));
        let input: Vec<T> = (0..given * case.count).map(|_| sample(&mut random, case.op)).collect();
        let scalar = sample(&mut random, case.op);
        let in_place = case.in_place && case.collective.has_in_place();
        let device = rank.communicator.device();
        let start = GUARD + case.shift;
        let buffer = |parts: usize| {
            let buffer = device.alloc::<T>(start + parts * case.count + GUARD).unwrap();
            buffer.copy_from_host(&poisoned(buffer.len())).unwrap();
            buffer
        };
        let own = start + number * case.count;
        let (whole_send, whole_receive, send_at, receive_at) = if in_place {
            let whole = buffer(given.max(got));
            let (send_at, receive_at) = match given.cmp(&got) {
                std::cmp::Ordering::Less => (own, start),
                std::cmp::Ordering::Equal => (start, start),
                std::cmp::Ordering::Greater => (start, own),
            };
            (whole.clone(), whole, send_at, receive_at)
        } else {
            (buffer(given), buffer(got), start, start)
        };
        let send = whole_send.slice(send_at..send_at + given * case.count).unwrap();
        send.copy_from_host(&input).unwrap();
        let results = receive_at..receive_at + got * case.count;
        let receive = whole_receive.slice(results.clone()).unwrap();
        Part { input, scalar, whole_send, whole_receive, send, receive, results, in_place }
    }

    fn call(&self, rank: &Rank, case: &Case) -> Result<()> {
        let (c, stream, root) = (&rank.communicator, &rank.stream, case.root);
        let (send, receive) = (&self.send, &self.receive);
        let op = || match case.op {
            Op::Sum => RedOp::Sum.into(),
            Op::Prod => RedOp::Prod.into(),
            Op::Min => RedOp::Min.into(),
            Op::Max => RedOp::Max.into(),
            Op::Avg => RedOp::Avg.into(),
            Op::PreMulSum => Operation::scaled(self.scalar),
        };
        match case.collective {
            Collective::AllReduce => c.all_reduce(send, receive, op(), stream),
            Collective::Broadcast => c.broadcast(Some(send), receive, root, stream),
            Collective::Reduce => c.reduce(send, Some(receive), op(), root, stream),
            Collective::AllGather => c.all_gather(send, receive, stream),
            Collective::ReduceScatter => c.reduce_scatter(send, receive, op(), stream),
            Collective::AllToAll => c.all_to_all(send, receive, stream),
            Collective::Gather => c.gather(send, Some(receive), root, stream),
            Collective::Scatter => c.scatter(Some(send), receive, root, stream),
            Collective::SendReceive => {
                let (rank, size, count) = (c.rank(), c.size(), case.count);
                let halves = |buffer: &DeviceBuffer<T>| -> Result<_> {
                    Ok((buffer.slice(0..count)?, buffer.slice(count..2 * count)?))
                };
                let ((to_next, to_self), (from_previous, from_self)) = (halves(send)?, halves(receive)?);
                c.send(&to_next, (rank + 1) % size, stream)?;
                c.receive(&from_previous, (rank + size - 1) % size, stream)?;
                c.send(&to_self, rank, stream)?;
                c.receive(&from_self, rank, stream)
            }
        }
    }
}

/// Makes a call and gives the bits of what every rank has then.
pub fn results<T: Value>(world: &World, case: &Case) -> Vec<Vec<u64>> {
    let parts = run::<T>(world, case);
    let bits = |part: &Part<T>| part.receive.to_vec().unwrap().into_iter().map(Value::bits).collect();
    parts.iter().map(bits).collect()
}

fn run<T: Value>(world: &World, case: &Case) -> Vec<Part<T>> {
    let ranks = world.ranks.len();
    let parts: Vec<_> =
        world.ranks.iter().enumerate().map(|(number, rank)| Part::<T>::new(rank, case, ranks, number)).collect();
    let called = group(|| world.ranks.iter().zip(&parts).try_for_each(|(rank, part)| part.call(rank, case)));
    called.unwrap_or_else(|error| panic!("{case:?} of {}: {error}", T::DATA_TYPE));
    for rank in &world.ranks {
        rank.stream.synchronize().unwrap_or_else(|error| panic!("{case:?} of {}: {error}", T::DATA_TYPE));
    }
    parts
}

/// Makes a call and checks every byte of every buffer.
pub fn check<T: Value>(world: &World, case: &Case) {
    let parts = run::<T>(world, case);
    let poison = poisoned::<T>(1)[0].bits();
    for (rank, part) in parts.iter().enumerate() {
        let place = || format!("rank {rank} of {}, {case:?} of {}", parts.len(), T::DATA_TYPE);
        let whole = part.whole_receive.to_vec().unwrap();
        for (at, &got) in whole.iter().enumerate() {
            if part.results.contains(&at) {
                let i = at - part.results.start;
                assert!(is_expected(case, &parts, rank, i, got), "{}: element {i} is {got:?}", place());
            } else if !part.in_place {
                assert_eq!(got.bits(), poison, "{}: something was written at {at}", place());
            }
        }
        let send = part.whole_send.to_vec().unwrap();
        let guards = [&send[..GUARD + case.shift], &send[send.len() - GUARD..]];
        assert!(guards.into_iter().flatten().all(|e| e.bits() == poison), "{}: a guard was overwritten", place());
        if !part.in_place {
            let same = part.send.to_vec().unwrap().iter().zip(&part.input).all(|(a, b)| a.bits() == b.bits());
            assert!(same, "{}: what was sent has changed", place());
        }
    }
}

/// Whether `got` may be element `i` of the results of `rank`.
fn is_expected<T: Value>(case: &Case, parts: &[Part<T>], rank: usize, i: usize, got: T) -> bool {
    let (count, ranks) = (case.count, parts.len());
    let reduced = |i: usize| {
        let elements: Vec<_> = parts.iter().map(|part| part.input[i]).collect();
        let scalars: Vec<_> = parts.iter().map(|part| part.scalar).collect();
        is_right(case.op, &elements, &scalars, got)
    };
    let is = |from: usize, i: usize| parts[from].input[i].bits() == got.bits();
    // where a rank gets nothing its buffer is as it was
    let untouched = || if parts[rank].in_place { is(rank, i) } else { got.bits() == poisoned::<T>(1)[0].bits() };
    match case.collective {
        Collective::AllReduce => reduced(i),
        Collective::Broadcast => is(case.root, i),
        Collective::Reduce if rank == case.root => reduced(i),
        Collective::AllGather => is(i / count, i % count),
        Collective::ReduceScatter => reduced(rank * count + i),
        Collective::AllToAll => is(i / count, rank * count + i % count),
        Collective::Gather if rank == case.root => is(i / count, i % count),
        Collective::Scatter => is(case.root, rank * count + i),
        Collective::SendReceive if i < count => is((rank + ranks - 1) % ranks, i),
        Collective::SendReceive => is(rank, i),
        Collective::Reduce | Collective::Gather => untouched(),
    }
}
