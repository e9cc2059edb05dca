//! Policies of one queue: who comes in at the head, and whom the tail spares.

use super::Policy;
use super::order::Order;

/// Evicts what came in first.
pub struct Fifo {
    order: Order,
    present: Vec<bool>,
    items: usize,
}

impl Fifo {
    pub fn new(keys: usize, items: usize) -> Fifo {
        Fifo { order: Order::new(keys), present: vec![false; keys], items }
    }
}

impl Policy for Fifo {
    fn request(&mut self, key: u32) -> bool {
        if self.present[key as usize] {
            return true;
        }
        if self.order.len() == self.items {
            let victim = self.order.pop_tail().expect("a full cache has a tail");
            self.present[victim as usize] = false;
        }
        self.present[key as usize] = true;
        self.order.push_head(key);
        false
    }
}

/// Evicts what was not read for longest.
pub struct Lru(Fifo);

impl Lru {
    pub fn new(keys: usize, items: usize) -> Lru {
        Lru(Fifo::new(keys, items))
    }
}

impl Policy for Lru {
    fn request(&mut self, key: u32) -> bool {
        let hit = self.0.request(key);
        if hit {
            self.0.order.move_to_head(key);
        }
        hit
    }
}

/// A FIFO whose tail gets another round if it was read in this one.
pub struct Clock {
    fifo: Fifo,
    read: Vec<bool>,
}

impl Clock {
    pub fn new(keys: usize, items: usize) -> Clock {
        Clock { fifo: Fifo::new(keys, items), read: vec![false; keys] }
    }
}

impl Policy for Clock {
    fn request(&mut self, key: u32) -> bool {
        if self.fifo.present[key as usize] {
            self.read[key as usize] = true;
            return true;
        }
        if self.fifo.order.len() == self.fifo.items {
            while let Some(tail) = self.fifo.order.tail().filter(|&tail| self.read[tail as usize]) {
                self.read[tail as usize] = false;
                self.fifo.order.move_to_head(tail);
            }
        }
        self.fifo.request(key)
    }
}

/// Like CLOCK, but whoever is spared stays where it is, and the hand goes on (Zhang et al., NSDI 2024).
pub struct Sieve {
    fifo: Fifo,
    read: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    pub fn new(keys: usize, items: usize) -> Sieve {
        Sieve { fifo: Fifo::new(keys, items), read: vec![false; keys], hand: None }
    }

    fn evict(&mut self) {
        let order = &mut self.fifo.order;
        let start = |order: &Order| order.tail().expect("a full cache has a tail");
        let mut hand = self.hand.unwrap_or_else(|| start(order));
        while std::mem::take(&mut self.read[hand as usize]) {
            hand = order.ahead(hand).unwrap_or_else(|| start(order));
        }
        self.hand = order.ahead(hand);
        order.remove(hand);
        self.fifo.present[hand as usize] = false;
    }
}

impl Policy for Sieve {
    fn request(&mut self, key: u32) -> bool {
        if self.fifo.present[key as usize] {
            self.read[key as usize] = true;
            return true;
        }
        if self.fifo.order.len() == self.fifo.items {
            self.evict();
        }
        self.fifo.request(key)
    }
}
