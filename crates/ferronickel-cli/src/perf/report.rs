//! Where results go: the table on standard output, the JSON file if one was asked for, and the progress on a terminal.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Zoned;

use super::json;
use super::measure::{Memory, Row, Summary};
use super::settings::Settings;
use super::size::in_words;
use super::table::{self, RankDevice, TIME_FORMAT};
use crate::exit::Failure;

/// The report of one run.
pub struct Report<'a> {
    settings: Settings,
    out: &'a mut (dyn Write + Send),
    /// Until it is closed.
    json: Option<json::Report<BufWriter<File>>>,
    progress: ProgressBar,
    memory: Memory,
    /// What all rows so far come to.
    pub summary: Summary,
    /// The first element that was wrong, in words.
    pub first_wrong: Option<String>,
}

impl<'a> Report<'a> {
    /// Opens what has to be opened, before anything runs.
    pub fn new(settings: Settings, out: &'a mut (dyn Write + Send)) -> Result<Self, Failure> {
        let json = settings.json.as_deref().map(json::Report::create).transpose()?;
        let longest = settings.sweep.largest() + u64::from(settings.unalign) * settings.largest_element();
        let memory = Memory { buffers: 2 * u64::from(settings.local_ranks()) * longest, ..Memory::default() };
        let (progress, summary) = (progress(&settings), Summary::default());
        Ok(Self { settings, out, json, progress, memory, summary, first_wrong: None })
    }

    /// Writes everything that comes before the first row: what was asked for, the devices, and the largest size if it
    /// had to be reduced.
    pub fn begin(&mut self, asked: &Settings, devices: &[RankDevice], reduced: Option<u64>) -> Result<(), Failure> {
        let mut text = String::new();
        if let Some(json) = &mut self.json {
            let args: Vec<_> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
            let variables = std::env::vars_os()
                .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
            json.begin(asked, devices, &args, variables, &now())?;
            text.push_str(&format!("# Writing JSON output to {}\n", json.path().display()));
        }
        text.push_str(&table::start(asked));
        text.extend(devices.iter().map(table::device));
        text.extend(reduced.map(table::reduced));
        self.print(&text)
    }

    /// The ranks are ready, and took so many bytes; each has so many resident. Writes the names of the columns.
    pub fn initialised(&mut self, bytes: u64, resident: u64) -> Result<(), Failure> {
        (self.memory.initialisation, self.memory.resident_at_start) = (bytes, resident);
        self.print(&table::header(&self.settings))
    }

    /// Shows what is being measured.
    pub fn measuring(&self, bytes: u64, name: &str) {
        self.progress.set_message(format!("{} {name}", in_words(bytes)));
    }

    /// Writes a row.
    pub fn row(&mut self, row: &Row) -> Result<(), Failure> {
        self.summary.add(row);
        let time = self.settings.timestamps.then(now);
        self.print(&table::row(row, time.as_deref()))?;
        self.progress.inc(1);
        match &mut self.json {
            Some(json) => json.result(row, &self.settings),
            None => Ok(()),
        }
    }

    /// Remembers an element that was wrong, if it is the first.
    pub fn wrong(&mut self, element: Option<String>) {
        self.first_wrong = self.first_wrong.take().or(element);
    }

    /// All is measured, and a rank has so many bytes resident.
    pub fn measured(&mut self, resident: u64) {
        self.memory.resident_at_end = resident;
    }

    /// Writes everything that comes after the last row.
    pub fn end(&mut self, warning: &str) -> Result<(), Failure> {
        self.progress.finish_and_clear();
        let memory = self.settings.memory.then_some(self.memory);
        self.print(&table::footer(&self.settings, &self.summary, memory, warning))?;
        let errors: Vec<_> = (!warning.is_empty()).then(|| warning.to_owned()).into_iter().collect();
        self.end_json(memory, &errors)
    }

    /// Closes the report of a run that failed, if it is still open.
    pub fn end_early(&mut self, failure: &Failure) {
        self.progress.finish_and_clear();
        // The failure at hand says more than one in writing about it.
        let _ = self.end_json(None, std::slice::from_ref(&failure.message));
    }

    fn end_json(&mut self, memory: Option<Memory>, errors: &[String]) -> Result<(), Failure> {
        match self.json.take() {
            Some(mut json) => json.end(&self.summary, self.settings.min_bandwidth, memory, errors, &now()),
            None => Ok(()),
        }
    }

    fn print(&mut self, text: &str) -> Result<(), Failure> {
        let out = &mut self.out;
        let written = self.progress.suspend(|| out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        written.map_err(|error| Failure::output(&error))
    }
}

/// A bar on standard error if that is a terminal, and nothing otherwise.
fn progress(settings: &Settings) -> ProgressBar {
    let target = match io::stderr().is_terminal() && settings.process == 0 {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let (bar, template) = match settings.rows() {
        Some(rows) => (ProgressBar::new(rows), "[{bar:30}] {pos}/{len} {msg}"),
        None => (ProgressBar::no_length(), "{spinner} {pos} {msg}"),
    };
    bar.set_draw_target(target);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn now() -> String {
    Zoned::now().strftime(TIME_FORMAT).to_string()
}
