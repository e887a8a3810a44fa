//! What the kernels of one rank work with: its connections, channel by channel, and the record of everyone's
//! progress.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use ferronickel_kernels::protocol::Link;

use super::progress::Progress;
use super::region::Region;
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

/// How much fits a place of each kind of memory, in bytes of elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capacities {
    pub one_shot_ll: usize,
    pub one_shot_simple: usize,
    pub stage: usize,
    pub ring_ll: usize,
    pub ring_simple: usize,
}

/// The connections of one channel.
pub(crate) struct Channel {
    /// Where every rank can be reached directly, if all can.
    pub direct: Option<DirectTables>,
    /// This rank's neighbours on the ring.
    pub ring: Ring,
    /// Steps of the staged TwoShot so far.
    pub staged_steps: Mutex<u64>,
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
    pub simple: Mutex<Links>,
    /// None where the road cannot carry LL.
    pub ll: Option<Mutex<Links>>,
}

/// The two links of a rank on a ring.
#[derive(Clone, Copy)]
pub(crate) struct Links {
    pub from_previous: Link,
    pub to_next: Link,
}

// SAFETY: the pointers lead to memory that `keep` holds, and only kernels follow them, by the protocols' rules
unsafe impl Send for RankContext {}
// SAFETY: as above; what changes is behind a mutex
unsafe impl Sync for RankContext {}
