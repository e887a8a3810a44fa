//! The connections between the processes of a communicator, one for each two, by which they keep in touch: in init
//! they exchange what they must know, then they let each other know where their ranks are, and that they live.
//!
//! Processes of one machine connect through Unix sockets, over which the files of shared memory travel.

mod connect;
mod monitor;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) use self::connect::{Unshared, connect};
use super::alarm::Alarm;
use super::connection::{Brought, Connection, Message, Outgoing};
use super::session::{Parcel, Session};
use super::stream::MOST_FILES;
use crate::device::host::threads;

/// The longest message between processes.
pub(super) const LONGEST: usize = 256 << 20;

/// How long a process that has ended still tries to tell the others.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The connections, and the thread that watches them; it says goodbye when this is dropped.
#[derive(Debug)]
pub(crate) struct Mesh {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// Messages for every other process.
    outgoing: Mutex<Vec<Outgoing>>,
    alarm: Alarm,
    ending: AtomicBool,
    /// The ranks of this process of which the others know that they have left.
    farewells: Mutex<Vec<usize>>,
    said: Condvar,
}

/// A connection to another process.
struct Link {
    connection: Connection,
    ranks: Vec<usize>,
    /// It has said goodbye.
    left: bool,
    /// When its connection ended without a word, and how, until it is known what to make of it.
    ended: Option<(Instant, Option<io::Error>)>,
}

impl Mesh {
    fn start(session: &Arc<Session>, links: Vec<Link>) -> io::Result<Arc<Mesh>> {
        let alarm = Alarm::new()?;
        let shared = Arc::new(Shared {
            outgoing: Mutex::default(),
            alarm: alarm.clone(),
            ending: AtomicBool::new(false),
            farewells: Mutex::default(),
            said: Condvar::new(),
        });
        let progress = session.progress.clone();
        let local = session.processes()[session.own()].clone();
        progress.set_alarm(move || alarm.raise());
        let mut monitor = monitor::Monitor::new(shared.clone(), progress, Arc::downgrade(session), local, links);
        let thread = threads::spawn("fnickel watch", move || monitor.run())?;
        Ok(Arc::new(Mesh { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// Brings what the ranks of this process have to exchange to every other process.
    pub fn bring(&self, round: u64, values: Vec<Parcel>) {
        let mut messages = Vec::new();
        let mut rest = values.into_iter().peekable();
        while rest.peek().is_some() {
            let (mut brought, mut files) = (Vec::new(), Vec::new());
            while let Some(parcel) = rest.next_if(|next| files.len() + next.files.len() <= MOST_FILES) {
                brought.push(Brought {
                    rank: parcel.rank as u32,
                    bytes: parcel.bytes,
                    files: parcel.files.len() as u32,
                });
                files.extend(parcel.files);
            }
            messages.push(Outgoing::new(&Message::Bring { round, values: brought }, files));
        }
        self.shared.outgoing.lock().unwrap_or_else(PoisonError::into_inner).extend(messages);
        self.shared.alarm.raise();
    }

    /// Waits a little until the others know that `rank`, which has departed, has left.
    pub fn say_farewell(&self, rank: usize) {
        self.shared.alarm.raise();
        let farewells = self.shared.farewells.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |farewells: &mut Vec<usize>| !farewells.contains(&rank);
        drop(self.shared.said.wait_timeout_while(farewells, LAST_WORDS, known));
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.shared.alarm.raise();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // it ends within its time for last words; in a forked child there is no such thread, and it may be the one that
            // has let go of the mesh last
            if !crate::fork::is_child() && thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
