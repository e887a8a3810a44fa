//! Waits for the ranks, passes signals on, and ends the rest when one fails.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};

use super::ranks::{End, Ranks};
use super::signals::{Received, Signals};
use crate::exit::say;

/// What ends the others once one has failed.
struct Ending {
    code: u8,
    /// When those that are left are killed; `None` once they are.
    kill: Option<Instant>,
}

/// Runs them to their end and gives the exit code: of the first that failed, else 0.
pub fn supervise(ranks: &mut Ranks, signals: &Signals, grace: Duration) -> io::Result<u8> {
    let mut ending: Option<Ending> = None;
    loop {
        let ended = ranks.look()?;
        if ending.is_none()
            && let Some(end) = first_failure(&ended)
        {
            // They may hear of it by themselves, but not every program listens. A stopped one must go on to end.
            ranks.signal(Signal::SIGTERM);
            ranks.signal(Signal::SIGCONT);
            ending = Some(Ending { code: end.code(), kill: Some(Instant::now() + grace) });
        }
        if ranks.running().next().is_none() {
            break;
        }
        let kill = ending.as_mut().and_then(|ending| ending.kill.take_if(|kill| *kill <= Instant::now()));
        if kill.is_some() {
            say_killed(ranks, grace);
            ranks.signal(Signal::SIGKILL);
        }
        let left = ending.as_ref().and_then(|ending| ending.kill);
        let left = left.map(|kill| kill.saturating_duration_since(Instant::now()));
        for received in signals.wait(left)? {
            forward(ranks, received)?;
        }
    }
    ranks.finish(ending.is_some());
    Ok(ending.map_or(0, |ending| ending.code))
}

/// Names the first failure. Of several that are seen at once a killed rank goes first: the others may have failed of it.
fn first_failure(ended: &[(usize, nix::unistd::Pid, End)]) -> Option<End> {
    let failures = ended.iter().filter(|(_, _, end)| *end != End::Exited(0));
    let (rank, pid, end) = failures.min_by_key(|(_, _, end)| matches!(end, End::Exited(_)))?;
    say(format_args!("ferronickel run: rank {rank} (pid {pid}) {end}"));
    Some(*end)
}

fn say_killed(ranks: &Ranks, grace: Duration) {
    let left: Vec<_> = ranks.running().map(|rank| rank.to_string()).collect();
    let plural = if left.len() == 1 { "" } else { "s" };
    let (left, seconds) = (left.join(", "), grace.as_secs());
    say(format_args!("ferronickel run: rank{plural} {left} did not end within {seconds} s; killed"));
}

fn forward(ranks: &Ranks, received: Received) -> io::Result<()> {
    match received.by_terminal {
        true => ranks.signal_other_groups(received.signal),
        false => ranks.signal(received.signal),
    }
    if received.signal == Signal::SIGTSTP {
        // Stops here, so that the shell notices, until it sends SIGCONT, which is passed on like the others.
        raise(Signal::SIGSTOP)?;
    }
    Ok(())
}
