//! Measuring the cost model's constants on this machine: a few milliseconds, once; what was measured is kept in a file,
//! so that later runs choose alike.
//!
//! Rank 0 does it for all ranks: they must plan alike.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::config::{Config, variables};
use crate::device::host::threads;
use crate::transport::costs::{Costs, RoadCosts};

/// How long each of the four measurements may take.
const LIMIT: Duration = Duration::from_millis(20);
/// Exchanges of which the fastest batch counts: others are disturbed.
const BATCHES: usize = 12;
const EXCHANGES: u64 = 40;
/// Bytes that are copied at a time: more than a core's own caches hold, since what another core has written is not there.
const COPY_BYTES: usize = 4 << 20;
/// Bytes that are sent at a time.
const SEND_BYTES: usize = 256 << 10;
/// What a rank does with a flag besides waiting for it, in microseconds. This and the next so that what is measured on the
/// machine of the built-in costs gives those.
const HANDLING: f64 = 0.15;
/// How much longer than a plain copy it takes to copy or reduce what another core has just written.
const FOREIGN: f64 = 2.5;

/// The costs to plan with: those that were kept, or measured now.
pub(crate) fn costs(config: &Config) -> Costs {
    static MEASURED: OnceLock<Costs> = OnceLock::new();
    let setting = config.text(&variables::CALIBRATION).value;
    if setting == Some("0") {
        return Costs::BUILT_IN;
    }
    let file = setting.map(PathBuf::from).or_else(default_file);
    let machine = machine();
    *MEASURED.get_or_init(|| {
        if let Some(kept) = file.as_deref().and_then(|file| read(file, &machine)) {
            return kept;
        }
        let costs = measure();
        // without a file every run measures
        let _ = file.map(|file| write(&file, &machine, &costs));
        costs
    })
}

/// In the user's cache, where there is one.
fn default_file() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")))?;
    Some(cache.join("ferronickel").join("costs"))
}

/// What tells this machine from another that has the same home.
fn machine() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} with {processors} processors", name.replace(char::is_whitespace, "-"))
}

/// The costs in `file`, if they are this machine's.
fn read(file: &Path, machine: &str) -> Option<Costs> {
    parse(&fs::read_to_string(file).ok()?, machine)
}

/// One line says which machine, the next ones have a name and a number each.
fn parse(text: &str, machine: &str) -> Option<Costs> {
    let mut lines = text.lines();
    if lines.next()? != heading(machine) {
        return None;
    }
    let mut number = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok();
    let memory = RoadCosts { hop: number("memory_hop_us")?, byte: number("memory_byte_us")? };
    let network = RoadCosts { hop: number("network_hop_us")?, byte: number("network_byte_us")? };
    Some(Costs { memory, network, measured: true }).filter(Costs::are_sound)
}

fn heading(machine: &str) -> String {
    format!("ferronickel {} on {machine}", env!("CARGO_PKG_VERSION"))
}

fn format(machine: &str, costs: &Costs) -> String {
    let mut text = heading(machine);
    let Costs { memory, network, .. } = costs;
    let numbers = [
        ("memory_hop_us", memory.hop),
        ("memory_byte_us", memory.byte),
        ("network_hop_us", network.hop),
        ("network_byte_us", network.byte),
    ];
    for (name, number) in numbers {
        let _ = write!(text, "\n{name} {number}");
    }
    text + "\n"
}

/// Writes all of it or nothing: another process may read at the same time.
fn write(file: &Path, machine: &str, costs: &Costs) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::create_dir_all(folder)?;
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let written = fs::write(&part, format(machine, costs)).and_then(|()| fs::rename(&part, file));
    written.inspect_err(|_| drop(fs::remove_file(&part)))
}

/// Measures; what cannot be measured is taken as built in.
fn measure() -> Costs {
    let built_in = Costs::BUILT_IN;
    let memory = RoadCosts { hop: flag_hop().map_or(built_in.memory.hop, |hop| hop + HANDLING), byte: copy_byte() };
    let network = network().unwrap_or(built_in.network);
    let costs = Costs { memory, network, measured: true };
    if costs.are_sound() { costs } else { built_in }
}

/// The smallest of several measurements, within their time.
fn fastest(mut measure: impl FnMut() -> Option<f64>) -> Option<f64> {
    let began = Instant::now();
    let mut best: Option<f64> = None;
    for _ in 0..BATCHES {
        let one = measure()?;
        best = Some(best.map_or(one, |best| best.min(one)));
        if began.elapsed() > LIMIT {
            break;
        }
    }
    best
}

/// Microseconds from one thread's flag to another's: half of an exchange. None with one processor.
fn flag_hop() -> Option<f64> {
    std::thread::available_parallelism().ok().filter(|processors| processors.get() > 1)?;
    /// A flag alone on its cache lines.
    #[repr(align(128))]
    #[derive(Default)]
    struct Flag(AtomicU64);
    const END: u64 = u64::MAX;
    let flags: Arc<[Flag; 2]> = Arc::default();
    let theirs = flags.clone();
    let other = threads::spawn("fnickel calib", move || {
        let mut next = 1;
        loop {
            match theirs[0].0.load(Ordering::Acquire) {
                END => return,
                seen if seen >= next => {
                    theirs[1].0.store(next, Ordering::Release);
                    next += 1;
                }
                _ => std::hint::spin_loop(),
            }
        }
    });
    let other = other.ok()?;
    let mut next = 0;
    let hop = fastest(|| {
        let began = Instant::now();
        for _ in 0..EXCHANGES {
            next += 1;
            flags[0].0.store(next, Ordering::Release);
            let mut turns = 0u32;
            while flags[1].0.load(Ordering::Acquire) < next {
                turns += 1;
                // the other may not even run
                if turns.is_multiple_of(1 << 12) && began.elapsed() > LIMIT {
                    return None;
                }
                std::hint::spin_loop();
            }
        }
        Some(began.elapsed().as_secs_f64() * 1e6 / EXCHANGES as f64 / 2.0)
    });
    flags[0].0.store(END, Ordering::Release);
    let _ = other.join();
    hop
}

/// Microseconds to copy a byte.
fn copy_byte() -> f64 {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![0u8; COPY_BYTES];
    let copied = fastest(|| {
        let began = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        Some(began.elapsed().as_secs_f64() * 1e6 / COPY_BYTES as f64)
    });
    // a clock that does not tick tells nothing
    copied.filter(|&byte| byte > 0.0).map_or(Costs::BUILT_IN.memory.byte, |byte| byte * FOREIGN)
}

/// The costs of a socket through the loopback interface, where the network leads nowhere faster.
fn network() -> Option<RoadCosts> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let mut here = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    let (mut there, _) = listener.accept().ok()?;
    for stream in [&here, &there] {
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        stream.set_write_timeout(Some(LIMIT)).ok()?;
    }
    // answers bytes, and after a zero takes as many as are sent at a time
    let other = threads::spawn("fnickel calib", move || -> io::Result<()> {
        let mut byte = [0];
        loop {
            there.read_exact(&mut byte)?;
            if byte == [0] {
                let mut bytes = vec![0; SEND_BYTES];
                there.read_exact(&mut bytes)?;
            }
            there.write_all(&byte)?;
        }
    });
    let other = other.ok()?;
    let mut exchange = |first: u8, bytes: &[u8]| -> Option<f64> {
        let began = Instant::now();
        here.write_all(&[first]).ok()?;
        here.write_all(bytes).ok()?;
        here.read_exact(&mut [0]).ok()?;
        Some(began.elapsed().as_secs_f64() * 1e6)
    };
    let round = fastest(|| exchange(1, &[]));
    let bytes = vec![0; SEND_BYTES];
    let filled = fastest(|| exchange(0, &bytes));
    drop(here);
    let _ = other.join();
    let (round, filled) = (round?, filled?);
    Some(RoadCosts { hop: round / 2.0, byte: filled / SEND_BYTES as f64 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_machine_has_sound_costs_soon() {
        let began = Instant::now();
        let costs = measure();
        assert!(costs.are_sound() && costs.measured, "{costs}");
        assert!(costs.memory.hop < costs.network.hop, "{costs}");
        // four measurements, each within its limit and one batch more
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn what_is_kept_is_read_again_on_the_same_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new").join("costs");
        let costs = Costs { measured: true, ..Costs::BUILT_IN };
        write(&file, "here with 2 processors", &costs).unwrap();
        assert_eq!(read(&file, "here with 2 processors"), Some(costs));
        assert_eq!(read(&file, "there with 2 processors"), None);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "a part was left behind");
        assert_eq!(read(folder.path(), "here with 2 processors"), None);
    }

    #[test]
    fn nothing_is_measured_where_that_is_wanted() {
        let config = Config::default().with("FERRONICKEL_CALIBRATION", "0").unwrap();
        assert_eq!(costs(&config), Costs::BUILT_IN);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            prop_assert_eq!(parse(&text, "here"), None);
        }

        #[test]
        fn what_is_read_is_sound(numbers in proptest::array::uniform4(any::<f64>())) {
            let [a, b, c, d] = numbers;
            let text = format!(
                "{}\nmemory_hop_us {a}\nmemory_byte_us {b}\nnetwork_hop_us {c}\nnetwork_byte_us {d}\n",
                heading("here")
            );
            prop_assert!(parse(&text, "here").is_none_or(|costs| costs.are_sound()));
        }
    }
}
