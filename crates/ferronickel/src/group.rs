//! Groups: calls of several ranks, or several calls of one, that begin together.
//!
//! One thread that drives several ranks must group their calls: each waits for the others, and only when the group
//! ends are all of them queued.

use std::cell::RefCell;
use std::sync::Arc;

use crate::communicator::Inner;
use crate::device::host::stream::Shared;
use crate::device::launch::Launch;
use crate::device::{Memory, Use};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{CallDescription, DataType, RedOp};

/// A call that has been checked.
pub(crate) struct Call {
    /// What the program called.
    pub name: &'static str,
    pub description: CallDescription,
    pub data_type: DataType,
    pub op: RedOp,
    pub count: usize,
    pub send: *const u8,
    pub receive: *mut u8,
}

/// The memory that a call uses, and whether it writes there. In place that is one piece.
pub(crate) type Buffers<'a> = [Option<(&'a Memory, bool)>; 2];

/// A call that waits for its group to end.
struct Held {
    communicator: Arc<Inner>,
    stream: Arc<Shared>,
    call: Call,
    buffers: [Option<(Memory, bool)>; 2],
}

/// The group that this thread is in.
#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<Held>,
    /// The first call that was refused: nothing of the group is queued then.
    error: Option<Error>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Runs `calls`, and queues what it called when it returns.
///
/// Groups nest: what is called in an inner group is queued when the outermost ends.
///
/// # Errors
/// The error of `calls`, or of the first call in it that was refused. Nothing of the group is queued then.
///
/// ```
/// use ferronickel::{Communicator, Config, Device, RedOp, group};
///
/// # fn main() -> ferronickel::Result<()> {
/// let devices = [Device::host(0), Device::host(1)];
/// let ranks = Communicator::init_all(&devices, &Config::from_environment())?;
/// let streams = [devices[0].stream()?, devices[1].stream()?];
/// let buffers = [devices[0].alloc::<i32>(1)?, devices[1].alloc::<i32>(1)?];
/// buffers.iter().try_for_each(|buffer| buffer.copy_from_host(&[21]))?;
/// group(|| {
///     ranks.iter().zip(&buffers).zip(&streams).try_for_each(|((rank, buffer), stream)| {
///         rank.all_reduce(buffer, buffer, RedOp::Sum, stream)
///     })
/// })?;
/// streams.iter().try_for_each(|stream| stream.synchronize())?;
/// assert_eq!(buffers[1].to_vec()?, [42]);
/// # Ok(())
/// # }
/// ```
pub fn group(calls: impl FnOnce() -> Result<()>) -> Result<()> {
    let open = Open::new();
    let called = calls();
    open.close(called)
}

/// A group that is open on this thread; closing it twice, or never because of a panic, is impossible.
struct Open;

impl Open {
    fn new() -> Open {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Open
    }

    fn close(self, called: Result<()>) -> Result<()> {
        let outermost = GROUP.with_borrow_mut(|group| {
            if let Err(error) = &called {
                group.error.get_or_insert(error.clone());
            }
            (group.depth == 1).then(|| (std::mem::take(&mut group.calls), group.error.take()))
        });
        match outermost {
            None => called,
            Some((_, Some(error))) => Err(error),
            Some((calls, None)) => launch(calls),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let dropped = GROUP.with_borrow_mut(|group| {
            group.depth -= 1;
            // only after a panic is anything left
            if group.depth == 0 { std::mem::take(group) } else { Group::default() }
        });
        drop(dropped);
    }
}

/// Whether this thread is in a group.
pub(crate) fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// Queues a checked call, or keeps it until the group ends.
#[inline]
pub(crate) fn submit(communicator: &Arc<Inner>, stream: &Arc<Shared>, call: Result<(Call, Buffers<'_>)>) -> Result<()> {
    if is_open() {
        return hold(communicator, stream, call);
    }
    let (call, buffers) = call?;
    let uses = take_uses(&buffers, stream).map_err(|error| communicator.place(error, call.name))?;
    // the caller has the stream
    let _is_dropped = call.queue(communicator, stream, uses, false);
    Ok(())
}

#[cold]
fn hold(communicator: &Arc<Inner>, stream: &Arc<Shared>, call: Result<(Call, Buffers<'_>)>) -> Result<()> {
    let (call, buffers) = call.or_else(refuse)?;
    let buffers = buffers.map(|buffer| buffer.map(|(memory, writes)| (memory.clone(), writes)));
    let held = Held { communicator: communicator.clone(), stream: stream.clone(), call, buffers };
    GROUP.with_borrow_mut(|group| group.calls.push(held));
    Ok(())
}

/// A call of the group was refused, and with it the group.
fn refuse<T>(error: Error) -> Result<T> {
    GROUP.with_borrow_mut(|group| group.error.get_or_insert(error.clone()).clone());
    Err(error)
}

/// Queues all, or none if one is refused.
fn launch(calls: Vec<Held>) -> Result<()> {
    refuse_shared_streams(&calls)?;
    let uses: Vec<_> = calls.iter().map(Held::admit).collect::<Result<_>>()?;
    let first = calls.first().map(|held| held.stream.clone());
    let mut dropped = Vec::new();
    for (Held { communicator, stream, call, .. }, uses) in calls.into_iter().zip(uses) {
        // The caller will wait for one of the streams and so run what is on it; nobody runs the others for it.
        let elsewhere = first.as_ref().is_some_and(|first| !Arc::ptr_eq(first, &stream));
        if call.queue(&communicator, &stream, uses, elsewhere) {
            dropped.push(stream);
        }
    }
    dropped.iter().for_each(Shared::see_off);
    Ok(())
}

/// A stream runs its calls one after the other. So where a rank's call lies on a stream before one of another rank of
/// its communicator that is part of the same collective, or of an earlier one, each waits for the other for ever.
fn refuse_shared_streams(calls: &[Held]) -> Result<()> {
    /// What lies on a stream by one rank: whose it is, and the number of its last call.
    struct Lane<'a>(&'a Held, u64);
    let mut lanes: Vec<Lane> = Vec::new();
    let mut made: Vec<(&Arc<Inner>, u64)> = Vec::new();
    for held in calls {
        let Held { communicator, call, .. } = held;
        let known = made.iter().position(|(known, _)| Arc::ptr_eq(known, communicator)).unwrap_or_else(|| {
            made.push((communicator, communicator.calls().made));
            made.len() - 1
        });
        made[known].1 += 1;
        let number = made[known].1;
        let mut own = None;
        for (index, Lane(other, last)) in lanes.iter().enumerate().filter(|(_, Lane(other, _))| other.shares(held)) {
            if Arc::ptr_eq(&other.communicator, communicator) {
                own = Some(index);
            } else if *last >= number {
                let ranks = (other.communicator.rank, communicator.rank);
                let seen = format!("ranks {} and {} of one communicator make calls on one stream", ranks.0, ranks.1);
                let error = Error::new(ErrorKind::InvalidUsage, seen).hint("give each rank a stream of its own");
                return Err(communicator.place(error, call.name));
            }
        }
        match own {
            Some(index) => lanes[index].1 = number,
            None => lanes.push(Lane(held, number)),
        }
    }
    Ok(())
}

/// Holds a call's buffers.
type Uses = [Option<Use>; 2];

impl Held {
    /// Whether both are on one stream and of one communicator, by the same rank or not.
    fn shares(&self, other: &Held) -> bool {
        Arc::ptr_eq(&self.stream, &other.stream)
            && Arc::ptr_eq(&self.communicator.context.progress, &other.communicator.context.progress)
    }

    /// Takes the call's buffers, if it can be carried out now: much may have happened since it was checked.
    fn admit(&self) -> Result<Uses> {
        let buffers = self.buffers.each_ref().map(|buffer| buffer.as_ref().map(|(memory, writes)| (memory, *writes)));
        let uses = self.communicator.usable().and_then(|()| take_uses(&buffers, &self.stream));
        uses.map_err(|error| self.communicator.place(error, self.call.name))
    }
}

/// Uses a call's buffers from now on, on `stream`.
#[inline]
fn take_uses([send, receive]: &Buffers<'_>, stream: &Shared) -> Result<Uses> {
    let using = |buffer: &Option<(&Memory, bool)>| match buffer {
        Some((memory, writes)) => Use::by_stream(memory, stream.id(), *writes).map(Some),
        None => Ok(None),
    };
    Ok([using(send)?, using(receive)?])
}

impl Call {
    /// Queues it. Whether its stream was dropped before.
    #[inline]
    fn queue(self, inner: &Inner, stream: &Arc<Shared>, uses: Uses, for_worker: bool) -> bool {
        let bytes = self.count * self.data_type.size_of();
        // Numbering a call and queueing it is one step, so that calls of a communicator stand in a stream in the order
        // of their numbers, whichever threads make them.
        let mut calls = inner.calls();
        let plan = calls.plan(bytes, &inner.planner);
        calls.made += 1;
        inner.log_call(&self, stream.id(), &plan, calls.made);
        let launch = Launch {
            context: inner.context.clone(),
            kernel: plan.kernel,
            data_type: self.data_type,
            op: self.op,
            send: self.send,
            receive: self.receive,
            count: self.count,
            channels: plan.channels,
            epoch: calls.made,
            call: self.description.to_bits(),
            _uses: uses,
        };
        if for_worker { stream.push_for_worker(launch) } else { stream.push(launch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_or_a_panic_in_a_group_leaves_none_open() {
        let failing = || Err(Error::new(ErrorKind::InvalidUsage, "on purpose"));
        assert_eq!(group(|| group(failing)).unwrap_err().seen(), "on purpose");
        assert!(group(|| Ok(())).is_ok(), "the error stayed");
        let panicked = std::panic::catch_unwind(|| group(|| group(|| panic!("on purpose"))));
        assert!(panicked.is_err() && !is_open());
    }

    #[test]
    fn an_error_that_the_closure_swallows_still_refuses_the_group() {
        let refused = group(|| {
            let _: Result<()> = refuse(Error::new(ErrorKind::InvalidArgument, "a bad call"));
            Ok(())
        });
        assert_eq!(refused.unwrap_err().seen(), "a bad call");
    }
}
