//! A rank's calls over links: ring, trees, flat, hierarchical.

use crate::rank::{Algorithm, Collective, Data, Rank, on_its_own};
use crate::shape::{TreePlace, double_binary_tree, rooted_tree};
use ferronickel_kernels::algorithm::hierarchical::{self, Across};
use ferronickel_kernels::algorithm::{flat, pat, ring, tree};
use ferronickel_kernels::block::{Block, Stop};
use ferronickel_kernels::element::Element;
use ferronickel_kernels::protocol::{Link, Wire};
use ferronickel_kernels::reduce::Reduce;

/// The root of a call; 0 if it has none.
fn root_of(what: Collective) -> usize {
    match what {
        Collective::Broadcast(root) | Collective::Reduce(root) => root,
        _ => 0,
    }
}

impl<B: Block> Rank<B> {
    /// Makes a call by an algorithm over links.
    ///
    /// # Safety
    /// As for [`Rank::call`].
    pub unsafe fn over_links<E: Element, R: Reduce<E>>(
        &self,
        wire: impl Wire<B>,
        is_ll: bool,
        what: Collective,
        how: Algorithm,
        op: R,
        data: Data<E>,
    ) -> Result<(), Stop> {
        // SAFETY: the caller's promise
        unsafe {
            match how {
                Algorithm::RingLl | Algorithm::RingSimple => self.ring(wire, is_ll, what, op, data),
                Algorithm::FlatLl | Algorithm::FlatSimple => self.flat(wire, is_ll, what, op, data),
                Algorithm::HierarchicalRing => self.hierarchical(wire, Across::Ring, op, data),
                Algorithm::HierarchicalTree => self.hierarchical(wire, Across::Tree, op, data),
                _ if matches!(what, Collective::AllGather | Collective::ReduceScatter) => {
                    self.pat(wire, is_ll, what, op, data)
                }
                _ => self.tree(wire, is_ll, what, op, data),
            }
        }
    }

    unsafe fn ring<E: Element, R: Reduce<E>>(
        &self,
        wire: impl Wire<B>,
        is_ll: bool,
        what: Collective,
        op: R,
        data: Data<E>,
    ) -> Result<(), Stop> {
        let ranks = self.shape.ranks;
        // not in the order of the ranks: 0, n - 1, n - 2, ...
        let order: Vec<_> = (0..ranks).map(|place| ((ranks - place) % ranks) as u32).collect();
        let place = |rank: usize| (ranks - rank) % ranks;
        let position = place(self.rank);
        let at = |place: usize| order[place % ranks] as usize;
        let (from, to) = self.tables(is_ll);
        let root = root_of(what);
        let a = ring::Arguments {
            send: data.send,
            receive: data.receive,
            count: data.count,
            from_previous: from.wrapping_add(at(position + ranks - 1)),
            to_next: to.wrapping_add(at(position + 1)),
            order: order.as_ptr(),
            stride: data.count,
            position: position as u32,
            root: place(root) as u32,
            ranks: ranks as u32,
        };
        // SAFETY: the caller's promise
        unsafe {
            match what {
                Collective::Broadcast(_) => on_its_own(|| ring::broadcast(wire, &a)),
                Collective::Reduce(_) => on_its_own(|| ring::reduce(wire, op, &a)),
                Collective::AllGather => on_its_own(|| ring::all_gather(wire, &a)),
                Collective::ReduceScatter => on_its_own(|| ring::reduce_scatter(wire, op, &a)),
                _ => on_its_own(|| ring::all_reduce(wire, op, &a)),
            }
        }
    }

    /// What algorithms over the links between any two ranks need.
    fn to_any<E>(&self, is_ll: bool, what: Collective, data: Data<E>) -> flat::Arguments<E> {
        let (from, to) = self.tables(is_ll);
        flat::Arguments {
            send: data.send,
            receive: data.receive,
            count: data.count,
            from,
            to,
            stride: data.count,
            rank: self.rank as u32,
            root: root_of(what) as u32,
            ranks: self.shape.ranks as u32,
        }
    }

    unsafe fn flat<E: Element, R: Reduce<E>>(
        &self,
        wire: impl Wire<B>,
        is_ll: bool,
        what: Collective,
        op: R,
        data: Data<E>,
    ) -> Result<(), Stop> {
        let a = self.to_any(is_ll, what, data);
        // SAFETY: the caller's promise
        unsafe {
            match what {
                Collective::Broadcast(_) => on_its_own(|| flat::broadcast(wire, &a)),
                Collective::Reduce(_) => on_its_own(|| flat::reduce(wire, op, &a)),
                Collective::AllGather => on_its_own(|| flat::all_gather(wire, &a)),
                Collective::ReduceScatter => on_its_own(|| flat::reduce_scatter(wire, op, &a)),
                _ => on_its_own(|| flat::all_reduce(wire, op, &a)),
            }
        }
    }

    unsafe fn pat<E: Element, R: Reduce<E>>(
        &self,
        wire: impl Wire<B>,
        is_ll: bool,
        what: Collective,
        op: R,
        data: Data<E>,
    ) -> Result<(), Stop> {
        let a = self.to_any(is_ll, what, data);
        // SAFETY: the caller's promise
        unsafe {
            match what {
                Collective::AllGather => on_its_own(|| pat::all_gather(wire, &a)),
                _ => on_its_own(|| pat::reduce_scatter(wire, op, &a)),
            }
        }
    }

    /// The links of a place in a tree.
    fn node(&self, is_ll: bool, place: TreePlace) -> tree::Node {
        let (from, to) = self.tables(is_ll);
        let along =
            |table: *mut Link, rank: Option<usize>| rank.map_or(std::ptr::null_mut(), |rank| table.wrapping_add(rank));
        tree::Node {
            to_parent: along(to, place.parent),
            from_parent: along(from, place.parent),
            from_children: place.children.map(|child| along(from, child)),
            to_children: place.children.map(|child| along(to, child)),
        }
    }

    unsafe fn tree<E: Element, R: Reduce<E>>(
        &self,
        wire: impl Wire<B>,
        is_ll: bool,
        what: Collective,
        op: R,
        data: Data<E>,
    ) -> Result<(), Stop> {
        let (rank, ranks) = (self.rank, self.shape.ranks);
        let places = match what {
            Collective::Broadcast(root) | Collective::Reduce(root) => [rooted_tree(ranks, rank, root); 2],
            _ => double_binary_tree(ranks, rank),
        };
        let trees = places.map(|place| self.node(is_ll, place));
        let a = tree::Arguments { send: data.send, receive: data.receive, count: data.count, trees };
        // SAFETY: the caller's promise
        unsafe {
            match what {
                Collective::Broadcast(_) => on_its_own(|| tree::broadcast(wire, &a)),
                Collective::Reduce(_) => on_its_own(|| tree::reduce(wire, op, &a)),
                _ => on_its_own(|| tree::all_reduce(wire, op, &a)),
            }
        }
    }

    /// Two nodes: the first third of the ranks, at least one, and the others.
    unsafe fn hierarchical<E: Element, R: Reduce<E>>(
        &self,
        wire: impl Wire<B>,
        across: Across,
        op: R,
        data: Data<E>,
    ) -> Result<(), Stop> {
        let (rank, ranks) = (self.rank, self.shape.ranks);
        let first = ranks.div_ceil(3);
        let owners = first.min(ranks - first);
        let position = (rank >= first) as usize;
        let start = position * first;
        let locals = if position == 0 { first } else { ranks - first };
        let local: Vec<_> = (start..start + locals).map(|rank| rank as u32).collect();
        let index = rank - start;
        // the owner of the same share on the other node
        let other = if position == 0 { first + index } else { index };
        let (from, to) = self.tables(false);
        let is_owner = index < owners;
        let trees = match is_owner {
            true => double_binary_tree(2, position).map(|place| {
                let rank = |node: usize| if node == position { rank } else { other };
                self.node(false, place.map(rank))
            }),
            false => [self.node(false, Default::default()); 2],
        };
        let null = std::ptr::null_mut();
        let (from_previous, to_next) =
            if is_owner { (from.wrapping_add(other), to.wrapping_add(other)) } else { (null, null) };
        let a = hierarchical::Arguments {
            send: data.send,
            receive: data.receive,
            count: data.count,
            from,
            to,
            local: local.as_ptr(),
            locals: locals as u32,
            index: index as u32,
            owners: owners as u32,
            nodes: 2,
            across,
            ring: hierarchical::Neighbours { from_previous, to_next, position: position as u32 },
            trees,
        };
        // SAFETY: the caller's promise
        unsafe { on_its_own(|| hierarchical::all_reduce(wire, op, &a)) }
    }
}
