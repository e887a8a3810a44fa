//! Every setting: the environment variables, the files that set them, and what a program sets itself.
//!
//! The variables are declared once, in [`variables`]. A [`Config`] is one immutable view of all their values, each with
//! the place it came from, so that a decision taken because of a setting can name it. Who wins is NCCL's order: the
//! environment, then the program, then the user's file (`$NCCL_CONF_FILE` or `~/.nccl.conf`), then `/etc/nccl.conf`, then
//! the default. The process environment is read and never written.
//!
//! A setting that cannot be used never stops anything: the default is in force and a warning says what would be right.
//! This module keeps those warnings and the log prints them, because the log is itself configured from here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use error::ConfigError;
pub use setting::{Entry, Setting, Source};
pub use variables::{Kind, VARIABLES, Variable};

use setting::{Slot, printable};
use slip::Recognition;
use value::Value;

mod error;
mod file;
mod known;
mod setting;
mod slip;
#[cfg(test)]
mod tests;
pub(crate) mod value;
pub mod variables;

/// An immutable view of every setting; cheap to clone.
///
/// The default has no environment and no files: every variable has its default value.
#[derive(Clone, Debug)]
pub struct Config {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    /// One slot for each variable, in the order of the table.
    slots: Vec<Slot>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl Config {
    /// The settings of this process: its environment and the files, read once and kept, as NCCL does.
    pub fn from_environment() -> Self {
        static PROCESS: OnceLock<Config> = OnceLock::new();
        PROCESS.get_or_init(|| Self::read(std::env::vars_os(), Path::new(SYSTEM_FILE))).clone()
    }

    /// The settings in this environment, in the user's file that it names, and in this system file.
    pub fn read(environment: impl IntoIterator<Item = (OsString, OsString)>, system_file: &Path) -> Self {
        let mut inner = Inner::unset();
        let mut user_file = None;
        let mut home = None;
        // What comes first stays, so the sources are read in the order of their precedence.
        for (name, value) in environment {
            let Some(name) = name.to_str() else { continue };
            match name {
                "HOME" => home = Some(PathBuf::from(&value)),
                "NCCL_CONF_FILE" if !value.is_empty() => user_file = Some(PathBuf::from(&value)),
                _ => {}
            }
            inner.take_from_environment(name, value);
        }
        let asked_for = user_file.is_some();
        if let Some(path) = user_file.or_else(|| home.filter(|home| !home.as_os_str().is_empty()).map(in_home)) {
            inner.take_file(&path, asked_for, Source::UserFile);
        }
        inner.take_file(system_file, false, Source::SystemFile);
        Self { inner: Arc::new(inner) }
    }

    /// Sets a variable for the program. It wins over the files and the environment wins over it.
    ///
    /// # Errors
    ///
    /// Where ferronickel does not read such a variable, or the value is none of those it takes.
    pub fn with(mut self, name: &str, value: &str) -> Result<Self, ConfigError> {
        let Some(index) = VARIABLES.iter().position(|variable| variable.name == name) else {
            return Err(ConfigError::unknown(name));
        };
        let variable = VARIABLES[index];
        if std::ptr::eq(variable, &variables::CONF_FILE) {
            return Err(ConfigError::EnvironmentOnly { name: variable.name });
        }
        let slot = Slot::found(variable, value.to_owned(), Source::Program);
        if slot.warning().is_some() {
            return Err(ConfigError::InvalidValue { variable, value: printable(value).into_owned() });
        }
        if self.inner.slots[index].origin() != &Source::Environment {
            Arc::make_mut(&mut self.inner).slots[index] = slot;
        }
        Ok(self)
    }

    /// The value of a [`Kind::Flag`].
    pub fn flag(&self, variable: &'static Variable) -> Setting<'_, bool> {
        self.integer(variable).map(|value| value != 0)
    }

    /// The value of a [`Kind::Integer`], within the variable's bounds; of a flag, 0 or 1.
    pub fn integer(&self, variable: &'static Variable) -> Setting<'_, i64> {
        let slot = self.slot(variable);
        debug_assert!(matches!(slot.value, Value::Integer(_)), "{} is not an integer", variable.name);
        slot.setting(if let Value::Integer(value) = slot.value { value } else { 0 })
    }

    /// The value of any other kind; `None` where nobody set it and it has no default.
    pub fn text(&self, variable: &'static Variable) -> Setting<'_, Option<&str>> {
        let slot = self.slot(variable);
        debug_assert!(!matches!(slot.value, Value::Integer(_)), "{} is not text", variable.name);
        slot.setting(if let Value::Text(text) = &slot.value { Some(text.as_str()) } else { None })
    }

    /// Every variable with the value in force and where it came from.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.inner.slots.iter().map(Slot::entry)
    }

    /// What the user should hear: values and names that cannot be used, and files that cannot be read.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// What may be told more quietly: variables that are set and that ferronickel does not read.
    pub fn notes(&self) -> &[String] {
        &self.inner.notes
    }

    /// The log's line for each variable that somebody set and that is in force, in NCCL's words.
    pub(crate) fn set_lines(&self) -> impl Iterator<Item = String> + '_ {
        self.inner.slots.iter().filter_map(Slot::set_line)
    }

    fn slot(&self, variable: &'static Variable) -> &Slot {
        // `Variable` cannot be built outside its table, so the table has it.
        let index = VARIABLES.iter().position(|known| std::ptr::eq(*known, variable));
        &self.inner.slots[index.expect("a variable is always in the table")]
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { inner: Arc::new(Inner::unset()) }
    }
}

impl Inner {
    fn unset() -> Self {
        let slots = VARIABLES.iter().map(|variable| Slot::unset(variable)).collect();
        Self { slots, notes: Vec::new(), warnings: Vec::new() }
    }

    fn take_from_environment(&mut self, name: &str, value: OsString) {
        // Most of an environment is not for this library; this is where it is passed over.
        if slip::recognise(name) == Recognition::Foreign {
            return;
        }
        match value.into_string() {
            Ok(value) => self.take(name, value, Source::Environment),
            Err(value) => match variables::by_name(name) {
                Some(variable) => {
                    let shown = value.to_string_lossy();
                    self.warnings
                        .push(setting::invalid(variable, &shown, &Source::Environment) + " It is not UTF-8 text.");
                    self.put(variable, Slot::refused(variable, shown.into_owned(), Source::Environment));
                }
                None => self.take(name, String::new(), Source::Environment),
            },
        }
    }

    fn take_file(&mut self, path: &Path, asked_for: bool, source: fn(Arc<Path>) -> Source) {
        let read = file::read(path, asked_for);
        self.warnings.extend(read.warnings);
        let source = source(Arc::from(path));
        for (name, value) in read.settings {
            self.take(&name, value, source.clone());
        }
    }

    /// Takes one setting, unless a source of higher precedence has it already.
    fn take(&mut self, name: &str, value: String, source: Source) {
        match slip::recognise(name) {
            Recognition::Read if name == variables::CONF_FILE.name && source != Source::Environment => {
                self.warnings.push(ConfigError::EnvironmentOnly { name: variables::CONF_FILE.name }.to_string());
            }
            Recognition::Read => {
                if let Some(variable) = variables::by_name(name) {
                    let slot = Slot::found(variable, value, source);
                    if let Some(warning) = self.put(variable, slot).then(|| self.slot_of(variable).warning()).flatten()
                    {
                        self.warnings.push(warning);
                    }
                }
            }
            Recognition::Slip(meant) => self.warnings.push(slip::question(name, meant, &source)),
            Recognition::Unknown => {
                self.warnings.push(format!("{name} ({source}) is not a variable ferronickel knows."));
            }
            Recognition::Unread => self.notes.push(unread(name, &source)),
            // A file of settings is written for this library, so what it says in vain is worth a note.
            Recognition::Foreign if source != Source::Environment && !known::is_foreign(name) => {
                self.notes.push(unread(name, &source));
            }
            Recognition::Foreign => {}
        }
    }

    /// Fills the variable's slot if it is still free; says whether it was.
    fn put(&mut self, variable: &'static Variable, slot: Slot) -> bool {
        match self.slots.iter_mut().find(|known| std::ptr::eq(known.variable, variable)) {
            Some(free) if free.origin() == &Source::Default => {
                *free = slot;
                true
            }
            _ => false,
        }
    }

    fn slot_of(&self, variable: &'static Variable) -> &Slot {
        self.slots.iter().find(|slot| std::ptr::eq(slot.variable, variable)).expect("every variable has a slot")
    }
}

/// The file of settings for every user of the machine.
const SYSTEM_FILE: &str = "/etc/nccl.conf";

/// The user's file of settings, unless `NCCL_CONF_FILE` names another.
fn in_home(home: PathBuf) -> PathBuf {
    home.join(".nccl.conf")
}

fn unread(name: &str, source: &Source) -> String {
    match source {
        Source::Environment => format!("{name} is set but ferronickel does not read it"),
        _ => format!("{name} is {source} but ferronickel does not read it"),
    }
}
