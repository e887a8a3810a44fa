//! The links of a rank: to its neighbours on each channel's ring, and to every other rank.

use std::sync::Arc;

use ferronickel_kernels::protocol::{Lends, Link};

use super::ends::{Ends, Place};
use super::{Neighbours, Request};
use crate::device::context::{LinkTable, PairLinks, Ring, RingLinks};
use crate::device::region::Region;
use crate::error::Result;
use crate::transport::Transport;
use crate::transport::layout::LinkParts;

/// The regions of all ranks, as far as this one reaches them.
type Regions = [Option<Arc<Region>>];

impl Request<'_> {
    fn transport(&self, from: usize, to: usize) -> Transport {
        // a rank that is alone is its own neighbour
        if from == to { Transport::P2p } else { self.roads.transport(from, to) }
    }

    /// A link through memory: slots and tail at the receiver, head at the sender.
    fn memory_link(&self, regions: &Regions, from: usize, to: usize, parts: (LinkParts, LinkParts)) -> Option<Link> {
        let transport = self.transport(from, to);
        let (at_sender, at_receiver) = (regions[from].as_ref()?, regions[to].as_ref()?);
        let lends = match transport {
            Transport::Net => return None,
            Transport::P2p => Lends::Address,
            Transport::Ipc => Lends::Offset,
            Transport::Shm => Lends::Never,
        };
        let (sender, receiver) = parts;
        Some(Link {
            slots: at_receiver.at(receiver.slots),
            tail: at_receiver.at(receiver.tail).cast(),
            head: at_sender.at(sender.head).cast(),
            arena: self.arena_of(from),
            lends,
            peer: (if from == self.rank { to } else { from }) as u32,
            step: 0,
        })
    }

    /// The arena of `rank`'s process as this process sees it; null if it is this process.
    fn arena_of(&self, rank: usize) -> *mut u8 {
        self.member.session().arena_of(rank).map_or(std::ptr::null_mut(), |arena| arena.at(0))
    }

    pub(super) fn ring(&self, regions: &Regions, channel: usize, ends: &mut Ends) -> Result<Ring> {
        let Neighbours { position, previous, next } = self.neighbours(channel);
        let parts = self.layout.parts(channel);
        let own = regions[self.rank].as_ref().expect("a rank reaches itself");
        let same = |parts| (parts, parts);
        let place = |peer| Place { own, slot_bytes: self.layout.capacities.ring_simple, channel, peer };
        let to_next = match self.memory_link(regions, self.rank, next, same(parts.ring_simple)) {
            Some(link) => link,
            None => ends.connected_outgoing(place(next), &parts.ring_simple)?,
        };
        let from_previous = match self.memory_link(regions, previous, self.rank, same(parts.ring_simple)) {
            Some(link) => link,
            None => ends.connected_incoming(place(previous), &parts.ring_simple)?,
        };
        let from_ll = self.memory_link(regions, previous, self.rank, same(parts.ring_ll));
        let to_ll = self.memory_link(regions, self.rank, next, same(parts.ring_ll));
        Ok(Ring {
            position: position as u32,
            order: self.rings[channel].iter().map(|&rank| rank as u32).collect(),
            simple: RingLinks::new(from_previous, to_next),
            ll: from_ll.zip(to_ll).map(|(from_previous, to_next)| RingLinks::new(from_previous, to_next)),
        })
    }

    /// The links with every other rank.
    pub(super) fn pair_links(&self, regions: &Regions, ends: &mut Ends) -> Result<PairLinks> {
        let own = regions[self.rank].as_ref().expect("a rank reaches itself");
        let mut simple = (Vec::new(), Vec::new());
        let mut ll = (Vec::new(), Vec::new());
        let with_ll = self.roads.slowest() != Transport::Net;
        // what the network connects only: it has no number among the channels
        let channel = self.layout.channels;
        for peer in 0..self.roads.ranks() {
            let ours = self.layout.link_parts(peer);
            let theirs = self.layout.link_parts(self.rank);
            let place = Place { own, slot_bytes: self.layout.capacities.link_simple, channel, peer };
            simple.0.push(match self.memory_link(regions, peer, self.rank, (theirs.0, ours.0)) {
                Some(link) => link,
                None => ends.lazy_incoming(place, &ours.0)?,
            });
            simple.1.push(match self.memory_link(regions, self.rank, peer, (ours.0, theirs.0)) {
                Some(link) => link,
                None => ends.lazy_outgoing(place, &ours.0)?,
            });
            if with_ll {
                let reached = "only the network leads elsewhere than to memory";
                ll.0.push(self.memory_link(regions, peer, self.rank, (theirs.1, ours.1)).expect(reached));
                ll.1.push(self.memory_link(regions, self.rank, peer, (ours.1, theirs.1)).expect(reached));
            }
        }
        let table = |(from, to)| LinkTable::new(from, to);
        Ok(PairLinks { simple: table(simple), ll: with_ll.then(|| table(ll)) })
    }
}
