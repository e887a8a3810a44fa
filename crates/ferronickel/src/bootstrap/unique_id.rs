//! The name of a communicator before it exists, where its ranks meet, and the secret they share.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rustix::rand::{GetRandomFlags, getrandom};

use super::root;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;

/// 128 bytes that one rank makes and every rank of a communicator is given, by whatever means the program has.
///
/// They say where the ranks meet, and hold a secret that proves a connection to belong to the communicator: treat them
/// like a password. The process that made an id must live until the communicator is complete.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; UniqueId::BYTES]);

/// The first bytes of every id, so that bytes from elsewhere are recognised.
const MAGIC: [u8; 8] = *b"FNICKEL\x02";
pub(crate) const SECRET_BYTES: usize = 32;
/// What follows the secret: whether the addresses are [agreed](UniqueId::agreed), and how many there are.
const KIND_AT: usize = MAGIC.len() + SECRET_BYTES;
const ADDRESSES_AT: usize = KIND_AT + 2;
/// An address: family, port, IP address, scope.
const ADDRESS_BYTES: usize = 1 + 2 + 16 + 4;
const MOST_ADDRESSES: usize = (UniqueId::BYTES - ADDRESSES_AT) / ADDRESS_BYTES;

impl UniqueId {
    /// The length of an id.
    pub const BYTES: usize = 128;

    /// A new id, unlike any other. From now on this process listens, on the interface that the environment chooses,
    /// for the ranks that are given it.
    ///
    /// With `NCCL_COMM_ID` set, ids are made from that address, alike in every process that makes as many.
    ///
    /// # Errors
    /// As for [`with_config`](Self::with_config).
    pub fn new() -> Result<UniqueId> {
        Self::with_config(&Config::from_environment())
    }

    /// As [`new`](Self::new), with the settings of a program.
    ///
    /// # Errors
    /// [`System`](ErrorKind::System) when the operating system has no randomness to give or lets nobody listen;
    /// [`InvalidUsage`](ErrorKind::InvalidUsage) when the settings name no interface or address that can be used.
    pub fn with_config(config: &Config) -> Result<UniqueId> {
        let id = fork::refuse_child().and_then(|()| root::host(config));
        id.map_err(|error| error.in_call("UniqueId::new"))
    }

    /// An id for ranks of this process alone.
    pub(crate) fn private() -> Result<UniqueId> {
        Self::at(&random()?, false, &[])
    }

    /// An id of ranks that meet at `addresses`. It is `agreed` if every rank makes it by itself, so that rank 0 has to
    /// begin to listen there.
    pub(crate) fn at(secret: &[u8; SECRET_BYTES], agreed: bool, addresses: &[SocketAddr]) -> Result<UniqueId> {
        let mut bytes = [0; Self::BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()..KIND_AT].copy_from_slice(secret);
        if addresses.len() > MOST_ADDRESSES {
            let seen = format!("{} addresses do not fit a unique id, which holds {MOST_ADDRESSES}", addresses.len());
            return Err(Error::new(ErrorKind::Internal, seen));
        }
        bytes[KIND_AT..ADDRESSES_AT].copy_from_slice(&[agreed.into(), addresses.len() as u8]);
        for (place, address) in bytes[ADDRESSES_AT..].chunks_exact_mut(ADDRESS_BYTES).zip(addresses) {
            let (family, ip, scope) = match address {
                SocketAddr::V4(address) => (4, address.ip().to_ipv6_mapped().octets(), 0),
                SocketAddr::V6(address) => (6, address.ip().octets(), address.scope_id()),
            };
            place[0] = family;
            place[1..3].copy_from_slice(&address.port().to_le_bytes());
            place[3..19].copy_from_slice(&ip);
            place[19..].copy_from_slice(&scope.to_le_bytes());
        }
        Ok(UniqueId(bytes))
    }

    /// The id in bytes that [`as_bytes`](Self::as_bytes) gave, perhaps on another machine.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the bytes are not an id of this library.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<UniqueId> {
        let id = UniqueId(*bytes);
        if bytes[..MAGIC.len()] != MAGIC || bytes[KIND_AT] > 1 || id.parse_addresses().is_none() {
            let seen = "these 128 bytes are not a unique id of this version of ferronickel";
            return Err(Error::new(ErrorKind::InvalidArgument, seen)
                .in_call("UniqueId::from_bytes")
                .hint("pass on the bytes of UniqueId::as_bytes unchanged, all 128 of them"));
        }
        Ok(id)
    }

    /// The id, to be passed on.
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// The secret that only the ranks of the communicator know.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        self.0[MAGIC.len()..].first_chunk().expect("an id is longer than its secret")
    }

    /// Where the ranks meet; nowhere but in this process if there is none.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.parse_addresses().unwrap_or_default()
    }

    /// Whether every rank made the id by itself, so that rank 0 must begin to listen.
    pub(crate) fn agreed(&self) -> bool {
        self.0[KIND_AT] == 1
    }

    fn parse_addresses(&self) -> Option<Vec<SocketAddr>> {
        let count = usize::from(self.0[KIND_AT + 1]);
        if count > MOST_ADDRESSES {
            return None;
        }
        let parse = |place: &[u8]| {
            let port = u16::from_le_bytes([place[1], place[2]]);
            let ip = Ipv6Addr::from(*place[3..].first_chunk::<16>()?);
            let scope = u32::from_le_bytes(*place[19..].first_chunk()?);
            match place[0] {
                4 => Some(SocketAddr::new(IpAddr::V4(ip.to_ipv4_mapped()?), port)),
                6 => Some(SocketAddrV6::new(ip, port, 0, scope).into()),
                _ => None,
            }
        };
        self.0[ADDRESSES_AT..].chunks_exact(ADDRESS_BYTES).take(count).map(parse).collect()
    }

    /// A number that names the communicator and tells nothing of the secret: the log's `commId`.
    pub(crate) fn public_number(&self) -> u64 {
        let hash = blake3::derive_key("ferronickel communicator number", self.secret());
        u64::from_le_bytes(*hash.first_chunk().expect("a hash has 32 bytes"))
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({:#x})", self.public_number())
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random() -> Result<[u8; SECRET_BYTES]> {
    let mut bytes = [0; SECRET_BYTES];
    let mut rest = &mut bytes[..];
    while !rest.is_empty() {
        match getrandom(&mut *rest, GetRandomFlags::empty()) {
            Ok(filled) => rest = &mut rest[filled..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::system("getrandom", error)),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_differ_and_survive_the_journey() {
        let (a, b) = (UniqueId::new().unwrap(), UniqueId::new().unwrap());
        assert!(a != b && a.public_number() != b.public_number());
        assert_eq!(UniqueId::from_bytes(a.as_bytes()).unwrap(), a);
        assert_ne!(a.secret(), &[0; SECRET_BYTES]);
        assert!(!a.addresses().is_empty() && UniqueId::private().unwrap().addresses().is_empty());
    }

    #[test]
    fn addresses_of_both_families_survive() {
        let scoped = SocketAddrV6::new("fe80::17".parse().unwrap(), 65535, 0, 3);
        let addresses = ["10.1.2.3:80".parse().unwrap(), scoped.into(), "[::1]:1".parse().unwrap()];
        let id = UniqueId::at(&[7; 32], true, &addresses).unwrap();
        assert_eq!(UniqueId::from_bytes(id.as_bytes()).unwrap().addresses(), addresses);
        assert!(id.agreed());
        assert!(UniqueId::at(&[7; 32], true, &[addresses[0]; 4]).is_err());
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_refused_or_harmless(mut bytes in proptest::array::uniform32(any::<u8>()), magic: bool) {
            let mut id = [0; UniqueId::BYTES];
            if magic {
                bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
            }
            id[..32].copy_from_slice(&bytes);
            id[KIND_AT..KIND_AT + 32].copy_from_slice(&bytes);
            if let Ok(id) = UniqueId::from_bytes(&id) {
                prop_assert!(magic && id.addresses().len() <= MOST_ADDRESSES);
            }
        }
    }

    #[test]
    fn bytes_without_the_magic_are_no_id() {
        let error = UniqueId::from_bytes(&[7; UniqueId::BYTES]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
