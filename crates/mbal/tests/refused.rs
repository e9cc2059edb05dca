//! The binary when it cannot serve: what it says, and with which code it exits.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

const MBAL: &str = env!("CARGO_BIN_EXE_mbal");

fn output_of(command: &mut Command) -> Output {
    command.env("MBAL_CONTROL", "off").stdin(Stdio::null()).output().unwrap()
}

/// What a server says that the system lets down.
fn refusal(command: &mut Command) -> String {
    let refused = output_of(command);
    assert_eq!(refused.status.code(), Some(71), "{command:?}: {refused:?}");
    String::from_utf8(refused.stderr).unwrap()
}

#[test]
fn a_port_that_is_taken_is_said_with_the_flag_that_chooses_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let address = format!("127.0.0.1:{port}");
    for (flag, arguments) in [
        ("-p", &["-p", &port][..]),
        ("-p or -l", &["-l", &address]),
        ("--metrics", &["-p", "-1", "--metrics", &port]),
        ("--worker-ports", &["-p", "-1", "-t", "1", "--worker-ports", &port]),
    ] {
        let said = refusal(Command::new(MBAL).arg("serve").args(arguments));
        assert!(said.contains("failed to listen on "), "{said}");
        assert!(said.contains(&format!("port {port}")), "{said}");
        let advice = format!("another server has this port; choose one with {flag}\n");
        assert!(said.ends_with(&advice), "{arguments:?}: {said}");
    }
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = refusal(Command::new(MBAL).args(["serve", "-p", "-1", "-U", &port]));
    assert!(said.contains(&format!("failed to listen on UDP port {port}")), "{said}");
    assert!(said.ends_with("another server has this port; choose one with -U\n"), "{said}");
}

#[test]
fn a_name_that_is_no_address_is_refused() {
    refusal(Command::new(MBAL).args(["serve", "-l", "no such host", "-p", "-1"]));
}

#[test]
fn memory_that_the_kernel_does_not_give_is_said() {
    let limited = "ulimit -d 200000 && exec \"$0\" serve -p -1 -m 1024";
    let said = refusal(Command::new("sh").args(["-c", limited, MBAL]));
    let expected =
        "-m 1024: the kernel does not give so much memory: Cannot allocate memory (os error 12)\n";
    let there_is = said.strip_prefix(expected).expect("the flag comes first");
    assert!(there_is.starts_with("this machine has "), "{said}");
    assert!(there_is.ends_with(", ulimit allows the process 195 MiB\n"), "{said}");
}

#[test]
fn a_value_that_is_no_number_is_said_with_the_flag_and_its_form() {
    for (flags, expected) in [
        (
            &["-m", "64m"][..],
            "error: invalid value '64m' for '-m, --memory-limit <num>': not a whole number\n\n  \
             Memory for items and their index, in MiB; or auto, three quarters of what this process may use\n\n\
             For more information, try '--help'.\n",
        ),
        (
            &["-m", "-5"],
            "error: invalid value '-5' for '-m, --memory-limit <num>': less than 0\n\n  \
             Memory for items and their index, in MiB; or auto, three quarters of what this process may use\n\n\
             For more information, try '--help'.\n",
        ),
        (
            &["--load-max", "x"],
            "error: invalid value 'x' for '--load-max <part>': not a number\n\n  \
             The part of its time that a worker may be busy before another is to help it\n\n\
             For more information, try '--help'.\n",
        ),
    ] {
        let refused = output_of(Command::new(MBAL).arg("serve").args(flags));
        assert_eq!(refused.status.code(), Some(1));
        assert_eq!(String::from_utf8(refused.stderr).unwrap(), expected, "{flags:?}");
    }
    for flags in
        [&["-p", "abc"][..], &["-c", "5x"], &["-f", "abc"], &["-m", "99999999999999999999"]]
    {
        let refused = output_of(Command::new(MBAL).arg("serve").args(flags));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(
            said.starts_with(&format!("error: invalid value '{}' for '{}, --", flags[1], flags[0])),
            "{said}"
        );
        assert!(!said.contains("invalid digit") && !said.contains("literal"), "{said}");
    }
}

#[test]
fn the_form_is_that_of_the_subcommands_flag() {
    let refused = output_of(Command::new(MBAL).args(["bench", "--threads", "abc"]));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.starts_with("error: invalid value 'abc' for "), "{said}");
    assert!(said.contains("not a whole number\n\n  "), "{said}");
    assert!(!said.contains("affinity and CPU quota"), "that is the server's: {said}");
}

#[test]
fn a_word_that_belongs_to_no_flag_is_refused() {
    let refused = output_of(Command::new(MBAL).args(["serve", "-p", "-1", "stray"]));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.starts_with("error: unexpected argument 'stray' found\n"), "{said}");
}

/// What became of a server: its exit code, or none when it listens.
fn start(program: &str, flags: &[&str], folder: &Path) -> Option<i32> {
    let ports = folder.join("ports");
    let mut command = Command::new(program);
    command.args(["-u", "root", "-l", "127.0.0.1"]).args(flags);
    if !flags.contains(&"-p") {
        command.args(["-p", "-1"]);
    }
    command.env("MEMCACHED_PORT_FILENAME", &ports).env("SASL_CONF_PATH", folder);
    command.env("MEMCACHED_SASL_PWDB", folder.join("users")).env("MBAL_CONTROL", "off");
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = command.spawn().expect("it is there");
    let begun = Instant::now();
    let ended = loop {
        if let Some(status) = server.try_wait().expect("it is ours") {
            break status.code();
        }
        if ports.exists() || folder.join("socket").exists() {
            break None;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{program} {flags:?} does neither");
        thread::sleep(Duration::from_millis(10));
    };
    drop(server.kill());
    server.wait().expect("it was started");
    drop(fs::remove_file(&ports));
    drop(fs::remove_file(folder.join("socket")));
    ended
}

/// Whatever memcached does with two or three flags about who may speak what, where, we do, by its exit codes.
#[test]
fn flags_together_start_or_are_refused_as_by_memcached() {
    let folder = std::env::temp_dir().join(format!("mbal-pairs-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("users"), "user:password\n").unwrap();
    let memcached = folder.join("memcached");
    symlink(MBAL, &memcached).unwrap();
    let ours = memcached.to_str().unwrap();
    let there = |name: &str| Command::new(name).arg("-V").stdout(Stdio::null()).status().is_ok();
    if !there("memcached") || start("memcached", &["-S"], &folder).is_some() {
        fs::remove_dir_all(&folder).unwrap();
        return eprintln!("SKIPPED: this needs a memcached with SASL, as Debian's");
    }
    let flags: [&[&str]; 8] = [
        &["-S"],
        &["-Y", "users"],
        &["-B", "ascii"],
        &["-B", "binary"],
        &["-B", "auto"],
        &["-U", "-1"],
        &["-s", "socket"],
        &["-p", "0", "-U", "-1"],
    ];
    let (mut tried, mut refused) = (0, 0);
    for first in 0..flags.len() {
        for second in first..flags.len() {
            // Of three, those that quarrel most.
            for third in if second < 5 { second..5 } else { second..second + 1 } {
                let mut places = vec![first, second, third];
                places.dedup();
                let words: Vec<&str> = places.iter().flat_map(|at| flags[*at]).copied().collect();
                let theirs = start("memcached", &words, &folder);
                assert_eq!(start(ours, &words, &folder), theirs, "{words:?}");
                tried += 1;
                refused += u32::from(theirs.is_some());
            }
        }
    }
    assert!(tried > 50 && refused > 10, "{refused} of {tried}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_of_no_passwords_is_said_to_be_empty() {
    let file = std::env::temp_dir().join(format!("mbal-empty-{}", std::process::id()));
    for text in ["", "\n", " \n"] {
        fs::write(&file, text).unwrap();
        let refused = output_of(Command::new(MBAL).args(["serve", "-p", "-1", "-Y"]).arg(&file));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(": it is empty, so nobody could log in\n"), "{said}");
    }
    fs::remove_file(&file).unwrap();
}

#[test]
fn sasl_without_a_file_of_passwords_does_not_start() {
    let mut command = Command::new(MBAL);
    command.args(["serve", "-p", "-1", "-S"]);
    command.env_remove("MEMCACHED_SASL_PWDB").env_remove("SASL_CONF_PATH");
    let refused = output_of(&mut command);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.starts_with("Error initializing sasl: nobody could log in. "), "{said}");
}
