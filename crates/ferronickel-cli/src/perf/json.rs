//! The results as JSON, with nccl-tests' keys (format version 3). Like there, booleans and roots are strings.
//!
//! Each result is written as soon as it is there. Of the environment only the variables that concern this program are
//! written, since the others may hold secrets.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::measure::{Half, Memory, Row, Summary};
use super::settings::{Blocking, Settings};
use super::size::Step;
use super::statistics::Iterations;
use super::table::{NCCL_VERSION, RankDevice};
use crate::exit::{Code, Failure};

const FORMAT_VERSION: u32 = 3;

/// Names that start so are written.
const VARIABLES: [&str; 2] = ["FERRONICKEL_", "NCCL_"];

/// A report in the making.
pub struct Report<W: Write> {
    out: W,
    path: PathBuf,
    results: u64,
}

impl Report<BufWriter<File>> {
    /// Opens a file that does not exist yet: `path`, or else `path.0`, `path.1`, and so on.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let mut name = path.to_owned();
        for number in 0_u64.. {
            match OpenOptions::new().write(true).create_new(true).open(&name) {
                Ok(file) => return Ok(Self::new(BufWriter::new(file), name)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let mut numbered = path.as_os_str().to_owned();
                    numbered.push(format!(".{number}"));
                    name = numbered.into();
                }
                Err(error) => {
                    let message = format!("-J {}: cannot create the file: {error}", name.display());
                    return Err(Failure::usage(message));
                }
            }
        }
        Err(Failure::usage(format!("-J {}: all numbered names are taken", path.display())))
    }
}

impl<W: Write> Report<W> {
    fn new(out: W, path: PathBuf) -> Self {
        Self { out, path, results: 0 }
    }

    /// Where the report goes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what is known before the first result.
    pub fn begin(
        &mut self,
        settings: &Settings,
        devices: &[RankDevice],
        args: &[String],
        variables: impl Iterator<Item = (String, String)>,
        time: &str,
    ) -> Result<(), Failure> {
        let concerns = |name: &str| VARIABLES.iter().any(|start| name.starts_with(start));
        let mut env: Vec<_> = variables.filter(|(name, _)| concerns(name)).collect();
        env.sort();
        let env: Vec<_> = env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let text = [
            "{".to_owned(),
            entry("version", FORMAT_VERSION) + ",",
            entry("start_time", time) + ",",
            entry("args", args) + ",",
            entry("env", env) + ",",
            entry("nccl_version", NCCL_VERSION) + ",",
            entry("ferronickel_version", env!("CARGO_PKG_VERSION")) + ",",
            entry("config", config(settings, devices)) + ",",
            "\"results\": [".to_owned(),
        ];
        self.write(&text.join("\n"))
    }

    /// Writes a result.
    pub fn result(&mut self, row: &Row, settings: &Settings) -> Result<(), Failure> {
        let separator = if self.results == 0 { "\n" } else { ",\n" };
        self.results += 1;
        self.write(&format!("{separator}{}", result(row, settings)))
    }

    /// Writes the verdicts, the memory used if that was asked for, and closes the report.
    pub fn end(
        &mut self,
        summary: &Summary,
        min_bandwidth: Option<f64>,
        memory: Option<Memory>,
        errors: &[String],
        time: &str,
    ) -> Result<(), Failure> {
        let fast = match summary.is_fast_enough(min_bandwidth) {
            None => "unchecked",
            Some(is_fast) => text_of(is_fast),
        };
        let memory = memory.map(|memory| entry("memory", usage(memory)) + ",");
        let text = [
            "\n],".to_owned(),
            entry("out_of_bounds", json!({ "count": summary.wrong, "okay": text_of(summary.wrong == 0) })) + ",",
            entry("average_bus_bandwidth", json!({ "bandwidth": summary.bandwidth(), "okay": fast })) + ",",
        ];
        let end = [entry("errors", errors) + ",", entry("end_time", time), "}\n".to_owned()];
        let lines: Vec<_> = text.into_iter().chain(memory).chain(end).collect();
        self.write(&lines.join("\n"))
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|error| {
            Failure::new(Code::System, format!("cannot write the results to {}: {error}", self.path.display()))
        })
    }
}

fn entry(key: &str, value: impl Serialize) -> String {
    format!("{}: {}", json!(key), json!(value))
}

const fn text_of(is_so: bool) -> &'static str {
    if is_so { "true" } else { "false" }
}

fn config(settings: &Settings, devices: &[RankDevice]) -> Value {
    let step = match settings.sweep.step {
        Step::Bytes(bytes) => ("step_bytes", bytes),
        Step::Factor(factor) => ("step_factor", factor),
    };
    let devices: Vec<_> = devices
        .iter()
        .map(|device| {
            json!({
                "rank": device.rank,
                "group": 0,
                "pid": device.pid,
                "hostname": device.host,
                "device": device.device,
                "device_hex": device.bus_id,
                "device_info": device.name,
            })
        })
        .collect();
    json!({
        "nthreads": settings.threads,
        "ngpus": settings.per_thread,
        "minimum_bytes": settings.sweep.min,
        "maximum_bytes": settings.sweep.max,
        step.0: step.1,
        "warmup_iters": settings.warmup,
        "iterations": settings.iterations,
        "aggregated_iterations": settings.aggregated,
        "validation": settings.checks,
        "graph": 0,
        "blocking_collectives": text_of(settings.blocking != Blocking::Off),
        "per_iter_timing": text_of(settings.per_iteration.is_some()),
        "per_iter_skip": settings.per_iteration.unwrap_or(0),
        "parallel_init": text_of(settings.parallel_init),
        "devices": devices,
    })
}

fn result(row: &Row, settings: &Settings) -> Value {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("size", json!(row.bytes));
    put("count", json!(row.count));
    put("type", json!(row.kind.name()));
    put("redop", json!(row.op_name()));
    put("root", json!(row.root_number().to_string()));
    for (key, half) in [("out_of_place", Some(&row.out_of_place)), ("in_place", row.in_place.as_ref())] {
        put(key, half.map_or(Value::Null, |half| figures(half, settings.cpu_time)));
        if let Some(iterations) = half.and_then(|half| half.iterations.as_ref()) {
            put(&format!("{key}_per_iter"), iteration_figures(iterations));
        }
    }
    put("actual_iterations", json!(settings.iterations));
    put("experiment_name", Value::Null);
    Value::Object(object)
}

fn figures(half: &Half, cpu_time: bool) -> Value {
    json!({
        if cpu_time { "cpu_time" } else { "time" }: half.microseconds,
        "alg_bw": half.algorithm_bandwidth,
        "bus_bw": half.bus_bandwidth,
        "nwrong": half.wrong,
    })
}

/// Bytes; nccl-tests has no keys for them.
fn usage(memory: Memory) -> Value {
    json!({
        "initialization": memory.initialisation,
        "user_allocated": memory.buffers,
        "total": memory.initialisation + memory.buffers,
        "resident_per_rank_after_init": memory.resident_at_start,
        "resident_per_rank_after_last_size": memory.resident_at_end,
    })
}

fn iteration_figures(iterations: &Iterations) -> Value {
    json!({
        "skipped_iterations": iterations.skipped,
        "min_us": iterations.min,
        "max_us": iterations.max,
        "avg_us": iterations.average,
        "p50_us": iterations.p50,
        "p95_us": iterations.p95,
        "p99_us": iterations.p99,
        "stdev_us": iterations.deviation,
        "cv_pct": iterations.variation(),
        "times_us": iterations.times,
    })
}

#[cfg(test)]
mod tests {
    use super::super::collective::Kind;
    use clap::Parser;

    use super::super::measure::tests::{half, row};
    use super::super::options::Options;
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

    fn report(line: &str, rows: &[Row]) -> Value {
        let settings = settings(line);
        let mut report = Report::new(Vec::new(), "x.json".into());
        let variables = [("NCCL_DEBUG", "WARN"), ("HOME", "/root"), ("TOKEN", "secret"), ("FERRONICKEL_X", "\"\n\\")];
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let args = ["perf".to_owned(), "-b8".to_owned()];
        let device = RankDevice {
            rank: 0,
            pid: 7,
            host: "node".into(),
            device: 0,
            bus_id: "0000:01:00".into(),
            name: "CPU \"x\"".into(),
        };
        report.begin(&settings, &[device], &args, variables, "2026-01-02 03:04:05").unwrap();
        let memory = settings.memory.then_some(Memory {
            initialisation: 1,
            buffers: 2,
            resident_at_start: 3,
            resident_at_end: 4,
        });
        let mut summary = Summary::default();
        for row in rows {
            summary.add(row);
            report.result(row, &settings).unwrap();
        }
        report.end(&summary, settings.min_bandwidth, memory, &["odd".to_owned()], "2026-01-02 03:04:06").unwrap();
        serde_json::from_slice(&report.out).unwrap()
    }

    #[test]
    fn the_keys_are_those_of_nccl_tests() {
        let mut detailed = half(6.5, 0.25, Some(0));
        detailed.iterations = Some(Iterations::new(&[5.0, 6.0, 7.0], 1));
        let rows = [row(8, detailed.clone(), detailed), row(16, half(1.0, 2.0, None), half(3.0, 4.0, Some(5)))];
        let report = report("-b 8 -e 16 -f 2 -I 1 -K 1", &rows);
        insta::assert_snapshot!(
            serde_json::to_string_pretty(&report).unwrap().replace(env!("CARGO_PKG_VERSION"), "VERSION")
        );
    }

    #[test]
    fn without_results_it_is_well_formed_too() {
        let report = report("-C 1", &[]);
        assert_eq!(report["results"], json!([]));
        assert_eq!(report["config"]["step_bytes"], json!(1 << 20));
    }

    #[test]
    fn memory_is_told_in_bytes_where_it_was_asked_for() {
        let memory = report("-M 1", &[])["memory"].clone();
        let keys = [
            "initialization",
            "user_allocated",
            "total",
            "resident_per_rank_after_init",
            "resident_per_rank_after_last_size",
        ];
        assert_eq!(
            memory,
            Value::Object(keys.map(str::to_owned).into_iter().zip([1, 2, 3, 3, 4].map(Value::from)).collect())
        );
        assert!(report("", &[]).get("memory").is_none());
    }

    #[test]
    fn no_secrets_are_written() {
        let text = report("", &[]).to_string();
        assert!(!text.contains("secret") && !text.contains("HOME") && text.contains("NCCL_DEBUG=WARN"));
    }

    #[test]
    fn an_existing_file_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        for name in ["a.json", "a.json.0", "a.json.1"] {
            assert_eq!(Report::create(&path).unwrap().path(), directory.path().join(name));
        }
    }

    #[test]
    fn a_place_that_cannot_be_written_is_refused() {
        let failure = Report::create(Path::new("/nowhere/a.json")).err().unwrap();
        assert!(failure.code == Code::Usage && failure.message.contains("/nowhere/a.json"), "{failure}");
    }

    #[test]
    fn a_full_disk_is_said() {
        let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else { return };
        let mut report = Report::new(BufWriter::new(full), "/dev/full".into());
        let failure = report.end(&Summary::default(), None, None, &[], "").unwrap_err();
        assert!(failure.code == Code::System && failure.message.contains("/dev/full"), "{failure}");
    }
}
