//! What the tests share: communicators on each road, in threads or in one thread.
#![allow(dead_code, reason = "each test program uses some of it")]

use ferronickel::{Communicator, Config, Device, Stream, UniqueId};

/// The roads, by the settings that leave them open.
pub const ROADS: [(&str, &[&str]); 3] =
    [("P2P", &[]), ("SHM", &["NCCL_P2P_DISABLE"]), ("NET", &["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"])];

/// Settings that close the roads above one of [`ROADS`], and say nothing on stderr.
pub fn config(closed: &[&str]) -> Config {
    let quiet = settings(&[("FERRONICKEL_ANNOUNCE", "0")]);
    closed.iter().fold(quiet, |config, variable| config.with(variable, "1").unwrap())
}

pub fn settings(settings: &[(&str, &str)]) -> Config {
    settings.iter().fold(Config::default(), |config, (name, value)| config.with(name, value).unwrap())
}

/// One rank with a stream of its own.
pub struct Rank {
    pub communicator: Communicator,
    pub device: Device,
    pub stream: Stream,
}

/// Runs `each` on a thread for each of `ranks` ranks; returns what each returned, in rank order.
pub fn on_threads<T: Send>(ranks: usize, config: &Config, each: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let id = UniqueId::new().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (id, each) = (&id, &each);
                scope.spawn(move || {
                    let device = Device::host(rank as u32);
                    let communicator = Communicator::init_rank(id, ranks, rank, &device, config).unwrap();
                    let stream = device.stream().unwrap();
                    each(Rank { communicator, device, stream })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// All ranks in this thread.
pub fn in_one_thread(ranks: usize, config: &Config) -> Vec<Rank> {
    let devices: Vec<_> = (0..ranks as u32).map(Device::host).collect();
    let communicators = Communicator::init_all(&devices, config).unwrap();
    let rank = |(communicator, device): (Communicator, Device)| {
        let stream = device.stream().unwrap();
        Rank { communicator, device, stream }
    };
    communicators.into_iter().zip(devices).map(rank).collect()
}

/// A generator whose numbers depend on its seed alone.
#[derive(Clone)]
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
