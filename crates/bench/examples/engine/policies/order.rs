//! A queue of small numbers in which each can be found and taken out at once: two links per number.

const NONE: u32 = u32::MAX;

pub struct Order {
    /// Towards the head, towards the tail.
    links: Vec<(u32, u32)>,
    head: u32,
    tail: u32,
    len: usize,
}

impl Order {
    /// Of keys below `keys`.
    pub fn new(keys: usize) -> Order {
        Order { links: vec![(NONE, NONE); keys], head: NONE, tail: NONE, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// `key` must not be in the queue.
    pub fn push_head(&mut self, key: u32) {
        self.links[key as usize] = (NONE, self.head);
        match self.head {
            NONE => self.tail = key,
            head => self.links[head as usize].0 = key,
        }
        self.head = key;
        self.len += 1;
    }

    /// `key` must be in the queue.
    pub fn remove(&mut self, key: u32) {
        let (before, after) = self.links[key as usize];
        match before {
            NONE => self.head = after,
            before => self.links[before as usize].1 = after,
        }
        match after {
            NONE => self.tail = before,
            after => self.links[after as usize].0 = before,
        }
        self.len -= 1;
    }

    pub fn move_to_head(&mut self, key: u32) {
        self.remove(key);
        self.push_head(key);
    }

    pub fn tail(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    pub fn pop_tail(&mut self) -> Option<u32> {
        let tail = self.tail()?;
        self.remove(tail);
        Some(tail)
    }

    /// The next key towards the head.
    pub fn ahead(&self, key: u32) -> Option<u32> {
        let ahead = self.links[key as usize].0;
        (ahead != NONE).then_some(ahead)
    }
}
