//! `ferronickel env`: every variable, its value in force, where it came from, its default and what it means.

use std::io::{self, Write};

use clap::Args;
use ferronickel::Config;
use ferronickel::config::Entry;
use serde_json::{Value, json};

use crate::exit::Failure;

/// Options of `env`.
#[derive(Args, Debug)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints every variable.
pub fn run(options: &Options) -> Result<(), Failure> {
    let config = Config::from_environment();
    let text = match options.json {
        true => format!("{:#}\n", as_json(&config)),
        false => as_text(&config),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
}

/// A paragraph for each variable, and what is wrong with those that are set at the end.
fn as_text(config: &Config) -> String {
    let mut text: String = config.entries().map(|entry| paragraph(&entry)).collect();
    let remarks = config.warnings().iter().chain(config.notes());
    text.extend(remarks.map(|remark| format!("# {remark}\n")));
    text
}

fn paragraph(entry: &Entry) -> String {
    let variable = entry.variable;
    let value = match &entry.value {
        Some(value) => format!("{}={value}", variable.name),
        None => format!("{} is not set", variable.name),
    };
    let default = if variable.default.is_empty() { "none" } else { variable.default };
    let source = &entry.source;
    let (meaning, kind) = (variable.meaning, variable.kind);
    format!("{value}\n    from:    {source}\n    default: {default}\n    takes:   {kind}\n    {meaning}\n\n")
}

fn as_json(config: &Config) -> Value {
    let variables: Vec<_> = config.entries().map(|entry| object(&entry)).collect();
    json!({ "variables": variables, "warnings": config.warnings(), "notes": config.notes() })
}

fn object(entry: &Entry) -> Value {
    let refused = entry.refused.as_ref().map(|(value, source)| json!({ "value": value, "source": source.to_string() }));
    json!({
        "name": entry.variable.name,
        "value": entry.value,
        "source": entry.source.to_string(),
        "default": (!entry.variable.default.is_empty()).then_some(entry.variable.default),
        "takes": entry.variable.kind.to_string(),
        "meaning": entry.variable.meaning,
        "refused": refused,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ferronickel::config::VARIABLES;

    use super::*;

    fn config(variables: &[(&str, &str)]) -> Config {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Config::read(variables, Path::new("/nonexistent/nccl.conf"))
    }

    #[test]
    fn every_variable_has_its_paragraph() {
        let text = as_text(&config(&[]));
        for variable in VARIABLES {
            assert!(text.contains(variable.name) && text.contains(variable.meaning), "{}", variable.name);
        }
    }

    #[test]
    fn a_value_names_its_source() {
        let text = as_text(&config(&[("NCCL_DEBUG", "INFO")]));
        assert!(text.contains("NCCL_DEBUG=INFO\n    from:    set in the environment\n"), "{text}");
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let config = config(&[("NCCL_P2P_DISABLE", "maybe")]);
        assert!(as_text(&config).contains("maybe"));
        let json = as_json(&config);
        let refused = json["variables"].as_array().unwrap().iter().find(|entry| entry["name"] == "NCCL_P2P_DISABLE");
        if let Some(entry) = refused {
            assert_eq!(entry["refused"]["value"], "maybe");
        }
    }

    #[test]
    fn json_has_all_of_it() {
        let json = as_json(&config(&[("NCCL_DEBUG", "INFO")]));
        let entries = json["variables"].as_array().unwrap();
        assert_eq!(entries.len(), VARIABLES.len());
        let debug = entries.iter().find(|entry| entry["name"] == "NCCL_DEBUG").unwrap();
        assert_eq!((&debug["value"], &debug["source"]), (&json!("INFO"), &json!("set in the environment")));
    }
}
