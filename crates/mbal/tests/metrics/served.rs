//! A server of its own for each test, which tells metrics.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::process::Command;

use crate::running::{Folder, MBAL, Running, page, told};

pub struct Served {
    running: Running,
    pub folder: Folder,
}

impl Deref for Served {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for Served {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

impl Served {
    pub fn start(test: &str, arguments: &[&str]) -> Served {
        Served::start_in(test, arguments, &[])
    }

    pub fn start_in(test: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Served {
        let folder = Folder::new(test);
        let mut command = Command::new(MBAL);
        command.args(["serve", "-p", "-1", "--metrics", "127.0.0.1:0"]).args(arguments);
        command.envs(environment.iter().copied());
        let running = Running::of(&folder, &mut command).expect("it serves");
        Served { running, folder }
    }

    /// All that is answered to a request that ends with `quit`.
    pub fn ask(&self, request: &str) -> String {
        told(self.connect(), request)
    }

    pub fn http(&self, request: &str) -> String {
        told(TcpStream::connect(("127.0.0.1", self.metrics)).unwrap(), request)
    }

    pub fn page(&self) -> String {
        page(self.metrics)
    }

    pub fn stats(&self, command: &str) -> BTreeMap<String, String> {
        let told = self.ask(&format!("{command}\r\nquit\r\n"));
        let words = told.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}
