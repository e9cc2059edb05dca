//! A coordinator, and servers that it leads.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use crate::running::{Folder, MBAL, Running, free_ports, output_of};

/// A coordinator, killed with the test.
pub struct Coordinator {
    pub child: Child,
    pub url: String,
}

impl Coordinator {
    pub fn start(folder: &Folder, port: u16, servers: usize) -> Coordinator {
        Coordinator::start_with(folder, port, servers, &[])
    }

    pub fn start_with(folder: &Folder, port: u16, servers: usize, flags: &[&str]) -> Coordinator {
        let listen = format!("127.0.0.1:{port}");
        let mut command = Command::new(MBAL);
        command.args(["coordinator", "--listen", &listen, "--servers", &servers.to_string()]);
        command.args(["--heartbeat-ms", "100", "--state"]).arg(folder.path("state.json"));
        command.args(flags);
        let child = command.stderr(Stdio::null()).spawn().expect("the program is there");
        Coordinator { child, url: format!("http://{listen}") }
    }

    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    pub fn map(&self) -> Option<String> {
        let output = output_of(MBAL.as_ref(), &["cluster", "map", "--coordinator", &self.url]);
        output.status.success().then(|| String::from_utf8(output.stdout).expect("it is text"))
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn free_port() -> u16 {
    free_ports(1)[0]
}

pub fn folder(test: &str) -> Folder {
    let folder = Folder::new(test);
    folder.keep("secret", "a secret of this test\n");
    folder
}

pub fn arguments<'a>(url: &'a str, secret: &'a str) -> Vec<&'a str> {
    vec![
        "-p",
        "-1",
        "-t",
        "1",
        "--control",
        "off",
        "--worker-ports",
        "0",
        "--coordinator",
        url,
        "--cluster-secret",
        secret,
    ]
}

pub fn server(folder: &Folder, url: &str) -> Running {
    drop(std::fs::remove_file(folder.path("ports")));
    let secret = folder.path("secret").display().to_string();
    Running::serve(folder, &arguments(url, &secret))
}

/// Without a map it may close on who asks.
pub fn stores(server: &Running) -> bool {
    let mut stream = server.connect();
    let mut stored = |n: usize| {
        use std::io::Write;
        let mut reply = [0; 64];
        stream.write_all(format!("set k{n} 0 0 1\r\nv\r\n").as_bytes())?;
        let count = stream.read(&mut reply)?;
        std::io::Result::Ok(reply[..count] == *b"STORED\r\n")
    };
    (0..20).all(|n| stored(n).unwrap_or(false))
}
