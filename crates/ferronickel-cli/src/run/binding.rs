//! Which processors each rank may run on.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity};

/// A logical processor, and the core that it is a thread of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Processor {
    package: u32,
    core: u32,
    number: usize,
}

/// For each rank its share of the processors that this process may use; `None` where there are fewer than ranks, or
/// where they cannot be told.
pub fn shares(ranks: usize) -> Option<Vec<CpuSet>> {
    let allowed = sched_getaffinity(None).ok()?;
    let processors = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number)).map(describe).collect();
    let shares = split(processors, ranks)?;
    Some(shares.iter().map(|share| set(share)).collect())
}

/// A processor of which the system says nothing counts as a core of its own.
fn describe(number: usize) -> Processor {
    let read = |file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{number}/topology/{file}");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    match (read("physical_package_id"), read("core_id")) {
        (Some(package), Some(core)) => Processor { package, core, number },
        _ => Processor { package: 0, core: u32::try_from(number).unwrap_or(u32::MAX), number },
    }
}

/// Splits whole cores evenly, neighbours together; only where there are fewer cores than ranks are the threads of a
/// core split too.
fn split(mut processors: Vec<Processor>, ranks: usize) -> Option<Vec<Vec<usize>>> {
    processors.sort_unstable();
    let numbers = |share: &[Processor]| share.iter().map(|processor| processor.number).collect();
    let cores: Vec<&[Processor]> =
        processors.chunk_by(|one, other| (one.package, one.core) == (other.package, other.core)).collect();
    let share_of = |rank: usize, all: usize| rank * all / ranks..(rank + 1) * all / ranks;
    if ranks <= cores.len() {
        return Some((0..ranks).map(|rank| numbers(&cores[share_of(rank, cores.len())].concat())).collect());
    }
    let all = processors.len();
    (ranks <= all).then(|| (0..ranks).map(|rank| numbers(&processors[share_of(rank, all)])).collect())
}

fn set(numbers: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    numbers.iter().for_each(|number| set.set(*number));
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose second threads are numbered after all first ones, as most are.
    fn machine(packages: u32, cores: u32, threads: u32) -> Vec<Processor> {
        let all = packages * cores;
        let one =
            |number: u32| Processor { package: number % all / cores, core: number % cores, number: number as usize };
        (0..all * threads).map(one).collect()
    }

    #[test]
    fn cores_stay_whole_and_near() {
        assert_eq!(split(machine(1, 4, 2), 2), Some(vec![vec![0, 4, 1, 5], vec![2, 6, 3, 7]]));
        assert_eq!(split(machine(2, 2, 2), 2), Some(vec![vec![0, 4, 1, 5], vec![2, 6, 3, 7]]));
        assert_eq!(split(machine(1, 3, 1), 2), Some(vec![vec![0], vec![1, 2]]));
        assert_eq!(split(machine(1, 2, 1), 1), Some(vec![vec![0, 1]]));
        assert_eq!(split(machine(1, 2, 2), 3), Some(vec![vec![0], vec![2], vec![1, 3]]));
        assert_eq!(split(machine(1, 2, 1), 3), None);
        assert_eq!(split(Vec::new(), 1), None);
    }

    #[test]
    fn every_processor_belongs_to_one_rank() {
        for (packages, cores, threads) in [(1, 1, 1), (1, 5, 2), (2, 7, 2), (4, 3, 1)] {
            let machine = machine(packages, cores, threads);
            for ranks in 1..=machine.len() {
                let shares = split(machine.clone(), ranks).unwrap();
                assert!(shares.len() == ranks && shares.iter().all(|share| !share.is_empty()));
                let mut all = shares.concat();
                all.sort_unstable();
                assert_eq!(all, (0..machine.len()).collect::<Vec<_>>());
            }
        }
    }
}
