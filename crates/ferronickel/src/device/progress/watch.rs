//! The watchdog: a collective that makes no progress is reported, once, with who is missing.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Progress, Report};
use crate::diagnostics::log;
use crate::types::CallDescription;

/// Since when each rank of this process has waited in its call.
#[derive(Debug)]
pub(super) struct Watch {
    waits: Box<[Mutex<Wait>]>,
    patience: Duration,
}

#[derive(Clone, Copy, Default, Debug)]
struct Wait {
    call: Waiting,
    since: Option<Instant>,
    reported: bool,
}

/// In what a rank waits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Waiting {
    #[default]
    Nothing,
    /// The collective with this number.
    Collective(u64),
    /// The launch with this number, which exchanges messages, for so many ranks.
    Exchange(u64, usize),
}

impl Watch {
    /// No report at all if `patience` is zero.
    pub fn new(ranks: usize, patience: Duration) -> Self {
        Watch { waits: (0..ranks).map(|_| Mutex::default()).collect(), patience }
    }

    /// Looks how long `rank` has waited in call number `epoch`; after too long, the log says so, once.
    pub fn look(&self, progress: &Progress, rank: usize, epoch: u64) {
        let (_, report) = self.wait(rank, Waiting::Collective(epoch));
        if report {
            log::announce(&describe(progress, rank, self.patience));
        }
    }

    /// The same for launch number `turn`, which exchanges messages and waits for `peers`. Returns how long it has waited
    /// for just so many.
    pub fn look_at_exchange(
        &self,
        progress: &Progress,
        rank: usize,
        peers: &[usize],
        turn: u64,
        call: u64,
    ) -> Duration {
        let (waited, report) = self.wait(rank, Waiting::Exchange(turn, peers.len()));
        if report {
            let peers: Vec<_> = peers.iter().map(|&peer| describe_peer(progress, &progress.report(peer))).collect();
            log::announce(&format!(
                "{}: a group of messages that begins with {} has made no progress for {} s; it waits for {}",
                progress.name(rank),
                CallDescription::from_bits(call),
                self.patience.as_secs_f64(),
                peers.join(", "),
            ));
        }
        waited
    }

    /// How long `rank` has waited in `call`, and whether that is to be reported.
    fn wait(&self, rank: usize, call: Waiting) -> (Duration, bool) {
        let mut wait = self.waits[rank].lock().unwrap_or_else(PoisonError::into_inner);
        if wait.call != call {
            *wait = Wait { call, since: Some(Instant::now()), reported: false };
        }
        let waited = wait.since.map_or(Duration::ZERO, |since| since.elapsed());
        let report = !self.patience.is_zero() && !wait.reported && waited >= self.patience;
        wait.reported |= report;
        (waited, report)
    }
}

/// Looks, for somebody who waits for calls of a rank that others are to run, whether they begin. Once one has, it looks
/// for itself.
#[derive(Default)]
pub(crate) struct StartWatch {
    done: u64,
    since: Option<Instant>,
    told: bool,
}

impl StartWatch {
    /// After too long, once, what is to be announced.
    #[cold]
    pub fn look(&mut self, progress: &Progress, rank: usize) -> Option<String> {
        let (done, patience) = (progress.finished(rank), progress.watch.patience);
        if done != self.done || !progress.is_between_calls(rank) {
            (self.done, self.since) = (done, None);
            return None;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.told || patience.is_zero() || since.elapsed() < patience {
            return None;
        }
        self.told = true;
        Some(format!(
            "{}: call {} has not begun for {} s, and what waits for it cannot go on: no thread runs its stream. \
             Synchronize that stream; NCCL_DEBUG=WARN shows if a thread was refused",
            progress.name(rank),
            done + 1,
            patience.as_secs_f64(),
        ))
    }
}

/// Where `rank` is, and who keeps it waiting: those that are behind it, not those that are ahead.
pub(super) fn describe(progress: &Progress, rank: usize, patience: Duration) -> String {
    let own = progress.report(rank);
    let peers = (0..progress.ranks.len()).filter(|&peer| peer != rank).map(|peer| progress.report(peer));
    let behind = peers.filter(|report| report.started < own.started).map(|report| describe_peer(progress, &report));
    let behind: Vec<_> = behind.collect();
    let missing = match behind.len() {
        0 => "every rank has started it: a rank is stopped or slow inside, or a road is stuck".into(),
        _ => format!("missing: {}", behind.join(", ")),
    };
    format!(
        "{}: call {} {} has made no progress for {} s; last finished call {}; {missing}",
        progress.name(rank),
        own.started,
        CallDescription::from_bits(own.call),
        patience.as_secs_f64(),
        own.finished,
    )
}

/// What a rank did last.
fn describe_peer(progress: &Progress, report: &Report) -> String {
    let name = progress.name(report.rank as usize);
    if report.started == 0 {
        return format!("{name} (has started no call)");
    }
    let (call, finished) = (CallDescription::from_bits(report.call), report.finished);
    format!("{name} (last started call {} {call}, last finished {finished})", report.started)
}
