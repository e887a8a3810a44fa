//! Who is compared, and how its times are come by.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Size, Times};

/// A library with a benchmark.
#[derive(Debug)]
pub struct Contender {
    pub name: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The command `ferronickel`.
    Ferronickel { command: PathBuf, output: PathBuf },
    /// Our small benchmark for MPI, compiled against one library.
    Mpi { mpirun: String, library: &'static Library, program: PathBuf },
}

/// An MPI library, as Debian names its commands, and what its mpirun has to be told.
#[derive(Debug)]
struct Library {
    name: &'static str,
    /// What `mpirun --version` says.
    mark: &'static str,
    suffix: &'static str,
    package: &'static str,
    options: &'static [&'static str],
    /// The same, where there are more ranks than processors.
    crowded: &'static [&'static str],
}

static LIBRARIES: [Library; 2] = [
    Library {
        name: "open-mpi",
        mark: "Open MPI",
        suffix: "openmpi",
        package: "openmpi-bin and libopenmpi-dev",
        options: &["--bind-to", "core"],
        crowded: &["--oversubscribe", "--bind-to", "none"],
    },
    Library {
        name: "mpich",
        mark: "HYDRA",
        suffix: "mpich",
        package: "mpich and libmpich-dev",
        options: &["-bind-to", "core"],
        crowded: &["-bind-to", "none"],
    },
];

const SOURCE: &str = include_str!("peer.c");

impl Contender {
    /// Ours, built.
    pub fn ferronickel() -> Result<Contender, String> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        finish(Command::new(cargo).args(["build", "--release", "-p", "ferronickel-cli"]))?;
        let target = target();
        let (command, output) = (target.join("release/ferronickel"), scratch()?.join("ferronickel.json"));
        Ok(Contender { name: "ferronickel".into(), kind: Kind::Ferronickel { command, output } })
    }

    /// A peer by its name, with its benchmark compiled; or why it cannot be had.
    pub fn peer(name: &str) -> Result<Contender, String> {
        let names = LIBRARIES.each_ref().map(|library| library.name).join(" and ");
        let library = LIBRARIES.iter().find(|library| library.name == name);
        let library = library.ok_or_else(|| format!("it is not known; {names} are"))?;
        let missing = || format!("it is not installed; Debian has it in {}", library.package);
        let [mpirun, mpicc] = find(library).ok_or_else(missing)?;
        let directory = scratch()?;
        let (source, program) = (directory.join("peer.c"), directory.join(format!("peer-{name}")));
        std::fs::write(&source, SOURCE).map_err(|error| format!("cannot write {}: {error}", source.display()))?;
        finish(Command::new(&mpicc).args(["-O2", "-o"]).arg(&program).arg(&source))
            .map_err(|reason| format!("its benchmark cannot be compiled, which takes {}: {reason}", library.package))?;
        let kind = Kind::Mpi { mpirun, library, program };
        Ok(Contender { name: name.into(), kind })
    }

    /// The times of all sizes, in one round.
    pub fn measure(&self, collective: &str, sizes: &[Size], ranks: u32) -> Result<Vec<Times>, String> {
        let found = match &self.kind {
            Kind::Ferronickel { command, output } => {
                let mut found = BTreeMap::new();
                for sizes in sizes.chunk_by(|a, b| a.iterations == b.iterations && a.bytes * 2 == b.bytes) {
                    found.extend(perf(command, collective, output, sizes, ranks)?);
                }
                found
            }
            Kind::Mpi { mpirun, library, program } => {
                let mut command = Command::new(mpirun);
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                let is_crowded = ranks as usize > processors;
                command
                    .args(if is_crowded { library.crowded } else { library.options })
                    .args(["-np", &ranks.to_string()])
                    .arg(program)
                    .arg(collective);
                // who runs this as root means it
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
                for size in sizes {
                    command.args([size.bytes, size.iterations, size.warmup].map(|number| number.to_string()));
                }
                peer_times(&finish(&mut command)?, ranks)?
            }
        };
        let times = |size: &Size| found.get(&size.bytes).copied();
        let missing = |size: &Size| format!("{} told no time for {} bytes", self.name, size.bytes);
        sizes.iter().map(|size| times(size).ok_or_else(|| missing(size))).collect()
    }
}

/// The commands of a library: mpirun and mpicc.
fn find(library: &Library) -> Option<[String; 2]> {
    let says = |command: &str, argument: &str| {
        let output = Command::new(command).arg(argument).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
    };
    let candidates =
        [["mpirun", "mpicc"].map(|name| format!("{name}.{}", library.suffix)), ["mpirun".into(), "mpicc".into()]];
    candidates.into_iter().find(|[mpirun, mpicc]| {
        let is_it = says(mpirun, "--version").is_some_and(|version| version.contains(library.mark));
        // what it says is of no interest, only that it is there
        is_it && Command::new(mpicc).arg("-v").output().is_ok()
    })
}

/// Runs our benchmark for sizes that double and are called equally often.
fn perf(
    command: &Path,
    collective: &str,
    output: &Path,
    sizes: &[Size],
    ranks: u32,
) -> Result<BTreeMap<u64, Times>, String> {
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return Ok(BTreeMap::new()) };
    let _ = std::fs::remove_file(output);
    let mut run = Command::new(command);
    run.args(["run", "-n", &ranks.to_string(), "--"]).arg(command).args(["perf", collective, "-z", "2", "-c", "0"]);
    for (option, number) in
        [("-b", first.bytes), ("-e", last.bytes), ("-f", 2), ("-n", first.iterations), ("-w", first.warmup)]
    {
        run.args([option, &number.to_string()]);
    }
    finish(run.arg("--json").arg(output).env("FERRONICKEL_ANNOUNCE", "0"))?;
    let text = std::fs::read_to_string(output).map_err(|error| format!("no results of perf: {error}"))?;
    our_times(&text)
}

fn our_times(text: &str) -> Result<BTreeMap<u64, Times>, String> {
    let report: serde_json::Value = serde_json::from_str(text).map_err(|error| format!("results of perf: {error}"))?;
    let row = |row: &serde_json::Value| {
        let time = |way: &str| row[way]["time"].as_f64();
        let apart = time("out_of_place")?;
        // where there is no such call in place, the other stands for it, as it does with the peers
        Some((row["size"].as_u64()?, Times { apart, in_place: time("in_place").unwrap_or(apart) }))
    };
    let rows = report["results"].as_array().map(|rows| rows.iter().map(row).collect::<Option<_>>());
    rows.flatten().ok_or_else(|| "results of perf without sizes and times".into())
}

fn peer_times(text: &str, ranks: u32) -> Result<BTreeMap<u64, Times>, String> {
    // a program that was compiled for another library than mpirun's runs as so many programs of one rank
    let (first, text) = text.split_once('\n').unwrap_or((text, ""));
    if first != format!("ranks {ranks}") {
        return Err(format!("the peer's benchmark does not run with {ranks} ranks: it said '{first}'"));
    }
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let bytes = words.next()?.parse().ok()?;
        let mut time = || words.next()?.parse().ok();
        Some((bytes, Times { apart: time()?, in_place: time()? }))
    };
    text.lines().map(|text| line(text).ok_or_else(|| format!("the peer said: {text}"))).collect()
}

/// Runs a command to its end. What it wrote, or why it failed.
fn finish(command: &mut Command) -> Result<String, String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command.output().map_err(|error| format!("cannot start {name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} failed ({}): {}", output.status, errors.trim()))
}

/// Where cargo builds.
fn target() -> PathBuf {
    let own = std::env::current_exe().ok();
    let built = own.as_deref().and_then(|path| path.ancestors().nth(2));
    built.map_or_else(|| PathBuf::from("target"), Path::to_owned)
}

fn scratch() -> Result<PathBuf, String> {
    let directory = target().join("compare");
    std::fs::create_dir_all(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_both_sides() {
        let theirs = peer_times("ranks 2\n8 0.61 0.62\n16 0.7 0.8\n", 2).unwrap();
        assert_eq!(theirs[&16], Times { apart: 0.7, in_place: 0.8 });
        assert!(peer_times("ranks 2\n8 fast\n", 2).unwrap_err().contains("8 fast"));
        assert!(peer_times("ranks 1\n8 0.1 0.1\n", 2).unwrap_err().contains("does not run with 2 ranks"));
        let ours = r#"{"results": [{"size": 8, "out_of_place": {"time": 0.5}, "in_place": {"time": 0.25}}]}"#;
        assert_eq!(our_times(ours).unwrap()[&8], Times { apart: 0.5, in_place: 0.25 });
        assert!(our_times("{}").is_err() && our_times("").is_err());
    }

    #[test]
    fn an_unknown_peer_is_refused_by_name() {
        let error = Contender::peer("nosuch").unwrap_err();
        assert!(error.contains("open-mpi and mpich"), "{error}");
    }
}
