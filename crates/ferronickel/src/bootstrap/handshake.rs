//! Proof that a connection belongs to a communicator, before anything else is read from it.
//!
//! Both ends know the secret of the unique id. Each sends a fresh random challenge and answers the other's with a
//! keyed hash over both challenges and what the connection is for. The messages have fixed lengths, so that a
//! stranger can make us read no more than these, and only until the deadline.

use std::io;
use std::time::Duration;

use super::stream::{Limited, Stop, Stream};
use super::unique_id::{SECRET_BYTES, random};

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Purpose {
    /// The number of the communicator's id.
    pub id: u64,
    pub kind: Kind,
    /// The rank that connects.
    pub from: u32,
    /// The rank that is connected to.
    pub to: u32,
}

/// The kinds of connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    /// A rank comes to the root.
    Join,
    /// Two processes keep in touch.
    Link,
    /// Data of a channel, from the rank that connects. Ranks try several times to connect if roads break; each
    /// attempt has its number, and so has each socket of a connection.
    Data { channel: u16, attempt: u16, socket: u16 },
}

const CHALLENGE: usize = SECRET_BYTES;
const PURPOSE: usize = 8 + 8 + 4 + 4;
/// Bytes of the first message, from the end that connects.
pub(crate) const OPENING: usize = CHALLENGE + PURPOSE;
/// Bytes of the answer, and of the last message.
const ANSWER: usize = CHALLENGE + PROOF;
pub(crate) const PROOF: usize = 32;

impl Purpose {
    fn to_bytes(self) -> [u8; PURPOSE] {
        let (kind, details) = match self.kind {
            Kind::Join => (0u16, [0; 3]),
            Kind::Link => (1, [0; 3]),
            Kind::Data { channel, attempt, socket } => (2, [channel, attempt, socket]),
        };
        let mut bytes = [0; PURPOSE];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        for (place, value) in bytes[8..16].chunks_exact_mut(2).zip([kind, details[0], details[1], details[2]]) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        bytes[16..20].copy_from_slice(&self.from.to_le_bytes());
        bytes[20..].copy_from_slice(&self.to.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; PURPOSE]) -> Option<Purpose> {
        let number = |from: usize, length: usize| {
            bytes[from..from + length].iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        let detail = |at| number(at, 2) as u16;
        let kind = match detail(8) {
            0 => Kind::Join,
            1 => Kind::Link,
            2 => Kind::Data { channel: detail(10), attempt: detail(12), socket: detail(14) },
            _ => return None,
        };
        Some(Purpose { id: number(0, 8), kind, from: number(16, 4) as u32, to: number(20, 4) as u32 })
    }
}

/// Proves to the end that accepted that we belong to the communicator, and lets it prove the same.
pub(crate) fn connect(
    stream: &Stream,
    secret: &[u8; SECRET_BYTES],
    purpose: Purpose,
    limit: Duration,
    stop: Stop<'_>,
) -> io::Result<()> {
    let mut stream = Limited::new(stream, limit, stop);
    let ours = challenge()?;
    stream.write(&[&ours[..], &purpose.to_bytes()].concat())?;
    let mut answer = [0; ANSWER];
    stream.read(&mut answer)?;
    let (theirs, proof) = answer.split_at(CHALLENGE);
    let proves = |side| prove(secret, side, &ours, theirs, purpose);
    check(proof, proves(b'a'))?;
    stream.write(proves(b'c').as_bytes())
}

/// The accepting end of [`connect`], a message at a time, so that one thread can serve many.
#[derive(Debug)]
pub(crate) struct Acceptance {
    purpose: Purpose,
    expected: blake3::Hash,
}

/// What the first message says it is for. None if it says nothing that makes sense.
pub(crate) fn purpose_of(opening: &[u8; OPENING]) -> Option<Purpose> {
    Purpose::from_bytes(opening[CHALLENGE..].first_chunk()?)
}

impl Acceptance {
    /// Takes the first message; what is to be answered comes along.
    pub fn begin(
        opening: &[u8; OPENING],
        purpose: Purpose,
        secret: &[u8; SECRET_BYTES],
    ) -> io::Result<(Acceptance, [u8; ANSWER])> {
        let ours = challenge()?;
        let proves = |side| prove(secret, side, &opening[..CHALLENGE], &ours, purpose);
        let mut answer = [0; ANSWER];
        answer[..CHALLENGE].copy_from_slice(&ours);
        answer[CHALLENGE..].copy_from_slice(proves(b'a').as_bytes());
        Ok((Acceptance { purpose, expected: proves(b'c') }, answer))
    }

    /// Takes the last message. Tells what the connection is for.
    pub fn finish(self, proof: &[u8; PROOF]) -> io::Result<Purpose> {
        check(proof, self.expected)?;
        Ok(self.purpose)
    }
}

/// What the accepting side (`a`) or the connecting side (`c`) answers.
fn prove(secret: &[u8; SECRET_BYTES], side: u8, connector: &[u8], acceptor: &[u8], purpose: Purpose) -> blake3::Hash {
    let message = [&[side], connector, acceptor, &purpose.to_bytes()].concat();
    blake3::keyed_hash(secret, &message)
}

fn check(proof: &[u8], expected: blake3::Hash) -> io::Result<()> {
    // comparing hashes takes the same time wherever they differ
    if blake3::Hash::from_slice(proof).is_ok_and(|proof| proof == expected) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the other end does not know the secret of this communicator"))
}

fn challenge() -> io::Result<[u8; CHALLENGE]> {
    random().map_err(|error| io::Error::other(error.seen().to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn purpose() -> Purpose {
        Purpose { id: 0x1234_5678_9abc_def0, kind: Kind::Data { channel: 3, attempt: 1, socket: 2 }, from: 1, to: 0 }
    }

    fn pair() -> (Stream, Stream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Stream::unix(a).unwrap(), Stream::unix(b).unwrap())
    }

    fn accept(stream: &Stream, secret: &[u8; 32], limit: Duration) -> io::Result<Purpose> {
        let mut go_on = || false;
        let mut stream = Limited::new(stream, limit, &mut go_on);
        let mut opening = [0; OPENING];
        stream.read(&mut opening)?;
        let purpose = purpose_of(&opening).ok_or(io::ErrorKind::InvalidData)?;
        let (acceptance, answer) = Acceptance::begin(&opening, purpose, secret)?;
        stream.write(&answer)?;
        let mut proof = [0; PROOF];
        stream.read(&mut proof)?;
        acceptance.finish(&proof)
    }

    #[test]
    fn both_ends_that_know_the_secret_agree_on_the_purpose() {
        let (connecting, accepting) = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| connect(&connecting, &[7; 32], purpose(), LIMIT, &mut || false).unwrap());
            assert_eq!(accept(&accepting, &[7; 32], LIMIT).unwrap(), purpose());
        });
    }

    #[test]
    fn another_secret_is_refused_by_both() {
        let (connecting, accepting) = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let error = connect(&connecting, &[8; 32], purpose(), LIMIT, &mut || false).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            });
            assert!(accept(&accepting, &[7; 32], LIMIT).is_err());
        });
    }

    #[test]
    fn silence_and_dribble_end_at_the_deadline() {
        let (connecting, accepting) = pair();
        let dribble = std::thread::spawn(move || {
            for _ in 0..40 {
                if connecting.write(&[0], &[]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let error = accept(&accepting, &[7; 32], Duration::from_millis(60)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(accepting);
        dribble.join().unwrap();
    }

    #[test]
    fn an_answer_cannot_be_replayed() {
        // what a stranger recorded from one connection is of no use in another, since the challenges differ
        let recorded = prove(&[7; 32], b'c', &[1; 32], &[2; 32], purpose());
        assert!(check(recorded.as_bytes(), prove(&[7; 32], b'c', &[1; 32], &[3; 32], purpose())).is_err());
        assert!(check(recorded.as_bytes(), prove(&[7; 32], b'a', &[1; 32], &[2; 32], purpose())).is_err());
        assert!(check(recorded.as_bytes(), recorded).is_ok());
    }

    proptest! {
        #[test]
        fn every_purpose_survives_and_no_bytes_are_trouble(id: u64, channel: u16, from: u32, bytes: [u8; PURPOSE]) {
            for kind in [Kind::Join, Kind::Link, Kind::Data { channel, attempt: channel ^ 77, socket: 9 }] {
                let purpose = Purpose { id, kind, from, to: !from };
                prop_assert_eq!(Purpose::from_bytes(&purpose.to_bytes()), Some(purpose));
            }
            if let Some(purpose) = Purpose::from_bytes(&bytes) {
                prop_assert_eq!(&purpose.id.to_le_bytes()[..], &bytes[..8]);
            }
        }
    }
}
