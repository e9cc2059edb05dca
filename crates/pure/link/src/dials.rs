//! Which link is dialed when: those of each of a server's parts (its workers, and who carries its moves) to each other server.

use mbal_model::ServerId;

use crate::backoff::Backoff;

/// A dial keeps its place: handshakes name it.
pub struct Dials {
    /// The parts that dial.
    parts: Vec<usize>,
    all: Vec<Dial>,
}

/// A link that is to be.
pub struct Dial {
    pub part: usize,
    pub server: ServerId,
    /// `None` of a server that is no peer any more.
    pub address: Option<String>,
    pub is_up: bool,
    backoff: Backoff,
    /// It is up, or being dialed.
    is_begun: bool,
    /// When to dial; `None` while it is up or being dialed, or not to be.
    due: Option<u64>,
}

impl Dials {
    pub fn new(parts: Vec<usize>) -> Dials {
        Dials { parts, all: Vec::new() }
    }

    pub fn at(&self, place: usize) -> &Dial {
        &self.all[place]
    }

    /// Those that are wanted.
    pub fn wanted(&self) -> impl Iterator<Item = &Dial> {
        self.all.iter().filter(|dial| dial.address.is_some())
    }

    /// Dials whoever is new or has moved, and forgets where the others were.
    pub fn know(&mut self, peers: &[(ServerId, String)], now: u64) {
        for dial in &mut self.all {
            let found = peers.iter().find(|(server, _)| *server == dial.server);
            let address = found.map(|(_, address)| address.clone());
            if dial.address == address {
                continue;
            }
            dial.address = address;
            dial.backoff = Backoff::default();
            dial.due = dial.address.as_ref().filter(|_| !dial.is_begun).map(|_| now);
        }
        for (server, address) in peers {
            if self.all.iter().any(|dial| dial.server == *server) {
                continue;
            }
            self.all.extend(self.parts.iter().map(|part| Dial {
                part: *part,
                server: *server,
                address: Some(address.clone()),
                is_up: false,
                backoff: Backoff::default(),
                is_begun: false,
                due: Some(now),
            }));
        }
    }

    /// When the next one is due.
    pub fn next_wake(&self) -> Option<u64> {
        self.all.iter().filter_map(|dial| dial.due).min()
    }

    /// One that is to be dialed now, and counts as dialed from now on.
    pub fn due(&mut self, now: u64) -> Option<usize> {
        let place = self.all.iter().position(|dial| dial.due.is_some_and(|due| due <= now))?;
        (self.all[place].due, self.all[place].is_begun) = (None, true);
        Some(place)
    }

    pub fn up(&mut self, place: usize) {
        self.all[place].backoff.succeeded();
        self.all[place].is_up = true;
    }

    /// It was dialed in vain, or is no more. `jitter` is any number.
    pub fn failed(&mut self, place: usize, now: u64, jitter: u64) {
        let dial = &mut self.all[place];
        (dial.is_begun, dial.is_up) = (false, false);
        let pause = dial.backoff.failed(jitter);
        dial.due = dial.address.as_ref().map(|_| now + pause);
    }

    /// A link that was dialed here is no more.
    pub fn lost(&mut self, part: usize, server: ServerId, now: u64, jitter: u64) {
        let is_it = |dial: &Dial| dial.part == part && dial.server == server;
        let place = self.all.iter().position(is_it).expect("it was dialed here");
        self.failed(place, now, jitter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_dials_each_peer_and_again_when_its_link_is_lost_and_no_peer_that_has_gone() {
        let (one, two) = (ServerId(1), ServerId(2));
        let peers = [(one, "a:1".to_owned()), (two, "b:1".to_owned())];
        let mut dials = Dials::new(vec![0, 7]);
        dials.know(&peers, 5);
        let begun: Vec<usize> = std::iter::from_fn(|| dials.due(5)).collect();
        assert_eq!((begun, dials.next_wake()), (vec![0, 1, 2, 3], None));
        assert_eq!((dials.at(3).part, dials.at(3).server), (7, two));
        dials.up(3);
        dials.failed(0, 100, 0);
        dials.lost(7, two, 100, 0);
        assert_eq!((dials.next_wake(), dials.at(3).is_up), (Some(10_000_100), false));
        assert_eq!((dials.due(10_000_099), dials.due(10_000_100)), (None, Some(0)));
        // It has moved while it was being dialed: that goes on; and the other is no peer any more.
        dials.know(&[(one, "c:1".to_owned())], 200);
        assert_eq!((dials.next_wake(), dials.wanted().count()), (None, 2));
        dials.lost(7, two, 300, 0);
        assert_eq!(dials.next_wake(), None);
        dials.know(&peers, 400);
        assert_eq!(dials.due(400), Some(3), "it is a peer again");
    }
}
