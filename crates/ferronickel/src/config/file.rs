//! Files of settings: `KEY=VALUE` lines and `#` comments, as NCCL reads them.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// What a file of settings says, and what is wrong with it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileSettings {
    /// Name and value, in the order of the file; of a name set twice, only the first.
    pub(super) settings: Vec<(String, String)>,
    /// One line for each thing that is wrong.
    pub(super) warnings: Vec<String>,
}

/// Reads a file of settings. A file that is not there has no settings, and no warning unless it was asked for by name.
pub(super) fn read(path: &Path, asked_for: bool) -> FileSettings {
    match read_bytes(path) {
        Ok((bytes, cut)) => {
            let mut read = parse(path, &bytes);
            if cut {
                read.warnings.push(format!(
                    "{} is longer than {LIMIT} bytes; what follows is not read. Write one KEY=VALUE a line.",
                    path.display()
                ));
            }
            read
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !asked_for => FileSettings::default(),
        Err(error) => {
            let mut warning = format!("{} cannot be read: {error}; its settings are not in force.", path.display());
            if asked_for {
                warning.push_str(" NCCL_CONF_FILE names it");
                warning.push_str(if path.starts_with("~") {
                    "; a ~ in it is not expanded, write the whole path."
                } else {
                    "; name a file that exists, or unset it to read ~/.nccl.conf."
                });
            }
            FileSettings { settings: Vec::new(), warnings: vec![warning] }
        }
    }
}

/// Reads the settings out of a file's bytes. Any bytes will do: a line that says nothing is a warning with its number.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> FileSettings {
    let mut read = FileSettings::default();
    let mut first_lines: Vec<usize> = Vec::new();
    let mut complaints: Vec<String> = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        match parse_line(line) {
            Ok(None) => {}
            Ok(Some((name, value))) => match read.settings.iter().position(|(known, _)| *known == name) {
                None => {
                    read.settings.push((name.to_owned(), value.to_owned()));
                    first_lines.push(number);
                }
                Some(index) if read.settings[index].1 == value => {}
                Some(index) => complaints.push(format!(
                    "{}:{number}: {name} is set again; line {} is the one in force.",
                    path.display(),
                    first_lines[index]
                )),
            },
            Err(wrong) => complaints.push(format!("{}:{number}: {wrong}; write KEY=VALUE.", path.display())),
        }
    }
    let unsaid = complaints.len().saturating_sub(MOST_COMPLAINTS);
    read.warnings.extend(complaints.into_iter().take(MOST_COMPLAINTS));
    if unsaid > 0 {
        read.warnings.push(format!("{}: {unsaid} more lines cannot be used.", path.display()));
    }
    read
}

/// A file of settings is a screenful; a megabyte of it is some other file.
const LIMIT: u64 = 1 << 20;

/// How many lines of one file are complained about, before the rest is only counted.
const MOST_COMPLAINTS: usize = 10;

/// The file's bytes up to the limit, cut after the last whole line, and whether it was cut.
fn read_bytes(path: &Path) -> io::Result<(Vec<u8>, bool)> {
    // A pipe without a writer must not hang the process, and a terminal must not become its controlling one.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    let cut = bytes.len() as u64 > LIMIT;
    if cut {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(whole);
    }
    Ok((bytes, cut))
}

/// Name and value of one line, `None` for an empty line or a comment, or what is wrong with it.
fn parse_line(line: &[u8]) -> Result<Option<(&str, &str)>, &'static str> {
    let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8 text")?.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if line.contains(|character: char| character.is_control() && character != '\t') {
        return Err("the line holds control characters");
    }
    let (name, value) = line.split_once('=').ok_or("the line has no =")?;
    let name = name.trim_end();
    if name.is_empty() {
        return Err("there is no name before the =");
    }
    if name.starts_with("export ") {
        return Err("the file is not a shell script, leave out the export");
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err("what stands before the = is not the name of a variable");
    }
    Ok(Some((name, value.trim_start())))
}
