//! The root's thread: it serves the ranks of other processes.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Root, missing};
use crate::bootstrap::alarm::Alarm;
use crate::bootstrap::connection::{Connection, Message};
use crate::bootstrap::door::Door;
use crate::bootstrap::liveness::{BEAT, Patience};
use crate::device::host::threads;
use crate::device::progress::Failure;
use crate::diagnostics::log::warn;
use crate::error::ErrorKind;

/// The longest message that a rank may send: what it says of itself.
const LONGEST: usize = 64 << 10;
/// No clock runs longer than this.
const LONGEST_PATIENCE: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long the root stays, once the outcome is known, for those that have not taken it yet.
const LINGER: Duration = Duration::from_secs(5);

struct Server {
    root: Arc<Root>,
    /// Open as long as ranks may come.
    _door: Arc<Door>,
    alarm: Alarm,
    guests: Vec<Guest>,
    patience: Patience,
    /// When the first guest, or the root itself, will have waited for too long, and for how long then.
    deadline: (Instant, Duration),
    /// Ranks of this process that the guests have been told of.
    announced: usize,
    /// The guests have been told of a rank that was lost after all had come.
    told_of_loss: bool,
}

/// A rank of another process.
struct Guest {
    connection: Connection,
    /// Who it is, once it has said so.
    rank: Option<(usize, String)>,
    /// It knows the outcome.
    told: bool,
    /// It is connected to the others.
    ready: bool,
}

impl Guest {
    /// Whether the others would wait for it in vain if it died.
    fn is_needed(&self) -> bool {
        !self.ready && self.rank.is_some()
    }
}

/// Starts the thread; it ends by itself.
pub(super) fn start(root: Arc<Root>, door: Arc<Door>, alarm: Alarm) -> io::Result<()> {
    let (guests, patience) = (Vec::new(), Patience::new());
    let deadline = (Instant::now() + root.timeout, root.timeout);
    let mut server = Server { root, _door: door, alarm, guests, patience, deadline, announced: 0, told_of_loss: false };
    // somebody is waiting already
    server.alarm.raise();
    threads::spawn("fnickel root", move || server.run()).map(drop)
}

impl Server {
    fn run(&mut self) {
        let mut concluded = None;
        let mut beat = Instant::now();
        loop {
            self.wait();
            self.alarm.clear();
            self.welcome();
            self.listen();
            if beat.elapsed() >= BEAT {
                beat = Instant::now();
                self.patience.tick();
                self.each(|guest| guest.connection.send(&Message::Alive));
                self.look_for_silence();
            }
            self.watch_clock();
            if self.root.lock().outcome.is_some() {
                let since = *concluded.get_or_insert_with(Instant::now);
                self.tell();
                if self.guests.is_empty() && self.is_complete() || self.has_failed() && since.elapsed() > LINGER {
                    return;
                }
            }
        }
    }

    fn has_failed(&self) -> bool {
        matches!(self.root.lock().outcome, Some(Err(_)))
    }

    /// Whether nobody can come any more: after a failure ranks may still be on their way.
    fn is_complete(&self) -> bool {
        let state = self.root.lock();
        matches!(state.outcome, Some(Ok(_))) && state.arrived.is_empty()
    }

    fn wait(&self) {
        // what is closed would be ready for ever
        let open = self.guests.iter().map(|guest| &guest.connection).filter(|connection| !connection.closed);
        let guests = open.map(|connection| PollFd::from_borrowed_fd(connection.as_fd(), connection.interest()));
        let mut all: Vec<_> = std::iter::once(PollFd::new(&self.alarm, PollFlags::IN)).chain(guests).collect();
        let _ = poll(&mut all, Timespec::try_from(BEAT).ok().as_ref());
    }

    /// Takes in those that have arrived, and says which ranks are in this process.
    fn welcome(&mut self) {
        let (arrived, local) = {
            let mut state = self.root.lock();
            (std::mem::take(&mut state.arrived), state.local.clone())
        };
        let news = local.len() != self.announced;
        self.announced = local.len();
        let message = Message::Welcome { process: crate::bootstrap::presence::process_name(), ranks: local };
        if news {
            self.each(|guest| guest.connection.send(&message));
        }
        for stream in arrived {
            let mut guest =
                Guest { connection: Connection::new(stream, LONGEST), rank: None, told: false, ready: false };
            if guest.connection.send(&message).is_ok() {
                self.guests.push(guest);
            }
        }
    }

    /// Does something with every guest; one that it cannot be done with is gone.
    fn each(&mut self, action: impl Fn(&mut Guest) -> io::Result<()>) {
        for guest in &mut self.guests {
            if action(guest).is_err() {
                guest.connection.closed = true;
            }
        }
    }

    fn listen(&mut self) {
        for index in 0..self.guests.len() {
            let guest = &mut self.guests[index];
            let received = guest.connection.receive().and_then(|received| guest.connection.flush().map(|()| received));
            match received {
                Ok(messages) => messages.into_iter().for_each(|(message, _)| self.hear(index, message)),
                Err(error) => {
                    guest.connection.closed = true;
                    if !guest.ready {
                        warn!(-1, "Bootstrap : dropped a rank's connection to the root: {error}");
                    }
                }
            }
        }
        let gone: Vec<_> = self.guests.extract_if(.., |guest| guest.connection.closed).collect();
        for (_, name) in gone.into_iter().filter(Guest::is_needed).filter_map(|guest| guest.rank) {
            self.lose(format!("{name} died in init: its connection to the root closed"));
        }
    }

    fn hear(&mut self, index: usize, message: Message) {
        let guest = &mut self.guests[index];
        guest.ready |= matches!(message, Message::Ready | Message::Failed(_));
        if let Message::Failed(failure) = &message {
            self.root.lose(failure.clone());
        }
        if let Message::Join { size, rank, name, info, patience } = message {
            let patience = Duration::from_millis(patience).min(self.root.timeout.max(LONGEST_PATIENCE));
            self.deadline = self.deadline.min((Instant::now() + patience, patience));
            let (size, rank) = (size as usize, rank as usize);
            let mut state = self.root.lock();
            let admitted = if size > LONGEST * 64 {
                Err(Failure {
                    kind: ErrorKind::InvalidArgument,
                    seen: format!("{name} says that there are {size} ranks"),
                    hint: None,
                })
            } else {
                self.root.admit(&mut state, size, rank, info)
            };
            drop(state);
            match admitted {
                Ok(()) => guest.rank = Some((rank, name)),
                Err(failure) => {
                    guest.told = true;
                    let _ = guest.connection.send(&Message::Failed(failure));
                }
            }
        }
    }

    fn lose(&self, seen: String) {
        self.root.lose(Failure { kind: ErrorKind::Remote, seen, hint: None });
    }

    fn look_for_silence(&mut self) {
        let silent = |guest: &&Guest| guest.is_needed() && self.patience.is_over(guest.connection.heard);
        let silent = self.guests.iter().filter(silent).filter_map(|guest| guest.rank.as_ref());
        let verdicts: Vec<_> = silent.map(|(_, name)| self.patience.verdict(name)).collect();
        verdicts.into_iter().for_each(|verdict| self.lose(verdict));
    }

    /// There may be no rank in this process whose time could run out.
    fn watch_clock(&self) {
        let mut state = self.root.lock();
        if state.outcome.is_none() && state.size.is_some() && Instant::now() > self.deadline.0 {
            let failure = missing(&state, self.deadline.1);
            self.root.fail(&mut state, failure);
        }
    }

    fn tell(&mut self) {
        let message = match self.root.lock().outcome.clone() {
            Some(Ok(everyone)) => Message::Everyone(everyone.to_vec()),
            Some(Err(failure)) => Message::Failed(failure),
            None => return,
        };
        let outgoing = crate::bootstrap::connection::Outgoing::from(&message);
        for guest in self.guests.iter_mut().filter(|guest| !guest.told) {
            guest.told = true;
            let _ = guest.connection.send(outgoing.clone());
        }
        let lost = self.root.lock().lost.clone();
        if let Some(lost) = lost.filter(|_| !self.told_of_loss) {
            self.told_of_loss = true;
            self.each(|guest| if guest.ready { Ok(()) } else { guest.connection.send(&Message::Failed(lost.clone())) });
        }
    }
}
