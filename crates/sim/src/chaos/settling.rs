//! The end of a run: all has been asked, nothing goes wrong any more. Then every move ends, all servers agree, and every key can be read.

use std::sync::OnceLock;

use mbal_cachelet::Draft;
use mbal_model::{Key, Prefix};

use super::client::Kind;
use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::world::World;

/// All has come to rest so long after the last fault, at the latest.
const SETTLES_WITHIN: Micros = 60 * SECOND;

/// Of a cachelet that is filled.
const FILLERS: usize = 2_500;
/// A store gets no more when it has so many items, and a cachelet that is narrower than this none.
const ITEMS_MAX: u64 = 8_000;
const FILLED_BITS_MAX: u32 = 5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Asks,
    /// Since then nothing goes wrong.
    Settles { since: Micros },
    /// Every key is read once more.
    Looks,
}

impl World {
    /// All has been asked and answered: what is left; false if nothing is.
    pub fn goes_on_settling(&mut self) -> bool {
        if !self.is_clustered() {
            return false;
        }
        let phase = self.phase;
        match phase {
            Phase::Asks => {
                self.tell(|| "all has been asked".to_owned());
                self.phase = Phase::Settles { since: self.now };
                self.mend_all();
                true
            }
            Phase::Settles { .. } if self.has_come_to_rest() => {
                self.tell(|| "all has come to rest".to_owned());
                self.coverage.meet(Sight::Settled);
                self.phase = Phase::Looks;
                self.read_every_key();
                true
            }
            Phase::Settles { since } if since + SETTLES_WITHIN < self.now => {
                let what = self.unrest().unwrap_or_else(|| "nobody says anything".to_owned());
                self.fail(5, format!("no rest after {} s: {what}", SETTLES_WITHIN / SECOND));
                false
            }
            Phase::Settles { .. } => true,
            Phase::Looks => false,
        }
    }

    /// Nothing has come to rest since it was looked, and there is time: whatever is unanswered.
    pub fn awaits_rest(&self) -> bool {
        let Phase::Settles { since } = self.phase else { return false };
        !self.has_news && self.now <= since + SETTLES_WITHIN
    }

    fn has_come_to_rest(&mut self) -> bool {
        std::mem::take(&mut self.has_news) && self.unrest().is_none()
    }

    /// What has not come to rest yet.
    fn unrest(&mut self) -> Option<String> {
        if !self.control.runs() {
            return Some("the coordinator is not there".into());
        }
        if let Some((id, one)) = self.control.file.moves.first_key_value() {
            return Some(format!("move {} goes on: {one:?}", id.0));
        }
        let version = self.control.file.map.as_ref().map_or(0, |map| map.version());
        for (at, host) in self.hosts.iter().enumerate() {
            let moves = host.server.moves_under_way();
            if !host.runs() || host.member.driver.map_version() != version || moves > 0 {
                let known = host.member.driver.map_version();
                let told = host.server.move_reports();
                return Some(format!(
                    "server {at} follows map {known} of {version}, {moves} moves: {told:?}"
                ));
            }
        }
        if !self.links_are_up() || !self.move_links_are_up() {
            return Some("some link is not up".into());
        }
        (0..self.profile.keys.len()).find(|key| self.in_flux(*key, self.now)).map(|key| {
            format!("servers do not agree who serves key {key}: {}", self.whereabouts(key))
        })
    }

    /// By each server, of each key: nobody is unreachable.
    fn read_every_key(&mut self) {
        let clients = 0..self.profile.clients;
        let Some(client) = clients.into_iter().find(|at| self.clients[*at].kind == Kind::Ordinary)
        else {
            return;
        };
        for host in 0..self.hosts.len() {
            let seat = self.hosts[host].seats.start + self.dice.below(self.profile.workers);
            self.connect_to(client, 0, seat);
            let connection = self.connections.len() - 1;
            self.read_all(client, connection);
        }
    }

    /// Makes several slices of a cachelet of few items, where there is memory for that.
    pub fn fill(&mut self, host: usize, prefix: Prefix) {
        let (store, second) = (self.hosts[host].store(), self.hosts[host].second(self.now));
        let is_full = self.profile.tight || store.stats().items > ITEMS_MAX;
        let serves = store.is_here(prefix) && store.owner(prefix).is_some();
        if is_full || prefix.bits() > FILLED_BITS_MAX || !serves || !self.hosts[host].is_up {
            return;
        }
        let parts = Prefix::equal(FILLED_BITS_MAX).zip(fillers());
        let inside = parts.filter(|(part, _)| prefix.contains(part.first_hash()));
        for name in inside.flat_map(|(_, names)| names).take(FILLERS) {
            let key = key_of(name);
            // A slice of it may have gone already.
            if self.serves(host, key.hash()) {
                // Where it finds no room there are fewer.
                store.lock(key.hash(), second).put(&key, &Draft::default()).ok();
            }
        }
    }
}

/// By the first bits of their hashes, keys enough to fill a cachelet. Worked out once.
fn fillers() -> &'static [Vec<String>] {
    static ALL: OnceLock<Vec<Vec<String>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = vec![Vec::new(); 1 << FILLED_BITS_MAX];
        for name in (0..FILLERS << FILLED_BITS_MAX).map(|number| format!("filler:{number}")) {
            let part = key_of(&name).hash() >> (64 - FILLED_BITS_MAX);
            all[part as usize].push(name);
        }
        all
    })
}

fn key_of(name: &str) -> Key<'_> {
    Key::new(name.as_bytes()).expect("a short name")
}
