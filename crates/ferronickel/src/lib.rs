//! ferronickel.

pub mod config;
mod device;
mod diagnostics;
mod error;
mod types;

pub use config::Config;
pub use device::{BusId, Device, DeviceBuffer, Stream};
pub use diagnostics::decisions::{Decision, Refusal};
pub use diagnostics::log::last_warning;
pub use error::{Error, ErrorKind, Result};
pub use types::{DataType, Element, RedOp};
