//! Broadcast: every rank gets the root's elements.

use super::{Request, invalid, same_length};
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::types::{Collective, Element};

impl Communicator {
    /// Gives every rank, in `receive`, the elements that the root has in `send`. Only the root's `send` matters; if it is
    /// None, or the same as `receive`, the root's elements are in its `receive`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); also when `root` is not a rank.
    pub fn broadcast<T: Element>(
        &self,
        send: Option<&DeviceBuffer<T>>,
        receive: &DeviceBuffer<T>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.submit(Collective::Broadcast, stream, || {
            let send = if self.rank() == root { Some(send.unwrap_or(receive)) } else { None };
            if let Some(send) = send {
                same_length(send.len(), receive.len())?;
            }
            if root >= self.size() {
                return Err(invalid(format!("root {root} is not a rank of a communicator of {}", self.size())));
            }
            Ok(Request {
                collective: Collective::Broadcast,
                send,
                receive: Some(receive),
                count: receive.len(),
                op: None,
                root: Some(root),
                in_place: Some(0),
                stream,
            })
        })
    }
}
