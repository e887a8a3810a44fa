//! A rank whose root is in another process.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Comer, Everyone};
use crate::bootstrap::connection::{Connection, Message};
use crate::bootstrap::door;
use crate::bootstrap::handshake::{Kind, Purpose};
use crate::bootstrap::liveness::{BEAT, Patience};
use crate::bootstrap::unique_id::UniqueId;
use crate::device::progress::Failure;
use crate::error::{Error, ErrorKind, Result};

/// What a rank may say of itself, and so how long the answer for each may be.
const LONGEST_INFO: usize = 64 << 10;
/// How long a root is looked for that must be there already: its process made the id.
const FIND: Duration = Duration::from_secs(2);
/// How long a root has to answer what it is asked.
const ANSWER: Duration = Duration::from_secs(10);

/// Goes to the root, and waits for everyone there.
pub(super) fn meet(comer: &Comer<'_>) -> Result<(Everyone, Visit)> {
    let deadline = Instant::now() + comer.timeout;
    let limit = comer.size.saturating_mul(LONGEST_INFO).saturating_add(LONGEST_INFO).min(1 << 30);
    let mut visit = Visit {
        size: comer.size,
        connection: Connection::new(find(comer)?, limit),
        host: format!("the root at {}", places(comer)),
        patience: Patience::new(),
        beat: Instant::now(),
        lost: None,
    };
    let (size, rank) = (comer.size as u32, comer.rank as u32);
    let patience = u64::try_from(comer.timeout.as_millis()).unwrap_or(u64::MAX);
    let join = Message::Join { size, rank, name: comer.name.into(), info: comer.info.clone(), patience };
    visit.connection.send(&join).map_err(|error| visit.lost(&error))?;
    loop {
        if let Some(everyone) = visit.listen(BEAT)? {
            return Ok((everyone, visit));
        }
        // the root says who is missing; it is late only if it is not right itself
        if Instant::now() > deadline + ANSWER {
            let seen = format!("{} gave no answer within {} s", visit.host, (comer.timeout + ANSWER).as_secs_f64());
            return Err(Error::new(ErrorKind::Timeout, seen));
        }
    }
}

/// Tells the root, if it is there, why a rank will not come.
pub(super) fn give_up(id: &UniqueId, size: usize, rank: usize, failure: &Failure) {
    let comer = Comer { id, size, rank, name: "", info: Vec::new(), timeout: FIND };
    let Ok(stream) = find(&comer) else { return };
    let mut connection = Connection::new(stream, LONGEST_INFO);
    let _ = connection.send(&Message::Failed(failure.clone()));
    let deadline = Instant::now() + FIND;
    while !connection.is_flushed() && connection.flush().is_ok() && Instant::now() < deadline {
        let _ = connection.wait(BEAT);
    }
}

fn places(comer: &Comer<'_>) -> String {
    let addresses: Vec<_> = comer.id.addresses().iter().map(ToString::to_string).collect();
    addresses.join(" or ")
}

fn find(comer: &Comer<'_>) -> Result<crate::bootstrap::stream::Stream> {
    let agreed = comer.id.agreed();
    let patience = if agreed { comer.timeout } else { FIND.min(comer.timeout) };
    let deadline = Instant::now() + patience;
    let purpose = Purpose { id: comer.id.public_number(), kind: Kind::Join, from: comer.rank as u32, to: 0 };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let found = door::connect(&comer.id.addresses(), comer.id.secret(), purpose, left.min(ANSWER), &mut || false);
        let error = match found {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if left.is_zero() || error.kind() == io::ErrorKind::PermissionDenied {
            let seen = format!("the root cannot be reached at {}: {error}", places(comer));
            let hint = if agreed {
                "start rank 0 on the machine that NCCL_COMM_ID names, with the same FERRONICKEL_SECRET on every rank"
            } else {
                "the process that made the unique id must live until all ranks have come, and its address must be \
                 reachable from here (NCCL_SOCKET_IFNAME chooses it); an id makes one communicator"
            };
            return Err(Error::new(ErrorKind::Remote, seen).hint(hint));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A connection to the root.
#[derive(Debug)]
pub(crate) struct Visit {
    size: usize,
    connection: Connection,
    /// What is known of the root's process.
    host: String,
    patience: Patience,
    /// When the root was told last that this rank is alive.
    beat: Instant,
    /// What has become of a rank, once the root has said so.
    lost: Option<Failure>,
}

impl Visit {
    /// Waits a little for what the root says. None if it does not say that all have come.
    fn listen(&mut self, limit: Duration) -> std::result::Result<Option<Everyone>, Failure> {
        if self.beat.elapsed() >= BEAT {
            self.beat = Instant::now();
            self.patience.tick();
            if self.patience.is_over(self.connection.heard) {
                return Err(remote(self.patience.verdict(&self.host)));
            }
            self.connection.send(&Message::Alive).map_err(|error| self.lost(&error))?;
        }
        let _ = self.connection.wait(limit);
        let received = self.connection.receive().and_then(|received| self.connection.flush().map(|()| received));
        for (message, _) in received.map_err(|error| self.lost(&error))? {
            match message {
                Message::Everyone(infos) if infos.len() == self.size => return Ok(Some(Arc::new(infos))),
                Message::Everyone(infos) => {
                    return Err(remote(format!("{} answered with {} ranks", self.host, infos.len())));
                }
                Message::Failed(failure) => return Err(failure),
                Message::Welcome { process, ranks } => self.host = describe(&process, &ranks),
                _ => {}
            }
        }
        if self.connection.closed { Err(self.lost(&io::Error::other("its connection closed"))) } else { Ok(None) }
    }

    fn lost(&self, error: &io::Error) -> Failure {
        remote(format!("{} died: {error}", self.host))
    }

    /// What has become of a rank that had come, or of the root.
    pub fn look(&mut self) -> Option<Failure> {
        if self.lost.is_none() {
            self.lost = self.listen(Duration::ZERO).err();
        }
        self.lost.clone()
    }

    /// This rank will not go on: the root tells the others why.
    pub fn fail(mut self, failure: &Failure) {
        let _ = self.connection.send(&Message::Failed(failure.clone()));
    }

    /// The root need not watch over this rank any more.
    pub fn end(mut self) {
        // a few bytes into a socket that has room; without them the root tells of a death that nobody minds any more
        let _ = self.connection.send(&Message::Ready);
    }
}

fn remote(seen: String) -> Failure {
    Failure { kind: ErrorKind::Remote, seen, hint: None }
}

/// The root's process, as messages name it.
fn describe(process: &str, ranks: &[u32]) -> String {
    match ranks {
        [] => format!("the root's process ({process})"),
        [rank] => format!("rank {rank} ({process}), which holds the root,"),
        _ => {
            let ranks: Vec<_> = ranks.iter().map(u32::to_string).collect();
            format!("ranks {} ({process}), which hold the root,", ranks.join(", "))
        }
    }
}
