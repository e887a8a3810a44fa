//! What each launcher puts into the environment.

use crate::bootstrap::unique_id::UniqueId;
use crate::config::{Config, Variable, variables};
use crate::error::{Error, ErrorKind, Result};

use super::World;
use super::job::Job;
use super::slurm;

/// Looks up an environment variable.
pub(super) type Lookup<'l> = &'l dyn Fn(&str) -> Option<String>;

/// The variables in which a launcher says who a process is.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const FERRONICKEL: Launcher = Launcher {
    name: "ferronickel run",
    rank: variables::RANK.name,
    size: variables::SIZE.name,
    local_rank: variables::LOCAL_RANK.name,
    local_size: variables::LOCAL_SIZE.name,
};

const OPEN_MPI: Launcher = Launcher {
    name: "Open MPI",
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};

const MPICH: Launcher = Launcher {
    name: "MPICH",
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
};

const TORCHRUN: Launcher = Launcher {
    name: "torchrun",
    rank: "RANK",
    size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_size: "LOCAL_WORLD_SIZE",
};

/// What tells jobs apart, by launcher: all of it that is there.
const OPEN_MPI_JOB: &[&str] = &["PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR", "OMPI_MCA_ess_base_jobid"];
const TORCHRUN_JOB: &[&str] = &["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];
const SLURM_JOB: &[&str] = &["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"];

/// Asks for each launcher, the innermost of usual nestings first: torchrun is started by mpirun or srun, mpirun by
/// srun, and scripts for any of them set PyTorch's variables.
pub(super) fn find(config: &Config, lookup: Lookup<'_>) -> Result<Option<World>> {
    if let Some(world) = ferronickel(config)? {
        return Ok(Some(world));
    }
    let is_set = |name: &str| lookup(name).is_some_and(|value| !value.is_empty());
    let torchrun = |name| read(&Launcher { name, ..TORCHRUN }, lookup, Job::of(TORCHRUN_JOB, lookup));
    if is_set("TORCHELASTIC_RUN_ID") && (is_set(TORCHRUN.rank) || is_set(TORCHRUN.size)) {
        return torchrun(TORCHRUN.name);
    }
    let job = if is_set("PMIX_NAMESPACE") { Job::of(OPEN_MPI_JOB, lookup) } else { Job::Ancestor(OPEN_MPI.rank) };
    if let Some(world) = read(&OPEN_MPI, lookup, job)? {
        return Ok(Some(world));
    }
    let in_slurm = slurm::in_step(lookup);
    // Slurm's own PMI sets some of MPICH's variables; the rest is in Slurm's.
    let only_pmi = !is_set(MPICH.local_rank) && !is_set(MPICH.local_size);
    if !(in_slurm && only_pmi)
        && let Some(world) = read(&MPICH, lookup, Job::Ancestor(MPICH.rank))?
    {
        return Ok(Some(world));
    }
    if in_slurm {
        return slurm::read(lookup, Job::of(SLURM_JOB, lookup)).map(Some);
    }
    // RANK alone may be anything.
    match ["RANK", "WORLD_SIZE", "MASTER_ADDR"].into_iter().all(is_set) {
        true => torchrun("PyTorch's variables"),
        false => Ok(None),
    }
}

/// Our own launcher's variables, which also hold the id.
fn ferronickel(config: &Config) -> Result<Option<World>> {
    let value = |variable: &'static Variable| config.text(variable).value.map(str::to_owned);
    let lookup = |name: &str| variables::by_name(name).and_then(value);
    let id = value(&variables::UNIQUE_ID);
    let job = Job::of(&[variables::UNIQUE_ID.name], &lookup);
    let Some(mut world) = read(&FERRONICKEL, &lookup, job)? else { return Ok(None) };
    if world.local_size > 1 && id.is_none() && value(&variables::COMM_ID).is_none() {
        let seen = format!("FERRONICKEL_RANK={} is set and FERRONICKEL_UNIQUE_ID is not", world.rank);
        return Err(Error::new(ErrorKind::InvalidUsage, seen)
            .hint("start the ranks with ferronickel run, or set NCCL_COMM_ID and FERRONICKEL_SECRET as well"));
    }
    world.id = id.map(|text| parse_id(&text)).transpose()?;
    Ok(Some(world))
}

/// The id out of hexadecimal digits. What was written holds a secret, so no error shows it.
fn parse_id(text: &str) -> Result<UniqueId> {
    let text = text.trim();
    let wrong = |seen: String| {
        let hint = "pass on what ferronickel run gave, unchanged: 256 hexadecimal digits";
        Error::new(ErrorKind::InvalidUsage, format!("FERRONICKEL_UNIQUE_ID is no unique id: {seen}")).hint(hint)
    };
    if text.len() != 2 * UniqueId::BYTES {
        return Err(wrong(format!("it has {} characters", text.chars().count())));
    }
    let mut bytes = [0; UniqueId::BYTES];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let (Some(high), Some(low)) = (digit(digits[0]), digit(digits[1])) else {
            return Err(wrong("not all of it are hexadecimal digits".to_owned()));
        };
        *byte = u8::try_from(16 * high + low).unwrap_or_default();
    }
    UniqueId::from_bytes(&bytes).map_err(|error| wrong(error.seen().to_owned()))
}

/// The four numbers of a launcher; `None` where none of them is set.
fn read(launcher: &Launcher, lookup: Lookup<'_>, job: Job) -> Result<Option<World>> {
    let names = [launcher.rank, launcher.size, launcher.local_rank, launcher.local_size];
    let found: Vec<_> = names.iter().map(|name| lookup(name).filter(|value| !value.is_empty())).collect();
    if found.iter().all(Option::is_none) {
        return Ok(None);
    }
    let values: Vec<_> = names.iter().zip(&found).map(|(name, value)| (*name, value.as_deref())).collect();
    let missing: Vec<_> = values.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        let verb = if missing.len() == 1 { "is" } else { "are" };
        let seen = format!("{} of {} {verb} not set beside {}", missing.join(", "), launcher.name, list(&values));
        return Err(Error::new(ErrorKind::InvalidUsage, seen).hint("set all four or none of them"));
    }
    let numbers = values.iter().map(|(name, value)| number(name, value.unwrap_or_default()));
    let numbers: Vec<usize> = numbers.collect::<Result<_>>()?;
    world(launcher.name, [numbers[0], numbers[1], numbers[2], numbers[3]], job, &list(&values)).map(Some)
}

/// The world of these numbers (rank, size, local rank, local size), if they go together.
pub(super) fn world(launcher: &'static str, numbers: [usize; 4], job: Job, values: &str) -> Result<World> {
    let [rank, size, local_rank, local_size] = numbers;
    let wrong = if rank >= size {
        format!("rank {rank} is none of {size} ranks, which count from 0")
    } else if local_rank >= local_size {
        format!("local rank {local_rank} is none of {local_size} ranks of this host, which count from 0")
    } else if local_size > size {
        format!("{local_size} ranks of this host are more than the {size} there are")
    } else {
        return Ok(World { rank, size, local_rank, local_size, launcher, job, id: None });
    };
    Err(Error::new(ErrorKind::InvalidUsage, format!("{wrong}: {values}"))
        .hint(format!("{launcher} sets these; leave them as they are, or unset all of them")))
}

/// A number of ranks, or of one.
pub(super) fn number(name: &str, text: &str) -> Result<usize> {
    let digits = text.trim();
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u32>().ok()).flatten();
    number.map(|number| number as usize).ok_or_else(|| {
        let seen = format!("{name}={} is no number", text.escape_debug());
        Error::new(ErrorKind::InvalidUsage, seen).hint("an integer from 0 would be right; launchers set it")
    })
}

/// `NAME=value` of those that are set.
pub(super) fn list(values: &[(&str, Option<&str>)]) -> String {
    let set = values.iter().filter_map(|(name, value)| Some(format!("{name}={}", (*value)?.escape_debug())));
    set.collect::<Vec<_>>().join(" ")
}
