//! Messages between two ranks.

use super::{check_count, invalid, same_device, uses};
use crate::communicator::Communicator;
use crate::device::work::Message;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::group::{self, Call};
use crate::types::{CallDescription, Collective, Element};

impl Communicator {
    /// Sends the elements of `buffer` to rank `peer`, which must [`receive`](Self::receive) as many of the same type.
    ///
    /// Messages between the same two ranks come in the order in which they were sent. Those of one
    /// [`group`](crate::group()) move all at the same time, whatever their order: so two ranks that send to each other
    /// must group the two calls. A rank may send to itself, and receive it in the same group.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); also when `peer` is not a rank.
    pub fn send<T: Element>(&self, buffer: &DeviceBuffer<T>, peer: usize, stream: &Stream) -> Result<()> {
        self.message("send", true, buffer, peer, stream)
    }

    /// Receives the elements of `buffer` from rank `peer`, which must [`send`](Self::send) as many of the same type.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn receive<T: Element>(&self, buffer: &DeviceBuffer<T>, peer: usize, stream: &Stream) -> Result<()> {
        self.message("receive", false, buffer, peer, stream)
    }

    fn message<T: Element>(
        &self,
        name: &'static str,
        sends: bool,
        buffer: &DeviceBuffer<T>,
        peer: usize,
        stream: &Stream,
    ) -> Result<()> {
        let check = || {
            self.inner().usable()?;
            if peer >= self.size() {
                let seen = format!("rank {peer} is not in a communicator of {}", self.size());
                return Err(invalid(seen).hint(format!("ranks are 0 to {}", self.size() - 1)));
            }
            same_device(self, "stream", stream.device())?;
            same_device(self, "the buffer", buffer.device())?;
            check_count(buffer.len())?;
            let call = CallDescription::new(Collective::SendReceive, T::DATA_TYPE, None, None, buffer.len());
            let message = Message {
                peer,
                sends,
                buffer: buffer.as_ptr().cast_mut().cast(),
                bytes: buffer.len() * size_of::<T>(),
                call: call.to_bits(),
            };
            Ok((Call { name, work: message.into() }, [uses(Some(buffer), !sends), None, None]))
        };
        // before a group keeps it
        let call = check().map_err(|error| self.inner().place(error, name));
        group::submit(self.inner(), stream.shared(), call)
    }
}
