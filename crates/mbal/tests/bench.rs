//! `mbal bench` from a shell: what it prints, refuses, and leaves.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Output};

mod running;

use running::{Folder, MBAL, Running, stats};

/// A short run: 200 requests by two connections.
fn bench(port: u16, flags: &[&str]) -> Output {
    let mut bench = Command::new(MBAL);
    bench.args(["bench", &format!("127.0.0.1:{port}"), "--keys", "100", "--connections", "2"]);
    bench.args(["--warmup", "0", "--requests", "200"]).args(flags);
    bench.env_remove("MBAL_PASSWORD").env_remove("MBAL_PORT").env_remove("SSL_CERT_FILE");
    bench.output().unwrap()
}

fn said(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The first of two ports in a row that are free now.
fn two_ports() -> String {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port));
    (0..100)
        .find_map(|_| {
            let first = free(0).unwrap();
            let port = first.local_addr().unwrap().port();
            port.checked_add(1).filter(|next| free(*next).is_ok()).map(|_| port.to_string())
        })
        .expect("there are two free ports in a row")
}

/// The error of a run that was refused.
fn refused(port: u16, flags: &[&str]) -> String {
    let output = bench(port, flags);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(said(&output.stdout), "");
    said(&output.stderr).into()
}

#[test]
fn a_forgotten_prefill_is_the_last_line_and_the_loudest() {
    let folder = Folder::new("bench-prefill");
    let server = Running::serve(&folder, &["-p", "-1", "-t", "1"]);
    let output = bench(server.port, &[]);
    assert!(output.status.success(), "{output:?}");
    let table = said(&output.stdout);
    let end = "!! 1: HIT RATIO 0%: none of 200 gets found its key; no key was set before: --prefill does\n";
    assert!(table.ends_with(end) && table.contains("hit ratio\n  1        0.00%\n"), "{table}");

    let output = bench(server.port, &["--prefill"]);
    assert!(output.status.success(), "{output:?}");
    let table = said(&output.stdout);
    let verdict = table.lines().last().unwrap();
    assert!(verdict.starts_with("1: ") && verdict.ends_with(", 100.00% hits"), "{table}");
    assert!(
        !table.contains(" to ") && !table.contains("rounds"),
        "one round has no spread: {table}"
    );
}

#[test]
fn a_ramps_file_says_what_was_offered_and_how_late_the_generator_was() {
    let folder = Folder::new("bench-ramp");
    let server = Running::serve(&folder, &["-p", "-1", "-t", "1"]);
    let file = folder.path("ramp.csv");
    let mut bench = Command::new(MBAL);
    bench.args(["bench", &format!("127.0.0.1:{}", server.port), "--connections", "2", "--prefill"]);
    bench.args(["--rate", "100-900", "--duration", "0.8", "--interval", "0.2", "--over-time"]);
    assert!(bench.arg(&file).output().unwrap().status.success());
    let text = fs::read_to_string(&file).unwrap();
    let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut lines = text.lines().map(cells);
    let columns = lines.next().unwrap();
    let column = |name: &str| columns.iter().position(|column| column == name).unwrap();
    let rows: Vec<Vec<String>> = lines.collect();
    let offered: Vec<&str> = rows.iter().map(|row| &*row[column("offered_per_second")]).collect();
    assert_eq!(offered, ["200.0", "400.0", "600.0", "800.0"]);
    for row in rows {
        assert!(row[column("lag_p99_us")].parse::<f64>().unwrap() > 0.0, "{row:?}");
    }
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_sent() {
    let folder = Folder::new("bench-before");
    let server = Running::serve(&folder, &["-p", "-1", "-t", "1"]);
    let none = folder.path("none");
    let file = none.join("out.csv").display().to_string();
    let none = none.display();
    assert_eq!(
        refused(server.port, &["--prefill", "--over-time", &file]),
        format!("mbal bench: --over-time {file}: there is no folder {none}; mkdir -p {none}\n")
    );
    let said = refused(server.port, &["--client-cores", "1000"]);
    let start = "mbal bench: --client-cores 1000: no core 1000 here; this process may use ";
    assert!(said.starts_with(start), "{said}");
    let trace = folder.path("b.txt.gz").display().to_string();
    fs::write(folder.path("a.txt"), "1\n").unwrap();
    let here = folder.0.display();
    let mut bench = Command::new(MBAL);
    let output = bench.args(["bench", "--trace", &trace]).output().unwrap();
    assert_eq!(
        (output.status.code(), std::str::from_utf8(&output.stderr).unwrap()),
        (Some(1), &*format!("mbal bench: {trace}: no such file; {here} has a.txt\n"))
    );
    assert!(stats(&mut server.connect()).contains("STAT cmd_get 0\r\n"));
}

#[test]
fn bench_logs_in_by_text_by_binary_and_as_a_smart_client() {
    let folder = Folder::new("bench-login");
    let file = |name: &str, text: &str| {
        fs::write(folder.path(name), text).unwrap();
        folder.path(name).display().to_string()
    };
    let (users, password, other) =
        (file("users", "ann:se-cret\n"), file("password", "se-cret\n"), file("other", "no\n"));
    let login = ["--prefill", "--user", "ann", "--password-file", &password];
    for (serve, speak, refusal) in [
        (&["-Y", &users][..], &[][..], "CLIENT_ERROR authentication failure"),
        (&["-Y", &users], &["--follow"], "CLIENT_ERROR authentication failure"),
        (&["-S"], &["--protocol", "binary"], "Auth failure."),
    ] {
        let mut command = Command::new(MBAL);
        command.args(["serve", "-p", "-1", "-t", "2", "--worker-ports", &two_ports()]).args(serve);
        command.env("MEMCACHED_SASL_PWDB", &users);
        fs::remove_file(folder.path("ports")).ok();
        let server = Running::of(&folder, &mut command).unwrap();
        let output = bench(server.port, &[&login[..], speak].concat());
        assert!(output.status.success(), "{serve:?} {speak:?}: {output:?}");
        assert!(said(&output.stdout).ends_with(", 100.00% hits\n"), "{output:?}");
        let address = format!("127.0.0.1:{}", server.port);
        let wrong = ["--user", "ann", "--password-file", &other];
        assert_eq!(
            refused(server.port, &[&wrong[..], speak].concat()),
            format!("mbal bench: {address}: the login of \"ann\": {refusal}\n")
        );
        assert_eq!(
            refused(server.port, speak),
            format!(
                "mbal bench: {address}: it asks for a login: --user NAME --password-file FILE\n"
            )
        );
    }
}

#[test]
fn bench_speaks_tls_and_tells_which_flag_is_missing() {
    let folder = Folder::new("bench-tls");
    let [key, chain] = ["key.pem", "chain.pem"].map(|name| folder.path(name).display().to_string());
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-subj", "/CN=test", "-keyout", &key, "-out", &chain])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("SKIPPED, NOT TESTED: no openssl");
        return;
    }
    let options = format!("ssl_chain_cert={chain},ssl_key={key}");
    let server = Running::serve(&folder, &["-p", "-1", "-t", "1", "-Z", "-o", &options]);
    for flags in [&["--tls-ca", &chain][..], &["--tls-insecure"]] {
        let output = bench(server.port, &[&["--prefill"], flags].concat());
        assert!(output.status.success(), "{flags:?}: {output:?}");
        let table = said(&output.stdout);
        assert!(table.contains("; Meta over TLS, ") && table.ends_with(" hits\n"), "{table}");
    }
    let address = format!("127.0.0.1:{}", server.port);
    assert_eq!(
        refused(server.port, &[]),
        format!("mbal bench: {address}: this port speaks TLS: --tls, --tls-ca or --tls-insecure\n")
    );
    assert_eq!(
        refused(server.port, &["--udp", "--tls-insecure"]),
        "mbal bench: TLS and logins are for memcached's protocols over TCP\n"
    );
}
