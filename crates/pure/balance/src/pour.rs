//! Evens out what follows no cachelet: connections of clients that know nothing of workers.

/// Hand connections that make up this much of `from`'s load to another worker. Workers by their
/// place in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lighten {
    pub from: usize,
    pub to: usize,
    /// Of a worker's time.
    pub load: f64,
    /// A single connection may be this heavy, and the heavier of the two is still lighter than before.
    pub load_max: f64,
}

/// What is worth a hand-over, as a fraction of a worker's time.
const LOAD_MIN: f64 = 0.01;

/// Takes from the heaviest what is above the average and gives it to the lightest, up to `limit`,
/// until all are near the average. `handable` is what connections make up of each worker's load.
/// O(workers²): each step brings a worker to the average, or leaves it nothing to hand over.
pub fn pour(loads: &[f64], handable: &[f64], limit: f64) -> Vec<Lighten> {
    let average = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
    let (mut now, mut handable) = (loads.to_vec(), handable.to_vec());
    let mut steps = Vec::new();
    for _ in 0..2 * loads.len() {
        let givers = (0..now.len()).filter(|&at| handable[at] >= LOAD_MIN);
        let Some(from) = givers.max_by(|&a, &b| now[a].total_cmp(&now[b])) else { break };
        let takers = 0..now.len();
        let to = takers.min_by(|&a, &b| now[a].total_cmp(&now[b])).expect("there is the giver");
        let room = average.min(limit) - now[to];
        let load = (now[from] - average).min(room).min(handable[from]);
        if load < LOAD_MIN {
            break;
        }
        steps.push(Lighten { from, to, load, load_max: now[from] - now[to] });
        now[from] -= load;
        handable[from] -= load;
        now[to] += load;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads after all steps, to the hundredth.
    fn poured(loads: &[f64], handable: &[f64]) -> Vec<i64> {
        let mut now = loads.to_vec();
        for step in pour(loads, handable, 0.75) {
            now[step.from] -= step.load;
            now[step.to] += step.load;
        }
        now.iter().map(|load| (load * 100.0).round() as i64).collect()
    }

    #[test]
    fn one_heavy_worker_gives_to_all() {
        assert_eq!(poured(&[1.0, 0.0, 0.2, 0.0], &[0.9, 0.0, 0.2, 0.0]), [30, 30, 30, 30]);
    }

    #[test]
    fn what_is_no_connection_stays() {
        assert_eq!(poured(&[1.0, 0.0], &[0.1, 0.0]), [90, 10]);
        assert_eq!(poured(&[1.0, 0.0], &[0.0, 0.0]), [100, 0]);
    }

    #[test]
    fn nobody_gets_more_than_a_worker_may_have() {
        assert_eq!(poured(&[1.0, 0.7, 1.0], &[1.0, 0.7, 1.0]), [100, 75, 95]);
    }

    #[test]
    fn even_loads_are_left_alone() {
        assert_eq!(pour(&[0.5, 0.495, 0.505], &[0.5, 0.5, 0.5], 0.75), []);
        assert_eq!(pour(&[], &[], 0.75), []);
    }
}
