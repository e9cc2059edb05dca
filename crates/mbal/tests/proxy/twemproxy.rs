//! twemproxy's configuration, and twemproxy itself where it is installed.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::pool::{Memcached, Proxied, ask_at, value_of};
use crate::running::led::free_port;
use crate::running::{Folder, Killed, MBAL, eventually, output_of};

/// Keys that hash far from each other.
fn key(number: usize) -> String {
    format!("{:08x}", (number as u32).wrapping_mul(2_654_435_761))
}

fn write(path: &Path, port: u16, more: &str, servers: &[String]) {
    let servers: String = servers.iter().map(|server| format!("   - {server}\n")).collect();
    let text = format!("pool:\n  listen: 127.0.0.1:{port}\n{more}  servers:\n{servers}");
    fs::write(path, text).unwrap();
}

#[test]
fn what_twemproxy_has_stored_is_found_by_its_own_configuration() {
    let Some(pool) = Memcached::some(3) else { return };
    let folder = Folder::new("proxy-twemproxy");
    for (round, more) in [
        "  hash: murmur\n  distribution: ketama\n  timeout: 2000\n",
        "  hash: one_at_a_time\n  distribution: modula\n  timeout: 2000\n  preconnect: true\n",
        "  auto_eject_hosts: true\n  server_failure_limit: 3\n  timeout: 2000\n",
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path("nutcracker.yml");
        let port = free_port();
        let servers: Vec<String> = (1..)
            .zip(&pool)
            .map(|(at, one)| {
                let name = if at == 2 { " second" } else { "" };
                format!("{}:{at}{name}", one.name())
            })
            .collect();
        write(&path, port, more, &servers);
        let program = ["/usr/sbin/nutcracker", "nutcracker", "twemproxy"];
        let start = |program: &&str| {
            let mut command = Command::new(program);
            command.args(["-s", &free_port().to_string(), "-o", "/dev/null", "-c"]).arg(&path);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
        };
        let Some(child) = program.iter().find_map(start) else {
            eprintln!("SKIPPED, NOT TESTED: no twemproxy");
            return;
        };
        let nutcracker = Killed(child);
        eventually("twemproxy listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        let name = |number: usize| format!("{round}{}", key(number));
        for number in 0..100 {
            let value = number.to_string();
            let request = format!("set {} 0 0 {}\r\n{value}\r\n", name(number), value.len());
            assert_eq!(ask_at(port, &request), "STORED\r\n");
        }
        drop(nutcracker);
        // It listens where twemproxy did.
        let flags = ["-p", &port.to_string(), "--twemproxy", path.to_str().unwrap()];
        let proxy = Proxied::start(&folder, &flags);
        for number in 0..100 {
            assert_eq!(proxy.value(&name(number)), Some(number.to_string()), "{more}");
        }
    }
}

#[test]
fn a_pools_servers_are_read_again_and_its_command_line_is_printed() {
    let Some(pool) = Memcached::some(2) else { return };
    let folder = Folder::new("proxy-pool");
    let path = folder.path("pool.yml");
    let file = path.to_str().unwrap();
    let servers: Vec<String> = pool.iter().map(|one| format!("{}:1", one.name())).collect();
    write(&path, 22121, "  timeout: 700\n", &servers[..1]);
    let output = output_of(MBAL.as_ref(), &["proxy", "--twemproxy", file, "--print"]);
    let printed =
        format!("mbal proxy -l 127.0.0.1 -p 22121 --timeout 700ms --upstream {}\n", servers[0]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), printed);
    let proxy = Proxied::start(&folder, &["--twemproxy", file, "--pool", "pool"]);
    assert_ne!(proxy.running.port, 22121, "a flag wins over the file");
    proxy.set("a", "x");
    write(&path, 22121, "  timeout: 700\n", &servers[1..]);
    proxy.hang_up();
    eventually("it has the other upstream", || value_of(&proxy.ask("get a\r\n")).is_none());
    proxy.set("b", "x");
    assert_eq!(pool[1].value("b").as_deref(), Some("x"));
    let said = |flags: &[&str]| {
        let all = [&["proxy", "--twemproxy", file], flags].concat();
        let output = output_of(MBAL.as_ref(), &all);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).trim().to_owned())
    };
    let (code, text) = said(&["--pool", "other"]);
    assert_eq!(code, Some(64));
    assert!(text.ends_with("there is no pool other; there are: pool"), "{text}");
    write(&path, 22121, "  redis: true\n", &servers);
    let (code, text) = said(&["--print"]);
    assert_eq!(code, Some(64));
    assert!(
        text.ends_with("pool: redis: the servers have to speak memcached's protocol"),
        "{text}"
    );
}
