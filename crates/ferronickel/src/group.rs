//! Groups: calls of several ranks, or several calls of one, that begin together.
//!
//! One thread that drives several ranks must group their calls: each waits for the others, and only when the group
//! ends are all of them queued.

use std::cell::RefCell;
use std::sync::Arc;

use crate::communicator::Inner;
use crate::device::host::stream::Shared;
use crate::device::launch::{Launch, Uses};
use crate::device::work::{CollectiveWork, Message, Messages, Reduction, Work};
use crate::device::{Memory, Use};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{CallDescription, Collective, DataType};

/// A piece of memory that a call uses, and whether it writes there.
pub(crate) type Buffer<'a> = (&'a Memory, bool);

/// The memory that a call uses.
pub(crate) type Buffers<'a> = [Option<Buffer<'a>>; 3];

/// A call that has been checked.
pub(crate) struct Call {
    /// What the program called.
    pub name: &'static str,
    pub work: CallWork,
}

/// What a call asks for.
pub(crate) enum CallWork {
    Collective(CollectiveCall),
    Message(Message),
}

/// A collective, before it is planned.
pub(crate) struct CollectiveCall {
    pub collective: Collective,
    pub data_type: DataType,
    pub op: Reduction,
    /// For collectives that have one.
    pub root: usize,
    pub count: usize,
    pub send: *const u8,
    pub receive: *mut u8,
    pub description: CallDescription,
}

impl From<CollectiveCall> for CallWork {
    fn from(call: CollectiveCall) -> Self {
        CallWork::Collective(call)
    }
}

impl From<Message> for CallWork {
    fn from(message: Message) -> Self {
        CallWork::Message(message)
    }
}

/// A call that waits for its group to end.
struct Held {
    communicator: Arc<Inner>,
    stream: Arc<Shared>,
    call: Call,
    buffers: [Option<(Memory, bool)>; 3],
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
    match call? {
        (Call { name, work: CallWork::Collective(work) }, buffers) => {
            let uses = take_uses(&buffers, stream).map_err(|error| communicator.place(error, name))?;
            // the caller has the stream
            let _is_dropped = queue(communicator, stream, &work, uses, false);
            Ok(())
        }
        // a message is a group of its own
        (call, buffers) => launch(vec![Held::new(communicator, stream, call, &buffers)]),
    }
}

#[cold]
fn hold(communicator: &Arc<Inner>, stream: &Arc<Shared>, call: Result<(Call, Buffers<'_>)>) -> Result<()> {
    let (call, buffers) = call.or_else(refuse)?;
    let held = Held::new(communicator, stream, call, &buffers);
    GROUP.with_borrow_mut(|group| group.calls.push(held));
    Ok(())
}

/// A call of the group was refused, and with it the group.
fn refuse<T>(error: Error) -> Result<T> {
    GROUP.with_borrow_mut(|group| group.error.get_or_insert(error.clone()).clone());
    Err(error)
}

/// Queues all, or none if one is refused.
fn launch(mut held: Vec<Held>) -> Result<()> {
    refuse_shared_streams(&held)?;
    // Ranks may have named the communicators of a group in different orders; all ranks know them by the same numbers.
    held.sort_by_key(|held| held.communicator.number);
    let uses: Vec<_> = held.iter().map(Held::admit).collect::<Result<_>>()?;
    let first = held.first().map(|held| held.stream.clone());
    // The caller will wait for one of the streams and so run what is on it; nobody runs the others for it.
    let is_elsewhere = |stream: &Arc<Shared>| first.as_ref().is_some_and(|first| !Arc::ptr_eq(first, stream));
    let mut exchanges: Vec<Exchange> = Vec::new();
    let mut collectives = Vec::new();
    for (Held { communicator, stream, call, .. }, uses) in held.into_iter().zip(uses) {
        match call.work {
            CallWork::Collective(work) => collectives.push((communicator, stream, work, uses)),
            CallWork::Message(message) => {
                let known = exchanges.iter_mut().find(|known| Arc::ptr_eq(&known.communicator, &communicator));
                match known {
                    Some(exchange) => exchange.add(message, stream, uses),
                    None => exchanges.push(Exchange::new(communicator, message, stream, uses)),
                }
            }
        }
    }
    let ready = exchanges.into_iter().map(Exchange::ready).collect::<Result<Vec<_>>>()?;
    // A group has no order among its calls; so collectives come first, on every rank.
    let mut dropped = Vec::new();
    for (communicator, stream, work, uses) in collectives {
        if queue(&communicator, &stream, &work, uses, is_elsewhere(&stream)) {
            dropped.push(stream);
        }
    }
    for exchange in ready {
        dropped.extend(exchange.queue(is_elsewhere));
    }
    dropped.iter().for_each(|stream| stream.see_off());
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
            made.push((communicator, communicator.calls().collectives));
            made.len() - 1
        });
        let number = match call.work {
            CallWork::Collective(_) => {
                made[known].1 += 1;
                made[known].1
            }
            // messages come after all collectives, all at the same time
            CallWork::Message(_) => u64::MAX,
        };
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

impl Held {
    fn new(communicator: &Arc<Inner>, stream: &Arc<Shared>, call: Call, buffers: &Buffers<'_>) -> Held {
        let buffers = buffers.map(|buffer| buffer.map(|(memory, writes)| (memory.clone(), writes)));
        Held { communicator: communicator.clone(), stream: stream.clone(), call, buffers }
    }

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
fn take_uses(buffers: &Buffers<'_>, stream: &Shared) -> Result<Uses> {
    let [first, second, third] = buffers;
    // in place, what is written is not read by anybody else
    let in_place = matches!((first, second), (Some((read, _)), Some((written, true))) if read.is_same(written));
    let using = |buffer: &Option<Buffer<'_>>| match buffer {
        Some((memory, writes)) => Use::by_stream(memory, stream.id(), *writes).map(Some),
        None => Ok(None),
    };
    Ok(Uses::Few([if in_place { None } else { using(first)? }, using(second)?, using(third)?]))
}

/// Queues a collective. Whether its stream was dropped before.
#[inline]
fn queue(inner: &Inner, stream: &Arc<Shared>, call: &CollectiveCall, uses: Uses, for_worker: bool) -> bool {
    let bytes = call.count * call.data_type.size_of();
    // Numbering a call and queueing it is one step, so that calls of a communicator stand in a stream in the order
    // of their numbers, whichever threads make them.
    let mut calls = inner.calls();
    let plan = calls.plan(call.collective, bytes, &inner.planner);
    let work = CollectiveWork {
        collective: call.collective,
        kernel: plan.kernel,
        data_type: call.data_type,
        op: call.op,
        root: call.root,
        send: call.send,
        receive: call.receive,
        count: call.count,
        channels: plan.channels,
    };
    calls.collectives += 1;
    inner.log_call(call, stream.id(), &plan, calls.collectives);
    let call = call.description.to_bits();
    push(inner, stream, calls.next(), Work::Collective(work), call, uses, for_worker)
}

/// A launch's numbers: its turn on its rank, and how many collectives have begun.
type Numbers = (u64, u64);

/// Queues a launch. Whether its stream was dropped before.
fn push(
    inner: &Inner,
    stream: &Arc<Shared>,
    (turn, epoch): Numbers,
    work: Work,
    call: u64,
    uses: Uses,
    for_worker: bool,
) -> bool {
    let launch = Launch { context: inner.context.clone(), work, turn, epoch, call, _uses: uses };
    if for_worker { stream.push_for_worker(launch) } else { stream.push(launch) }
}

/// The messages of one communicator in a group.
struct Exchange {
    communicator: Arc<Inner>,
    messages: Vec<Message>,
    streams: Vec<Arc<Shared>>,
    uses: Vec<Use>,
}

impl Exchange {
    fn new(communicator: Arc<Inner>, message: Message, stream: Arc<Shared>, uses: Uses) -> Exchange {
        let mut exchange = Exchange { communicator, messages: Vec::new(), streams: Vec::new(), uses: Vec::new() };
        exchange.add(message, stream, uses);
        exchange
    }

    fn add(&mut self, message: Message, stream: Arc<Shared>, uses: Uses) {
        self.messages.push(message);
        if !self.streams.iter().any(|known| Arc::ptr_eq(known, &stream)) {
            self.streams.push(stream);
        }
        self.uses.extend(uses);
    }

    /// Sorts the messages by their links, and pairs those that the rank sends to itself.
    fn ready(self) -> Result<ReadyExchange> {
        let Exchange { communicator, messages, streams, uses } = self;
        let rank = communicator.rank;
        let (own, mut between): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.peer == rank);
        let (sent, received): (Vec<_>, Vec<_>) = own.into_iter().partition(|message| message.sends);
        let fits = |(from, to): &(&Message, &Message)| from.call == to.call;
        if sent.len() != received.len() || !sent.iter().zip(&received).all(|pair| fits(&pair)) {
            let describe = |messages: &[Message]| {
                let calls = messages.iter().map(|message| CallDescription::from_bits(message.call).to_string());
                if messages.is_empty() { "nothing".into() } else { calls.collect::<Vec<_>>().join(", ") }
            };
            let (sent, received) = (describe(&sent), describe(&received));
            let seen = format!("rank {rank} sends to itself {sent} and receives from itself {received}");
            let error = Error::new(ErrorKind::InvalidUsage, seen);
            let hint = "in one group, receive from itself what a rank sends to itself, in the same order";
            return Err(communicator.place(error.hint(hint), "send"));
        }
        // Ranks begin elsewhere, so that none is overrun; messages along one link keep their order.
        let size = communicator.size;
        between.sort_by_key(|message| ((message.peer + size - rank) % size, message.sends));
        let messages = Messages { between: between.into(), own: sent.into_iter().zip(received).collect() };
        Ok(ReadyExchange { communicator, messages, streams, uses })
    }
}

/// The messages of one communicator, ready to be launched.
struct ReadyExchange {
    communicator: Arc<Inner>,
    messages: Messages,
    streams: Vec<Arc<Shared>>,
    uses: Vec<Use>,
}

impl ReadyExchange {
    /// Queues the messages on one of their streams; what is on the others comes before and after them. Returns the
    /// streams that were dropped before.
    fn queue(self, is_elsewhere: impl Fn(&Arc<Shared>) -> bool) -> Vec<Arc<Shared>> {
        let ReadyExchange { communicator, messages, streams, uses } = self;
        let first = messages.between.first().or(messages.own.first().map(|(sent, _)| sent));
        let call = first.map_or(0, |message| message.call);
        let mut dropped = Vec::new();
        let mut calls = communicator.calls();
        let mut push = |stream: &Arc<Shared>, work: Work, uses: Vec<Use>| {
            let for_worker = is_elsewhere(stream);
            if push(&communicator, stream, calls.next(), work, call, Uses::Many(uses), for_worker) {
                dropped.push(stream.clone());
            }
        };
        let (main, others) = streams.split_first().expect("every message has a stream");
        others.iter().for_each(|stream| push(stream, Work::Meet, Vec::new()));
        push(main, Work::Exchange(messages), uses);
        others.iter().for_each(|stream| push(stream, Work::Meet, Vec::new()));
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

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
