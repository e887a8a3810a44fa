//! Init: the ranks meet, choose roads, connect, and try what they connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use super::report::{InitTimings, log_interface, log_start};
use super::{Communicator, Inner, UniqueId};
use crate::bootstrap::door::Door;
use crate::bootstrap::presence::Presence;
use crate::bootstrap::root::{self, Comer, Vigil};
use crate::bootstrap::service::Service;
use crate::bootstrap::session::{Member, Plain};
use crate::bootstrap::{interfaces, mesh};
use crate::config::{Config, Variable, variables};
use crate::device::Device;
use crate::device::arena::Arena;
use crate::device::context::RankContext;
use crate::device::host::lock::Lock;
use crate::device::host::{threads, wait};
use crate::device::progress::Failure;
use crate::device::shape::Shape;
use crate::diagnostics::decisions::Decision;
use crate::diagnostics::log;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Planner, calibration, channels};
use crate::transport::connect::{Attempt, Connected, Request, Sockets};
use crate::transport::costs::Costs;
use crate::transport::layout::Layout;
use crate::transport::{Faults, PeerInfo, Roads, Transport};
use crate::{fork, group};

/// Settings by which ranks plan: they must be the same everywhere, or ranks would wait for each other in different
/// algorithms.
const SHARED_TEXTS: [&Variable; 2] = [&variables::ALGO, &variables::PROTO];
const SHARED_FLAGS: [&Variable; 1] = [&variables::DETERMINISTIC];
const SHARED_NUMBERS: [&Variable; 5] = [
    &variables::BUFFSIZE,
    &variables::MIN_NCHANNELS,
    &variables::MAX_NCHANNELS,
    &variables::SOCKET_NTHREADS,
    &variables::NSOCKS_PERTHREAD,
];

impl Communicator {
    /// A communicator over `devices`, all of whose ranks are driven by this process: rank *i* is on device *i*.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) without devices; otherwise as for
    /// [`init_ranks`](Self::init_ranks).
    pub fn init_all(devices: &[Device], config: &Config) -> Result<Vec<Communicator>> {
        const API: &str = "ncclCommInitAll";
        let ranks: Vec<_> = devices.iter().cloned().enumerate().collect();
        // before there is anything that would have to be taken back
        check(devices.len(), &ranks).map_err(|error| error.in_call(API))?;
        let id = root::host_private(config)?;
        init(&id, devices.len(), &ranks, config, API)
    }

    /// One rank of a communicator of `size` ranks; the others are made by other threads or processes, with the same id.
    /// Waits for all of them.
    ///
    /// # Errors
    /// As for [`init_ranks`](Self::init_ranks).
    pub fn init_rank(
        id: &UniqueId,
        size: usize,
        rank: usize,
        device: &Device,
        config: &Config,
    ) -> Result<Communicator> {
        let mut ranks = init(id, size, &[(rank, device.clone())], config, "ncclCommInitRank")?;
        Ok(ranks.pop().expect("one rank was asked for"))
    }

    /// Several ranks of a communicator, for a thread that drives more than one: each with its number and device.
    /// Waits for all `size` ranks.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a size of zero or a rank that is not below it;
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) inside a group, when a rank is taken twice, or when ranks have
    /// different sizes or settings; [`Timeout`](ErrorKind::Timeout), naming the ranks that did not come;
    /// [`System`](ErrorKind::System) when the machine refuses memory, threads or sockets.
    pub fn init_ranks(
        id: &UniqueId,
        size: usize,
        ranks: &[(usize, Device)],
        config: &Config,
    ) -> Result<Vec<Communicator>> {
        init(id, size, ranks, config, "ncclCommInitRank")
    }
}

fn init(
    id: &UniqueId,
    size: usize,
    ranks: &[(usize, Device)],
    config: &Config,
    api: &'static str,
) -> Result<Vec<Communicator>> {
    log::init(config);
    log::log_settings(config);
    check(size, ranks).map_err(|error| error.in_call(api))?;
    fork::remember();
    if let [(rank, device)] = ranks {
        return Ok(vec![init_one(id, size, *rank, device, config, api)?]);
    }
    // each rank waits for the others, so each needs a thread
    let threads: Vec<_> = ranks
        .iter()
        .map(|(rank, device)| {
            let (id, rank, device, config) = (id.clone(), *rank, device.clone(), config.clone());
            let (refused, number) = (id.clone(), rank);
            let init = move || init_one(&id, size, rank, &device, &config, api);
            threads::spawn(&format!("fnickel init {rank}"), init).map_err(|error| {
                let error = Error::system("starting a thread for init", error);
                give_up(&refused, size, number, &error);
                error
            })
        })
        .collect();
    let mut made = Vec::with_capacity(ranks.len());
    let mut failed = None;
    for thread in threads {
        let outcome = thread
            .and_then(|thread| thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "init panicked"))));
        match outcome {
            Ok(rank) => made.push(rank),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(made), Err)
}

/// A rank that cannot come says why: the others would wait for it.
fn give_up(id: &UniqueId, size: usize, rank: usize, error: &Error) {
    let seen = format!("rank {rank} failed in init: {}", error.seen());
    let hint = error.advice().map(String::from);
    root::give_up(id, size, rank, &Failure { kind: error.kind(), seen, hint });
}

fn check(size: usize, ranks: &[(usize, Device)]) -> Result<()> {
    let invalid = |seen: String| Err(Error::new(ErrorKind::InvalidArgument, seen));
    fork::refuse_child()?;
    if group::is_open() {
        let seen = "a communicator cannot be made inside a group, since it must be complete when this returns";
        return Err(
            Error::new(ErrorKind::InvalidUsage, seen).hint("give one call of init_ranks all ranks of the thread")
        );
    }
    if size == 0 || ranks.is_empty() {
        return invalid("a communicator needs at least one rank".into());
    }
    if size > u32::MAX as usize / 2 {
        return invalid(format!("{size} ranks are more than the {} that can be numbered", u32::MAX / 2));
    }
    match ranks.iter().find(|(rank, _)| *rank >= size) {
        Some((rank, _)) => invalid(format!("rank {rank} is not below the size {size}")),
        None => Ok(()),
    }
}

fn init_one(
    id: &UniqueId,
    size: usize,
    rank: usize,
    device: &Device,
    config: &Config,
    api: &'static str,
) -> Result<Communicator> {
    let timeout = Duration::from_secs(config.integer(&variables::INIT_TIMEOUT).value.unsigned_abs());
    let coming = Coming { id, size, rank, device, config, api, timeout, began: Instant::now() };
    coming.come().map_err(|error| error.in_call(api).on(rank, device.index()))
}

/// A rank before it has met the others.
struct Coming<'a> {
    id: &'a UniqueId,
    size: usize,
    rank: usize,
    device: &'a Device,
    config: &'a Config,
    api: &'static str,
    timeout: Duration,
    began: Instant,
}

impl Coming<'_> {
    fn come(&self) -> Result<Communicator> {
        log_start(self.id, self.size, self.rank, self.device, self.api);
        let door = self.open_door().inspect_err(|error| give_up(self.id, self.size, self.rank, error))?;
        let (door, interface) = door.unzip();
        let presence = Presence::new(self.rank, self.config, door.as_deref().map(Door::service));
        let name = presence.name();
        let arena_missing = Arena::of_process().err().map(String::from);
        let own = PeerInfo {
            settings: self.settings(),
            costs: (self.rank == 0 && self.size > 1).then(|| calibration::costs(self.config)),
            arena_missing,
            ..PeerInfo::new(presence, self.device.index(), self.config)
        };
        // serialising plain values into memory cannot fail
        let info = postcard::to_allocvec(&own).expect("plain values");
        let comer = Comer { id: self.id, size: self.size, rank: self.rank, name: &name, info, timeout: self.timeout };
        let (everyone, vigil) = comer.meet()?;
        let peers = self.understand(&everyone)?;
        let presences: Vec<_> = peers.iter().map(|peer| peer.presence.clone()).collect();
        let member = Member::join(self.id.public_number(), &presences, self.rank, self.config, self.timeout)?;
        // ranks of one process reach each other through the loopback interface
        let interface = interface.unwrap_or_else(|| "lo:127.0.0.1<0>".into());
        let mut joining = Joining { coming: self, member, door, interface, peers };
        joining.run(vigil).inspect_err(|error| {
            // whoever fails tells the others, who would wait for it
            let hint = error.advice().map(String::from);
            let name = joining.member.progress().name(self.rank);
            let seen = format!("{name} failed in init: {}", error.seen());
            joining.member.fail(Failure { kind: error.kind(), seen, hint });
        })
    }

    /// The door through which other processes reach this one, if there may be any, and the interface it is at.
    fn open_door(&self) -> Result<Option<(Arc<Door>, String)>> {
        let Some(root) = self.id.addresses().first().copied() else { return Ok(None) };
        let choice = interfaces::choose(self.config, Some(root.ip()))?;
        let endpoint = &choice.endpoints[0];
        log_interface(self.device, &choice);
        let service = Service::on(&[endpoint.socket_address(0)])?;
        Ok(Some((service.open(self.id.public_number(), self.id.secret()), endpoint.to_string())))
    }

    /// Settings by which ranks plan.
    fn settings(&self) -> Vec<String> {
        let texts = SHARED_TEXTS.map(|variable| self.config.text(variable).value.unwrap_or("not set").to_string());
        let numbers = SHARED_NUMBERS.map(|variable| self.config.integer(variable).value.to_string());
        let flags = SHARED_FLAGS.map(|variable| u8::from(self.config.flag(variable).value).to_string());
        [&texts[..], &numbers[..], &flags[..]].concat()
    }

    /// What the ranks have said of themselves. Ranks whose versions or settings differ would plan differently.
    fn understand(&self, everyone: &[Vec<u8>]) -> Result<Vec<PeerInfo>> {
        let mut peers: Vec<PeerInfo> = Vec::with_capacity(everyone.len());
        let differs = |what: &str, first: &str, second: &str, rank: usize, hint: &str| {
            let seen = format!("{what} differs: {first} on rank 0, {second} on rank {rank}");
            Err(Error::new(ErrorKind::InvalidUsage, seen).hint(hint))
        };
        for (rank, bytes) in everyone.iter().enumerate() {
            let peer: PeerInfo = postcard::from_bytes(bytes).map_err(|error| {
                let seen = format!("what rank {rank} says of itself makes no sense: {error}");
                Error::new(ErrorKind::InvalidUsage, seen).hint("let every rank use the same version of ferronickel")
            })?;
            let first = peers.first().unwrap_or(&peer);
            let (ours, theirs) = (&first.presence.version, &peer.presence.version);
            if ours != theirs {
                return differs("the version of ferronickel", ours, theirs, rank, "use the same for every rank");
            }
            let names = SHARED_TEXTS.iter().chain(&SHARED_NUMBERS).chain(&SHARED_FLAGS);
            for ((variable, first), second) in names.zip(&first.settings).zip(&peer.settings) {
                if first != second {
                    return differs(variable.name, first, second, rank, "set it alike for every rank");
                }
            }
            peers.push(peer);
        }
        Ok(peers)
    }
}

/// A rank that has met the others, and is on its way into a communicator.
struct Joining<'a> {
    coming: &'a Coming<'a>,
    member: Member,
    door: Option<Arc<Door>>,
    /// The interface at which the network finds this process.
    interface: String,
    peers: Vec<PeerInfo>,
}

/// What the ranks agreed upon.
pub(super) struct Agreed {
    pub roads: Arc<Roads>,
    pub layout: Layout,
    /// For each channel, the ranks in ring order.
    pub rings: Vec<Vec<usize>>,
}

impl Joining<'_> {
    fn run(&mut self, vigil: Vigil) -> Result<Communicator> {
        let Coming { id, size, rank, device, config, api, began, .. } = *self.coming;
        let met = Instant::now();
        let (agreed, planner, connected) = self.agree_on_roads(vigil)?;
        let (roads, layout) = (&agreed.roads, &agreed.layout);
        let decisions: Arc<[Decision]> = roads.pairs_of(rank).map(|(from, to)| roads.decision(from, to)).collect();
        let arenas: Vec<_> = (0..size).map(|rank| self.member.session().arena_of(rank)).collect();
        let keep = connected.regions.into_iter().chain(arenas.iter().flatten().cloned()).collect();
        let context = RankContext {
            rank,
            ranks: size,
            spins: self.spins(roads),
            crowded: AtomicU32::new(0),
            capacities: layout.capacities,
            arenas: arenas
                .iter()
                .map(|arena| arena.as_ref().map_or(std::ptr::null_mut(), |arena| arena.at(0)))
                .collect(),
            apart: !roads.one_process(),
            channels: connected.channels,
            links: connected.links,
            shape: Shape::of(roads.node_of_each(), rank),
            transfers: Vec::with_capacity(2 * size).into(),
            progress: self.member.progress().clone(),
            decisions,
            proxy: connected.proxy,
            mesh: self.member.session().mesh().cloned(),
            _keep: keep,
        };
        let inner = Inner {
            rank,
            size,
            device: device.clone(),
            planner,
            context: Arc::new(context),
            number: id.public_number(),
            config: config.clone(),
            finalized: AtomicBool::new(false),
            calls: Lock::default(),
        };
        inner.log_connected(&agreed, &self.peers, &self.interface);
        // nobody calls before everybody is ready
        self.member.all_gather(Plain(()))?;
        self.member.complete();
        inner.log_complete(api, InitTimings { began, met });
        Ok(Communicator { inner: Arc::new(inner) })
    }

    /// Turns worth spinning in a wait.
    fn spins(&self, roads: &Roads) -> u32 {
        let presence = |rank: usize| &self.peers[rank].presence;
        let (rank, own) = (self.coming.rank, presence(self.coming.rank));
        // proxies need processors as well
        let each = if roads.slowest() == Transport::Net { 2 } else { 1 };
        let here = roads.node_mates(rank).filter(|&mate| presence(mate).process == own.process).count();
        let mates = roads.node_mates(rank).map(|mate| &presence(mate).processors[..]);
        let affinities: Vec<_> = std::iter::once(&own.processors[..]).chain(mates).collect();
        wait::spins_for(here * each, (affinities.len() - 1) * each, &affinities)
    }

    /// The costs that rank 0 has found: all must plan with the same.
    fn costs(&self) -> Costs {
        self.peers[0].costs.filter(Costs::are_sound).unwrap_or(Costs::BUILT_IN)
    }

    /// Chooses roads and connects; roads that turn out broken are closed, and the rest is tried again.
    fn agree_on_roads(&self, vigil: Vigil) -> Result<(Agreed, Planner, Connected)> {
        let Coming { id, size, rank, config, timeout, .. } = *self.coming;
        let presences: Vec<_> = self.peers.iter().map(|peer| peer.presence.clone()).collect();
        let unshared = mesh::connect(&self.member, &presences, self.door.as_ref(), vigil)?;
        let sockets = Sockets::from_config(config)?;
        let mut faults = Faults { unshared, broken: Vec::new() };
        for attempt in 0.. {
            // every rank would choose alike, so one of each process does it for all
            let roads = self.member.once(attempt, || self.choose_roads(&faults))?;
            let count = channels::count(&roads, config);
            let direct = channels::direct(&roads);
            let buffer = config.integer(&variables::BUFFSIZE).value.unsigned_abs() as usize;
            let layout = Layout::new(size, count, direct.is_ok(), buffer);
            let planner = Planner::new(config, &roads, direct, count, self.costs())?;
            let rings = vec![(0..size).collect::<Vec<_>>(); count];
            let request = Request {
                member: &self.member,
                rank,
                id,
                door: self.door.as_ref(),
                roads: &roads,
                layout: &layout,
                rings: &rings,
                timeout,
                attempt: attempt as u16,
                sockets,
            };
            match request.attempt()? {
                Attempt::Connected(connected) => return Ok((Agreed { roads, layout, rings }, planner, connected)),
                Attempt::Broken(found) => faults.broken.extend(found),
            }
        }
        unreachable!("each attempt closes a road, and there are not so many")
    }

    fn choose_roads(&self, faults: &Faults) -> Result<Roads> {
        Roads::choose(&self.peers, faults).map_err(|decision| {
            Error::new(ErrorKind::System, format!("no road is left between two ranks: {decision}"))
                .hint("open one of the roads that a setting closes")
        })
    }
}
