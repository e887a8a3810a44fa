//! Files of settings: what they say, what is wrong with them, and that no bytes do harm.

use std::os::unix::ffi::OsStrExt;

use super::super::file::{self, FileSettings};
use super::*;

fn parsed(text: &str) -> FileSettings {
    file::parse(Path::new("/etc/nccl.conf"), text.as_bytes())
}

#[test]
fn lines_are_settings_comments_or_empty() {
    let read = parsed(
        "# a comment\n\nNCCL_DEBUG=WARN\n  NCCL_ALGO = Ring,Tree \r\n  # another=one\nNCCL_HOSTID=a=b#c\nNCCL_PROTO=\n",
    );
    let settings: Vec<_> = read.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let expected = [("NCCL_DEBUG", "WARN"), ("NCCL_ALGO", "Ring,Tree"), ("NCCL_HOSTID", "a=b#c"), ("NCCL_PROTO", "")];
    assert_eq!(settings, expected);
    assert_eq!(read.warnings, [] as [String; 0]);
}

#[test]
fn a_line_that_cannot_be_used_is_told_with_its_number() {
    let text = b"NCCL_DEBUG\n=WARN\nexport NCCL_DEBUG=INFO\nNCCL DEBUG=INFO\nNCCL_ALGO=\xff\nNCCL_ALGO=a\x1bb\nNCCL_DEBUG=WARN";
    let read = file::parse(Path::new("/etc/nccl.conf"), text);
    assert_eq!(read.settings, [("NCCL_DEBUG".to_owned(), "WARN".to_owned())]);
    insta::assert_snapshot!(read.warnings.join("\n"), @r"
    /etc/nccl.conf:1: the line has no =; write KEY=VALUE.
    /etc/nccl.conf:2: there is no name before the =; write KEY=VALUE.
    /etc/nccl.conf:3: the file is not a shell script, leave out the export; write KEY=VALUE.
    /etc/nccl.conf:4: what stands before the = is not the name of a variable; write KEY=VALUE.
    /etc/nccl.conf:5: the line is not UTF-8 text; write KEY=VALUE.
    /etc/nccl.conf:6: the line holds control characters; write KEY=VALUE.
    ");
}

#[test]
fn the_first_line_of_a_name_wins_as_in_nccl() {
    let read = parsed("NCCL_DEBUG=WARN\n\nNCCL_DEBUG=WARN\nNCCL_DEBUG=INFO\n");
    assert_eq!(read.settings, [("NCCL_DEBUG".to_owned(), "WARN".to_owned())]);
    insta::assert_snapshot!(read.warnings.join("\n"), @"/etc/nccl.conf:4: NCCL_DEBUG is set again; line 1 is the one in force.");
}

#[test]
fn a_file_full_of_rubbish_is_told_briefly() {
    let read = parsed(&"rubbish\n".repeat(1000));
    assert_eq!(read.warnings.len(), 11);
    assert_eq!(read.warnings[10], "/etc/nccl.conf: 990 more lines cannot be used.");
}

#[test]
fn a_missing_file_is_told_only_where_it_was_named() {
    assert_eq!(config(&[("HOME", "/nonexistent")]).warnings(), &[] as &[String]);
    let named = config(&[("NCCL_CONF_FILE", "/nonexistent/my.conf"), ("HOME", "/nonexistent")]);
    insta::assert_snapshot!(named.warnings().join("\n"), @"/nonexistent/my.conf cannot be read: No such file or directory (os error 2); its settings are not in force. NCCL_CONF_FILE names it; name a file that exists, or unset it to read ~/.nccl.conf.");
    let tilde = config(&[("NCCL_CONF_FILE", "~/my.conf")]);
    assert!(tilde.warnings()[0].ends_with("a ~ in it is not expanded, write the whole path."));
}

#[test]
fn a_named_file_is_read_instead_of_the_users() {
    let files = Files::new("", "NCCL_DEBUG=WARN\n");
    let named = files.directory.path().join("my.conf");
    std::fs::write(&named, "NCCL_SHM_DISABLE=1\n").unwrap();
    let read = files.read(&[("NCCL_CONF_FILE", named.to_str().unwrap())]);
    assert_eq!(read.flag(&variables::SHM_DISABLE).source, &Source::UserFile(named.into()));
    assert_eq!(read.text(&variables::DEBUG).source, &Source::Default);
}

#[test]
fn a_file_cannot_name_another_file() {
    let files = Files::new("", "NCCL_CONF_FILE=/x\n");
    assert!(files.read(&[]).warnings()[0].starts_with("NCCL_CONF_FILE is read from the environment only"));
}

#[test]
fn what_is_no_file_is_told_and_does_not_hang() {
    let directory = tempfile::tempdir().unwrap();
    let read = file::read(directory.path(), true);
    assert!(read.warnings[0].contains("Is a directory"), "{:?}", read.warnings);

    let pipe = std::ffi::CString::new(directory.path().join("pipe").as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    // Nobody writes to it: an open that blocks would hang here.
    assert_eq!(file::read(&directory.path().join("pipe"), true).settings, []);

    assert_eq!(file::read(Path::new("/dev/null"), true), FileSettings::default());
    let endless = file::read(Path::new("/dev/zero"), true);
    assert!(endless.warnings.last().unwrap().contains("is longer than 1048576 bytes"), "{:?}", endless.warnings);
}

#[test]
fn a_huge_file_is_read_up_to_its_last_whole_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("huge");
    let mut text = "NCCL_SHM_DISABLE=1\n".to_owned();
    text.push_str(&"#".repeat((1 << 20) - text.len() - 20));
    text.push_str("\nNCCL_BUFFSIZE=1048577123\n");
    std::fs::write(&path, text).unwrap();
    let read = file::read(&path, true);
    assert_eq!(read.settings, [("NCCL_SHM_DISABLE".to_owned(), "1".to_owned())]);
    assert_eq!(read.warnings.len(), 1, "{:?}", read.warnings);
}

proptest! {
    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let read = file::parse(Path::new("/etc/nccl.conf"), &bytes);
        prop_assert!(read.settings.iter().all(|(name, _)| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')));
        prop_assert!(read.warnings.len() <= 11);
    }

    #[test]
    fn lines_that_almost_make_sense_do_no_harm(text in "([A-Z_ =#\t\r]{0,12}\n){0,8}") {
        let read = parsed(&text);
        let names: std::collections::HashSet<_> = read.settings.iter().map(|(name, _)| name).collect();
        prop_assert_eq!(names.len(), read.settings.len());
    }

    #[test]
    fn what_is_written_is_read(
        settings in prop::collection::btree_map("[A-Z][A-Z0-9_]{0,20}", "([!-~é]([ -~é]{0,30}[!-~é])?)?", 0..20),
        comment in "[ -~]{0,20}",
    ) {
        let text: String = settings.iter().map(|(name, value)| format!("#{comment}\n{name}={value}\n")).collect();
        let read = parsed(&text);
        prop_assert_eq!(read.settings.into_iter().collect::<std::collections::BTreeMap<_, _>>(), settings);
        prop_assert_eq!(read.warnings, Vec::<String>::new());
    }
}
