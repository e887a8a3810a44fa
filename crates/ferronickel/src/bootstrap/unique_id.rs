//! The name of a communicator before it exists, and the secret its ranks share.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, ErrorKind, Result};

/// 128 bytes that one rank makes and every rank of a communicator is given, by whatever means the program has.
///
/// They hold a secret that proves a connection to belong to the communicator: treat them like a password.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; UniqueId::BYTES]);

/// The first bytes of every id, so that bytes from elsewhere are recognised.
const MAGIC: [u8; 8] = *b"FNICKEL\x01";
const SECRET_BYTES: usize = 32;

impl UniqueId {
    /// The length of an id.
    pub const BYTES: usize = 128;

    /// A new id, unlike any other.
    ///
    /// # Errors
    /// [`System`](ErrorKind::System) when the operating system has no randomness to give.
    pub fn new() -> Result<UniqueId> {
        let mut bytes = [0; Self::BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        let mut secret = &mut bytes[MAGIC.len()..MAGIC.len() + SECRET_BYTES];
        while !secret.is_empty() {
            match getrandom(&mut *secret, GetRandomFlags::empty()) {
                Ok(filled) => secret = &mut secret[filled..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::system("getrandom", error).in_call("UniqueId::new")),
            }
        }
        Ok(UniqueId(bytes))
    }

    /// The id in bytes that [`as_bytes`](Self::as_bytes) gave, perhaps on another machine.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the bytes are not an id of this library.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<UniqueId> {
        if bytes[..MAGIC.len()] != MAGIC {
            let seen = "these 128 bytes are not a unique id of this version of ferronickel";
            return Err(Error::new(ErrorKind::InvalidArgument, seen)
                .in_call("UniqueId::from_bytes")
                .hint("pass on the bytes of UniqueId::as_bytes unchanged, all 128 of them"));
        }
        Ok(UniqueId(*bytes))
    }

    /// The id, to be passed on.
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// The secret that only the ranks of the communicator know.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        self.0[MAGIC.len()..].first_chunk().expect("an id is longer than its secret")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_survive_the_journey() {
        let (a, b) = (UniqueId::new().unwrap(), UniqueId::new().unwrap());
        assert!(a != b && a.public_number() != b.public_number());
        assert_eq!(UniqueId::from_bytes(a.as_bytes()).unwrap(), a);
        assert_ne!(a.secret(), &[0; SECRET_BYTES]);
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let error = UniqueId::from_bytes(&[7; UniqueId::BYTES]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
