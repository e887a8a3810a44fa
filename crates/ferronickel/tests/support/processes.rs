//! Ranks in processes of their own: a test starts its own program again, with the name of the test that plays a rank.

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ferronickel::{Config, UniqueId};
use tempfile::TempDir;

const RANK: &str = "TEST_RANK";
const SIZE: &str = "TEST_SIZE";
const PLAY: &str = "TEST_PLAY";
const ID: &str = "TEST_ID";
const PLACE: &str = "TEST_PLACE";
/// Set for a rank that may make no memory to share.
pub const NO_MEMFD: &str = "TEST_NO_MEMFD";
/// How many open files a rank may have.
pub const FILES: &str = "TEST_FILES";

/// The part that this process plays, if it is a rank.
pub struct Part {
    pub rank: usize,
    pub size: usize,
    /// What it is to do.
    pub play: String,
    pub id: UniqueId,
    place: PathBuf,
}

impl Part {
    /// None in the process that starts the ranks.
    pub fn taken() -> Option<Part> {
        let get = |name| std::env::var(name).ok();
        get(RANK)?;
        if get(NO_MEMFD).is_some() {
            forbid_memfd();
        }
        if let Some(limit) = get(FILES) {
            let limit = limit.parse().unwrap();
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: the limit is valid
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        }
        let (rank, size) = (get(RANK)?.parse().unwrap(), get(SIZE)?.parse().unwrap());
        let place = PathBuf::from(get(PLACE)?);
        let hex = get(ID)?;
        let id = match hex.is_empty() {
            // rank 0 is the root, and tells the others through a file
            true if rank == 0 => {
                let id = UniqueId::new().unwrap();
                fs::write(place.join("id.part"), id.as_bytes()).unwrap();
                fs::rename(place.join("id.part"), place.join("id")).unwrap();
                id
            }
            true => UniqueId::from_bytes(&await_file(&place.join("id")).try_into().unwrap()).unwrap(),
            false => {
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
                UniqueId::from_bytes(&bytes.try_into().unwrap()).unwrap()
            }
        };
        Some(Part { rank, size, play: get(PLAY)?, id, place })
    }

    /// Says something that the test reads.
    pub fn say(&self, text: impl Display) {
        let path = self.place.join(format!("{}.said", self.rank));
        let said = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, format!("{said}{text}\n")).unwrap();
    }

    /// Tells that it has come to this point.
    pub fn reach(&self, point: &str) {
        fs::write(self.place.join(format!("{}.{point}", self.rank)), []).unwrap();
    }

    /// Waits until another rank has come to this point.
    pub fn wait_for(&self, rank: usize, point: &str) {
        await_file(&self.place.join(format!("{rank}.{point}")));
    }
}

fn await_file(path: &std::path::Path) -> Vec<u8> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match fs::read(path) {
            Ok(bytes) => return bytes,
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

/// Where the root is.
#[derive(Clone, Copy, PartialEq)]
pub enum RootAt {
    /// In the test's own process.
    Test,
    RankZero,
}

/// Ranks that run; killed when dropped.
pub struct Ranks {
    children: Vec<Child>,
    place: TempDir,
}

/// How a rank ended, and what it said.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub said: String,
    /// When it ended, since the ranks were waited for.
    pub after: Duration,
}

impl Ranks {
    /// Starts `size` ranks that play `play` in the test called `test`, each with the settings that `settings` gives it.
    pub fn start(
        test: &str,
        size: usize,
        play: &str,
        root: RootAt,
        settings: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Ranks {
        let id = match root {
            RootAt::Test => hex(&UniqueId::with_config(&Config::default()).unwrap()),
            RootAt::RankZero => String::new(),
        };
        let place = tempfile::tempdir().unwrap();
        let mut ranks = Ranks { children: Vec::new(), place };
        for rank in 0..size {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
            for (name, _) in std::env::vars_os() {
                if ["NCCL_", "FERRONICKEL_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                    command.env_remove(name);
                }
            }
            command.env(RANK, rank.to_string()).env(SIZE, size.to_string()).env(PLAY, play).env(ID, &id);
            // looking up the names of a backtrace takes seconds, in which a rank that panics is neither dead nor alive
            command.env(PLACE, ranks.place.path()).env("FERRONICKEL_ANNOUNCE", "0").env("RUST_BACKTRACE", "0");
            command.envs(settings(rank));
            let output = |stream: &str| {
                Stdio::from(fs::File::create(ranks.place.path().join(format!("{rank}.{stream}"))).unwrap())
            };
            command.stdin(Stdio::null()).stdout(output("out")).stderr(output("err"));
            ranks.children.push(command.spawn().unwrap());
        }
        ranks
    }

    pub fn pid(&self, rank: usize) -> u32 {
        self.children[rank].id()
    }

    /// Waits until a rank has come to this point.
    pub fn wait_for(&self, rank: usize, point: &str) {
        await_file(&self.place.path().join(format!("{rank}.{point}")));
    }

    /// Tells the ranks, as if another rank had.
    pub fn reach(&self, rank: usize, point: &str) {
        fs::write(self.place.path().join(format!("{rank}.{point}")), []).unwrap();
    }

    /// Sends a rank a signal.
    pub fn signal(&self, rank: usize, signal: i32) {
        // SAFETY: the process is a child that has not been waited for
        assert_eq!(unsafe { libc::kill(self.pid(rank) as i32, signal) }, 0);
    }

    /// What a rank wrote: `out` or `err`.
    pub fn wrote(&self, rank: usize, stream: &str) -> String {
        fs::read_to_string(self.place.path().join(format!("{rank}.{stream}"))).unwrap()
    }

    /// Waits for these ranks to end; one that has not within `limit` is a failure of the test.
    pub fn wait(&mut self, which: impl IntoIterator<Item = usize>, limit: Duration) -> Vec<Ended> {
        let began = Instant::now();
        which
            .into_iter()
            .map(|rank| {
                loop {
                    if let Some(status) = self.children[rank].try_wait().unwrap() {
                        let said =
                            fs::read_to_string(self.place.path().join(format!("{rank}.said"))).unwrap_or_default();
                        break Ended { status, said, after: began.elapsed() };
                    }
                    if began.elapsed() > limit {
                        let (out, err) = (self.wrote(rank, "out"), self.wrote(rank, "err"));
                        panic!("rank {rank} did not end within {limit:?}\n{out}\n{err}");
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
            .collect()
    }

    /// Waits for all ranks, and expects each to have ended well. What each said.
    pub fn succeed(&mut self, limit: Duration) -> Vec<String> {
        let all = 0..self.children.len();
        let ended = self.wait(all, limit);
        let said = ended.into_iter().enumerate().map(|(rank, ended)| {
            assert!(ended.status.success(), "rank {rank}: {}\n{}", self.wrote(rank, "out"), self.wrote(rank, "err"));
            ended.said
        });
        said.collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An id as `ferronickel run` hands it over.
pub fn hex(id: &UniqueId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As in a sandbox that does not know the call: memfd_create fails from now on.
fn forbid_memfd() {
    let statement = |code: u32, jt, jf, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal, give) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ, libc::BPF_RET);
    let mut filter = [
        statement(load, 0, 0, 0),
        statement(equal, 0, 1, libc::SYS_memfd_create as u32),
        statement(give, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid and is copied by the kernel; it binds every thread of this process, as is meant
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        assert_eq!(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program), 0);
    }
}
