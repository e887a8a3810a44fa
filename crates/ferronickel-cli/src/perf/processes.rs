//! The processes of a run: with a launcher's help there are several, each with its own threads and ranks. They agree
//! through a communicator of their own, with one rank in each process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferronickel::{Communicator, Config, Device, Error, RedOp, Stream, UniqueId, World};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::worker::library;
use crate::exit::{Code, Failure};

/// Which process this is, and the way to the others.
pub struct Processes {
    pub rank: usize,
    pub size: usize,
    /// Its number among those of its host, and how many these are.
    pub local_rank: usize,
    pub local_size: usize,
    control: Option<Control>,
    /// One of them has failed, and all are about to tell each other what they know of it.
    has_failed: AtomicBool,
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub failure: Option<Failure>,
    /// Whether all of several processes know the same, so that one may speak for all.
    pub is_common: bool,
}

/// Brought instead of a length by a process that has failed.
const FAILED: u64 = u64::MAX;

struct Control {
    communicator: Arc<Communicator>,
    stream: Stream,
}

impl Processes {
    /// A process by itself.
    pub fn alone() -> Processes {
        Self::with(0, 1, 0, 1, None)
    }

    /// The processes that a launcher started with this one.
    pub fn find(config: &Config) -> Result<Processes, Failure> {
        let Some(world) = World::from_environment(config).map_err(library)?.filter(|world| world.size > 1) else {
            return Ok(Self::alone());
        };
        let device = Device::host(u32::try_from(world.local_rank).unwrap_or(u32::MAX));
        let connect = || -> Result<Control, Error> {
            let id = world.next_unique_id(config)?;
            let communicator = Communicator::init_rank(&id, world.size, world.rank, &device, config)?;
            Ok(Control { communicator: Arc::new(communicator), stream: device.stream()? })
        };
        let control = Some(connect().map_err(library)?);
        let World { rank, size, local_rank, local_size, .. } = world;
        Ok(Self::with(rank, size, local_rank, local_size, control))
    }

    fn with(rank: usize, size: usize, local_rank: usize, local_size: usize, control: Option<Control>) -> Processes {
        Processes { rank, size, local_rank, local_size, control, has_failed: AtomicBool::new(false) }
    }

    /// Whether this process writes the table.
    pub fn reports(&self) -> bool {
        self.rank == 0
    }

    /// What ends the waits for other processes.
    pub fn abort(&self) -> impl Fn() + Send + use<> {
        let communicator = self.control.as_ref().map(|control| Arc::downgrade(&control.communicator));
        move || {
            if let Some(communicator) = communicator.as_ref().and_then(std::sync::Weak::upgrade) {
                communicator.abort();
            }
        }
    }

    /// Waits for all processes.
    pub fn barrier(&self) -> Result<(), Failure> {
        match &self.control {
            Some(control) => self.lengths(control, 0).map(drop),
            None => Ok(()),
        }
    }

    /// The length that every process brings, which is how each exchange begins. It is an error if one has failed.
    fn lengths(&self, control: &Control, length: u64) -> Result<Vec<u64>, Failure> {
        let lengths = control.lengths(self.rank, self.size, length).map_err(library)?;
        match lengths.contains(&FAILED) {
            true => {
                self.has_failed.store(true, Ordering::Relaxed);
                Err(Failure::new(Code::System, "another process failed").that_follows())
            }
            false => Ok(lengths),
        }
    }

    /// What every process brings, by process. It is an error if one of them has failed meanwhile.
    pub fn exchange<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>, Failure> {
        let broken = |error: serde_json::Error| Failure::new(Code::System, format!("processes disagree: {error}"));
        let bytes = serde_json::to_vec(value).map_err(broken)?;
        let all = match &self.control {
            Some(control) => {
                let lengths = self.lengths(control, bytes.len() as u64)?;
                control.table(self.rank, &lengths, &bytes).map_err(library)?
            }
            None => vec![bytes],
        };
        all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(broken)).collect()
    }

    /// An id that the first process makes and all are given; None where there is only one process.
    pub fn shared_id(&self, config: &Config) -> Result<Option<UniqueId>, Failure> {
        if self.control.is_none() {
            return Ok(None);
        }
        let made = match self.rank {
            0 => UniqueId::with_config(config).map_err(library)?.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        let given = self.exchange(&made)?.into_iter().next().unwrap_or_default();
        let bytes = given.try_into().map_err(|_| Failure::new(Code::System, "the first process gave no unique id"))?;
        UniqueId::from_bytes(&bytes).map(Some).map_err(library)
    }

    /// Ends a run: all processes tell each other what failed in each, if anything did, and take the same failure for
    /// that of the run, a cause before what follows from it. Where that is not possible each is left with its own.
    pub fn agree(&self, own: Option<Failure>) -> Outcome {
        let Some(control) = &self.control else { return Outcome { failure: own, is_common: false } };
        if !self.has_failed.load(Ordering::Relaxed) {
            match self.lengths(control, if own.is_some() { FAILED } else { 0 }) {
                Ok(_) => return Outcome { failure: None, is_common: true },
                Err(_) if self.has_failed.load(Ordering::Relaxed) => {}
                Err(lost) => return Outcome { failure: own.or(Some(lost)), is_common: false },
            }
        }
        self.has_failed.store(false, Ordering::Relaxed);
        match self.exchange(&own) {
            Ok(all) => {
                let failure = all.into_iter().flatten().min_by_key(|failure| failure.follows);
                Outcome { failure, is_common: true }
            }
            Err(lost) => Outcome { failure: own.or(Some(lost)), is_common: false },
        }
    }

    /// After a common failure: waits until all processes have come so far, if they do.
    pub fn part(&self) {
        // What is to be said of the run has been said.
        let _ = self.barrier();
    }

    /// Says goodbye to the others.
    pub fn finalize(&self) -> Result<(), Failure> {
        match &self.control {
            Some(control) => control.communicator.finalize().map_err(library),
            None => Ok(()),
        }
    }
}

impl Control {
    /// The length of what every process brings.
    fn lengths(&self, rank: usize, size: usize, length: u64) -> Result<Vec<u64>, Error> {
        let lengths = self.communicator.device().alloc::<u64>(size)?;
        lengths.slice(rank..rank + 1)?.copy_from_host(&[length])?;
        self.communicator.all_reduce(&lengths, &lengths, RedOp::Sum, &self.stream)?;
        self.stream.synchronize()?;
        lengths.to_vec()
    }

    /// Every process fills its own part of a table of zeros; the sum of all tables is what everyone brought.
    fn table(&self, rank: usize, lengths: &[u64], bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let device = self.communicator.device();
        let lengths: Vec<_> = lengths.iter().map(|&length| length as usize).collect();
        let starts: Vec<_> =
            lengths.iter().scan(0, |next, length| Some(std::mem::replace(next, *next + length))).collect();
        let table = device.alloc::<u8>(lengths.iter().sum())?;
        table.slice(starts[rank]..starts[rank] + bytes.len())?.copy_from_host(bytes)?;
        self.communicator.all_reduce(&table, &table, RedOp::Sum, &self.stream)?;
        self.stream.synchronize()?;
        let table = table.to_vec()?;
        Ok(starts.iter().zip(&lengths).map(|(&start, &length)| table[start..start + length].to_vec()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_alone_exchanges_with_itself() {
        let alone = Processes::alone();
        assert_eq!(alone.exchange(&"text".to_string()).unwrap(), ["text"]);
        assert!(alone.reports() && alone.shared_id(&Config::default()).unwrap().is_none());
        alone.barrier().unwrap();
    }

    /// Threads in the place of three processes.
    fn three(body: impl Fn(Processes) + Sync) {
        let id = UniqueId::new().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (id, body) = (&id, &body);
                scope.spawn(move || {
                    let device = Device::host(rank as u32);
                    let communicator = Communicator::init_rank(id, 3, rank, &device, &Config::default()).unwrap();
                    let control =
                        Some(Control { communicator: Arc::new(communicator), stream: device.stream().unwrap() });
                    body(Processes::with(rank, 3, rank, 3, control));
                });
            }
        });
    }

    #[test]
    fn every_process_gets_what_all_brought_however_long() {
        three(|processes| {
            for length in [0, 1, 700] {
                let all = processes.exchange(&"x".repeat(length * processes.rank)).unwrap();
                assert_eq!(all, [0, 1, 2].map(|rank| "x".repeat(length * rank)));
            }
            processes.barrier().unwrap();
            assert_eq!(processes.agree(None), Outcome { failure: None, is_common: true });
            processes.finalize().unwrap();
        });
    }

    #[test]
    fn a_failure_is_everyones_whatever_the_others_were_about() {
        for of_last in [None, Some(Failure::new(Code::Library, "rank 1 called abort").that_follows())] {
            three(|processes| {
                let own = match processes.rank {
                    0 => processes.exchange(&0).err(),
                    1 => Some(Failure::new(Code::Timeout, "too late")),
                    _ => of_last.clone().or_else(|| processes.barrier().err()),
                };
                assert!(own.is_some());
                let failure = Some(Failure::new(Code::Timeout, "too late"));
                assert_eq!(processes.agree(own), Outcome { failure, is_common: true });
                processes.part();
            });
        }
    }

    #[test]
    fn who_cannot_reach_the_others_is_left_with_its_own() {
        three(|processes| {
            processes.barrier().unwrap();
            if processes.rank == 1 {
                // gone without a word
                return;
            }
            let own = Failure::new(Code::Device, format!("of {}", processes.rank));
            assert_eq!(processes.agree(Some(own.clone())), Outcome { failure: Some(own), is_common: false });
        });
    }
}
