//! Communicators of the ranks that a launcher started.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{Communicator, UniqueId};
use crate::bootstrap::world::World;
use crate::config::Config;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};

impl Communicator {
    /// This process's rank in a communicator of all the processes that a launcher started with it, on the host device
    /// with the number of the rank on its host.
    ///
    /// Launchers are `ferronickel run`, torchrun, `mpirun` of Open MPI and MPICH, and Slurm's `srun`; see [`World`].
    /// Called again, on every rank alike, it makes a further communicator.
    ///
    /// ```no_run
    /// use ferronickel::{Communicator, RedOp};
    ///
    /// # fn main() -> ferronickel::Result<()> {
    /// // ferronickel run -n 4 -- this-program
    /// let communicator = Communicator::from_environment()?;
    /// let (stream, numbers) = (communicator.device().stream()?, communicator.device().alloc::<f32>(1024)?);
    /// communicator.all_reduce(&numbers, &numbers, RedOp::Sum, &stream)?;
    /// stream.synchronize()?;
    /// communicator.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) when no launcher started this process, or what it says makes no
    /// sense; otherwise as for [`init_ranks`](Self::init_ranks).
    pub fn from_environment() -> Result<Communicator> {
        const CALL: &str = "from_environment";
        let config = Config::from_environment();
        let world = World::from_environment(&config).map_err(|error| error.in_call(CALL))?.ok_or_else(|| {
            Error::new(ErrorKind::InvalidUsage, "no launcher started this process").in_call(CALL).hint(
                "start it with ferronickel run -n 2 -- PROGRAM, mpirun, srun or torchrun, or make a communicator with \
                 init_rank",
            )
        })?;
        let device = Device::host(u32::try_from(world.local_rank).unwrap_or(u32::MAX));
        Communicator::init_rank(&world.next_unique_id(&config)?, world.size, world.rank, &device, &config)
    }
}

impl World {
    /// The id of a further communicator, the same for all ranks: each must ask as often as the others.
    ///
    /// Where the launcher gave no id and no address, rank 0 makes one and waits until the others have fetched it.
    ///
    /// # Errors
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) where ranks are on several hosts and nothing says where they meet, or
    /// `NCCL_COMM_ID` is wrong; [`Timeout`](ErrorKind::Timeout) naming the ranks that did not come;
    /// [`System`](ErrorKind::System) where the operating system refuses a socket.
    pub fn next_unique_id(&self, config: &Config) -> Result<UniqueId> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.unique_id(config, NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
