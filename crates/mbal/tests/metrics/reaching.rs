//! Servers by their names, and `mbal top` at those that ask for something: TLS, a login, another protocol.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::running::MBAL;
use crate::served::Served;

fn top(arguments: &[&str]) -> Output {
    let mut top = Command::new(MBAL);
    top.args(["top", "--once", "--interval", "0.1"]).args(arguments);
    top.env_remove("MBAL_PASSWORD").env_remove("MBAL_PORT").env_remove("SSL_CERT_FILE");
    top.output().unwrap()
}

/// What is shown.
fn shown(arguments: &[&str]) -> String {
    let output = top(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What is wrong.
fn wrong(arguments: &[&str]) -> String {
    let output = top(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The files of a key and its certificate, self-signed, for the address of loopback.
fn certificate(folder: &Path, basic_constraints: &str) -> Option<[String; 2]> {
    let files = ["key.pem", "chain.pem"].map(|name| folder.join(name).display().to_string());
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", basic_constraints])
        .args(["-keyout", &files[0], "-out", &files[1]])
        .output();
    made.is_ok_and(|made| made.status.success()).then_some(files)
}

#[test]
fn top_logs_in_by_text_and_by_binary() {
    let folder = std::env::temp_dir().join(format!("mbal-top-login-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let [users, password, other] = ["users", "password", "other"].map(|name| {
        let file = folder.join(name);
        fs::write(
            &file,
            match name {
                "users" => "ann:se-cret\n",
                "password" => "se-cret\n",
                _ => "wrong\n",
            },
        )
        .unwrap();
        file.display().to_string()
    });
    let sasl = [("MEMCACHED_SASL_PWDB", users.as_str())];
    for (test, flags, refusal) in [
        ("text", &["-Y", &users][..], "CLIENT_ERROR authentication failure"),
        ("binary", &["-S"], "Auth failure."),
    ] {
        let server = Served::start_in(&format!("login-{test}"), flags, &sasl);
        let address = format!("127.0.0.1:{}", server.port);
        let told = shown(&[&address, "--user", "ann", "--password-file", &password]);
        assert!(told.contains("MBal as memcached") && told.contains("WORKERS\n   0 ["), "{told}");
        assert_eq!(
            wrong(&[&address, "--user", "ann", "--password-file", &other]),
            format!("mbal top: {address}: the login of \"ann\": {refusal}\n")
        );
        assert_eq!(
            wrong(&[&address]),
            format!("mbal top: {address}: it asks for a login: --user NAME --password-file FILE\n")
        );
    }
    let said = wrong(&["--user", "ann"]);
    assert_eq!(said, "mbal top: --user needs --password-file, or MBAL_PASSWORD\n");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_server_that_asks_for_no_login_is_told_no_password() {
    let server = Served::start("no-login", &["-t", "1"]);
    let address = format!("127.0.0.1:{}", server.port);
    let output = Command::new(MBAL)
        .args(["top", "--once", "--interval", "0.1", &address, "--user", "ann"])
        .env("MBAL_PASSWORD", "secret")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(server.stats("stats")["cmd_set"], "0");
}

#[test]
fn top_speaks_tls_and_tells_which_flag_is_missing() {
    let folder = std::env::temp_dir().join(format!("mbal-top-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    // As openssl makes it: an authority's.
    let Some([key, chain]) = certificate(&folder, "basicConstraints=critical,CA:TRUE") else {
        eprintln!("SKIPPED, NOT TESTED: no openssl");
        return;
    };
    let options = format!("ssl_chain_cert={chain},ssl_key={key}");
    let server = Served::start("tls", &["-t", "1", "-Z", "-o", &options]);
    let address = format!("127.0.0.1:{}", server.port);
    for flags in [&["--tls-ca", &chain][..], &["--tls", "--tls-ca", &chain], &["--tls-insecure"]] {
        let told = shown(&[&[address.as_str()], flags].concat());
        assert!(told.contains("MBal as memcached"), "{told}");
    }
    // Another certificate is nobody's.
    fs::create_dir_all(folder.join("other")).unwrap();
    let [other_key, other] =
        certificate(&folder.join("other"), "basicConstraints=critical,CA:FALSE").unwrap();
    let said = wrong(&[&address, "--tls-ca", &other]);
    assert!(said.starts_with(&format!("mbal top: {address}: TLS: invalid peer certificate: ")));
    assert!(
        said.ends_with("; --tls-ca FILE names who signed it, or the certificate itself\n"),
        "{said}"
    );
    assert_eq!(
        wrong(&[&address]),
        format!("mbal top: {address}: this port speaks TLS: --tls, --tls-ca or --tls-insecure\n")
    );
    // One that demands a client's certificate.
    let options = format!("{options},ssl_ca_cert={other},ssl_verify_mode=2");
    let server = Served::start("tls-both", &["-t", "1", "-Z", "-o", &options]);
    let address = format!("127.0.0.1:{}", server.port);
    let shows = [&address, "--tls-ca", &chain, "--tls-cert", &other, "--tls-key", &other_key];
    assert!(shown(&shows).contains("MBal as memcached"));
    assert!(wrong(&shows[..3]).starts_with(&format!("mbal top: {address}: ")));
    let none = folder.join("none.pem").display().to_string();
    assert!(wrong(&["--tls-ca", &none]).starts_with(&format!("mbal top: {none}: ")));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn text_in_a_pipe_has_every_key_in_full() {
    let server = Served::start("pipe", &["-t", "1", "--hot-sample", "1"]);
    let address = format!("127.0.0.1:{}", server.port);
    let key = format!("a:{}%20", "k".repeat(240));
    let told = (0..100)
        .map(|_| {
            server.ask(&format!("{}quit\r\n", format!("get {key}\r\n").repeat(100)));
            shown(&[&address])
        })
        .find(|told| told.contains("k%2520"))
        .expect("the key is seen");
    assert!(told.ends_with(&format!("  a:{}%2520\n", "k".repeat(240))), "{told}");
    assert!(!told.contains("q ends") && !told.contains(".."), "{told}");
}

#[test]
fn a_server_is_named_by_address_port_and_socket() {
    let server = Served::start("named", &["-t", "1"]);
    let port = server.port.to_string();
    let (v4, by_name) = (format!("127.0.0.1:{port}"), format!("localhost:{port}"));
    for (arguments, name) in [
        (&[v4.as_str()][..], &v4),
        (&["--server", &v4], &v4),
        (&["-p", &port], &v4),
        (&["127.0.0.1", "--port", &port], &v4),
        (&["localhost", "-p", &port], &by_name),
    ] {
        let told = shown(arguments);
        assert!(told.starts_with(&format!("{name}  MBal as memcached ")), "{arguments:?}: {told}");
    }
    let by_environment =
        Command::new(MBAL).args(["top", "--once"]).env("MBAL_PORT", &port).output().unwrap();
    assert!(by_environment.stdout.starts_with(v4.as_bytes()), "{by_environment:?}");
    let socket = server.folder.path("socket");
    let path = format!("unix:{}", socket.display());
    assert_eq!(
        wrong(&[&path]),
        format!("mbal top: {path}: No such file or directory (os error 2)\n")
    );
    let by_socket = ["-t", "1", "-s", socket.to_str().unwrap()];
    let _second = Served::start("named-socket", &by_socket);
    assert!(shown(&[&path]).starts_with(&format!("{path}  MBal as memcached ")));
    assert!(wrong(&[&port]).contains("a port needs a host before it, or -p: 127.0.0.1:"));
}

#[test]
fn a_control_socket_is_found_by_the_servers_name() {
    let server = Served::start("control-named", &["-t", "2"]);
    let socket = server.folder.path("clients");
    let by_socket = ["-t", "2", "-s", socket.to_str().unwrap()];
    let _second = Served::start("control-unix", &by_socket);
    let port = server.port.to_string();
    let names = ["127.0.0.1", "localhost"].map(|host| format!("{host}:{port}"));
    let path = format!("unix:{}", socket.display());
    let ask = |arguments: &[&str]| {
        let output = Command::new(MBAL).args(arguments).env_remove("MBAL_PORT").output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    for name in [&[names[0].as_str()][..], &[&names[1]], &["-p", &port], &[&path]] {
        let (code, said) = ask(&[&["cluster", "status"], name].concat());
        assert!(code == Some(0) && said.starts_with("version 1.0, "), "{name:?}: {said}");
        let (code, said) = ask(&[&["cluster", "explain", "a%25b"], name].concat());
        assert!(code == Some(0) && said.starts_with("key a%25b: hash "), "{name:?}: {said}");
    }
    assert_eq!(ask(&["cluster", "move", "1800/5", "1", &path]), (Some(0), "done\n".into()));
    let (_, said) = ask(&["cluster", "status", &path]);
    assert!(said.starts_with("version 1.1, "), "{said}");
    let (_, said) = ask(&["cluster", "status", "--server", &names[0]]);
    assert!(said.starts_with("version 1.0, "), "it is the other one's that has moved: {said}");
    // Whoever names a server does not ask a coordinator, and whoever sets a port in the environment names none.
    let nobody = "http://127.0.0.1:1";
    let (code, said) =
        ask(&["cluster", "move", "1800/5", "1", "--coordinator", nobody, "-p", &port]);
    assert!(code == Some(1) && said.contains("say one of them"), "{said}");
    let by_environment = |coordinator: &str, arguments: &[&str]| {
        let mut command = Command::new(MBAL);
        command.args(arguments).env("MBAL_PORT", &port).env("MBAL_COORDINATOR", coordinator);
        let output = command.output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let said = by_environment(nobody, &["cluster", "status"]);
    assert!(said.contains("no coordinator") && said.contains("MBAL_COORDINATOR"), "{said}");
    assert!(by_environment(nobody, &["cluster", "status", &names[0]]).starts_with("version 1.0, "));
    let full = std::fs::File::create("/dev/full").unwrap();
    let full = Command::new(MBAL).args(["cluster", "status", &names[0]]).stdout(full).output();
    let full = full.unwrap();
    assert_eq!(full.status.code(), Some(1), "{full:?}");
    assert!(String::from_utf8_lossy(&full.stderr).contains("No space left"), "{full:?}");
    let other = format!("127.0.0.2:{port}");
    let (code, said) = ask(&["cluster", "status", &other]);
    let expected = format!("mbal: no control socket of {other}: looked in ");
    assert!(code == Some(1) && said.starts_with(&expected), "{said}");
}

#[test]
fn help_is_wrapped_to_the_terminal() {
    for (command, about) in [
        (&["cluster", "status"][..], "Servers and loads "),
        (&["cluster", "explain"], "Why a key "),
        (&["cluster", "move"], "Moves a cachelet "),
        (&["pool", "resize"], "Moves items "),
        (&["top"], "Shows what a server does "),
        (&["bench"], "Loads a memcached-compatible server "),
        (&["serve"], "mbal "),
    ] {
        let mut asked = Command::new(MBAL);
        let help = asked.args(command).arg("--help").env("COLUMNS", "60").output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        // The usage is one line.
        let wide = |line: &&str| line.len() > 60 && line.trim().contains(' ');
        let wide = help.lines().filter(|line| !line.starts_with("Usage: ")).find(wide);
        assert_eq!(wide, None, "{command:?}");
        assert!(help.starts_with(about), "{help}");
    }
}
