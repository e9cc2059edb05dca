use crate::Age;
use mbal_model::ServerId;

/// What a server tells of one size class, to be scored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassAge {
    /// The class's share of the server's memory; a server's shares add up to 1.
    pub memory_share: f64,
    /// The age, in seconds, of the item at [`probe_place`] in order of last access.
    pub age: Age,
}

/// Which item's age to report, of `items` in order of last access, youngest first, when `retained`
/// of `servers` will stay.
///
/// ElMem takes the median (papers/elmem §III.C). What must move, though, is what is younger than
/// the cut that leaves the retained servers full, and that cut lies near the retained share of all
/// items: 9/10 when one of ten goes. Servers are told apart best there (docs/decisions/0165).
/// For half of the servers it is the median.
pub fn probe_place(items: usize, retained: usize, servers: usize) -> usize {
    (items * retained / servers).min(items.saturating_sub(1))
}

/// The `count` servers whose items are coldest, coldest first: the cheapest to retire.
///
/// A server's score is the sum over its classes of age × share of memory (papers/elmem §III.C);
/// the oldest go first, and among equals those with the smallest id. O(servers × classes).
pub fn choose_retiring(servers: &[(ServerId, Vec<ClassAge>)], count: usize) -> Vec<ServerId> {
    let mut scored: Vec<(f64, ServerId)> = servers
        .iter()
        .map(|(server, classes)| {
            let score = classes.iter().map(|class| f64::from(class.age) * class.memory_share);
            (score.sum(), *server)
        })
        .collect();
    scored.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    scored.into_iter().take(count).map(|(_, server)| server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(memory_share: f64, age: Age) -> ClassAge {
        ClassAge { memory_share, age }
    }

    #[test]
    fn the_coldest_by_memory_go_first() {
        let servers = [
            (ServerId(1), vec![class(0.9, 100), class(0.1, 2_000)]),
            (ServerId(2), vec![class(0.1, 100), class(0.9, 2_000)]),
            (ServerId(3), vec![class(1.0, 500)]),
            (ServerId(4), vec![class(1.0, 500)]),
        ];
        let retiring = [ServerId(2), ServerId(3), ServerId(4), ServerId(1)];
        assert_eq!(choose_retiring(&servers, 2), retiring[..2]);
        assert_eq!(choose_retiring(&servers, 9), retiring);
    }

    #[test]
    fn an_empty_server_is_free_to_retire() {
        assert_eq!(probe_place(0, 9, 10), 0);
        assert_eq!((probe_place(10, 9, 10), probe_place(10, 1, 2)), (9, 5));
    }
}
