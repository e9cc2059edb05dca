//! S3-FIFO (Yang et al., SOSP 2023): a small queue that most keys leave at once, a main queue, and a
//! ghost of those that left, who come back into main. With its paper's parameters.

use super::Policy;
use super::order::Order;

const SMALL_PERCENT: usize = 10;
const READS_MAX: u8 = 3;
/// More reads than this in the small queue lead into main.
const READS_TO_STAY: u8 = 1;

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Nowhere,
    Small,
    Main,
    Ghost,
}

pub struct S3Fifo {
    small: Order,
    main: Order,
    ghost: Order,
    place: Vec<Place>,
    reads: Vec<u8>,
    items: usize,
    small_items: usize,
}

impl S3Fifo {
    pub fn new(keys: usize, items: usize) -> S3Fifo {
        S3Fifo {
            small: Order::new(keys),
            main: Order::new(keys),
            ghost: Order::new(keys),
            place: vec![Place::Nowhere; keys],
            reads: vec![0; keys],
            items,
            small_items: (items * SMALL_PERCENT / 100).max(1),
        }
    }

    fn put(&mut self, key: u32, place: Place) {
        self.place[key as usize] = place;
        self.reads[key as usize] = 0;
        match place {
            Place::Small => self.small.push_head(key),
            Place::Main => self.main.push_head(key),
            Place::Ghost => self.ghost.push_head(key),
            Place::Nowhere => {}
        }
    }

    fn evict(&mut self) {
        while self.small.len() + self.main.len() >= self.items {
            if self.small.len() >= self.small_items || self.main.len() == 0 {
                self.pass_small();
            } else {
                self.pass_main();
            }
        }
    }

    fn pass_small(&mut self) {
        let tail = self.small.pop_tail().expect("the small queue is at its share");
        if self.reads[tail as usize] > READS_TO_STAY {
            self.put(tail, Place::Main);
            return;
        }
        self.put(tail, Place::Ghost);
        if self.ghost.len() > self.items - self.small_items {
            let forgotten = self.ghost.pop_tail().expect("it is over its length");
            self.put(forgotten, Place::Nowhere);
        }
    }

    fn pass_main(&mut self) {
        let tail = self.main.pop_tail().expect("small is not full, so main has items");
        match self.reads[tail as usize].checked_sub(1) {
            Some(reads) => {
                self.put(tail, Place::Main);
                self.reads[tail as usize] = reads;
            }
            None => self.put(tail, Place::Nowhere),
        }
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, key: u32) -> bool {
        let reads = &mut self.reads[key as usize];
        match self.place[key as usize] {
            Place::Small | Place::Main => {
                *reads = (*reads + 1).min(READS_MAX);
                return true;
            }
            // Forgotten before others are evicted: that would make the ghost's room its own.
            Place::Ghost => {
                self.ghost.remove(key);
                self.evict();
                self.put(key, Place::Main);
            }
            Place::Nowhere => {
                self.evict();
                self.put(key, Place::Small);
            }
        }
        false
    }
}
