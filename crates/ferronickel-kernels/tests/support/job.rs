//! One all-reduce of a communicator: every rank's buffers, and the check of what became of them.

use crate::buffer::Buffer;
use crate::rank::{ALGORITHMS, Algorithm, Data, Rank};
use crate::value::{OPS, Op, Random, Value, expected, sample, sample_scalar};
use ferronickel_kernels::block::{Block, Stop};
use ferronickel_kernels::element::{Bf16, F8E4m3, F8E5m2, F16};
use ferronickel_kernels::reduce::{Avg, Max, Min, PreMulSum, Prod, Sum};

/// What is called.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// How.
    pub how: Algorithm,
    /// Which operation.
    pub op: Op,
    /// How many elements.
    pub count: usize,
    /// Where elements and alignments come from.
    pub seed: u64,
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
    /// None in place.
    receive: Option<Buffer>,
}

impl<E: Value> Job<E> {
    /// Buffers with random elements: some in place, some one element off alignment.
    pub fn new(call: Call, ranks: usize) -> Self {
        let mut random = Random(call.seed);
        let mut inputs = Vec::new();
        let parts = (0..ranks).map(|_| {
            let mut buffer = || Buffer::new(call.count * size_of::<E>(), (random.next() & 1) as usize * size_of::<E>());
            let (send, receive) = (buffer(), buffer());
            let receive = (random.next() & 1 == 0).then_some(receive);
            let input: Vec<E> = (0..call.count).map(|_| sample(&mut random, call.op, ranks)).collect();
            for (i, &element) in input.iter().enumerate() {
                send.set(i, element);
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
        let receive = receive.as_ref().unwrap_or(send).start().cast::<E>();
        let data = Data { send: send.start().cast::<E>().cast_const(), receive, count: self.call.count };
        let (how, call, ranks) = (self.call.how, self.call.seed, self.parts.len() as u32);
        // SAFETY: the buffers hold the elements, and outlive every rank's work on them
        unsafe {
            match self.call.op {
                Op::Sum => rank.all_reduce(how, Sum, data, call),
                Op::Prod => rank.all_reduce(how, Prod, data, call),
                Op::Min => rank.all_reduce(how, Min, data, call),
                Op::Max => rank.all_reduce(how, Max, data, call),
                Op::Avg => rank.all_reduce(how, Avg { ranks }, data, call),
                Op::PreMulSum => rank.all_reduce(how, PreMulSum { scalar: self.scalars[rank.rank] }, data, call),
            }
        }
    }

    /// Checks what a rank that has done its part got, once nobody works any more.
    pub fn check(&self, rank: usize) {
        let Part { send, receive } = &self.parts[rank];
        for i in 0..self.call.count {
            let elements: Vec<E> = self.inputs.iter().map(|input| input[i]).collect();
            let got: E = receive.as_ref().unwrap_or(send).get(i);
            let want = expected(self.call.op, &elements, &self.scalars);
            let call = self.call;
            assert_eq!(got.to_bits(), want.to_bits(), "rank {rank}, element {i} of {call:?}: {elements:?} to {got:?}");
            if receive.is_some() {
                assert_eq!(send.get::<E>(i).to_bits(), elements[rank].to_bits(), "rank {rank}'s own elements changed");
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

macro_rules! any_jobs {
    ($($name:ident: $t:ty;)*) => {
        /// A call on elements of any type.
        pub enum AnyJob {
            $(#[allow(missing_docs)] $name(Job<$t>),)*
        }

        impl AnyJob {
            /// A call of anything, on up to `most` elements, where no more than `capacity` bytes go in one shot.
            pub fn random(random: &mut Random, ranks: usize, capacity: usize, most: usize) -> Self {
                let how = random.pick(&ALGORITHMS);
                let (op, seed) = (random.pick(&OPS), random.next());
                let make = random.pick(&[$(
                    |call: Call, ranks: usize| AnyJob::$name(Job::new(call, ranks)),
                )*] as &[fn(Call, usize) -> Self]);
                // eight bytes are the largest element
                let most = if how.is_one_shot() { most.min(capacity / 8) } else { most };
                let count = random.below(most + 1);
                make(Call { how, op, count, seed }, ranks)
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
