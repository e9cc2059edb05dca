//! Commands that look at every item: dumps, the crawler, `stats sizes`.
//!
//! Such a command is carried out in steps, some slices each, by the worker of the connection that gave it.
//! Between two steps everybody else has a turn, and no step begins before the output of the last one has
//! left: a dump that is read slowly stalls itself alone.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use mbal_cachelet::{Dead, View};
use mbal_model::{CLASSES, item_bytes, size_class};
use mbal_wire::{
    ClassSet, Frame, Status, Walk as Purpose, base64_encode, push_escaped, push_i64, push_line,
    push_u64, streams,
};

use crate::commands::context::Context;
use crate::time::Now;

/// A step ends after so many slices (some hundred items each), or with so much output.
const SLICES_PER_STEP: usize = 8;
const STEP_OUTPUT_BYTES: usize = 64 << 10;

/// memcached's bound on the answer of `stats cachedump`.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;
/// `stats sizes` tells sizes in steps of this.
const SIZE_BUCKET_BYTES: usize = 32;

/// Steps of a walk that has no connection to wait for the next one: some twenty thousand items.
const STEPS_AT_ONCE: usize = 4;
const TOO_MANY_ITEMS: &[u8] = b"SERVER_ERROR too many items for UDP";

/// A walk that goes on.
pub(crate) struct Walk {
    what: What,
    classes: ClassSet,
    from: u64,
    /// Looked at so far, by class.
    checked: Box<[u32; CLASSES]>,
    reclaimed: u64,
    /// The binary request that it answers.
    frame: Option<Frame>,
}

enum What {
    Crawl {
        items_max: u32,
    },
    Metadump,
    Mgdump,
    /// Lines and bytes that may still be said.
    Cachedump {
        lines: u32,
        bytes: usize,
    },
    Sizes(BTreeMap<usize, u64>),
}

impl Walk {
    fn new(what: What, classes: ClassSet) -> Walk {
        let checked = Box::new([0; CLASSES]);
        Walk { what, classes, from: 0, checked, reclaimed: 0, frame: None }
    }

    pub fn of(purpose: Purpose, classes: ClassSet, items_max: u32) -> Walk {
        let what = match purpose {
            Purpose::Crawl => {
                What::Crawl { items_max: if items_max == 0 { u32::MAX } else { items_max } }
            }
            Purpose::Metadump => What::Metadump,
            Purpose::Mgdump => What::Mgdump,
        };
        Walk::new(what, classes)
    }

    /// `limit` of 0 is none.
    pub fn cachedump(class: u32, limit: u32) -> Walk {
        let lines = if limit == 0 { u32::MAX } else { limit };
        let what = What::Cachedump { lines, bytes: CACHEDUMP_BYTES_MAX };
        Walk::new(what, ClassSet(1u64 << class))
    }

    pub fn sizes() -> Walk {
        Walk::new(What::Sizes(BTreeMap::new()), ClassSet::ALL)
    }

    pub fn answering(mut self, frame: Frame) -> Walk {
        self.frame = Some(frame);
        self
    }

    fn show(&mut self, view: &View, now: Now, out: &mut Vec<u8>) {
        let meta = view.meta();
        let (key, value_bytes) = (view.key(), meta.value_bytes as usize);
        let bytes = item_bytes(key.len(), meta.flags, value_bytes);
        let class = size_class(bytes);
        if !self.classes.has(class) {
            return;
        }
        self.checked[class] += 1;
        let unix = |second: u32| now.unix as i64 - i64::from(now.second) + i64::from(second);
        match &mut self.what {
            What::Crawl { .. } => {}
            What::Sizes(counts) => {
                *counts.entry(bytes.next_multiple_of(SIZE_BUCKET_BYTES)).or_default() += 1;
            }
            What::Metadump => {
                out.extend_from_slice(b"key=");
                push_escaped(out, key);
                let exptime = if meta.deadline == 0 { -1 } else { unix(meta.deadline) };
                for (name, number) in [(" exp=", exptime), (" la=", unix(meta.last_access))] {
                    out.extend_from_slice(name.as_bytes());
                    push_i64(out, number);
                }
                out.extend_from_slice(b" cas=");
                push_u64(out, meta.cas);
                out.extend_from_slice(if meta.fetched { b" fetch=yes" } else { b" fetch=no" });
                let flags = meta.flags as usize;
                for (name, number) in [(" cls=", class), (" size=", bytes), (" flags=", flags)] {
                    out.extend_from_slice(name.as_bytes());
                    push_u64(out, number as u64);
                }
                out.extend_from_slice(b" \n");
            }
            What::Mgdump => {
                out.extend_from_slice(b"mg ");
                if meta.binary_key {
                    base64_encode(key, out);
                    out.extend_from_slice(b" b");
                } else {
                    out.extend_from_slice(key);
                }
                out.extend_from_slice(b"\r\n");
            }
            What::Cachedump { lines, bytes } => {
                let exptime = if meta.deadline == 0 { 0 } else { unix(meta.deadline) };
                let tail = format!(" [{value_bytes} b; {exptime} s]\r\n");
                let line_bytes = "ITEM ".len() + key.len() + tail.len();
                if meta.binary_key || *lines == 0 || *bytes < line_bytes {
                    return;
                }
                (*lines, *bytes) = (*lines - 1, *bytes - line_bytes);
                for part in [b"ITEM ", key, tail.as_bytes()] {
                    out.extend_from_slice(part);
                }
            }
        }
    }

    /// Nothing of what is left would be shown.
    fn is_full(&self) -> bool {
        match &self.what {
            What::Cachedump { lines, .. } => *lines == 0,
            What::Crawl { items_max } => {
                let done = |(class, checked): (usize, &u32)| {
                    !self.classes.has(class) || *checked >= *items_max
                };
                self.checked.iter().enumerate().all(done)
            }
            _ => false,
        }
    }

    /// Its output is a dump without end, which memcached sends to connections only.
    pub fn is_a_dump(&self) -> bool {
        matches!(self.what, What::Metadump | What::Mgdump)
    }

    pub fn is_of_the_crawler(&self) -> bool {
        matches!(self.what, What::Crawl { .. } | What::Metadump | What::Mgdump)
    }

    pub fn begin(&self, on: &Context<'_>, out: &mut Vec<u8>) {
        if self.is_a_dump() {
            push_line(out, b"OK");
        }
        if self.is_of_the_crawler() {
            on.counters.crawler_starts.add(1);
            on.shared.tuned.crawls.fetch_add(1, Relaxed);
        }
    }

    /// The whole of a walk, or nothing but the excuse that it would take too long.
    pub fn at_once(mut self, on: &Context<'_>, out: &mut Vec<u8>) {
        let before = out.len();
        self.begin(on, out);
        if !(0..STEPS_AT_ONCE).all(|_| self.step(on, out)) {
            return;
        }
        if self.is_of_the_crawler() {
            on.shared.tuned.crawls.fetch_sub(1, Relaxed);
        }
        out.truncate(before);
        match &self.frame {
            Some(frame) => frame.push_error(out, Status::TemporaryFailure),
            None => push_line(out, TOO_MANY_ITEMS),
        }
    }

    /// One step; true while there is more to do.
    pub fn step(&mut self, on: &Context<'_>, out: &mut Vec<u8>) -> bool {
        let dead = match self.what {
            What::Crawl { .. } => Dead::Remove,
            _ => Dead::PassOver,
        };
        let (now, start) = (on.now(), out.len());
        for _ in 0..SLICES_PER_STEP {
            let store = &on.shared.store;
            let (next, removed) = store.walk(self.from, now.second, dead, self.classes.0, |view| {
                self.show(view, now, out)
            });
            for class in removed {
                self.reclaimed += 1;
                self.checked[class] += 1;
                on.classes[class].crawler_reclaimed.add(1);
            }
            match next {
                Some(next) if !self.is_full() => self.from = next,
                _ => {
                    self.end(on, out);
                    return false;
                }
            }
            if out.len() - start >= STEP_OUTPUT_BYTES {
                break;
            }
        }
        true
    }

    fn tell_sizes(&self, counts: &BTreeMap<usize, u64>, out: &mut Vec<u8>) {
        let Some(frame) = &self.frame else {
            for (size, count) in counts {
                out.extend_from_slice(format!("STAT {size} {count}\r\n").as_bytes());
            }
            return push_line(out, b"END");
        };
        for (size, count) in counts {
            let (size, count) = (size.to_string(), count.to_string());
            frame.push_stat(out, size.as_bytes(), count.as_bytes());
        }
        frame.push_stat(out, b"", b"");
    }

    fn end(&self, on: &Context<'_>, out: &mut Vec<u8>) {
        match &self.what {
            What::Crawl { .. } => push_line(out, b"OK"),
            What::Metadump | What::Cachedump { .. } => push_line(out, b"END"),
            What::Mgdump => push_line(out, b"EN"),
            What::Sizes(counts) => self.tell_sizes(counts, out),
        }
        if !self.is_of_the_crawler() {
            return;
        }
        on.shared.tuned.crawls.fetch_sub(1, Relaxed);
        let mut examined = 0;
        for (class, checked) in self.checked.iter().enumerate() {
            examined += u64::from(*checked);
            on.classes[class].crawler_items_checked.add(u64::from(*checked));
        }
        on.counters.crawler_items_checked.add(examined);
        on.counters.crawler_reclaimed.add(self.reclaimed);
        if on.watched & streams::SYSTEM != 0 {
            let reclaimed = self.reclaimed;
            on.shared.log.write(on.now(), streams::SYSTEM, |line| {
                let told = format!(" type=lru_crawler examined={examined} reclaimed={reclaimed}");
                line.extend_from_slice(told.as_bytes());
            });
        }
    }
}
