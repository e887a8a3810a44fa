//! How many channels a communicator has, and how many of them a call uses.

use crate::config::{Config, variables};
use crate::device::work::Kernel;
use crate::transport::{Roads, Transport};

/// Ranks beyond which connecting each to each costs more memory than it saves time.
const DIRECT_RANKS: usize = 64;
/// Channels of a communicator, at most.
const MOST: usize = 32;
/// Bytes from which a further channel is worth it.
const BYTES_PER_CHANNEL: usize = 256 << 10;

/// Whether every rank can reach every other's memory, which the direct algorithms need; or why not.
pub(crate) fn direct(roads: &Roads) -> Result<(), String> {
    if roads.ranks() > DIRECT_RANKS {
        return Err(format!(
            "{} ranks are more than the {DIRECT_RANKS} that are connected each to each",
            roads.ranks()
        ));
    }
    match roads.pairs().find(|&(from, to)| roads.transport(from, to) == Transport::Net) {
        Some((from, to)) => Err(format!("ranks {from} and {to} are connected by {}", Transport::Net)),
        None => Ok(()),
    }
}

/// The channels of a communicator: four for two ranks, fewer where each rank has more peers or the network limits,
/// within `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS`.
pub(crate) fn count(roads: &Roads, config: &Config) -> usize {
    let usual = match (roads.slowest(), roads.ranks()) {
        (_, 1) => 1,
        (Transport::Net, _) => 2,
        (_, 2) => 4,
        (_, 3..=8) => 2,
        _ => 1,
    };
    // NCCL takes a number below one as "not set"
    let limit = |variable| usize::try_from(config.integer(variable).value).ok().filter(|&limit| limit > 0);
    let most = limit(&variables::MAX_NCHANNELS).unwrap_or(MOST).min(MOST);
    let least = limit(&variables::MIN_NCHANNELS).unwrap_or(1).min(most);
    usual.clamp(least, most)
}

/// The channels that a call of `bytes` bytes uses, of `channels` that there are.
pub(crate) fn for_call(kernel: Kernel, bytes: usize, channels: usize) -> usize {
    match kernel {
        Kernel::RingLl | Kernel::RingSimple | Kernel::TwoShotDirect | Kernel::TwoShotStaged => {
            (bytes / BYTES_PER_CHANNEL).clamp(1, channels)
        }
        // one inbox, or one set of links between any two ranks, is enough
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::presence::Presence;
    use crate::transport::{Faults, PeerInfo};

    fn roads(ranks: usize, config: &Config) -> Roads {
        let peer = |rank| PeerInfo::new(Presence::new(rank, config, None), rank as u32, config);
        Roads::choose(&(0..ranks).map(peer).collect::<Vec<_>>(), &Faults::default()).unwrap()
    }

    fn with(settings: &[(&str, &str)]) -> Config {
        settings.iter().fold(Config::default(), |config, (name, value)| config.with(name, value).unwrap())
    }

    #[test]
    fn two_ranks_have_four_channels_and_two_on_the_network() {
        let config = with(&[]);
        assert_eq!(count(&roads(2, &config), &config), 4);
        let net = with(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")]);
        assert_eq!(count(&roads(2, &net), &net), 2);
        assert!(direct(&roads(2, &net)).unwrap_err().contains("ranks 0 and 1 are connected by NET/Socket/0"));
        assert_eq!(count(&roads(1, &config), &config), 1);
        assert!(direct(&roads(64, &config)).is_ok() && direct(&roads(65, &config)).is_err());
    }

    #[test]
    fn the_settings_bound_it() {
        let config = with(&[("NCCL_MIN_NCHANNELS", "6")]);
        assert_eq!(count(&roads(2, &config), &config), 6);
        let config = with(&[("NCCL_MIN_NCHANNELS", "6"), ("NCCL_MAX_NCHANNELS", "3")]);
        assert_eq!(count(&roads(2, &config), &config), 3);
    }

    #[test]
    fn small_calls_use_one_channel() {
        assert_eq!(for_call(Kernel::OneShotLl, 0, 4), 1);
        assert_eq!(for_call(Kernel::RingSimple, 1 << 10, 4), 1);
        assert_eq!(for_call(Kernel::RingSimple, 600 << 10, 4), 2);
        assert_eq!(for_call(Kernel::TwoShotDirect, 1 << 30, 4), 4);
    }
}
