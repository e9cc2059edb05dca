//! Copies of hot keys that a smart client may read: its leases, and which copy a get goes to by them.

use mbal_model::{Instant, ReplicaVersion};
use mbal_random::Random;
use mbal_replica::{Choice, Leases};

use crate::replies::{Answer, Awaited, Kind, LeaseToken};
use crate::wording::Wording;

/// The leases of all clients of a thread.
pub struct Leasing {
    clients: Vec<Leases>,
    random: Random,
}

impl Leasing {
    pub fn new(clients: usize, seed: u64) -> Self {
        Self { clients: vec![Leases::of_client(); clients], random: Random::new(seed) }
    }

    /// The copy that this client reads now, where `place` says that its suffix is, and what it must not be older than.
    pub fn copy<T>(
        &mut self,
        client: usize,
        hash: impl FnOnce() -> u64,
        now_ns: u64,
        place: impl FnOnce(u8) -> Option<T>,
    ) -> Option<(T, ReplicaVersion)> {
        let leases = &mut self.clients[client];
        if leases.is_empty() {
            return None;
        }
        match leases.route(hash(), Instant::from_nanos(now_ns), self.random.word() as u32) {
            Choice::Home => None,
            Choice::Copy { suffix, seen } => Some((place(suffix)?, seen)),
        }
    }

    /// Takes a reply; true if a copy has answered.
    pub fn heard(
        &mut self,
        client: usize,
        wording: &Wording,
        reply: &Awaited,
        (answer, word): (&Answer, Option<&LeaseToken>),
        now_ns: u64,
    ) -> bool {
        let leases = &mut self.clients[client];
        if reply.by_lease && *answer == Answer::Hit {
            match word {
                None => return true,
                Some(LeaseToken::ReplicaVersion(replica_version)) => {
                    let hash = wording.hash_of(reply.key, reply.is_counter());
                    leases.saw(hash, *replica_version, Instant::from_nanos(now_ns));
                    return true;
                }
                _ => {}
            }
        }
        let told = match word {
            Some(LeaseToken::Announcement(told)) if reply.kind == Kind::Get => Some(told),
            _ => None,
        };
        // Who holds no lease has none to lose. One that comes late is no harm: values here follow from their keys.
        if leases.is_empty() && told.is_none() {
            return false;
        }
        let hash = wording.hash_of(reply.key, reply.is_counter());
        let asked = (Instant::from_nanos(reply.asked_ns), reply.by_lease);
        leases.answered(hash, asked, told, Instant::from_nanos(now_ns));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Protocol, Write};
    use crate::sizes::Sizes;

    fn get(asked_ns: u64, by_lease: bool) -> Awaited {
        Awaited { key: 7, by_lease, asked_ns, ..Awaited::default() }
    }

    fn wording() -> (Wording, u64) {
        let wording = Wording::new(Protocol::Meta, Sizes::Constant(5), Sizes::Constant(14));
        let hash = wording.hash(7);
        (wording, hash)
    }

    /// Takes a hit with this word.
    fn hears(leasing: &mut Leasing, wording: &Wording, get: Awaited, word: Option<&str>) -> bool {
        let word = word.map(|word| LeaseToken::parse(word.as_bytes()).expect("one of them"));
        leasing.heard(0, wording, &get, (&Answer::Hit, word.as_ref()), get.asked_ns + 4)
    }

    #[test]
    fn a_client_holds_its_own_leases_and_loses_them_by_a_write() {
        let (wording, hash) = wording();
        let mut leasing = Leasing::new(2, 1);
        assert!(!hears(&mut leasing, &wording, get(5, false), Some("=1000.3")));
        let copy = Some((3, ReplicaVersion::default()));
        let mut copies =
            |client| (0..100).filter(|_| leasing.copy(client, || hash, 10, Some) == copy).count();
        assert!((20..80).contains(&copies(0)));
        assert_eq!(copies(1), 0);
        assert!(
            (0..100).all(|_| leasing.copy(0, || hash, 10, |_| None::<u8>).is_none()),
            "of no place"
        );
        assert!(hears(&mut leasing, &wording, get(10, true), None), "from a copy");
        let set = Awaited { kind: Kind::Write(Write::Set), ..get(20, false) };
        assert!(!leasing.heard(0, &wording, &set, (&Answer::Stored, None), 30));
        assert_eq!(leasing.copy(0, || hash, 31, Some), None);
    }

    #[test]
    fn a_client_says_what_a_copy_has_shown() {
        let (wording, hash) = wording();
        let mut leasing = Leasing::new(1, 1);
        hears(&mut leasing, &wording, get(5, false), Some("~1000.3@12.1"));
        assert!(hears(&mut leasing, &wording, get(10, true), Some("@12.3")), "from a copy");
        let copy = Some((3, ReplicaVersion { grant: 12, version: 3 }));
        assert!((0..100).any(|_| leasing.copy(0, || hash, 20, Some) == copy));
    }

    #[test]
    fn a_read_that_was_passed_on_ends_the_lease() {
        let (wording, hash) = wording();
        let mut leasing = Leasing::new(1, 1);
        hears(&mut leasing, &wording, get(5, false), Some("=1000.3"));
        assert!(!hears(&mut leasing, &wording, get(10, true), Some("5.0.3/0")));
        assert!((0..100).all(|_| leasing.copy(0, || hash, 30, Some).is_none()));
    }
}
