//! Slurm's variables, which need a second look: a batch script has them too, and is no rank.

use crate::error::{Error, ErrorKind, Result};

use super::World;
use super::job::Job;
use super::launchers::{Lookup, list, number, world};

/// Numbers from here on are not steps of srun: the batch script, the interactive shell, the external step.
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// Whether srun started this process.
///
/// In the script of sbatch `SLURM_PROCID` is 0 whatever `SLURM_NTASKS` is, but there is no step, or a special one.
pub(super) fn in_step(lookup: Lookup<'_>) -> bool {
    let step = lookup("SLURM_STEP_ID").and_then(|step| step.trim().parse::<u32>().ok());
    step.is_some_and(|step| step < FIRST_SPECIAL_STEP)
}

/// Which task of the step this is.
pub(super) fn read(lookup: Lookup<'_>, job: Job) -> Result<World> {
    let names = [
        "SLURM_STEP_ID",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_NTASKS",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_TASKS_PER_NODE",
        "SLURM_NTASKS_PER_NODE",
    ];
    let found: Vec<_> = names.iter().map(|name| (*name, lookup(name).filter(|value| !value.is_empty()))).collect();
    let values: Vec<_> = found.iter().map(|(name, value)| (*name, value.as_deref())).collect();
    let values = list(&values);
    // A step's own numbers go before those of the job, which may be larger.
    let first = |wanted: &[&'static str]| -> Result<(&'static str, &str)> {
        let value =
            |name: &&'static str| found.iter().find(|(known, _)| known == name).and_then(|(_, text)| text.as_deref());
        wanted.iter().find_map(|name| Some((*name, value(name)?))).ok_or_else(|| {
            let seen = format!("{} of Slurm is not set beside {values}", wanted.join(" or "));
            Error::new(ErrorKind::InvalidUsage, seen).hint("start the ranks with srun")
        })
    };
    let of = |wanted: &[&'static str]| first(wanted).and_then(|(name, text)| number(name, text));
    let (rank, local_rank) = (of(&["SLURM_PROCID"])?, of(&["SLURM_LOCALID"])?);
    let size = of(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])?;
    let node = of(&["SLURM_NODEID"]).unwrap_or(0);
    let (name, tasks) = first(&["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"])?;
    let local_size = tasks_of_node(tasks, node).ok_or_else(|| {
        let seen = format!("{name}={} says nothing of node {node}: {values}", tasks.escape_debug());
        Error::new(ErrorKind::InvalidUsage, seen).hint("a list such as 4(x2),3 would be right; srun sets it")
    })?;
    world("Slurm", [rank, size, local_rank, local_size], job, &values)
}

/// The number for one node in a list such as `4(x2),3`.
fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut nodes_before = 0_usize;
    for item in list.trim().split(',') {
        let (tasks, repeat) = match item.split_once("(x") {
            Some((tasks, repeat)) => (tasks, repeat.strip_suffix(')')?.parse::<u32>().ok()? as usize),
            None => (item, 1),
        };
        let tasks = tasks.parse::<u32>().ok()? as usize;
        nodes_before = nodes_before.saturating_add(repeat);
        if node < nodes_before {
            return Some(tasks);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_nodes_is_read() {
        let of = |list, nodes: std::ops::Range<usize>| nodes.map(|node| tasks_of_node(list, node)).collect::<Vec<_>>();
        assert_eq!(of("4", 0..2), [Some(4), None]);
        assert_eq!(of("4(x2),3", 0..4), [Some(4), Some(4), Some(3), None]);
        assert_eq!(of("2,4(x4294967295)", 1..3), [Some(4), Some(4)]);
        for wrong in ["", "x", "4(x", "4(x2", "4(xx)", "-1", "4,"] {
            assert_eq!(tasks_of_node(wrong, 5), None, "{wrong}");
        }
    }
}
