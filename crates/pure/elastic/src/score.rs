//! Which servers retire: those whose items are coldest.

use crate::Age;
use mbal_model::ServerId;

/// How many servers beyond those that will retire are worth planning for.
pub const SHORTLIST: usize = 7;

/// What a server tells of one size class, to be scored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassAge {
    /// The class's share of the server's memory; a server's shares add up to 1.
    pub memory_share: f64,
    /// The age, in seconds, of the median item in order of last access.
    pub median_age: Age,
}

/// The `count` servers whose items are coldest, coldest first: the cheapest to retire, by guess.
///
/// A server's score is the sum over its classes of median age × share of memory (ElMem, ICDCS 2018,
/// §III.C); the oldest go first, and among equals those with the largest id: clients
/// that know one address know the first.
/// O(servers × classes). Medians do not know where the cut will lie, so ask for
/// [`SHORTLIST`] more than will retire, plan each, and keep what moves least
/// (docs/decisions/0165).
pub fn choose_retiring(servers: &[(ServerId, Vec<ClassAge>)], count: usize) -> Vec<ServerId> {
    let mut scored: Vec<(f64, ServerId)> = servers
        .iter()
        .map(|(server, classes)| {
            let score =
                classes.iter().map(|class| f64::from(class.median_age) * class.memory_share);
            (score.sum(), *server)
        })
        .collect();
    scored.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    scored.into_iter().take(count).map(|(_, server)| server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(memory_share: f64, median_age: Age) -> ClassAge {
        ClassAge { memory_share, median_age }
    }

    #[test]
    fn the_coldest_by_memory_go_first() {
        let servers = [
            (ServerId(1), vec![class(0.9, 100), class(0.1, 2_000)]),
            (ServerId(2), vec![class(0.1, 100), class(0.9, 2_000)]),
            (ServerId(3), vec![class(1.0, 500)]),
            (ServerId(4), vec![class(1.0, 500)]),
        ];
        let retiring = [ServerId(2), ServerId(4), ServerId(3), ServerId(1)];
        assert_eq!(choose_retiring(&servers, 2), retiring[..2]);
        assert_eq!(choose_retiring(&servers, 9), retiring);
    }
}
