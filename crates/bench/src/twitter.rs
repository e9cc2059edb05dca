//! Loads like those of Twitter's production caches, one row of a published table each.
//!
//! The table is by the authors of "A large scale analysis of hundreds of in-memory cache clusters at Twitter"
//! (OSDI 2020), CC-BY-4.0, as it is in their repository. It gives means for sizes, so sizes are constant here.
//! Every write of a whole value (set, replace, append, prepend, cas) is sent as a set, gets as a get, decr as an
//! incr: each costs a server what its kin does, and every reply can still be checked.

use crate::mix::{Mix, Op, Ttls};
use crate::sizes::Sizes;
use crate::workload::{Law, Workload};

const TABLE: &str = include_str!("twitter-2020Mar-clusters.txt");

/// The row of a cluster such as `cluster19`.
pub fn workload(cluster: &str, keys: u64) -> Result<Workload, String> {
    let cells = rows().find(|cells| cells[0] == cluster).ok_or_else(|| {
        format!(
            "no {cluster:?} among Twitter's clusters, which are cluster1 to cluster{}",
            rows().count()
        )
    })?;
    let [_, _, _, key_bytes, value_bytes, _, _, _, _, ttls, _, _, ops, alpha] = cells[..] else {
        return Err(format!("{cluster}: {} columns", cells.len()));
    };
    let absent = |what: &str| format!("{cluster}: the table has no {what}");
    let number = |text: &str| text.parse::<u32>().ok();
    let alpha: f64 = alpha.parse().map_err(|_| absent("popularity"))?;
    Ok(Workload {
        keys,
        key_bytes: number(key_bytes).map(Sizes::Constant).ok_or_else(|| absent("key size"))?,
        value_bytes: number(value_bytes)
            .map(Sizes::Constant)
            .ok_or_else(|| absent("value size"))?,
        law: if alpha > 0.0 { Law::Zipf(alpha) } else { Law::Uniform },
        mix: Mix::new(&weights(ops, op).ok_or_else(|| absent("operations"))?),
        ttls: Ttls::new(&weights(ttls, seconds).ok_or_else(|| absent("TTLs"))?),
        scan_max: 1,
    })
}

fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    TABLE
        .lines()
        .map(cells)
        .filter(|cells: &Vec<&str>| cells[0].starts_with("cluster") && cells[0] != "cluster")
}

/// `get:0.93 set:0.07` or `60s:0.39, 300s:0.24,`, of what is worth its share in the table.
fn weights<T>(text: &str, thing: impl Fn(&str) -> Option<T>) -> Option<Vec<(T, f64)>> {
    let words = text.split([' ', ',']).filter(|word| !word.is_empty());
    let weight = |word: &str| {
        let (name, share) = word.split_once(':')?;
        Some((thing(name)?, share.parse().ok()?))
    };
    let weights: Vec<(T, f64)> = words.map(weight).collect::<Option<_>>()?;
    (!weights.is_empty()).then_some(weights)
}

fn op(name: &str) -> Option<Op> {
    match name {
        "get" | "gets" => Some(Op::Get),
        "set" | "cas" | "replace" | "append" | "prepend" => Some(Op::Set),
        "add" => Some(Op::Add),
        "delete" => Some(Op::Delete),
        "incr" | "decr" => Some(Op::Incr),
        _ => None,
    }
}

/// `1.8h` is 6480 seconds. memcached takes more than 30 days for a date, so that is the most.
fn seconds(text: &str) -> Option<u32> {
    const DAYS_30: f64 = 2_592_000.0;
    let unit = match text.chars().last()? {
        's' => 1.0,
        'm' => 60.0,
        'h' => 3_600.0,
        'd' => 86_400.0,
        _ => return None,
    };
    let number: f64 = text[..text.len() - 1].parse().ok()?;
    Some((number * unit).round().min(DAYS_30) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_random::Random;

    #[test]
    fn every_row_is_a_workload_or_says_what_it_lacks() {
        let (mut whole, mut lacking) = (0, Vec::new());
        for cells in rows() {
            match workload(cells[0], 1_000) {
                Ok(_) => whole += 1,
                Err(error) => lacking.push(error),
            }
        }
        assert_eq!(whole + lacking.len(), 54);
        assert!(lacking.iter().all(|error| error.contains("the table has no")), "{lacking:?}");
        assert!(whole >= 51, "{lacking:?}");
        assert!(workload("cluster99", 1).unwrap_err().contains("cluster1 to cluster54"));
    }

    #[test]
    fn cluster_19_is_as_the_table_has_it() {
        let like = workload("cluster19", 1_000).unwrap();
        assert_eq!((like.key_bytes, like.value_bytes), (Sizes::Constant(42), Sizes::Constant(101)));
        assert_eq!(like.mix.to_string(), "get 0.7500, set 0.2500");
        assert_eq!(like.ttls.things().next(), Some(27_000));
        let Law::Zipf(alpha) = like.law else { panic!("{:?}", like.law) };
        assert!((0.5..1.5).contains(&alpha), "{alpha}");
    }

    #[test]
    fn draws_fit_the_rows_shares_by_chi_square() {
        // 14: gets, sets, deletes. 30: ten TTLs and more.
        for (seed, cluster) in [(1, "cluster14"), (2, "cluster30"), (3, "cluster23")] {
            let like = workload(cluster, 1_000).unwrap();
            let draws = 200_000;
            let mut random = Random::new(seed);
            let mut ops = vec![0f64; like.mix.shares().len()];
            let mut ttls = vec![0f64; like.ttls.shares().len()];
            let (op_at, ttl_at): (Vec<_>, Vec<_>) =
                (like.mix.things().collect(), like.ttls.things().collect());
            for _ in 0..draws {
                let (op, ttl) = (like.mix.draw(&mut random), like.ttls.draw(&mut random));
                ops[op_at.iter().position(|known| *known == op).unwrap()] += 1.0;
                ttls[ttl_at.iter().position(|known| *known == ttl).unwrap()] += 1.0;
            }
            let chi = |seen: &[f64], shares: Vec<f64>| {
                let wanted = shares.iter().map(|share| share * f64::from(draws));
                let chi: f64 = seen.iter().zip(wanted).map(|(s, w)| (s - w).powi(2) / w).sum();
                let freedom = (seen.len() - 1).max(1) as f64;
                (chi - freedom) / (2.0 * freedom).sqrt()
            };
            let ops = chi(&ops, like.mix.shares().iter().map(|(_, share)| *share).collect());
            let ttls = chi(&ttls, like.ttls.shares().iter().map(|(_, share)| *share).collect());
            assert!(ops < 4.0 && ttls < 4.0, "{cluster}: {ops:.1} and {ttls:.1} sigmas off");
        }
    }
}
