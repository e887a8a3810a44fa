//! A rank of a communicator: its memory, its counters, and the one place from which every algorithm is called.

use crate::links::{FLAGS, flag};
use ferronickel_kernels::algorithm::exchange::{Transfer, exchange};
use ferronickel_kernels::algorithm::one_shot;
use ferronickel_kernels::algorithm::two_shot::direct::{self, Outcome};
use ferronickel_kernels::algorithm::two_shot::staged;
use ferronickel_kernels::block::{Block, Reduction, Stop};
use ferronickel_kernels::element::Element;
use ferronickel_kernels::protocol::ll::{self, LowLatency};
use ferronickel_kernels::protocol::simple::{self, Simple};
use ferronickel_kernels::protocol::{CallContext, FLAG_STRIDE, Lending, Link, NOT_SHARED, SLOTS};
use ferronickel_kernels::reduce::Reduce;

/// Every way to all-reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// OneShot with LL.
    OneShotLl,
    /// OneShot with Simple.
    OneShotSimple,
    /// TwoShot in the callers' buffers.
    Direct,
    /// TwoShot in buffers that each rank reaches through the others' arenas.
    DirectApart,
    /// The same, but one rank's buffer is in no arena, so that it is done through staging memory in the end.
    DirectOutOfReach,
    /// TwoShot through staging memory.
    Staged,
    /// Ring with LL.
    RingLl,
    /// Ring with Simple.
    RingSimple,
    /// Two hops over links with LL.
    FlatLl,
    /// Two hops over links with Simple.
    FlatSimple,
    /// Two trees with LL.
    TreeLl,
    /// Two trees with Simple.
    TreeSimple,
    /// Nodes of the first ranks and the last, a ring across.
    HierarchicalRing,
    /// The same with trees across.
    HierarchicalTree,
}

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code)] // loom calls only some
pub enum Collective {
    /// Every rank gets the reduction of all.
    AllReduce,
    /// A root gives to all.
    Broadcast(usize),
    /// A root gets the reduction of all.
    Reduce(usize),
    /// Every rank gets everything.
    AllGather,
    /// Every rank gets its part of the reduction of all.
    ReduceScatter,
    /// Every rank sends a part to each.
    AllToAll,
}

impl Algorithm {
    /// Whether all of a call's elements must fit a place of the inbox.
    #[allow(dead_code)] // loom's do
    pub fn is_one_shot(self) -> bool {
        matches!(self, Algorithm::OneShotLl | Algorithm::OneShotSimple)
    }
}

/// All of them.
#[allow(dead_code)] // loom names its own
pub const ALGORITHMS: [Algorithm; 14] = [
    Algorithm::OneShotLl,
    Algorithm::OneShotSimple,
    Algorithm::Direct,
    Algorithm::DirectApart,
    Algorithm::DirectOutOfReach,
    Algorithm::Staged,
    Algorithm::RingLl,
    Algorithm::RingSimple,
    Algorithm::FlatLl,
    Algorithm::FlatSimple,
    Algorithm::TreeLl,
    Algorithm::TreeSimple,
    Algorithm::HierarchicalRing,
    Algorithm::HierarchicalTree,
];

/// What all ranks of a communicator agree on.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Ranks.
    pub ranks: usize,
    /// Bytes of elements in a place of an inbox: what OneShot can take.
    pub capacity: usize,
    /// Bytes of elements in a slot of a ring or a place of a stage.
    pub slot_bytes: usize,
    /// Channels that share a TwoShot in the callers' buffers.
    pub channels: usize,
}

/// Where a rank's memory holds what, in bytes from its start.
#[derive(Clone, Copy, Debug)]
pub struct Areas {
    /// OneShot's inbox for LL.
    pub ll_inbox: usize,
    /// OneShot's inbox for Simple.
    pub simple_inbox: usize,
    /// TwoShot's boards, one for each channel.
    pub boards: usize,
    /// TwoShot's stage.
    pub stage: usize,
    /// The links' slots for LL.
    pub ll_slots: usize,
    /// The links' slots for Simple.
    pub simple_slots: usize,
    /// The links' flags, for each other rank: head for LL, head and tail for Simple.
    pub flags: usize,
    /// All of it.
    pub bytes: usize,
}

impl Areas {
    /// The areas of each rank of a communicator of blocks `B`.
    pub fn of<B: Block>(shape: Shape) -> Self {
        let mut bytes = 0;
        let mut area = |size: usize| {
            let start = bytes;
            bytes += size.next_multiple_of(FLAG_STRIDE);
            start
        };
        let ll_inbox = area(one_shot::ll_inbox_bytes::<B>(shape.capacity, shape.ranks));
        let simple_inbox = area(one_shot::simple_inbox_bytes(shape.capacity, shape.ranks));
        let boards = area(shape.channels * direct::board_bytes(shape.ranks));
        let stage = area(staged::stage_bytes(shape.slot_bytes, shape.ranks));
        let ll_slots = area(shape.ranks * SLOTS as usize * ll::lines::<B>(shape.slot_bytes) * B::LINE_BYTES);
        let simple_slots = area(shape.ranks * SLOTS as usize * simple::slot_stride(shape.slot_bytes));
        let flags = area(shape.ranks * FLAGS * FLAG_STRIDE);
        Areas { ll_inbox, simple_inbox, boards, stage, ll_slots, simple_slots, flags, bytes }
    }
}

/// One rank's part of a call.
#[derive(Clone, Copy)]
pub struct Data<E> {
    /// Its elements.
    pub send: *const E,
    /// Where the result goes.
    pub receive: *mut E,
    /// How many.
    pub count: usize,
}

/// Runs `f` in a frame of its own: what is not optimised keeps every kernel of a function on the stack at once, and a model
/// checker's threads have small ones.
#[inline(never)]
pub fn on_its_own<T>(f: impl FnOnce() -> T) -> T {
    f()
}

/// A rank, or one thread of its block.
pub struct Rank<B> {
    /// Who runs it.
    pub block: B,
    /// Its number.
    pub rank: usize,
    /// The number of the last call.
    pub epoch: u64,
    /// What all ranks agree on.
    pub shape: Shape,
    areas: Areas,
    bases: Vec<*mut u8>,
    links: *mut Link,
    lending: Lending,
    ll_inbox: u64,
    simple_inbox: u64,
    stage_step: u64,
}

impl<B: Block> Rank<B> {
    /// Rank `rank`; `bases` are the starts of all ranks' memory, `links` of its [tables](crate::links::Tables); counters
    /// start at `start`.
    pub fn new(
        block: B,
        rank: usize,
        shape: Shape,
        bases: &[*mut u8],
        links: *mut Link,
        lending: Lending,
        start: u64,
    ) -> Self {
        let areas = Areas::of::<B>(shape);
        let (bases, ll_inbox, simple_inbox, stage_step) = (bases.to_vec(), start, start, start);
        Rank { block, rank, epoch: start, shape, areas, bases, links, lending, ll_inbox, simple_inbox, stage_step }
    }

    /// Writes the links' flags as they stand after `start` steps; every rank does it before any begins.
    #[allow(dead_code)] // loom's ranks start at zero
    pub fn set_flags(&self) {
        for peer in 0..self.shape.ranks {
            for k in 0..FLAGS {
                let flag = flag(&self.areas, &self.bases, self.rank, peer, k);
                // SAFETY: the flags lie in this rank's own memory, which nobody else uses yet
                unsafe { self.block.release(flag, self.epoch) };
            }
        }
    }

    /// Counts an epoch of an inbox that nobody used, so that all used ones have one parity.
    #[allow(dead_code)] // only loom's broken ranks do
    pub fn skip_epoch(&mut self, skip: bool) {
        self.ll_inbox += skip as u64;
        self.simple_inbox += skip as u64;
    }

    fn at_every_rank(&self, area: usize) -> Vec<*mut u8> {
        self.bases.iter().map(|base| base.wrapping_add(area)).collect()
    }

    /// The tables of links from and to every rank.
    pub fn tables(&self, is_ll: bool) -> (*mut Link, *mut Link) {
        let from = self.links.wrapping_add(if is_ll { 0 } else { 2 * self.shape.ranks });
        (from, from.wrapping_add(self.shape.ranks))
    }

    fn context(&self, call: u64) -> CallContext {
        CallContext { call, slot_bytes: self.shape.slot_bytes, lending: self.lending }
    }

    /// LL.
    pub fn ll_wire(&self, call: u64) -> LowLatency<B> {
        LowLatency { block: self.block, context: self.context(call) }
    }

    /// Simple.
    pub fn simple_wire(&self, call: u64) -> Simple<B> {
        Simple { block: self.block, context: self.context(call) }
    }

    /// Makes a call.
    ///
    /// # Safety
    /// The pointers cover what `data` says; every rank makes the same calls in the same order.
    pub unsafe fn call<E: Element, R: Reduce<E>>(
        &mut self,
        what: Collective,
        how: Algorithm,
        op: R,
        data: Data<E>,
        call: u64,
    ) -> Result<(), Stop> {
        self.epoch += 1;
        // SAFETY: the caller's promise
        unsafe {
            match how {
                Algorithm::OneShotLl | Algorithm::OneShotSimple => self.one_shot(what, how, op, data, call),
                Algorithm::Direct | Algorithm::DirectApart => {
                    let outcome = self.direct(how, op, data, call)?;
                    // where only a rank itself can prepare its elements, nobody can do it for it
                    let outcome_expected = if op.differs_between_ranks() && self.shape.ranks > 1 {
                        Outcome::OutOfReach
                    } else {
                        Outcome::Done
                    };
                    assert_eq!(outcome, outcome_expected);
                    if outcome == Outcome::OutOfReach { self.staged(op, data, call) } else { Ok(()) }
                }
                Algorithm::DirectOutOfReach => {
                    let outcome = self.direct(how, op, data, call)?;
                    // a rank alone is out of nobody's reach
                    let expected = if self.shape.ranks > 1 { Outcome::OutOfReach } else { Outcome::Done };
                    assert_eq!(outcome, expected);
                    if outcome == Outcome::OutOfReach { self.staged(op, data, call) } else { Ok(()) }
                }
                Algorithm::Staged => self.staged(op, data, call),
                // a rank alone has no links
                _ if self.shape.ranks == 1 => self.alone(op, data),
                Algorithm::RingLl | Algorithm::FlatLl | Algorithm::TreeLl => {
                    self.over_links(self.ll_wire(call), true, what, how, op, data)
                }
                _ => self.over_links(self.simple_wire(call), false, what, how, op, data),
            }
        }
    }

    unsafe fn alone<E: Element, R: Reduce<E>>(&self, op: R, data: Data<E>) -> Result<(), Stop> {
        let reduction = Reduction::new(op, [data.receive], [data.send], data.count, true);
        // SAFETY: the caller's promise
        unsafe { self.block.reduce(reduction) };
        Ok(())
    }

    unsafe fn one_shot<E: Element, R: Reduce<E>>(
        &mut self,
        what: Collective,
        how: Algorithm,
        op: R,
        data: Data<E>,
        call: u64,
    ) -> Result<(), Stop> {
        let ll = how == Algorithm::OneShotLl;
        let inboxes = self.at_every_rank(if ll { self.areas.ll_inbox } else { self.areas.simple_inbox });
        assert!(data.count * size_of::<E>() <= self.shape.capacity);
        let counter = if ll { &mut self.ll_inbox } else { &mut self.simple_inbox };
        *counter += 1;
        let (send_stride, receive_stride) = match what {
            Collective::AllGather => (0, data.count),
            Collective::ReduceScatter => (data.count, 0),
            Collective::AllToAll => (data.count, data.count),
            _ => (0, 0),
        };
        let a = one_shot::Arguments {
            send: data.send,
            receive: data.receive,
            count: data.count,
            send_stride,
            receive_stride,
            inboxes: inboxes.as_ptr(),
            capacity: self.shape.capacity,
            rank: self.rank as u32,
            ranks: self.shape.ranks as u32,
            epoch: *counter,
            call,
        };
        let gathers = matches!(what, Collective::AllGather | Collective::AllToAll);
        // SAFETY: the caller's promise
        unsafe {
            match (gathers, ll) {
                (false, true) => on_its_own(|| one_shot::reduce_ll(self.block, op, &a)),
                (false, false) => on_its_own(|| one_shot::reduce_simple(self.block, op, &a)),
                (true, true) => on_its_own(|| one_shot::gather_ll(self.block, &a)),
                (true, false) => on_its_own(|| one_shot::gather_simple(self.block, &a)),
            }
        }
    }

    unsafe fn direct<E: Element, R: Reduce<E>>(
        &self,
        how: Algorithm,
        op: R,
        data: Data<E>,
        call: u64,
    ) -> Result<Outcome, Stop> {
        let apart = how != Algorithm::Direct;
        // every rank's arena begins elsewhere; a rank's own is as good as null to it
        let arena = |rank: usize| (rank + 1) * 4096;
        let seen = |rank| if apart { std::ptr::with_exposed_provenance_mut(arena(rank)) } else { std::ptr::null_mut() };
        let arenas: Vec<*mut u8> = (0..self.shape.ranks).map(seen).collect();
        let offset = |address: usize| (address - arena(self.rank)) as u64;
        let out_of_reach = how == Algorithm::DirectOutOfReach && self.rank == call as usize % self.shape.ranks;
        let receive_offset = if out_of_reach { NOT_SHARED } else { offset(data.receive.expose_provenance()) };
        let mut outcome = Outcome::Done;
        for channel in 0..self.shape.channels {
            let boards = self.at_every_rank(self.areas.boards + channel * direct::board_bytes(self.shape.ranks));
            let arguments = direct::Arguments {
                send: data.send,
                receive: data.receive,
                count: data.count,
                send_offset: offset(data.send.expose_provenance()),
                receive_offset,
                apart: apart && self.shape.ranks > 1,
                arenas: arenas.as_ptr(),
                boards: boards.as_ptr(),
                rank: self.rank as u32,
                ranks: self.shape.ranks as u32,
                channel: channel as u32,
                channels: self.shape.channels as u32,
                epoch: self.epoch,
                call,
            };
            // SAFETY: the caller's promise
            outcome = unsafe { on_its_own(|| direct::all_reduce(self.block, op, &arguments))? };
        }
        Ok(outcome)
    }

    unsafe fn staged<E: Element, R: Reduce<E>>(&mut self, op: R, data: Data<E>, call: u64) -> Result<(), Stop> {
        let stages = self.at_every_rank(self.areas.stage);
        let arguments = staged::Arguments {
            send: data.send,
            receive: data.receive,
            count: data.count,
            stages: stages.as_ptr(),
            slot_bytes: self.shape.slot_bytes,
            rank: self.rank as u32,
            ranks: self.shape.ranks as u32,
            step: self.stage_step,
            call,
        };
        // SAFETY: the caller's promise
        self.stage_step = unsafe { on_its_own(|| staged::all_reduce(self.block, op, &arguments))? };
        Ok(())
    }

    /// Moves messages, in the order in which they are along each link.
    ///
    /// # Safety
    /// The buffers cover the bytes; every message has its other end.
    #[allow(dead_code)] // not every test has messages
    pub unsafe fn exchange(&self, transfers: &mut [Transfer]) -> Result<(), Stop> {
        let (count, slot_bytes) = (transfers.len(), self.shape.slot_bytes);
        // SAFETY: the caller's promise
        unsafe { exchange(self.block, transfers.as_mut_ptr(), count, slot_bytes, &self.lending) }
    }

    /// One end of a message.
    #[allow(dead_code)] // as above
    pub fn transfer(&self, peer: usize, sends: bool, buffer: *mut u8, bytes: usize, call: u64) -> Transfer {
        let (from, to) = self.tables(false);
        let link = if sends { to } else { from }.wrapping_add(peer);
        Transfer { link, buffer, bytes, call, sends, follows: false, moved: 0, lent_until: 0, done: false }
    }
}
