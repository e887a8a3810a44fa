//! What lines look like and which are shown; `process` tests what happens to a whole process.

use std::ffi::OsString;
use std::path::Path;

use super::*;
use jiff::civil::date;
use jiff::tz::TimeZone;

mod process;

fn config(environment: &[(&str, &str)]) -> Config {
    let environment = environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Config::read(environment, Path::new("/nonexistent/nccl.conf"))
}

const ORIGIN: Origin<'_> = Origin { host: "node7", pid: 653, tid: 660, dev: 1 };

#[test]
fn lines_look_as_in_nccl() {
    let message = format_args!("Channel {:02}/{:01} : {}[{}] -> {}[{}] via SHM/direct", 0, 0, 0, 0, 1, 1);
    insta::assert_snapshot!(format::info("", &ORIGIN, message), @"node7:653:660 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct");
    assert!(format::info("", &ORIGIN, message).ends_with("SHM/direct\n"));

    let place = Place { file: "transport/shm.rs", line: 42, function: "connect" };
    let line = format::warning("[2026-03-04 05:06:07] ", &ORIGIN, &place, "Call to mmap failed");
    assert_eq!(
        line,
        "\n[2026-03-04 05:06:07] node7:653:660 [1] transport/shm.rs:42 (connect) NCCL WARN Call to mmap failed\n"
    );

    assert_eq!(format::version(format_args!("NCCL version {}", "2.30.7")), "NCCL version 2.30.7\n");
    let nowhere = Origin { dev: -1, ..ORIGIN };
    insta::assert_snapshot!(format::info("", &nowhere, format_args!("Bootstrap: Using {}", "eth0")), @"node7:653:660 [-1] NCCL INFO Bootstrap: Using eth0");
}

#[test]
fn a_device_is_an_index_or_minus_one() {
    assert_eq!((3_i32.index(), 3_u32.index(), 3_usize.index(), Some(3_usize).index()), (3, 3, 3, 3));
    assert_eq!(((-1).index(), None::<u32>.index(), usize::MAX.index()), (-1, -1, -1));
}

#[test]
fn a_host_is_cut_at_the_first_dot_and_made_harmless() {
    for (nodename, host) in [("vm", "vm"), ("node7.example.org", "node7"), ("a/b%c.d", "a-b-c"), ("", ""), (".x", "")] {
        assert_eq!(format::host(nodename), host);
    }
}

#[test]
fn a_file_name_is_filled_in_and_other_directives_stay() {
    let cases = [
        ("/tmp/log", "/tmp/log"),
        ("/tmp/%h.%p.log", "/tmp/node7.653.log"),
        ("%p%p%%p", "653653%p"),
        ("%H%q%5p", "%H%q%5p"),
        ("100%", "100%"),
        ("%%%h", "%node7"),
        ("%é", "%é"),
        ("", ""),
    ];
    for (pattern, name) in cases {
        assert_eq!(format::file_name(pattern, "node7", 653), name, "{pattern}");
    }
}

#[test]
fn a_place_is_named_by_file_and_function() {
    assert_eq!(format::source_file("crates/ferronickel/src/transport/shm.rs"), "transport/shm.rs");
    assert_eq!(format::source_file("/home/src/registry/src/ferronickel-0.1.0/src/device.rs"), "device.rs");
    assert_eq!(format::source_file("elsewhere.rs"), "elsewhere.rs");
    assert_eq!(format::function("ferronickel::transport::shm::connect::here"), "connect");
    assert_eq!(format::function("ferronickel::shm::connect::{{closure}}::{{closure}}::here"), "connect");
    assert_eq!(format::function("<ferronickel::shm::Shm as ferronickel::Transport>::setup::here"), "setup");
    assert_eq!(format::function("here"), "here");
}

fn timestamp(format: &str) -> String {
    let time = date(2026, 3, 4).at(5, 6, 7, 123_987_654).to_zoned(TimeZone::UTC).unwrap();
    let timestamps = Timestamps::new(&config(&[("NCCL_DEBUG_TIMESTAMP_FORMAT", format)]));
    timestamps.format_time(&time)
}

#[test]
fn timestamps_are_strftimes() {
    let unset = Timestamps::new(&config(&[]));
    let time = date(2026, 3, 4).at(5, 6, 7, 0).to_zoned(TimeZone::UTC).unwrap();
    assert_eq!(unset.format_time(&time), "[2026-03-04 05:06:07] ");
    assert_eq!(timestamp("%T.%3f_"), "05:06:07.123 ");
    assert_eq!(timestamp("%9f|%1f"), "123987654|1");
    assert_eq!(timestamp("%s %j %a %b %e"), "1772600767 063 Wed Mar  4");
    assert_eq!(timestamp("%c|%x|%X"), "Wed Mar  4 05:06:07 2026|03/04/26|05:06:07");
    // What is no directive stays, and nothing makes a line endless or a character half.
    assert_eq!(timestamp("50% %é %"), "50% %é %");
    assert!(timestamp("%99999Y").len() <= 256);
    assert!(timestamp(&"é".repeat(1000)).len() <= 256);
}

#[test]
fn only_lines_of_the_levels_asked_for_have_a_timestamp() {
    let levels = |list: &str| {
        let environment: &[(&str, &str)] = if list.is_empty() { &[] } else { &[("NCCL_DEBUG_TIMESTAMP_LEVELS", list)] };
        let timestamps = Timestamps::new(&config(environment));
        [Level::Warn, Level::Info, Level::Trace].map(|level| !timestamps.prefix(level).is_empty())
    };
    assert_eq!(levels(""), [true, false, false]);
    assert_eq!(levels("warn,info"), [true, true, false]);
    assert_eq!(levels("^WARN"), [false, true, true]);
    assert_eq!(levels("ALL"), [true, true, true]);
    assert_eq!(levels("NONE"), [false, false, false]);
    let none = config(&[("NCCL_DEBUG_TIMESTAMP_LEVELS", "ALL"), ("NCCL_DEBUG_TIMESTAMP_FORMAT", "")]);
    assert_eq!(Timestamps::new(&none).prefix(Level::Warn), "");
}

#[test]
fn subsystems_have_nccls_bits() {
    let bits = |list: &str| Filter::new(&config(&[("NCCL_DEBUG_SUBSYS", list)])).subsystems.bits();
    let numbered = [
        ("INIT", 0x1),
        ("COLL", 0x2),
        ("P2P", 0x4),
        ("SHM", 0x8),
        ("NET", 0x10),
        ("GRAPH", 0x20),
        ("TUNING", 0x40),
        ("ENV", 0x80),
        ("ALLOC", 0x100),
        ("CALL", 0x200),
        ("PROXY", 0x400),
        ("NVLS", 0x800),
        ("BOOTSTRAP", 0x1000),
        ("REG", 0x2000),
        ("PROFILE", 0x4000),
        ("RAS", 0x8000),
        ("DESTROY", 0x10000),
        ("ALLOC_HOST", 0x20000),
        ("ALL", u32::MAX),
    ];
    for (name, expected) in numbered {
        assert_eq!(bits(name), expected, "{name}");
    }
    assert_eq!(numbered.map(|(name, _)| name).as_slice(), variables::SUBSYSTEM_NAMES);
    assert_eq!(bits("init,Net"), 0x11);
    assert_eq!(bits("^INIT,NET"), !0x11);
    assert_eq!(bits("^ALL"), 0);
    assert_eq!(Filter::new(&config(&[])).subsystems, Subsys::INIT | Subsys::BOOTSTRAP | Subsys::ENV);
}

#[test]
fn levels_have_nccls_numbers() {
    for (number, name) in variables::LEVEL_NAMES.iter().enumerate() {
        let level = Filter::new(&config(&[("NCCL_DEBUG", name)])).level;
        assert_eq!(usize::from(level as u8), number, "{name}");
    }
    assert_eq!(Filter::new(&config(&[])).level, Level::None);
}
