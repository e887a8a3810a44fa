//! Scatter: every rank gets its part of the root's elements.

use super::{Request, at_root, times};
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::types::{Collective, Element};

impl Communicator {
    /// Gives each rank, in `receive`, its part of the elements that the root has in `send`: the first to rank 0, and so
    /// on. In place, the root's `receive` is its part of its `send`. The others' `send` is not used.
    ///
    /// # Errors
    /// As for [`reduce_scatter`](Self::reduce_scatter); also when `root` is not a rank, or has no `send`.
    pub fn scatter<T: Element>(
        &self,
        send: Option<&DeviceBuffer<T>>,
        receive: &DeviceBuffer<T>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.submit(Collective::Scatter, stream, || {
            let send = at_root("send", send, self.rank() == root)?;
            if let Some(send) = send {
                times(self.size(), ("receive", receive.len()), ("send", send.len()))?;
            }
            Ok(Request {
                collective: Collective::Scatter,
                send,
                receive: Some(receive),
                count: receive.len(),
                op: None,
                root: Some(root),
                in_place: Some(self.rank()),
                stream,
            })
        })
    }
}
