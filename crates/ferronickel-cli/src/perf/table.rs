//! The table, to the column as nccl-tests prints it: scripts read it by position.

use super::measure::{Half, Memory, Row, Summary};
use super::number::{fitted, general};
use super::settings::{Blocking, Settings};
use super::size::{Step, in_words};

/// The NCCL version that the library answers with, in NCCL's own notation.
pub const NCCL_VERSION: u32 = 23007;

/// How a point in time is written.
pub const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";

/// The device of a rank, as the table names it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct RankDevice {
    pub rank: u32,
    pub pid: u32,
    pub host: String,
    pub device: u32,
    /// Domain, bus and device.
    pub bus_id: String,
    pub name: String,
}

/// The lines above the list of devices.
pub fn start(settings: &Settings) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let (step, unit) = match settings.sweep.step {
        Step::Bytes(bytes) => (bytes, "bytes"),
        Step::Factor(factor) => (factor, "factor"),
    };
    let mut text = format!(
        "# ferronickel perf {version} nccl-headers={NCCL_VERSION} nccl-library={NCCL_VERSION}\n\
         # Collective test starting: {}\n\
         # nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} iters: {} agg iters: {} \
         validation: {} graph: 0 unalign: {}\n",
        settings.kind.program(),
        settings.threads,
        settings.per_thread,
        settings.sweep.min,
        settings.sweep.max,
        settings.warmup,
        settings.iterations,
        settings.aggregated,
        settings.checks,
        settings.unalign,
    );
    text.push_str(match settings.blocking {
        Blocking::Off => "",
        Blocking::WaitAndMeet => "# Blocking Enabled: each collective is awaited, then all threads meet\n",
        Blocking::Wait => "# Blocking Enabled: each collective is awaited\n",
        Blocking::WaitAndMeetUntimed => {
            "# Blocking Enabled: each collective is awaited, then all threads meet (the meeting is not timed)\n"
        }
    });
    if settings.per_iteration.is_some() {
        text.push_str("# Per-Iteration Report: each iteration is awaited and timed; i_* use the slowest thread\n");
    }
    if settings.parallel_init {
        text.push_str("# Parallel Init Enabled: each thread initialises its own communicators\n");
    }
    text.push_str("#\n# Using devices\n");
    text
}

/// The line of a device.
pub fn device(device: &RankDevice) -> String {
    let RankDevice { rank, pid, host, device, bus_id, name } = device;
    format!("#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device {device:2} [{bus_id}] {name}\n")
}

/// The line that says that the largest size was reduced.
pub fn reduced(max: u64) -> String {
    format!("# Reducing maxBytes to {max} due to memory limitation\n")
}

/// The lines that name the columns.
pub fn header(settings: &Settings) -> String {
    let time = if settings.cpu_time { "cputime" } else { "time" };
    let (stamp, format, width) = if settings.timestamps { ("timestamp", TIME_FORMAT, 19) } else { ("", "", 0) };
    let left = |fields: [&str; 5]| {
        let [size, count, kind, op, root] = fields;
        format!("# {size:>10}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}")
    };
    let half = |fields: [&str; 4], iterations: [&str; 4]| {
        let [time, algorithm, bus, wrong] = fields;
        let mut text = format!("  {time:>7}  {algorithm:>6}  {bus:>6}  {wrong:>6}");
        if settings.per_iteration.is_some() {
            text.extend(iterations.map(|name| format!("  {name:>7}")));
        }
        text
    };
    let names = half([time, "algbw", "busbw", "#wrong"], ["i_min", "i_max", "i_p99", "i_cv%"]);
    let units = half(["(us)", "(GB/s)", "(GB/s)", ""], ["(us)", "(us)", "(us)", "(%)"]);
    let halves = match settings.per_iteration {
        None => format!("{:11}out-of-place{:23}in-place{:10}", "", "", ""),
        Some(_) => format!("{:14}out-of-place (+ per-iteration){:32}in-place (+ per-iteration)", "", ""),
    };
    format!(
        "#\n{}{halves}\n{}{names}{names} {stamp:>width$}\n{}{units}{units} {format:>width$}\n",
        left([""; 5]),
        left(["size", "count", "type", "redop", "root"]),
        left(["(B)", "(elements)", "", "", ""]),
    )
}

/// A row; `time` is the time of day, for those who asked for it.
pub fn row(row: &Row, time: Option<&str>) -> String {
    let Row { bytes, count, kind, .. } = row;
    let (kind, op, root) = (kind.name(), row.op_name(), row.root_number());
    let not_there = || {
        let columns = if row.out_of_place.iterations.is_some() { &[7, 6, 6, 6, 7, 7, 7, 7][..] } else { &[7, 6, 6, 6] };
        columns.iter().map(|&width| format!("  {:>width$}", "N/A")).collect()
    };
    let halves = half(&row.out_of_place) + &row.in_place.as_ref().map_or_else(not_there, half);
    let time = time.map(|time| format!("{time:>21}")).unwrap_or_default();
    format!("{bytes:12}  {count:12}  {kind:>8}  {op:>6}  {root:>6}{halves}{time}\n")
}

fn half(half: &Half) -> String {
    let time = fitted(half.microseconds, 7);
    let algorithm = fitted(half.algorithm_bandwidth, 6);
    let bus = fitted(half.bus_bandwidth, 6);
    let wrong = half.wrong.map_or("N/A".into(), |wrong| general(wrong as f64));
    let mut text = format!("  {time}  {algorithm}  {bus}  {wrong:>6}");
    if let Some(iterations) = &half.iterations {
        for figure in [iterations.min, iterations.max, iterations.p99, iterations.variation()] {
            text.push_str(&format!("  {}", fitted(figure, 7)));
        }
    }
    text
}

/// The lines below the rows: the verdicts, the memory used if that was asked for, and the library's last warning.
pub fn footer(settings: &Settings, summary: &Summary, memory: Option<Memory>, warning: &str) -> String {
    let verdict = |is_right: bool| if is_right { "OK" } else { "FAILED" };
    let line = |name: &str, value: &str| format!("# {name:<20} : {value}\n");
    let mut text = line("Out of bounds values", &format!("{} {}", summary.wrong, verdict(summary.wrong == 0)));
    let fast = summary.is_fast_enough(settings.min_bandwidth).map_or("", verdict);
    text.push_str(&line("Avg bus bandwidth", &format!("{} {fast}", general(summary.bandwidth()))));
    text.push_str(&format!("#\n# Collective test concluded: {}\n", settings.kind.program()));
    if let Some(Memory { initialisation, buffers, resident_at_start, resident_at_end }) = memory {
        let figures = [initialisation, buffers, initialisation + buffers, resident_at_start, resident_at_end];
        let [initialisation, buffers, total, start, end] = figures.map(in_words);
        let usage = format!("Initialization {initialisation} | User-Allocated {buffers} | Total  {total}");
        text.push_str(&line("Host memory usage", &usage));
        text.push_str(&line("Resident per rank", &format!("{start} after init | {end} after the last size")));
    }
    text.push_str("#\n");
    match warning {
        "" => text.push('\n'),
        warning => text.push_str(&format!("# error: {warning}\n")),
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::collective::Kind;
    use super::super::measure::tests::{half, row as row_of};
    use super::super::options::Options;
    use super::super::statistics::Iterations;
    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn settings(line: &str) -> Settings {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        Settings::new(Kind::AllReduce, Command::try_parse_from(words).unwrap().options, |_| None).unwrap()
    }

    /// Shows where lines end, since trailing spaces count.
    fn ends(text: &str) -> String {
        text.lines().map(|line| format!("{line}|\n")).collect()
    }

    #[test]
    fn the_plain_table() {
        let settings = settings("-b 8 -e 128M -f 2 -g 2");
        let place = RankDevice {
            rank: 0,
            pid: 123,
            host: "node".into(),
            device: 0,
            bus_id: "0000:01:00".into(),
            name: "Host CPU".into(),
        };
        let rows = [
            row_of(8, half(6.5, 0.0012, Some(0)), half(6.25, 0.0013, Some(0))),
            row_of(268_435_456, half(12157.1, 22.08, Some(1_234_567)), half(123_456.7, 0.5, None)),
        ];
        let mut summary = Summary::default();
        let mut text = start(&settings) + &device(&place) + &reduced(1 << 20) + &header(&settings);
        for each in &rows {
            summary.add(each);
            text.push_str(&row(each, None));
        }
        text.push_str(&footer(&settings, &summary, None, ""));
        insta::assert_snapshot!(ends(&text).replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }

    #[test]
    fn the_columns_are_where_nccl_tests_has_them() {
        let text = header(&settings(""));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.iter().map(|line| line.len()).collect::<Vec<_>>(), [1, 116, 119, 119]);
        assert_eq!((lines[1].find("out-of-place"), lines[1].find("in-place")), (Some(63), Some(98)));
        let plain = row(&row_of(8, half(6.5, 0.1, Some(0)), half(6.25, 0.1, Some(0))), None);
        assert_eq!(plain.trim_end().len(), 118);
    }

    #[test]
    fn a_table_with_everything() {
        let settings = settings("-C 1 -S 1 -I 1 -p 1 -z 1 -i 4K -u 3 -c 0");
        let mut half = half(6.5, 0.25, None);
        half.iterations = Some(Iterations::new(&[5.0, 6.0, 700.0], 0));
        let [initialisation, buffers] = [3 << 19, 1 << 20];
        let memory = Memory { initialisation, buffers, resident_at_start: 6 << 20, resident_at_end: 7 << 20 };
        let with_least = Settings { min_bandwidth: Some(1.0), ..settings.clone() };
        let text = start(&settings)
            + &header(&settings)
            + &row(&row_of(8, half.clone(), half), Some("2026-01-02 03:04:05"))
            + &footer(&with_least, &Summary::default(), Some(memory), "something odd");
        insta::assert_snapshot!(ends(&text).replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }
}
