//! The watchdog: a collective that makes no progress is reported, once, with who is missing.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Progress;
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
    epoch: u64,
    since: Option<Instant>,
    reported: bool,
}

impl Watch {
    /// No report at all if `patience` is zero.
    pub fn new(ranks: usize, patience: Duration) -> Self {
        Watch { waits: (0..ranks).map(|_| Mutex::default()).collect(), patience }
    }

    /// Looks how long `rank` has waited in call number `epoch`; after too long, the log says so, once.
    pub fn look(&self, progress: &Progress, rank: usize, epoch: u64) {
        if self.patience.is_zero() {
            return;
        }
        let mut wait = self.waits[rank].lock().unwrap_or_else(PoisonError::into_inner);
        if wait.epoch != epoch {
            *wait = Wait { epoch, since: Some(Instant::now()), reported: false };
        } else if !wait.reported && wait.since.is_some_and(|since| since.elapsed() >= self.patience) {
            wait.reported = true;
            drop(wait);
            log::announce(&describe(progress, rank, self.patience));
        }
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
    let behind = (0..progress.ranks.len()).filter(|&peer| peer != rank).filter_map(|peer| {
        let report = progress.report(peer);
        (report.started < own.started).then(|| {
            let finished = report.done;
            let name = progress.name(peer);
            if report.started == 0 {
                format!("{name} (has started no call)")
            } else {
                let call = CallDescription::from_bits(report.call);
                format!("{name} (last started call {} {call}, last finished {finished})", report.started)
            }
        })
    });
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
        own.done,
    )
}
