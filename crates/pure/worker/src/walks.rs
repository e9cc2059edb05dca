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
    ClassSet, Frame, Status, Walk as Purpose, base64_encode, push_escaped, push_i64, push_u64,
    streams,
};

use crate::time::Now;
use crate::turn::Turn;

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
}

impl Turn<'_> {
    pub(crate) fn begin_walk(&mut self, walk: &Walk) {
        if walk.is_a_dump() {
            self.line(b"OK");
        }
        if walk.is_of_the_crawler() {
            self.counters.crawler_starts.add(1);
            self.shared.crawls.fetch_add(1, Relaxed);
        }
    }

    /// The whole of a walk, or nothing but the excuse that it would take too long.
    pub(crate) fn walk_at_once(&mut self, mut walk: Walk) {
        let before = self.out.len();
        self.begin_walk(&walk);
        if !(0..STEPS_AT_ONCE).all(|_| self.step(&mut walk)) {
            return;
        }
        if walk.is_of_the_crawler() {
            self.shared.crawls.fetch_sub(1, Relaxed);
        }
        self.out.truncate(before);
        match &walk.frame {
            Some(frame) => frame.push_error(self.out, Status::TemporaryFailure),
            None => self.line(TOO_MANY_ITEMS),
        }
    }

    /// One step; true while there is more to do.
    pub(crate) fn step(&mut self, walk: &mut Walk) -> bool {
        let dead = match walk.what {
            What::Crawl { .. } => Dead::Remove,
            _ => Dead::PassOver,
        };
        let (now, start) = (self.now, self.out.len());
        for _ in 0..SLICES_PER_STEP {
            let store = &self.shared.store;
            let out = &mut *self.out;
            let (next, removed) = store.walk(walk.from, now.second, dead, walk.classes.0, |view| {
                walk.show(view, now, out)
            });
            for class in removed {
                walk.reclaimed += 1;
                walk.checked[class] += 1;
                self.classes[class].crawler_reclaimed.add(1);
            }
            match next {
                Some(next) if !walk.is_full() => walk.from = next,
                _ => {
                    self.end_walk(walk);
                    return false;
                }
            }
            if self.out.len() - start >= STEP_OUTPUT_BYTES {
                break;
            }
        }
        true
    }

    fn tell_sizes(&mut self, counts: &BTreeMap<usize, u64>, frame: Option<&Frame>) {
        let Some(frame) = frame else {
            for (size, count) in counts {
                self.stat(&size.to_string(), *count);
            }
            return self.line(b"END");
        };
        for (size, count) in counts {
            let (size, count) = (size.to_string(), count.to_string());
            frame.push_stat(self.out, size.as_bytes(), count.as_bytes());
        }
        frame.push_stat(self.out, b"", b"");
    }

    fn end_walk(&mut self, walk: &Walk) {
        match &walk.what {
            What::Crawl { .. } => self.line(b"OK"),
            What::Metadump | What::Cachedump { .. } => self.line(b"END"),
            What::Mgdump => self.line(b"EN"),
            What::Sizes(counts) => self.tell_sizes(counts, walk.frame.as_ref()),
        }
        if !walk.is_of_the_crawler() {
            return;
        }
        self.shared.crawls.fetch_sub(1, Relaxed);
        let mut examined = 0;
        for (class, checked) in walk.checked.iter().enumerate() {
            examined += u64::from(*checked);
            self.classes[class].crawler_items_checked.add(u64::from(*checked));
        }
        self.counters.crawler_items_checked.add(examined);
        self.counters.crawler_reclaimed.add(walk.reclaimed);
        if self.watched & streams::SYSTEM != 0 {
            let reclaimed = walk.reclaimed;
            self.shared.log.write(self.now, streams::SYSTEM, |line| {
                let told = format!(" type=lru_crawler examined={examined} reclaimed={reclaimed}");
                line.extend_from_slice(told.as_bytes());
            });
        }
    }
}
