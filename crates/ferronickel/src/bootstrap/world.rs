//! Who a launcher says this process is, and how all ranks it started come by one id.

use std::time::Duration;

use crate::bootstrap::comm_id::CommId;
use crate::bootstrap::root;
use crate::bootstrap::unique_id::UniqueId;
use crate::config::{Config, variables};
use crate::error::{Error, ErrorKind, Result};

use hand_over::Meeting;
use job::Job;

mod hand_over;
mod job;
mod launchers;
mod slurm;
#[cfg(test)]
mod tests;

/// All the ranks that a launcher started, and which of them this process is.
///
/// Read from what the launcher put into the environment: `ferronickel run`, torchrun, Open MPI's and MPICH's `mpirun`
/// (and others of PMI's variables), Slurm's `srun`, or PyTorch's `RANK`, `WORLD_SIZE` and `MASTER_ADDR`. Where there
/// are variables of several, the first in this list counts.
///
/// ```
/// use ferronickel::{Config, World};
///
/// # fn main() -> ferronickel::Result<()> {
/// match World::from_environment(&Config::from_environment())? {
///     Some(world) => println!("rank {} of {}, started by {}", world.rank, world.size, world.launcher),
///     None => println!("started by hand"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct World {
    /// Which rank this process is, from 0.
    pub rank: usize,
    /// How many ranks there are on all hosts.
    pub size: usize,
    /// Which of this host's ranks this process is, from 0.
    pub local_rank: usize,
    /// How many ranks this host has.
    pub local_size: usize,
    /// Who started it, such as `Open MPI`.
    pub launcher: &'static str,
    /// What tells the ranks of this job from those of another on the same host.
    job: Job,
    /// The id for the first communicator, where the launcher gives one.
    id: Option<UniqueId>,
}

impl World {
    /// What the launcher of this process says; `None` where no launcher says anything.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) where a launcher's variables are incomplete or contradict each other;
    /// the error names them with their values.
    pub fn from_environment(config: &Config) -> Result<Option<World>> {
        let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        launchers::find(config, &lookup).map_err(|error| error.in_call("World::from_environment"))
    }

    /// The id of their communicator number `generation`, the same for all ranks; every rank counts its own from 0.
    ///
    /// Where nobody gave an id or an address, rank 0 makes an id and waits until the others have fetched it.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) where ranks are on several hosts and nothing says where they meet, or
    /// `NCCL_COMM_ID` is wrong; [`Timeout`](ErrorKind::Timeout) naming the ranks that did not come;
    /// [`System`](ErrorKind::System) where the operating system refuses a socket.
    pub(crate) fn unique_id(&self, config: &Config, generation: u32) -> Result<UniqueId> {
        if let Some(id) = self.id.as_ref().filter(|_| generation == 0) {
            return Ok(id.clone());
        }
        if let Some(agreed) = CommId::from_config(config)? {
            return agreed.unique_id(config);
        }
        if self.size == 1 {
            return root::host_private(config);
        }
        if self.local_size != self.size {
            let (here, all, launcher) = (self.local_size, self.size, self.launcher);
            let seen =
                format!("{launcher} started {all} ranks, {here} of them on this host: they need a place to meet");
            return Err(Error::new(ErrorKind::InvalidUsage, seen).hint(
                "set NCCL_COMM_ID to an address of rank 0's host with a free port, such as 10.0.0.1:29500, \
                 and FERRONICKEL_SECRET to a secret, the same for every rank",
            ));
        }
        let timeout = config.integer(&variables::INIT_TIMEOUT).value;
        let timeout = Duration::from_secs(u64::try_from(timeout).unwrap_or(u64::MAX));
        let meeting = Meeting::new(self, generation, timeout)?;
        if self.rank == 0 {
            let id = UniqueId::with_config(config)?;
            meeting.hand_out(&id)?;
            Ok(id)
        } else {
            meeting.fetch()
        }
    }
}
