//! The calls that are measured: those of all ranks that a thread drives, each at its place in the buffers.

use std::sync::Arc;

use ferronickel::{Communicator, DeviceBuffer, Error, Stream, group};

use super::collective::{Kind, Shape, Task};
use super::data::Value;

/// More places than this are not told apart; calls then come round to the first again.
const MOST_PLACES: usize = 1024;

/// A collective as the benchmark calls it.
pub trait Collective: Sync {
    /// Starts the call of one rank.
    fn start<T: Value>(
        &self,
        communicator: &Communicator,
        send: &DeviceBuffer<T>,
        receive: &DeviceBuffer<T>,
        task: Task,
        stream: &Stream,
    ) -> Result<(), Error>;
}

/// What a thread drives.
pub struct Rank {
    pub communicator: Arc<Communicator>,
    pub stream: Stream,
}

/// The buffers of a rank, as long as the largest message and what it is shifted by.
pub struct Buffers<T> {
    pub send: DeviceBuffer<T>,
    pub receive: DeviceBuffer<T>,
}

/// Where in its buffers a rank's calls find their elements.
struct Places<T> {
    send: Vec<DeviceBuffer<T>>,
    receive: Vec<DeviceBuffer<T>>,
}

impl<T: Value> Places<T> {
    /// Places of a call's elements one after the other, so that no call meets what the one before left in a cache; the
    /// first starts at element `shift`.
    fn new(buffers: &Buffers<T>, kind: Kind, size: Size, most: usize, rank: usize) -> Result<Self, Error> {
        let Size { shape, shift, in_place } = size;
        let (whole, each) = (buffers.receive.len() - shift, shape.send.max(shape.receive));
        let places = whole.checked_div(each).unwrap_or(1).clamp(1, most.clamp(1, MOST_PLACES));
        let cut = |place| kind.cut(&buffers.send, &buffers.receive, shift + place * each, shape, in_place, rank);
        let (send, receive) = (0..places).map(cut).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        Ok(Self { send, receive })
    }
}

/// The calls of one size.
pub struct Calls<'a, C, T> {
    collective: &'a C,
    ranks: &'a [Rank],
    task: Task,
    places: Vec<Places<T>>,
}

impl<'a, C: Collective, T: Value> Calls<'a, C, T> {
    /// Calls of one size; no more than `most` follow each other without coming round.
    pub fn new(
        collective: &'a C,
        ranks: &'a [Rank],
        buffers: &[Buffers<T>],
        (kind, task): (Kind, Task),
        size: Size,
        most: usize,
    ) -> Result<Self, Error> {
        let places = |(buffers, rank): (_, &Rank)| Places::new(buffers, kind, size, most, rank.communicator.rank());
        let places = buffers.iter().zip(ranks).map(places).collect::<Result<_, _>>()?;
        Ok(Self { collective, ranks, task, places })
    }

    /// Starts so many calls from the number `first` on, for all ranks, in one group.
    pub fn start(&self, first: u64, calls: u32) -> Result<(), Error> {
        let all = || (first..first + u64::from(calls)).try_for_each(|call| self.start_call(call));
        if self.ranks.len() == 1 && calls == 1 { all() } else { group(all) }
    }

    fn start_call(&self, call: u64) -> Result<(), Error> {
        for (rank, places) in self.ranks.iter().zip(&self.places) {
            let place = (call % places.send.len() as u64) as usize;
            let (send, receive) = (&places.send[place], &places.receive[place]);
            self.collective.start(&rank.communicator, send, receive, self.task, &rank.stream)?;
        }
        Ok(())
    }

    /// Where each rank finds the input of a call, and where the result.
    pub fn at(&self, call: u64) -> impl Iterator<Item = (&DeviceBuffer<T>, &DeviceBuffer<T>)> {
        self.places.iter().map(move |places| {
            let place = (call % places.send.len() as u64) as usize;
            (&places.send[place], &places.receive[place])
        })
    }
}

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub shape: Shape,
    /// Elements by which buffers are misaligned.
    pub shift: usize,
    /// Whether the result replaces the input.
    pub in_place: bool,
}

#[cfg(test)]
mod tests {
    use ferronickel::Device;

    use super::*;

    fn starts(elements: usize, count: usize, shift: usize, most: usize) -> Vec<usize> {
        let buffer = |device| Device::host(device).alloc::<u32>(elements).unwrap();
        let buffers = Buffers { send: buffer(0), receive: buffer(0) };
        let shape = Shape { count, send: count, receive: count };
        let size = Size { shape, shift, in_place: false };
        let places = Places::new(&buffers, Kind::AllReduce, size, most, 0).unwrap();
        assert_eq!(places.send.len(), places.receive.len());
        let numbers: Vec<u32> = (0..elements as u32).collect();
        buffers.send.copy_from_host(&numbers).unwrap();
        places.send.iter().map(|place| place.to_vec().unwrap().first().map_or(0, |&start| start as usize)).collect()
    }

    #[test]
    fn places_follow_each_other_as_far_as_the_buffer_goes() {
        assert_eq!(starts(10, 3, 0, 100), [0, 3, 6]);
        assert_eq!(starts(10, 3, 1, 100), [1, 4, 7]);
        assert_eq!(starts(10, 10, 0, 100), [0]);
        assert_eq!(starts(10, 1, 0, 4), [0, 1, 2, 3]);
        assert_eq!(starts(10, 0, 0, 4), [0]);
        assert_eq!(starts(3 * MOST_PLACES, 1, 0, usize::MAX).len(), MOST_PLACES);
    }
}
