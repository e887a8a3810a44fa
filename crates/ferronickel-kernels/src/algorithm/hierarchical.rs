//! Hierarchical: two hops inside each node, a ring or trees across the nodes. Each byte crosses between nodes as often
//! as among as many ranks as there are nodes.
//!
//! The elements fall to as many *owners* on each node as the smallest node has ranks. The ranks of a node give each
//! owner its share, which reduces it; the owners of one share, one on each node, all-reduce it among themselves; each
//! gives the result to the ranks of its node.

use super::{for_pieces, ring, share, tree};
use crate::block::{Block, Stop};
use crate::element::Element;
use crate::protocol::{Link, Links, PassOn, Prepared, Step, Wire};
use crate::reduce::Reduce;

/// What a launch needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arguments<E> {
    /// This rank's elements.
    pub send: *const E,
    /// Where the result goes; may be the same as `send`.
    pub receive: *mut E,
    /// Elements.
    pub count: usize,
    /// For each rank, the link from it.
    pub from: *mut Link,
    /// For each rank, the link to it.
    pub to: *mut Link,
    /// The ranks of this node, in rank order.
    pub local: *const u32,
    /// How many they are.
    pub locals: u32,
    /// This rank's place among them.
    pub index: u32,
    /// Owners on each node; the first ranks of it are.
    pub owners: u32,
    /// Nodes, at least two.
    pub nodes: u32,
    /// How the owners of a share all-reduce it.
    pub across: Across,
    /// For an owner: its links to its neighbours on the ring of the nodes, and its place there.
    pub ring: Neighbours,
    /// For an owner: its places in the trees of the nodes.
    pub trees: [tree::Node; 2],
}

/// An owner's place on the ring of the nodes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Neighbours {
    /// From the owner on the previous node.
    pub from_previous: *mut Link,
    /// To the owner on the next node.
    pub to_next: *mut Link,
    /// This node's place.
    pub position: u32,
}

/// How nodes all-reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Across {
    /// By Ring.
    Ring,
    /// By Tree.
    Tree,
}

/// The links of a rank to or from the other ranks of its node.
#[derive(Clone, Copy)]
struct Node {
    table: *mut Link,
    local: *const u32,
    locals: usize,
    index: usize,
}

impl Links for Node {
    #[inline(always)]
    fn links(&self) -> usize {
        self.locals - 1
    }

    #[inline(always)]
    fn link(&self, k: usize) -> *mut Link {
        let k = k + (k >= self.index) as usize;
        // SAFETY: there is an entry for every rank of the node
        self.table.wrapping_add(unsafe { *self.local.add(k) } as usize)
    }
}

impl<E> Arguments<E> {
    #[inline(always)]
    fn node(&self, table: *mut Link) -> Node {
        Node { table, local: self.local, locals: self.locals as usize, index: self.index as usize }
    }

    /// The entry in `table` for rank number `k` of this node.
    #[inline(always)]
    fn local(&self, table: *mut Link, k: usize) -> *mut Link {
        // SAFETY: there is an entry for every rank of the node
        table.wrapping_add(unsafe { *self.local.add(k) } as usize)
    }
}

/// All-reduce.
///
/// # Errors
/// See [`Stop`].
///
/// # Safety
/// The pointers cover what [`Arguments`] says; every rank makes the same calls in the same order.
#[inline(always)]
pub unsafe fn all_reduce<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
) -> Result<(), Stop> {
    let a = *a;
    let (index, owners) = (a.index as usize, a.owners as usize);
    for_pieces(a.count, wire.slot::<E>() * owners, |begin, piece| {
        // SAFETY: a node has at least one owner; shares lie within the piece, the piece within the caller's ranges
        unsafe {
            let at = |owner: usize| {
                let (from, to) = share::<E>(piece, owner, owners);
                (a.send.wrapping_add(begin + from), a.receive.wrapping_add(begin + from), to - from)
            };
            let mut k = 0;
            while k < owners {
                if k != index {
                    let (own, _, n) = at(k);
                    wire.step(Step::of(op, n).with_own(own).send(a.local(a.to, k)))?;
                }
                k += 1;
            }
            if index < owners {
                let (own, keep, n) = at(index);
                wire.step(Step::of(op, n).with_own(own).receive_around(a.node(a.from), index).keep(keep))?;
                across(wire, op, &a, keep, n)?;
                wire.step(Step::of(PassOn, n).with_own(keep.cast_const()).send(a.node(a.to)))?;
            }
            let mut k = 0;
            while k < owners {
                if k != index {
                    let (_, keep, n) = at(k);
                    wire.step(Step::of(PassOn, n).receive(a.local(a.from, k)).keep(keep))?;
                }
                k += 1;
            }
        }
        Ok(())
    })?;
    // SAFETY: the caller's promise
    unsafe { wire.settle(a.node(a.to), a.count * size_of::<E>()) }
}

/// The owners of a share all-reduce it in place.
#[inline(always)]
unsafe fn across<B: Block, E: Element, R: Reduce<E>>(
    wire: impl Wire<B>,
    op: R,
    a: &Arguments<E>,
    partial: *mut E,
    count: usize,
) -> Result<(), Stop> {
    let (send, receive) = (partial.cast_const(), partial);
    // SAFETY: the caller's promise
    unsafe {
        match a.across {
            Across::Ring => {
                let Neighbours { from_previous, to_next, position } = a.ring;
                let (order, stride, root, ranks) = (core::ptr::null(), 0, 0, a.nodes);
                let ring = ring::Arguments {
                    send,
                    receive,
                    count,
                    from_previous,
                    to_next,
                    order,
                    stride,
                    position,
                    root,
                    ranks,
                };
                ring::all_reduce(wire, Prepared(op), &ring)
            }
            Across::Tree => {
                let tree = tree::Arguments { send, receive, count, trees: a.trees };
                tree::all_reduce(wire, Prepared(op), &tree)
            }
        }
    }
}
