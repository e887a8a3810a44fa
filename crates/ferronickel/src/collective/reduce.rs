//! Reduce: the root gets the reduction of every rank's elements.

use super::{Request, at_root, same_length};
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::operation::Operation;
use crate::types::{Collective, Element};

impl Communicator {
    /// Reduces the elements of all ranks, `send` of each, and gives the result to the root in `receive`, which may be the
    /// same as its `send`. The others' `receive` is not used.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); also when `root` is not a rank, or has no `receive`.
    pub fn reduce<'a, T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        receive: Option<&DeviceBuffer<T>>,
        op: impl Into<Operation<'a, T>>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let op = op.into();
        self.submit(Collective::Reduce, stream, || {
            let receive = at_root("receive", receive, self.rank() == root)?;
            if let Some(receive) = receive {
                same_length(send.len(), receive.len())?;
            }
            Ok(Request {
                collective: Collective::Reduce,
                send: Some(send),
                receive,
                count: send.len(),
                op: Some(op),
                root: Some(root),
                in_place: Some(0),
                stream,
            })
        })
    }
}
