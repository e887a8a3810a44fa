//! All-to-all: every rank sends a part of its elements to every rank.

use super::{Request, invalid, same_length};
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::types::{Collective, Element};

impl Communicator {
    /// Sends each rank its part of `send`, the first to rank 0 and so on, and receives in `receive` what each rank sends
    /// to this one, in rank order. The two may not overlap.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); also when the elements cannot be divided among the ranks.
    pub fn all_to_all<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.submit(Collective::AllToAll, stream, || {
            same_length(send.len(), receive.len())?;
            let size = self.size();
            if !send.len().is_multiple_of(size) {
                let seen = format!("{} elements cannot be divided among {size} ranks", send.len());
                return Err(invalid(seen).hint(format!("give a multiple of {size}")));
            }
            Ok(Request {
                collective: Collective::AllToAll,
                send: Some(send),
                receive: Some(receive),
                count: send.len() / size,
                op: None,
                root: None,
                // in place would mean that a rank overwrites what it has still to send; alone it has nothing to
                in_place: (size == 1).then_some(0),
                stream,
            })
        })
    }
}
