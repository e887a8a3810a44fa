//! Rules of precedence, values and messages; the submodules test files and slips.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

mod files;
mod slips;

/// The settings in this environment, with no files.
fn config(environment: &[(&str, &str)]) -> Config {
    with_system_file(environment, Path::new("/nonexistent/nccl.conf"))
}

fn with_system_file(environment: &[(&str, &str)], system_file: &Path) -> Config {
    Config::read(environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))), system_file)
}

/// A directory with a system file and a home with a user's file in it.
struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new(system: &str, user: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("nccl.conf"), system).unwrap();
        std::fs::write(directory.path().join(".nccl.conf"), user).unwrap();
        Self { directory }
    }

    fn system(&self) -> PathBuf {
        self.directory.path().join("nccl.conf")
    }

    fn user(&self) -> PathBuf {
        self.directory.path().join(".nccl.conf")
    }

    fn read(&self, environment: &[(&str, &str)]) -> Config {
        let home = self.directory.path().to_str().unwrap();
        let environment: Vec<_> = environment.iter().copied().chain([("HOME", home)]).collect();
        with_system_file(&environment, &self.system())
    }
}

#[test]
fn a_source_of_higher_precedence_wins() {
    let files = Files::new("NCCL_BUFFSIZE=10000\nNCCL_MIN_NCHANNELS=1\n", "NCCL_BUFFSIZE=20000\n");
    let read = files.read(&[]);
    let buffsize = read.integer(&variables::BUFFSIZE);
    assert_eq!((buffsize.value, buffsize.source), (20000, &Source::UserFile(files.user().into())));
    let channels = read.integer(&variables::MIN_NCHANNELS);
    assert_eq!((channels.value, channels.source), (1, &Source::SystemFile(files.system().into())));

    let programmed = read.with("NCCL_BUFFSIZE", "30000").unwrap().with("NCCL_BUFFSIZE", "31000").unwrap();
    let buffsize = programmed.integer(&variables::BUFFSIZE);
    assert_eq!((buffsize.value, buffsize.source), (31000, &Source::Program));

    let environment = files.read(&[("NCCL_BUFFSIZE", "40000")]).with("NCCL_BUFFSIZE", "30000").unwrap();
    let buffsize = environment.integer(&variables::BUFFSIZE);
    assert_eq!((buffsize.value, buffsize.source), (40000, &Source::Environment));

    let nothing = Config::default();
    let buffsize = nothing.integer(&variables::BUFFSIZE);
    assert_eq!((buffsize.value, buffsize.source, buffsize.raw), (1 << 20, &Source::Default, None));
}

#[test]
fn a_setting_of_the_program_leaves_other_views_alone() {
    let before = Config::default();
    let after = before.clone().with("NCCL_P2P_DISABLE", "1").unwrap();
    assert!(!before.flag(&variables::P2P_DISABLE).value);
    assert!(after.flag(&variables::P2P_DISABLE).value);
}

#[test]
fn a_bad_value_leaves_the_default_in_force_and_is_told() {
    let read = config(&[("NCCL_BUFFSIZE", "4M"), ("NCCL_SHM_DISABLE", "true"), ("NCCL_DEBUG", "INOF")]);
    assert_eq!(read.integer(&variables::BUFFSIZE).value, 1 << 20);
    assert!(!read.flag(&variables::SHM_DISABLE).value);
    assert_eq!(read.text(&variables::DEBUG).value, Some("NONE"));
    insta::assert_snapshot!(read.warnings().join("\n"), @r"
    Invalid value 4M for NCCL_BUFFSIZE, using default 1048576. It is set in the environment; an integer from 4096 to 1073741824 would be right.
    Invalid value true for NCCL_SHM_DISABLE, using default 0. It is set in the environment; 0 or 1 would be right.
    Invalid value INOF for NCCL_DEBUG, using default NONE. It is set in the environment; one of NONE, VERSION, WARN, INFO, ABORT, TRACE would be right.
    ");
    let buffsize = read.entries().find(|entry| entry.variable.name == "NCCL_BUFFSIZE").unwrap();
    assert_eq!(buffsize.refused, Some(("4M".to_owned(), Source::Environment)));
    assert_eq!((buffsize.value.as_deref(), buffsize.source), (Some("1048576"), Source::Default));
}

#[test]
fn a_bad_value_in_the_environment_still_wins_over_what_comes_after_it() {
    let files = Files::new("", "NCCL_BUFFSIZE=20000\n");
    let read = files.read(&[("NCCL_BUFFSIZE", "huge")]).with("NCCL_BUFFSIZE", "30000").unwrap();
    assert_eq!(read.integer(&variables::BUFFSIZE).value, 1 << 20);
    assert_eq!(read.warnings().len(), 1, "{:?}", read.warnings());
}

#[test]
fn integers_are_read_as_strtoll_reads_them_with_base_0() {
    let cases = [
        ("0", 0),
        ("-2", -2),
        ("+7", 7),
        (" 12 ", 12),
        ("0x10", 16),
        ("0XfF", 255),
        ("-0x10", -16),
        ("010", 8),
        ("00", 0),
        ("9223372036854775807", i64::MAX),
        ("-9223372036854775808", i64::MIN),
    ];
    for (text, value) in cases {
        assert_eq!(value::integer(text), Some(value), "{text:?}");
    }
    let refused =
        ["", " ", "-", "0x", "08", "4M", "true", "1.5", "1 2", "--1", "+-1", "0x-1", "9223372036854775808", "é"];
    for text in refused {
        assert_eq!(value::integer(text), None, "{text:?}");
    }
}

#[test]
fn an_integer_out_of_bounds_is_refused() {
    for (value, expected) in [("-3", -2), ("-2", -2), ("64", 64), ("65", -2)] {
        let read = config(&[("NCCL_MAX_NCHANNELS", value)]);
        assert_eq!(read.integer(&variables::MAX_NCHANNELS).value, expected, "{value}");
    }
}

#[test]
fn an_empty_value_is_as_good_as_none_except_where_it_means_something() {
    let read =
        config(&[("NCCL_ALGO", ""), ("NCCL_BUFFSIZE", ""), ("NCCL_DEBUG", ""), ("NCCL_DEBUG_TIMESTAMP_FORMAT", "")]);
    assert_eq!(read.text(&variables::ALGO).value, None);
    assert_eq!(read.integer(&variables::BUFFSIZE).value, 1 << 20);
    assert_eq!(read.text(&variables::DEBUG_TIMESTAMP_FORMAT).value, Some(""));
    assert_eq!(read.warnings(), &[] as &[String]);
    assert_eq!(config(&[]).text(&variables::DEBUG_TIMESTAMP_FORMAT).value, Some("[%F %T] "));
}

#[test]
fn words_are_taken_in_any_case_and_names_are_not() {
    let read = config(&[("NCCL_DEBUG", "info"), ("nccl_shm_disable", "1"), ("NCCL_DEBUG_SUBSYS", "^init, net")]);
    assert_eq!(read.text(&variables::DEBUG).value, Some("INFO"));
    assert_eq!(read.text(&variables::DEBUG_SUBSYS).value, Some("^INIT,NET"));
    assert!(!read.flag(&variables::SHM_DISABLE).value);
}

#[test]
fn a_list_keeps_its_known_words_and_tells_of_the_others() {
    let read = config(&[("NCCL_DEBUG_SUBSYS", "INIT,NETT,GRAPH")]);
    assert_eq!(read.text(&variables::DEBUG_SUBSYS).value, Some("INIT,GRAPH"));
    assert_eq!(read.warnings().len(), 1);
    assert!(
        read.warnings()[0]
            .starts_with("NETT in NCCL_DEBUG_SUBSYS set in the environment is left out: it is none of INIT, ")
    );

    let read = config(&[("NCCL_DEBUG_SUBSYS", "NETT")]);
    assert_eq!(read.text(&variables::DEBUG_SUBSYS).value, Some("INIT,BOOTSTRAP,ENV"));
    assert!(
        read.warnings()[0].starts_with("Invalid value NETT for NCCL_DEBUG_SUBSYS, using default INIT,BOOTSTRAP,ENV.")
    );
}

#[test]
fn a_program_is_told_what_is_wrong() {
    let error = |name: &str, value: &str| Config::default().with(name, value).unwrap_err().to_string();
    insta::assert_snapshot!(error("NCCL_P2P_DISABLE", "yes"), @"invalid value yes for NCCL_P2P_DISABLE: 0 or 1 would be right");
    insta::assert_snapshot!(error("NCCL_P2P_DISABEL", "1"), @"NCCL_P2P_DISABEL is not a variable ferronickel or NCCL knows; did you mean NCCL_P2P_DISABLE?");
    insta::assert_snapshot!(error("COLOUR", "1"), @"COLOUR is not a variable ferronickel or NCCL knows; `ferronickel env` lists those that are");
    insta::assert_snapshot!(error("NCCL_IB_HCA", "mlx5"), @"NCCL_IB_HCA is a variable of NCCL's that ferronickel does not read");
    insta::assert_snapshot!(error("NCCL_CONF_FILE", "/x"), @"NCCL_CONF_FILE is read from the environment only; set it there before the program starts");
    let list = error("NCCL_DEBUG_SUBSYS", "INIT,NETT");
    assert!(
        list.starts_with("invalid value INIT,NETT for NCCL_DEBUG_SUBSYS: a comma-separated list of INIT, COLL,"),
        "{list}"
    );
}

#[test]
fn a_setting_is_a_reason() {
    let files = Files::new("NCCL_SHM_DISABLE=1\n", "");
    let read = files.read(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_ALGO", "Ring\n\x1b[31m")]);
    let read = read.with("FERRONICKEL_INIT_TIMEOUT", "0x10").unwrap();
    assert_eq!(read.flag(&variables::P2P_DISABLE).reason(), "NCCL_P2P_DISABLE=1 set in the environment");
    let system = format!("NCCL_SHM_DISABLE=1 set in {}", files.system().display());
    assert_eq!(read.flag(&variables::SHM_DISABLE).to_string(), system);
    assert_eq!(read.integer(&variables::INIT_TIMEOUT).reason(), "FERRONICKEL_INIT_TIMEOUT=0x10 set by the program");
    assert_eq!(read.text(&variables::PROTO).reason(), "NCCL_PROTO not set");
    assert_eq!(read.integer(&variables::BUFFSIZE).reason(), "NCCL_BUFFSIZE=1048576 by default");
    // A value must not be able to forge a line of the log.
    assert_eq!(read.text(&variables::ALGO).reason(), r"NCCL_ALGO=Ring\n\u{1b}[31m set in the environment");
}

#[test]
fn what_is_set_is_told_in_nccls_words() {
    let files = Files::new("", "NCCL_SHM_DISABLE=2\n");
    let read = files.read(&[("NCCL_BUFFSIZE", "0x10000"), ("NCCL_HOSTID", "host0"), ("NCCL_MIN_NCHANNELS", "many")]);
    let read = read.with("NCCL_MAX_NCHANNELS", "4").unwrap();
    let lines = read.set_lines().collect::<Vec<_>>().join("\n").replace(files.user().to_str().unwrap(), "FILE");
    insta::assert_snapshot!(lines, @r"
    NCCL_HOSTID set by environment to host0
    NCCL_SHM_DISABLE set by environment to 2. (FILE)
    NCCL_MAX_NCHANNELS set by program to 4.
    NCCL_BUFFSIZE set by environment to 65536.
    ");
}

#[test]
fn text_that_is_not_utf_8_is_refused() {
    let value = OsString::from_vec(b"Ring\xff".to_vec());
    let read = Config::read([(OsString::from("NCCL_ALGO"), value)], Path::new("/nonexistent/nccl.conf"));
    assert_eq!(read.text(&variables::ALGO).value, None);
    assert_eq!(read.warnings().len(), 1);
    assert!(read.warnings()[0].ends_with("It is not UTF-8 text."), "{}", read.warnings()[0]);
}

#[test]
fn a_secret_is_in_force_and_nowhere_to_be_seen() {
    let read = config(&[("FERRONICKEL_SECRET", "hunter2"), ("FERRONICKEL_UNIQUE_ID", "hunter2")]);
    let secret = read.text(&variables::SECRET);
    assert_eq!(secret.value, Some("hunter2"));
    assert_eq!(secret.reason(), "FERRONICKEL_SECRET=(set, not shown) set in the environment");
    let entry = read.entries().find(|entry| entry.variable.name == "FERRONICKEL_SECRET").unwrap();
    assert_eq!(entry.value.as_deref(), Some("(set, not shown)"));
    let lines: Vec<_> = read.set_lines().collect();
    assert_eq!(lines[0], "FERRONICKEL_SECRET set by environment to (set, not shown)");
    let bytes = OsString::from_vec(b"hunter2\xff".to_vec());
    let refused = Config::read([(OsString::from("FERRONICKEL_SECRET"), bytes)], Path::new("/nonexistent/nccl.conf"));
    assert_eq!((refused.text(&variables::SECRET).value, refused.warnings().len()), (None, 1));
    let entries: Vec<_> = [&read, &refused].into_iter().flat_map(Config::entries).collect();
    let all = format!("{lines:?}{read:?}{refused:?}{entries:?}{:?}", secret.raw);
    assert!(!all.contains("hunter2"), "{all}");
    // An empty secret is none, which is safer than one that everybody knows.
    assert_eq!(config(&[("FERRONICKEL_SECRET", "")]).text(&variables::SECRET).value, None);
}

#[test]
fn a_long_value_is_kept_whole_and_shown_cut() {
    let long = "x".repeat(100_000);
    let read = config(&[("NCCL_HOSTID", &long)]);
    assert_eq!(read.text(&variables::HOSTID).value, Some(long.as_str()));
    assert!(read.text(&variables::HOSTID).reason().len() < 400);
}

#[test]
fn the_table_is_sound() {
    for (index, variable) in VARIABLES.iter().enumerate() {
        assert!(value::parse(variable.kind, variable.default).is_some(), "default of {}", variable.name);
        assert_eq!(VARIABLES.iter().position(|other| other.name == variable.name), Some(index), "{}", variable.name);
        assert!(variable.meaning.ends_with('.'), "{}", variable.name);
        let ours = variable.name.starts_with("FERRONICKEL_");
        assert!(ours || known::is_known(variable.name), "NCCL does not know {}", variable.name);
    }
    assert_eq!(Config::default().entries().count(), VARIABLES.len());
    assert_eq!(Config::default().set_lines().count(), 0);
}

#[test]
fn the_process_is_read_once() {
    let (first, second) = (Config::from_environment(), Config::from_environment());
    assert!(Arc::ptr_eq(&first.inner, &second.inner));
}

proptest! {
    #[test]
    fn integers_agree_with_strtoll(
        text in "[ \t]{0,2}[+-]?(0[xX][0-9a-fA-F]{1,17}|0[0-7]{0,22}|[1-9][0-9]{0,19})",
    ) {
        let c_text = std::ffi::CString::new(text.as_str()).unwrap();
        // SAFETY: the text ends with a NUL, the end pointer may be null, and the location of errno is this thread's.
        let (value, overflowed) = unsafe {
            *libc::__errno_location() = 0;
            (libc::strtoll(c_text.as_ptr(), std::ptr::null_mut(), 0), *libc::__errno_location() != 0)
        };
        prop_assert_eq!(value::integer(&text), (!overflowed).then_some(value));
    }

    #[test]
    fn any_value_of_any_variable_is_taken_or_told(index in 0..VARIABLES.len(), value in any::<String>()) {
        let variable = VARIABLES[index];
        prop_assume!(variable.name != "NCCL_CONF_FILE");
        let read = config(&[(variable.name, &value)]);
        let entry = read.entries().nth(index).unwrap();
        prop_assert!(entry.source == Source::Environment || entry.value == Config::default().entries().nth(index).unwrap().value);
        prop_assert_eq!(entry.refused.is_some(), entry.source == Source::Default && !value.trim().is_empty());
        prop_assert!(read.warnings().iter().all(|warning| !warning.contains(char::is_control)));
        prop_assert!(read.set_lines().all(|line| !line.contains(char::is_control)));
        // A program hears of the same faults as an environment.
        let told = Config::default().with(variable.name, &value).is_err();
        prop_assert_eq!(told, !read.warnings().is_empty());
    }
}
