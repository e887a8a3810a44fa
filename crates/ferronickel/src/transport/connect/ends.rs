//! The ends of connections through the network, as they are made for the proxy.

use std::sync::Arc;

use ferronickel_kernels::protocol::simple::slot_stride;
use ferronickel_kernels::protocol::{FLAG_STRIDE, Lends, Link, SLOTS};

use super::streams::{self, Streams};
use crate::device::region::Region;
use crate::error::{Error, Result};
use crate::proxy::{Connection, End};
use crate::transport::layout::LinkParts;

/// The ends that have been made.
pub(super) struct Ends {
    streams: Streams,
    pub sends: Vec<Connection>,
    pub receives: Vec<Connection>,
    /// What no peer sees: the slots of outgoing links, the heads of incoming ones.
    pub buffers: Vec<Arc<Region>>,
    /// How much of the last buffer is taken.
    taken: usize,
}

/// Which link an end is of.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The rank's own region.
    pub own: &'a Region,
    pub slot_bytes: usize,
    pub channel: usize,
    pub peer: usize,
}

/// Bytes of a buffer: many ends share one, since a process may have only so many mappings.
const BUFFER_BYTES: usize = 64 << 20;

impl Ends {
    pub fn new(streams: Streams) -> Ends {
        Ends { streams, sends: Vec::new(), receives: Vec::new(), buffers: Vec::new(), taken: 0 }
    }

    /// To a neighbour on a ring, to which there is a connection already.
    pub fn connected_outgoing(&mut self, place: Place<'_>, parts: &LinkParts) -> Result<Link> {
        let streams = streams::take(&mut self.streams.outgoing, place.channel);
        self.outgoing(place, parts, streams.into_iter().map(Some).collect())
    }

    /// From a neighbour on a ring, from which there is a connection already.
    pub fn connected_incoming(&mut self, place: Place<'_>, parts: &LinkParts) -> Result<Link> {
        let streams = streams::take(&mut self.streams.incoming, place.channel);
        self.incoming(place, parts, streams.into_iter().map(Some).collect())
    }

    /// To any rank: connected when something is sent.
    pub fn lazy_outgoing(&mut self, place: Place<'_>, parts: &LinkParts) -> Result<Link> {
        self.outgoing(place, parts, vec![None])
    }

    /// From any rank: connected when it sends something.
    pub fn lazy_incoming(&mut self, place: Place<'_>, parts: &LinkParts) -> Result<Link> {
        self.incoming(place, parts, vec![None])
    }

    /// The kernel's side of a link whose other side is the proxy: it fills slots of its own.
    fn outgoing(&mut self, place: Place<'_>, parts: &LinkParts, streams: Vec<streams::Lane>) -> Result<Link> {
        let Place { own, slot_bytes, channel, peer } = place;
        let buffer = self.buffer(FLAG_STRIDE + SLOTS as usize * slot_stride(slot_bytes))?;
        let link = Link {
            slots: buffer.wrapping_add(FLAG_STRIDE),
            tail: buffer.cast(),
            head: own.at(parts.head).cast(),
            arena: std::ptr::null_mut(),
            lends: Lends::Never,
            peer: peer as u32,
            step: 0,
        };
        self.sends.push((End::new(link, slot_bytes, channel as u32, streams.len()), streams));
        Ok(link)
    }

    /// The kernel's side of a link whose other side is the proxy, which fills the slots.
    fn incoming(&mut self, place: Place<'_>, parts: &LinkParts, streams: Vec<streams::Lane>) -> Result<Link> {
        let Place { own, slot_bytes, channel, peer } = place;
        let link = Link {
            slots: own.at(parts.slots),
            tail: own.at(parts.tail).cast(),
            head: self.buffer(FLAG_STRIDE)?.cast(),
            arena: std::ptr::null_mut(),
            lends: Lends::Never,
            peer: peer as u32,
            step: 0,
        };
        self.receives.push((End::new(link, slot_bytes, channel as u32, streams.len()), streams));
        Ok(link)
    }

    fn buffer(&mut self, bytes: usize) -> Result<*mut u8> {
        let bytes = bytes.next_multiple_of(FLAG_STRIDE);
        let last = self.buffers.last().filter(|last| self.taken + bytes <= last.bytes()).cloned();
        let buffer = match last {
            Some(buffer) => buffer,
            None => {
                let all = bytes.max(BUFFER_BYTES);
                let buffer = Region::private(all)
                    .map_err(|error| Error::system(&format!("mapping {all} bytes for NET/Socket"), error))?;
                self.buffers.push(buffer.clone());
                self.taken = 0;
                buffer
            }
        };
        let at = buffer.at(self.taken);
        self.taken += bytes;
        Ok(at)
    }
}
