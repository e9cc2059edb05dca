//! Which of the three phases a server is in: MBal (EuroSys 2015) §3.1, Figure 4.
//!
//! ```text
//!             hotspot and a hot key            no hot key left
//!   NORMAL ───────────────────────▶ PHASE 1 ──────────────────▶
//!          uneven, many hot keys, or           nothing on loan
//!          write-hot; with headroom            and even
//!          ───────────────────────▶ PHASE 2 ──────────────────▶   NORMAL
//!          most workers overloaded, the        none of these, and
//!          same without headroom, or           the cluster is even
//!          phase 2 found no plan
//!          ───────────────────────▶ PHASE 3 ──────────────────▶
//! ```
//!
//! The phases do not exclude each other. Each arrow wants its condition in four epochs in a row; the way into phase 3 in two,
//! while others are in it. Phase 3 opens in an
//! even cluster too: only who asks there can be told that all are hot. While phase 2 is open phase 1 samples
//! less (MBal §3.1).

use mbal_model::planted::{Fault, is_planted};

use crate::Thresholds;

/// What a server knows of itself at the end of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vitals {
    /// Some worker's load exceeds the permissible.
    pub hotspot: bool,
    /// Keys over the hot threshold, on the worker that has most.
    pub hot_keys: u32,
    /// Writes make a worker hot, which replicas cannot help.
    pub write_hot: bool,
    /// [`crate::deviation`] of the local workers.
    pub deviation: f64,
    /// Some local worker could take more.
    pub headroom: bool,
    /// Overloaded workers / workers.
    pub overloaded_share: f64,
    /// Algorithm 1 said [`crate::Local::Beyond`] in this epoch.
    pub no_local_plan: bool,
    /// Cachelets that are away from their home worker.
    pub loans: u32,
    /// This server's hottest worker above the cluster's average, as a fraction of time.
    pub above_cluster: f64,
    /// Others were being helped a moment ago: what is overloaded now has got what they lost, and is no blip.
    pub in_motion: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Replicate hot keys.
    pub one: bool,
    /// Move cachelets between this server's workers.
    pub two: bool,
    /// Ask the coordinator to move cachelets to other servers.
    pub three: bool,
}

impl Phases {
    /// Part of its requests that a worker looks at for hot keys.
    pub fn sampled(&self, thresholds: &Thresholds) -> f64 {
        match self.two && !is_planted(Fault::SamplesOnInPhaseTwo) {
            true => thresholds.sampled_in_two,
            false => thresholds.sampled,
        }
    }
}

/// One server's patience.
#[derive(Clone, Debug, Default)]
pub struct PhaseMachine {
    one: Gate,
    two: Gate,
    three: Gate,
}

impl PhaseMachine {
    /// Called once per epoch.
    pub fn observe(&mut self, vitals: &Vitals, thresholds: &Thresholds) -> Phases {
        let uneven = vitals.deviation > thresholds.imbalance;
        let many = vitals.hot_keys > thresholds.hot_keys_high;
        let wanted = uneven || many || vitals.write_hot;
        let local = wanted && (vitals.headroom || is_planted(Fault::LocalWithoutHeadroom));
        let server_hot = vitals.overloaded_share > thresholds.server_load || vitals.no_local_plan;
        let cluster_even = vitals.above_cluster < thresholds.imbalance;
        let beyond = server_hot || wanted && !vitals.headroom;
        let asks = beyond && !(cluster_even && is_planted(Fault::EvenClusterNeverAsks));
        let patience = thresholds.patience;
        let asks_after = match vitals.in_motion && !self.three.open {
            true => patience.div_ceil(2),
            false => patience,
        };
        Phases {
            one: self.one.step(
                vitals.hotspot && vitals.hot_keys > 0,
                vitals.hot_keys == 0,
                patience,
            ),
            two: self.two.step(local, !local && vitals.loans == 0, patience),
            three: self.three.step(asks, !asks && cluster_even, asks_after),
        }
    }
}

/// Opens and closes only after its condition held `patience` epochs in a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    open: bool,
    streak: u32,
}

impl Gate {
    pub fn step(&mut self, enter: bool, leave: bool, patience: u32) -> bool {
        let wants_change = if self.open { leave } else { enter };
        self.streak = if wants_change { self.streak + 1 } else { 0 };
        if self.streak >= patience {
            self.open = !self.open;
            self.streak = 0;
        }
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(epochs: &[Vitals]) -> Vec<Phases> {
        let mut machine = PhaseMachine::default();
        epochs.iter().map(|vitals| machine.observe(vitals, &Thresholds::default())).collect()
    }

    const CALM: Vitals = Vitals {
        hotspot: false,
        hot_keys: 0,
        write_hot: false,
        deviation: 0.0,
        headroom: true,
        overloaded_share: 0.0,
        no_local_plan: false,
        loans: 0,
        above_cluster: 0.0,
        in_motion: false,
    };

    #[test]
    fn a_hot_key_for_three_epochs_is_a_blip_for_four_a_phase() {
        let hot = Vitals { hotspot: true, hot_keys: 1, ..CALM };
        let seen = phases(&[hot, hot, hot, CALM, hot, hot, hot, hot, CALM, CALM, CALM, CALM]);
        let one: Vec<bool> = seen.iter().map(|phases| phases.one).collect();
        let expected = [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0].map(|open| open == 1);
        assert_eq!(one, expected);
    }

    #[test]
    fn a_replicated_key_keeps_phase_1_though_the_hotspot_is_gone() {
        let hot = Vitals { hotspot: true, hot_keys: 1, ..CALM };
        let cooled = Vitals { hotspot: false, ..hot };
        let seen = phases(&[hot, hot, hot, hot, cooled, cooled, cooled, cooled, cooled]);
        assert!(seen[8].one);
    }

    #[test]
    fn many_warm_keys_open_phase_2_alone() {
        let warm = Vitals { deviation: 0.5, ..CALM };
        assert_eq!(phases(&[warm; 4])[3], Phases { one: false, two: true, three: false });
    }

    #[test]
    fn without_headroom_what_would_open_phase_2_opens_phase_3() {
        let full = Vitals { headroom: false, ..CALM };
        for wanted in [
            Vitals { deviation: 0.5, ..full },
            Vitals { hot_keys: 33, ..full },
            Vitals { write_hot: true, ..full },
        ] {
            let seen = phases(&[wanted; 8])[7];
            assert_eq!((seen.two, seen.three), (false, true), "{wanted:?}");
        }
        assert_eq!(phases(&[full; 8])[7], Phases::default());
    }

    #[test]
    fn many_hot_keys_and_hot_writes_open_phase_2_where_there_is_headroom() {
        for wanted in [Vitals { hot_keys: 33, ..CALM }, Vitals { write_hot: true, ..CALM }] {
            let seen = phases(&[wanted; 4])[3];
            assert_eq!((seen.two, seen.three), (true, false), "{wanted:?}");
        }
        assert!(!phases(&[Vitals { hot_keys: 32, ..CALM }; 8])[7].two);
    }

    #[test]
    fn phase_1_samples_less_while_phase_2_is_open() {
        let warm = Vitals { deviation: 0.5, ..CALM };
        let thresholds = Thresholds::default();
        let seen: Vec<f64> =
            phases(&[warm; 5]).iter().map(|phases| phases.sampled(&thresholds)).collect();
        assert_eq!(seen, [0.03, 0.03, 0.03, 0.01, 0.01]);
    }

    #[test]
    fn phase_2_stays_open_until_every_loan_is_back() {
        let warm = Vitals { deviation: 0.5, ..CALM };
        let lent = Vitals { loans: 1, ..CALM };
        let seen =
            phases(&[warm, warm, warm, warm, lent, lent, lent, lent, lent, CALM, CALM, CALM, CALM]);
        assert_eq!((seen[8].two, seen[11].two, seen[12].two), (true, true, false));
    }

    #[test]
    fn an_overloaded_server_asks_for_phase_3_though_all_are_as_hot() {
        let hot = Vitals { overloaded_share: 1.0, above_cluster: 0.3, ..CALM };
        assert!(phases(&[hot; 4])[3].three);
        let all_hot = Vitals { above_cluster: 0.0, ..hot };
        assert!(phases(&[all_hot; 4])[3].three, "else nobody says that servers are missing");
        let no_plan = Vitals { no_local_plan: true, ..CALM };
        assert!(phases(&[no_plan; 4])[3].three);
    }

    #[test]
    fn phase_3_stays_open_while_its_server_is_hot_or_above_the_cluster() {
        let hot = Vitals { overloaded_share: 1.0, ..CALM };
        let above = Vitals { above_cluster: 0.3, ..CALM };
        let mut epochs = vec![hot; 12];
        epochs.extend([above; 6]);
        epochs.extend([CALM; 4]);
        let open: Vec<bool> = phases(&epochs).iter().map(|phases| phases.three).collect();
        assert_eq!(open.iter().position(|open| *open), Some(3));
        assert_eq!(open.iter().rposition(|open| *open), Some(20));
        assert_eq!(open.iter().filter(|open| **open).count(), 18, "it closes once");
    }
}
