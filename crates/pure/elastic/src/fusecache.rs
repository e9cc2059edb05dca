//! FuseCache: how many items to take from each of k lists, sorted by age, so that together they
//! are the n youngest (ElMem, ICDCS 2018, §IV, algorithm 1), or the youngest that fit.
//!
//! Departures from the listing, each with its test:
//! - Medians are weighted by what is left of their lists. With lists of unequal length the plain
//!   median of medians may discard almost nothing; the weighted one always discards a quarter.
//! - What was picked is returned, not where the search ended.
//! - Ties are counted apart, so that rounds end however many ages are equal.
//! - Every other round probes each list where the answer should be, were the lists alike (the
//!   share still wanted of what is left), instead of in its middle. Lists that are alike then
//!   need a handful of rounds; the rounds between keep the bound for those that are not.
//! - Items of each list may have a weight: sizes share a server's memory, and none has a part of its own.

use crate::cuts::Cuts;

/// Seconds since an item's last access. Ages, not times of day: the clocks of servers differ.
pub type Age = u32;

/// What to take of one list: its first `items`, the youngest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    pub items: usize,
    /// The age of the last one taken.
    pub oldest: Option<Age>,
}

/// The work that a search took, for experiments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    pub rounds: usize,
    /// Ages looked at.
    pub probes: usize,
}

/// A list's ages, sorted, youngest first; and what each of its items weighs, 1 at least.
pub type WeightedAges<'a> = (&'a [Age], u64);

/// Picks the `n` youngest of all items; all of them where there are fewer.
///
/// `lists` are sorted, youngest first. Among items of the same age the earlier lists go first:
/// whoever puts its own list first moves no more than it must. O(k log² n) for k lists.
pub fn fuse(lists: &[&[Age]], n: usize) -> Vec<Pick> {
    fuse_counting(lists, n).0
}

/// As [`fuse`], and what it took.
pub fn fuse_counting(lists: &[&[Age]], n: usize) -> (Vec<Pick>, Effort) {
    let weighed: Vec<WeightedAges> = lists.iter().map(|ages| (*ages, 1)).collect();
    search(&weighed, n as u64)
}

/// Picks the youngest of all items, up to the first that does not fit into `room`, which is of the unit of the weights. Otherwise as [`fuse`],
/// for n of the lightest items that fit.
pub fn fuse_by_weight(lists: &[WeightedAges], room: u64) -> Vec<Pick> {
    search(lists, room).0
}

fn search(lists: &[WeightedAges], room: u64) -> (Vec<Pick>, Effort) {
    let mut search = Search::new(lists, room);
    while search.wanted > 0 && search.left > search.wanted {
        search.round();
    }
    if search.wanted > 0 {
        // As many are left as are wanted, or fewer.
        for window in &search.windows {
            search.taken[window.list] = window.end;
        }
    }
    let picks = search.taken.iter().zip(lists).map(|(&items, (ages, _))| Pick {
        items,
        oldest: items.checked_sub(1).map(|last| ages[last]),
    });
    (picks.collect(), search.effort)
}

/// The part of a list of which it is not yet known whether it is taken.
#[derive(Clone, Copy, Debug)]
struct Window {
    list: usize,
    weight: u64,
    start: usize,
    end: usize,
    /// Where this round looked, and where it would cut.
    probe: usize,
    cut: usize,
}

struct Search<'a> {
    lists: &'a [WeightedAges<'a>],
    taken: Vec<usize>,
    /// Lists with nothing left to decide are not here.
    windows: Vec<Window>,
    /// Weights: still to be picked, and of all that is not decided.
    wanted: u64,
    left: u64,
    probes: Vec<(Age, u64)>,
    cuts: Cuts,
    /// Ages looked at for pivots.
    probed: usize,
    effort: Effort,
}

impl<'a> Search<'a> {
    fn new(lists: &'a [WeightedAges<'a>], wanted: u64) -> Search<'a> {
        // No list gives more than fits, and what comes after the first item that does not is not looked at.
        let window = |(list, &(ages, weight)): (usize, &WeightedAges)| {
            let end = ages.len().min((wanted / weight + 1) as usize);
            Window { list, weight, start: 0, end, probe: 0, cut: 0 }
        };
        let some = lists.iter().enumerate().filter(|(_, (ages, _))| !ages.is_empty());
        let windows: Vec<Window> = some.map(window).collect();
        Search {
            lists,
            taken: vec![0; lists.len()],
            wanted,
            left: windows.iter().map(|window| window.end as u64 * window.weight).sum(),
            probes: Vec::with_capacity(windows.len()),
            windows,
            cuts: Cuts::default(),
            probed: 0,
            effort: Effort::default(),
        }
    }

    fn round(&mut self) {
        self.effort.rounds += 1;
        let pivot = self.pivot();
        let younger = self.cut_at(|window| window.probe, |age| age < pivot);
        if younger > self.wanted {
            for window in &mut self.windows {
                window.end = window.cut;
            }
            self.left = younger;
        } else {
            let younger_cuts: Vec<usize> = self.windows.iter().map(|window| window.cut).collect();
            // Few lists hold an age as old as the pivot, and then just behind what is younger.
            let not_older = self.cut_at(|window| window.cut, |age| age <= pivot);
            if not_older <= self.wanted {
                for window in &mut self.windows {
                    window.start = window.cut;
                    self.taken[window.list] = window.cut;
                }
                self.wanted -= not_older;
                self.left -= not_older;
            } else {
                self.take_ties(&younger_cuts, self.wanted - younger);
            }
        }
        self.windows.retain(|window| window.start < window.end);
        self.effort.probes = self.probed + self.cuts.probes;
    }

    // The cut lies among the items as old as the pivot: the earlier lists give theirs.
    fn take_ties(&mut self, younger_cuts: &[usize], mut ties: u64) {
        for (window, &younger) in self.windows.iter().zip(younger_cuts) {
            let tied = (ties / window.weight).min((window.cut - younger) as u64);
            self.taken[window.list] = younger + tied as usize;
            ties = match younger + (tied as usize) < window.cut {
                // Here is the first that does not fit.
                true => 0,
                false => ties - tied * window.weight,
            };
        }
        self.wanted = 0;
    }

    // The median of the lists' probes, each as heavy as what is left of its list.
    fn pivot(&mut self) -> Age {
        let share = match self.effort.rounds % 2 {
            1 => self.wanted as f64 / self.left as f64,
            _ => 0.5,
        };
        self.probes.clear();
        for window in &mut self.windows {
            let len = window.end - window.start;
            window.probe = window.start + ((len as f64 * share) as usize).min(len - 1);
            let age = self.lists[window.list].0[window.probe];
            self.probes.push((age, len as u64 * window.weight));
        }
        self.probed += self.probes.len();
        weighted_median(&mut self.probes, self.left)
    }

    // Cuts each window behind its items that are `before`; what these weigh.
    fn cut_at(&mut self, guess: impl Fn(&Window) -> usize, before: impl Fn(Age) -> bool) -> u64 {
        self.cuts.clear();
        for window in &self.windows {
            let guess = guess(window).min(window.end - 1);
            self.cuts.add(window.list, window.start, window.end, guess);
        }
        let mut sum = 0;
        for (window, cut) in self.windows.iter_mut().zip(self.cuts.search(self.lists, before)) {
            window.cut = cut;
            sum += (cut - window.start) as u64 * window.weight;
        }
        sum
    }
}

/// The age at which half of `all` the weight is reached. O(probes), expected.
fn weighted_median(mut probes: &mut [(Age, u64)], all: u64) -> Age {
    let mut lighter = 0;
    loop {
        let middle = probes.len() / 2;
        let (younger, &mut (age, weight), older) = probes.select_nth_unstable(middle);
        let below = lighter + younger.iter().map(|(_, weight)| weight).sum::<u64>();
        if 2 * below >= all && !younger.is_empty() {
            probes = younger;
        } else if 2 * (below + weight) >= all || older.is_empty() {
            return age;
        } else {
            lighter = below + weight;
            probes = older;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_sketch::Random;

    fn items(lists: &[&[Age]], n: usize) -> Vec<usize> {
        fuse(lists, n).iter().map(|pick| pick.items).collect()
    }

    // All items sorted by age, then by list: the first n.
    fn by_sorting(lists: &[Vec<Age>], n: usize) -> Vec<usize> {
        let mut all: Vec<(Age, usize)> = Vec::new();
        for (list, ages) in lists.iter().enumerate() {
            all.extend(ages.iter().map(|&age| (age, list)));
        }
        all.sort_unstable();
        let mut items = vec![0; lists.len()];
        all.iter().take(n).for_each(|&(_, list)| items[list] += 1);
        items
    }

    #[test]
    fn picks_the_youngest_across_lists() {
        assert_eq!(items(&[&[1, 4, 9], &[2, 3, 5], &[6, 7, 8]], 5), [2, 3, 0]);
        let picks = fuse(&[&[1, 4, 9], &[6, 7]], 2);
        assert_eq!(picks[0], Pick { items: 2, oldest: Some(4) });
        assert_eq!(picks[1], Pick { items: 0, oldest: None });
    }

    #[test]
    fn nothing_everything_and_more_than_there_is() {
        let lists: [&[Age]; 3] = [&[3, 3], &[], &[1]];
        assert_eq!(items(&lists, 0), [0, 0, 0]);
        assert_eq!(items(&lists, 3), [2, 0, 1]);
        assert_eq!(items(&lists, 4), [2, 0, 1]);
        assert_eq!(items(&[], 5), [0; 0]);
        assert_eq!(items(&[&[], &[]], 5), [0, 0]);
    }

    #[test]
    fn among_equals_the_first_lists_go_first() {
        assert_eq!(items(&[&[7; 5], &[7; 5], &[1, 7, 7]], 8), [5, 2, 1]);
    }

    #[test]
    fn one_long_list_among_many_short_ones() {
        let long: Vec<Age> = (0..100_000).collect();
        let mut lists: Vec<&[Age]> = vec![&[50_000]; 500];
        lists.push(&long);
        let picks = items(&lists, 50_300);
        assert_eq!((picks[..500].iter().sum::<usize>(), picks[500]), (300, 50_000));
    }

    #[test]
    fn equals_a_full_sort_on_random_lists() {
        let mut bits = Random::new(1);
        for case in 0..20_000 {
            let mut below = |most: u64| bits.word() % most;
            // From all equal to all different ages; from no lists to many, from empty to long.
            let ages = 1 << below(20);
            let lists: Vec<Vec<Age>> = (0..below(12))
                .map(|_| {
                    let len_most = 1 << below(9);
                    let (base, spread) = (below(ages), 1 + below(ages));
                    let mut list: Vec<Age> =
                        (0..below(len_most)).map(|_| (base + below(spread)) as Age).collect();
                    list.sort_unstable();
                    list
                })
                .collect();
            let total: usize = lists.iter().map(Vec::len).sum();
            let slices: Vec<&[Age]> = lists.iter().map(Vec::as_slice).collect();
            for n in [0, 1, below(total as u64 + 2) as usize, total / 2, total, total + 3] {
                assert_eq!(items(&slices, n), by_sorting(&lists, n), "case {case}, n {n}");
            }
        }
    }

    #[test]
    fn what_fits_by_weight_equals_a_walk_through_a_full_sort() {
        let mut bits = Random::new(3);
        for case in 0..20_000 {
            let mut below = |most: u64| bits.word() % most;
            let spread = 1 << below(12);
            let lists: Vec<(Vec<Age>, u64)> = (0..below(10))
                .map(|_| {
                    let len_most = 1 << below(8);
                    let mut ages: Vec<Age> =
                        (0..below(len_most)).map(|_| below(spread) as Age).collect();
                    ages.sort_unstable();
                    let weight_most = 1 << below(8);
                    (ages, 1 + below(weight_most))
                })
                .collect();
            let weighed: Vec<WeightedAges> =
                lists.iter().map(|(ages, weight)| (&ages[..], *weight)).collect();
            let all: u64 = lists.iter().map(|(ages, weight)| ages.len() as u64 * weight).sum();
            for room in [0, 1, below(all + 2), all / 2, all.saturating_sub(1), all, all + 3] {
                let mut sorted: Vec<(Age, usize)> = Vec::new();
                for (list, (ages, _)) in lists.iter().enumerate() {
                    sorted.extend(ages.iter().map(|&age| (age, list)));
                }
                sorted.sort_unstable();
                let (mut fit, mut left) = (vec![0; lists.len()], room);
                for (_, list) in sorted {
                    let Some(less) = left.checked_sub(lists[list].1) else { break };
                    left = less;
                    fit[list] += 1;
                }
                let picked: Vec<usize> =
                    fuse_by_weight(&weighed, room).iter().map(|pick| pick.items).collect();
                assert_eq!(picked, fit, "case {case}, room {room}");
            }
        }
    }

    #[test]
    fn every_second_round_discards_a_quarter() {
        let mut bits = Random::new(2);
        for shape in 0..200_u32 {
            let lists: Vec<Vec<Age>> = (0..50)
                .map(|list| {
                    let base = (list as f64).powi(shape as i32 % 6) as Age;
                    let mut ages: Vec<Age> = (0..1 + bits.word() % 5_000)
                        .map(|_| base + (bits.word() % 1_000) as Age)
                        .collect();
                    ages.sort_unstable();
                    ages
                })
                .collect();
            let total: usize = lists.iter().map(Vec::len).sum();
            let slices: Vec<&[Age]> = lists.iter().map(Vec::as_slice).collect();
            let n = (bits.word() % total as u64) as usize;
            let (_, effort) = fuse_counting(&slices, n);
            let rounds_most = 2.0 * (total as f64).ln() / (4.0_f64 / 3.0).ln() + 2.0;
            assert!((effort.rounds as f64) < rounds_most, "{effort:?} of {rounds_most}");
        }
    }
}
