//! What travels when a pool of stock memcacheds changes, and what must be deleted first.

use std::collections::BTreeMap;

use super::{Listing, Slabs};
use crate::{Age, ClassAge, Inventory, SizeClass, plan_transfer};
use mbal_model::ServerId;
use mbal_routing::ketama::Ring;

/// The memory of a server as it is cut.
#[derive(Clone, Debug, Default)]
pub struct SlabPages {
    /// Pages by class.
    pub pages: Vec<u64>,
    /// Pages that no class has yet.
    pub free_pages: u64,
}

/// One server, of the pool as it was or as it will be.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Sorted.
    pub listing: &'a Listing,
    pub slabs: &'a Slabs,
    pub held: &'a SlabPages,
}

/// Two rings over members, which have numbers.
#[derive(Clone, Debug)]
pub struct Resize {
    pub old: Ring,
    /// The member of each server of the old ring.
    pub old_members: Vec<usize>,
    pub new: Ring,
    pub new_members: Vec<usize>,
}

/// By member; items are numbers in its listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Items that clients do not look for where they are: what an earlier change of the pool left. They may be stale.
    pub strays: Vec<Vec<u32>>,
    /// What leaves each member, oldest first, with the member that it goes to. The youngest arrive last, so that memcached
    /// evicts them last.
    pub carried: Vec<Vec<(u32, u16)>>,
    /// Items that belong to another member, and are colder than what fits there.
    pub left: u64,
    /// Items of destinations that are colder than what comes.
    pub displaced: u64,
}

impl Resize {
    /// The member that clients ask for a key at this place.
    pub fn owner_before(&self, place: u32) -> usize {
        self.old_members[self.old.at(place)]
    }

    /// The member that they will ask.
    pub fn owner_after(&self, place: u32) -> usize {
        self.new_members[self.new.at(place)]
    }
}

/// Items of one class, youngest first.
#[derive(Default)]
struct Ages {
    ages: Vec<Age>,
    items: Vec<u32>,
    chunks: u64,
}

impl Ages {
    fn push(&mut self, item: u32, age: Age, chunks: u64) {
        self.ages.push(age);
        self.items.push(item);
        self.chunks += chunks;
    }
}

/// What could be kept at one destination, of one class.
#[derive(Default)]
struct Wanted {
    own: Ages,
    /// By source.
    arriving: BTreeMap<usize, Ages>,
}

impl Wanted {
    fn sum(&self, of: impl Fn(&Ages) -> u64) -> u64 {
        of(&self.own) + self.arriving.values().map(of).sum::<u64>()
    }

    fn chunks(&self) -> u64 {
        self.sum(|ages| ages.chunks)
    }

    fn items(&self) -> u64 {
        self.sum(|ages| ages.items.len() as u64)
    }
}

/// Selects by FuseCache, per class and destination, within what memory the destination has for the class.
///
/// # Panics
///
/// With more than 65,535 members, or 2³² items of one.
pub fn plan(members: &[Member], resize: &Resize) -> Plan {
    let mut plan = Plan {
        strays: vec![Vec::new(); members.len()],
        carried: vec![Vec::new(); members.len()],
        ..Plan::default()
    };
    let mut wanted: BTreeMap<(usize, usize), Wanted> = BTreeMap::new();
    for (source, member) in members.iter().enumerate() {
        for (number, item) in member.listing.items().iter().enumerate() {
            let number = u32::try_from(number).expect("a server has fewer than 2^32 items");
            if resize.owner_before(item.place) != source {
                plan.strays[source].push(number);
                continue;
            }
            let destination = resize.owner_after(item.place);
            let (class, chunks) = members[destination].slabs.class_of(u64::from(item.bytes));
            let wanted = wanted.entry((destination, class)).or_default();
            let ages = match destination == source {
                true => &mut wanted.own,
                false => wanted.arriving.entry(source).or_default(),
            };
            ages.push(number, item.age, chunks);
        }
    }
    let needs: Vec<(usize, usize, u64)> =
        wanted.iter().map(|(&(to, class), wanted)| (to, class, wanted.chunks())).collect();
    let rooms = rooms(members, &needs);
    for ((&(destination, class), wanted), chunks) in wanted.iter().zip(rooms) {
        // Items of the last class may have several chunks: so many on average.
        let room = u128::from(chunks) * u128::from(wanted.items()) / u128::from(wanted.chunks());
        let id = |member: usize| ServerId(u16::try_from(member).expect("members have numbers"));
        let transfer = plan_transfer(&Inventory {
            destination: id(destination),
            class: SizeClass(class as u8),
            room: usize::try_from(room).unwrap_or(usize::MAX),
            own: &wanted.own.ages,
            arriving: wanted
                .arriving
                .iter()
                .map(|(&source, ages)| (id(source), &ages.ages[..]))
                .collect(),
        });
        plan.displaced += (wanted.own.items.len() - transfer.own_kept) as u64;
        for ((source, ages), (_, pick)) in wanted.arriving.iter().zip(&transfer.carried) {
            plan.left += (ages.items.len() - pick.items) as u64;
            let picked = ages.items[..pick.items].iter();
            plan.carried[*source].extend(picked.map(|&item| (item, id(destination).0)));
        }
    }
    for carried in &mut plan.carried {
        carried.sort_unstable_by_key(|&(item, _)| std::cmp::Reverse(item));
    }
    plan
}

/// The chunks that each destination's class has, or will get of the pages that no class has: in proportion to what it wants of
/// them. A class without a page gets one in any case; memcached sees to that, even beyond its limit.
fn rooms(members: &[Member], needs: &[(usize, usize, u64)]) -> Vec<u64> {
    let pages_of = |&(destination, class, chunks): &(usize, usize, u64)| {
        let Member { slabs, held, .. } = members[destination];
        let has = held.pages.get(class).copied().unwrap_or(0);
        let wants = chunks.div_ceil(slabs.chunks_per_page(class)).saturating_sub(has);
        (has, wants)
    };
    let mut wanted = vec![0_u64; members.len()];
    for need in needs {
        wanted[need.0] += pages_of(need).1;
    }
    let room = |need: &(usize, usize, u64)| {
        let (has, wants) = pages_of(need);
        let (destination, class, _) = *need;
        let Member { slabs, held, .. } = members[destination];
        let gets = match wanted[destination] {
            all if all <= held.free_pages => wants,
            all => (u128::from(wants) * u128::from(held.free_pages) / u128::from(all)) as u64,
        };
        (has + gets).max(1) * slabs.chunks_per_page(class)
    };
    needs.iter().map(room).collect()
}

/// What a member is scored by ([`choose_retiring`](crate::choose_retiring)): each class's median age, and its share of the pages.
pub fn class_ages(member: &Member) -> Vec<ClassAge> {
    let mut ages: BTreeMap<usize, Vec<Age>> = BTreeMap::new();
    for item in member.listing.items() {
        let (class, _) = member.slabs.class_of(u64::from(item.bytes));
        ages.entry(class).or_default().push(item.age);
    }
    let pages = |class: usize| member.held.pages.get(class).copied().unwrap_or(0).max(1) as f64;
    let all: f64 = ages.keys().map(|&class| pages(class)).sum();
    let told = ages.iter().map(|(&class, ages)| ClassAge {
        memory_share: pages(class) / all,
        median_age: ages[ages.len() / 2],
    });
    told.collect()
}

#[cfg(test)]
#[path = "../../tests/unit/planning.rs"]
mod tests;
