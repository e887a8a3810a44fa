//! A launch: one call of one rank, ready to run on a stream.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use ferronickel_kernels::algorithm::{one_shot, ring, share, two_shot};
use ferronickel_kernels::block::Stop;
use ferronickel_kernels::element::Element;
use ferronickel_kernels::protocol::{CallContext, Wire, ll::LowLatency, simple::Simple};
use ferronickel_kernels::reduce::Reduce;

use super::Use;
use super::context::{Channel, DirectTables, Links, RankContext};
use super::host::block::HostBlock;
use super::host::wait::{self, Backoff};
use super::progress::{Failure, mismatch};
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
        let context = &*self.context;
        let (progress, rank) = (&context.progress, context.rank);
        let ran = self.await_turn().and_then(|()| {
            let entered = progress.enter(rank, self.epoch, self.call);
            if let Some(proxy) = &context.proxy {
                proxy.wake();
            }
            if entered { self.run_kernel() } else { Err(Stop::Aborted) }
        });
        if let Err(Stop::Mismatch { peer, theirs }) = ran {
            progress.fail(mismatch(rank, self.call, peer as usize, theirs, self.epoch));
        }
        progress.leave(rank, self.epoch);
        if ran.is_err() {
            self.quiesce();
            return Err(self.failure());
        }
        Ok(())
    }

    /// Calls of one communicator run in the order in which they were made, on whatever stream each is.
    fn await_turn(&self) -> std::result::Result<(), Stop> {
        let (context, mut turns) = (&self.context, 0u32);
        while context.progress.finished(context.rank) + 1 < self.epoch {
            if context.progress.stopped() {
                return Err(Stop::Aborted);
            }
            turns = turns.saturating_add(1);
            wait::turn(turns, context.spins);
        }
        Ok(())
    }

    /// After a stop, waits until no peer is in a kernel that may still write this rank's buffers: each leaves at its
    /// next wait, so this ends soon.
    fn quiesce(&self) {
        let mut backoff = Backoff::new();
        while self.context.progress.anyone_inside_but(self.context.rank) {
            backoff.wait();
        }
    }

    fn failure(&self) -> Error {
        let stopped = || Failure { kind: ErrorKind::Internal, seen: "stopped without a cause".into(), hint: None };
        self.context.progress.failure().unwrap_or_else(stopped).into()
    }

    fn run_kernel(&self) -> std::result::Result<(), Stop> {
        with_element!(self.data_type, E => {
            with_reduction!(self.op, self.context.ranks as u32, op => self.run_typed::<E, _>(op))
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
                Kernel::TwoShotDirect => two_shot::direct::all_reduce(block, op, &self.two_shot_direct(channel)),
                Kernel::TwoShotStaged => {
                    let mut steps = lock(&channel.staged_steps);
                    let arguments = self.two_shot_staged(direct(channel), *steps);
                    *steps = two_shot::staged::all_reduce(block, op, &arguments)?;
                    Ok(())
                }
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
        two_shot::direct::Arguments {
            send: launch.send.cast(),
            receive: launch.receive.cast(),
            count: launch.count,
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
