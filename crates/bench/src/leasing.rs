//! Copies of hot keys that a smart client may read: its leases, and which server a get goes to by them.

use mbal_model::Hint;
use mbal_random::Random;
use mbal_replica::{Choice, Leases, Moment, Told};

use crate::replies::{Answer, Awaited, Kind};
use crate::wording::Wording;

/// Hot keys that a client remembers, and its marks of answers without copies.
const KEYS_MAX: usize = 1024;
const MARKS: usize = 64;

/// The `L` token of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    Hint(Hint),
    Told(Told),
}

impl Word {
    pub fn parse(text: &[u8]) -> Option<Word> {
        Told::parse(text).map(Word::Told).or_else(|| Hint::parse(text).map(Word::Hint))
    }
}

/// The leases of all clients of a thread.
pub struct Leasing {
    clients: Vec<Leases>,
    random: Random,
}

fn moment(ns: u64) -> Moment {
    Moment::from_nanos(ns)
}

impl Leasing {
    pub fn new(clients: usize, seed: u64) -> Self {
        let clients = (0..clients).map(|_| Leases::new(KEYS_MAX, MARKS, 0)).collect();
        Self { clients, random: Random::new(seed) }
    }

    /// The suffix whose copy this client reads now.
    pub fn suffix(&mut self, client: usize, hash: impl FnOnce() -> u64, now_ns: u64) -> Option<u8> {
        let leases = &mut self.clients[client];
        if leases.is_empty() {
            return None;
        }
        match leases.route(hash(), moment(now_ns), self.random.word() as u32) {
            Choice::Home => None,
            Choice::Copy(suffix) => Some(suffix),
        }
    }

    /// Takes a reply; true if a copy has answered.
    pub fn heard(
        &mut self,
        client: usize,
        wording: &Wording,
        reply: &Awaited,
        (answer, word): (&Answer, Option<&Word>),
        now_ns: u64,
    ) -> bool {
        if reply.by_lease && word.is_none() && *answer == Answer::Hit {
            return true;
        }
        let leases = &mut self.clients[client];
        let told = match word {
            Some(Word::Told(told)) if reply.kind == Kind::Get => Some(told),
            _ => None,
        };
        // Who holds no lease has none to lose. One that comes late is no harm: values here follow from their keys.
        if leases.is_empty() && told.is_none() {
            return false;
        }
        let hash = wording.hash_of(reply.key, reply.is_counter());
        if told.is_none() || reply.by_lease {
            leases.without(hash, moment(now_ns));
        }
        if let Some(told) = told {
            let asked = moment(reply.asked_ns);
            leases.told(hash, asked, told, self.random.word() as u32);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::Sizes;
    use crate::wording::{Protocol, Write};

    fn get(asked_ns: u64, by_lease: bool) -> Awaited {
        Awaited { key: 7, by_lease, asked_ns, ..Awaited::default() }
    }

    #[test]
    fn a_client_holds_its_own_leases_and_loses_them_by_a_write() {
        let wording = Wording::new(Protocol::Meta, Sizes::Constant(5), Sizes::Constant(14));
        let hash = wording.hash(7);
        let mut leasing = Leasing::new(2, 1);
        let told = Word::parse(b"=1000.3").unwrap();
        let hit = |word| (&Answer::Hit, word);
        assert!(!leasing.heard(0, &wording, &get(5, false), hit(Some(&told)), 9));
        let mut copies =
            |client| (0..100).filter(|_| leasing.suffix(client, || hash, 10) == Some(3)).count();
        assert!((20..80).contains(&copies(0)));
        assert_eq!(copies(1), 0);
        assert!(leasing.heard(0, &wording, &get(10, true), hit(None), 20), "from a copy");
        let set = Awaited { kind: Kind::Write(Write::Set), ..get(20, false) };
        assert!(!leasing.heard(0, &wording, &set, (&Answer::Stored, None), 30));
        assert_eq!(leasing.suffix(0, || hash, 31), None);
    }

    #[test]
    fn a_read_that_was_passed_on_ends_the_lease() {
        let wording = Wording::new(Protocol::Meta, Sizes::Constant(5), Sizes::Constant(14));
        let mut leasing = Leasing::new(1, 1);
        let (told, hint) = (Word::parse(b"=1000.3").unwrap(), Word::parse(b"5.0.3/0").unwrap());
        leasing.heard(0, &wording, &get(5, false), (&Answer::Hit, Some(&told)), 9);
        assert!(!leasing.heard(0, &wording, &get(10, true), (&Answer::Hit, Some(&hint)), 20));
        assert!((0..100).all(|_| leasing.suffix(0, || wording.hash(7), 30).is_none()));
    }
}
