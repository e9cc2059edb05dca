//! Belady's MIN, which knows the future: evicts what will be needed last, the newcomer included.
//! No policy for equal items hits more.

use std::collections::BTreeSet;

use super::Policy;

const NEVER: u32 = u32::MAX;

pub struct Belady {
    /// For every request, the next one of its key.
    next: Vec<u32>,
    at: usize,
    /// When each key is needed next, if it is here.
    due: Vec<Option<u32>>,
    by_due: BTreeSet<(u32, u32)>,
    items: usize,
}

impl Belady {
    pub fn new(trace: &[u32], keys: usize, items: usize) -> Belady {
        let mut next = vec![NEVER; trace.len()];
        let mut seen = vec![NEVER; keys];
        for (at, &key) in trace.iter().enumerate().rev() {
            next[at] = std::mem::replace(&mut seen[key as usize], at as u32);
        }
        Belady { next, at: 0, due: vec![None; keys], by_due: BTreeSet::new(), items }
    }
}

impl Policy for Belady {
    /// Requests must be those of the trace.
    fn request(&mut self, key: u32) -> bool {
        let due = self.next[self.at];
        self.at += 1;
        let before = self.due[key as usize].replace(due);
        if let Some(before) = before {
            self.by_due.remove(&(before, key));
        }
        self.by_due.insert((due, key));
        if self.by_due.len() > self.items {
            let (_, victim) = self.by_due.pop_last().expect("it is over its size");
            self.due[victim as usize] = None;
        }
        before.is_some()
    }
}
