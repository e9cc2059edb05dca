//! A memcached of few commands.

use std::collections::{BTreeMap, VecDeque};

use mbal_random::Random;

/// Items go when it dies.
#[derive(Default)]
pub struct Memcached {
    pub items: BTreeMap<String, String>,
    /// It executes nothing until then.
    pub stopped_until: u64,
    /// It cannot be dialed until then.
    pub away_until: u64,
    /// What it has of connections that are gone.
    pub late: Vec<Late>,
}

/// What an upstream has received over a connection that is gone, and has not executed.
pub struct Late {
    /// Whose connection it was, or which.
    pub client: usize,
    pub requests: VecDeque<String>,
    /// It has not arrived before.
    pub from: u64,
    /// It has all been looked at by then.
    pub until: u64,
    /// The proxy is told when it has.
    pub lingers: bool,
}

impl Late {
    /// All that a connection that was reset has brought.
    pub fn of(client: usize, wire: Wire) -> Late {
        Late { client, requests: wire.requests, from: 0, until: u64::MAX, lingers: false }
    }
}

/// One connection to it, as the network has it.
#[derive(Default)]
pub struct Wire {
    pub up: bool,
    pub requests: VecDeque<String>,
    pub replies: VecDeque<String>,
}

impl Memcached {
    /// Executes the first `count` of what a connection has brought.
    pub fn turn(&mut self, wire: &mut Wire, count: u64) {
        for _ in 0..count {
            let Some(request) = wire.requests.pop_front() else { break };
            let reply = self.execute(&request);
            wire.replies.push_back(reply);
        }
    }

    /// All that earlier connections of a client have brought is executed by then.
    pub fn late_until(&mut self, client: usize, then: u64) {
        let is_its = |late: &&mut Late| late.client == client && !late.lingers;
        self.late.iter_mut().filter(is_its).for_each(|late| late.until = late.until.min(then));
    }

    /// Executes of connections that are gone what is due, and of one in `rareness` some that is not. How much, and whose connections
    /// that linger end.
    pub fn execute_late(
        &mut self,
        now: u64,
        rareness: u64,
        random: &mut Random,
    ) -> (u64, Vec<usize>) {
        let (mut count, mut ended) = (0, Vec::new());
        let mut all = std::mem::take(&mut self.late);
        for late in &mut all {
            let (is_due, stopped) = (late.until <= now, now < self.stopped_until);
            if now < late.from || !is_due && (stopped || random.below(rareness) > 0) {
                continue;
            }
            let most = if is_due { u64::MAX } else { random.below(3) };
            for _ in 0..most.min(late.requests.len() as u64) {
                let request = late.requests.pop_front().expect("it was counted");
                self.execute(&request);
                count += 1;
            }
            if late.lingers && late.requests.is_empty() {
                ended.push(late.client);
            }
        }
        all.retain(|late| !late.requests.is_empty());
        self.late = all;
        (count, ended)
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
            ["config", "get", "mbal", "servers"] => "ERROR\r\n".into(),
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
