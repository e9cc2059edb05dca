//! A memcached with cas numbers and leases.

use std::collections::{BTreeMap, VecDeque};

use mbal_random::Random;

use super::MS;

/// A mark lives so long.
const MARK: u64 = 300 * MS;

#[derive(Default)]
pub struct Cache {
    pub items: BTreeMap<String, Item>,
    cas: u64,
    pub stopped_until: u64,
    pub away_until: u64,
    pub late: Vec<Late>,
    pub flushes: u64,
}

pub struct Item {
    pub value: String,
    cas: u64,
    /// It is the mark of a lease.
    mark_until: Option<u64>,
}

/// What a connection that is gone has brought.
pub struct Late {
    pub requests: VecDeque<String>,
    /// It has all been executed by then.
    pub until: u64,
}

impl Late {
    /// It is executed in some time.
    fn is_bound(&self) -> bool {
        !self.requests.iter().all(|one| one.starts_with("ms "))
    }
}

impl Cache {
    pub fn die(&mut self) {
        // A process that begins anew counts from 1 again. That is memcached's own, and no matter of a switch.
        (self.items, self.late) = (BTreeMap::new(), Vec::new());
    }

    /// It has answered somebody: by then it has executed what came before. What stores by a cas number of a mark may be later still.
    pub fn late_until(&mut self, then: u64) {
        let bound = self.late.iter_mut().filter(|late| late.is_bound());
        bound.for_each(|late| late.until = late.until.min(then));
    }

    /// How much was executed.
    pub fn execute_late(&mut self, now: u64, random: &mut Random) -> u64 {
        let mut count = 0;
        let mut all = std::mem::take(&mut self.late);
        for late in &mut all {
            let is_due = late.until <= now;
            let rareness = if late.is_bound() { 200 } else { 3000 };
            if !is_due && (now < self.stopped_until || random.below(rareness) > 0) {
                continue;
            }
            let most = if is_due { u64::MAX } else { random.below(3) };
            for _ in 0..most.min(late.requests.len() as u64) {
                let request = late.requests.pop_front().expect("it was counted");
                self.execute(&request, now);
                count += 1;
            }
        }
        all.retain(|late| !late.requests.is_empty());
        self.late.extend(all);
        count
    }

    fn put(&mut self, key: &str, value: &str, mark_until: Option<u64>) -> u64 {
        self.cas += 1;
        let item = Item { value: value.into(), cas: self.cas, mark_until };
        self.items.insert(key.into(), item);
        self.cas
    }

    pub fn execute(&mut self, request: &str, now: u64) -> String {
        self.items.retain(|_, item| item.mark_until.is_none_or(|until| now < until));
        let (line, value) = request.split_once("\r\n").expect("a line");
        let value = value.trim_end();
        let words: Vec<&str> = line.split(' ').collect();
        let item = words.get(1).and_then(|key| self.items.get(*key));
        let flag = |letter: char| {
            let mut flags = words[1..].iter().skip(1);
            flags.find_map(|word| word.strip_prefix(letter))
        };
        match words[..] {
            ["get", key] => {
                let value = item.map_or(String::new(), |item| {
                    format!("VALUE {key} 0 {}\r\n{}\r\n", item.value.len(), item.value)
                });
                value + "END\r\n"
            }
            ["gat", _, key] => match self.items.get(key) {
                Some(item) => {
                    format!("VALUE {key} 0 {}\r\n{}\r\nEND\r\n", item.value.len(), item.value)
                }
                None => "END\r\n".into(),
            },
            ["gets", key] => {
                let value = item.map_or(String::new(), |Item { value, cas, .. }| {
                    format!("VALUE {key} 0 {} {cas}\r\n{value}\r\n", value.len())
                });
                value + "END\r\n"
            }
            ["set", key, ..] => {
                self.put(key, value, None);
                "STORED\r\n".into()
            }
            ["cas", key, _, _, _, cas] => match item {
                None => "NOT_FOUND\r\n".into(),
                Some(item) if item.cas.to_string() != cas => "EXISTS\r\n".into(),
                Some(_) => {
                    self.put(key, value, None);
                    "STORED\r\n".into()
                }
            },
            ["delete", key] => match self.items.remove(key) {
                Some(_) => "DELETED\r\n".into(),
                None => "NOT_FOUND\r\n".into(),
            },
            ["md", key, ..] => match (item, flag('C')) {
                (None, _) => "NF\r\n".into(),
                (Some(item), Some(cas)) if item.cas.to_string() != cas => "EX\r\n".into(),
                (Some(_), _) => {
                    self.items.remove(key);
                    "HD\r\n".into()
                }
            },
            ["mg", key, "N30", "c"] => match item {
                Some(Item { cas, mark_until: None, .. }) => format!("HD c{cas}\r\n"),
                Some(Item { cas, .. }) => format!("HD c{cas} Z\r\n"),
                None => format!("HD c{} W\r\n", self.put(key, "", Some(now + MARK))),
            },
            ["mg", _, "v", "t", "f", "c"] => match item {
                None => "EN\r\n".into(),
                Some(Item { value, cas, mark_until }) => {
                    let mark = if mark_until.is_some() { " Z" } else { "" };
                    format!("VA {} t-1 f0 c{cas}{mark}\r\n{value}\r\n", value.len())
                }
            },
            ["ms", key, ..] => match (item, flag('C')) {
                (None, Some(_)) => "NF\r\n".into(),
                (Some(item), Some(cas)) if item.cas.to_string() != cas => "EX\r\n".into(),
                _ => {
                    self.put(key, value, None);
                    "HD\r\n".into()
                }
            },
            ["flush_all"] => {
                self.items.clear();
                self.flushes += 1;
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
        let brings = ["set ", "cas ", "ms "].iter().any(|verb| text.starts_with(verb));
        let end = match brings {
            true => line + text[line..].find("\r\n").expect("a value") + 2,
            false => line,
        };
        found.push(text[..end].to_owned());
        text = &text[end..];
    }
    found
}
