//! One call of a communicator: every rank's buffers, and the check of what became of them.

use crate::buffer::Buffer;
use crate::erased::call;
use crate::rank::{ALGORITHMS, Algorithm, Collective, Data, Rank};
use crate::value::{OPS, Op, Random, Value, expected, sample, sample_scalar};
use ferronickel_kernels::block::{Block, Stop};
use ferronickel_kernels::element::{Bf16, F8E4m3, F8E5m2, F16};
use ferronickel_kernels::reduce::{Avg, Max, Min, PreMulSum, Prod, Sum};

/// What is called.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What.
    pub what: Collective,
    /// How.
    pub how: Algorithm,
    /// Which operation.
    pub op: Op,
    /// How many elements: that all reduce, that the root gives, that one rank sends to another.
    pub count: usize,
    /// Where elements and alignments come from.
    pub seed: u64,
}

impl Call {
    /// Parts of one rank's elements, and of its results.
    fn parts(&self, ranks: usize) -> (usize, usize) {
        match self.what {
            Collective::AllGather => (1, ranks),
            Collective::ReduceScatter => (ranks, 1),
            Collective::AllToAll => (ranks, ranks),
            _ => (1, 1),
        }
    }
}

/// A call on elements of one type.
pub struct Job<E> {
    call: Call,
    parts: Vec<Part>,
    inputs: Vec<Vec<E>>,
    /// What each rank multiplies its elements with, where the operation says so.
    scalars: Vec<E>,
}

struct Part {
    send: Buffer,
    /// None in place: then `send` is as long as the longer of the two.
    receive: Option<Buffer>,
}

impl<E: Value> Job<E> {
    /// Buffers with random elements: some in place, some one element off alignment.
    pub fn new(call: Call, ranks: usize) -> Self {
        let mut random = Random(call.seed);
        let mut inputs = Vec::new();
        let (given, got) = call.parts(ranks);
        let parts = (0..ranks).map(|rank| {
            let in_place = call.what != Collective::AllToAll && random.next() & 1 == 0;
            let mut buffer = |parts: usize| {
                Buffer::new(parts * call.count * size_of::<E>(), (random.next() & 1) as usize * size_of::<E>())
            };
            let (send, receive) = match in_place {
                true => (buffer(given.max(got)), None),
                false => (buffer(given), Some(buffer(got))),
            };
            let input: Vec<E> = (0..given * call.count).map(|_| sample(&mut random, call.op, ranks)).collect();
            let start = if in_place && got > given { rank * call.count } else { 0 };
            for (i, &element) in input.iter().enumerate() {
                send.set(start + i, element);
            }
            inputs.push(input);
            Part { send, receive }
        });
        let parts = parts.collect();
        let scalars = (0..ranks).map(|_| sample_scalar(&mut random, ranks)).collect();
        Job { call, parts, inputs, scalars }
    }

    /// Does one rank's part.
    pub fn run<B: Block>(&self, rank: &mut Rank<B>) -> Result<(), Stop> {
        let Part { send, receive } = &self.parts[rank.rank];
        let (given, got) = self.call.parts(self.parts.len());
        let own = rank.rank * self.call.count;
        let at = |buffer: &Buffer, element: usize| buffer.start().cast::<E>().wrapping_add(element);
        let (send, receive) = match receive {
            Some(receive) => (at(send, 0), at(receive, 0)),
            None if got > given => (at(send, own), at(send, 0)),
            None if given > got => (at(send, 0), at(send, own)),
            None => (at(send, 0), at(send, 0)),
        };
        let data = Data { send: send.cast_const(), receive, count: self.call.count };
        let Call { what, how, seed: number, .. } = self.call;
        let ranks = self.parts.len() as u32;
        // SAFETY: the buffers hold the elements, and outlive every rank's work on them
        unsafe {
            match self.call.op {
                Op::Sum => call(rank, what, how, Sum, data, number),
                Op::Prod => call(rank, what, how, Prod, data, number),
                Op::Min => call(rank, what, how, Min, data, number),
                Op::Max => call(rank, what, how, Max, data, number),
                Op::Avg => call(rank, what, how, Avg { ranks }, data, number),
                Op::PreMulSum => call(rank, what, how, PreMulSum { scalar: self.scalars[rank.rank] }, data, number),
            }
        }
    }

    /// Overwrites a rank's own elements where they are not its results: others must not read them any more.
    #[allow(dead_code)] // only where something is lent
    pub fn scribble(&self, rank: usize) {
        let Part { send, receive } = &self.parts[rank];
        if receive.is_some() {
            // SAFETY: the buffer is this rank's, and its call is over
            unsafe {
                send.start().write_bytes(0xee, send.bytes());
                let elements = &self.inputs[rank];
                std::ptr::copy_nonoverlapping(elements.as_ptr(), send.start().cast(), elements.len());
            }
        }
    }

    /// What `rank` should have at element `i` of its results; None if it has none.
    fn expected(&self, rank: usize, i: usize) -> Option<E> {
        let count = self.call.count;
        let reduced = |i: usize| {
            let elements: Vec<E> = self.inputs.iter().map(|input| input[i]).collect();
            expected(self.call.op, &elements, &self.scalars)
        };
        match self.call.what {
            Collective::AllReduce => Some(reduced(i)),
            Collective::Broadcast(root) => Some(self.inputs[root][i]),
            Collective::Reduce(root) => (rank == root).then(|| reduced(i)),
            Collective::AllGather => Some(self.inputs[i / count][i % count]),
            Collective::ReduceScatter => Some(reduced(rank * count + i)),
            Collective::AllToAll => Some(self.inputs[i / count][rank * count + i % count]),
        }
    }

    /// Checks what a rank that has done its part got, once nobody works any more.
    pub fn check(&self, rank: usize) {
        let Part { send, receive } = &self.parts[rank];
        let (given, got) = self.call.parts(self.parts.len());
        let (results, start) = match receive {
            Some(receive) => (receive, 0),
            None => (send, if given > got { rank * self.call.count } else { 0 }),
        };
        for i in 0..got * self.call.count {
            if let Some(want) = self.expected(rank, i) {
                let (got, call): (E, _) = (results.get(start + i), self.call);
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "rank {rank}, element {i} of {call:?}: {got:?}, not {want:?}"
                );
            }
        }
        if receive.is_some() {
            for (i, element) in self.inputs[rank].iter().enumerate() {
                assert_eq!(send.get::<E>(i).to_bits(), element.to_bits(), "rank {rank}'s own elements changed");
            }
        }
    }

    /// Checks that nothing was written where nothing belongs.
    pub fn check_guards(&self) {
        for (rank, part) in self.parts.iter().enumerate() {
            assert!(part.send.is_intact(), "bytes around rank {rank}'s elements changed: {:?}", self.call);
            let intact = part.receive.as_ref().is_none_or(Buffer::is_intact);
            assert!(intact, "bytes around rank {rank}'s results changed: {:?}", self.call);
        }
    }
}

/// The algorithms that do a collective; over links where there are several ranks.
pub fn algorithms_for(what: Collective) -> Vec<Algorithm> {
    use Algorithm::{FlatLl, FlatSimple, OneShotLl, OneShotSimple, RingLl, RingSimple, TreeLl, TreeSimple};
    let over_links = [RingLl, RingSimple, FlatLl, FlatSimple, TreeLl, TreeSimple];
    match what {
        Collective::AllReduce => ALGORITHMS.to_vec(),
        Collective::Broadcast(_) | Collective::Reduce(_) => over_links.to_vec(),
        Collective::AllGather | Collective::ReduceScatter => [&[OneShotLl, OneShotSimple], &over_links[..]].concat(),
        Collective::AllToAll => vec![OneShotLl, OneShotSimple],
    }
}

macro_rules! any_jobs {
    ($($name:ident: $t:ty;)*) => {
        /// A call on elements of any type.
        pub enum AnyJob {
            $(#[allow(missing_docs)] $name(Job<$t>),)*
        }

        impl AnyJob {
            /// A call of anything, on up to `most` elements, where no more than `capacity` bytes go in one shot.
            pub fn random(random: &mut Random, ranks: usize, capacity: usize, most: usize) -> Self {
                let root = random.below(ranks);
                let what = match random.below(8) {
                    _ if ranks == 1 => Collective::AllReduce,
                    0 => Collective::Broadcast(root),
                    1 => Collective::Reduce(root),
                    2 => Collective::AllGather,
                    3 => Collective::ReduceScatter,
                    4 => Collective::AllToAll,
                    _ => Collective::AllReduce,
                };
                let how = random.pick(&algorithms_for(what));
                let (op, seed) = (random.pick(&OPS), random.next());
                let make = random.pick(&[$(
                    |call: Call, ranks: usize| AnyJob::$name(Job::new(call, ranks)),
                )*] as &[fn(Call, usize) -> Self]);
                // eight bytes are the largest element
                let most = if how.is_one_shot() { most.min(capacity / 8) } else { most };
                let count = random.below(most + 1);
                make(Call { what, how, op, count, seed }, ranks)
            }

            /// See [`Job::run`].
            pub fn run<B: Block>(&self, rank: &mut Rank<B>) -> Result<(), Stop> {
                match self {
                    $(AnyJob::$name(job) => job.run(rank),)*
                }
            }

            /// See [`Job::check`].
            pub fn check(&self, rank: usize) {
                match self {
                    $(AnyJob::$name(job) => job.check(rank),)*
                }
            }

            /// See [`Job::check_guards`].
            pub fn check_guards(&self) {
                match self {
                    $(AnyJob::$name(job) => job.check_guards(),)*
                }
            }
        }
    };
}

any_jobs! {
    I8: i8;
    U8: u8;
    I32: i32;
    U32: u32;
    I64: i64;
    U64: u64;
    F32: f32;
    F64: f64;
    Half: F16;
    Brain: Bf16;
    E4m3: F8E4m3;
    E5m2: F8E5m2;
}
