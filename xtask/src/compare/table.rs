//! What came of a comparison, as text and as JSON.

use std::fmt::Write;

use serde_json::json;

use super::Size;
use super::statistics::{Series, Verdict, geometric_mean, median, verdict};

/// Up to here the geometric mean goes: beyond, memory alone decides.
const MEAN_TO: u64 = 16 << 20;

/// A call that takes so many times as long as a copy of its message has other things to do than to copy.
const HARDLY: f64 = 10.0;

/// The tables, one for each way to call, each followed by the means and by what limits each range.
pub fn render(
    collective: &str,
    ranks: u32,
    names: &[&str],
    sizes: &[Size],
    all: &[Vec<Series>],
    copy_rate: f64,
) -> String {
    let mut text = format!(
        "# {collective}, float32, {ranks} processes; microseconds a call, the median of {} rounds\n\
         # one core copies {:.1} GB/s\n",
        all[0].first().map_or(0, |series| series.apart.len()),
        copy_rate / 1e9
    );
    for (way, pick) in [
        ("out of place", (|series| &series.apart) as fn(&Series) -> &Vec<f64>),
        ("in place", |series| &series.in_place),
    ] {
        let _ = writeln!(text, "#\n# {way}");
        let _ = write!(text, "{:>12}", "bytes");
        text.extend(names.iter().map(|name| format!(" {name:>12}")));
        text.extend(names[1..].iter().map(|name| format!(" {:>18}", format!("{name}/ours"))));
        text.push('\n');
        for (at, size) in sizes.iter().enumerate() {
            let _ = write!(text, "{:>12}", size.bytes);
            text.extend(all.iter().map(|series| format!(" {:>12.2}", median(pick(&series[at])))));
            let ours = pick(&all[0][at]);
            for series in &all[1..] {
                let theirs = pick(&series[at]);
                let word = match verdict(ours, theirs) {
                    Verdict::Win => "",
                    Verdict::Tie => " tie",
                    Verdict::Loss => " loss",
                };
                let _ = write!(text, " {:>18}", format!("{:.2}{word}", median(theirs) / median(ours)));
            }
            text.push('\n');
        }
        means(&mut text, names, sizes, all, pick);
        limits(&mut text, sizes, &all[0], copy_rate, pick);
    }
    text
}

fn means(text: &mut String, names: &[&str], sizes: &[Size], all: &[Vec<Series>], pick: fn(&Series) -> &Vec<f64>) {
    for (name, series) in names.iter().zip(all).skip(1) {
        let ratio = |at: usize| median(pick(&series[at])) / median(pick(&all[0][at]));
        let ratios: Vec<_> = (0..sizes.len()).filter(|&at| sizes[at].bytes <= MEAN_TO).map(ratio).collect();
        let least = (0..sizes.len()).min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)));
        if let (false, Some(least)) = (ratios.is_empty(), least) {
            let _ = writeln!(
                text,
                "# {name}: geometric mean up to 16 MiB {:.2}, least ratio {:.2} at {} bytes",
                geometric_mean(&ratios),
                ratio(least),
                sizes[least].bytes
            );
        }
    }
}

/// What limits ours in each range of sizes. Each rank reads as many bytes as the message has, and writes as many: what
/// a copy of it would.
fn limits(text: &mut String, sizes: &[Size], ours: &[Series], copy_rate: f64, pick: fn(&Series) -> &Vec<f64>) {
    let time = |at: usize| median(pick(&ours[at]));
    let copies = |at: usize| time(at) / (sizes[at].bytes as f64 / copy_rate * 1e6);
    let least = (0..sizes.len()).map(time).fold(f64::INFINITY, f64::min);
    let limit = |at: usize| match () {
        () if time(at) < 2.0 * least || copies(at) > HARDLY => Limit::Latency,
        () if copies(at) <= 2.0 => Limit::Memory,
        () => Limit::Steps,
    };
    let all: Vec<_> = (0..sizes.len()).collect();
    for range in all.chunk_by(|&a, &b| limit(a) == limit(b)) {
        let (first, last) = (range[0], range[range.len() - 1]);
        let bounds = format!("# {} to {} bytes: ", sizes[first].bytes, sizes[last].bytes);
        let _ = match limit(first) {
            Limit::Latency => {
                writeln!(
                    text,
                    "{bounds}latency, {:.2} to {:.2} us, which hardly depends on the size",
                    time(first),
                    time(last)
                )
            }
            Limit::Steps => writeln!(
                text,
                "{bounds}the steps between the ranks, {:.1} to {:.1} times as long as one core takes to copy the message",
                copies(first),
                copies(last)
            ),
            Limit::Memory => writeln!(
                text,
                "{bounds}memory, {:.1} to {:.1} times as long as one core takes to copy the message",
                copies(first),
                copies(last)
            ),
        };
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    Latency,
    Steps,
    Memory,
}

/// Every time of every round.
pub fn json(names: &[&str], sizes: &[Size], all: &[Vec<Series>], copy_rate: f64) -> String {
    let contender = |(name, series): (&&str, &Vec<Series>)| {
        let size = |(size, series): (&Size, &Series)| json!({ "bytes": size.bytes, "out_of_place": series.apart, "in_place": series.in_place });
        json!({ "name": name, "sizes": sizes.iter().zip(series).map(size).collect::<Vec<_>>() })
    };
    let contenders: Vec<_> = names.iter().zip(all).map(contender).collect();
    format!("{:#}\n", json!({ "copy_rate_bytes_per_second": copy_rate, "contenders": contenders }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_ties_losses_means_and_limits() {
        let size = |bytes| Size { bytes, iterations: 10, warmup: 2 };
        let series =
            |times: [f64; 2]| Series { apart: times.to_vec(), in_place: times.map(|time| time * 2.0).to_vec() };
        let ours = vec![series([0.5, 0.6]), series([40.0, 50.0]), series([1500.0, 1700.0])];
        let theirs = vec![series([0.4, 0.45]), series([45.0, 90.0]), series([9000.0, 9100.0])];
        let sizes = [size(8), size(65_536), size(16 << 20)];
        insta::assert_snapshot!(render("all-reduce", 2, &["ferronickel", "mpich"], &sizes, &[ours, theirs], 10e9));
    }
}
