//! What moving data costs on a machine: the constants of the cost model.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Transport;

/// The cost of a road: of announcing something, and of moving it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct RoadCosts {
    /// Microseconds for a flag and what it announces to reach the other side.
    pub hop: f64,
    /// Microseconds for a rank to copy or reduce one byte that another has written.
    pub byte: f64,
}

/// The costs of a machine's roads.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Costs {
    pub memory: RoadCosts,
    pub network: RoadCosts,
    /// Whether they were measured; they are those of a virtual machine with two AMD EPYC processors otherwise.
    pub measured: bool,
}

impl Costs {
    /// Read off `ferronickel perf all-reduce -t 2` with `NCCL_ALGO` and `NCCL_PROTO` set in turn (docs/performance.md).
    pub const BUILT_IN: Costs = Costs {
        memory: RoadCosts { hop: 0.2, byte: 1.0 / 20_000.0 },
        // into the socket and out of it, and by the proxy besides
        network: RoadCosts { hop: 9.0, byte: 1.0 / 5_000.0 },
        measured: false,
    };

    /// What `road` costs.
    pub fn of(&self, road: Transport) -> &RoadCosts {
        match road {
            Transport::P2p | Transport::Ipc | Transport::Shm => &self.memory,
            Transport::Net => &self.network,
        }
    }

    /// Whether they can be those of a machine: what was read or received may be anything.
    pub fn are_sound(&self) -> bool {
        let sound = |costs: &RoadCosts| (0.001..1e6).contains(&costs.hop) && (1e-7..1.0).contains(&costs.byte);
        sound(&self.memory) && sound(&self.network)
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = |costs: &RoadCosts| 1.0 / (costs.byte * 1000.0);
        let how = if self.measured { "measured on rank 0's machine" } else { "built in" };
        write!(
            f,
            "Costs, {how}: memory {:.2} us a hop, {:.1} GB/s; network {:.2} us a hop, {:.1} GB/s",
            self.memory.hop,
            speed(&self.memory),
            self.network.hop,
            speed(&self.network),
        )
    }
}
