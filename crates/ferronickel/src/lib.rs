//! ferronickel.

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
mod plan;
mod proxy;
mod transport;
mod types;

pub use communicator::{Communicator, UniqueId};
pub use config::Config;
pub use device::{BusId, Device, DeviceBuffer, Stream};
pub use diagnostics::decisions::{Decision, Refusal};
pub use diagnostics::log::last_warning;
pub use error::{Error, ErrorKind, Result};
pub use group::group;
pub use types::{DataType, Element, RedOp};
