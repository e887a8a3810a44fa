//! The collectives that are measured: by the names of nccl-tests, what each rank gives and gets, and what that means for
//! bandwidths.

use ferronickel::{Communicator, DeviceBuffer, Error, RedOp, Stream, group};

use super::calls::Collective;
use super::data::{Recipe, Value};
use super::kind::Op;

/// A collective of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AllReduce,
    AllGather,
    Broadcast,
    Reduce,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    /// Each rank sends to the next.
    SendRecv,
    /// All-gather in steps: with each, ranks exchange what they have with one that is twice as far away.
    Hypercube,
}

/// Elements of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What the table calls the count: that all reduce, or that one rank sends to another.
    pub count: usize,
    pub send: usize,
    pub receive: usize,
}

/// How a call reduces, and which rank is its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub op: Op,
    pub root: usize,
}

impl Kind {
    #[cfg(test)]
    pub const ALL: [Kind; 10] = [
        Kind::AllReduce,
        Kind::AllGather,
        Kind::Broadcast,
        Kind::Reduce,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::Gather,
        Kind::Scatter,
        Kind::SendRecv,
        Kind::Hypercube,
    ];

    /// The name of nccl-tests' program.
    pub const fn program(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce_perf",
            Kind::AllGather => "all_gather_perf",
            Kind::Broadcast => "broadcast_perf",
            Kind::Reduce => "reduce_perf",
            Kind::ReduceScatter => "reduce_scatter_perf",
            Kind::AllToAll => "alltoall_perf",
            Kind::Gather => "gather_perf",
            Kind::Scatter => "scatter_perf",
            Kind::SendRecv => "sendrecv_perf",
            Kind::Hypercube => "hypercube_perf",
        }
    }

    pub const fn reduces(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter)
    }

    pub const fn has_root(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter)
    }

    /// Whether the result may replace the input. nccl-tests runs the others in place too, and checks nothing then.
    pub const fn has_in_place(self) -> bool {
        !matches!(self, Kind::AllToAll | Kind::SendRecv)
    }

    /// Whether every rank that gets something gets the same.
    const fn is_alike(self) -> bool {
        !matches!(self, Kind::ReduceScatter | Kind::AllToAll | Kind::Scatter | Kind::SendRecv)
    }

    /// Whether `rank` gets anything.
    pub fn gets(self, rank: usize, root: usize) -> bool {
        !matches!(self, Kind::Reduce | Kind::Gather) || rank == root
    }

    /// The elements of a call whose larger buffer has `bytes` bytes at most.
    pub fn shape(self, bytes: u64, element: usize, ranks: usize) -> Shape {
        let all = (bytes / element as u64) as usize;
        // each rank's part is whole packs of 16 bytes
        let part = (all / ranks) & !(16 / element - 1);
        match self {
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv => {
                Shape { count: all, send: all, receive: all }
            }
            Kind::AllGather | Kind::Gather | Kind::Hypercube => {
                Shape { count: part, send: part, receive: part * ranks }
            }
            Kind::ReduceScatter | Kind::Scatter => Shape { count: part, send: part * ranks, receive: part },
            Kind::AllToAll => Shape { count: part, send: part * ranks, receive: part * ranks },
        }
    }

    /// Bytes per second as GB/s: the algorithm's bandwidth, and what it means on each rank's link.
    pub fn bandwidth(self, count: u64, element: u64, ranks: u64, seconds: f64) -> (f64, f64) {
        let peers = ranks as f64 - 1.0;
        let (times, factor) = match self {
            Kind::AllReduce => (1.0, 2.0 * peers / ranks as f64),
            Kind::Broadcast | Kind::Reduce | Kind::SendRecv => (1.0, 1.0),
            Kind::Hypercube => (peers, 1.0),
            Kind::AllGather | Kind::ReduceScatter | Kind::Gather | Kind::Scatter | Kind::AllToAll => {
                (ranks as f64, peers / ranks as f64)
            }
        };
        let bytes = (count * element) as f64 * times;
        let algorithm = if bytes == 0.0 { 0.0 } else { bytes / 1e9 / seconds };
        (algorithm, algorithm * factor)
    }

    /// Cuts a rank's buffers for one call from element `start` on.
    pub fn cut<T: Value>(
        self,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        start: usize,
        shape: Shape,
        in_place: bool,
        rank: usize,
    ) -> Result<(DeviceBuffer<T>, DeviceBuffer<T>), Error> {
        let Shape { count, send: sent, receive: received } = shape;
        if !in_place {
            return Ok((send.slice(start..start + sent)?, receive.slice(start..start + received)?));
        }
        let whole = receive.slice(start..start + sent.max(received))?;
        let own = rank * count..(rank + 1) * count;
        Ok(match sent.cmp(&received) {
            std::cmp::Ordering::Less => (whole.slice(own)?, whole),
            std::cmp::Ordering::Equal => (whole.clone(), whole),
            std::cmp::Ordering::Greater => {
                let part = whole.slice(own)?;
                (whole, part)
            }
        })
    }
}

/// What is right in a call.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    pub kind: Kind,
    pub recipe: Recipe,
    pub root: usize,
    pub count: usize,
}

impl Right {
    /// Whether what is right for one rank is right for all.
    pub fn is_alike(&self) -> bool {
        self.kind.is_alike()
    }

    /// What `rank` must get, from element `first` of its results on.
    pub fn expected<T: Value>(&self, rank: usize, first: usize, out: &mut [T]) {
        let Right { kind, recipe, root, count } = *self;
        if kind.reduces() {
            let part = if kind == Kind::ReduceScatter { rank * count } else { 0 };
            return recipe.expected((part + first) as u64, out);
        }
        let ranks = recipe.ranks as usize;
        let mut done = 0;
        while done < out.len() {
            let i = first + done;
            // whose element it is, and how many follow it from there
            let (from, index, run) = match kind {
                Kind::Broadcast => (root, i, usize::MAX),
                Kind::Scatter => (root, rank * count + i, usize::MAX),
                Kind::SendRecv => ((rank + ranks - 1) % ranks, i, usize::MAX),
                Kind::AllToAll => (i / count, rank * count + i % count, count - i % count),
                _ => (i / count, i % count, count - i % count),
            };
            let run = run.min(out.len() - done);
            recipe.inputs(from as u64, index as u64, &mut out[done..done + run]);
            done += run;
        }
    }
}

/// What the library does.
pub struct Library(pub Kind);

impl Collective for Library {
    fn start<T: Value>(
        &self,
        communicator: &Communicator,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        Task { op, root }: Task,
        stream: &Stream,
    ) -> Result<(), Error> {
        let (c, op) = (communicator, RedOp::from(op));
        match self.0 {
            Kind::AllReduce => c.all_reduce::<T>(send, receive, op, stream),
            Kind::AllGather => c.all_gather(send, receive, stream),
            Kind::Broadcast => c.broadcast(Some(send), receive, root, stream),
            Kind::Reduce => c.reduce::<T>(send, Some(receive), op, root, stream),
            Kind::ReduceScatter => c.reduce_scatter::<T>(send, receive, op, stream),
            Kind::AllToAll => c.all_to_all(send, receive, stream),
            Kind::Gather => c.gather(send, Some(receive), root, stream),
            Kind::Scatter => c.scatter(Some(send), receive, root, stream),
            Kind::SendRecv => {
                let (rank, size) = (c.rank(), c.size());
                group(|| {
                    c.send(send, (rank + 1) % size, stream)?;
                    c.receive(receive, (rank + size - 1) % size, stream)
                })
            }
            Kind::Hypercube => hypercube(c, send, receive, stream),
        }
    }
}

fn hypercube<T: Value>(
    c: &Communicator,
    send: &DeviceBuffer<T>,
    receive: &DeviceBuffer<T>,
    stream: &Stream,
) -> Result<(), Error> {
    let (rank, size, count) = (c.rank(), c.size(), send.len());
    let own = receive.slice(rank * count..(rank + 1) * count)?;
    if own.as_ptr() != send.as_ptr() {
        group(|| {
            c.send(send, rank, stream)?;
            c.receive(&own, rank, stream)
        })?;
    }
    let mut width = 1;
    while width < size {
        let part = |rank: usize| {
            let first = rank / width * width;
            receive.slice(first * count..(first + width) * count)
        };
        let peer = rank ^ width;
        let (mine, theirs) = (part(rank)?, part(peer)?);
        group(|| {
            c.send(&mine, peer, stream)?;
            c.receive(&theirs, peer, stream)
        })?;
        width *= 2;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_nccl_tests() {
        let shape = |kind: Kind, bytes| kind.shape(bytes, 4, 3);
        assert_eq!(shape(Kind::AllReduce, 1000), Shape { count: 250, send: 250, receive: 250 });
        // 83 elements a rank, in packs of four
        assert_eq!(shape(Kind::AllGather, 1000), Shape { count: 80, send: 80, receive: 240 });
        assert_eq!(shape(Kind::Scatter, 1000), Shape { count: 80, send: 240, receive: 80 });
        assert_eq!(shape(Kind::AllToAll, 8), Shape { count: 0, send: 0, receive: 0 });
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let close = |(algorithm, bus): (f64, f64), expected: (f64, f64)| {
            assert!((algorithm - expected.0).abs() < 0.01 && (bus - expected.1).abs() < 0.01, "{algorithm} {bus}");
        };
        close(Kind::AllReduce.bandwidth(134_217_728 / 4, 4, 2, 6139.29e-6), (21.86, 21.86));
        close(Kind::AllReduce.bandwidth(1 << 28, 4, 4, 0.01), (107.37, 161.06));
        close(Kind::AllGather.bandwidth(1 << 26, 4, 4, 0.01), (107.37, 80.53));
        close(Kind::Broadcast.bandwidth(1 << 28, 4, 4, 0.01), (107.37, 107.37));
        close(Kind::Hypercube.bandwidth(1 << 26, 4, 4, 0.01), (80.53, 80.53));
        assert_eq!(Kind::AllReduce.bandwidth(2, 4, 1, 1e-6).1, 0.0);
        assert_eq!(Kind::AllToAll.bandwidth(0, 4, 2, 0.0), (0.0, 0.0));
    }

    #[test]
    fn what_is_moved_comes_from_where_it_was() {
        let recipe = Recipe { seed: 9, op: Op::Max, ranks: 3 };
        let input = |rank: u64, i: u64| i64::input(recipe, i, rank);
        let expected = |kind: Kind, rank: usize, first: usize| {
            let mut out = [0_i64; 4];
            Right { kind, recipe, root: 2, count: 5 }.expected(rank, first, &mut out);
            out
        };
        assert_eq!(expected(Kind::AllGather, 0, 3), [input(0, 3), input(0, 4), input(1, 0), input(1, 1)]);
        assert_eq!(expected(Kind::AllToAll, 1, 4), [input(0, 9), input(1, 5), input(1, 6), input(1, 7)]);
        assert_eq!(expected(Kind::Scatter, 1, 0), [input(2, 5), input(2, 6), input(2, 7), input(2, 8)]);
        assert_eq!(expected(Kind::Broadcast, 0, 1), [input(2, 1), input(2, 2), input(2, 3), input(2, 4)]);
        assert_eq!(expected(Kind::SendRecv, 0, 0)[0], input(2, 0));
        let mut sums = [0_i64; 2];
        let recipe = Recipe { op: Op::Sum, ..recipe };
        Right { kind: Kind::ReduceScatter, recipe, root: 0, count: 5 }.expected(2, 1, &mut sums);
        assert_eq!(sums, [i64::expected(recipe, 11), i64::expected(recipe, 12)]);
    }
}
