//! A launch: one call of one rank, ready to run on a stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use ferronickel_kernels::algorithm::two_shot::direct::{NOT_SHARED, Outcome};
use ferronickel_kernels::algorithm::{one_shot, ring, share, two_shot};
use ferronickel_kernels::block::Stop;
use ferronickel_kernels::element::Element;
use ferronickel_kernels::protocol::{CallContext, Wire, ll::LowLatency, simple::Simple};
use ferronickel_kernels::reduce::Reduce;

use super::Use;
use super::arena::Arena;
use super::context::{Channel, DirectTables, Links, RankContext};
use super::host::block::{HostBlock, LOOK_EVERY};
use super::host::wait::{self, Backoff};
use super::progress::{Failure, StartWatch};
use crate::diagnostics::log;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{DataType, RedOp, with_element, with_reduction};

/// An algorithm with a protocol: what is compiled as one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kernel {
    /// A single rank's result is its own input.
    Copy,
    OneShotLl,
    OneShotSimple,
    RingLl,
    RingSimple,
    TwoShotDirect,
    TwoShotStaged,
}

/// A call of a rank: which kernel, on what.
pub(crate) struct Launch {
    pub context: Arc<RankContext>,
    pub kernel: Kernel,
    pub data_type: DataType,
    pub op: RedOp,
    pub send: *const u8,
    pub receive: *mut u8,
    pub count: usize,
    /// Channels that share the elements.
    pub channels: usize,
    /// The call's number in its communicator, from one.
    pub epoch: u64,
    /// The call's description.
    pub call: u64,
    /// Keeps the buffers until the call is done.
    pub _uses: [Option<Use>; 2],
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
            self._uses.iter().flatten().for_each(Use::quarantine);
        }
        Err(self.failure())
    }

    /// Calls of one communicator run in the order in which they were made, on whatever stream each is.
    fn await_turn(&self) -> std::result::Result<(), Stop> {
        let (RankContext { progress, rank, spins, .. }, mut turns) = (&*self.context, 0u32);
        let mut watch = StartWatch::default();
        while !progress.is_turn_of(*rank, self.epoch) {
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
        let entered = progress.enter(*rank, self.epoch, self.call, wait::processor());
        if let Some(proxy) = proxy {
            proxy.wake();
        }
        let ran = if entered { self.run_kernel() } else { Err(Stop::Aborted) };
        if let Err(Stop::Mismatch { peer, theirs }) = ran {
            progress.fail(progress.mismatch(*rank, self.call, peer as usize, theirs, self.epoch));
        }
        progress.leave(*rank, self.epoch);
        ran
    }

    fn failure(&self) -> Error {
        let stopped = || Failure { kind: ErrorKind::Internal, seen: "stopped without a cause".into(), hint: None };
        self.context.progress.cause().unwrap_or_else(stopped).into()
    }

    /// A kernel that panics must leave as well, or its peers would wait for it for ever.
    fn run_kernel(&self) -> std::result::Result<(), Stop> {
        let run = || {
            with_element!(self.data_type, E => {
                with_reduction!(self.op, self.context.ranks as u32, op => self.run_typed::<E, _>(op))
            })
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            let seen = "a kernel panicked".to_string();
            self.context.progress.fail(Failure { kind: ErrorKind::Internal, seen, hint: None });
            Err(Stop::Aborted)
        })
    }

    fn run_typed<E: Element, R: Reduce<E>>(&self, op: R) -> std::result::Result<(), Stop> {
        for (index, channel) in self.context.channels.iter().take(self.channels).enumerate() {
            let part = Part::<E>::of(self, index);
            // SAFETY: the launch's pointers cover its count, the channel's tables lead to memory that the context
            // keeps, and every rank makes the same calls (which the kernels check)
            unsafe { part.run(op, channel)? };
        }
        Ok(())
    }
}

/// What falls to one channel of a launch.
struct Part<'a, E> {
    launch: &'a Launch,
    block: HostBlock<'a>,
    index: usize,
    send: *const E,
    receive: *mut E,
    count: usize,
}

impl<'a, E: Element> Part<'a, E> {
    fn of(launch: &'a Launch, index: usize) -> Self {
        let (begin, end) = share::<E>(launch.count, index, launch.channels);
        let block = HostBlock { context: &launch.context, epoch: launch.epoch, call: launch.call };
        let (send, receive) = (launch.send.cast::<E>(), launch.receive.cast::<E>());
        Part {
            launch,
            block,
            index,
            send: send.wrapping_add(begin),
            receive: receive.wrapping_add(begin),
            count: end - begin,
        }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn run<R: Reduce<E>>(&self, op: R, channel: &Channel) -> std::result::Result<(), Stop> {
        let (block, context) = (self.block, &self.launch.context);
        // SAFETY: the caller's promise
        unsafe {
            match self.launch.kernel {
                Kernel::Copy => {
                    if !std::ptr::eq(self.send, self.receive) {
                        std::ptr::copy(self.send, self.receive, self.count);
                    }
                    Ok(())
                }
                Kernel::OneShotLl => {
                    let inboxes = &direct(channel).ll_inboxes;
                    one_shot::all_reduce_ll(block, op, &self.one_shot(inboxes, context.capacities.one_shot_ll))
                }
                Kernel::OneShotSimple => {
                    let inboxes = &direct(channel).simple_inboxes;
                    one_shot::all_reduce_simple(block, op, &self.one_shot(inboxes, context.capacities.one_shot_simple))
                }
                Kernel::TwoShotDirect => {
                    match two_shot::direct::all_reduce(block, op, &self.two_shot_direct(channel))? {
                        Outcome::Done => Ok(()),
                        Outcome::OutOfReach => self.run_two_shot_staged(op, channel),
                    }
                }
                Kernel::TwoShotStaged => self.run_two_shot_staged(op, channel),
                Kernel::RingSimple => {
                    let slot_bytes = context.capacities.ring_simple;
                    self.ring(
                        op,
                        channel,
                        &channel.ring.simple,
                        slot_bytes,
                        |Links { from_previous, to_next }, context| Simple { block, from_previous, to_next, context },
                    )
                }
                Kernel::RingLl => {
                    let slot_bytes = context.capacities.ring_ll;
                    let links = channel.ring.ll.as_ref().expect("planned only where every road carries LL");
                    self.ring(op, channel, links, slot_bytes, |Links { from_previous, to_next }, context| LowLatency {
                        block,
                        from_previous,
                        to_next,
                        context,
                    })
                }
            }
        }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn run_two_shot_staged<R: Reduce<E>>(&self, op: R, channel: &Channel) -> std::result::Result<(), Stop> {
        let mut steps = lock(&channel.staged_steps);
        let arguments = self.two_shot_staged(direct(channel), *steps);
        // SAFETY: the caller's promise
        *steps = unsafe { two_shot::staged::all_reduce(self.block, op, &arguments)? };
        Ok(())
    }

    fn one_shot(&self, inboxes: &[*mut u8], capacity: usize) -> one_shot::Arguments<E> {
        let launch = self.launch;
        one_shot::Arguments {
            send: self.send,
            receive: self.receive,
            count: self.count,
            inboxes: inboxes.as_ptr(),
            capacity,
            rank: launch.context.rank as u32,
            ranks: launch.context.ranks as u32,
            epoch: launch.epoch,
            call: launch.call,
        }
    }

    fn two_shot_direct(&self, channel: &Channel) -> two_shot::direct::Arguments<E> {
        let launch = self.launch;
        // within a process addresses say everything
        let arena = if launch.context.apart { Arena::of_process().ok() } else { None };
        let offset = |address: *const u8| {
            arena.and_then(|arena| arena.offset_of(address)).map_or(NOT_SHARED, |offset| offset as u64)
        };
        two_shot::direct::Arguments {
            send: launch.send.cast(),
            receive: launch.receive.cast(),
            count: launch.count,
            send_offset: offset(launch.send),
            receive_offset: offset(launch.receive),
            apart: launch.context.apart,
            arenas: launch.context.arenas.as_ptr(),
            boards: direct(channel).boards.as_ptr(),
            rank: launch.context.rank as u32,
            ranks: launch.context.ranks as u32,
            channel: self.index as u32,
            channels: launch.channels as u32,
            epoch: launch.epoch,
            call: launch.call,
        }
    }

    fn two_shot_staged(&self, tables: &DirectTables, step: u64) -> two_shot::staged::Arguments<E> {
        let launch = self.launch;
        two_shot::staged::Arguments {
            send: self.send,
            receive: self.receive,
            count: self.count,
            stages: tables.stages.as_ptr(),
            slot_bytes: launch.context.capacities.stage,
            rank: launch.context.rank as u32,
            ranks: launch.context.ranks as u32,
            step,
            call: launch.call,
        }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn ring<R: Reduce<E>, W: Wire<HostBlock<'a>>>(
        &self,
        op: R,
        channel: &Channel,
        links: &Mutex<Links>,
        slot_bytes: usize,
        wire: impl Fn(Links, CallContext) -> W,
    ) -> std::result::Result<(), Stop> {
        let mut links = lock(links);
        let mut wire = wire(*links, CallContext { call: self.launch.call, slot_bytes });
        let arguments = ring::Arguments {
            send: self.send,
            receive: self.receive,
            count: self.count,
            slot_bytes,
            position: channel.ring.position,
            ranks: self.launch.context.ranks as u32,
        };
        // SAFETY: the caller's promise
        unsafe { ring::all_reduce(&mut wire, op, &arguments)? };
        (links.from_previous.step, links.to_next.step) = wire.steps();
        Ok(())
    }
}

fn direct(channel: &Channel) -> &DirectTables {
    channel.direct.as_ref().expect("planned only where every rank reaches every other")
}

/// Steps are only read by a later call of the same rank, and none runs after a failure.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::device::context::{Capacities, Ring};
    use crate::device::progress::Progress;
    use ferronickel_kernels::protocol::Link;

    /// The first of two ranks, connected to nobody.
    fn lonely_rank() -> RankContext {
        let (slots, tail, head) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let link = Link { slots, tail, head, peer: 1, step: 0 };
        let simple = Mutex::new(Links { from_previous: link, to_next: link });
        let ring = Ring { position: 0, simple, ll: None };
        RankContext {
            rank: 0,
            ranks: 2,
            spins: 0,
            crowded: AtomicU32::new(0),
            capacities: Capacities { one_shot_ll: 8, one_shot_simple: 8, stage: 8, ring_ll: 8, ring_simple: 8 },
            arenas: [std::ptr::null_mut(); 2].into(),
            apart: false,
            channels: vec![Channel { direct: None, ring, staged_steps: Mutex::new(0) }],
            progress: Arc::new(Progress::of_one_process(2)),
            decisions: [].into(),
            proxy: None,
            mesh: None,
            _keep: Vec::new(),
        }
    }

    fn launch(context: &Arc<RankContext>, epoch: u64) -> Launch {
        let (send, receive) = (std::ptr::null(), std::ptr::null_mut());
        let (context, kernel, data_type) = (context.clone(), Kernel::OneShotLl, DataType::Int8);
        let (op, count, channels, call) = (RedOp::Sum, 0, 1, 7);
        Launch { context, kernel, data_type, op, send, receive, count, channels, epoch, call, _uses: [None, None] }
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
        assert!(progress.enter(0, 1, 7, 0));
        progress.fail(Failure { kind: ErrorKind::Aborted, seen: "on purpose".into(), hint: None });
        assert_eq!(launch(&context, 2).run().unwrap_err().kind(), ErrorKind::Aborted);
        assert!(!progress.is_between_calls(0));
        progress.leave(0, 1);
        assert!(progress.is_between_calls(0));
        assert_eq!(progress.finished(0), 2);
    }
}
