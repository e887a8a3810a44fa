//! All-reduce: every rank gets the reduction of every rank's elements.

use super::{Request, same_length};
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::operation::Operation;
use crate::types::{Collective, Element};

impl Communicator {
    /// Reduces the elements of all ranks, `send` of each, and gives every rank the result in `receive`.
    ///
    /// Every rank must make the same call, with the same count, type and operation. The call is queued on `stream`
    /// and returns at once; the result is there after [`Stream::synchronize`]. `send` and `receive` may be the same
    /// range, but may not overlap otherwise. Inside [`group`](crate::group()) nothing is queued before the group ends.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when lengths differ, ranges overlap, or a buffer or the
    /// stream belongs to another device; [`InvalidUsage`](crate::ErrorKind::InvalidUsage) after
    /// [`finalize`](Self::finalize) or when a buffer is in use on another stream; what stopped the communicator, if
    /// something did.
    ///
    /// A failure that shows only while the call runs, such as ranks that made different calls
    /// ([`Mismatch`](crate::ErrorKind::Mismatch)), is returned by [`Stream::synchronize`] and
    /// [`async_error`](Self::async_error).
    pub fn all_reduce<'a, T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        op: impl Into<Operation<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let op = op.into();
        self.submit(Collective::AllReduce, stream, || {
            same_length(send.len(), receive.len())?;
            Ok(Request {
                collective: Collective::AllReduce,
                send: Some(send),
                receive: Some(receive),
                count: send.len(),
                op: Some(op),
                root: None,
                in_place: Some(0),
                stream,
            })
        })
    }
}
