//! The thread that watches the other processes of a communicator.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{LAST_WORDS, Link, Shared};
use crate::bootstrap::connection::{Message, Outgoing, Received};
use crate::bootstrap::liveness::{BEAT, Patience};
use crate::bootstrap::session::{Packed, Session};
use crate::device::progress::{Failure, Progress};
use crate::error::ErrorKind;

/// How long after the end of a connection a message of another process may explain it.
const GRACE: Duration = Duration::from_millis(100);

pub(super) struct Monitor {
    shared: Arc<Shared>,
    progress: Arc<Progress>,
    /// Where exchanges take place, as long as there are any.
    session: Weak<Session>,
    /// The ranks of this process.
    local: Vec<usize>,
    links: Vec<Link>,
    patience: Patience,
    beat: Instant,
    /// The others have been told that all must stop.
    told: bool,
}

impl Monitor {
    pub fn new(
        shared: Arc<Shared>,
        progress: Arc<Progress>,
        session: Weak<Session>,
        local: Vec<usize>,
        links: Vec<Link>,
    ) -> Monitor {
        let (patience, beat) = (Patience::new(), Instant::now());
        Monitor { shared, progress, session, local, links, patience, beat, told: false }
    }

    /// Watches until it is told to end.
    pub fn run(&mut self) {
        let progress = self.progress.clone();
        progress.fail_if_it_panics("the thread that watches the other processes", || self.watch());
    }

    fn watch(&mut self) {
        while !self.shared.ending.load(Ordering::Acquire) {
            let pending = self.links.iter().any(|link| link.ended.is_some());
            self.wait(BEAT.saturating_sub(self.beat.elapsed()).min(if pending { GRACE } else { BEAT }));
            self.shared.alarm.clear();
            self.turn();
        }
        self.say_goodbye();
    }

    fn turn(&mut self) {
        let outgoing = std::mem::take(&mut *self.shared.outgoing.lock().unwrap_or_else(PoisonError::into_inner));
        outgoing.into_iter().for_each(|message| self.send(message));
        self.listen();
        self.judge();
        self.tell();
        if self.beat.elapsed() >= BEAT {
            self.beat = Instant::now();
            self.patience.tick();
            self.send_reports();
            self.look_for_silence();
        }
    }

    fn wait(&self, limit: Duration) {
        // what is closed would be ready for ever
        let open = self.links.iter().map(|link| &link.connection).filter(|connection| !connection.closed);
        let links = open.map(|connection| PollFd::from_borrowed_fd(connection.as_fd(), connection.interest()));
        let mut all: Vec<_> = std::iter::once(PollFd::new(&self.shared.alarm, PollFlags::IN)).chain(links).collect();
        // an interruption or an error shows again when the socket is used
        let _ = poll(&mut all, Timespec::try_from(limit).ok().as_ref());
    }

    /// Sends to every process that is still there. One that takes nothing is noticed when it is listened to.
    fn send(&mut self, message: impl Into<Outgoing>) {
        let message = message.into();
        for link in self.links.iter_mut().filter(|link| !link.connection.closed) {
            let _ = link.connection.send(message.clone());
        }
    }

    fn send_reports(&mut self) {
        let reports = self.local.iter().map(|&rank| self.progress.report(rank)).collect();
        self.send(&Message::Reports(reports));
    }

    fn listen(&mut self) {
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            if link.connection.closed {
                continue;
            }
            let received = link.connection.receive().and_then(|received| link.connection.flush().map(|()| received));
            let outcome = received.map(|messages| messages.into_iter().for_each(|message| self.hear(index, message)));
            self.notice(index, outcome);
        }
    }

    fn hear(&mut self, index: usize, (message, files): Received) {
        match message {
            Message::Bring { round, values } => {
                let mut files = files.into_iter();
                let unpack = |value: crate::bootstrap::connection::Brought| Packed {
                    rank: value.rank as usize,
                    bytes: value.bytes,
                    files: files.by_ref().take(value.files as usize).collect(),
                };
                let values = values.into_iter().map(unpack).collect();
                if let Some(session) = self.session.upgrade() {
                    session.receive(round, values);
                }
            }
            Message::Reports(reports) => {
                let link = &self.links[index];
                let theirs = reports.iter().filter(|report| link.ranks.contains(&(report.rank as usize)));
                theirs.for_each(|report| self.progress.mirror(report));
            }
            Message::Failed(failure) => {
                // everyone tells everyone
                self.told = true;
                self.progress.fail(failure);
                self.notify();
            }
            Message::Leave => self.links[index].left = true,
            Message::Alive | Message::Ready | Message::Join { .. } | Message::Welcome { .. } | Message::Everyone(_) => {
            }
        }
    }

    /// Looks whether a process is gone, and whether it may.
    fn notice(&mut self, index: usize, outcome: io::Result<()>) {
        let link = &mut self.links[index];
        let error = match outcome {
            Ok(()) if !link.connection.closed => return,
            Ok(()) => None,
            Err(error) => Some(error),
        };
        link.connection.closed = true;
        // its last reports have come before its goodbye
        if link.ranks.iter().all(|&rank| self.progress.has_departed(rank)) {
            link.ranks.iter().for_each(|&rank| self.progress.lose(rank, true));
        } else {
            link.ended = Some((Instant::now(), error));
        }
    }

    /// Says what has become of a process whose connection ended. One that gave up since all must stop is not the
    /// cause: the cause may still be on its way here.
    fn judge(&mut self) {
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            let due = |(since, _): &mut (Instant, _)| since.elapsed() >= GRACE || self.progress.failure().is_some();
            let Some((_, error)) = link.ended.take_if(due) else { continue };
            let (ranks, left) = (link.ranks.clone(), link.left);
            let name = self.name(&ranks);
            // one that has ended touches nothing any more; of one that is merely not heard that is not known
            let is_dead = error.as_ref().is_none_or(is_end);
            match error {
                Some(error) if !is_end(&error) => {
                    let code = Errno::from_io_error(&error);
                    let exhausted = code.is_some_and(|code| [Errno::MFILE, Errno::NFILE].contains(&code));
                    let hint = exhausted.then(|| "raise the limit on open files (ulimit -n)".into());
                    self.fail(format!("the connection to {name} failed: {error}"), hint);
                }
                _ if left => self.fail(format!("{name} left before its calls were done"), None),
                _ => self.fail(format!("{name} died: its connection closed"), None),
            }
            ranks.iter().for_each(|&rank| self.progress.lose(rank, is_dead));
        }
    }

    fn look_for_silence(&mut self) {
        let silent = |link: &&Link| !link.connection.closed && self.patience.is_over(link.connection.heard);
        let silent: Vec<_> = self.links.iter().filter(silent).map(|link| link.ranks.clone()).collect();
        for ranks in silent {
            self.fail(self.patience.verdict(&self.name(&ranks)), None);
            ranks.iter().for_each(|&rank| self.progress.lose(rank, false));
        }
    }

    /// The ranks of a process, as messages name them: each with host and process.
    fn name(&self, ranks: &[usize]) -> String {
        ranks.iter().map(|&rank| self.progress.name(rank)).collect::<Vec<_>>().join(" and ")
    }

    fn fail(&self, seen: String, hint: Option<String>) {
        self.progress.fail(Failure { kind: ErrorKind::Remote, seen, hint });
        self.notify();
    }

    fn notify(&self) {
        if let Some(session) = self.session.upgrade() {
            session.notify();
        }
    }

    /// Tells the others what they should not have to wait for: that all must stop, or that a rank has left.
    fn tell(&mut self) {
        if let Some(failure) = self.progress.failure().filter(|_| !self.told) {
            self.told = true;
            self.send(&Message::Failed(failure));
            self.notify();
        }
        let departed: Vec<_> = self.local.iter().copied().filter(|&rank| self.progress.has_departed(rank)).collect();
        let known = self.shared.farewells.lock().unwrap_or_else(PoisonError::into_inner).len();
        if departed.len() != known {
            self.send_reports();
            *self.shared.farewells.lock().unwrap_or_else(PoisonError::into_inner) = departed;
            self.shared.said.notify_all();
        }
    }

    fn say_goodbye(&mut self) {
        self.tell();
        self.send_reports();
        self.send(&Message::Leave);
        let deadline = Instant::now() + LAST_WORDS;
        while self.links.iter().any(|link| !link.connection.closed && !link.connection.is_flushed()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.wait(left);
            for link in &mut self.links {
                if link.connection.flush().is_err() {
                    link.connection.closed = true;
                }
            }
        }
    }
}

/// Whether an error is how the end of the other process looks.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}
