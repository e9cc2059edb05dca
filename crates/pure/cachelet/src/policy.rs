//! What to evict: the one file to change.
//!
//! Pages are evicted in the order in which they were filled, across all cachelets of a worker.
//! Items written by clients go to *new* logs; when their page comes up, those that were read
//! meanwhile move on to *main* logs, the rest is evicted. A main page's items get another round for
//! each time they were read, up to three. So one scan over cold keys passes through the new
//! pages and leaves the main ones alone. A key that comes back soon after it was evicted unread from
//! a new log goes to a main log at once (the idea of S3-FIFO, by pages).
//!
//! New pages keep to a share of all, unless the oldest main pages have become poor: their items were
//! hardly read while those of new pages were. Then nobody asks for what was popular any more, and it
//! goes first, without any rounds (decision 0007). One page may deceive: if it is but doubtful, it goes after a while, and
//! those behind it speak for themselves.

use mbal_model::Seconds;

use crate::access::Access;

/// The two kinds of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    Main,
    New,
}

/// Share of the pages that new logs may hold before their oldest page goes first. On the traces 10 and 20
/// have the best means; 10 loses up to 2.5 points where recency is all, 20 up to 1.9 (decision 0005).
const NEW_SHARE_PERCENT: u64 = 20;

/// Where values are so long that the latest ones take more than that, new logs may hold these, up to this share: what was stored a
/// moment ago is found.
const LATEST_SHARE_PERCENT: u64 = 65;

/// As many pages as there are, sealed, are so many eras.
pub const ERAS_PER_TURN: u32 = 8;

/// Main pages are poor if a byte of theirs earned fewer than one of so many reads that a byte of new pages did.
/// With 2 and 4 the traces lose up to 2.4 and 0.5 points, and what changes is forgotten no faster (decision 0007).
const POORER: f64 = 8.0;
/// They are doubtful with less than one of so many...
const DOUBTFUL: f64 = 2.0;
/// ...and so many samples of the same page are enough of it: its fellows may be poor.
const SAMPLES_OF_A_PAGE: u32 = 16;

/// Items that are weighed together: with every item sampled the weight of earlier ones falls by one of so many.
const ITEMS_WEIGHED: f64 = 320.0;
/// Fewer say nothing.
const ITEMS_WEIGHED_MIN: f64 = 64.0;

/// When items are compared across servers, one counts as so many times as old that was read 0 to 3 times since it was written or last got
/// another round: who was read seldom will be, where popularity lasts (`docs/results/deciders.md`, *A smaller cluster*). Where it passes
/// quickly that has not been measured.
const TIMES_AS_OLD: [Seconds; 4] = [8, 4, 2, 1];
/// The same of one in a new log that was not read since it was written.
const UNREAD_IN_NEW: Seconds = 32;

/// How old an item is for who chooses among those of several servers. What was used since the moment that ages count from has no age.
pub fn age_for_choice(age: Seconds, access: Access, temper: Temper) -> Seconds {
    age.saturating_mul(match (access.frequency(), temper) {
        (0, Temper::New) => UNREAD_IN_NEW,
        (times, _) => TIMES_AS_OLD[times as usize],
    })
}

/// Where an item goes that a client writes: one that `returns`, soon after it was evicted from a new
/// log, is worth protecting at once.
pub fn temper_of_written(returns: bool) -> Temper {
    if returns { Temper::Main } else { Temper::New }
}

/// Where an item goes that comes from another server: one that was read there since it was written, or was chosen to travel, is worth as
/// much as what has survived here.
pub fn temper_of_arrived(frequency: u32, is_chosen: bool) -> Temper {
    if frequency > 0 || is_chosen { Temper::Main } else { Temper::New }
}

/// What some items of a page have earned that is the oldest of its kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Samples {
    pub items: f64,
    /// Those that were read in the time that both pages were there, each once.
    pub items_read: f64,
    /// Of all of them.
    pub bytes: f64,
}

impl Samples {
    fn add(&mut self, more: Samples) {
        let kept = (1.0 - more.items / ITEMS_WEIGHED).max(0.0);
        self.items = self.items * kept + more.items;
        self.items_read = self.items_read * kept + more.items_read;
        self.bytes = self.bytes * kept + more.bytes;
    }
}

/// Weighs the oldest main pages of a worker against its oldest new ones, over the same time.
#[derive(Default)]
pub struct Gauge {
    new: Samples,
    main: Samples,
    /// The oldest main page, by its order, and how often it was sampled.
    page: u64,
    times: u32,
}

/// What the oldest main pages earn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    Rich,
    /// The oldest one is to be cleaned as if its turn had come, so that those behind it are seen.
    Doubtful,
    Poor,
}

impl Gauge {
    pub fn add(&mut self, new: Samples, main: Samples) {
        self.new.add(new);
        self.main.add(main);
    }

    /// The oldest main page is to be sampled; how often it was before.
    pub fn begin_sample(&mut self, page: u64) -> u32 {
        if self.page != page {
            (self.page, self.times) = (page, 0);
        }
        self.times += 1;
        self.times - 1
    }

    pub fn worth_of_main(&self) -> Worth {
        let main = self.main.items_read * self.new.bytes;
        let new = self.new.items_read * self.main.bytes;
        if self.main.items.min(self.new.items) < ITEMS_WEIGHED_MIN {
            Worth::Rich
        } else if main * POORER < new {
            Worth::Poor
        } else if main * DOUBTFUL < new && self.times >= SAMPLES_OF_A_PAGE {
            Worth::Doubtful
        } else {
            Worth::Rich
        }
    }
}

/// The kind of page to clean next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub temper: Temper,
    /// Only items read within so many eras survive in a main page.
    pub window: u32,
}

impl Victim {
    /// By how many pages a worker has of each kind, and how many the latest values take: these stay, be they most of all. `weighed`, where the oldest new and the oldest main page have been there
    /// for some eras: what main is worth, and how many.
    pub fn choose(
        new_pages: u64,
        main_pages: u64,
        latest_pages: u64,
        weighed: Option<(Worth, u32)>,
    ) -> Victim {
        let all = new_pages + main_pages;
        let share =
            (all * NEW_SHARE_PERCENT).max((latest_pages * 100).min(all * LATEST_SHARE_PERCENT));
        match weighed {
            _ if main_pages == 0 => Victim { temper: Temper::New, window: u32::MAX },
            Some((Worth::Poor, window)) => Victim { temper: Temper::Main, window },
            Some((Worth::Doubtful, _)) => Victim { temper: Temper::Main, window: u32::MAX },
            _ if new_pages * 100 > share => Victim { temper: Temper::New, window: u32::MAX },
            _ => Victim { temper: Temper::Main, window: u32::MAX },
        }
    }
}

/// The access word with which an item of a page being cleaned goes on to a main log, if it does: `now` is in eras.
pub fn survives(access: Access, temper: Temper, now: u32, window: u32) -> Option<Access> {
    let frequency = access.frequency();
    match temper {
        _ if frequency == 0 => None,
        Temper::New => Some(access.with_frequency(0)),
        Temper::Main if access.eras_ago(now) > window => None,
        Temper::Main => Some(access.with_frequency(frequency - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temper(new_pages: u64, main_pages: u64, weighed: Option<(Worth, u32)>) -> Temper {
        Victim::choose(new_pages, main_pages, 1, weighed).temper
    }

    #[test]
    fn an_item_that_is_read_seldom_is_older_than_its_age() {
        let age =
            |frequency, temper| age_for_choice(10, Access::new(0, frequency, false, 0), temper);
        assert_eq!([0, 1, 2, 3].map(|times| age(times, Temper::Main)), [80, 40, 20, 10]);
        assert_eq!([0, 1, 2, 3].map(|times| age(times, Temper::New)), [320, 40, 20, 10]);
        assert_eq!(age_for_choice(0, Access::new(0, 0, false, 0), Temper::New), 0);
    }

    #[test]
    fn new_pages_go_first_until_they_are_at_their_share() {
        for weighed in [None, Some((Worth::Rich, 2))] {
            let victims = [(1, 0), (21, 79), (20, 80), (0, 5)].map(|(n, m)| temper(n, m, weighed));
            assert_eq!(victims, [Temper::New, Temper::New, Temper::Main, Temper::Main]);
        }
    }

    #[test]
    fn the_latest_values_stay_however_long_they_are() {
        let tempers = [(50, 50), (51, 49), (66, 34)].map(|(new, main)| {
            [50, 1_000].map(|latest| Victim::choose(new, main, latest, None).temper)
        });
        let (main, new) = (Temper::Main, Temper::New);
        assert_eq!(tempers, [[main, main], [new, main], [new, new]]);
    }

    #[test]
    fn poor_main_pages_go_before_all_others_and_with_all_that_was_not_read_lately() {
        let poor = Some((Worth::Poor, 2));
        assert_eq!(Victim::choose(70, 30, 1, poor), Victim { temper: Temper::Main, window: 2 });
        assert_eq!(temper(70, 0, poor), Temper::New);
    }

    #[test]
    fn a_doubtful_main_page_goes_as_in_its_turn_after_many_samples_of_it() {
        let mut gauge = Gauge::default();
        let samples = |items_read| Samples { items: 32.0, items_read, bytes: 1000.0 };
        let mut sample = |page| {
            gauge.begin_sample(page);
            gauge.add(samples(20.0), samples(6.0));
            gauge.worth_of_main()
        };
        let until = |worth: [Worth; 20]| worth.iter().position(|worth| *worth == Worth::Doubtful);
        assert_eq!(until([7; 20].map(&mut sample)), Some(15));
        assert_eq!(sample(7), Worth::Doubtful);
        assert_eq!(until([8; 20].map(&mut sample)), Some(15), "another page is sampled anew");
        let goes = Victim { temper: Temper::Main, window: u32::MAX };
        assert_eq!(Victim::choose(70, 30, 1, Some((Worth::Doubtful, 2))), goes);
    }

    #[test]
    fn main_is_poor_if_it_earns_an_eighth_a_byte_of_what_new_does_and_not_at_once() {
        let samples = |items_read, bytes| Samples { items: 32.0, items_read, bytes };
        let mut gauge = Gauge::default();
        assert!(gauge.worth_of_main() != Worth::Poor, "nothing was seen yet");
        gauge.add(samples(8.0, 1000.0), samples(0.0, 4000.0));
        assert!(gauge.worth_of_main() != Worth::Poor, "a few items say nothing");
        (0..20).for_each(|_| gauge.add(samples(8.0, 1000.0), samples(20.0, 4000.0)));
        // The items of main are longer: what counts is reads by the byte.
        assert!(gauge.worth_of_main() != Worth::Poor);
        let until = (0..).find(|_| {
            gauge.add(samples(8.0, 1000.0), samples(0.0, 4000.0));
            gauge.worth_of_main() == Worth::Poor
        });
        assert_eq!(until, Some(14));
        gauge.add(samples(8.0, 1000.0), samples(32.0, 4000.0));
        assert!(gauge.worth_of_main() != Worth::Poor);
        (0..400).for_each(|_| gauge.add(samples(0.0, 1000.0), samples(0.0, 4000.0)));
        assert!(gauge.worth_of_main() != Worth::Poor, "nothing is read anywhere");
    }

    #[test]
    fn an_item_never_read_is_evicted_and_a_popular_one_gets_three_rounds() {
        let rounds = |mut access: Access, now: u32, window: u32| {
            let mut rounds = 0;
            while let Some(next) = survives(access, Temper::Main, now, window) {
                (access, rounds) = (next, rounds + 1);
            }
            rounds
        };
        assert_eq!(survives(Access::new(7, 0, false, 5), Temper::New, 5, u32::MAX), None);
        let popular = Access::new(7, 3, true, 5);
        assert_eq!([u32::MAX, 2, 1].map(|window| rounds(popular, 7, window)), [3, 3, 0]);
        assert_eq!(survives(popular, Temper::New, 7, 1), Some(Access::new(7, 0, true, 5)));
    }
}
