//! A resize as a whole: which servers retire, and what every other one keeps and gets.

use mbal_model::ServerId;

use crate::plan::SizeClass;
use crate::score::{ClassAge, SHORTLIST, choose_retiring};
use crate::{Age, Pick, WeightedAges, fuse_by_weight};

/// Of a server's memory that the plan fills: clients go on writing while it is carried out.
const FILLED: f64 = 0.95;
/// Bytes of items by byte of pages. Of servers with few items it may seem to be anything.
const DENSITIES: [f64; 2] = [0.5, 4.0];

/// What a server tells of its items of one size class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassSample {
    pub class: SizeClass,
    pub items: u64,
    pub bytes: u64,
    /// Of some of the items, each standing for as many; sorted, youngest first.
    pub ages: Vec<Age>,
}

/// What a server tells of its items. Ages of all servers count from one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSample {
    pub server: ServerId,
    /// All that its items may have, and what their pages have.
    pub memory_bytes: u64,
    pub used_bytes: u64,
    pub classes: Vec<ClassSample>,
}

/// Items that stay, or travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// So many, as far as samples tell.
    pub items: u64,
    /// Those of a lower age than this; [`Age::MAX`] is all.
    pub younger_than: Age,
    /// And of those of this very age so many 65,536ths: ages are seconds, and many items may share one.
    pub tied: u16,
}

/// What becomes of one size class at one server that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub destination: ServerId,
    pub class: SizeClass,
    /// Of its own items.
    pub own: Kept,
    /// Of those of each server that retires.
    pub carried: Vec<(ServerId, Kept)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resize {
    /// Coldest first.
    pub retiring: Vec<ServerId>,
    /// Destinations that are not here have room for everything.
    pub cuts: Vec<Cut>,
    /// What travels, and what servers that retire have.
    pub carried_bytes: u64,
    pub retiring_bytes: u64,
    /// What servers that stay keep of their own, and what they have.
    pub kept_bytes: u64,
    pub staying_bytes: u64,
}

/// `count` of these servers retire: those that move least, of the coldest ones (docs/decisions/0165). Never all of them.
///
/// What servers that retire have is taken to go to all others in proportion to their memory.
pub fn plan_resize(servers: &[ServerSample], count: usize) -> Resize {
    let count = count.min(servers.len().saturating_sub(1));
    let scores: Vec<(ServerId, Vec<ClassAge>)> =
        servers.iter().map(|one| (one.server, class_ages(one))).collect();
    let shortlist = choose_retiring(&scores, count + SHORTLIST);
    let mut by_price: Vec<(u64, ServerId)> = shortlist
        .into_iter()
        .map(|server| (plan_for(servers, &[server]).carried_bytes, server))
        .collect();
    // Of the same price the coldest stay first.
    by_price.sort_by_key(|(bytes, _)| *bytes);
    let retiring: Vec<ServerId> = by_price.into_iter().take(count).map(|(_, id)| id).collect();
    plan_for(servers, &retiring)
}

/// The median item's age in seconds, of each class, weighed by its share of memory (ElMem, ICDCS 2018, §III.C).
pub fn score(server: &ServerSample) -> f64 {
    let classes = class_ages(server);
    classes.iter().map(|class| f64::from(class.median_age) * class.memory_share).sum()
}

fn class_ages(server: &ServerSample) -> Vec<ClassAge> {
    let all = server.classes.iter().map(|class| class.bytes).sum::<u64>().max(1);
    let sampled = server.classes.iter().filter(|class| !class.ages.is_empty());
    let age = |class: &ClassSample| ClassAge {
        memory_share: class.bytes as f64 / all as f64,
        median_age: class.ages[class.ages.len() / 2],
    };
    sampled.map(age).collect()
}

/// What travels when these servers retire.
pub fn plan_for(servers: &[ServerSample], retiring: &[ServerId]) -> Resize {
    let goes = |one: &&ServerSample| retiring.contains(&one.server);
    let leaving: Vec<&ServerSample> = servers.iter().filter(goes).collect();
    let staying: Vec<&ServerSample> = servers.iter().filter(|one| !goes(one)).collect();
    let bytes = |of: &[&ServerSample]| {
        of.iter().flat_map(|one| &one.classes).map(|class| class.bytes).sum::<u64>()
    };
    let used = servers.iter().map(|one| one.used_bytes).sum::<u64>().max(1);
    let density = (bytes(&leaving) + bytes(&staying)) as f64 / used as f64;
    let density = density.clamp(DENSITIES[0], DENSITIES[1]);
    let memory = staying.iter().map(|one| one.memory_bytes).sum::<u64>().max(1);
    let mut resize = Resize {
        retiring: retiring.to_vec(),
        retiring_bytes: bytes(&leaving),
        staying_bytes: bytes(&staying),
        ..Resize::default()
    };
    for own in staying {
        let share = own.memory_bytes as f64 / memory as f64;
        let room = own.memory_bytes as f64 * density * FILLED;
        let classes = classes_of(own, &leaving, share);
        // The youngest that fit stay: items of all sizes share the memory. Of the same age the destination's own go first.
        let lists: Vec<WeightedAges> = classes.iter().flat_map(Class::weighed).collect();
        let picks = fuse_by_weight(&lists, room as u64);
        let fits = lists.iter().zip(&picks).all(|((ages, _), pick)| ages.len() == pick.items);
        for (class, picks) in classes.iter().zip(picks.chunks(1 + leaving.len())) {
            let cut = class.cut(own.server, picks);
            resize.kept_bytes += class.lists[0].bytes_of(cut.own.items);
            let carried = class.lists[1..].iter().zip(&cut.carried);
            resize.carried_bytes +=
                carried.map(|(list, (_, kept))| list.bytes_of(kept.items)).sum::<u64>();
            if !fits {
                resize.cuts.push(cut);
            }
        }
    }
    resize
}

/// A server's items of one class that may stay at, or go to, one destination: as points that all stand for as many items.
struct Points {
    server: ServerId,
    ages: Vec<Age>,
    item_bytes: f64,
}

impl Points {
    fn bytes_of(&self, items: u64) -> u64 {
        (items as f64 * self.item_bytes) as u64
    }
}

struct Class {
    class: SizeClass,
    /// Items that a point stands for.
    step: f64,
    /// The destination's own, then those of servers that retire.
    lists: Vec<Points>,
}

fn classes_of(own: &ServerSample, leaving: &[&ServerSample], share: f64) -> Vec<Class> {
    let servers = || std::iter::once(&own).chain(leaving);
    let mut names: Vec<SizeClass> =
        servers().flat_map(|one| one.classes.iter().map(|class| class.class)).collect();
    names.sort_unstable();
    names.dedup();
    let class = |name: SizeClass| {
        let sample = |one: &ServerSample| one.classes.iter().position(|class| class.class == name);
        let samples: Vec<(ServerId, Option<&ClassSample>)> =
            servers().map(|one| (one.server, sample(one).map(|at| &one.classes[at]))).collect();
        let steps = samples.iter().filter_map(|(_, sample)| *sample);
        let steps = steps.map(|one| one.items as f64 / one.ages.len().max(1) as f64);
        let step = steps.fold(1.0, f64::max);
        let points = |(at, (server, sample)): (usize, &(ServerId, Option<&ClassSample>))| {
            let part = if at == 0 { 1.0 } else { share };
            let ages = sample.map_or(Vec::new(), |one| resampled(one, part / step));
            let item_bytes = sample.map_or(0.0, |one| one.bytes as f64 / one.items.max(1) as f64);
            Points { server: *server, ages, item_bytes }
        };
        Class { class: name, step, lists: samples.iter().enumerate().map(points).collect() }
    };
    names.into_iter().map(class).collect()
}

/// So many points for each item, at the middles of equal parts.
fn resampled(sample: &ClassSample, per_item: f64) -> Vec<Age> {
    let len = sample.ages.len();
    let points = if len == 0 { 0 } else { (sample.items as f64 * per_item).round() as usize };
    let at = |point: usize| ((point as f64 + 0.5) / points as f64 * len as f64) as usize;
    (0..points).map(|point| sample.ages[at(point).min(len - 1)]).collect()
}

impl Class {
    fn weighed(&self) -> impl Iterator<Item = WeightedAges<'_>> {
        let weight = |list: &Points| ((self.step * list.item_bytes) as u64).max(1);
        self.lists.iter().map(move |list| (&list.ages[..], weight(list)))
    }

    /// `picks`: of each list.
    fn cut(&self, destination: ServerId, picks: &[Pick]) -> Cut {
        // One age for all lists. A list whose items of that age were not taken ends before it.
        let oldest = picks.iter().filter_map(|pick| pick.oldest).max();
        let bound = oldest.map_or(0, |oldest| oldest.saturating_add(1));
        let kept = |(list, pick): (&Points, &Pick)| {
            let items = (pick.items as f64 * self.step).round() as u64;
            let Some(next) = list.ages.get(pick.items) else {
                return Kept { items, younger_than: Age::MAX, tied: 0 };
            };
            let (taken, left) = list.ages.split_at(pick.items);
            let taken = taken.iter().rev().take_while(|age| *age == next).count();
            let all = taken + left.iter().take_while(|age| *age == next).count();
            let tied = (taken as f64 / all as f64 * 65_536.0) as u16;
            Kept { items, younger_than: bound.min(*next), tied }
        };
        let mut all = self.lists.iter().zip(picks);
        let own = kept(all.next().expect("its own list is the first"));
        let carried = all.map(|both| (both.0.server, kept(both))).collect();
        Cut { destination, class: self.class, own, carried }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: u16, classes: &[(u8, u64, &[Age])]) -> ServerSample {
        let class = |(class, item_bytes, ages): &(u8, u64, &[Age])| ClassSample {
            class: SizeClass(*class),
            items: ages.len() as u64,
            bytes: item_bytes * ages.len() as u64,
            ages: ages.to_vec(),
        };
        let classes: Vec<ClassSample> = classes.iter().map(class).collect();
        let bytes = classes.iter().map(|class| class.bytes).sum::<u64>();
        ServerSample { server: ServerId(id), memory_bytes: bytes, used_bytes: bytes, classes }
    }

    fn every(step: Age, first: Age) -> Vec<Age> {
        (0..100).map(|at| first + at * step).collect()
    }

    #[test]
    fn the_coldest_server_retires_and_its_youngest_items_travel() {
        let (warm, cold) = (every(1, 0), every(1, 50));
        let servers = [
            server(1, &[(3, 100, &warm)]),
            server(2, &[(3, 100, &cold)]),
            server(3, &[(3, 100, &warm)]),
        ];
        let resize = plan_resize(&servers, 1);
        assert_eq!(resize.retiring, [ServerId(2)]);
        assert_eq!(resize.cuts.len(), 2);
        // 95 of 100 fit, of 100 of its own and 50 of those from 50 on, each second one.
        for cut in &resize.cuts {
            assert_eq!(cut.own, Kept { items: 80, younger_than: 80, tied: 0 });
            assert_eq!(cut.carried, [(ServerId(2), Kept { items: 15, younger_than: 80, tied: 0 })]);
        }
        assert_eq!((resize.carried_bytes, resize.retiring_bytes), (3_000, 10_000));
        assert_eq!((resize.kept_bytes, resize.staying_bytes), (16_000, 20_000));
    }

    #[test]
    fn where_there_is_room_everything_travels_and_nothing_is_cut() {
        let mut servers: Vec<ServerSample> =
            (1..=3).map(|id| server(id, &[(3, 100, &every(1, 0))])).collect();
        servers.iter_mut().for_each(|one| one.memory_bytes *= 4);
        let resize = plan_resize(&servers, 2);
        assert!(resize.cuts.is_empty(), "{resize:?}");
        assert_eq!(resize.carried_bytes, resize.retiring_bytes);
    }

    #[test]
    fn classes_share_the_memory_by_age() {
        // Long items are older than short ones: they give way first.
        let (young, old) = (every(1, 0), every(1, 1_000));
        let all: Vec<ServerSample> =
            (1..=2).map(|id| server(id, &[(3, 100, &young), (9, 900, &old)])).collect();
        let resize = plan_resize(&all, 1);
        let [short, long] = &resize.cuts[..] else { panic!("two classes: {resize:?}") };
        assert_eq!((short.own.younger_than, short.carried[0].1.younger_than), (Age::MAX, Age::MAX));
        // 95,000 bytes less 20,000 for short ones are 83 long ones; of the same age the own stay.
        assert_eq!((long.own.items, long.carried[0].1.items), (42, 41));
    }

    #[test]
    fn a_sample_stands_for_all_items() {
        let ages = every(1, 0);
        let mut servers: Vec<ServerSample> =
            (1..=2).map(|id| server(id, &[(3, 100, &ages)])).collect();
        for (one, items) in servers.iter_mut().zip([50_000, 100_000]) {
            one.classes[0].items = items;
            one.classes[0].bytes = items * 100;
            (one.memory_bytes, one.used_bytes) = (10_000_000, items * 100);
        }
        let resize = plan_for(&servers, &[ServerId(1)]);
        // 95,000 fit of 150,000 of the same ages.
        let cut = &resize.cuts[0];
        let kept = cut.own.items + cut.carried[0].1.items;
        assert_eq!((kept, cut.own.younger_than), (95_000, 64));
    }

    #[test]
    fn of_items_of_the_same_age_a_part_stays() {
        let servers = [server(1, &[(3, 100, &[7; 100])]), server(2, &[(3, 100, &[7; 100])])];
        let resize = plan_for(&servers, &[ServerId(2)]);
        // 95 fit, all of them own ones.
        let cut = &resize.cuts[0];
        assert_eq!(cut.own, Kept { items: 95, younger_than: 7, tied: 62_259 });
        assert_eq!(cut.carried[0].1, Kept { items: 0, younger_than: 7, tied: 0 });
    }

    #[test]
    fn one_server_stays_whatever_is_asked() {
        let servers = [server(1, &[]), server(2, &[])];
        assert_eq!(plan_resize(&servers, 5).retiring.len(), 1);
        assert_eq!(plan_resize(&servers[..1], 1).retiring, []);
        assert_eq!(plan_resize(&[], 1), Resize::default());
    }
}
