//! Init: the ranks meet, choose roads, connect, and try what they connected.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::report::{InitTimings, log_start};
use super::{Communicator, Inner, UniqueId};
use crate::bootstrap::rendezvous::Member;
use crate::config::{Config, Variable, variables};
use crate::device::Device;
use crate::device::context::RankContext;
use crate::device::host::{threads, wait};
use crate::device::progress::Failure;
use crate::diagnostics::decisions::Decision;
use crate::diagnostics::log;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Planner, channels};
use crate::transport::connect::{Attempt, Connected, Request};
use crate::transport::layout::Layout;
use crate::transport::{Broken, PeerInfo, Roads, Transport};
use crate::{fork, group};

/// Settings by which ranks plan: they must be the same everywhere, or ranks would wait for each other in different
/// algorithms.
const SHARED_TEXTS: [&Variable; 2] = [&variables::ALGO, &variables::PROTO];
const SHARED_NUMBERS: [&Variable; 3] = [&variables::BUFFSIZE, &variables::MIN_NCHANNELS, &variables::MAX_NCHANNELS];

impl Communicator {
    /// A communicator over `devices`, all of whose ranks are driven by this process: rank *i* is on device *i*.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) without devices; otherwise as for
    /// [`init_ranks`](Self::init_ranks).
    pub fn init_all(devices: &[Device], config: &Config) -> Result<Vec<Communicator>> {
        let ranks: Vec<_> = devices.iter().cloned().enumerate().collect();
        let id = UniqueId::new()?;
        init(&id, devices.len(), &ranks, config, "ncclCommInitAll")
    }

    /// One rank of a communicator of `size` ranks; the others are made by other threads, with the same id. Waits for
    /// all of them.
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
            let init = move || init_one(&id, size, rank, &device, &config, api);
            threads::spawn(&format!("fnickel init {rank}"), init)
                .map_err(|error| Error::system("starting a thread for init", error))
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

fn check(size: usize, ranks: &[(usize, Device)]) -> Result<()> {
    let invalid = |seen: String| Err(Error::new(ErrorKind::InvalidArgument, seen));
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
    let member = Member::join(id, size, rank, timeout).map_err(|error| error.in_call(api).on(rank, device.index()))?;
    let joining = Joining { id, size, rank, device, config, api, timeout, member: &member };
    joining.run().map_err(|error| {
        // whoever fails tells the others, who would wait for it
        let hint = error.advice().map(String::from);
        let seen = format!("rank {rank} failed in init: {}", error.seen());
        member.fail(Failure { kind: error.kind(), seen, hint });
        error.in_call(api).on(rank, device.index())
    })
}

/// A rank that is on its way into a communicator.
struct Joining<'a> {
    id: &'a UniqueId,
    size: usize,
    rank: usize,
    device: &'a Device,
    config: &'a Config,
    api: &'static str,
    timeout: Duration,
    member: &'a Member,
}

/// What the ranks agreed upon.
struct Agreed {
    roads: Arc<Roads>,
    layout: Layout,
    planner: Planner,
    connected: Connected,
}

impl Joining<'_> {
    fn run(&self) -> Result<Communicator> {
        let began = Instant::now();
        log_start(self.id, self.size, self.rank, self.device, self.api);
        let peers = self.member.all_gather(PeerInfo::new(self.rank, self.device.index(), self.config))?;
        self.agree_on_settings()?;
        let met = Instant::now();
        let Agreed { roads, layout, planner, connected } = self.agree_on_roads(&peers)?;
        let decisions: Arc<[Decision]> = roads.pairs_of(self.rank).map(|(from, to)| roads.decision(from, to)).collect();
        // proxies need processors as well
        let proxies = roads.slowest() == Transport::Net;
        let threads = self.size * if proxies { 2 } else { 1 };
        let context = RankContext {
            rank: self.rank,
            ranks: self.size,
            spins: wait::spins_for(threads),
            crowded: AtomicU32::new(0),
            capacities: layout.capacities,
            channels: connected.channels,
            progress: self.member.progress().clone(),
            decisions,
            proxy: connected.proxy,
            _keep: connected.regions,
        };
        let inner = Inner {
            rank: self.rank,
            size: self.size,
            device: self.device.clone(),
            planner,
            context: Arc::new(context),
            number: self.id.public_number(),
            config: self.config.clone(),
            finalized: AtomicBool::new(false),
            calls: Mutex::new(0),
        };
        inner.log_connected(&roads, &layout, &peers);
        // nobody calls before everybody is ready
        self.member.all_gather(())?;
        inner.log_complete(self.api, InitTimings { began, met });
        Ok(Communicator { inner: Arc::new(inner) })
    }

    /// Ranks whose settings differ would plan differently.
    fn agree_on_settings(&self) -> Result<()> {
        let texts = SHARED_TEXTS.map(|variable| self.config.text(variable).value.unwrap_or("not set").to_string());
        let numbers = SHARED_NUMBERS.map(|variable| self.config.integer(variable).value.to_string());
        let all = self.member.all_gather([&texts[..], &numbers[..]].concat())?;
        for (index, variable) in SHARED_TEXTS.iter().chain(&SHARED_NUMBERS).enumerate() {
            if let Some(other) = all.iter().position(|settings| settings[index] != all[0][index]) {
                let (name, first, second) = (variable.name, &all[0][index], &all[other][index]);
                let seen = format!("{name} differs: {first} on rank 0, {second} on rank {other}");
                return Err(Error::new(ErrorKind::InvalidUsage, seen).hint("set it alike for every rank"));
            }
        }
        Ok(())
    }

    /// Chooses roads and connects; roads that turn out broken are closed, and the rest is tried again.
    fn agree_on_roads(&self, peers: &[PeerInfo]) -> Result<Agreed> {
        let mut broken: Vec<Broken> = Vec::new();
        loop {
            let roads = self.choose_roads(peers, &broken)?;
            let count = channels::count(&roads, self.config);
            let direct = channels::direct(&roads);
            let buffer = self.config.integer(&variables::BUFFSIZE).value.unsigned_abs() as usize;
            let layout = Layout::new(self.size, count, direct.is_ok(), buffer);
            let planner = Planner::new(self.config, &roads, direct, count, &layout.capacities)?;
            let rings = vec![(0..self.size).collect(); count];
            let request = Request {
                member: self.member,
                rank: self.rank,
                secret: self.id.secret(),
                roads: &roads,
                layout: &layout,
                rings: &rings,
                timeout: self.timeout,
            };
            match request.attempt()? {
                Attempt::Connected(connected) => return Ok(Agreed { roads, layout, planner, connected }),
                Attempt::Broken(found) => broken.extend(found),
            }
        }
    }

    /// Every rank would choose alike, so one does it for all.
    fn choose_roads(&self, peers: &[PeerInfo], broken: &[Broken]) -> Result<Arc<Roads>> {
        let chosen = match self.rank {
            0 => Some(Arc::new(Roads::choose(peers, broken).map_err(|decision| {
                Error::new(ErrorKind::System, format!("no road is left between two ranks: {decision}"))
                    .hint("open one of the roads that a setting closes")
            })?)),
            _ => None,
        };
        let gathered = self.member.all_gather(chosen)?;
        gathered.into_iter().next().flatten().ok_or_else(|| Error::new(ErrorKind::Internal, "rank 0 chose no roads"))
    }
}
