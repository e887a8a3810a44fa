//! When a process that says nothing counts as lost.
//!
//! A process that dies closes its connections, which is noticed at once. One that is stopped closes nothing; all it
//! does is to say no more.

use std::time::{Duration, Instant};

/// How often processes let each other know that they are alive.
pub(crate) const BEAT: Duration = Duration::from_millis(500);
/// How long a process may say nothing.
const SILENCE: Duration = Duration::from_secs(6);

/// A watcher's patience. If it has itself been stopped for a while, it has heard nobody, and blames nobody.
#[derive(Debug)]
pub(crate) struct Patience {
    ticked: Instant,
    /// Silence counts from here on.
    from: Instant,
}

impl Patience {
    pub fn new() -> Patience {
        let now = Instant::now();
        Patience { ticked: now, from: now }
    }

    /// Called every [`BEAT`].
    pub fn tick(&mut self) {
        let now = Instant::now();
        if now - self.ticked > BEAT * 4 {
            self.from = now;
        }
        self.ticked = now;
    }

    /// Whether one that was `heard` last at that time has been silent for too long.
    pub fn is_over(&self, heard: Instant) -> bool {
        self.ticked.saturating_duration_since(heard.max(self.from)) > SILENCE
    }

    /// What is said of one that has been silent for too long.
    pub fn verdict(&self, name: &str) -> String {
        format!("{name} has been silent for {} s: it is stopped, or its machine is not reached", SILENCE.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_noticed_but_not_by_one_that_was_stopped_itself() {
        let mut patience = Patience::new();
        let start = patience.from;
        patience.ticked = start + SILENCE;
        assert!(!patience.is_over(start));
        patience.ticked = start + SILENCE + BEAT;
        assert!(patience.is_over(start) && !patience.is_over(start + BEAT * 2));
        // a tick long after the last one
        patience.ticked = Instant::now().checked_sub(SILENCE * 2).unwrap_or(start);
        patience.tick();
        assert!(!patience.is_over(start));
    }
}
