//! Which road the data takes between two ranks, and the setting up of it.
//!
//! For each ordered pair of ranks the roads are tried from the fastest to the slowest, P2P, SHM, NET. What is chosen
//! and what was refused, with the reason, is one record ([`Decision`]). A road is used only after bytes have gone
//! over it and come back right.

pub(crate) mod connect;
pub(crate) mod layout;
pub(crate) mod net;

use std::fmt;

use crate::config::{Config, variables};
use crate::diagnostics::decisions::{Decision, Refusal};

/// A way for data from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Transport {
    /// The sender writes the receiver's memory, and each reads and writes the other's buffers.
    P2p,
    /// Both map one piece of shared memory, and pass the data through it.
    Shm,
    /// The data goes through a network socket.
    Net,
}

impl Transport {
    /// Fastest first.
    pub const ALL: [Transport; 3] = [Transport::P2p, Transport::Shm, Transport::Net];

    /// The transport's name without its kind, as reasons use it.
    pub fn short_name(self) -> &'static str {
        match self {
            Transport::P2p => "P2P",
            Transport::Shm => "SHM",
            Transport::Net => "NET",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::P2p => "P2P/direct pointer",
            Transport::Shm => "SHM/direct",
            Transport::Net => "NET/Socket/0",
        })
    }
}

/// What a rank's peers must know of it to choose roads. Every rank knows it of every rank, and so all choose alike.
#[derive(Clone, Debug)]
pub(crate) struct PeerInfo {
    pub rank: usize,
    pub device: u32,
    /// Why P2P may not be used, if a setting says so.
    pub p2p_closed: Option<String>,
    /// Why SHM may not be used, if a setting says so.
    pub shm_closed: Option<String>,
}

impl PeerInfo {
    pub fn new(rank: usize, device: u32, config: &Config) -> PeerInfo {
        let closed = |variable| {
            let setting = config.flag(variable);
            setting.value.then(|| setting.reason())
        };
        PeerInfo {
            rank,
            device,
            p2p_closed: closed(&variables::P2P_DISABLE),
            shm_closed: closed(&variables::SHM_DISABLE),
        }
    }

    /// The rank as the log names it.
    pub fn label(&self) -> String {
        format!("{}[{}]", self.rank, self.device)
    }

    fn closed(&self, transport: Transport) -> Option<&String> {
        match transport {
            Transport::P2p => self.p2p_closed.as_ref(),
            Transport::Shm => self.shm_closed.as_ref(),
            Transport::Net => None,
        }
    }
}

/// A road that was tried and did not work.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    slowest: Transport,
}

impl Roads {
    /// Chooses for every pair; `broken` are roads that were tried. A pair that has none left is an error, which names
    /// it and why.
    pub fn choose(peers: &[PeerInfo], broken: &[Broken]) -> Result<Roads, Decision> {
        let mut chosen = Vec::with_capacity(peers.len() * peers.len());
        for from in peers {
            for to in peers {
                chosen.push(Self::choose_one(from, to, broken)?);
            }
        }
        let labels = peers.iter().map(PeerInfo::label).collect();
        let mut roads = Roads { ranks: peers.len(), chosen, labels, slowest: Transport::P2p };
        let between = roads.pairs().map(|(from, to)| roads.transport(from, to));
        roads.slowest = between.max().unwrap_or(Transport::P2p);
        Ok(roads)
    }

    fn choose_one(from: &PeerInfo, to: &PeerInfo, broken: &[Broken]) -> Result<(Transport, Vec<Refusal>), Decision> {
        let mut refused = Vec::new();
        for transport in Transport::ALL {
            match refusal(transport, from, to, broken) {
                Some(reason) => refused.push(Refusal { candidate: transport.short_name().into(), reason }),
                None => return Ok((transport, refused)),
            }
        }
        Err(Decision { about: format!("{} -> {}", from.label(), to.label()), chosen: "no road".into(), refused })
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
fn refusal(transport: Transport, from: &PeerInfo, to: &PeerInfo, broken: &[Broken]) -> Option<String> {
    match (from.closed(transport), to.closed(transport)) {
        (Some(reason), Some(other)) if reason == other => return Some(reason.clone()),
        (Some(reason), _) => return Some(format!("{reason} (on rank {})", from.rank)),
        (None, Some(reason)) => return Some(format!("{reason} (on rank {})", to.rank)),
        (None, None) => {}
    }
    let found = broken.iter().find(|b| (b.from, b.to, b.transport) == (from.rank, to.rank, transport));
    found.map(|broken| broken.reason.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(configs: &[Config]) -> Vec<PeerInfo> {
        configs.iter().enumerate().map(|(rank, config)| PeerInfo::new(rank, rank as u32 + 4, config)).collect()
    }

    fn closing(variables: &[&str]) -> Config {
        variables.iter().fold(Config::default(), |config, name| config.with(name, "1").unwrap())
    }

    #[test]
    fn the_fastest_open_road_is_chosen_and_the_others_say_why_not() {
        let choose =
            |variables: &[&str]| Roads::choose(&peers(&[closing(variables), closing(variables)]), &[]).unwrap();
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
        let roads = Roads::choose(&peers(&[closing(&[]), closing(&["NCCL_P2P_DISABLE"]), closing(&[])]), &[]).unwrap();
        assert_eq!(roads.transport(0, 2), Transport::P2p);
        assert_eq!((roads.transport(0, 1), roads.transport(1, 2)), (Transport::Shm, Transport::Shm));
        assert!(roads.decision(0, 1).refused[0].reason.ends_with("(on rank 1)"));
        assert_eq!(roads.slowest(), Transport::Shm);
        assert!(roads.touches(0, Transport::Shm) && !roads.touches(0, Transport::Net));
    }

    #[test]
    fn a_road_that_failed_is_not_taken_again_and_no_road_is_an_error() {
        let peers = peers(&[Config::default(), Config::default()]);
        let broken = |transport| Broken { from: 0, to: 1, transport, reason: "no byte arrived".into() };
        let roads = Roads::choose(&peers, &[broken(Transport::P2p)]).unwrap();
        assert_eq!(roads.decision(0, 1).to_string(), "0[4] -> 1[5]: SHM/direct; P2P refused: no byte arrived");
        assert_eq!(roads.transport(1, 0), Transport::P2p);
        let all = Transport::ALL.map(broken);
        assert_eq!(Roads::choose(&peers, &all).unwrap_err().refused.len(), 3);
    }
}
