//! All-reduce: every rank gets the reduction of every rank's elements.

use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, ErrorKind, Result};
use crate::group::{self, Buffers, Call};
use crate::types::{CallDescription, Collective, Element, RedOp, ReductionKind};

const NAME: &str = Collective::AllReduce.name();

impl Communicator {
    /// Reduces the elements of all ranks, `send` of each, and gives every rank the result in `receive`.
    ///
    /// Every rank must make the same call, with the same count, type and operation. The call is queued on `stream`
    /// and returns at once; the result is there after [`Stream::synchronize`]. `send` and `receive` may be the same
    /// range, but may not overlap otherwise. Inside [`group`](crate::group()) nothing is queued before the group ends.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when lengths differ, ranges overlap, or a buffer or the stream
    /// belongs to another device; [`InvalidUsage`](ErrorKind::InvalidUsage) after [`finalize`](Self::finalize) or when
    /// a buffer is in use on another stream; what stopped the communicator, if something did.
    ///
    /// A failure that shows only while the call runs, such as ranks that made different calls
    /// ([`Mismatch`](ErrorKind::Mismatch)), is returned by [`Stream::synchronize`] and
    /// [`async_error`](Self::async_error).
    pub fn all_reduce<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        op: RedOp,
        stream: &Stream,
    ) -> Result<()> {
        let call = self.checked_all_reduce(send, receive, op, stream);
        // before a group keeps it
        group::submit(self.inner(), stream.shared(), call.map_err(|error| self.inner().place(error, NAME)))
    }

    fn checked_all_reduce<'a, T: Element>(
        &self,
        send: &'a DeviceBuffer<T>,
        receive: &'a DeviceBuffer<T>,
        op: RedOp,
        stream: &Stream,
    ) -> Result<(Call, Buffers<'a>)> {
        self.inner().usable()?;
        for (what, device) in [("send", send.device()), ("receive", receive.device()), ("stream", stream.device())] {
            if device != self.device() {
                let seen = format!("{what} belongs to {device}, the communicator to {}", self.device());
                return Err(Error::new(ErrorKind::InvalidArgument, seen).hint("allocate on the communicator's device"));
            }
        }
        if send.len() != receive.len() {
            let seen = format!("send has {} elements, receive {}", send.len(), receive.len());
            return Err(Error::new(ErrorKind::InvalidArgument, seen).hint("give both the same length"));
        }
        if overlap_partly(send, receive) {
            let seen = "send and receive overlap, but are not the same";
            return Err(
                Error::new(ErrorKind::InvalidArgument, seen).hint("use the same range for both, or separate ones")
            );
        }
        let in_place = send.memory().is_same(receive.memory());
        let buffers = [(!in_place).then_some((send.memory(), false)), Some((receive.memory(), true))];
        let call = Call {
            name: NAME,
            description: CallDescription::new(
                Collective::AllReduce,
                T::DATA_TYPE,
                Some(ReductionKind::RedOp(op)),
                None,
                send.len(),
            ),
            data_type: T::DATA_TYPE,
            op,
            count: send.len(),
            send: send.as_ptr().cast(),
            receive: receive.as_ptr().cast_mut().cast(),
        };
        Ok((call, buffers))
    }
}

fn overlap_partly<T: Element>(a: &DeviceBuffer<T>, b: &DeviceBuffer<T>) -> bool {
    let (first, second) = (a.as_ptr() as usize, b.as_ptr() as usize);
    first != second && first.abs_diff(second) < size_of::<T>() * a.len()
}
