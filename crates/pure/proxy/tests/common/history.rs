//! Histories of keys: nobody reads a value that was overwritten or deleted before the read began. Misses are allowed.

use std::collections::BTreeMap;

pub struct Write {
    value: Option<String>,
    begun: u64,
    /// `u64::MAX`: nobody knows.
    ended: u64,
    /// A write that begins after this is newer.
    done: u64,
}

struct Seeing {
    begun: u64,
    ended: u64,
    /// Whose value it had.
    write: usize,
}

/// A request of a client that is not answered.
pub struct Asking {
    /// One key, or all.
    pub keys: Vec<String>,
    /// Of each key: `None` is a read; else the write's number.
    writes: Option<Vec<usize>>,
    begun: u64,
    heard: String,
}

/// What a reply says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    NotAll,
    Done,
    Miss,
    Hit,
    Error,
}

#[derive(Default)]
pub struct History {
    writes: BTreeMap<String, Vec<Write>>,
    /// By key: reads that ended.
    reads: BTreeMap<String, Vec<Seeing>>,
    /// A write that was answered by an error is not executed over one that began after that.
    errors_end: bool,
}

impl History {
    pub fn strict() -> History {
        History { errors_end: true, ..History::default() }
    }

    /// Asks for a key by the last word of `request`.
    pub fn read(&self, request: &str, key: &str, now: u64) -> (String, Asking) {
        let keys = vec![key.into()];
        (format!("{request}\r\n"), Asking { keys, writes: None, begun: now, heard: String::new() })
    }

    /// Sets a key to what it was never set to.
    pub fn set(&mut self, key: String, now: u64) -> (String, Asking) {
        let value = self.writes.get(&key).map_or(0, Vec::len).to_string();
        let text = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        (text, self.write(vec![key], Some(&value), now))
    }

    pub fn delete(&mut self, key: String, now: u64) -> (String, Asking) {
        (format!("delete {key}\r\n"), self.write(vec![key], None, now))
    }

    /// Whether a write of a key began after one moment, and was done before the other.
    pub fn is_changed(&self, key: &str, since: u64, until: u64) -> bool {
        let writes = self.writes.get(key).into_iter().flatten();
        writes.into_iter().any(|write| since < write.begun && write.ended < until)
    }

    /// `None`: keys are deleted.
    pub fn write(&mut self, keys: Vec<String>, value: Option<&str>, now: u64) -> Asking {
        let write = |key: &String| {
            let writes = self.writes.entry(key.clone()).or_default();
            let value = value.map(str::to_owned);
            writes.push(Write { value, begun: now, ended: u64::MAX, done: u64::MAX });
            writes.len() - 1
        };
        let writes = Some(keys.iter().map(write).collect());
        Asking { keys, writes, begun: now, heard: String::new() }
    }

    /// A client hears `bytes`, and waits no more when it has heard all.
    pub fn hear_for(
        &mut self,
        waits: &mut Option<Asking>,
        bytes: &[u8],
        now: u64,
    ) -> Result<Heard, String> {
        let heard =
            self.hear(waits.as_mut().ok_or("a reply that nobody waits for")?, bytes, now)?;
        waits.take_if(|_| heard != Heard::NotAll);
        Ok(heard)
    }

    /// An error is the first stale read.
    pub fn hear(&mut self, asking: &mut Asking, bytes: &[u8], now: u64) -> Result<Heard, String> {
        asking.heard += &String::from_utf8_lossy(bytes);
        let ends = ["END\r\n", "STORED\r\n", "DELETED\r\n", "NOT_FOUND\r\n", "EN\r\n", "OK\r\n"];
        let heard = &asking.heard;
        let is_value = heard.starts_with("VA ") && heard.matches('\n').count() == 2;
        if heard.starts_with("SERVER_ERROR") && heard.ends_with('\n') {
            for (key, number) in asking.keys.iter().zip(asking.writes.iter().flatten()) {
                if self.errors_end {
                    self.writes.get_mut(key).expect("it was written")[*number].done = now;
                }
            }
            return Ok(Heard::Error);
        }
        if !is_value && !ends.iter().any(|end| heard.ends_with(end)) {
            return Ok(Heard::NotAll);
        }
        if let Some(numbers) = &asking.writes {
            for (key, number) in asking.keys.iter().zip(numbers) {
                let write = &mut self.writes.get_mut(key).expect("it was written")[*number];
                (write.ended, write.done) = (now, now);
            }
            return Ok(Heard::Done);
        }
        let value = match heard.lines().collect::<Vec<_>>()[..] {
            [value, line, ..] if value.starts_with("VALUE ") || value.starts_with("VA ") => line,
            _ => return Ok(Heard::Miss),
        };
        let (key, begun) = (&asking.keys[0], asking.begun);
        let writes = self.writes.entry(key.clone()).or_default();
        let is_its = |write: &Write| write.value.as_deref() == Some(value);
        let read = writes.iter().position(is_its).ok_or(format!("{value:?} was never written"))?;
        let over = |other: &Write| writes[read].done < other.begun && other.ended < begun;
        if let Some(newer) = writes.iter().position(over) {
            return Err(format!("{key}: read {read}, and {newer} was there before"));
        }
        let reads = self.reads.entry(key.clone()).or_default();
        // What was read after another write was done, or was written after it, is newer than that.
        let newer = |seeing: &&Seeing| {
            let was_after = writes[read].done < seeing.begun.max(writes[seeing.write].begun);
            seeing.ended < begun && seeing.write != read && was_after
        };
        if let Some(Seeing { write, .. }) = reads.iter().find(newer) {
            return Err(format!("{key}: read {read}, and {write} was read before"));
        }
        reads.push(Seeing { begun, ended: now, write: read });
        Ok(Heard::Hit)
    }
}
