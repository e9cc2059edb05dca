//! What goes wrong: links break, ways fall silent, processes are stopped or die; until all has been asked.

use std::ops::Range;

use super::coverage::Sight;
use super::history::Micros;
use super::world::{Happening, World};

/// Of a hundred troubles those in which one way falls silent. Where keys are hot it is most of them: leases end meanwhile.
const SILENCE: Range<usize> = 88..94;

/// What an accident is followed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mending {
    ServerGoesOn {
        host: usize,
        life: u32,
    },
    ServerBegins {
        host: usize,
        life: u32,
    },
    CoordinatorGoesOn,
    CoordinatorBegins,
    /// An operator says that a server is dead, again and again until it is heard.
    SayLost {
        host: usize,
        life: u32,
    },
}

impl World {
    /// Nothing goes wrong any more, and nobody wants anything of the cluster.
    pub fn is_calm(&self) -> bool {
        self.asked_all()
    }

    pub fn trouble(&mut self) {
        if self.is_calm() {
            return;
        }
        let count = self.hosts.len();
        let one = self.dice.below(count);
        let other = (one + 1 + self.dice.below(count - 1)) % count;
        let outage = self.profile.outage;
        let span = self.dice.between(1..=outage);
        if self.profile.ownership.is_some() && self.dice.percent(20) {
            self.silence_etcd(self.now + span);
        }
        let silences_alone = self.profile.hot.is_some() && self.dice.percent(50);
        let roll = if silences_alone { SILENCE.start } else { self.dice.below(100) };
        match roll {
            kill if kill < self.profile.deaths => self.kill(one, span),
            stop if stop < self.profile.deaths + self.profile.stops => {
                self.stop(one);
                let life = self.hosts[one].life;
                self.mend_after(span, Mending::ServerGoesOn { host: one, life });
            }
            60..65 => {
                self.coordinator_dies();
                self.mend_after(span, Mending::CoordinatorBegins);
            }
            65..70 => {
                self.stop_coordinator();
                self.mend_after(span, Mending::CoordinatorGoesOn);
            }
            70..76 => {
                self.coverage.meet(Sight::CoordinatorSilent);
                let (from, to) = self.dice.pick(&[(one, count), (count, one)]);
                self.silence(from, to, self.now + span);
            }
            76..82 => self.break_move_links(one, other),
            82..88 => {
                self.coverage.meet(Sight::Parted);
                self.break_links_between(one, other);
                self.break_move_links(one, other);
            }
            roll if SILENCE.contains(&roll) => {
                self.coverage.meet(Sight::Silence);
                self.silence(one, other, self.now + span);
                if self.dice.percent(30) {
                    self.silence(other, one, self.now + span);
                }
            }
            _ => self.break_any_link(),
        }
        let longest = self.profile.trouble;
        let pause = self.dice.skewed(1..=longest);
        self.after(pause, Happening::Trouble);
    }

    fn kill(&mut self, host: usize, span: Micros) {
        if !self.hosts[host].is_up {
            return;
        }
        self.die(host);
        let life = self.hosts[host].life;
        // It is seen to be dead, or comes back before anybody has seen it.
        match self.dice.below(3) {
            0 => self.mend_after(span, Mending::SayLost { host, life }),
            _ => self.mend_after(span, Mending::ServerBegins { host, life }),
        }
    }

    pub fn mend_after(&mut self, pause: Micros, mending: Mending) {
        self.after(pause, Happening::Mended { mending });
    }

    pub fn mended(&mut self, mending: Mending) {
        let is_same = |host: usize, life: u32| self.hosts[host].life == life;
        match mending {
            Mending::ServerGoesOn { host, life } if is_same(host, life) => self.go_on(host),
            Mending::ServerBegins { host, life } if is_same(host, life) => self.begin(host),
            Mending::SayLost { host, life } if is_same(host, life) => self.say_lost(host),
            Mending::CoordinatorGoesOn => self.coordinator_goes_on(),
            Mending::CoordinatorBegins => self.coordinator_begins(),
            _ => {}
        }
    }

    /// All has been asked: whatever went wrong is mended.
    pub fn mend_all(&mut self) {
        self.end_silences();
        self.etcd_speaks();
        self.coordinator_goes_on();
        self.coordinator_begins();
        for host in 0..self.hosts.len() {
            self.go_on(host);
            if !self.is_being_buried(host) {
                self.begin(host);
            }
        }
    }
}
