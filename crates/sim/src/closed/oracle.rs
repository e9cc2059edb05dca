//! What could be had: who knows all shares, may split what is not one key, and copies what pays, has this throughput.
//!
//! A linear program in the shares that workers get: the least t with each worker's work at most t times its capacity. Its only
//! obstacle is a key, whose writes and the reads that its copies do not answer are one worker's. So it is solved by filling workers
//! up, the largest keys on the fastest workers first; over how many copies keys have it is tried.

use super::costs::Costs;
use super::demand::Demand;
use super::joining::BatchShares;
use super::network::{Network, Served, involved};
use super::placement::{Copying, Placement, Ways};
use super::situation::Situation;

/// Copies that are tried: a key has as many as it takes until each has this part of an even worker's at most.
const COPY_SHARES: [f64; 6] = [f64::INFINITY, 2.0, 1.0, 0.5, 0.25, 0.1];

/// As even as whole cachelets are to be for as few moves as possible.
const GOOD_ENOUGH: f64 = 1.05;

pub struct Best {
    pub served: Served,
    pub p99: f64,
    /// Cachelets that have to change their worker to come near it, and those of them that have to change servers.
    pub moves: [u64; 2],
}

/// `placement`: how it is before, which afterwards is as the moves leave it.
pub fn best(situation: &Situation, demand: &Demand, ways: Ways, placement: &mut Placement) -> Best {
    let before = {
        let none = vec![0.0; situation.all_workers()];
        placement.lay(situation, demand, &none, &Served::default(), ways).network
    };
    let at_first = before.solve(&Served::default());
    let mut found: Option<(Network, Served, Vec<usize>)> = None;
    for share in COPY_SHARES {
        let mut served = at_first.clone();
        let mut tried = (before.clone(), Vec::new());
        // How much of the work is whose depends on what is served.
        for _ in 0..3 {
            tried = filled(situation, demand, ways, &before, &served, share);
            served = tried.0.solve(&served);
        }
        if found.as_ref().is_none_or(|best| best.1.throughput < served.throughput) {
            found = Some((tried.0, served, tried.1));
        }
    }
    let (network, served, copies) = found.expect("something was tried");
    let moves = descend(situation, demand, &copies, &network, &served, placement);
    Best { p99: network.p99(&served), moves, served }
}

/// Work of a worker with this share of the keys, in seconds of a core a second; and of connections, by server.
struct Work<'a> {
    network: &'a Network,
    smart: f64,
    /// Of all servers, and by server.
    ordinary: f64,
    own: Vec<f64>,
    by_server: Vec<f64>,
}

impl<'a> Work<'a> {
    fn new(network: &'a Network, served: &Served) -> Work<'a> {
        let links: f64 =
            network.forwarded.iter().map(|share| involved(*share, network.batch)).sum();
        let servers = served.ordinary.len() as f64;
        let links = links * (servers - 1.0) / servers;
        let Costs { turn, key, link, .. } = network.costs;
        let turn = turn + network.batch * key + links * link;
        let by_server: Vec<f64> = served.ordinary.iter().map(|one| one.0).collect();
        Work {
            network,
            smart: served.smart.0,
            ordinary: by_server.iter().sum(),
            own: by_server.iter().map(|rate| rate * turn).collect(),
            by_server,
        }
    }

    fn of(&self, worker: usize, share: f64) -> f64 {
        let Network { batch, workers, costs: Costs { turn, key, link, .. }, .. } = self.network;
        let (turns, keys) = (involved(share, *batch), batch * share * key);
        let remote = self.ordinary - self.by_server[worker / workers];
        self.smart * (turns * turn + keys) + remote * (turns * link + keys)
    }

    /// The share of keys with which a worker has so much work.
    fn share(&self, worker: usize, work: f64) -> f64 {
        let (mut least, mut most) = (0.0, 1.0);
        for _ in 0..40 {
            let middle = (least + most) / 2.0;
            let fits = self.of(worker, middle) <= work;
            (least, most) = if fits { (middle, most) } else { (least, middle) };
        }
        least
    }

    /// Work that stays with connections: a server's is spread over its workers.
    fn fixed(&self, worker: usize) -> f64 {
        let Network { workers, capacity, .. } = self.network;
        let server = worker / workers;
        let all: f64 = capacity[server * workers..(server + 1) * workers].iter().sum();
        self.own[server] * capacity[worker] / all
    }
}

/// The network with shares as they ought to be, and how many copies each of the hottest keys has.
fn filled(
    situation: &Situation,
    demand: &Demand,
    ways: Ways,
    before: &Network,
    served: &Served,
    copy_share: f64,
) -> (Network, Vec<usize>) {
    let work = Work::new(before, served);
    let count = situation.all_workers();
    let even = 1.0 / count as f64;
    let (mut copies, mut pieces) = (Vec::new(), Vec::new());
    let (mut upkeep, mut pause) = (0.0, 0.0);
    for key in &demand.hottest {
        let wanted = (key.share / even / copy_share).ceil().max(1.0) as usize - 1;
        let wanted = wanted.min(situation.servers - 1);
        copies.push(wanted);
        if wanted == 0 {
            pieces.push(key.share);
            continue;
        }
        let shadows: Vec<usize> = (1..=wanted).map(|at| at * situation.workers).collect();
        let copying = Copying::new(situation, (key.share, key.sets), 0, &shadows, served, ways);
        let each = key.share * (1.0 - key.sets) * copying.answer / (wanted + 1) as f64;
        pieces.push(key.share - each * wanted as f64);
        pieces.extend(std::iter::repeat_n(each, wanted));
        upkeep += 2.0 * wanted as f64 * copying.told / count as f64;
        pause += copying.pause;
    }
    let share = |at: usize, level: f64| {
        work.share(at, (level * before.capacity[at] - work.fixed(at)).max(0.0))
    };
    // What is one key's goes to the workers with most room; what each has of that, if all of it fits.
    let large = |level: f64| -> Option<Vec<f64>> {
        let mut left: Vec<f64> = (0..count).map(|at| share(at, level)).collect();
        let mut given = vec![0.0; count];
        for piece in pieces.iter().filter(|piece| **piece > even / 4.0) {
            let by_room = |a: &usize, b: &usize| left[*a].total_cmp(&left[*b]);
            let at = (0..count).max_by(by_room).expect("a worker");
            left[at] -= piece;
            given[at] += piece;
            if left[at] < 0.0 {
                return None;
            }
        }
        Some(given)
    };
    let given = least_level(large);
    // The rest fills up those that have least.
    let mut shares = least_level(|level| {
        let shares = given.iter().enumerate().map(|(at, given)| given.max(share(at, level)));
        let shares: Vec<f64> = shares.collect();
        (shares.iter().sum::<f64>() >= 1.0).then_some(shares)
    });
    let sum: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
    let mut network = before.clone();
    for at in 0..count {
        let server = at / situation.workers * situation.workers;
        let own = server..server + situation.workers;
        let clients: f64 = before.ordinary_clients[own.clone()].iter().sum();
        let all: f64 = before.capacity[own].iter().sum();
        network.ordinary_clients[at] = clients * before.capacity[at] / all;
    }
    network.forwarded = shares.clone();
    network.smart = BatchShares::by_chance(shares, before.batch);
    network.upkeep = vec![upkeep; count];
    network.pause += pause;
    network.pause_trip += pause;
    (network, copies)
}

/// What is found at the least level at which something is.
fn least_level(find: impl Fn(f64) -> Option<Vec<f64>>) -> Vec<f64> {
    let (mut least, mut most, mut found) = (0.0, 1e-3, None);
    while found.is_none() {
        (least, most) = (most, most * 4.0);
        found = find(most);
    }
    while most - least > 1e-4 * most {
        let middle = (least + most) / 2.0;
        match find(middle) {
            Some(better) => (found, most) = (Some(better), middle),
            None => least = middle,
        }
    }
    found.expect("the loop ends with one")
}

/// Moves whole cachelets from the worst worker until it is as good as the filled network, or none helps.
fn descend(
    situation: &Situation,
    demand: &Demand,
    copies: &[usize],
    network: &Network,
    served: &Served,
    placement: &mut Placement,
) -> [u64; 2] {
    let work = Work::new(network, served);
    let count = situation.all_workers();
    let mut shares = demand.shares.clone();
    for (key, copies) in demand.hottest.iter().zip(copies) {
        shares[key.cachelet] -= key.share * (1.0 - key.sets) * *copies as f64 / (copies + 1) as f64;
    }
    // What copies answer is somewhere, and as good as even.
    let spread = (1.0 - shares.iter().sum::<f64>()) / count as f64;
    let mut of = vec![spread; count];
    let mut held: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (cachelet, owner) in placement.owners.iter().enumerate() {
        of[*owner] += shares[cachelet];
        held[*owner].push(cachelet);
    }
    let level =
        |at: usize, share: f64| (work.fixed(at) + work.of(at, share)) / network.capacity[at];
    let goal = (0..count).map(|at| level(at, network.smart.shares[at])).fold(0.0, f64::max);
    let mut levels: Vec<f64> = (0..count).map(|at| level(at, of[at])).collect();
    let mut moves = [0, 0];
    for _ in 0..20 * count {
        let by_level = |a: &usize, b: &usize| levels[*a].total_cmp(&levels[*b]);
        let worst = (0..count).max_by(by_level).expect("a worker");
        if levels[worst] <= goal * GOOD_ENOUGH {
            break;
        }
        let of_server = |at: &usize| at / situation.workers == worst / situation.workers;
        let lightest = |own: bool| (0..count).filter(|at| of_server(at) == own).min_by(by_level);
        let after = |cachelet: usize, to: usize| {
            let left = level(worst, of[worst] - shares[cachelet]);
            left.max(level(to, of[to] + shares[cachelet]))
        };
        let mut best: Option<(f64, usize, usize)> = None;
        for to in [lightest(true), lightest(false)].into_iter().flatten() {
            for &cachelet in &held[worst] {
                let level = after(cachelet, to);
                if best.is_none_or(|best| level < best.0 * 0.99) {
                    best = Some((level, cachelet, to));
                }
            }
        }
        let Some((level_after, cachelet, to)) = best else { break };
        if level_after >= levels[worst] * 0.99 {
            break;
        }
        of[worst] -= shares[cachelet];
        of[to] += shares[cachelet];
        held[worst].retain(|one| *one != cachelet);
        held[to].push(cachelet);
        levels[worst] = level(worst, of[worst]);
        levels[to] = level(to, of[to]);
        placement.owners[cachelet] = to;
        moves[0] += 1;
        moves[1] += u64::from(!of_server(&to));
    }
    moves
}

#[cfg(test)]
mod tests {
    use mbal_random::Random;

    use super::super::demand::HotKey;
    use super::super::situation::{Clients, Names};
    use super::*;

    /// Three servers of a worker each, unequal ones, and clients that keep them busy.
    fn situation(random: &mut Random, batch: u32) -> Situation {
        Situation {
            seed: 1,
            servers: 3,
            workers: 1,
            speeds: (0..3).map(|_| 0.1 + 0.2 * random.unit()).collect(),
            keys: 1_000,
            epochs: 1,
            shifts: Vec::new(),
            batch,
            clients: Clients { smart: 200.0, ordinary: vec![0.0; 3], think: 0.0, is_open: false },
            round_trip: 1e-4,
            cachelet_bytes: 1 << 20,
            costs: Costs::MODELLED,
            names: Names::Drawn,
            quotas: None,
        }
    }

    /// Six cachelets; most of the first is one key.
    fn demand(random: &mut Random) -> Demand {
        let weights: Vec<f64> = (0..6).map(|_| random.unit() * random.unit()).collect();
        let sum: f64 = weights.iter().sum();
        let shares: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
        let share = 0.8 * shares[0];
        let key = HotKey { name: b"hot".to_vec(), hash: 0, cachelet: 0, share, sets: 0.02 };
        Demand::of_cachelets(shares, vec![key])
    }

    /// The best of all placements of whole cachelets, the key with copies on no, one or two other servers.
    fn by_force(situation: &Situation, demand: &Demand) -> f64 {
        let mut best = 0.0f64;
        for number in 0..3usize.pow(6) {
            let owners: Vec<usize> = (0..6).map(|at| number / 3usize.pow(at) % 3).collect();
            let others: Vec<usize> = (0..3).filter(|worker| *worker != owners[0]).collect();
            for shadows in [&[][..], &others[..1], &others[1..], &others[..]] {
                let copied = (!shadows.is_empty()).then(|| (b"hot".to_vec(), shadows.to_vec()));
                let placement = Placement {
                    owners: owners.clone(),
                    ordinary: vec![0.0; 3],
                    copied: copied.into_iter().collect(),
                    moves: Default::default(),
                };
                let none = vec![0.0; 3];
                let last = Served::default();
                let laid = placement.lay(situation, demand, &none, &last, Ways::OPEN);
                best = best.max(laid.network.solve(&last).throughput);
            }
        }
        best
    }

    #[test]
    fn no_placement_is_better_and_the_best_is_near() {
        let mut random = Random::new(7);
        let mut ratios = Vec::new();
        for round in 0..12 {
            let situation = situation(&mut random, if round % 2 == 0 { 1 } else { 20 });
            let demand = demand(&mut random);
            let forced = by_force(&situation, &demand);
            let mut placement = Placement {
                owners: vec![0, 0, 1, 1, 2, 2],
                ordinary: vec![0.0; 3],
                copied: Default::default(),
                moves: Default::default(),
            };
            let found = best(&situation, &demand, Ways::OPEN, &mut placement).served.throughput;
            assert!(forced <= 1.02 * found, "round {round}: {forced} by force, {found} found");
            ratios.push(forced / found);
        }
        ratios.sort_by(f64::total_cmp);
        // Six cachelets are few: whole ones cannot be as even as parts.
        assert!(ratios[ratios.len() / 2] > 0.85, "{ratios:?}");
    }
}
