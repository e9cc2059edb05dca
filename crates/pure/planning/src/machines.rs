//! Servers that leave: who may be stopped, as whoever starts and stops them counts.

use std::cmp::Reverse;

/// A server that is to be stopped, which has nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaver {
    pub id: u16,
    /// Where clients reach it.
    pub client: String,
}

/// Which servers can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stoppable {
    Nobody,
    Any,
    /// Those of the highest numbers: a StatefulSet's pods.
    Last,
}

impl Stoppable {
    /// Which of these servers retire when so many do, the first one first; nobody in particular if any of them can be stopped.
    pub fn who_retires(self, mut servers: Vec<Leaver>, count: usize) -> Vec<u16> {
        if self != Stoppable::Last {
            return Vec::new();
        }
        servers.sort_by_key(|server| Reverse((ordinal(&server.client), server.id)));
        servers.iter().take(count).map(|server| server.id).collect()
    }

    /// How many there are. Kubernetes counts a pod that has died and comes back.
    pub fn count(self, servers: &[Leaver]) -> usize {
        let counted = servers.iter().filter_map(|server| ordinal(&server.client));
        match (self, counted.max()) {
            (Stoppable::Last, Some(last)) => last as usize + 1,
            _ => servers.len(),
        }
    }
}

/// Of a pod: `mbal-3.mbal.default.svc:11211` is the fourth.
fn ordinal(client: &str) -> Option<u32> {
    let host = client.split(['.', ':']).next()?;
    host.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_the_highest_numbers_retire_and_elsewhere_whoever_is_chosen() {
        let pods = [(1, "mbal-10.mbal:11211"), (2, "mbal-9.mbal:11211"), (3, "mbal-0.mbal:1")];
        let servers = pods.map(|(id, client)| Leaver { id, client: client.into() });
        let ids = |stoppable: Stoppable, count| stoppable.who_retires(servers.to_vec(), count);
        assert_eq!(ids(Stoppable::Last, 2), [1, 2]);
        assert_eq!(ids(Stoppable::Last, 9), [1, 2, 3]);
        assert_eq!(
            (Stoppable::Last.count(&servers), Stoppable::Last.count(&servers[1..])),
            (11, 10)
        );
        assert_eq!(Stoppable::Any.count(&servers), 3);
        assert_eq!(ids(Stoppable::Any, 2), [0; 0]);
    }
}
