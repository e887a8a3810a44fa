//! Which road the data takes between two ranks, and the setting up of it.
//!
//! For each ordered pair of ranks the roads are tried from the fastest to the slowest, P2P (by direct pointer within a
//! process, by IPC between processes), SHM, NET. What is chosen
//! and what was refused, with the reason, is one record ([`Decision`]). A road is used only after bytes have gone
//! over it and come back right.

pub(crate) mod connect;
pub(crate) mod costs;
pub(crate) mod layout;

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use self::costs::Costs;
use crate::bootstrap::mesh::Unshared;
use crate::bootstrap::presence::Presence;
use crate::config::{Config, variables};
use crate::diagnostics::decisions::{Decision, Refusal};

/// A way for data from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Transport {
    /// Within a process: the sender writes the receiver's memory, and each reads and writes the other's buffers.
    P2p,
    /// Between processes of a machine: the same, in memory of the other that each has mapped.
    Ipc,
    /// Both map one piece of shared memory, and pass the data through it.
    Shm,
    /// The data goes through a network socket.
    Net,
}

impl Transport {
    /// Fastest first.
    #[cfg(test)]
    pub const ALL: [Transport; 4] = [Transport::P2p, Transport::Ipc, Transport::Shm, Transport::Net];

    /// The transport's name without its kind, as reasons use it.
    pub fn short_name(self) -> &'static str {
        match self {
            Transport::P2p | Transport::Ipc => "P2P",
            Transport::Shm => "SHM",
            Transport::Net => "NET",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::P2p => "P2P/direct pointer",
            Transport::Ipc => "P2P/IPC",
            Transport::Shm => "SHM/direct",
            Transport::Net => "NET/Socket/0",
        })
    }
}

/// What a rank's peers must know of it to choose roads. Every rank knows it of every rank, and so all choose alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeerInfo {
    pub presence: Presence,
    pub device: u32,
    /// Why P2P may not be used, if a setting says so.
    pub p2p_closed: Option<String>,
    /// Why SHM may not be used, if a setting says so.
    pub shm_closed: Option<String>,
    /// Why other processes cannot reach its buffers, if they cannot.
    pub arena_missing: Option<String>,
    /// The settings by which it plans.
    pub settings: Vec<String>,
    /// What moving data costs on its machine, if it is the one that tells the others.
    pub costs: Option<Costs>,
}

impl PeerInfo {
    pub fn new(presence: Presence, device: u32, config: &Config) -> PeerInfo {
        let closed = |variable| {
            let setting = config.flag(variable);
            setting.value.then(|| setting.reason())
        };
        PeerInfo {
            presence,
            device,
            p2p_closed: closed(&variables::P2P_DISABLE),
            shm_closed: closed(&variables::SHM_DISABLE),
            arena_missing: None,
            settings: Vec::new(),
            costs: None,
        }
    }

    pub fn rank(&self) -> usize {
        self.presence.rank
    }

    /// The rank as the log names it.
    pub fn label(&self) -> String {
        format!("{}[{}]", self.presence.rank, self.device)
    }

    fn closed(&self, transport: Transport) -> Option<&String> {
        match transport {
            Transport::P2p => self.p2p_closed.as_ref(),
            Transport::Ipc => self.p2p_closed.as_ref().or(self.arena_missing.as_ref()),
            Transport::Shm => self.shm_closed.as_ref(),
            Transport::Net => None,
        }
    }

    /// The roads that could be to another rank, if nothing closed them: the fastest first.
    fn candidates(&self, other: &PeerInfo) -> [Transport; 3] {
        let same_process = self.presence.process == other.presence.process;
        [if same_process { Transport::P2p } else { Transport::Ipc }, Transport::Shm, Transport::Net]
    }

    /// Why the two ranks cannot reach each other's memory, if they are on different hosts.
    fn apart(&self, other: &PeerInfo) -> Option<String> {
        let (a, b) = (&self.presence, &other.presence);
        if a.node == b.node {
            return None;
        }
        let id = |presence: &Presence| presence.host_id.as_ref().map_or("not set".into(), |id| format!("={id}"));
        Some(match (&a.host_id, &b.host_id) {
            (None, None) => format!("the ranks are on different hosts, {} and {}", a.host, b.host),
            _ => format!(
                "NCCL_HOSTID makes different hosts of rank {} ({}) and rank {} ({})",
                a.rank,
                id(a),
                b.rank,
                id(b)
            ),
        })
    }
}

/// Roads that are known not to work before they are tried, and those that were tried.
#[derive(Clone, Default, Debug)]
pub(crate) struct Faults {
    pub unshared: Vec<Unshared>,
    pub broken: Vec<Broken>,
}

/// A road that was tried and did not work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Broken {
    pub from: usize,
    pub to: usize,
    pub transport: Transport,
    pub reason: String,
}

/// The road of every ordered pair of ranks. It grows with the square of the ranks, so the ranks of a process share one.
#[derive(Clone, Debug)]
pub(crate) struct Roads {
    ranks: usize,
    /// By source, then by destination; a rank's road to itself stands for nothing.
    chosen: Vec<(Transport, Vec<Refusal>)>,
    labels: Vec<String>,
    /// The node that each rank is on, numbered in the order of their ranks.
    nodes: Vec<usize>,
    /// The process that each rank is in, by the lowest rank in it.
    processes: Vec<usize>,
    slowest: Transport,
}

impl Roads {
    /// Chooses for every pair, around what is known not to work. A pair that has no road left is an error, which names
    /// it and why.
    pub fn choose(peers: &[PeerInfo], faults: &Faults) -> Result<Roads, Decision> {
        let mut chosen = Vec::with_capacity(peers.len() * peers.len());
        for from in peers {
            for to in peers {
                chosen.push(Self::choose_one(peers, from, to, faults)?);
            }
        }
        let labels = peers.iter().map(PeerInfo::label).collect();
        let mut nodes: Vec<u64> = Vec::new();
        let mut node_of = |peer: &PeerInfo| {
            let known = nodes.iter().position(|&node| node == peer.presence.node);
            known.unwrap_or_else(|| {
                nodes.push(peer.presence.node);
                nodes.len() - 1
            })
        };
        let node_of = peers.iter().map(&mut node_of).collect();
        let first = |peer: &PeerInfo| peers.iter().position(|other| other.presence.process == peer.presence.process);
        let processes = peers.iter().map(|peer| first(peer).expect("it is among them")).collect();
        let (ranks, slowest) = (peers.len(), Transport::P2p);
        let mut roads = Roads { ranks, chosen, labels, nodes: node_of, processes, slowest };
        let between = roads.pairs().map(|(from, to)| roads.transport(from, to));
        roads.slowest = between.max().unwrap_or(Transport::P2p);
        Ok(roads)
    }

    fn choose_one(
        peers: &[PeerInfo],
        from: &PeerInfo,
        to: &PeerInfo,
        faults: &Faults,
    ) -> Result<(Transport, Vec<Refusal>), Decision> {
        let mut refused = Vec::new();
        for transport in from.candidates(to) {
            match refusal(transport, peers, from, to, faults) {
                Some(reason) => refused.push(Refusal { candidate: transport.short_name().into(), reason }),
                None => return Ok((transport, refused)),
            }
        }
        Err(Decision { about: format!("{} -> {}", from.label(), to.label()), chosen: "no road".into(), refused })
    }

    /// The node of each rank, numbered in the order of their ranks.
    pub fn node_of_each(&self) -> &[usize] {
        &self.nodes
    }

    /// How many nodes the ranks are on.
    pub fn nodes(&self) -> usize {
        self.nodes.iter().max().map_or(0, |last| last + 1)
    }

    /// The ranks on the same node as `rank`, in order.
    pub fn node_mates(&self, rank: usize) -> impl Iterator<Item = usize> {
        (0..self.ranks).filter(move |&other| self.nodes[other] == self.nodes[rank])
    }

    /// Whether all ranks are in one process, and so share their addresses.
    pub fn one_process(&self) -> bool {
        self.processes.iter().collect::<BTreeSet<_>>().len() <= 1
    }

    /// The fastest road that the machines allow between two ranks.
    pub fn best(&self, from: usize, to: usize) -> Transport {
        match () {
            () if self.nodes[from] != self.nodes[to] => Transport::Net,
            () if self.processes[from] == self.processes[to] => Transport::P2p,
            () => Transport::Ipc,
        }
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    pub fn transport(&self, from: usize, to: usize) -> Transport {
        self.chosen[from * self.ranks + to].0
    }

    /// The record of one choice.
    pub fn decision(&self, from: usize, to: usize) -> Decision {
        let (transport, refused) = &self.chosen[from * self.ranks + to];
        let about = format!("{} -> {}", self.labels[from], self.labels[to]);
        Decision { about, chosen: transport.to_string(), refused: refused.clone() }
    }

    /// Every ordered pair of different ranks.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ranks = self.ranks;
        (0..ranks).flat_map(move |from| (0..ranks).map(move |to| (from, to))).filter(|(from, to)| from != to)
    }

    /// The ordered pairs that begin or end at `rank`.
    pub fn pairs_of(&self, rank: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        (0..self.ranks).filter(move |&peer| peer != rank).flat_map(move |peer| [(rank, peer), (peer, rank)])
    }

    /// The slowest road between any two ranks; the fastest there is if there is only one rank.
    pub fn slowest(&self) -> Transport {
        self.slowest
    }

    /// Whether any road into or out of `rank` is `transport`.
    pub fn touches(&self, rank: usize, transport: Transport) -> bool {
        self.pairs_of(rank).any(|(from, to)| self.transport(from, to) == transport)
    }
}

/// Why `transport` cannot carry data from one rank to another, if it cannot.
fn refusal(
    transport: Transport,
    peers: &[PeerInfo],
    from: &PeerInfo,
    to: &PeerInfo,
    faults: &Faults,
) -> Option<String> {
    if transport != Transport::Net
        && let Some(reason) = from.apart(to)
    {
        return Some(reason);
    }
    match (from.closed(transport), to.closed(transport)) {
        (Some(reason), Some(other)) if reason == other => return Some(reason.clone()),
        (Some(reason), _) => return Some(format!("{reason} (on rank {})", from.rank())),
        (None, Some(reason)) => return Some(format!("{reason} (on rank {})", to.rank())),
        (None, None) => {}
    }
    if matches!(transport, Transport::Ipc | Transport::Shm) {
        let process = |rank: usize| peers[rank].presence.process;
        let pair = (from.presence.process, to.presence.process);
        let concerns = |unshared: &&Unshared| {
            let (one, other) = (process(unshared.one), process(unshared.other));
            pair.0 != pair.1 && ((one, other) == pair || (other, one) == pair)
        };
        let found = faults.unshared.iter().filter(|unshared| transport == Transport::Ipc || !unshared.arena_only);
        if let Some(unshared) = { found }.find(concerns) {
            return Some(unshared.reason.clone());
        }
    }
    let found = faults.broken.iter().find(|b| (b.from, b.to, b.transport) == (from.rank(), to.rank(), transport));
    found.map(|broken| broken.reason.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(configs: &[Config]) -> Vec<PeerInfo> {
        let peer = |(rank, config)| PeerInfo::new(Presence::new(rank, config, None), rank as u32 + 4, config);
        configs.iter().enumerate().map(peer).collect()
    }

    fn closing(variables: &[&str]) -> Config {
        variables.iter().fold(Config::default(), |config, name| config.with(name, "1").unwrap())
    }

    #[test]
    fn the_fastest_open_road_is_chosen_and_the_others_say_why_not() {
        let choose = |variables: &[&str]| {
            Roads::choose(&peers(&[closing(variables), closing(variables)]), &Faults::default()).unwrap()
        };
        assert_eq!(choose(&[]).decision(0, 1).to_string(), "0[4] -> 1[5]: P2P/direct pointer");
        assert_eq!(
            choose(&["NCCL_P2P_DISABLE"]).decision(0, 1).to_string(),
            "0[4] -> 1[5]: SHM/direct; P2P refused: NCCL_P2P_DISABLE=1 set by the program"
        );
        assert_eq!(
            choose(&["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]).decision(1, 0).to_string(),
            "1[5] -> 0[4]: NET/Socket/0; P2P refused: NCCL_P2P_DISABLE=1 set by the program; \
             SHM refused: NCCL_SHM_DISABLE=1 set by the program"
        );
    }

    #[test]
    fn a_setting_of_one_rank_closes_its_own_roads_only() {
        let roads =
            Roads::choose(&peers(&[closing(&[]), closing(&["NCCL_P2P_DISABLE"]), closing(&[])]), &Faults::default())
                .unwrap();
        assert_eq!(roads.transport(0, 2), Transport::P2p);
        assert_eq!((roads.transport(0, 1), roads.transport(1, 2)), (Transport::Shm, Transport::Shm));
        assert!(roads.decision(0, 1).refused[0].reason.ends_with("(on rank 1)"));
        assert_eq!(roads.slowest(), Transport::Shm);
        assert!(roads.touches(0, Transport::Shm) && !roads.touches(0, Transport::Net));
    }

    #[test]
    fn a_road_that_failed_is_not_taken_again_and_no_road_is_an_error() {
        let peers = peers(&[Config::default(), Config::default()]);
        let broken = |&transport: &Transport| Broken { from: 0, to: 1, transport, reason: "no byte arrived".into() };
        let faults =
            |transports: &[Transport]| Faults { broken: transports.iter().map(broken).collect(), ..Faults::default() };
        let roads = Roads::choose(&peers, &faults(&[Transport::P2p])).unwrap();
        assert_eq!(roads.decision(0, 1).to_string(), "0[4] -> 1[5]: SHM/direct; P2P refused: no byte arrived");
        assert_eq!(roads.transport(1, 0), Transport::P2p);
        let all = faults(&Transport::ALL);
        assert_eq!(Roads::choose(&peers, &all).unwrap_err().refused.len(), 3);
    }

    /// Ranks 0 and 1 in one process, rank 2 in another of the same machine, rank 3 elsewhere.
    fn spread() -> Vec<PeerInfo> {
        let mut peers = peers(&[Config::default(), Config::default(), Config::default(), Config::default()]);
        peers[2].presence.process ^= 1;
        peers[3].presence.process ^= 2;
        peers[3].presence.node ^= 1;
        peers
    }

    #[test]
    fn processes_and_hosts_decide_what_is_possible() {
        let roads = Roads::choose(&spread(), &Faults::default()).unwrap();
        assert_eq!(roads.transport(0, 1), Transport::P2p);
        assert_eq!(roads.decision(1, 2).to_string(), "1[5] -> 2[6]: P2P/IPC");
        assert_eq!((roads.transport(2, 3), roads.best(2, 3)), (Transport::Net, Transport::Net));
        assert!(roads.decision(0, 3).refused[1].reason.starts_with("the ranks are on different hosts"));
        assert_eq!((roads.nodes(), roads.node_mates(2).collect::<Vec<_>>()), (2, vec![0, 1, 2]));
        assert!(!roads.one_process());
    }

    #[test]
    fn processes_that_cannot_share_memory_say_why_for_all_their_ranks() {
        let unshared = |arena_only| vec![Unshared { one: 2, other: 0, arena_only, reason: "no Unix socket".into() }];
        let choose = |arena_only| Roads::choose(&spread(), &Faults { unshared: unshared(arena_only), broken: vec![] });
        let roads = choose(false).unwrap();
        assert_eq!(
            roads.decision(1, 2).to_string(),
            "1[5] -> 2[6]: NET/Socket/0; P2P refused: no Unix socket; SHM refused: no Unix socket"
        );
        assert_eq!(roads.transport(0, 1), Transport::P2p);
        assert_eq!(
            choose(true).unwrap().decision(2, 1).to_string(),
            "2[6] -> 1[5]: SHM/direct; P2P refused: no Unix socket"
        );
    }
}
