//! How much memory there is, and how large a message may be in it.

use std::fs;
use std::path::{Path, PathBuf};

use super::size::in_words;
use crate::exit::Failure;

/// What a rank needs besides its two buffers: its threads' stacks, the library's own buffers, and the chunks that
/// are checked.
const PER_RANK: u64 = 8 << 20;

/// Left to the rest of the machine: an eighth of what is available, but no more than this.
const MOST_RESERVED: u64 = 1 << 30;

/// The largest message, of `max` bytes at most, for which `ranks` ranks have memory: each needs a buffer to send from
/// and one to receive into, longer by `unaligned` bytes. It is an error if not even `min` bytes fit.
pub fn largest_message(min: u64, max: u64, ranks: u64, unaligned: u64, available: u64) -> Result<u64, Failure> {
    let usable = available - (available / 8).min(MOST_RESERVED);
    let per_rank = usable / ranks;
    let fits = per_rank.saturating_sub(PER_RANK) / 2;
    let fits = fits.saturating_sub(unaligned) & !15;
    if fits >= max {
        return Ok(max);
    }
    if fits < min || fits == 0 {
        let message = format!(
            "{ranks} {} with two buffers of {} each do not fit the {} of memory that are available",
            if ranks == 1 { "rank" } else { "ranks" },
            in_words(min),
            in_words(available),
        );
        return Err(Failure::usage(message).with_hint("use fewer ranks (-t, -g), a smaller -b, or a smaller -u"));
    }
    Ok(fits)
}

/// Bytes that can still be used: what the machine has available, or less where a control group or a limit of the
/// process says so. Unknown is as good as unlimited.
pub fn available() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:"));
    [machine, control_groups(), address_space()].into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// Bytes of memory that this process has resident.
pub fn resident() -> u64 {
    fs::read_to_string("/proc/self/status").ok().and_then(|text| field(&text, "VmRSS:")).unwrap_or(0)
}

/// A field in kB of a file in /proc, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// What the limit on the address space leaves.
fn address_space() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let used = fs::read_to_string("/proc/self/status").ok().and_then(|text| field(&text, "VmSize:")).unwrap_or(0);
    Some(limit.saturating_sub(used))
}

/// What the tightest control group leaves, of the process's own and all above it.
fn control_groups() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(group_directory).flat_map(|(root, group)| left_in_groups(&root, &group)).min()
}

/// The folder that describes a line of /proc/self/cgroup, and the root of its hierarchy.
fn group_directory(line: &str) -> Option<(PathBuf, PathBuf)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let root = match controllers {
        "" => PathBuf::from("/sys/fs/cgroup"),
        controllers if controllers.split(',').any(|name| name == "memory") => PathBuf::from("/sys/fs/cgroup/memory"),
        _ => return None,
    };
    let group = root.join(path.trim_start_matches('/'));
    Some((root, group))
}

/// What each group from `group` up to `root` leaves.
fn left_in_groups(root: &Path, group: &Path) -> Vec<u64> {
    group.ancestors().take_while(|directory| directory.starts_with(root)).filter_map(left_in_group).collect()
}

fn left_in_group(directory: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes")).unwrap_or(0);
    // Cached files count as used, but give way.
    let statistics = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let cached = statistics.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_fits_stays_as_it_is() {
        assert_eq!(largest_message(8, GIB, 2, 0, 64 * GIB), Ok(GIB));
        assert_eq!(largest_message(8, GIB, 2, 0, u64::MAX), Ok(GIB));
    }

    #[test]
    fn what_does_not_fit_is_reduced() {
        let fits = largest_message(8, 1 << 40, 4, 12, 16 * GIB).unwrap();
        assert!(fits.is_multiple_of(16) && fits < 2 * GIB && fits > GIB, "{fits}");
        assert!(4 * (2 * (fits + 12) + PER_RANK) <= 15 * GIB);
    }

    #[test]
    fn if_not_even_the_smallest_fits_it_says_what_there_is() {
        let failure = largest_message(GIB, GIB, 8, 0, 4 * GIB).unwrap_err();
        assert!(failure.message.contains("8 ranks") && failure.message.contains("4 GiB"), "{failure}");
        assert!(largest_message(0, 64, 4096, 0, GIB).is_err());
        assert!(largest_message(8, 64, 1, u64::MAX, GIB).is_err());
    }

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(available() > 0);
        assert!(resident() > 0);
    }

    #[test]
    fn fields_are_in_kilobytes() {
        let text = "MemTotal:       8 kB\nMemAvailable:       3 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(3072));
        assert_eq!(field(text, "MemFree:"), None);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        let write = |directory: &Path, name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
        write(&group, "memory.max", "max\n");
        write(&group, "memory.current", "500\n");
        write(&root.path().join("a"), "memory.max", "1000\n");
        write(&root.path().join("a"), "memory.current", "700\n");
        write(&root.path().join("a"), "memory.stat", "anon 1\ninactive_file 100\n");
        assert_eq!(left_in_groups(root.path(), &group), [400]);
    }

    #[test]
    fn both_generations_of_groups_are_found() {
        let (root, group) = group_directory("0::/user.slice").unwrap();
        assert_eq!((root.to_str(), group.to_str()), (Some("/sys/fs/cgroup"), Some("/sys/fs/cgroup/user.slice")));
        let (_, group) = group_directory("9:memory:/docker/1").unwrap();
        assert_eq!(group.to_str(), Some("/sys/fs/cgroup/memory/docker/1"));
        assert!(group_directory("3:cpu,cpuacct:/").is_none());
    }
}
