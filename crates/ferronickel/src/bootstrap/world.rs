//! Who a launcher says this process is, and how all ranks it started come by one id.

use std::time::Duration;

use crate::bootstrap::comm_id::CommId;
use crate::bootstrap::unique_id::UniqueId;
use crate::config::{Config, variables};
use crate::diagnostics::log;
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

/// How the ranks of a communicator come together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdSource {
    /// Every rank has this id.
    Given(UniqueId),
    /// Rank 0 listens at the address, where every rank proves the secret.
    At(CommId, [u8; 32]),
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

    /// How the ranks come together for their communicator number `generation`; every rank counts its own from 0.
    ///
    /// Where nobody gave an id or an address, rank 0 makes an id and waits until the others have fetched it.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) where ranks are on several hosts and nothing says where they meet, or
    /// `NCCL_COMM_ID` is wrong; [`Timeout`](ErrorKind::Timeout) naming the ranks that did not come;
    /// [`System`](ErrorKind::System) where the operating system refuses a socket.
    pub(crate) fn unique_id(&self, config: &Config, generation: u32) -> Result<IdSource> {
        if let Some(id) = self.id.as_ref().filter(|_| generation == 0) {
            return Ok(IdSource::Given(id.clone()));
        }
        if let Some(address) = CommId::from_config(config)? {
            self.tell_if_open(config, &address);
            let secret = config.text(&variables::SECRET).value.unwrap_or_default();
            return Ok(IdSource::At(address, secret_of(secret, generation)));
        }
        if self.size == 1 {
            return UniqueId::new().map(IdSource::Given);
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
            let id = UniqueId::new()?;
            meeting.hand_out(&id)?;
            Ok(IdSource::Given(id))
        } else {
            meeting.fetch().map(IdSource::Given)
        }
    }

    /// An open door is said once, by the rank that opens it.
    fn tell_if_open(&self, config: &Config, comm_id: &CommId) {
        if self.rank == 0 && !comm_id.has_secret && !comm_id.address.ip().is_loopback() {
            log::init(config);
            let address = comm_id.address;
            log::announce(&format!(
                "no secret protects {address}: anybody who can reach it can join \
                 (FERRONICKEL_ALLOW_OPEN_BOOTSTRAP=1); set FERRONICKEL_SECRET to close it"
            ));
        }
    }
}

/// The secret of one communicator; a second one at the same address has another, so that their ranks cannot mix.
fn secret_of(text: &str, generation: u32) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ferronickel secret of a communicator at an address");
    hasher.update(&generation.to_le_bytes()).update(text.as_bytes());
    *hasher.finalize().as_bytes()
}
