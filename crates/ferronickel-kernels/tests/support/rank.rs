//! A rank of a communicator: its memory, its counters, and the one place from which every algorithm is called.

use ferronickel_kernels::algorithm::two_shot::direct::{self, NOT_SHARED, Outcome};
use ferronickel_kernels::algorithm::two_shot::staged;
use ferronickel_kernels::algorithm::{one_shot, ring};
use ferronickel_kernels::block::{Block, Stop};
use ferronickel_kernels::element::Element;
use ferronickel_kernels::protocol::ll::{self, LowLatency};
use ferronickel_kernels::protocol::simple::{self, Simple};
use ferronickel_kernels::protocol::{CallContext, FLAG_STRIDE, Link, SLOTS, Wire};
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
}

impl Algorithm {
    /// Whether all of a call's elements must fit a place of the inbox.
    pub fn is_one_shot(self) -> bool {
        matches!(self, Algorithm::OneShotLl | Algorithm::OneShotSimple)
    }
}

/// All of them.
#[allow(dead_code)] // loom names its own
pub const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::OneShotLl,
    Algorithm::OneShotSimple,
    Algorithm::Direct,
    Algorithm::DirectApart,
    Algorithm::DirectOutOfReach,
    Algorithm::Staged,
    Algorithm::RingLl,
    Algorithm::RingSimple,
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
    /// Ring's slots for LL.
    pub ll_slots: usize,
    /// Ring's slots for Simple.
    pub simple_slots: usize,
    /// Ring's flags: head for LL, head and tail for Simple.
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
        let ll_slots = area(SLOTS as usize * ll::lines::<B>(shape.slot_bytes) * B::LINE_BYTES);
        let simple_slots = area(SLOTS as usize * simple::slot_stride(shape.slot_bytes));
        let flags = area(3 * FLAG_STRIDE);
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

/// A rank, or one thread of its block.
pub struct Rank<B> {
    /// Who runs it.
    pub block: B,
    /// Its number.
    pub rank: usize,
    /// The number of the last call.
    pub epoch: u64,
    shape: Shape,
    areas: Areas,
    bases: Vec<*mut u8>,
    stage_step: u64,
    ll_steps: (u64, u64),
    simple_steps: (u64, u64),
}

impl<B: Block> Rank<B> {
    /// Rank `rank`; `bases` are the starts of all ranks' memory; counters start at `start`.
    pub fn new(block: B, rank: usize, shape: Shape, bases: &[*mut u8], start: u64) -> Self {
        let areas = Areas::of::<B>(shape);
        let steps = (start, start);
        let bases = bases.to_vec();
        Rank { block, rank, epoch: start, shape, areas, bases, stage_step: start, ll_steps: steps, simple_steps: steps }
    }

    /// Writes the ring's flags as they stand after `start` steps; every rank does it before any begins.
    #[allow(dead_code)] // loom's ranks start at zero
    pub fn set_flags(&self) {
        for flag in 0..3 {
            // SAFETY: the flags lie in this rank's own memory, which nobody else uses yet
            unsafe { self.block.release(self.flag(self.rank, flag), self.epoch) };
        }
    }

    /// A flag of the ring at rank `at`.
    pub fn flag(&self, at: usize, flag: usize) -> *mut u64 {
        self.bases[at].wrapping_add(self.areas.flags + flag * FLAG_STRIDE).cast()
    }

    fn at_every_rank(&self, area: usize) -> Vec<*mut u8> {
        self.bases.iter().map(|base| base.wrapping_add(area)).collect()
    }

    /// The ring's links, from the previous rank and to the next.
    pub fn links(&self, slots: usize, head: usize, steps: (u64, u64)) -> (Link, Link) {
        let ranks = self.shape.ranks;
        let (previous, next) = ((self.rank + ranks - 1) % ranks, (self.rank + 1) % ranks);
        let link = |receiver: usize, sender: usize, peer: usize, step: u64| Link {
            slots: self.bases[receiver].wrapping_add(slots),
            tail: self.flag(receiver, 2),
            head: self.flag(sender, head),
            peer: peer as u32,
            step,
        };
        (link(self.rank, previous, previous, steps.0), link(next, self.rank, next, steps.1))
    }

    /// The ring's wire of LL.
    pub fn ll_wire(&self, call: u64) -> LowLatency<B> {
        let (from_previous, to_next) = self.links(self.areas.ll_slots, 0, self.ll_steps);
        let context = CallContext { call, slot_bytes: self.shape.slot_bytes };
        LowLatency { block: self.block, from_previous, to_next, context }
    }

    /// The ring's wire of Simple.
    pub fn simple_wire(&self, call: u64) -> Simple<B> {
        let (from_previous, to_next) = self.links(self.areas.simple_slots, 1, self.simple_steps);
        let context = CallContext { call, slot_bytes: self.shape.slot_bytes };
        Simple { block: self.block, from_previous, to_next, context }
    }

    /// All-reduce.
    ///
    /// # Safety
    /// The pointers cover what `data` says; every rank makes the same calls in the same order.
    pub unsafe fn all_reduce<E: Element, R: Reduce<E>>(
        &mut self,
        how: Algorithm,
        op: R,
        data: Data<E>,
        call: u64,
    ) -> Result<(), Stop> {
        self.epoch += 1;
        // SAFETY: the caller's promise
        unsafe {
            match how {
                _ if how.is_one_shot() => self.one_shot(how, op, data, call),
                Algorithm::Direct | Algorithm::DirectApart | Algorithm::DirectOutOfReach => {
                    let outcome = self.direct(how, op, data, call)?;
                    // a rank alone is out of nobody's reach
                    let impossible = how == Algorithm::DirectOutOfReach || op.differs_between_ranks();
                    let expected = if self.shape.ranks > 1 && impossible { Outcome::OutOfReach } else { Outcome::Done };
                    assert_eq!(outcome, expected);
                    if outcome == Outcome::OutOfReach { self.staged(op, data, call) } else { Ok(()) }
                }
                Algorithm::Staged => self.staged(op, data, call),
                Algorithm::RingLl => {
                    let mut wire = self.ll_wire(call);
                    self.ring(&mut wire, op, data)?;
                    self.ll_steps = wire.steps();
                    Ok(())
                }
                _ => {
                    let mut wire = self.simple_wire(call);
                    self.ring(&mut wire, op, data)?;
                    self.simple_steps = wire.steps();
                    Ok(())
                }
            }
        }
    }

    unsafe fn one_shot<E: Element, R: Reduce<E>>(
        &self,
        how: Algorithm,
        op: R,
        data: Data<E>,
        call: u64,
    ) -> Result<(), Stop> {
        let ll = how == Algorithm::OneShotLl;
        let inboxes = self.at_every_rank(if ll { self.areas.ll_inbox } else { self.areas.simple_inbox });
        assert!(data.count * size_of::<E>() <= self.shape.capacity);
        let arguments = one_shot::Arguments {
            send: data.send,
            receive: data.receive,
            count: data.count,
            inboxes: inboxes.as_ptr(),
            capacity: self.shape.capacity,
            rank: self.rank as u32,
            ranks: self.shape.ranks as u32,
            epoch: self.epoch,
            call,
        };
        // SAFETY: the caller's promise
        unsafe {
            match ll {
                true => one_shot::all_reduce_ll(self.block, op, &arguments),
                false => one_shot::all_reduce_simple(self.block, op, &arguments),
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
            outcome = unsafe { direct::all_reduce(self.block, op, &arguments)? };
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
        self.stage_step = unsafe { staged::all_reduce(self.block, op, &arguments)? };
        Ok(())
    }

    unsafe fn ring<E: Element, R: Reduce<E>>(&self, wire: &mut impl Wire<B>, op: R, data: Data<E>) -> Result<(), Stop> {
        let arguments = ring::Arguments {
            send: data.send,
            receive: data.receive,
            count: data.count,
            slot_bytes: self.shape.slot_bytes,
            position: self.rank as u32,
            ranks: self.shape.ranks as u32,
        };
        // SAFETY: the caller's promise
        unsafe { ring::all_reduce(wire, op, &arguments) }
    }
}
