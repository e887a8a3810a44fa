//! Gather: the root gets every rank's elements.

use super::{Request, at_root, times};
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::types::{Collective, Element};

impl Communicator {
    /// Gives the root, in `receive`, the elements that all ranks have in `send`, one after the other in rank order. In
    /// place, the root's `send` is its part of its `receive`. The others' `receive` is not used.
    ///
    /// # Errors
    /// As for [`all_gather`](Self::all_gather); also when `root` is not a rank, or has no `receive`.
    pub fn gather<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        receive: Option<&DeviceBuffer<T>>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.submit(Collective::Gather, stream, || {
            let receive = at_root("receive", receive, self.rank() == root)?;
            if let Some(receive) = receive {
                times(self.size(), ("send", send.len()), ("receive", receive.len()))?;
            }
            Ok(Request {
                collective: Collective::Gather,
                send: Some(send),
                receive,
                count: send.len(),
                op: None,
                root: Some(root),
                in_place: Some(self.rank()),
                stream,
            })
        })
    }
}
