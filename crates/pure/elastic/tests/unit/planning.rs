//! Plans for pools of a few servers, of which every key's place is known.

use super::*;
use crate::pool::{Line, SlabSettings};
use mbal_routing::ketama::{Dialect, KeyHash, RingServer};

const SETTINGS: SlabSettings =
    SlabSettings { chunk_size: 48, growth_factor: 1.25, slab_chunk_max: 512 << 10 };

fn servers(count: usize) -> Vec<RingServer> {
    (0..count).map(|n| format!("10.0.0.{}", n + 1).parse().unwrap()).collect()
}

fn ring(of: &[RingServer], members: &[usize]) -> Ring {
    let servers: Vec<RingServer> = members.iter().map(|&member| of[member].clone()).collect();
    Ring::new(Dialect::Libmemcached, None, &servers)
}

fn resize(count: usize, old: &[usize], new: &[usize]) -> Resize {
    let all = servers(count);
    Resize {
        old: ring(&all, old),
        old_members: old.to_vec(),
        new: ring(&all, new),
        new_members: new.to_vec(),
    }
}

/// Items with those keys and ages, all of them of one size.
fn listing(items: &[(String, u64)], bytes: u64) -> Listing {
    const NOW: u64 = 1_000_000;
    let mut listing = Listing::default();
    for (key, age) in items {
        let key = key.clone().into_bytes();
        let line = Line { key, expires: None, last_access: NOW - age, cas: 0, bytes };
        listing.push(&line, NOW, KeyHash::Md5);
    }
    listing.sort();
    listing
}

/// Every member's keys among `user:0` and so on, by its ring, with ages that a multiplication scatters.
fn pool(resize: &Resize, members: usize, keys: u64, bytes: u64) -> Vec<Listing> {
    let mut items = vec![Vec::new(); members];
    for n in 0..keys {
        let key = format!("user:{n}");
        let owner = resize.old_members[resize.old.owner(key.as_bytes())];
        items[owner].push((key, n * 7919 % 10_007));
    }
    items.iter().map(|items| listing(items, bytes)).collect()
}

fn planned(listings: &[Listing], held: &SlabPages, resize: &Resize) -> Plan {
    let slabs = Slabs::new(&SETTINGS);
    let members: Vec<Member> =
        listings.iter().map(|listing| Member { listing, slabs: &slabs, held }).collect();
    plan(&members, resize)
}

fn pages(class: usize, count: u64, free_pages: u64) -> SlabPages {
    let mut pages = vec![0; 40];
    pages[class] = count;
    SlabPages { pages, free_pages }
}

#[test]
fn all_of_a_retiring_server_travels_where_there_is_room() {
    let resize = resize(4, &[0, 1, 2, 3], &[0, 1, 2]);
    let listings = pool(&resize, 4, 4_000, 90);
    let plan = planned(&listings, &pages(1, 1, 100), &resize);
    assert_eq!(plan.carried[3].len(), listings[3].items().len());
    assert!(plan.carried[..3].iter().all(Vec::is_empty));
    assert_eq!((plan.left, plan.displaced), (0, 0));
    for &(item, destination) in &plan.carried[3] {
        let key = listings[3].key(&listings[3].items()[item as usize]);
        assert_eq!(usize::from(destination), resize.new.owner(key));
    }
    let ages: Vec<Age> =
        plan.carried[3].iter().map(|&(item, _)| listings[3].items()[item as usize].age).collect();
    assert!(ages.is_sorted_by(|one, next| one >= next), "the oldest go first");
}

#[test]
fn what_is_kept_is_what_a_sort_keeps() {
    let resize = resize(4, &[0, 1, 2, 3], &[0, 1, 2]);
    // A page of class 12 has 885 chunks; each server has two pages, and is full.
    let listings = pool(&resize, 4, 8_000, 1_100);
    let plan = planned(&listings, &pages(12, 2, 0), &resize);
    let mut kept = 0;
    for destination in 0..3 {
        let own = listings[destination].items().iter().map(|item| item.age);
        let comes =
            listings[3].items().iter().filter(|item| resize.new.at(item.place) == destination);
        let mut all: Vec<Age> = own.chain(comes.map(|item| item.age)).collect();
        all.sort_unstable();
        let cutoff = all[2 * 885 - 1];
        let carried = plan.carried[3].iter().filter(|(_, to)| usize::from(*to) == destination);
        for &(item, _) in carried {
            assert!(listings[3].items()[item as usize].age <= cutoff);
            kept += 1;
        }
        let younger = listings[3].items().iter();
        let younger = younger
            .filter(|item| resize.new.at(item.place) == destination && item.age < cutoff)
            .count();
        let carried = plan.carried[3].iter().filter(|(_, to)| usize::from(*to) == destination);
        assert!(carried.count() >= younger, "destination {destination}");
    }
    assert_eq!(plan.left, (listings[3].items().len() - kept) as u64);
    assert!(plan.displaced > 0 && plan.left > 0);
}

#[test]
fn scaling_out_brings_each_new_server_its_keys() {
    let resize = resize(4, &[0, 1, 2], &[0, 1, 2, 3]);
    let listings = pool(&resize, 4, 4_000, 90);
    let plan = planned(&listings, &pages(1, 0, 64), &resize);
    let carried: usize = plan.carried.iter().map(Vec::len).sum();
    assert!((700..1_300).contains(&carried), "{carried}");
    assert!(plan.carried.iter().flatten().all(|&(_, destination)| destination == 3));
}

#[test]
fn what_an_earlier_change_has_left_is_a_stray_and_does_not_travel() {
    let resize = resize(4, &[0, 1, 2, 3], &[0, 1, 2]);
    let mut listings = pool(&resize, 4, 4_000, 90);
    let foreign =
        (0..).map(|n| format!("user:{n}")).find(|key| resize.old.owner(key.as_bytes()) == 3);
    let foreign = foreign.unwrap();
    let mut items: Vec<(String, u64)> = vec![(foreign.clone(), 0)];
    for item in listings[0].items() {
        let key = String::from_utf8(listings[0].key(item).to_vec()).unwrap();
        items.push((key, u64::from(item.age)));
    }
    listings[0] = listing(&items, 90);
    let plan = planned(&listings, &pages(1, 1, 100), &resize);
    let strays: Vec<&[u8]> = plan.strays[0]
        .iter()
        .map(|&item| listings[0].key(&listings[0].items()[item as usize]))
        .collect();
    assert_eq!(strays, [foreign.as_bytes()]);
    assert!(plan.carried[0].is_empty());
}

#[test]
fn free_pages_are_shared_by_need() {
    let slabs = Slabs::new(&SETTINGS);
    let empty = Listing::default();
    let held = pages(1, 2, 6);
    let members = [Member { listing: &empty, slabs: &slabs, held: &held }];
    // Class 1 has two pages and wants four; class 12 has none and wants eight.
    let needs = [(0, 1, 4 * 10_922), (0, 12, 8 * 885)];
    // Of six free ones: 2 of 10 times 6 is 1, and 8 of 10 times 6 is 4.
    assert_eq!(rooms(&members, &needs), [3 * 10_922, 4 * 885]);
}

#[test]
fn scores_are_medians_by_class_and_pages() {
    let slabs = Slabs::new(&SETTINGS);
    let items: Vec<(String, u64)> = (0..5).map(|n| (format!("a{n}"), n * 10)).collect();
    let listing = listing(&items, 90);
    let held = pages(1, 3, 0);
    let ages = class_ages(&Member { listing: &listing, slabs: &slabs, held: &held });
    assert_eq!(ages, [ClassAge { memory_share: 1.0, median_age: 20 }]);
}
