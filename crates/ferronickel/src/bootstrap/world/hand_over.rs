//! How ranks on one host come by one id: rank 0 hands it out through an abstract Unix socket.
//!
//! The socket's name follows from the user, the job and the count of communicators, so nobody has to be told it, and it
//! is gone with its owner. Both ends ask the kernel who the other is, and speak only to the same user. Rank 0 serves
//! until every rank has the id; whoever connects and says nothing costs itself.

use std::io::{self, ErrorKind as IoErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use crate::bootstrap::stream::connect_to;
use crate::bootstrap::unique_id::UniqueId;
use crate::error::{Error, ErrorKind, Result};

use super::World;

/// The first bytes of either side.
const MAGIC: [u8; 8] = *b"FNWORLD\x01";

/// What a rank says: the magic, its rank and the size, both little-endian.
const HELLO_BYTES: usize = 16;

/// What rank 0 answers: the magic, its size, and the id, which is zeros if the sizes differ.
const ANSWER_BYTES: usize = 12 + UniqueId::BYTES;

/// How long a connection may take to say who it is; a rank does so at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connections that wait at the same time, beyond one for each rank; the oldest goes first.
const STRANGERS: usize = 16;

/// Between two attempts to connect: at first short, since ranks start together, then longer.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The place where the ranks of one communicator meet.
pub(super) struct Meeting {
    name: String,
    rank: usize,
    size: usize,
    generation: u32,
    timeout: Duration,
    deadline: Instant,
}

/// A connection that has not said everything yet.
struct Guest {
    stream: UnixStream,
    hello: [u8; HELLO_BYTES],
    filled: usize,
    deadline: Instant,
}

impl Meeting {
    pub(super) fn new(world: &World, generation: u32, timeout: Duration) -> Result<Self> {
        let mut hasher = blake3::Hasher::new_derive_key("ferronickel name of a socket where ranks meet");
        hasher.update(&rustix::process::geteuid().as_raw().to_le_bytes());
        hasher.update(&world.job.key()?).update(world.launcher.as_bytes()).update(&generation.to_le_bytes());
        let name = format!("ferronickel-{}", &hasher.finalize().to_hex()[..32]);
        // A deadline beyond what the clock can say is as good as a year.
        let deadline = Instant::now() + timeout.min(Duration::from_secs(31_536_000));
        Ok(Self { name, rank: world.rank, size: world.size, generation, timeout, deadline })
    }

    /// The name of the abstract socket.
    #[cfg(test)]
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Gives every other rank the id.
    pub(super) fn hand_out(&self, id: &UniqueId) -> Result<()> {
        let listener = self.listen()?;
        let mut guests: Vec<Guest> = Vec::new();
        let mut served = vec![false; self.size];
        served[0] = true;
        while !served.iter().all(|served| *served) {
            let now = Instant::now();
            if now >= self.deadline {
                return Err(self.missing(&served));
            }
            guests.retain(|guest| guest.deadline > now);
            let wake = guests.iter().map(|guest| guest.deadline).fold(self.deadline, Instant::min);
            wait(&listener, &guests, wake - now).map_err(|error| Error::system("poll", error))?;
            self.admit(&listener, &mut guests);
            guests.retain_mut(|guest| match guest.listen() {
                Ok(false) => true,
                Ok(true) => {
                    self.answer(guest, id, &mut served);
                    false
                }
                Err(_) => false,
            });
        }
        Ok(())
    }

    /// Whoever has the name already may be about to leave it.
    fn listen(&self) -> Result<UnixListener> {
        let address = SocketAddr::from_abstract_name(&self.name);
        let address = address.map_err(|error| Error::system("making the name of a socket", error))?;
        loop {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => {
                    let prepared = listener.set_nonblocking(true);
                    return prepared.map(|()| listener).map_err(|error| Error::system("fcntl", error));
                }
                Err(error) if error.kind() == IoErrorKind::AddrInUse && Instant::now() < self.deadline => {
                    std::thread::sleep(LONGEST_PAUSE);
                }
                Err(error) => {
                    let request = format!("rank 0: listening at the abstract socket @{}", self.name);
                    return Err(Error::system(&request, error).hint(MEET_ELSEWHERE));
                }
            }
        }
    }

    /// Takes in whoever connected and is the same user.
    fn admit(&self, listener: &UnixListener, guests: &mut Vec<Guest>) {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == IoErrorKind::WouldBlock => return,
                Err(_) => {
                    // Mostly want of descriptors; the connection stays, so without a pause this would spin.
                    std::thread::sleep(LONGEST_PAUSE);
                    return;
                }
            };
            let deadline = self.deadline.min(Instant::now() + PATIENCE);
            if is_same_user(&stream).is_ok() && stream.set_nonblocking(true).is_ok() {
                guests.push(Guest { stream, hello: [0; HELLO_BYTES], filled: 0, deadline });
            }
            if guests.len() > self.size + STRANGERS {
                guests.remove(0);
            }
        }
    }

    /// Answers a rank. The answer fits into the empty buffer of its socket, so writing never waits.
    fn answer(&self, guest: &mut Guest, id: &UniqueId, served: &mut [bool]) {
        let Some((rank, size)) = read_hello(&guest.hello) else { return };
        let mut answer = [0; ANSWER_BYTES];
        answer[..8].copy_from_slice(&MAGIC);
        answer[8..12].copy_from_slice(&number(self.size).to_le_bytes());
        let fits = size == number(self.size) && rank != 0 && (rank as usize) < self.size;
        if fits {
            answer[12..].copy_from_slice(id.as_bytes());
        }
        if guest.stream.write_all(&answer).is_ok() && fits {
            served[rank as usize] = true;
        }
    }

    /// Gets the id from rank 0.
    pub(super) fn fetch(&self) -> Result<UniqueId> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let seen = match self.ask() {
                Ok(answer) => return self.read_answer(&answer),
                Err(seen) => seen,
            };
            if Instant::now() >= self.deadline {
                return Err(self.unheard(&seen));
            }
            std::thread::sleep(pause.min(self.deadline.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One attempt; what was seen if it came to nothing.
    fn ask(&self) -> std::result::Result<[u8; ANSWER_BYTES], String> {
        let seen = |error: io::Error| error.to_string();
        let mut stream = match connect_to(&self.name) {
            Ok(stream) => stream,
            Err(error) if error.kind() == IoErrorKind::ConnectionRefused => {
                return Err("nobody listens there".to_owned());
            }
            Err(error) => return Err(format!("connecting failed: {error}")),
        };
        is_same_user(&stream)?;
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).map_err(seen)?;
        stream.set_write_timeout(Some(left)).map_err(seen)?;
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..12].copy_from_slice(&number(self.rank).to_le_bytes());
        hello[12..].copy_from_slice(&number(self.size).to_le_bytes());
        stream.write_all(&hello).map_err(seen)?;
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer).map_err(|error| match error.kind() {
            IoErrorKind::WouldBlock => "it took the connection and did not answer".to_owned(),
            _ => format!("it took the connection and ended it: {error}"),
        })?;
        if answer[..8] != MAGIC { Err("something else answered there".to_owned()) } else { Ok(answer) }
    }

    fn read_answer(&self, answer: &[u8; ANSWER_BYTES]) -> Result<UniqueId> {
        let size = u32::from_le_bytes(*answer[8..].first_chunk().expect("an answer is longer"));
        if size != number(self.size) {
            let seen = format!("rank 0 says that there are {size} ranks, rank {} says {}", self.rank, self.size);
            return Err(Error::new(ErrorKind::InvalidUsage, seen).hint("give every rank of a job the same size"));
        }
        UniqueId::from_bytes(answer[12..].first_chunk().expect("an answer holds an id"))
            .map_err(|_| Error::new(ErrorKind::InvalidUsage, format!("rank 0 has no id for rank {}", self.rank)))
    }

    fn missing(&self, served: &[bool]) -> Error {
        let missing: Vec<_> = (0..self.size).filter(|rank| !served[*rank]).map(|rank| rank.to_string()).collect();
        let plural = if missing.len() == 1 { "" } else { "s" };
        let (missing, size, generation, seconds) =
            (missing.join(", "), self.size, self.generation, self.timeout.as_secs_f64());
        let seen = format!(
            "rank 0 waited {seconds} s at the abstract socket @{}: rank{plural} {missing} of {size} did not come for \
             the id of communicator {generation}",
            self.name
        );
        Error::new(ErrorKind::Timeout, seen).hint(MEET_ELSEWHERE)
    }

    fn unheard(&self, last: &str) -> Error {
        let (rank, generation, seconds) = (self.rank, self.generation, self.timeout.as_secs_f64());
        let seen = format!(
            "rank {rank} waited {seconds} s for rank 0 to hand out the id of communicator {generation} at the abstract \
             socket @{}: {last}",
            self.name
        );
        Error::new(ErrorKind::Timeout, seen).hint(MEET_ELSEWHERE)
    }
}

/// What may be wrong when ranks do not meet.
const MEET_ELSEWHERE: &str = "every rank must make its communicators in the same order, within \
    FERRONICKEL_INIT_TIMEOUT; abstract sockets need one network namespace, so for ranks in containers of their own set \
    NCCL_COMM_ID and FERRONICKEL_SECRET";

impl Guest {
    /// Reads what is there; whether the hello is complete.
    fn listen(&mut self) -> io::Result<bool> {
        while self.filled < HELLO_BYTES {
            match self.stream.read(&mut self.hello[self.filled..]) {
                Ok(0) => return Err(IoErrorKind::UnexpectedEof.into()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == IoErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Waits until somebody connects or says something, at most so long.
fn wait(listener: &UnixListener, guests: &[Guest], longest: Duration) -> rustix::io::Result<()> {
    let streams = guests.iter().map(|guest| PollFd::new(&guest.stream, PollFlags::IN));
    let mut all: Vec<_> = std::iter::once(PollFd::new(listener, PollFlags::IN)).chain(streams).collect();
    let longest = Timespec::try_from(longest).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(&mut all, Some(&longest)) {
        Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// Whether the other end runs as the same user, or who it is instead.
fn is_same_user(stream: &UnixStream) -> std::result::Result<(), String> {
    let peer = socket_peercred(stream).map_err(|error| format!("the kernel does not say who is there: {error}"))?;
    let me = rustix::process::geteuid();
    if peer.uid == me {
        return Ok(());
    }
    let (pid, uid) = (peer.pid.as_raw_nonzero(), peer.uid.as_raw());
    Err(format!("process {pid} of user {uid} is there instead of one of user {}", me.as_raw()))
}

/// Rank and size, if it is a hello.
fn read_hello(hello: &[u8; HELLO_BYTES]) -> Option<(u32, u32)> {
    let rest = hello.strip_prefix(&MAGIC)?;
    let (rank, size) = rest.split_first_chunk()?;
    Some((u32::from_le_bytes(*rank), u32::from_le_bytes(*size.first_chunk()?)))
}

/// Ranks were read as 32-bit numbers.
fn number(ranks: usize) -> u32 {
    u32::try_from(ranks).unwrap_or(u32::MAX)
}
