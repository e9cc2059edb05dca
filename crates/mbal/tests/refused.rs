//! The binary when it cannot serve: what it says, and with which code it exits.

use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Output, Stdio};

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
