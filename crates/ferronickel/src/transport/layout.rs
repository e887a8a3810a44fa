//! What lies where in the memory in which a rank receives.
//!
//! Every rank computes the same layout, so that it knows where to write at a peer. For each channel there is a probe
//! line for every other rank; where all ranks reach each other, the inboxes, the board and the stage of the direct
//! algorithms; and the ring's slots and counters. After the channels come, once, the links from every other rank.

use ferronickel_kernels::algorithm::{one_shot, two_shot};
use ferronickel_kernels::block::Block;
use ferronickel_kernels::protocol::{FLAG_STRIDE, SLOTS, ll, simple};

use crate::device::context::Capacities;
use crate::device::host::block::HostBlock;

/// The lines of an LL message in an inbox.
const LL_LINES: usize = 32;
/// The lines of an LL message on a link.
const LINK_LL_LINES: usize = 128;
/// Bytes that the slots of all links between all ranks may take, once all have been used.
const LINK_BYTES: usize = 1 << 30;
/// Bytes of elements that a slot of a link holds at least.
const LEAST_SLOT: usize = 16 << 10;

/// Where things are in a rank's region.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub capacities: Capacities,
    pub ranks: usize,
    pub channels: usize,
    /// Whether there are the direct algorithms' parts.
    pub direct: bool,
}

/// The parts of one channel, as offsets in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    pub probes: usize,
    pub ll_inbox: usize,
    pub simple_inbox: usize,
    pub board: usize,
    pub stage: usize,
    pub ring_simple: LinkParts,
    pub ring_ll: LinkParts,
    end: usize,
}

/// The parts of the links between this rank and one other, as offsets in a region: slots and tail of the link from it,
/// head of the link to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinkParts {
    pub slots: usize,
    pub tail: usize,
    pub head: usize,
}

impl Layout {
    /// A layout for `ranks` ranks; a ring's slots take `buffer_bytes` in all (`NCCL_BUFFSIZE`).
    pub fn new(ranks: usize, channels: usize, direct: bool, buffer_bytes: usize) -> Layout {
        // With more ranks each has less to send to each other, and there are more places.
        let place = |bytes: usize, least: usize| (bytes / ranks).next_power_of_two().max(least);
        let slot = (buffer_bytes / SLOTS as usize).next_multiple_of(FLAG_STRIDE);
        let link_share = LINK_BYTES / (ranks * ranks * SLOTS as usize);
        let capacities = Capacities {
            one_shot_ll: ll::capacity::<HostBlock<'_>>(LL_LINES),
            one_shot_simple: place(256 << 10, 8 << 10),
            stage: place(buffer_bytes / 2, 16 << 10),
            ring_ll: ll::capacity::<HostBlock<'_>>(LINK_LL_LINES) / 16 * 16,
            ring_simple: slot,
            link_simple: (link_share / FLAG_STRIDE * FLAG_STRIDE).max(LEAST_SLOT).min(slot),
        };
        Layout { capacities, ranks, channels, direct }
    }

    /// Bytes of a rank's region.
    pub fn bytes(&self) -> usize {
        self.links_at() + self.ranks * self.link_stride()
    }

    fn links_at(&self) -> usize {
        self.channels * self.parts(0).end
    }

    /// Bytes of the slots of one link, of Simple and of LL.
    fn link_slots(&self) -> (usize, usize) {
        let Capacities { link_simple, ring_ll, .. } = self.capacities;
        let lines = ll::lines::<HostBlock<'_>>(ring_ll) * HostBlock::LINE_BYTES;
        (SLOTS as usize * simple::slot_stride(link_simple), SLOTS as usize * lines)
    }

    /// Bytes of the links between a rank and one other.
    fn link_stride(&self) -> usize {
        let (simple, ll) = self.link_slots();
        // pages of their own, so that only those are touched that are used
        (4 * FLAG_STRIDE + simple + ll).next_multiple_of(4096)
    }

    /// Where the links between the rank whose region it is and `peer` are: with Simple, and with LL.
    pub fn link_parts(&self, peer: usize) -> (LinkParts, LinkParts) {
        let at = self.links_at() + peer * self.link_stride();
        let slots = at + 4 * FLAG_STRIDE;
        let flag = |k: usize| at + k * FLAG_STRIDE;
        let simple = LinkParts { tail: flag(0), head: flag(1), slots };
        (simple, LinkParts { tail: flag(2), head: flag(3), slots: slots + self.link_slots().0 })
    }

    /// Where the parts of `channel` are.
    pub fn parts(&self, channel: usize) -> Parts {
        let (capacities, ranks) = (&self.capacities, self.ranks);
        let mut next = 0;
        let mut take = |bytes: usize| {
            let at = next;
            next += bytes.next_multiple_of(FLAG_STRIDE);
            at
        };
        let direct = |bytes: usize| if self.direct { bytes } else { 0 };
        let mut parts = Parts {
            probes: take(ranks * FLAG_STRIDE),
            board: take(direct(two_shot::direct::board_bytes(ranks))),
            ll_inbox: take(direct(one_shot::ll_inbox_bytes::<HostBlock<'_>>(capacities.one_shot_ll, ranks))),
            simple_inbox: take(direct(one_shot::simple_inbox_bytes(capacities.one_shot_simple, ranks))),
            stage: take(direct(two_shot::staged::stage_bytes(capacities.stage, ranks))),
            ring_simple: LinkParts {
                tail: take(FLAG_STRIDE),
                head: take(FLAG_STRIDE),
                slots: take(SLOTS as usize * simple::slot_stride(capacities.ring_simple)),
            },
            ring_ll: LinkParts {
                tail: take(FLAG_STRIDE),
                head: take(FLAG_STRIDE),
                slots: take(SLOTS as usize * ll::lines::<HostBlock<'_>>(capacities.ring_ll) * HostBlock::LINE_BYTES),
            },
            end: 0,
        };
        // channels begin on pages of their own
        parts.end = next.next_multiple_of(4096);
        parts.shifted(channel * parts.end)
    }
}

impl Parts {
    fn shifted(self, by: usize) -> Parts {
        let ring =
            |parts: LinkParts| LinkParts { slots: parts.slots + by, tail: parts.tail + by, head: parts.head + by };
        Parts {
            probes: self.probes + by,
            ll_inbox: self.ll_inbox + by,
            simple_inbox: self.simple_inbox + by,
            board: self.board + by,
            stage: self.stage + by,
            ring_simple: ring(self.ring_simple),
            ring_ll: ring(self.ring_ll),
            end: self.end + by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every part is aligned and ends before the next begins, in every channel, for every shape.
    #[test]
    fn parts_do_not_overlap() {
        for (ranks, channels, direct, buffer) in
            [(2, 4, true, 1 << 20), (3, 2, true, 5000), (64, 1, true, 1 << 20), (5, 2, false, 1 << 16)]
        {
            let layout = Layout::new(ranks, channels, direct, buffer);
            let c = layout.capacities;
            let mut ranges = Vec::new();
            for channel in 0..channels {
                let p = layout.parts(channel);
                let (ring_simple, ring_ll) = (p.ring_simple, p.ring_ll);
                ranges.push((p.probes, ranks * FLAG_STRIDE));
                for ring in [ring_simple, ring_ll] {
                    ranges.extend([(ring.tail, 8), (ring.head, 8)]);
                }
                ranges.push((ring_simple.slots, 4 * (128 + c.ring_simple)));
                ranges.push((ring_ll.slots, 4 * (c.ring_ll + 8).div_ceil(56) * 64));
                if direct {
                    ranges.push((p.board, 2 * ranks * 128));
                    ranges.push((p.ll_inbox, 2 * ranks * (c.one_shot_ll + 8).div_ceil(56) * 64));
                    ranges.push((p.simple_inbox, 2 * ranks * (256 + c.one_shot_simple)));
                    ranges.push((p.stage, 2 * ranks * (256 + c.stage)));
                }
            }
            for peer in 0..ranks {
                let (simple, ll) = layout.link_parts(peer);
                for parts in [simple, ll] {
                    ranges.extend([(parts.tail, 8), (parts.head, 8)]);
                }
                ranges.push((simple.slots, 4 * (128 + c.link_simple)));
                ranges.push((ll.slots, 4 * (c.ring_ll + 8).div_ceil(56) * 64));
            }
            ranges.sort_unstable();
            assert!(ranges.iter().all(|&(at, _)| at % FLAG_STRIDE == 0));
            assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{layout:?}");
            let (last, length) = ranges[ranges.len() - 1];
            assert!(last + length <= layout.bytes());
        }
    }
}
