//! Reduce-scatter: every rank gets its part of the reduction of every rank's elements.

use super::{Request, times};
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::operation::Operation;
use crate::types::{Collective, Element};

impl Communicator {
    /// Reduces the elements of all ranks, `send` of each, and gives each rank, in `receive`, its part of the result: the
    /// first to rank 0, and so on. In place, `receive` is this rank's part of `send`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); also when `send` has not as many times the elements of `receive` as there
    /// are ranks.
    pub fn reduce_scatter<'a, T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        op: impl Into<Operation<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let op = op.into();
        self.submit(Collective::ReduceScatter, stream, || {
            times(self.size(), ("receive", receive.len()), ("send", send.len()))?;
            Ok(Request {
                collective: Collective::ReduceScatter,
                send: Some(send),
                receive: Some(receive),
                count: receive.len(),
                op: Some(op),
                root: None,
                in_place: Some(self.rank()),
                stream,
            })
        })
    }
}
