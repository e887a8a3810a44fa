//! The log, line for line what NCCL writes under `NCCL_DEBUG`, so that users' habits, scripts and greps keep working.
//!
//! The log belongs to the process. [`init`] sets it up from the first communicator's settings; until then, and where
//! `NCCL_DEBUG` does not ask for more, a line costs one relaxed load. Lines are written with `info!`, `warn!` and
//! `version!`; [`announce`] is for what a user should hear even when the log is off.
//!
//! Nothing that happens to the log happens to the program: a closed pipe, a full disk, a file that grows too large or
//! cannot be opened is said once and survived.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::config::{Config, variables};

pub use filter::{Level, Subsys};
pub(crate) use format::DeviceIndex;

use filter::Filter;
use format::{Origin, Place};
use sink::Sink;
use timestamp::Timestamps;

mod filter;
mod format;
mod sink;
#[cfg(test)]
mod tests;
mod timestamp;

/// Writes an INFO line if the log shows one of the subsystems: `info!(dev, Subsys::INIT | Subsys::P2P, "...", ...)`.
///
/// `dev` is the index of the calling thread's device, -1 or `None` where there is none.
macro_rules! info {
    ($dev:expr, $subsys:expr, $($message:tt)+) => {{
        let subsys = $subsys;
        if $crate::diagnostics::log::enabled($crate::diagnostics::log::Level::Info, subsys) {
            $crate::diagnostics::log::write_info($dev, ::std::format_args!($($message)+));
        }
    }};
}

/// Writes a WARN line with its place in the source, and keeps its text for [`last_warning`]: `warn!(dev, "...", ...)`.
macro_rules! warn_ {
    ($dev:expr, $($message:tt)+) => {{
        // The path of an item in a function names the function, which no macro does.
        fn here() {}
        $crate::diagnostics::log::write_warning(
            $dev,
            ::std::file!(),
            ::std::line!(),
            ::std::any::type_name_of_val(&here),
            ::std::format_args!($($message)+),
        );
    }};
}

/// Writes the line that names the version: bare at VERSION and WARN, an INFO line from INFO on, as NCCL does.
macro_rules! version {
    ($format:literal $($arguments:tt)*) => {
        $crate::diagnostics::log::write_version(-1, ::std::format_args!($format $($arguments)*))
    };
    ($dev:expr, $($message:tt)+) => {
        $crate::diagnostics::log::write_version($dev, ::std::format_args!($($message)+))
    };
}

pub(crate) use info;
pub(crate) use version;
// `warn` is also the name of a built-in attribute, which a macro of that name would make ambiguous here.
pub(crate) use warn_ as warn;

/// Sets up the log of this process. The first call decides; later ones change nothing.
pub fn init(config: &Config) {
    LOGGER.get_or_init(|| {
        let (logger, filter) = Logger::new(config);
        RAISE.store(config.flag(&variables::WARN_ENABLE_DEBUG_INFO).value, Ordering::Relaxed);
        ANNOUNCE.store(config.flag(&variables::ANNOUNCE).value, Ordering::Relaxed);
        SUBSYSTEMS.store(filter.subsystems.bits(), Ordering::Relaxed);
        set_level(filter.level);
        logger
    });
}

/// Writes what is set, and what is set in vain; once in a process, after [`init`].
///
/// Settings are INFO lines of ENV. A setting that cannot be used is a WARN line; where the log does not show those it
/// goes to the standard error, since a mistyped `NCCL_DEBUG` would otherwise hide the very line that tells of it.
pub fn log_settings(config: &Config) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    if enabled(Level::Info, Subsys::ENV) {
        for line in config.set_lines() {
            write_info(-1, format_args!("{line}"));
        }
        for note in config.notes() {
            write_info(-1, format_args!("{note}"));
        }
    }
    for warning in config.warnings() {
        announce_from(file!(), line!(), "log_settings", warning);
    }
}

/// Whether the log shows lines of this level about any of these subsystems. WARN and VERSION are of every subsystem.
#[inline]
pub fn enabled(level: Level, subsys: Subsys) -> bool {
    match level {
        Level::None => false,
        Level::Version | Level::Warn => LEVEL.load(Ordering::Relaxed) >= level as u8,
        // One load, since these are asked for where time matters.
        Level::Info => INFO.load(Ordering::Relaxed) & subsys.bits() != 0,
        Level::Abort | Level::Trace => {
            LEVEL.load(Ordering::Relaxed) >= level as u8 && INFO.load(Ordering::Relaxed) & subsys.bits() != 0
        }
    }
}

/// The text of the last WARN line of this process, whether the log showed it or not; empty where there was none.
pub fn last_warning() -> String {
    LAST_WARNING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Tells the user what should be heard by default: that a slower road was taken than the hardware allows, or that a
/// collective makes no progress.
///
/// Where the log shows WARN it is a WARN line. It goes to the standard error, after "ferronickel: ", where the log does
/// not show it, or shows it only in a file. `FERRONICKEL_ANNOUNCE=0` leaves only the WARN line.
#[track_caller]
pub fn announce(line: &str) {
    let caller = Location::caller();
    announce_from(caller.file(), caller.line(), "announce", line);
}

/// Writes an INFO line; `info!` has asked whether to.
pub(crate) fn write_info(dev: impl DeviceIndex, message: fmt::Arguments<'_>) {
    let Some(logger) = LOGGER.get() else { return };
    let timestamp = logger.timestamps.prefix(Level::Info);
    logger.sink.write(&format::info(&timestamp, &logger.origin(dev.index()), message));
}

/// Keeps the text of a WARN line and writes it if the log shows it.
pub(crate) fn write_warning(dev: impl DeviceIndex, file: &str, line: u32, function: &str, message: fmt::Arguments<'_>) {
    let text = message.to_string();
    let place = Place { file: format::source_file(file), line, function: format::function(function) };
    show_warning(dev.index(), &place, &text);
    *LAST_WARNING.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

/// Writes the line that names the version.
pub(crate) fn write_version(dev: impl DeviceIndex, message: fmt::Arguments<'_>) {
    if !enabled(Level::Version, Subsys::ALL) {
        return;
    }
    // NCCL shows it at INFO whatever the subsystems are.
    if LEVEL.load(Ordering::Relaxed) >= Level::Info as u8 {
        write_info(dev, message);
    } else if let Some(logger) = LOGGER.get() {
        logger.sink.write(&format::version(message));
    }
}

/// The level in force.
static LEVEL: AtomicU8 = AtomicU8::new(Level::None as u8);

/// The subsystems whose INFO lines are shown: those asked for from INFO on, none below.
static INFO: AtomicU32 = AtomicU32::new(0);

/// The subsystems asked for.
static SUBSYSTEMS: AtomicU32 = AtomicU32::new(0);

/// Whether the first WARN line raises the level to INFO.
static RAISE: AtomicBool = AtomicBool::new(false);

/// Whether announcements go to the standard error.
static ANNOUNCE: AtomicBool = AtomicBool::new(true);

static LOGGER: OnceLock<Logger> = OnceLock::new();

static LAST_WARNING: Mutex<String> = Mutex::new(String::new());

/// What lines need besides their text: who writes, when, and where to.
struct Logger {
    host: String,
    sink: Sink,
    timestamps: Timestamps,
}

impl Logger {
    fn new(config: &Config) -> (Self, Filter) {
        let filter = Filter::new(config);
        let uname = rustix::system::uname();
        let host = format::host(&uname.nodename().to_string_lossy());
        // NCCL opens the file only for what goes into it.
        let file = config.text(&variables::DEBUG_FILE).value.filter(|_| filter.level > Level::Version);
        let sink = file.map_or_else(Sink::stdout, |pattern| {
            Sink::open(&format::file_name(pattern, &host, std::process::id())).unwrap_or_else(|line| {
                sink::to_stderr(&line);
                Sink::stdout()
            })
        });
        (Self { host, sink, timestamps: Timestamps::new(config) }, filter)
    }

    /// The process is asked for anew each time, since it may have forked.
    fn origin(&self, dev: i32) -> Origin<'_> {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        Origin { host: &self.host, pid: std::process::id(), tid, dev }
    }
}

fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    let shown = if level >= Level::Info { SUBSYSTEMS.load(Ordering::Relaxed) } else { 0 };
    INFO.store(shown, Ordering::Relaxed);
}

/// Writes a WARN line if the log shows it.
fn show_warning(dev: i32, place: &Place<'_>, text: &str) {
    if !enabled(Level::Warn, Subsys::ALL) {
        return;
    }
    let Some(logger) = LOGGER.get() else { return };
    if RAISE.swap(false, Ordering::Relaxed) && LEVEL.load(Ordering::Relaxed) == Level::Warn as u8 {
        set_level(Level::Info);
    }
    let timestamp = logger.timestamps.prefix(Level::Warn);
    logger.sink.write(&format::warning(&timestamp, &logger.origin(dev), place, text));
}

/// An announcement is no error, so it does not become the last warning.
fn announce_from(file: &str, line: u32, function: &str, text: &str) {
    let in_log = enabled(Level::Warn, Subsys::ALL);
    if in_log {
        let place = Place { file: format::source_file(file), line, function };
        show_warning(-1, &place, text);
    }
    let seen = in_log && LOGGER.get().is_some_and(|logger| logger.sink.is_seen());
    if !seen && ANNOUNCE.load(Ordering::Relaxed) {
        sink::to_stderr(text);
    }
}
