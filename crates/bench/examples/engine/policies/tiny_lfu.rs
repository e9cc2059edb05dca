//! W-TinyLFU (Einziger, Friedman and Manes 2017), Caffeine's first parameters: a window of 1%, behind it
//! a segmented LRU into which a key comes only if a sketch saw it more often than the one it would evict.

use super::Policy;
use super::order::Order;

const WINDOW_PERCENT: usize = 1;
const PROTECTED_PERCENT: usize = 80;

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Nowhere,
    Window,
    Probation,
    Protected,
}

pub struct TinyLfu {
    window: Order,
    probation: Order,
    protected: Order,
    place: Vec<Place>,
    sketch: Sketch,
    window_items: usize,
    main_items: usize,
    protected_items: usize,
}

impl TinyLfu {
    pub fn new(keys: usize, items: usize) -> TinyLfu {
        let window_items = (items * WINDOW_PERCENT / 100).max(1);
        let main_items = items - window_items;
        TinyLfu {
            window: Order::new(keys),
            probation: Order::new(keys),
            protected: Order::new(keys),
            place: vec![Place::Nowhere; keys],
            sketch: Sketch::new(items),
            window_items,
            main_items,
            protected_items: main_items * PROTECTED_PERCENT / 100,
        }
    }

    fn put(&mut self, key: u32, place: Place) {
        self.place[key as usize] = place;
        match place {
            Place::Window => self.window.push_head(key),
            Place::Probation => self.probation.push_head(key),
            Place::Protected => self.protected.push_head(key),
            Place::Nowhere => {}
        }
    }

    /// A key whose time in the window is over takes another's place in main, if it is the more frequent.
    fn leave_window(&mut self, candidate: u32) {
        if self.probation.len() + self.protected.len() < self.main_items {
            self.put(candidate, Place::Probation);
            return;
        }
        let Some(victim) = self.probation.tail().or(self.protected.tail()) else {
            self.put(candidate, Place::Nowhere);
            return;
        };
        if self.sketch.count(candidate) <= self.sketch.count(victim) {
            self.put(candidate, Place::Nowhere);
            return;
        }
        match self.place[victim as usize] {
            Place::Probation => self.probation.remove(victim),
            _ => self.protected.remove(victim),
        }
        self.put(victim, Place::Nowhere);
        self.put(candidate, Place::Probation);
    }

    fn promote(&mut self, key: u32) {
        self.probation.remove(key);
        self.put(key, Place::Protected);
        if self.protected.len() > self.protected_items {
            let demoted = self.protected.pop_tail().expect("it is over its share");
            self.put(demoted, Place::Probation);
        }
    }
}

impl Policy for TinyLfu {
    fn request(&mut self, key: u32) -> bool {
        self.sketch.add(key);
        match self.place[key as usize] {
            Place::Window => self.window.move_to_head(key),
            Place::Probation => self.promote(key),
            Place::Protected => self.protected.move_to_head(key),
            Place::Nowhere => {
                self.put(key, Place::Window);
                if self.window.len() > self.window_items {
                    let candidate = self.window.pop_tail().expect("it is over its share");
                    self.leave_window(candidate);
                }
                return false;
            }
        }
        true
    }
}

/// How often a key came lately: count-min, four rows, halved every ten cache sizes of requests.
pub struct Sketch {
    rows: [Vec<u8>; 4],
    seen: usize,
    halve_at: usize,
}

const COUNT_MAX: u8 = 15;

impl Sketch {
    pub fn new(items: usize) -> Sketch {
        let width = 4 * items.next_power_of_two();
        Sketch { rows: [(); 4].map(|()| vec![0; width]), seen: 0, halve_at: 10 * items }
    }

    fn cell(&self, key: u32, row: usize) -> usize {
        let hash = mbal_bench::mix(u64::from(key) << 2 | row as u64);
        hash as usize & (self.rows[row].len() - 1)
    }

    pub fn add(&mut self, key: u32) {
        for row in 0..4 {
            let cell = self.cell(key, row);
            let count = &mut self.rows[row][cell];
            *count = (*count + 1).min(COUNT_MAX);
        }
        self.seen += 1;
        if self.seen == self.halve_at {
            self.rows.iter_mut().flatten().for_each(|count| *count /= 2);
            self.seen /= 2;
        }
    }

    pub fn count(&self, key: u32) -> u8 {
        (0..4).map(|row| self.rows[row][self.cell(key, row)]).min().expect("four rows")
    }
}
