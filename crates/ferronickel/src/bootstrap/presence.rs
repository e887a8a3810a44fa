//! Who a rank is: its process, its machine, and where the process is reached.

use std::net::SocketAddr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::service::Service;
use super::unique_id::random;
use crate::config::{Config, variables};
use crate::device::host::wait;

/// What every rank says of itself when it comes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Presence {
    pub rank: usize,
    /// The version of this library: the processes of a communicator share memory, so theirs must be the same.
    pub version: String,
    /// The name of the host.
    pub host: String,
    pub pid: u32,
    /// Tells processes apart, on whatever machines they are.
    pub process: u64,
    /// Tells nodes apart: `NCCL_HOSTID`, or the machine.
    pub node: u64,
    /// The node's name by `NCCL_HOSTID`, if that is set.
    pub host_id: Option<String>,
    /// The processors that its process may use, a bit for each.
    pub processors: Vec<u64>,
    pub addresses: Vec<SocketAddr>,
    /// The abstract Unix name of the process, or why it has none.
    pub unix: Result<String, String>,
}

impl Presence {
    /// This process's presence, for `rank`; without a service it is reached by nobody.
    pub fn new(rank: usize, config: &Config, service: Option<&Service>) -> Presence {
        let host_id = config.text(&variables::HOSTID).value.map(String::from);
        let node = match &host_id {
            Some(id) => number("ferronickel host id", id.as_bytes()),
            None => machine(),
        };
        Presence {
            rank,
            version: env!("CARGO_PKG_VERSION").into(),
            host: host_name(),
            pid: std::process::id(),
            process: process(),
            node,
            host_id,
            processors: wait::affinity(),
            addresses: service.map(|service| service.addresses.clone()).unwrap_or_default(),
            unix: service.map_or_else(|| Err("its process listens nowhere".into()), |service| service.unix.clone()),
        }
    }

    /// How messages of other processes name the rank.
    pub fn name(&self) -> String {
        format!("rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// This process, as messages name it.
pub(crate) fn process_name() -> String {
    format!("host {}, pid {}", host_name(), std::process::id())
}

fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_string()
}

/// The machine, by its name and the number of its last start.
fn machine() -> u64 {
    static MACHINE: OnceLock<u64> = OnceLock::new();
    *MACHINE.get_or_init(|| {
        // without /proc the name must do
        let start = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        number("ferronickel machine", &[host_name().as_bytes(), &start].concat())
    })
}

/// A number that no other process has. A forked child, which inherits the random part, has another.
fn process() -> u64 {
    static SALT: OnceLock<[u8; 32]> = OnceLock::new();
    let salt = SALT.get_or_init(|| random().unwrap_or_else(|_| clock()));
    number("ferronickel process", &[&salt[..], &std::process::id().to_le_bytes()].concat())
}

/// What tells processes apart where the system gives no randomness.
fn clock() -> [u8; 32] {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    blake3::derive_key("ferronickel start", &now.as_nanos().to_le_bytes())
}

fn number(context: &str, bytes: &[u8]) -> u64 {
    let hash = blake3::derive_key(context, bytes);
    u64::from_le_bytes(*hash.first_chunk().expect("a hash has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_always_the_same_and_a_host_id_makes_another_node() {
        let here = Presence::new(3, &Config::default(), None);
        assert_eq!(here, Presence::new(3, &Config::default(), None));
        assert_eq!(here.name(), format!("rank 3 (host {}, pid {})", host_name(), std::process::id()));
        let elsewhere = Presence::new(3, &Config::default().with("NCCL_HOSTID", "b").unwrap(), None);
        assert!(elsewhere.node != here.node && elsewhere.process == here.process);
    }
}
