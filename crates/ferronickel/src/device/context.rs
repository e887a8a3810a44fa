//! What the kernels of one rank work with: its connections, channel by channel, and the record of everyone's
//! progress.

use std::cell::{Cell, UnsafeCell};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ferronickel_kernels::algorithm::exchange::Transfer;
use ferronickel_kernels::protocol::Link;

use super::progress::Progress;
use super::region::Region;
use super::shape::Shape;
use crate::bootstrap::mesh::Mesh;
use crate::diagnostics::decisions::Decision;
use crate::proxy::Proxy;

/// Everything a launch needs besides the call itself. Made once, when a communicator connects.
pub(crate) struct RankContext {
    pub rank: usize,
    pub ranks: usize,
    /// Turns a waiting kernel spins before it lets others run.
    pub spins: u32,
    /// How often this rank has found that it shares a processor with a peer it waits for.
    pub crowded: AtomicU32,
    pub capacities: Capacities,
    /// For each rank, its process's arena as it is seen here; null for ranks of this process.
    pub arenas: Box<[*mut u8]>,
    /// Whether any two ranks are in different processes.
    pub apart: bool,
    pub channels: Vec<Channel>,
    /// The links with every other rank.
    pub links: PairLinks,
    /// This rank's place in trees and nodes.
    pub shape: Shape,
    /// Room for the messages of a call that is an exchange.
    pub transfers: UnsafeCell<Vec<Transfer>>,
    pub progress: Arc<Progress>,
    /// How the connections came to be what they are, for errors to tell.
    pub decisions: Arc<[Decision]>,
    /// Moves what goes through the network. Dropped before the memory it works in.
    pub proxy: Option<Proxy>,
    /// Keeps in touch with the other processes. Says goodbye to them when the last of this process's ranks is done.
    pub mesh: Option<Arc<Mesh>>,
    /// The memory behind the connections.
    pub _keep: Vec<Arc<Region>>,
}

impl RankContext {
    /// Looks why launch number `turn`, an exchange whose first message is described by `call`, takes so long. For the
    /// thread that runs it.
    #[cold]
    pub fn look_for_trouble_in_exchange(&self, turn: u64, call: u64) {
        // SAFETY: this thread runs the launch whose turn it is, and its kernel reads them only between two such looks
        let transfers = unsafe { &*self.transfers.get() };
        let pending = transfers.iter().filter(|transfer| !transfer.done);
        // SAFETY: as above; the links live as long as the context
        let mut peers: Vec<_> = pending.map(|transfer| unsafe { (*transfer.link).peer as usize }).collect();
        peers.sort_unstable();
        peers.dedup();
        self.progress.look_for_trouble_with(self.rank, &peers, turn, call);
    }
}

/// How much fits a place of each kind of memory, in bytes of elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capacities {
    pub one_shot_ll: usize,
    pub one_shot_simple: usize,
    pub stage: usize,
    pub ring_ll: usize,
    pub ring_simple: usize,
    pub link_simple: usize,
}

/// The connections of one channel.
pub(crate) struct Channel {
    /// Where every rank can be reached directly, if all can.
    pub direct: Option<DirectTables>,
    /// This rank's neighbours on the ring.
    pub ring: Ring,
    /// How often what has no links of its own was used.
    pub counters: Counters,
}

/// Counts that all ranks keep alike. Only the rank's call whose turn it is uses them.
#[derive(Default)]
pub(crate) struct Counters {
    /// Steps of the staged TwoShot.
    pub staged: Cell<u64>,
    /// Calls that used the inbox of LL.
    pub ll_inbox: Cell<u64>,
    /// Calls that used the inbox of Simple.
    pub simple_inbox: Cell<u64>,
}

/// For each rank, where this channel's memory lies there.
pub(crate) struct DirectTables {
    pub ll_inboxes: Vec<*mut u8>,
    pub simple_inboxes: Vec<*mut u8>,
    pub boards: Vec<*mut u8>,
    pub stages: Vec<*mut u8>,
}

/// This rank's place on the channel's ring, and its links there.
pub(crate) struct Ring {
    pub position: u32,
    /// For each place, the rank at it.
    pub order: Box<[u32]>,
    pub simple: RingLinks,
    /// None where the road cannot carry LL.
    pub ll: Option<RingLinks>,
}

/// The two links of a rank on a ring.
pub(crate) struct RingLinks {
    from_previous: UnsafeCell<Link>,
    to_next: UnsafeCell<Link>,
}

impl RingLinks {
    pub fn new(from_previous: Link, to_next: Link) -> Self {
        RingLinks { from_previous: from_previous.into(), to_next: to_next.into() }
    }

    /// From the previous rank, for the call whose turn it is.
    pub fn incoming(&self) -> *mut Link {
        self.from_previous.get()
    }

    /// To the next rank, for the call whose turn it is.
    pub fn outgoing(&self) -> *mut Link {
        self.to_next.get()
    }
}

/// The links with every other rank, by protocol.
pub(crate) struct PairLinks {
    pub simple: LinkTable,
    /// None where a road cannot carry LL.
    pub ll: Option<LinkTable>,
}

/// For each rank, the link from it and to it; a rank's own place stands for nothing.
pub(crate) struct LinkTable {
    from: Box<[UnsafeCell<Link>]>,
    to: Box<[UnsafeCell<Link>]>,
}

impl LinkTable {
    pub fn new(from: Vec<Link>, to: Vec<Link>) -> Self {
        let cells = |links: Vec<Link>| links.into_iter().map(UnsafeCell::new).collect();
        LinkTable { from: cells(from), to: cells(to) }
    }

    /// The links from every rank, for the call whose turn it is.
    pub fn incoming(&self) -> *mut Link {
        UnsafeCell::raw_get(self.from.as_ptr())
    }

    /// The links to every rank, for the call whose turn it is.
    pub fn outgoing(&self) -> *mut Link {
        UnsafeCell::raw_get(self.to.as_ptr())
    }
}

// SAFETY: the pointers lead to memory that `keep` holds, and only kernels follow them, by the protocols' rules
unsafe impl Send for RankContext {}
// SAFETY: as above; links, counters and transfers are used by one call of the rank at a time, the one whose turn it is
unsafe impl Sync for RankContext {}
