//! `cargo xtask compare`: ferronickel beside MPI libraries.
//!
//! All are measured in turns, round by round, on the same cores with the same sizes and numbers of calls, so that what
//! else the machine does meets them alike. A ratio counts as a difference only if the ranges over the rounds do not
//! touch.

mod contender;
mod copy_rate;
mod statistics;
mod table;

use std::path::PathBuf;

use clap::Args;

use self::contender::Contender;
use self::statistics::Series;

/// What is measured.
#[derive(Args, Debug)]
pub struct Options {
    /// The collective, or all of them one after the other
    #[arg(long, default_value = "all-reduce", value_parser = clap::builder::PossibleValuesParser::new(choices()))]
    collective: String,
    /// Processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: u32,
    /// The smallest size in bytes
    #[arg(long, default_value = "8", value_parser = bytes)]
    min: u64,
    /// The largest size in bytes
    #[arg(long, default_value = "64M", value_parser = bytes)]
    max: u64,
    /// Each size is so many times the one before
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..=1024))]
    factor: u64,
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The libraries to measure beside: open-mpi, mpich
    #[arg(long, value_delimiter = ',', default_value = "open-mpi,mpich")]
    peer: Vec<String>,
    /// Write the times of every round to this file as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The collectives that can be compared, by the names that `ferronickel perf` gives them.
const COLLECTIVES: [&str; 9] =
    ["all-reduce", "broadcast", "reduce", "all-gather", "reduce-scatter", "alltoall", "gather", "scatter", "sendrecv"];

fn choices() -> Vec<&'static str> {
    COLLECTIVES.into_iter().chain(["all"]).collect()
}

/// How often a size is called in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Bytes of the message.
    pub bytes: u64,
    /// Timed calls.
    pub iterations: u64,
    /// Calls before them.
    pub warmup: u64,
}

/// The mean time of a call in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Times {
    /// With a result apart from the input.
    pub apart: f64,
    /// With the result in place of the input.
    pub in_place: f64,
}

/// Measures, and prints what came of it.
pub fn run(options: &Options) -> Result<(), String> {
    let all: Vec<_> = COLLECTIVES.into_iter().filter(|name| [name, "all"].contains(&&*options.collective)).collect();
    if options.json.is_some() && all.len() > 1 {
        return Err("--json takes the times of one --collective".into());
    }
    let mut contenders = vec![Contender::ferronickel()?];
    for name in &options.peer {
        match Contender::peer(name) {
            Ok(peer) => contenders.push(peer),
            Err(reason) => println!("# {name} is left out: {reason}"),
        }
    }
    if contenders.len() == 1 {
        return Err("there is nobody to compare with; install openmpi-bin and libopenmpi-dev, or mpich".into());
    }
    let copy_rate = copy_rate::measure();
    all.iter().try_for_each(|collective| compare(options, collective, &contenders, copy_rate))
}

/// Compares one collective.
fn compare(options: &Options, collective: &str, contenders: &[Contender], copy_rate: f64) -> Result<(), String> {
    // what is divided among the ranks is divided into packs of 16 bytes
    let is_whole = ["all-reduce", "broadcast", "reduce", "sendrecv"].contains(&collective);
    let least = if is_whole { options.min } else { options.min.max(16 * u64::from(options.ranks).next_power_of_two()) };
    let sizes = sizes(least, options.max, options.factor)?;
    let mut all: Vec<Vec<Series>> = contenders.iter().map(|_| vec![Series::default(); sizes.len()]).collect();
    for round in 0..options.rounds {
        eprintln!("{collective}, round {} of {}", round + 1, options.rounds);
        // nobody always comes first
        for turn in 0..contenders.len() {
            let which = (turn + round as usize) % contenders.len();
            let times = contenders[which].measure(collective, &sizes, options.ranks)?;
            all[which].iter_mut().zip(times).for_each(|(series, times)| series.add(times));
        }
    }
    let names: Vec<_> = contenders.iter().map(|contender| contender.name.as_str()).collect();
    print!("{}", table::render(collective, options.ranks, &names, &sizes, &all, copy_rate));
    match &options.json {
        Some(path) => std::fs::write(path, table::json(&names, &sizes, &all, copy_rate))
            .map_err(|error| format!("cannot write {}: {error}", path.display())),
        None => Ok(()),
    }
}

/// The sizes, each with so many calls that a round is long enough to be meant and short enough to be borne.
fn sizes(min: u64, max: u64, factor: u64) -> Result<Vec<Size>, String> {
    if min < 4 || max < min {
        return Err(format!("--min {min} --max {max}: give sizes from 4 on, the smaller first"));
    }
    if max > 1 << 32 {
        return Err(format!("--max {max}: MPI counts elements in 32 bits; at most 4G"));
    }
    let next = |&bytes: &u64| bytes.checked_mul(factor).filter(|&next| next <= max);
    let size = |bytes: u64| {
        let bytes = bytes / 4 * 4;
        let iterations = (256 << 20 >> bytes.max(4096).ilog2()).clamp(10, 20_000);
        Size { bytes, iterations, warmup: iterations / 5 + 2 }
    };
    Ok(std::iter::successors(Some(min), next).map(size).collect())
}

/// A number of bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().filter(|number| number.leading_zeros() > shift);
    number.map(|number| number << shift).ok_or_else(|| format!("{text} is no size; write it as 8, 64K or 16M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_or_refused() {
        assert_eq!(["8", "64K", "16m", "2G"].map(bytes), [Ok(8), Ok(64 << 10), Ok(16 << 20), Ok(2 << 30)]);
        for wrong in ["", "K", "-1", "1.5M", "8B", "99999999999G"] {
            assert!(bytes(wrong).unwrap_err().contains("is no size"), "{wrong}");
        }
    }

    #[test]
    fn large_sizes_are_called_less_often() {
        let sizes = sizes(8, 64 << 20, 2).unwrap();
        assert_eq!((sizes.len(), sizes[0].iterations, sizes[23].iterations), (24, 20_000, 10));
        assert!(sizes.windows(2).all(|pair| pair[0].iterations >= pair[1].iterations));
        assert!(super::sizes(8, 4, 2).is_err() && super::sizes(0, 4, 2).is_err());
    }
}
