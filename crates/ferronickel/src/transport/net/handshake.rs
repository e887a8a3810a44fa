//! Proof that a connection belongs to a communicator, before anything else is read from it.
//!
//! Both ends know the secret of the unique id. Each sends a fresh random challenge and answers the other's with a
//! keyed hash over both challenges and what the connection is for. The messages have fixed lengths, so that a
//! stranger can make us read no more than these, and only until the deadline.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Purpose {
    pub channel: u32,
    /// The rank that sends data, which is the one that connects.
    pub from: u32,
    /// The rank that receives data.
    pub to: u32,
}

const CHALLENGE: usize = 32;
const PURPOSE: usize = 12;

impl Purpose {
    fn to_bytes(self) -> [u8; PURPOSE] {
        let mut bytes = [0; PURPOSE];
        for (field, value) in bytes.chunks_exact_mut(4).zip([self.channel, self.from, self.to]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; PURPOSE]) -> Purpose {
        let field = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Purpose { channel: field(0), from: field(4), to: field(8) }
    }
}

/// Proves to the end that accepted that we belong to the communicator, and lets it prove the same.
pub(crate) fn connect(stream: &TcpStream, secret: &[u8; 32], purpose: Purpose, limit: Duration) -> io::Result<()> {
    let mut stream = Limited::new(stream, limit);
    let ours = challenge()?;
    stream.write(&[&ours[..], &purpose.to_bytes()].concat())?;
    let mut theirs = [0; CHALLENGE];
    stream.read(&mut theirs)?;
    let mut proof = [0; CHALLENGE];
    stream.read(&mut proof)?;
    let proves = |side| prove(secret, side, &ours, &theirs, purpose);
    check(&proof, proves(b'a'))?;
    stream.write(proves(b'c').as_bytes())
}

/// The other end of [`connect`]. Tells what the connection is for.
pub(crate) fn accept(stream: &TcpStream, secret: &[u8; 32], limit: Duration) -> io::Result<Purpose> {
    let mut stream = Limited::new(stream, limit);
    let mut theirs = [0; CHALLENGE];
    stream.read(&mut theirs)?;
    let mut purpose = [0; PURPOSE];
    stream.read(&mut purpose)?;
    let purpose = Purpose::from_bytes(&purpose);
    let ours = challenge()?;
    let proves = |side| prove(secret, side, &theirs, &ours, purpose);
    stream.write(&[&ours[..], proves(b'a').as_bytes()].concat())?;
    let mut proof = [0; CHALLENGE];
    stream.read(&mut proof)?;
    check(&proof, proves(b'c'))?;
    Ok(purpose)
}

/// What the accepting side (`a`) or the connecting side (`c`) answers.
fn prove(secret: &[u8; 32], side: u8, connector: &[u8], acceptor: &[u8], purpose: Purpose) -> blake3::Hash {
    let message = [&[side], connector, acceptor, &purpose.to_bytes()].concat();
    blake3::keyed_hash(secret, &message)
}

fn check(proof: &[u8; CHALLENGE], expected: blake3::Hash) -> io::Result<()> {
    // comparing hashes takes the same time wherever they differ
    if expected == blake3::Hash::from_bytes(*proof) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the other end does not know the secret of this communicator"))
}

fn challenge() -> io::Result<[u8; CHALLENGE]> {
    let mut bytes = [0; CHALLENGE];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if filled < CHALLENGE {
        return Err(io::Error::other("the system gave too few random bytes"));
    }
    Ok(bytes)
}

/// A stream that is given up at a deadline, however slowly bytes trickle in.
struct Limited<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Limited<'a> {
    fn new(stream: &'a TcpStream, limit: Duration) -> Self {
        Limited { stream, deadline: Instant::now() + limit }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the other end was too slow to prove who it is"));
        }
        Ok(left)
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // a few bytes into an empty socket buffer
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(20);
    const PURPOSE_3: Purpose = Purpose { channel: 3, from: 1, to: 0 };

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (connecting, listener.accept().unwrap().0)
    }

    #[test]
    fn both_ends_that_know_the_secret_agree_on_the_purpose() {
        let (connecting, accepting) = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| connect(&connecting, &[7; 32], PURPOSE_3, LIMIT).unwrap());
            assert_eq!(accept(&accepting, &[7; 32], LIMIT).unwrap(), PURPOSE_3);
        });
    }

    #[test]
    fn another_secret_is_refused_by_both() {
        let (connecting, accepting) = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let error = connect(&connecting, &[8; 32], PURPOSE_3, LIMIT).unwrap_err();
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
                if (&connecting).write_all(&[0]).is_err() {
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
        let recorded = prove(&[7; 32], b'c', &[1; 32], &[2; 32], PURPOSE_3);
        assert!(check(recorded.as_bytes(), prove(&[7; 32], b'c', &[1; 32], &[3; 32], PURPOSE_3)).is_err());
        assert!(check(recorded.as_bytes(), prove(&[7; 32], b'a', &[1; 32], &[2; 32], PURPOSE_3)).is_err());
        assert!(check(recorded.as_bytes(), recorded).is_ok());
    }
}
