//! One exchange after the other: what each rank brings, and what has come from other processes.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};

/// What ranks can exchange. Within a process the values themselves are handed over; to other processes they go in
/// bytes, and, within the machine, with files.
pub(crate) trait Exchanged: Clone + Send + Sync + 'static {
    /// The value in bytes, and the files that go along.
    fn pack(&self) -> (Vec<u8>, Vec<Arc<OwnedFd>>);
    /// The value that was packed; `files` is empty if they could not travel. None if the bytes are not one.
    fn unpack(bytes: &[u8], files: Vec<OwnedFd>) -> Option<Self>;
}

/// A value without files.
#[derive(Clone, Debug)]
pub(crate) struct Plain<T>(pub T);

impl<T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> Exchanged for Plain<T> {
    fn pack(&self) -> (Vec<u8>, Vec<Arc<OwnedFd>>) {
        // serialising plain values into memory cannot fail
        (postcard::to_allocvec(&self.0).expect("plain values"), Vec::new())
    }

    fn unpack(bytes: &[u8], _files: Vec<OwnedFd>) -> Option<Self> {
        postcard::from_bytes(bytes).ok().map(Plain)
    }
}

/// A value on its way between processes.
pub(crate) struct Packed {
    pub rank: usize,
    pub bytes: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

/// A value ready to be sent.
pub(crate) struct Parcel {
    pub rank: usize,
    pub bytes: Vec<u8>,
    pub files: Vec<Arc<OwnedFd>>,
}

type Value = Arc<dyn Any + Send + Sync>;

/// The exchange that is under way, and the one before.
pub(super) struct Exchange {
    rounds: u64,
    /// The ranks of this process.
    local: Vec<usize>,
    /// What each of them has brought.
    brought: Vec<Option<Value>>,
    /// What has come from other processes, perhaps for the next exchange already.
    received: HashMap<(u64, usize), Packed>,
    /// What the last exchange gave.
    gathered: Vec<Value>,
}

impl Exchange {
    pub fn new(ranks: usize, local: Vec<usize>) -> Exchange {
        Exchange { rounds: 0, local, brought: vec![None; ranks], received: HashMap::new(), gathered: Vec::new() }
    }

    /// How many exchanges are complete.
    pub fn round(&self) -> u64 {
        self.rounds
    }

    /// A rank of this process brings something. Whether it was the last of them.
    pub fn bring(&mut self, rank: usize, value: Value) -> bool {
        self.brought[rank] = Some(value);
        self.local.iter().all(|&rank| self.brought[rank].is_some())
    }

    /// What the ranks of this process have brought, for the others.
    pub fn pack<T: Exchanged>(&self) -> Vec<Parcel> {
        let parcel = |&rank: &usize| {
            let (bytes, files) = self.brought[rank].as_ref()?.downcast_ref::<T>()?.pack();
            Some(Parcel { rank, bytes, files })
        };
        self.local.iter().filter_map(parcel).collect()
    }

    /// Something has come from another process.
    pub fn receive(&mut self, round: u64, values: Vec<Packed>) {
        // nobody is more than one exchange ahead, and nobody speaks for another process's ranks
        let sane = |value: &Packed| value.rank < self.brought.len() && !self.local.contains(&value.rank);
        if round == self.rounds || round == self.rounds + 1 {
            self.received.extend(values.into_iter().filter(sane).map(|value| ((round, value.rank), value)));
        }
    }

    /// The ranks that have brought nothing to this exchange.
    pub fn missing(&self) -> impl Iterator<Item = usize> {
        let has_come =
            |&rank: &usize| self.brought[rank].is_none() && !self.received.contains_key(&(self.rounds, rank));
        (0..self.brought.len()).filter(has_come)
    }

    /// Completes the exchange if everything has come. Whether it has.
    pub fn try_complete<T: Exchanged>(&mut self) -> Result<bool> {
        if self.missing().next().is_some() {
            return Ok(false);
        }
        let foreign = |rank| Error::new(ErrorKind::Internal, format!("rank {rank} exchanges different things"));
        let mut gathered = Vec::with_capacity(self.brought.len());
        for rank in 0..self.brought.len() {
            let value = match (self.brought[rank].take(), self.received.remove(&(self.rounds, rank))) {
                (Some(value), _) => value,
                (None, packed) => {
                    let value = packed.and_then(|packed| T::unpack(&packed.bytes, packed.files));
                    Arc::new(value.ok_or_else(|| foreign(rank))?)
                }
            };
            gathered.push(value);
        }
        self.gathered = gathered;
        self.rounds += 1;
        Ok(true)
    }

    /// What the last exchange gave.
    pub fn gathered<T: Exchanged>(&self) -> Result<Vec<T>> {
        let values = self.gathered.iter().map(|value| value.downcast_ref::<T>().cloned());
        values.collect::<Option<_>>().ok_or_else(|| Error::new(ErrorKind::Internal, "ranks exchange different things"))
    }
}
