//! The dispatcher: one thread for all streams that looks, while there are calls, for a launch that nobody has begun,
//! and calls that stream's worker. It sleeps when there is nothing to do.
//!
//! It looks often enough that a launch lies some 20 µs. Where callers wait for what they queue it has nothing to find,
//! and each look takes a processor from somebody who computes: after looks in vain it looks less often, down to every
//! millisecond, until it finds something. So the first launch that nobody waits for may lie for two milliseconds then.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

use super::doze::Doze;
use super::stream::Shared;
use super::threads;

/// How long a launch lies before its stream's worker is called: between one and two of these.
const SHORTEST_TICK: Duration = Duration::from_micros(12);
/// The same, after looks in vain.
const LONGEST_TICK: Duration = Duration::from_micros(1000);
/// Ticks without a new launch after which the dispatcher sleeps.
const PATIENCE: u32 = 20;

static STREAMS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
static DOZE: Doze = Doze::new(AtomicBool::new(false));

/// Adds a stream to those that are looked at.
pub(super) fn watch(stream: &Arc<Shared>) {
    streams().push(Arc::downgrade(stream));
}

/// Tells the dispatcher that a launch was queued, or was left behind by the one who ran those before it.
#[inline(always)]
pub(super) fn notice() {
    DOZE.wake(call);
}

fn call() {
    static DISPATCHER: Mutex<Option<Thread>> = Mutex::new(None);
    let mut dispatcher = DISPATCHER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(dispatcher) = &*dispatcher {
        return dispatcher.unpark();
    }
    match threads::spawn("fnickel disp", dispatch) {
        Ok(handle) => *dispatcher = Some(handle.thread().clone()),
        Err(error) => {
            // the next launch tries again
            DOZE.lie_down();
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                let seen = "no thread for the dispatcher, streams run only when waited for until there is one";
                crate::diagnostics::log::warn!(-1, "{seen}: {error}");
            });
        }
    }
}

fn dispatch() {
    // a thread's naps are rounded up by 50 µs unless it asks for better
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    let mut seen = Vec::new();
    let (mut queued, mut quiet, mut tick) = (0, 0, SHORTEST_TICK);
    loop {
        let now = look(&mut seen);
        tick = if seen.is_empty() { LONGEST_TICK.min(2 * tick) } else { SHORTEST_TICK };
        // a launch that still waits is a worker that could not be called: try on
        quiet = if now == queued && seen.is_empty() { quiet + 1 } else { 0 };
        queued = now;
        if quiet < PATIENCE {
            std::thread::sleep(tick);
            continue;
        }
        // What waits behind a launch that runs is not its business now: whoever runs that one goes on, or tells it.
        let has_work = || {
            look(&mut seen);
            !seen.is_empty()
        };
        DOZE.sleep(has_work, std::thread::park);
        (quiet, tick) = (0, SHORTEST_TICK);
    }
}

/// Calls the workers of streams that have stood still since the last look. Returns how many launches were ever
/// queued, in all.
fn look(seen: &mut Vec<(u32, u64)>) -> u64 {
    let mut still = Vec::new();
    let mut queued = 0;
    let mut waiting = Vec::new();
    {
        let mut streams = streams();
        streams.retain(|stream| match stream.upgrade() {
            Some(stream) => {
                queued += stream.queued();
                waiting.extend(stream.stalled_at().map(|at| (stream, at)));
                true
            }
            None => false,
        });
    }
    for (stream, at) in waiting {
        let now = (stream.id(), at);
        if seen.contains(&now) {
            stream.summon();
        }
        still.push(now);
    }
    *seen = still;
    queued
}

fn streams() -> MutexGuard<'static, Vec<Weak<Shared>>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}
