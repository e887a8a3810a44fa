//! A launch: one call of one rank, ready to run on a stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ferronickel_kernels::block::Stop;

use super::Use;
use super::context::RankContext;
use super::host::block::LOOK_EVERY;
use super::host::kernels;
use super::host::wait::{self, Backoff};
use super::progress::{Failure, StartWatch};
use super::work::Work;
use crate::diagnostics::log;
use crate::error::{Error, ErrorKind, Result};

/// A call of a rank, or messages that it sends and receives together.
pub(crate) struct Launch {
    pub context: Arc<RankContext>,
    pub work: Work,
    /// The launch's number on this rank, from one.
    pub turn: u64,
    /// How many collectives the communicator has begun, this one included.
    pub epoch: u64,
    /// The call's description; of an exchange, its first message's.
    pub call: u64,
    /// Keeps the buffers until the call is done.
    pub _uses: Uses,
}

/// Buffers that a launch holds: a collective has at most two, an exchange any number.
#[derive(Debug)]
pub(crate) enum Uses {
    Few([Option<Use>; 3]),
    Many(Vec<Use>),
}

impl Uses {
    fn iter(&self) -> impl Iterator<Item = &Use> {
        let (few, many) = match self {
            Uses::Few(few) => (&few[..], &[][..]),
            Uses::Many(many) => (&[][..], &many[..]),
        };
        few.iter().flatten().chain(many)
    }
}

impl IntoIterator for Uses {
    type Item = Use;
    type IntoIter = Box<dyn Iterator<Item = Use>>;

    fn into_iter(self) -> Self::IntoIter {
        match self {
            Uses::Few(few) => Box::new(few.into_iter().flatten()),
            Uses::Many(many) => Box::new(many.into_iter()),
        }
    }
}

// SAFETY: the buffers are held by `_uses`, or by the caller's promise where pointers came raw
unsafe impl Send for Launch {}

impl Launch {
    /// Runs the call on this thread, until it is done or the communicator must stop.
    pub fn run(&self) -> Result<()> {
        if self.await_turn().and_then(|()| self.run_in_turn()).is_ok() {
            return Ok(());
        }
        // A peer may be in a kernel that still writes this rank's buffers.
        let mut backoff = Backoff::new();
        if self.context.progress.quiesce(self.context.rank, || backoff.wait()) {
            // a stopped process may wake up and go on where it was
            self._uses.iter().for_each(Use::quarantine);
        }
        Err(self.failure())
    }

    /// Calls of one communicator run in the order in which they were made, on whatever stream each is.
    fn await_turn(&self) -> std::result::Result<(), Stop> {
        let (RankContext { progress, rank, spins, .. }, mut turns) = (&*self.context, 0u32);
        let mut watch = StartWatch::default();
        while !progress.is_turn_of(*rank, self.turn) {
            if progress.stopped() {
                // not `leave`: an earlier call of this rank may still be inside
                progress.skip(*rank);
                return Err(Stop::Aborted);
            }
            turns = turns.saturating_add(1);
            if turns > *spins && turns.is_multiple_of(LOOK_EVERY) {
                watch.look(progress, *rank).iter().for_each(|line| log::announce(line));
            }
            wait::turn(turns, *spins);
        }
        Ok(())
    }

    fn run_in_turn(&self) -> std::result::Result<(), Stop> {
        let RankContext { progress, rank, proxy, .. } = &*self.context;
        // messages are between two ranks: the others have no such call
        let call = matches!(self.work, Work::Collective(_)).then_some((self.epoch, self.call));
        let entered = progress.enter(*rank, call, wait::processor());
        if let Some(proxy) = proxy {
            proxy.wake();
        }
        let ran = if entered { self.run_kernel() } else { Err(Stop::Aborted) };
        if let Err(Stop::Mismatch { peer, theirs }) = ran {
            progress.fail(progress.mismatch(*rank, self.call, peer as usize, theirs, self.epoch));
        }
        progress.leave(*rank, self.turn);
        ran
    }

    fn failure(&self) -> Error {
        let stopped = || Failure { kind: ErrorKind::Internal, seen: "stopped without a cause".into(), hint: None };
        self.context.progress.cause().unwrap_or_else(stopped).into()
    }

    /// A kernel that panics must leave as well, or its peers would wait for it for ever.
    fn run_kernel(&self) -> std::result::Result<(), Stop> {
        catch_unwind(AssertUnwindSafe(|| kernels::run(self))).unwrap_or_else(|_| {
            let seen = "a kernel panicked".to_string();
            self.context.progress.fail(Failure { kind: ErrorKind::Internal, seen, hint: None });
            Err(Stop::Aborted)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::device::context::{Capacities, Channel, Counters, LinkTable, PairLinks, Ring, RingLinks};
    use crate::device::progress::Progress;
    use crate::device::shape::Shape;
    use crate::device::work::{CollectiveWork, Kernel, Reduction, Scaling};
    use crate::types::{Collective, DataType, RedOp};
    use ferronickel_kernels::protocol::{Lends, Link};

    /// The first of two ranks, connected to nobody.
    fn lonely_rank() -> RankContext {
        let (slots, tail, head) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let link = Link { slots, tail, head, arena: slots, lends: Lends::Never, peer: 1, step: 0 };
        let ring = Ring { position: 0, order: [0, 1].into(), simple: RingLinks::new(link, link), ll: None };
        let simple = LinkTable::new(vec![link; 2], vec![link; 2]);
        RankContext {
            rank: 0,
            ranks: 2,
            spins: 0,
            crowded: AtomicU32::new(0),
            capacities: Capacities {
                one_shot_ll: 8,
                one_shot_simple: 8,
                stage: 8,
                ring_ll: 8,
                ring_simple: 8,
                link_simple: 8,
            },
            arenas: [std::ptr::null_mut(); 2].into(),
            apart: false,
            channels: vec![Channel { direct: None, ring, counters: Counters::default() }],
            links: PairLinks { simple, ll: None },
            shape: Shape::of(&[0, 0], 0),
            transfers: Vec::new().into(),
            progress: Arc::new(Progress::of_one_process(2)),
            decisions: [].into(),
            proxy: None,
            mesh: None,
            _keep: Vec::new(),
        }
    }

    fn launch(context: &Arc<RankContext>, number: u64) -> Launch {
        let work = Work::Collective(CollectiveWork {
            collective: Collective::AllReduce,
            kernel: Kernel::OneShotLl,
            data_type: DataType::Int8,
            op: Reduction { kind: RedOp::Sum.into(), scaling: Scaling::None },
            root: 0,
            send: std::ptr::null(),
            receive: std::ptr::null_mut(),
            count: 0,
            channels: 1,
        });
        let (context, _uses) = (context.clone(), Uses::Few([None, None, None]));
        Launch { context, work, turn: number, epoch: number, call: 7, _uses }
    }

    #[test]
    fn a_kernel_that_panics_leaves_and_stops_the_others() {
        let context = Arc::new(lonely_rank());
        let error = launch(&context, 1).run().unwrap_err();
        assert_eq!((error.kind(), error.seen()), (ErrorKind::Internal, "a kernel panicked"));
        let progress = &context.progress;
        assert!(progress.stopped() && progress.is_between_calls(0));
        // the peer, which looks whether anyone is inside, does not wait for ever
        assert!(!progress.quiesce(1, || panic!("the rank is still inside")));
    }

    #[test]
    fn a_call_that_is_stopped_before_its_turn_leaves_the_one_that_is_inside_there() {
        let context = Arc::new(lonely_rank());
        let progress = &context.progress;
        assert!(progress.enter(0, Some((1, 7)), 0));
        progress.fail(Failure { kind: ErrorKind::Aborted, seen: "on purpose".into(), hint: None });
        assert_eq!(launch(&context, 2).run().unwrap_err().kind(), ErrorKind::Aborted);
        assert!(!progress.is_between_calls(0));
        progress.leave(0, 1);
        assert!(progress.is_between_calls(0));
        assert_eq!(progress.finished(0), 2);
    }
}
