//! Collective communication between devices: every rank calls, and together they compute.
//!
//! ferronickel does what NVIDIA's NCCL does, with the same names for the same things, and says which road the data
//! took, why, and what that costs. This page is a tour; each stop leads on to the type that does the work.
//!
//! # A first all-reduce
//!
//! A *rank* is one participant of a *communicator*, and runs on a *device*. A host device is the machine's own
//! processors and memory; there is one for every number. Here two ranks in one thread add their numbers:
//!
//! ```
//! use ferronickel::{Communicator, Config, Device, RedOp, group};
//!
//! # fn main() -> ferronickel::Result<()> {
//! let devices = [Device::host(0), Device::host(1)];
//! let ranks = Communicator::init_all(&devices, &Config::from_environment())?;
//!
//! // Each rank has memory and a stream on its device.
//! let streams = [devices[0].stream()?, devices[1].stream()?];
//! let send = [devices[0].alloc::<f32>(4)?, devices[1].alloc::<f32>(4)?];
//! let receive = [devices[0].alloc::<f32>(4)?, devices[1].alloc::<f32>(4)?];
//! send[0].copy_from_host(&[1.0, 2.0, 3.0, 4.0])?;
//! send[1].copy_from_host(&[10.0, 20.0, 30.0, 40.0])?;
//!
//! // One thread drives both ranks, so their calls form a group.
//! group(|| {
//!     for rank in 0..2 {
//!         ranks[rank].all_reduce(&send[rank], &receive[rank], RedOp::Sum, &streams[rank])?;
//!     }
//!     Ok(())
//! })?;
//!
//! // A call only queues. The result is there when its stream is done.
//! for rank in 0..2 {
//!     streams[rank].synchronize()?;
//!     assert_eq!(receive[rank].to_vec()?, [11.0, 22.0, 33.0, 44.0]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # A thread for each rank
//!
//! More usual is one thread for each rank. One makes a [`UniqueId`] and gives it to the others; each then joins with
//! [`Communicator::init_rank`], which waits for all:
//!
//! ```
//! use ferronickel::{Communicator, Config, Device, RedOp, UniqueId};
//!
//! # fn main() -> ferronickel::Result<()> {
//! let id = UniqueId::new()?;
//! let config = Config::from_environment();
//! std::thread::scope(|scope| {
//!     for rank in 0..3 {
//!         let (id, config) = (&id, &config);
//!         scope.spawn(move || -> ferronickel::Result<()> {
//!             let device = Device::host(rank as u32);
//!             let communicator = Communicator::init_rank(id, 3, rank, &device, config)?;
//!             let stream = device.stream()?;
//!             let numbers = device.alloc::<i64>(2)?;
//!             numbers.copy_from_host(&[rank as i64, 7])?;
//!             // In place: the result replaces the input.
//!             communicator.all_reduce(&numbers, &numbers, RedOp::Max, &stream)?;
//!             stream.synchronize()?;
//!             assert_eq!(numbers.to_vec()?, [2, 7]);
//!             communicator.finalize()
//!         });
//!     }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! # A process for each rank
//!
//! The others may as well be processes, on this machine or another: the id is 128 bytes to be passed on
//! ([`UniqueId::as_bytes`], [`UniqueId::from_bytes`]), by whatever means the program has. Where a launcher started the
//! processes (`ferronickel run`, `mpirun`, `srun`, torchrun), [`Communicator::from_environment`] is all it takes, and
//! [`World`] tells who this process is.
//!
//! A rank that dies, stops or leaves is noticed by every other, on whatever road: calls that need it end with an error
//! that names it, with its host and pid.
//!
//! # Every collective
//!
//! [`all_reduce`](Communicator::all_reduce), [`broadcast`](Communicator::broadcast), [`reduce`](Communicator::reduce),
//! [`all_gather`](Communicator::all_gather), [`reduce_scatter`](Communicator::reduce_scatter),
//! [`all_to_all`](Communicator::all_to_all), [`gather`](Communicator::gather), [`scatter`](Communicator::scatter) and
//! [`barrier`](Communicator::barrier) are called alike; what only the root gives or gets is an [`Option`]. Messages between
//! two ranks are [`send`](Communicator::send) and [`receive`](Communicator::receive): those of one [`group`](group()) all
//! move at the same time, in any pattern in which each send has its receive:
//!
//! ```
//! use ferronickel::{Communicator, Config, Device, Operation, group};
//!
//! # fn main() -> ferronickel::Result<()> {
//! let devices = [Device::host(0), Device::host(1)];
//! let ranks = Communicator::init_all(&devices, &Config::from_environment())?;
//! let streams = [devices[0].stream()?, devices[1].stream()?];
//! let own = [devices[0].alloc::<i32>(2)?, devices[1].alloc::<i32>(2)?];
//! let others = [devices[0].alloc::<i32>(2)?, devices[1].alloc::<i32>(2)?];
//! (0..2).try_for_each(|rank| own[rank].copy_from_host(&[rank as i32, 5]))?;
//! group(|| {
//!     (0..2).try_for_each(|rank| {
//!         ranks[rank].send(&own[rank], 1 - rank, &streams[rank])?;
//!         ranks[rank].receive(&others[rank], 1 - rank, &streams[rank])
//!     })
//! })?;
//! streams.iter().try_for_each(|stream| stream.synchronize())?;
//! assert_eq!(others[0].to_vec()?, [1, 5]);
//!
//! // Each rank's elements times a factor of its own, added; only rank 0 gets the sum.
//! group(|| {
//!     (0..2).try_for_each(|rank| {
//!         let op = Operation::scaled(10 + rank as i32);
//!         ranks[rank].reduce(&own[rank], Some(&others[rank]), op, 0, &streams[rank])
//!     })
//! })?;
//! streams.iter().try_for_each(|stream| stream.synchronize())?;
//! assert_eq!(others[0].to_vec()?, [11, 105]);
//! # Ok(())
//! # }
//! ```
//!
//! How a call is done, by which algorithm and protocol, is chosen by what this machine has been measured to cost
//! (`FERRONICKEL_CALIBRATION`); `NCCL_ALGO` and `NCCL_PROTO` choose as well, also by function
//! (`allreduce:ring;broadcast:tree`). The same call gives the same bits as long as the choice is the same; with
//! `FERRONICKEL_DETERMINISTIC=1` elements are combined in the order of their ranks, and the bits depend on nothing else.
//!
//! # Streams
//!
//! A [`Stream`] keeps calls in order and runs them beside the caller. A call never waits for a peer, so that calls may
//! be made in any order that streams allow. [`Stream::synchronize`] helps with what is queued; what nobody waits for
//! is taken over by a thread of the stream's own, some 20 µs later; after a spell in which the program waited for every
//! call, up to two milliseconds later.
//!
//! A [`DeviceBuffer`] keeps its memory alive as long as a call uses it, and reading it waits for such calls. Its
//! [slices](DeviceBuffer::slice) share the memory.
//!
//! # Roads
//!
//! Between two ranks data takes the fastest road that is open: P2P (each reads and writes the other's memory), SHM
//! (through shared memory), NET (through a socket). A road is used only after bytes have gone over it and come back
//! right. [`Communicator::decisions`] tells what was chosen and what was refused; a slower road than the machine allows
//! is announced on standard error, with the reason and the cost:
//!
//! ```
//! use ferronickel::{Communicator, Config, Device};
//!
//! # fn main() -> ferronickel::Result<()> {
//! let config = Config::from_environment().with("NCCL_P2P_DISABLE", "1").expect("a known variable and a good value");
//! let ranks = Communicator::init_all(&[Device::host(0), Device::host(1)], &config)?;
//! # if std::env::var_os("NCCL_P2P_DISABLE").is_none() && std::env::var_os("NCCL_SHM_DISABLE").is_none() {
//! assert_eq!(
//!     ranks[0].decisions()[0].to_string(),
//!     "0[0] -> 1[1]: SHM/direct; P2P refused: NCCL_P2P_DISABLE=1 set by the program"
//! );
//! # }
//! // The same for the algorithm that a call of this size would take.
//! println!("{}", ranks[0].all_reduce_decision(1 << 20));
//! # Ok(())
//! # }
//! ```
//!
//! # Settings and the log
//!
//! A [`Config`] holds every variable, each declared once in [`config`] with its type, default and meaning, and knows
//! where its value came from: the environment, the program, `~/.nccl.conf`, `/etc/nccl.conf`, or the default.
//! `NCCL_DEBUG=INFO` writes NCCL's log.
//!
//! # Errors
//!
//! An [`Error`] says in one line what was seen, in which call, on which rank and device, and what would be right; it
//! also carries the decisions that came before. What goes wrong while calls run stops the communicator for every rank,
//! with the same cause for all: ranks whose calls differ, a rank that left, [`Communicator::abort`]. Whoever waits
//! learns it from [`Stream::synchronize`], and anyone from [`Communicator::async_error`]:
//!
//! ```
//! use ferronickel::{Communicator, Config, Device, ErrorKind, RedOp, group};
//!
//! # fn main() -> ferronickel::Result<()> {
//! let devices = [Device::host(0), Device::host(1)];
//! let ranks = Communicator::init_all(&devices, &Config::from_environment())?;
//! let streams = [devices[0].stream()?, devices[1].stream()?];
//! // These belong to one collective, and do not fit each other.
//! let buffers = [devices[0].alloc::<f32>(3)?, devices[1].alloc::<f32>(4)?];
//! group(|| {
//!     (0..2).try_for_each(|rank| ranks[rank].all_reduce(&buffers[rank], &buffers[rank], RedOp::Sum, &streams[rank]))
//! })?;
//! let error = streams[0].synchronize().unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Mismatch);
//! assert_eq!(
//!     error.seen(),
//!     "in call 1 rank 0 made all_reduce(count 3, float32, sum) and rank 1 made all_reduce(count 4, float32, sum)"
//! );
//! # Ok(())
//! # }
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("ferronickel runs on Linux: it rests on memfd and on the kernel's clocks and files of processes");

mod bootstrap;
mod collective;
mod communicator;
pub mod config;
mod device;
mod diagnostics;
mod error;
mod fork;
mod group;
#[doc(hidden)]
pub mod measure;
mod operation;
mod plan;
mod proxy;
mod signals;
mod transport;
mod types;

pub use bootstrap::world::World;
pub use communicator::{Communicator, UniqueId};
pub use config::Config;
pub use device::{BusId, Device, DeviceBuffer, Stream};
pub use diagnostics::decisions::{Decision, Refusal};
pub use diagnostics::log::last_warning;
pub use error::{Error, ErrorKind, Result};
pub use group::group;
pub use operation::{Operation, Scalar};
pub use types::{DataType, Element, F8E4m3, F8E5m2, RedOp};
