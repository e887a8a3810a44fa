//! Barrier: no rank goes on before every rank has come.

use super::Request;
use crate::communicator::Communicator;
use crate::device::Stream;
use crate::error::Result;
use crate::types::Collective;

impl Communicator {
    /// What is queued on `stream` after it begins only once the barrier of every rank has begun.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        self.submit(Collective::Barrier, stream, || {
            Ok(Request::<u8> {
                collective: Collective::Barrier,
                send: None,
                receive: None,
                count: 0,
                op: None,
                root: None,
                in_place: Some(0),
                stream,
            })
        })
    }
}
