//! Scaling: what servers tell of their items, and which items a move certainly takes along.

use std::time::Duration;

use mbal_control::api::{AgesAsked, AgesReport, ClassSelected, MoveNews, Selected};
use mbal_model::Instant;
use mbal_worker::AgeThresholds;

use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::hosts::id_of;
use super::profile::Key;
use super::world::World;

/// Of what a server's items need, so much memory it says to have, in percent: stores of runs are hardly ever full.
const MEMORY_PERCENT: [u64; 4] = [20, 50, 90, 400];

/// By so much ages may grow on the way.
const JOURNEYS: Micros = 10 * SECOND;
/// The longest time that a server has to be empty.
const HURRY_MOST: Micros = 400_000;
/// See `policy` in `mbal_cachelet`.
const UNREAD_IS_OLDER: u32 = 32;

/// What a server remembers of the last ages that it told.
#[derive(Default)]
pub struct AgesTold {
    memory_percent: u64,
    number: u32,
    /// The moment from which they count, by its clock.
    second: u32,
    /// How often each key had travelled by then.
    journeys: Vec<u64>,
}

impl AgesTold {
    /// What is told of them: it has as much memory as was drawn.
    pub fn report(&self, told: AgesReport) -> AgesReport {
        let used_bytes = told.classes.iter().map(|class| class.bytes).sum::<u64>();
        AgesReport { memory_bytes: used_bytes * self.memory_percent / 100, used_bytes, ..told }
    }
}

/// A move that does not carry everything.
pub struct Cut {
    /// The move's; 0 of all moves of a server that is in a hurry.
    pub number: u32,
    pub first: u64,
    pub last: u64,
    /// Since when nobody may rely on what was not chosen.
    pub from: Micros,
    /// What was used from then on was chosen.
    pub chosen_since: Micros,
    /// Keys that have travelled since the moment of ages, beside this move: with every journey an age may grow by a second or two.
    pub travelled: Vec<bool>,
}

impl World {
    /// A server is about to remember the moment of these ages.
    pub fn note_ages(&mut self, host: usize, asked: Option<&AgesAsked>) {
        let Some(&AgesAsked { number, ago_ms }) = asked else { return };
        if self.hosts[host].ages.number == number {
            return;
        }
        let memory_percent = self.dice.pick(&MEMORY_PERCENT);
        let journeys = (0..self.profile.keys.len()).map(|key| self.flux.journeys(key)).collect();
        let this = &mut self.hosts[host];
        let now = this.clock.at(self.now);
        let second = (now.instant() - Duration::from_millis(ago_ms)).as_secs() as u32;
        this.ages = AgesTold { memory_percent, number, second, journeys };
    }

    fn cutoffs_of(&self, host: usize, selected: &Selected) -> Option<AgeThresholds> {
        let this = &self.hosts[host];
        let classes =
            selected.classes.iter().map(|class| (class.class, class.younger_than, class.tied));
        this.server.age_thresholds(this.clock.at(self.now), selected.number, classes)
    }

    /// What the checkers are to know of a move of which a server is about to be told.
    pub fn note_cut(&mut self, host: usize, news: &MoveNews) {
        let selected = news.selected.as_ref().filter(|_| news.from == id_of(host).0);
        let Some(selected) = selected else { return };
        let age = |class: &ClassSelected| class.younger_than;
        let this = &self.hosts[host];
        if self.cutoffs_of(host, selected).is_none() {
            return;
        }
        let is_known = self.cuts.iter().any(|cut| cut.number == news.number);
        if !is_known && this.ages.number == selected.number {
            // Of the class that is cut most: which one an item is of the checkers do not know.
            let youngest = selected.classes.iter().map(age).min().unwrap_or(u32::MAX);
            // Of what was not read since it was written a part of its age is enough not to be chosen.
            let since = (this.ages.second + 1).saturating_sub(youngest / UNREAD_IS_OLDER);
            let prefix = mbal_model::Prefix::parse(news.prefix.as_bytes()).expect("it was sent");
            let chosen_since = this.clock.when(Instant::from_secs(since.into()));
            let (first, last) = (prefix.first_hash(), prefix.last_hash());
            let (number, from) = (news.number, self.now);
            let before = this.ages.journeys.iter().enumerate();
            let travelled = before.map(|(key, before)| self.flux.journeys(key) > before + 1);
            let travelled = travelled.collect();
            self.cuts.push(Cut { number, first, last, from, chosen_since, travelled });
            self.coverage.meet(Sight::MoveChooses);
        }
    }

    /// The server is to be empty soon, as at SIGTERM: when the time is over only the hottest items travel. It does not end then, which is worse.
    pub fn hurry(&mut self, host: usize) {
        let this = &self.hosts[host];
        let now = this.clock.at(self.now);
        this.server.hurry(now, now.instant() + Duration::from_micros(self.now % HURRY_MOST));
        let chosen_since = this.clock.when(Instant::from_secs(u64::from(now.second) + 1));
        let (number, first, last, from) = (0, 0, u64::MAX, self.now);
        // From then on, whatever has come by a journey.
        let travelled = vec![true; self.profile.keys.len()];
        self.cuts.push(Cut { number, first, last, from, chosen_since, travelled });
        self.coverage.meet(Sight::DrainHurries);
    }

    /// Of each key: since when it was not certain, and since when it is chosen if it was used.
    pub fn cuts_of_keys(&self) -> Vec<Vec<(Micros, Micros)>> {
        let of_key = |(at, hash): (usize, u64)| {
            let cuts = self.cuts.iter().filter(|cut| (cut.first..=cut.last).contains(&hash));
            let late = |cut: &Cut| if cut.travelled[at] { JOURNEYS } else { 0 };
            cuts.map(|cut| (cut.from, cut.chosen_since + late(cut))).collect()
        };
        self.profile.keys.iter().map(Key::hash).enumerate().map(of_key).collect()
    }
}
