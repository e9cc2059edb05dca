//! A memcached of few commands.

use std::collections::{BTreeMap, VecDeque};

/// Items go when it dies.
#[derive(Default)]
pub struct Memcached {
    pub items: BTreeMap<String, String>,
    /// It executes nothing until then.
    pub stopped_until: u64,
    /// It cannot be dialed until then.
    pub away_until: u64,
    /// By client: requests of connections that are gone, which it has received.
    pub ghosts: BTreeMap<usize, VecDeque<String>>,
}

/// One connection to it, as the network has it.
#[derive(Default)]
pub struct Wire {
    pub up: bool,
    pub requests: VecDeque<String>,
    pub replies: VecDeque<String>,
}

impl Memcached {
    pub fn execute_ghosts(&mut self, client: usize) {
        for request in self.ghosts.remove(&client).unwrap_or_default() {
            self.execute(&request);
        }
    }

    /// Executes the first `count` of what a client's connection has brought. What its earlier connections brought is executed in the
    /// same turn of the event loop, before or after.
    pub fn turn(&mut self, client: usize, wire: &mut Wire, count: u64, ghosts_first: bool) {
        if ghosts_first {
            self.execute_ghosts(client);
        }
        for _ in 0..count {
            let Some(request) = wire.requests.pop_front() else { break };
            let reply = self.execute(&request);
            wire.replies.push_back(reply);
        }
        self.execute_ghosts(client);
    }

    pub fn execute(&mut self, request: &str) -> String {
        let (line, value) = request.split_once("\r\n").expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["get", ..] => {
                let found = words[1..].iter().filter_map(|key| Some((key, self.items.get(*key)?)));
                let value = |(key, value): (&&str, &String)| {
                    format!("VALUE {key} 0 {}\r\n{value}\r\n", value.len())
                };
                found.map(value).collect::<String>() + "END\r\n"
            }
            ["mg", key, ..] => match self.items.get(key) {
                None => "EN\r\n".into(),
                Some(value) if words.contains(&"f") => {
                    format!("VA {} f0 t-1\r\n{value}\r\n", value.len())
                }
                Some(value) => format!("VA {}\r\n{value}\r\n", value.len()),
            },
            ["set", key, ..] => {
                self.items.insert(key.into(), value.trim_end().into());
                "STORED\r\n".into()
            }
            ["delete", key] => match self.items.remove(key) {
                Some(_) => "DELETED\r\n".into(),
                None => "NOT_FOUND\r\n".into(),
            },
            ["md", key] => match self.items.remove(key) {
                Some(_) => "HD\r\n".into(),
                None => "NF\r\n".into(),
            },
            ["flush_all"] => {
                self.items.clear();
                "OK\r\n".into()
            }
            ["config", "get", "mbal"] => "ERROR\r\n".into(),
            ["version"] => "VERSION 1\r\n".into(),
            _ => panic!("{request:?}"),
        }
    }
}

/// The whole requests that a text consists of.
pub fn requests(mut text: &str) -> Vec<String> {
    let mut found = Vec::new();
    while !text.is_empty() {
        let line = text.find("\r\n").expect("whole requests leave") + 2;
        let end = match text.starts_with("set ") {
            true => line + text[line..].find("\r\n").expect("a value") + 2,
            false => line,
        };
        found.push(text[..end].to_owned());
        text = &text[end..];
    }
    found
}
