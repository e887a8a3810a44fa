//! A communicator for a sample of calls: ranks, nodes, roads, algorithms and protocols.

use ferronickel::{Communicator, Config, Device, Stream, UniqueId};

use crate::call::Collective;
use crate::random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Road {
    P2p,
    Shm,
    Net,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorldShape {
    pub ranks: usize,
    pub road: Road,
    /// The node of each rank, round and round.
    pub nodes: &'static [&'static str],
    pub algorithm: Option<&'static str>,
    pub protocol: Option<&'static str>,
    pub settings: Vec<(&'static str, &'static str)>,
}

impl WorldShape {
    /// Two ranks on one node, nothing set.
    pub fn plain() -> WorldShape {
        WorldShape { ranks: 2, road: Road::P2p, nodes: &["a"], algorithm: None, protocol: None, settings: Vec::new() }
    }

    pub fn sample(random: &mut Random) -> WorldShape {
        // three, one and two ranks a node; two nodes in turn
        let nodes: [&[&str]; 4] = [&["a"], &["a"], &["a", "b", "a", "c", "c", "a"], &["a", "b"]];
        let algorithms = ["OneShot", "TwoShot", "Ring", "Tree", "PAT", "Hierarchical"];
        WorldShape {
            ranks: random.pick(&[1, 2, 2, 3, 4, 5, 6, 7, 8, 12]),
            road: random.pick(&[Road::P2p, Road::Shm, Road::Net]),
            nodes: random.pick(&nodes),
            algorithm: (random.below(4) > 0).then(|| random.pick(&algorithms)),
            protocol: (random.below(3) == 0).then(|| random.pick(&["LL", "Simple"])),
            settings: Vec::new(),
        }
    }

    fn config(&self, rank: usize) -> Config {
        let closed: &[_] = match self.road {
            Road::P2p => &[],
            Road::Shm => &["NCCL_P2P_DISABLE"],
            Road::Net => &["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"],
        };
        let all = closed.iter().map(|name| (*name, "1")).chain([("FERRONICKEL_ANNOUNCE", "0")]);
        let all = all.chain((self.nodes.len() > 1).then(|| ("NCCL_HOSTID", self.nodes[rank % self.nodes.len()])));
        let all = all.chain(self.algorithm.map(|name| ("NCCL_ALGO", name)));
        let all = all.chain(self.protocol.map(|name| ("NCCL_PROTO", name)));
        all.chain(self.settings.iter().copied())
            .fold(Config::default(), |config, (name, value)| config.with(name, value).unwrap())
    }
}

pub struct Rank {
    pub communicator: Communicator,
    pub stream: Stream,
}

pub struct World {
    pub ranks: Vec<Rank>,
    collectives: Vec<Collective>,
}

impl World {
    pub fn new(shape: &WorldShape, device: fn(u32) -> Device) -> World {
        // settings that leave nothing for any collective are refused in init: then without them
        Self::try_new(shape, device).unwrap_or_else(|_| {
            let shape = WorldShape { algorithm: None, protocol: None, ..shape.clone() };
            Self::try_new(&shape, device).unwrap()
        })
    }

    fn try_new(shape: &WorldShape, device: fn(u32) -> Device) -> Result<World, ferronickel::Error> {
        let id = UniqueId::new().unwrap();
        let made = std::thread::scope(|scope| {
            let init = |rank: usize| {
                let (id, config) = (&id, shape.config(rank));
                scope.spawn(move || Communicator::init_rank(id, shape.ranks, rank, &device(rank as u32), &config))
            };
            let threads: Vec<_> = (0..shape.ranks).map(init).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let made = made.into_iter().collect::<Result<Vec<_>, _>>()?;
        let rank = |communicator: Communicator| Rank { stream: communicator.device().stream().unwrap(), communicator };
        let mut world = World { ranks: made.into_iter().map(rank).collect(), collectives: Vec::new() };
        let possible = |collective: &Collective| collective.is_possible(&world.ranks[0]);
        world.collectives = Collective::ALL.into_iter().filter(possible).collect();
        Ok(world)
    }

    /// The collectives for which the settings leave an algorithm.
    pub fn collectives(&self) -> Vec<Collective> {
        self.collectives.clone()
    }
}
