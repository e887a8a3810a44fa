//! The processes of a run: with a launcher's help there are several, each with its own threads and ranks. They agree
//! through a communicator of their own, with one rank in each process.

use std::sync::Arc;

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
}

struct Control {
    communicator: Arc<Communicator>,
    stream: Stream,
}

impl Processes {
    /// A process by itself.
    pub fn alone() -> Processes {
        Processes { rank: 0, size: 1, local_rank: 0, local_size: 1, control: None }
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
        Ok(Processes { rank, size, local_rank, local_size, control })
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
        let Some(Control { communicator, stream }) = &self.control else { return Ok(()) };
        let barrier = || -> Result<(), Error> {
            let flag = communicator.device().alloc::<u8>(1)?;
            communicator.all_reduce(&flag, &flag, RedOp::Max, stream)?;
            stream.synchronize()
        };
        barrier().map_err(library)
    }

    /// What every process brings, by process.
    pub fn exchange<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>, Failure> {
        let broken = |error: serde_json::Error| Failure::new(Code::System, format!("processes disagree: {error}"));
        let bytes = serde_json::to_vec(value).map_err(broken)?;
        let all = match &self.control {
            Some(control) => control.exchange(self.rank, self.size, &bytes).map_err(library)?,
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

    /// Says goodbye to the others.
    pub fn finalize(&self) -> Result<(), Failure> {
        match &self.control {
            Some(control) => control.communicator.finalize().map_err(library),
            None => Ok(()),
        }
    }
}

impl Control {
    /// Every process fills its own part of a table of zeros; the sum of all tables is what everyone brought.
    fn exchange(&self, rank: usize, size: usize, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let device = self.communicator.device();
        let lengths = device.alloc::<u64>(size)?;
        lengths.slice(rank..rank + 1)?.copy_from_host(&[bytes.len() as u64])?;
        self.communicator.all_reduce(&lengths, &lengths, RedOp::Sum, &self.stream)?;
        self.stream.synchronize()?;
        let lengths: Vec<_> = lengths.to_vec()?.into_iter().map(|length| length as usize).collect();
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

    #[test]
    fn every_process_gets_what_all_brought_however_long() {
        let id = UniqueId::new().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let id = &id;
                scope.spawn(move || {
                    let device = Device::host(rank as u32);
                    let communicator = Communicator::init_rank(id, 3, rank, &device, &Config::default()).unwrap();
                    let control =
                        Some(Control { communicator: Arc::new(communicator), stream: device.stream().unwrap() });
                    let processes = Processes { rank, size: 3, local_rank: rank, local_size: 3, control };
                    for length in [0, 1, 700] {
                        let all = processes.exchange(&"x".repeat(length * rank)).unwrap();
                        assert_eq!(all, [0, 1, 2].map(|rank| "x".repeat(length * rank)));
                    }
                    processes.barrier().unwrap();
                    processes.finalize().unwrap();
                });
            }
        });
    }
}
