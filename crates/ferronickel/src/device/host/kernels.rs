//! From a launch to the kernel that does it: picks the size of element, the collective and the algorithm, and gives
//! each channel its part.

use std::cell::Cell;

use ferronickel_kernels::algorithm::two_shot::direct::Outcome;
use ferronickel_kernels::algorithm::{exchange, flat, hierarchical, one_shot, pat, ring, share, tree, two_shot};
use ferronickel_kernels::block::{Block, Reduction, Stop};
use ferronickel_kernels::element::{Element, F16};
use ferronickel_kernels::protocol::ll::LowLatency;
use ferronickel_kernels::protocol::simple::Simple;
use ferronickel_kernels::protocol::{Arena, CallContext, Lending, Link, Wire};
use ferronickel_kernels::reduce::Reduce;

use super::block::HostBlock;
use super::operation::Operation;
use crate::device::arena;
use crate::device::context::{Channel, DirectTables, LinkTable, RankContext};
use crate::device::launch::Launch;
use crate::device::shape::{NodePlace, TreePlace, rooted_tree};
use crate::device::work::{CollectiveWork, Kernel, Message, Work};
use crate::types::Collective;

/// Runs what a launch is to do, on this thread.
pub(crate) fn run(launch: &Launch) -> Result<(), Stop> {
    match &launch.work {
        Work::Meet => Ok(()),
        Work::Exchange(messages) => {
            for (from, to) in &messages.own {
                // SAFETY: the launch's pointers cover what its messages say; both ends are equally long, and buffers may
                // overlap
                unsafe { std::ptr::copy(from.buffer, to.buffer, from.bytes) };
            }
            run_exchange(launch, messages.between.iter().copied())
        }
        // of the elements only the operation knows more than their size
        Work::Collective(work) => match work.data_type.size_of() {
            1 => Typed::<u8>::of(launch, work).run(),
            2 => Typed::<F16>::of(launch, work).run(),
            4 => Typed::<u32>::of(launch, work).run(),
            _ => Typed::<u64>::of(launch, work).run(),
        },
    }
}

/// The least bytes that are lent: below, a copy costs less than to wait until the receiver has read.
const LEND_BYTES: usize = 16 << 10;

/// What this rank can lend.
fn lending(context: &RankContext) -> Lending {
    Lending { arena: own_arena(context), least: LEND_BYTES }
}

/// The arena in which other processes reach this rank's buffers.
fn own_arena(context: &RankContext) -> Arena {
    if !context.apart {
        // within a process addresses say everything
        return Arena::NONE;
    }
    arena::Arena::of_process().map_or(Arena::NONE, arena::Arena::range)
}

/// Moves `messages`, of which those along one link stand next to each other, in order.
fn run_exchange(launch: &Launch, messages: impl Iterator<Item = Message>) -> Result<(), Stop> {
    let context = &*launch.context;
    let block = HostBlock::of(launch);
    // SAFETY: it is this call's turn, so nobody else uses them
    let transfers = unsafe { &mut *context.transfers.get() };
    transfers.clear();
    let table = &context.links.simple;
    let mut last = None;
    for message in messages {
        let link = if message.sends { table.outgoing() } else { table.incoming() }.wrapping_add(message.peer);
        transfers.push(exchange::Transfer {
            link,
            buffer: message.buffer,
            bytes: message.bytes,
            call: message.call,
            sends: message.sends,
            follows: last == Some(link),
            moved: 0,
            lent_until: 0,
            done: false,
        });
        last = Some(link);
    }
    let (slot_bytes, lending) = (context.capacities.link_simple, lending(context));
    // SAFETY: the launch's pointers cover what its messages say, and the links are this rank's
    unsafe { exchange::exchange(block, transfers.as_mut_ptr(), transfers.len(), slot_bytes, &lending) }
}

/// A collective on elements of the size of `E`.
struct Typed<'a, E> {
    launch: &'a Launch,
    work: &'a CollectiveWork,
    context: &'a RankContext,
    block: HostBlock<'a>,
    op: Operation,
    send: *const E,
    receive: *mut E,
}

/// What falls to one channel: elements from `begin`, of those of each rank or of all.
#[derive(Clone, Copy)]
struct Part<'a> {
    channel: &'a Channel,
    index: usize,
    begin: usize,
    count: usize,
}

impl<'a, E: Element> Typed<'a, E> {
    fn of(launch: &'a Launch, work: &'a CollectiveWork) -> Self {
        let context = &*launch.context;
        let op = Operation::new(work.data_type, work.op, context.ranks as u32);
        // to the algorithms a null pointer says that there is no such buffer, not that it is empty
        let some = |pointer: *mut E| if pointer.is_null() { std::ptr::dangling_mut() } else { pointer };
        let (send, receive) = (some(work.send.cast_mut().cast()).cast_const(), some(work.receive.cast()));
        Typed { launch, work, context, block: HostBlock::of(launch), op, send, receive }
    }

    fn run(&self) -> Result<(), Stop> {
        if self.work.kernel == Kernel::Copy {
            self.copy();
            return Ok(());
        }
        if self.work.kernel == Kernel::Exchange {
            return self.exchange();
        }
        for (index, channel) in self.context.channels.iter().take(self.work.channels).enumerate() {
            // SAFETY: a launch has at least one channel
            let (begin, end) = unsafe { share::<E>(self.work.count, index, self.work.channels) };
            let part = Part { channel, index, begin, count: end - begin };
            // SAFETY: the launch's pointers cover what its collective says, the tables lead to memory that the context
            // keeps, it is this call's turn, and every rank makes the same calls (which the kernels check)
            unsafe { self.run_part(part)? };
        }
        Ok(())
    }

    /// What a rank that is alone does.
    fn copy(&self) {
        let (op, count) = (self.op, self.work.count);
        let reduces = self.work.collective.reduces();
        // SAFETY: the launch's pointers cover its count
        unsafe {
            if reduces && (Reduce::<E>::prepares(op) || Reduce::<E>::finishes(op)) {
                self.block.reduce(Reduction::new(op, [self.receive], [self.send], count, true));
            } else if !std::ptr::eq(self.send, self.receive) {
                self.block.copy(self.receive, self.send, count);
            }
        }
    }

    /// Collectives that are messages between pairs of ranks.
    fn exchange(&self) -> Result<(), Stop> {
        let CollectiveWork { collective, root, count, .. } = *self.work;
        let (rank, ranks) = (self.context.rank, self.context.ranks);
        let bytes = count * size_of::<E>();
        let sends = |peer: usize| match collective {
            Collective::AllToAll => Some(self.send.wrapping_add(peer * count)),
            Collective::Gather => (peer == root).then_some(self.send),
            _ => (rank == root).then(|| self.send.wrapping_add(peer * count)),
        };
        let receives = |peer: usize| match collective {
            Collective::AllToAll => Some(self.receive.wrapping_add(peer * count)),
            Collective::Gather => (rank == root).then(|| self.receive.wrapping_add(peer * count)),
            _ => (peer == root).then_some(self.receive),
        };
        if let (Some(from), Some(to)) = (sends(rank), receives(rank))
            && !std::ptr::eq(from, to)
        {
            // SAFETY: the launch's pointers cover what its collective says
            unsafe { self.block.copy(to, from, count) };
        }
        let message =
            |peer, sends, buffer: *mut E| Message { peer, sends, buffer: buffer.cast(), bytes, call: self.launch.call };
        let messages = (1..ranks).flat_map(|k| {
            // every rank begins elsewhere, so that none is overrun
            let (to, from) = ((rank + k) % ranks, (rank + ranks - k) % ranks);
            let sent = sends(to).map(|buffer| message(to, true, buffer.cast_mut()));
            [sent, receives(from).map(|buffer| message(from, false, buffer))].into_iter().flatten()
        });
        run_exchange(self.launch, messages)
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn run_part(&self, part: Part<'_>) -> Result<(), Stop> {
        let (links, channel) = (&self.context.links, part.channel);
        let expected = "planned only where every road carries LL";
        // SAFETY: the caller's promise
        unsafe {
            match self.work.kernel {
                Kernel::OneShotLl | Kernel::OneShotSimple => self.one_shot(part),
                Kernel::TwoShotDirect => match two_shot::direct::all_reduce(self.block, self.op, &self.direct(part))? {
                    Outcome::Done => Ok(()),
                    Outcome::OutOfReach => self.staged(part),
                },
                Kernel::TwoShotStaged => self.staged(part),
                Kernel::RingSimple => {
                    let (from, to) = (channel.ring.simple.incoming(), channel.ring.simple.outgoing());
                    self.ring(self.simple(self.context.capacities.ring_simple), part, from, to)
                }
                Kernel::RingLl => {
                    let ring = channel.ring.ll.as_ref().expect(expected);
                    self.ring(self.ll(), part, ring.incoming(), ring.outgoing())
                }
                Kernel::TreeSimple => self.tree(self.pair_wire(), &links.simple),
                Kernel::TreeLl => self.tree(self.ll(), links.ll.as_ref().expect(expected)),
                Kernel::PatSimple => self.pat(self.pair_wire(), &links.simple),
                Kernel::PatLl => self.pat(self.ll(), links.ll.as_ref().expect(expected)),
                Kernel::FlatSimple => self.flat(self.pair_wire(), &links.simple),
                Kernel::FlatLl => self.flat(self.ll(), links.ll.as_ref().expect(expected)),
                Kernel::Hierarchical(_) => self.hierarchical(),
                Kernel::Copy | Kernel::Exchange => unreachable!("they have no parts"),
            }
        }
    }

    fn call_context(&self, slot_bytes: usize) -> CallContext {
        CallContext { call: self.launch.call, slot_bytes, lending: lending(self.context) }
    }

    fn simple(&self, slot_bytes: usize) -> Simple<HostBlock<'a>> {
        Simple { block: self.block, context: self.call_context(slot_bytes) }
    }

    /// The wire of the links between any two ranks.
    fn pair_wire(&self) -> Simple<HostBlock<'a>> {
        self.simple(self.context.capacities.link_simple)
    }

    fn ll(&self) -> LowLatency<HostBlock<'a>> {
        let context =
            CallContext { call: self.launch.call, slot_bytes: self.context.capacities.ring_ll, lending: Lending::NONE };
        LowLatency { block: self.block, context }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn one_shot(&self, part: Part<'_>) -> Result<(), Stop> {
        let Part { channel, begin, count, .. } = part;
        let (tables, capacities) = (direct(channel), &self.context.capacities);
        let is_ll = self.work.kernel == Kernel::OneShotLl;
        let (inboxes, capacity, counter) = match is_ll {
            true => (&tables.ll_inboxes, capacities.one_shot_ll, &channel.counters.ll_inbox),
            false => (&tables.simple_inboxes, capacities.one_shot_simple, &channel.counters.simple_inbox),
        };
        let all = self.work.count;
        let (send_stride, receive_stride) = match self.work.collective {
            Collective::AllGather => (0, all),
            Collective::ReduceScatter => (all, 0),
            Collective::AllToAll => (all, all),
            _ => (0, 0),
        };
        let reduces = self.work.collective.reduces();
        let (block, op) = (self.block, self.op);
        let most = capacity / 16 * 16 / size_of::<E>();
        let mut done = 0;
        // what does not fit a place goes in several epochs; what is empty meets the others all the same
        while done < count || done == 0 {
            let piece = (count - done).min(most);
            let a = one_shot::Arguments {
                send: self.send.wrapping_add(begin + done),
                receive: self.receive.wrapping_add(begin + done),
                count: piece,
                send_stride,
                receive_stride,
                inboxes: inboxes.as_ptr(),
                capacity,
                rank: self.context.rank as u32,
                ranks: self.context.ranks as u32,
                epoch: next(counter),
                call: self.launch.call,
            };
            // SAFETY: the caller's promise
            unsafe {
                match (reduces, is_ll) {
                    (true, true) => one_shot::reduce_ll(block, op, &a)?,
                    (true, false) => one_shot::reduce_simple(block, op, &a)?,
                    (false, true) => one_shot::gather_ll(block, &a)?,
                    (false, false) => one_shot::gather_simple(block, &a)?,
                }
            }
            done += piece;
            if count == 0 {
                break;
            }
        }
        Ok(())
    }

    fn direct(&self, part: Part<'_>) -> two_shot::direct::Arguments<E> {
        let arena = own_arena(self.context);
        two_shot::direct::Arguments {
            send: self.send,
            receive: self.receive,
            count: self.work.count,
            send_offset: arena.offset_of(self.send.cast()),
            receive_offset: arena.offset_of(self.receive.cast_const().cast()),
            apart: self.context.apart,
            arenas: self.context.arenas.as_ptr(),
            boards: direct(part.channel).boards.as_ptr(),
            rank: self.context.rank as u32,
            ranks: self.context.ranks as u32,
            channel: part.index as u32,
            channels: self.work.channels as u32,
            epoch: self.launch.epoch,
            call: self.launch.call,
        }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn staged(&self, part: Part<'_>) -> Result<(), Stop> {
        let steps = &part.channel.counters.staged;
        let arguments = two_shot::staged::Arguments {
            send: self.send.wrapping_add(part.begin),
            receive: self.receive.wrapping_add(part.begin),
            count: part.count,
            stages: direct(part.channel).stages.as_ptr(),
            slot_bytes: self.context.capacities.stage,
            rank: self.context.rank as u32,
            ranks: self.context.ranks as u32,
            step: steps.get(),
            call: self.launch.call,
        };
        // SAFETY: the caller's promise
        steps.set(unsafe { two_shot::staged::all_reduce(self.block, self.op, &arguments)? });
        Ok(())
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn ring(
        &self,
        wire: impl Wire<HostBlock<'a>>,
        part: Part<'_>,
        from_previous: *mut Link,
        to_next: *mut Link,
    ) -> Result<(), Stop> {
        let place = &part.channel.ring;
        let place_of = |rank: usize| place.order.iter().position(|&at| at as usize == rank).unwrap_or(0);
        let a = ring::Arguments {
            send: self.send.wrapping_add(part.begin),
            receive: self.receive.wrapping_add(part.begin),
            count: part.count,
            from_previous,
            to_next,
            order: place.order.as_ptr(),
            stride: self.work.count,
            position: place.position,
            root: place_of(self.work.root) as u32,
            ranks: self.context.ranks as u32,
        };
        // SAFETY: the caller's promise
        unsafe {
            match self.work.collective {
                Collective::AllGather => ring::all_gather(wire, &a),
                Collective::ReduceScatter => ring::reduce_scatter(wire, self.op, &a),
                Collective::Broadcast => ring::broadcast(wire, &a),
                Collective::Reduce => ring::reduce(wire, self.op, &a),
                _ => ring::all_reduce(wire, self.op, &a),
            }
        }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn tree(&self, wire: impl Wire<HostBlock<'a>>, links: &LinkTable) -> Result<(), Stop> {
        let (rank, ranks) = (self.context.rank, self.context.ranks);
        let trees = match self.work.collective {
            Collective::Broadcast | Collective::Reduce => [rooted_tree(ranks, rank, self.work.root); 2],
            _ => self.context.shape.trees,
        };
        let trees = trees.map(|place| node(links, place));
        let a = tree::Arguments { send: self.send, receive: self.receive, count: self.work.count, trees };
        // SAFETY: the caller's promise
        unsafe {
            match self.work.collective {
                Collective::Broadcast => tree::broadcast(wire, &a),
                Collective::Reduce => tree::reduce(wire, self.op, &a),
                _ => tree::all_reduce(wire, self.op, &a),
            }
        }
    }

    /// What algorithms over the links between any two ranks need.
    fn over_links(&self, links: &LinkTable) -> flat::Arguments<E> {
        flat::Arguments {
            send: self.send,
            receive: self.receive,
            count: self.work.count,
            from: links.incoming(),
            to: links.outgoing(),
            stride: self.work.count,
            rank: self.context.rank as u32,
            root: self.work.root as u32,
            ranks: self.context.ranks as u32,
        }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn pat(&self, wire: impl Wire<HostBlock<'a>>, links: &LinkTable) -> Result<(), Stop> {
        let a = self.over_links(links);
        // SAFETY: the caller's promise
        unsafe {
            match self.work.collective {
                Collective::ReduceScatter => pat::reduce_scatter(wire, self.op, &a),
                _ => pat::all_gather(wire, &a),
            }
        }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn flat(&self, wire: impl Wire<HostBlock<'a>>, links: &LinkTable) -> Result<(), Stop> {
        let a = self.over_links(links);
        // SAFETY: the caller's promise
        unsafe {
            match self.work.collective {
                Collective::AllGather => flat::all_gather(wire, &a),
                Collective::ReduceScatter => flat::reduce_scatter(wire, self.op, &a),
                Collective::Broadcast => flat::broadcast(wire, &a),
                Collective::Reduce => flat::reduce(wire, self.op, &a),
                _ => flat::all_reduce(wire, self.op, &a),
            }
        }
    }

    /// # Safety
    /// As for the kernels.
    unsafe fn hierarchical(&self) -> Result<(), Stop> {
        let Kernel::Hierarchical(across) = self.work.kernel else { unreachable!("the caller has seen it") };
        let links = &self.context.links.simple;
        let NodePlace { local, index, owners, nodes, position, neighbours, trees } =
            self.context.shape.node.as_ref().expect("planned only where there are several nodes");
        let null = std::ptr::null_mut();
        let (from_previous, to_next) = neighbours.map_or((null, null), |(previous, next)| {
            (links.incoming().wrapping_add(previous), links.outgoing().wrapping_add(next))
        });
        let a = hierarchical::Arguments {
            send: self.send,
            receive: self.receive,
            count: self.work.count,
            from: links.incoming(),
            to: links.outgoing(),
            local: local.as_ptr(),
            locals: local.len() as u32,
            index: *index as u32,
            owners: *owners as u32,
            nodes: *nodes as u32,
            across: across.into(),
            ring: hierarchical::Neighbours { from_previous, to_next, position: *position as u32 },
            trees: trees.map(|place| node(links, place)),
        };
        // SAFETY: the caller's promise
        unsafe { hierarchical::all_reduce(self.pair_wire(), self.op, &a) }
    }
}

/// Counts one more use.
fn next(counter: &Cell<u64>) -> u64 {
    counter.set(counter.get() + 1);
    counter.get()
}

fn direct(channel: &Channel) -> &DirectTables {
    channel.direct.as_ref().expect("planned only where every rank reaches every other")
}

/// The links of a place in a tree.
fn node(links: &LinkTable, place: TreePlace) -> tree::Node {
    let along = |table: *mut Link, rank: Option<usize>| rank.map_or(std::ptr::null_mut(), |at| table.wrapping_add(at));
    tree::Node {
        to_parent: along(links.outgoing(), place.parent),
        from_parent: along(links.incoming(), place.parent),
        from_children: place.children.map(|child| along(links.incoming(), child)),
        to_children: place.children.map(|child| along(links.outgoing(), child)),
    }
}
