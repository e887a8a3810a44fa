//! All-gather: every rank gets every rank's elements.

use super::{Request, times};
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::types::{Collective, Element};

impl Communicator {
    /// Gives every rank, in `receive`, the elements that all ranks have in `send`, one after the other in rank order. In
    /// place, `send` is this rank's part of `receive`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); also when `receive` has not as many times the elements of `send` as there
    /// are ranks.
    pub fn all_gather<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.submit(Collective::AllGather, stream, || {
            times(self.size(), ("send", send.len()), ("receive", receive.len()))?;
            Ok(Request {
                collective: Collective::AllGather,
                send: Some(send),
                receive: Some(receive),
                count: send.len(),
                op: None,
                root: None,
                in_place: Some(self.rank()),
                stream,
            })
        })
    }
}
