//! Messages over a stream: a length, then the message. Files may travel along within a machine.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use serde::{Deserialize, Serialize};

use super::stream::{MOST_FILES, Stream, is_passing};
use crate::device::progress::{Failure, Report};

/// What processes tell each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Nothing but that the sender is alive.
    Alive,
    /// From the root: which process it is in, and which ranks are there too.
    Welcome { process: String, ranks: Vec<u32> },
    /// To the root: a rank has come.
    /// It waits so many milliseconds for the others.
    Join { size: u32, rank: u32, name: String, info: Vec<u8>, patience: u64 },
    /// From the root: what every rank has said of itself.
    Everyone(Vec<Vec<u8>>),
    /// To the root: the rank is connected to the others, who will notice what becomes of it.
    Ready,
    /// All must stop, for this cause.
    Failed(Failure),
    /// What ranks of the sender bring to an exchange, with the files of each.
    Bring { round: u64, values: Vec<Brought> },
    /// Where the sender's ranks are.
    Reports(Vec<Report>),
    /// The sender has done all it had to do.
    Leave,
}

/// What a rank brings to an exchange.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Brought {
    pub rank: u32,
    pub bytes: Vec<u8>,
    /// How many of the message's files are this rank's.
    pub files: u32,
}

/// A message, and the files that came with it.
pub(crate) type Received = (Message, Vec<OwnedFd>);

/// A message ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    bytes: Arc<[u8]>,
    files: Vec<Arc<OwnedFd>>,
}

impl Outgoing {
    pub fn new(message: &Message, files: Vec<Arc<OwnedFd>>) -> Outgoing {
        let mut bytes = vec![0; LENGTH_BYTES];
        // serialising plain values into memory cannot fail
        bytes = postcard::to_extend(message, bytes).expect("a message is plain values");
        let length = (bytes.len() - LENGTH_BYTES) as u32;
        bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        Outgoing { bytes: bytes.into(), files }
    }
}

impl From<&Message> for Outgoing {
    fn from(message: &Message) -> Self {
        Outgoing::new(message, Vec::new())
    }
}

const LENGTH_BYTES: usize = 4;
/// Bytes read at once: what memory grows by, whatever length a message claims to have.
const READ: usize = 64 << 10;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// The longest message taken.
    limit: usize,
    incoming: Vec<u8>,
    files: VecDeque<OwnedFd>,
    outgoing: VecDeque<Outgoing>,
    /// Bytes of the first outgoing message that have been sent.
    sent: usize,
    /// When the other end was heard last.
    pub heard: Instant,
    /// The other end sends no more.
    pub closed: bool,
}

impl Connection {
    /// Takes messages of at most `limit` bytes.
    pub fn new(stream: Stream, limit: usize) -> Connection {
        Connection {
            stream,
            limit,
            incoming: Vec::new(),
            files: VecDeque::new(),
            outgoing: VecDeque::new(),
            sent: 0,
            heard: Instant::now(),
            closed: false,
        }
    }

    pub fn carries_files(&self) -> bool {
        self.stream.carries_files()
    }

    /// Waits until there is something to receive or room to send.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        self.stream.wait(self.interest(), limit)
    }

    /// What to wait for.
    pub fn interest(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.closed);
        flags.set(PollFlags::OUT, !self.outgoing.is_empty());
        flags
    }

    /// Queues a message, and sends what the socket takes at once.
    pub fn send(&mut self, message: impl Into<Outgoing>) -> io::Result<()> {
        let mut message = message.into();
        if !self.carries_files() {
            message.files.clear();
        }
        self.outgoing.push_back(message);
        self.flush()
    }

    /// Sends what the socket takes.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some(message) = self.outgoing.front() {
            let files: Vec<_> = match self.sent {
                0 => message.files.iter().map(|file| file.as_fd()).collect(),
                _ => Vec::new(),
            };
            match self.stream.write(&message.bytes[self.sent..], &files) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error),
            }
            if self.sent == message.bytes.len() {
                self.sent = 0;
                self.outgoing.pop_front();
            }
        }
        Ok(())
    }

    /// Whether everything queued has been sent.
    pub fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Reads what has come. `closed` is set when no more will; messages before that are still returned.
    pub fn receive(&mut self) -> io::Result<Vec<Received>> {
        let mut files = Vec::new();
        let mut outcome = Ok(());
        while !self.closed {
            let from = self.incoming.len();
            self.incoming.resize(from + READ, 0);
            let read = self.stream.read(&mut self.incoming[from..], &mut files);
            self.incoming.truncate(from + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => self.closed = true,
                Ok(_) => self.heard = Instant::now(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_passing(&error) => continue,
                Err(error) => {
                    self.closed = true;
                    outcome = Err(error);
                }
            }
            if self.incoming.len() > self.limit + LENGTH_BYTES {
                break;
            }
        }
        self.files.extend(files);
        let messages = self.parse()?;
        // what came before an error is still worth reading; the error shows again as an end
        if messages.is_empty() { outcome.map(|()| messages) } else { Ok(messages) }
    }

    fn parse(&mut self) -> io::Result<Vec<Received>> {
        let invalid = |seen: String| io::Error::new(io::ErrorKind::InvalidData, seen);
        let mut messages = Vec::new();
        let mut rest = &self.incoming[..];
        while let Some((length, after)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > self.limit {
                return Err(invalid(format!("a message of {length} bytes, where {} are the limit", self.limit)));
            }
            let Some((bytes, after)) = after.split_at_checked(length) else { break };
            let message = postcard::from_bytes(bytes).map_err(|error| invalid(format!("no message: {error}")))?;
            let count = match &message {
                Message::Bring { values, .. } if self.stream.carries_files() => {
                    values.iter().fold(0, |all: usize, value| all.saturating_add(value.files as usize))
                }
                _ => 0,
            };
            if count > self.files.len() {
                return Err(invalid(format!("{} of {count} files came", self.files.len())));
            }
            messages.push((message, self.files.drain(..count).collect()));
            rest = after;
        }
        let parsed = self.incoming.len() - rest.len();
        self.incoming.drain(..parsed);
        if self.incoming.is_empty() {
            self.incoming = Vec::new();
        }
        if self.files.len() > MOST_FILES {
            return Err(invalid("more files came than any message has".into()));
        }
        Ok(messages)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    fn pair() -> (UnixStream, Connection) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, Connection::new(Stream::unix(theirs).unwrap(), 1000))
    }

    fn failed() -> Message {
        Message::Failed(Failure {
            kind: crate::error::ErrorKind::Remote,
            seen: "rank 3 died".into(),
            hint: Some("look there".into()),
        })
    }

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let (mut raw, mut connection) = pair();
        let bytes = [Outgoing::from(&failed()).bytes, Outgoing::from(&Message::Alive).bytes].concat();
        let mut messages = Vec::new();
        for byte in bytes {
            raw.write_all(&[byte]).unwrap();
            messages.extend(connection.receive().unwrap().into_iter().map(|(message, _)| message));
        }
        assert_eq!(messages, [failed(), Message::Alive]);
        drop(raw);
        assert!(connection.receive().unwrap().is_empty() && connection.closed);
    }

    #[test]
    fn files_come_with_their_message() {
        let (ours, mut theirs) = pair();
        let mut ours = Connection::new(Stream::unix(ours).unwrap(), 1000);
        let file = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let bring = |files| Message::Bring { round: 1, values: vec![Brought { rank: 2, bytes: vec![3], files }] };
        ours.send(&Message::Alive).unwrap();
        ours.send(Outgoing::new(&bring(2), vec![file.clone(), file])).unwrap();
        ours.send(&bring(0)).unwrap();
        let received = theirs.receive().unwrap();
        assert_eq!(received.iter().map(|(_, files)| files.len()).collect::<Vec<_>>(), [0, 2, 0]);
        assert_eq!(received[1].0, bring(2));
    }

    #[test]
    fn long_claims_are_refused_before_memory_is_taken() {
        let (mut raw, mut connection) = pair();
        raw.write_all(&u32::MAX.to_le_bytes()).unwrap();
        let error = connection.receive().unwrap_err();
        assert!(error.to_string().contains("4294967295 bytes, where 1000 are the limit"), "{error}");
        let (mut raw, mut connection) = pair();
        raw.set_nonblocking(true).unwrap();
        let _ = raw.write(&vec![0xff; 1 << 20]);
        assert!(connection.receive().is_err());
        assert!(connection.incoming.capacity() < 300_000, "{}", connection.incoming.capacity());
    }

    proptest! {
        #[test]
        fn no_bytes_are_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..300), framed: bool) {
            let (mut raw, mut connection) = pair();
            if framed {
                raw.write_all(&(bytes.len() as u32).to_le_bytes()).unwrap();
            }
            raw.write_all(&bytes).unwrap();
            drop(raw);
            let _ = connection.receive();
        }

        #[test]
        fn every_message_survives(round: u64, value in proptest::collection::vec(any::<u8>(), 0..200), text: String) {
            let (ours, mut theirs) = pair();
            let mut ours = Connection::new(Stream::unix(ours).unwrap(), 1000);
            let messages = [
                Message::Bring { round, values: vec![Brought { rank: round as u32, bytes: value.clone(), files: 0 }] },
                Message::Join { size: 3, rank: 1, name: text.chars().take(50).collect(), info: value.clone(), patience: round },
                Message::Everyone(vec![value, Vec::new()]),
                Message::Leave,
            ];
            messages.iter().for_each(|message| ours.send(message).unwrap());
            let received: Vec<_> = theirs.receive().unwrap().into_iter().map(|(message, _)| message).collect();
            prop_assert_eq!(received, messages);
        }
    }
}
