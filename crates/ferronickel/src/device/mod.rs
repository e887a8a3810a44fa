//! Where collectives run: devices, their memory and their streams.
//!
//! A *host device* is made of the machine's own processors and memory: a buffer lies in RAM, a stream is an ordered
//! queue, a block is a thread. Any number of them may exist.

pub(crate) mod arena;
mod buffer;
pub(crate) mod context;
pub(crate) mod host;
pub(crate) mod launch;
mod memory;
pub(crate) mod progress;
pub(crate) mod region;
pub(crate) mod shape;
pub(crate) mod work;

use std::fmt;

pub use buffer::DeviceBuffer;
pub use host::stream::Stream;
pub(crate) use memory::{LAST_STREAM, Memory, Use};

use crate::error::Result;
use crate::types::Element;

/// A device on which a rank runs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Device {
    index: u32,
}

/// A device's place on the PCI bus. A host device has none; its index stands in the place of the bus, so that every
/// device has an address of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BusId {
    /// The PCI domain.
    pub domain: u32,
    /// The bus in the domain.
    pub bus: u32,
    /// The device on the bus.
    pub device: u32,
}

impl Device {
    /// The host device with this index. There is one for every index; they share the machine's processors.
    pub fn host(index: u32) -> Device {
        Device { index }
    }

    /// The device's index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What the device is.
    pub fn name(&self) -> String {
        "Host device".into()
    }

    /// Where the device is.
    pub fn bus_id(&self) -> BusId {
        BusId { domain: self.index >> 16, bus: self.index >> 8 & 0xff, device: self.index & 0xff }
    }

    /// Memory for `count` elements, zeroed.
    ///
    /// # Errors
    /// [`System`](crate::ErrorKind::System) when the machine has no such memory to give.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::new(self, count)
    }

    /// A new stream.
    ///
    /// # Errors
    /// [`System`](crate::ErrorKind::System) when the process has some 65 thousand streams already.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host device {}", self.index)
    }
}

impl BusId {
    /// NCCL's number for it: what the log prints in hexadecimal as `busId`.
    pub fn as_number(self) -> u64 {
        (self.domain as u64) << 20 | (self.bus as u64) << 12 | (self.device as u64) << 4
    }
}
