//! `mbal doctor` on this host: what it finds by itself, whatever else is wrong here.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

mod running;

use running::led::{Coordinator, folder, free_port, server, stores};
use running::{MBAL, eventually, output_of};
use serde_json::Value;

/// Exit code, and the findings by level.
fn examined(words: &[&str]) -> (i32, Value) {
    let all: Vec<&str> = ["doctor", "--json"].iter().chain(words).copied().collect();
    let output = output_of(Path::new(MBAL), &all);
    let told = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{words:?}: {told} {error}"));
    (output.status.code().unwrap(), told)
}

/// Those of this check: level, what was seen, what mends it.
fn of(told: &Value, check: &str) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = told["findings"].as_array().unwrap().iter();
    all.filter(|finding| finding["check"] == check)
        .map(|finding| (text(&finding["level"]), text(&finding["seen"]), text(&finding["mend"])))
        .collect()
}

#[test]
fn ports_that_others_have_are_wrong_unless_a_server_is_running() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, told) = examined(&["--", "-p", &port, "-l", "127.0.0.1"]);
    let [(level, seen, mend)] = &of(&told, "port")[..] else { panic!("{told}") };
    assert_eq!((code, &**level), (1, "wrong"));
    assert!(seen.starts_with(&format!("--port {port}: Address already in use")), "{seen}");
    assert!(mend.contains(&format!("sport = :{port}")), "{mend}");
    assert_eq!(told["ok"], false);
    let (_, told) = examined(&["--running", "--", "-p", &port, "-l", "127.0.0.1"]);
    assert_eq!(of(&told, "port"), []);
}

#[test]
fn memory_beyond_the_machine_is_wrong_and_told_as_text() {
    let port = free_port().to_string();
    let words = ["doctor", "--", "-p", &port, "-m", "60000000"];
    let output = output_of(Path::new(MBAL), &words);
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let line = told.lines().find(|line| line.contains("-m 60000000 of the ")).expect("it is told");
    assert!(line.starts_with("WRONG  memory "), "{line}");
    assert!(told.contains("mend: -m "), "{told}");
}

#[test]
fn secrets_and_the_coordinator_are_looked_at_and_a_file_is_read() {
    let folder = folder("doctor");
    let secret = folder.path("secret");
    let config = folder.path("mbal.toml");
    let port = free_port();
    let text = format!(
        "[serve]\nport = {}\ncoordinator = \"http://127.0.0.1:{port}\"\ncluster-secret = {:?}\n",
        free_port(),
        secret.display().to_string()
    );
    std::fs::write(&config, text).unwrap();
    let words = ["--config", config.to_str().unwrap()];
    std::fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let (code, told) = examined(&words);
    assert_eq!(code, 1);
    let [(level, seen, mend)] = &of(&told, "secret")[..] else { panic!("{told}") };
    assert!(level == "wrong" && seen.contains("mode 644"), "{seen}");
    assert_eq!(mend, &format!("chmod o= {}", secret.display()));
    let [(level, seen, _)] = &of(&told, "coordinator")[..] else { panic!("{told}") };
    assert!(level == "wrong" && seen.contains("no coordinator"), "{seen}");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();

    let coordinator = Coordinator::start(&folder, port, 1);
    let member = server(&folder, &coordinator.url);
    eventually("it serves", || stores(&member));
    let (_, told) = examined(&words);
    assert_eq!(of(&told, "secret")[0].0, "right", "{told}");
    assert_eq!(of(&told, "links"), [], "{told}");
    eventually("the server has told its version", || {
        let (_, told) = examined(&words);
        let found = of(&told, "versions");
        found
            .iter()
            .any(|(level, seen, _)| level == "right" && seen.starts_with("all servers have"))
    });
}

#[test]
fn a_coordinator_is_named_as_for_other_commands_and_needs_no_secret() {
    let folder = folder("doctor-without-secret");
    let (port, own) = (free_port(), free_port().to_string());
    let coordinator = Coordinator::start(&folder, port, 1);
    let _member = server(&folder, &coordinator.url);
    eventually("the coordinator answers", || coordinator.map().is_some());
    let is_seen = |output: Output| {
        let told: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        let [(level, seen, _)] = &of(&told, "coordinator")[..] else { panic!("{told}") };
        assert!(level == "right" && seen.starts_with(&coordinator.url), "{seen}");
        let [(level, _, with)] = &of(&told, "secret")[..] else { panic!("{told}") };
        assert!(level == "skipped" && with.contains("--cluster-secret"), "{with}");
    };
    let doctor = ["doctor", "--json", "--coordinator", &coordinator.url, "--", "-p", &own];
    is_seen(output_of(Path::new(MBAL), &doctor));
    let by_environment = Command::new(MBAL)
        .args(["doctor", "--json", "--", "-p", &own])
        .env("MBAL_COORDINATOR", &coordinator.url)
        .output();
    is_seen(by_environment.expect("it runs"));
    // What no coordinator is asked about is told, too.
    let (_, told) = examined(&["--", "-p", &own]);
    let [(level, _, with)] = &of(&told, "coordinator")[..] else { panic!("{told}") };
    assert!(level == "skipped" && with.contains("MBAL_COORDINATOR"), "{with}");
}

#[test]
fn settings_that_are_no_servers_are_told() {
    for (words, code) in
        [(&["doctor", "--", "-I", "1"][..], 64), (&["doctor", "--", "--nothing"], 1)]
    {
        let output = output_of(Path::new(MBAL), words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(!output.stderr.is_empty());
    }
}
