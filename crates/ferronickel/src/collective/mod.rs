//! What is asked: for each collective, what a valid call is, and its description.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod gather;
mod messages;
mod reduce;
mod reduce_scatter;
mod scatter;
mod variable;

use crate::communicator::Communicator;
use crate::device::work::{Reduction, Scaling};
use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, ErrorKind, Result};
use crate::group::{self, Buffer, Buffers, Call, CollectiveCall};
use crate::operation::{Operation, Scalar};
use crate::types::{CallDescription, Collective, Element, ReductionKind};

/// What one rank brings to a collective.
struct Request<'a, T> {
    collective: Collective,
    /// What it gives; None if its part is to receive only.
    send: Option<&'a DeviceBuffer<T>>,
    /// What it gets; None if its part is to send only.
    receive: Option<&'a DeviceBuffer<T>>,
    /// Elements that one rank sends to another, or that all ranks reduce.
    count: usize,
    op: Option<Operation<'a, T>>,
    root: Option<usize>,
    /// Where one of the two buffers may lie in the other: so many times the count from its start. None if nowhere.
    in_place: Option<usize>,
    stream: &'a Stream,
}

impl Communicator {
    /// Checks a call, and queues it or keeps it for its group.
    fn submit<'a, T: Element>(
        &self,
        collective: Collective,
        stream: &Stream,
        request: impl FnOnce() -> Result<Request<'a, T>>,
    ) -> Result<()> {
        let usable = self.inner().usable();
        let call = usable.and_then(|()| request()).and_then(|request| request.check(self));
        // before a group keeps it
        let call = call.map_err(|error| self.inner().place(error, collective.name()));
        group::submit(self.inner(), stream.shared(), call)
    }
}

impl<'a, T: Element> Request<'a, T> {
    /// Checks what every collective must meet.
    fn check(self, communicator: &Communicator) -> Result<(Call, Buffers<'a>)> {
        if self.overlaps_otherwise() {
            return Err(self.overlap());
        }
        let Request { collective, send, receive, count, op, root, stream, .. } = self;
        let size = communicator.size();
        if let Some(root) = root.filter(|&root| root >= size) {
            let seen = format!("root {root} is not a rank of a communicator of {size}");
            return Err(invalid(seen).hint(format!("ranks are 0 to {}", size - 1)));
        }
        same_device(communicator, "stream", stream.device())?;
        for (what, buffer) in [("send", send), ("receive", receive)] {
            if let Some(buffer) = buffer {
                same_device(communicator, what, buffer.device())?;
            }
        }
        check_count(count)?;
        communicator.inner().planner.check(collective)?;
        let (kind, op, scalar) = reduction(communicator, op)?;
        let work = CollectiveCall {
            collective,
            data_type: T::DATA_TYPE,
            op,
            root: root.unwrap_or(0),
            count,
            send: send.map_or(std::ptr::null(), |buffer| buffer.as_ptr().cast()),
            receive: receive.map_or(std::ptr::null_mut(), |buffer| buffer.as_ptr().cast_mut().cast()),
            description: CallDescription::new(collective, T::DATA_TYPE, kind, root, count),
        };
        let buffers = [uses(send, false), uses(receive, true), scalar];
        Ok((Call { name: collective.name(), work: work.into() }, buffers))
    }

    fn overlap(&self) -> Error {
        let (seen, hint) = match (self.in_place, self.collective) {
            (None, _) => ("send and receive overlap", "use separate ranges"),
            (_, Collective::AllReduce | Collective::Broadcast | Collective::Reduce) => {
                ("send and receive overlap, but are not the same", "use the same range for both, or separate ones")
            }
            _ => (
                "send and receive overlap, but the one is not this rank's part of the other",
                "use the rank's own part of the longer range, or separate ranges",
            ),
        };
        invalid(seen).hint(hint)
    }

    /// Whether the buffers overlap in another way than in place.
    fn overlaps_otherwise(&self) -> bool {
        let (Some(send), Some(receive)) = (self.send, self.receive) else { return false };
        let range = |buffer: &DeviceBuffer<T>| {
            let start = buffer.as_ptr() as usize;
            start..start + buffer.len() * size_of::<T>()
        };
        let (a, b) = (range(send), range(receive));
        if a.is_empty() || b.is_empty() || a.end <= b.start || b.end <= a.start {
            return false;
        }
        let (smaller, larger) = if a.len() <= b.len() { (a, b) } else { (b, a) };
        self.in_place.is_none_or(|part| smaller.start != larger.start + part * self.count * size_of::<T>())
    }
}

/// How a call reduces: for its description, for its launch, and the memory that holds its scalar, if any does.
fn reduction<'a, T: Element>(
    communicator: &Communicator,
    op: Option<Operation<'a, T>>,
) -> Result<(Option<ReductionKind>, Reduction, Option<Buffer<'a>>)> {
    let kind = |op: &Operation<'a, T>| match op {
        Operation::Plain(op) => ReductionKind::RedOp(*op),
        Operation::PreMulSum(_) => ReductionKind::PreMulSum,
    };
    let described = op.as_ref().map(kind);
    let (scaling, buffer) = match op {
        Some(Operation::PreMulSum(Scalar::Host(scalar))) => (Scaling::By(bits(scalar)), None),
        Some(Operation::PreMulSum(Scalar::Device(scalar))) => {
            same_device(communicator, "the scalar", scalar.device())?;
            if scalar.len() != 1 {
                return Err(
                    invalid(format!("the scalar is a buffer of {} elements", scalar.len())).hint("give one of 1")
                );
            }
            (Scaling::ByElementAt(scalar.as_ptr().cast()), uses(Some(scalar), false))
        }
        _ => (Scaling::None, None),
    };
    let kind = described.unwrap_or(ReductionKind::RedOp(crate::types::RedOp::Sum));
    Ok((described, Reduction { kind, scaling }, buffer))
}

/// The bytes of an element, in the low bits.
fn bits<T: Element>(element: T) -> u64 {
    let mut bits = 0u64;
    // SAFETY: an element is plain bytes, at most eight; the machine is little-endian, as NCCL's are
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const element).cast::<u8>(), (&raw mut bits).cast::<u8>(), size_of::<T>());
    }
    bits
}

fn uses<T>(buffer: Option<&DeviceBuffer<T>>, writes: bool) -> Option<Buffer<'_>> {
    buffer.map(|buffer| (buffer.memory(), writes))
}

fn same_device(communicator: &Communicator, what: &str, device: &crate::device::Device) -> Result<()> {
    if device == communicator.device() {
        return Ok(());
    }
    let seen = format!("{what} belongs to {device}, the communicator to {}", communicator.device());
    Err(invalid(seen).hint("allocate on the communicator's device"))
}

/// The description of a call, which holds its count, has so many bits.
fn check_count(count: usize) -> Result<()> {
    if count <= CallDescription::MAX_COUNT {
        return Ok(());
    }
    let seen = format!("{count} elements are more than the {} of one call", CallDescription::MAX_COUNT);
    Err(invalid(seen).hint("make several calls"))
}

/// One of two buffers must have `ranks` times the elements of the other.
fn times(ranks: usize, one: (&str, usize), all: (&str, usize)) -> Result<()> {
    if one.1.checked_mul(ranks) == Some(all.1) {
        return Ok(());
    }
    let ((one, one_len), (all, all_len)) = (one, all);
    let seen = format!("{one} has {one_len} elements, {all} {all_len}");
    Err(invalid(seen).hint(format!("give {all} {ranks} times as many, for {ranks} ranks")))
}

fn invalid(seen: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, seen)
}

fn same_length(send: usize, receive: usize) -> Result<()> {
    if send == receive {
        return Ok(());
    }
    let seen = format!("send has {send} elements, receive {receive}");
    Err(invalid(seen).hint("give both the same length"))
}

/// A root must give what only it gives, or receives.
fn at_root<'a, T>(
    what: &str,
    buffer: Option<&'a DeviceBuffer<T>>,
    is_root: bool,
) -> Result<Option<&'a DeviceBuffer<T>>> {
    match (buffer, is_root) {
        (None, true) => Err(invalid(format!("the root gives no {what}")).hint("give the buffer at the root")),
        // elsewhere it means nothing
        (_, false) => Ok(None),
        (buffer, true) => Ok(buffer),
    }
}
