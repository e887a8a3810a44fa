//! Which kernel does a collective by an algorithm with a protocol, or why none does.

use super::{Algorithm, Protocol};
use crate::device::work::{Across, Kernel};
use crate::transport::Transport;
use crate::types::Collective;

/// What decides besides the settings of algorithm and protocol.
pub(super) struct Circumstances {
    /// The slowest road between two ranks.
    pub road: Transport,
    /// Whether every rank reaches every other's memory, or why not.
    pub direct: Result<(), String>,
    pub nodes: usize,
    /// Why elements must be combined in the order of their ranks, if they must.
    pub in_rank_order: Option<String>,
}

impl Circumstances {
    /// Whether a sender may lend its buffers.
    fn lends(&self) -> bool {
        matches!(self.road, Transport::P2p | Transport::Ipc)
    }
}

/// The kernels, of which the cost model chooses one.
pub(super) fn kernels_for(
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    circumstances: &Circumstances,
) -> Result<Vec<Kernel>, String> {
    let Circumstances { road, in_rank_order, .. } = circumstances;
    if protocol == Protocol::Ll && *road == Transport::Net {
        return Err("the network carries whole slots, not lines".into());
    }
    let in_order = matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot);
    if let (Some(reason), true, false) = (in_rank_order, collective.reduces(), in_order) {
        return Err(format!("{reason}, and it does not combine ranks in their order"));
    }
    let is_ll = protocol == Protocol::Ll;
    let choose = |ll, simple| Ok(vec![if is_ll { ll } else { simple }]);
    match (algorithm, collective) {
        (Algorithm::OneShot, _) => one_shot(collective, is_ll, circumstances).map(|kernel| vec![kernel]),
        (Algorithm::TwoShot, Collective::AllReduce) => two_shot(is_ll, circumstances).map(|kernel| vec![kernel]),
        (Algorithm::Ring, Collective::AllToAll) => Err("each message is for one rank only".into()),
        (Algorithm::Ring, _) => choose(Kernel::RingLl, Kernel::RingSimple),
        (Algorithm::Tree, Collective::AllReduce | Collective::Broadcast | Collective::Reduce) => {
            choose(Kernel::TreeLl, Kernel::TreeSimple)
        }
        (Algorithm::Pat, Collective::AllGather | Collective::ReduceScatter) => choose(Kernel::PatLl, Kernel::PatSimple),
        (Algorithm::Hierarchical, Collective::AllReduce) => hierarchical(is_ll, circumstances),
        (Algorithm::TwoShot | Algorithm::Hierarchical, _) => Err("it is for all-reduce".into()),
        (Algorithm::Tree, _) => Err("it is for all-reduce, broadcast and reduce".into()),
        (Algorithm::Pat, _) => Err("it is for all-gather and reduce-scatter".into()),
    }
}

fn one_shot(collective: Collective, is_ll: bool, circumstances: &Circumstances) -> Result<Kernel, String> {
    let Circumstances { direct, road, .. } = circumstances;
    match collective {
        Collective::AllReduce => {
            direct.clone()?;
            Ok(if is_ll { Kernel::OneShotLl } else { Kernel::OneShotSimple })
        }
        Collective::Broadcast | Collective::Reduce => Ok(if is_ll { Kernel::FlatLl } else { Kernel::FlatSimple }),
        _ if is_ll => {
            direct.clone()?;
            Ok(Kernel::OneShotLl)
        }
        _ if *road == Transport::Shm && direct.is_ok() => Ok(Kernel::OneShotSimple),
        Collective::AllToAll => Ok(Kernel::Exchange),
        _ => Ok(Kernel::FlatSimple),
    }
}

fn two_shot(is_ll: bool, circumstances: &Circumstances) -> Result<Kernel, String> {
    match (is_ll, &circumstances.direct) {
        (true, _) => Err("its messages are too large for LL to gain anything".into()),
        (false, Err(_)) => Ok(Kernel::FlatSimple),
        (false, Ok(())) if circumstances.lends() => Ok(Kernel::TwoShotDirect),
        (false, Ok(())) => Ok(Kernel::TwoShotStaged),
    }
}

fn hierarchical(is_ll: bool, circumstances: &Circumstances) -> Result<Vec<Kernel>, String> {
    if circumstances.nodes < 2 {
        return Err("all ranks are on one node".into());
    }
    if is_ll {
        return Err("its messages are too large for LL to gain anything".into());
    }
    Ok(vec![Kernel::Hierarchical(Across::Ring), Kernel::Hierarchical(Across::Tree)])
}
