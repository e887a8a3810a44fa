//! What a line looks like. Everything here is a function of its arguments, so that tests can pin each format.

use std::fmt::{self, Write};

/// Who writes a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'l> {
    pub(super) host: &'l str,
    pub(super) pid: u32,
    pub(super) tid: i32,
    pub(super) dev: i32,
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, tid, dev } = self;
        write!(f, "{host}:{pid}:{tid} [{dev}]")
    }
}

/// The place in the source that a WARN line names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'l> {
    pub(super) file: &'l str,
    pub(super) line: u32,
    pub(super) function: &'l str,
}

/// The index of a thread's device, as a line shows it: -1 where there is none.
pub trait DeviceIndex {
    /// The index.
    fn index(self) -> i32;
}

impl DeviceIndex for i32 {
    fn index(self) -> i32 {
        self
    }
}

impl DeviceIndex for u32 {
    fn index(self) -> i32 {
        self.try_into().unwrap_or(-1)
    }
}

impl DeviceIndex for usize {
    fn index(self) -> i32 {
        self.try_into().unwrap_or(-1)
    }
}

impl<T: DeviceIndex> DeviceIndex for Option<T> {
    fn index(self) -> i32 {
        self.map_or(-1, T::index)
    }
}

/// An INFO line.
pub(super) fn info(timestamp: &str, origin: &Origin<'_>, message: fmt::Arguments<'_>) -> String {
    format!("{timestamp}{origin} NCCL INFO {message}\n")
}

/// A WARN line; an empty one before it makes it stand out.
pub(super) fn warning(timestamp: &str, origin: &Origin<'_>, place: &Place<'_>, text: &str) -> String {
    let Place { file, line, function } = place;
    format!("\n{timestamp}{origin} {file}:{line} ({function}) NCCL WARN {text}\n")
}

/// The line that names the version.
pub(super) fn version(message: fmt::Arguments<'_>) -> String {
    format!("{message}\n")
}

/// A host's name as lines and file names show it: up to the first dot, with nothing that could be a directive or a path.
pub(super) fn host(nodename: &str) -> String {
    nodename.split('.').next().unwrap_or_default().replace(['%', '/'], "-")
}

/// Fills in the pattern of a log file's name: %h, %p and %%; any other directive stays as it is.
pub(super) fn file_name(pattern: &str, host: &str, pid: u32) -> String {
    let mut name = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            name.push(character);
            continue;
        }
        match characters.next() {
            Some('h') => name.push_str(host),
            Some('p') => {
                let _ = write!(name, "{pid}");
            }
            Some('%') | None => name.push('%'),
            Some(other) => name.extend(['%', other]),
        }
    }
    name
}

/// The path of a source file as a WARN line shows it: from the crate's sources on, "transport/shm.rs".
pub(super) fn source_file(path: &str) -> &str {
    path.rsplit_once("src/").map_or(path, |(_, file)| file)
}

/// The function's name out of the path of an item inside it: "crate::module::connect::{{closure}}::here" is "connect".
pub(super) fn function(item: &str) -> &str {
    let mut path = item.rsplit_once("::").map_or(item, |(path, _)| path);
    while let Some(outer) = path.strip_suffix("::{{closure}}") {
        path = outer;
    }
    path.rsplit_once("::").map_or(path, |(_, name)| name)
}
