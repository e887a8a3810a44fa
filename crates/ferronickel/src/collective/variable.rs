//! All-gather and all-to-all with different counts for different ranks: groups of messages.

use super::invalid;
use crate::communicator::Communicator;
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::group::group;
use crate::types::Element;

impl Communicator {
    /// All-gather of different counts: gives every rank, in `receive`, the elements that all ranks have in `send`, one
    /// after the other in rank order. `counts` says how many each rank gives: the same on every rank.
    ///
    /// # Errors
    /// As for [`all_gather`](Self::all_gather); also when `counts` does not fit the buffers.
    pub fn all_gather_v<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        counts: &[usize],
        stream: &Stream,
    ) -> Result<()> {
        let received = self.parts("counts", counts, "receive", receive).map_err(|error| self.name_v(error, true))?;
        if send.len() != counts[self.rank()] {
            let seen = format!("send has {} elements, counts says {}", send.len(), counts[self.rank()]);
            return Err(self.name_v(invalid(seen), true));
        }
        group(|| {
            (0..self.size()).try_for_each(|peer| self.send(send, peer, stream))?;
            (0..self.size()).try_for_each(|peer| self.receive(&received[peer], peer, stream))
        })
    }

    /// All-to-all of different counts: sends each rank its part of `send`, and receives in `receive` what each sends to
    /// this one, both in rank order. What one rank means to send to another must be what that one means to receive.
    ///
    /// # Errors
    /// As for [`all_to_all`](Self::all_to_all); also when the counts do not fit the buffers.
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        send_counts: &[usize],
        receive: &DeviceBuffer<T>,
        receive_counts: &[usize],
        stream: &Stream,
    ) -> Result<()> {
        let name = |error| self.name_v(error, false);
        let sent = self.parts("send_counts", send_counts, "send", send).map_err(name)?;
        let received = self.parts("receive_counts", receive_counts, "receive", receive).map_err(name)?;
        group(|| {
            (0..self.size()).try_for_each(|peer| self.send(&sent[peer], peer, stream))?;
            (0..self.size()).try_for_each(|peer| self.receive(&received[peer], peer, stream))
        })
    }

    fn name_v(&self, error: crate::Error, gathers: bool) -> crate::Error {
        self.inner().place(error, if gathers { "all_gather_v" } else { "all_to_all_v" })
    }

    /// The parts of a buffer, one after the other.
    fn parts<T: Element>(
        &self,
        what: &str,
        counts: &[usize],
        buffer_name: &str,
        buffer: &DeviceBuffer<T>,
    ) -> Result<Vec<DeviceBuffer<T>>> {
        if counts.len() != self.size() {
            let seen = format!("{what} has {} entries for {} ranks", counts.len(), self.size());
            return Err(invalid(seen).hint("give one count for each rank"));
        }
        let all = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
        if all != Some(buffer.len()) {
            let sum = all.map_or("more than can be counted".into(), |sum| sum.to_string());
            let seen = format!("{buffer_name} has {} elements, {what} are {sum} together", buffer.len());
            return Err(invalid(seen).hint("let the counts add up to the length of the buffer"));
        }
        let mut at = 0;
        counts
            .iter()
            .map(|&count| {
                at += count;
                buffer.slice(at - count..at)
            })
            .collect()
    }
}
