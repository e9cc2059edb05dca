//! The autoscaler, as the coordinator knows it: how it is set up, what it has seen last, what came of it. Decides nothing.

use mbal_elastic::{Aims, Policy, Rule};

use crate::api::{AutoscaleConfig, AutoscaleLook, AutoscalePolicy, AutoscaleStatus, OutcomeTold};
use crate::ledger::Ledger;
use crate::refusal::Refusal;
use crate::state::State;

/// Outcomes that are remembered.
const OUTCOMES_MAX: usize = 100;

/// What an autoscaler says after a look.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    pub look: AutoscaleLook,
    pub starting: usize,
    /// What came of an earlier change.
    pub outcome: Option<OutcomeTold>,
    /// For the log and for whoever asks for events.
    pub said: Vec<String>,
}

/// What has come of looks since this process began.
#[derive(Debug, Default)]
pub struct Autoscaled {
    pub status: AutoscaleStatus,
    /// Changes that were begun, by whether servers came.
    pub changes: [u64; 2],
}

impl AutoscaleConfig {
    /// What the deciders aim at; or what is wrong with it.
    pub fn aims(&self) -> Result<Aims, String> {
        let is_rate = |rate: f64| rate.is_finite() && rate >= 0.0;
        match () {
            () if !(1..=10_000).contains(&self.min) => Err("min: 1 to 10,000 servers".into()),
            () if !(self.min..=10_000).contains(&self.max) => {
                Err(format!("max: {} to 10,000 servers", self.min))
            }
            () if !is_rate(self.database_rate) => Err("database_rate: reads a second".into()),
            () if !(1.0..=10.0).contains(&self.headroom) => Err("headroom: 1 to 10".into()),
            () if !(1..=1_440).contains(&self.rest_minutes) => {
                Err("rest_minutes: 1 to 1,440".into())
            }
            () => Ok(Aims {
                policy: match self.policy {
                    AutoscalePolicy::Reactive => Policy::Reactive,
                    AutoscalePolicy::Predictive => Policy::Predictive,
                    AutoscalePolicy::Off => Policy::Off,
                },
                servers_least: self.min,
                servers_most: self.max,
                rate_db: self.database_rate,
                rules: self
                    .schedule
                    .iter()
                    .map(|text| Rule::parse(text))
                    .collect::<Result<_, _>>()?,
                headroom: self.headroom,
                rest_minutes: self.rest_minutes,
            }),
        }
    }
}

pub(crate) fn set_up(ledger: &mut Ledger, config: AutoscaleConfig) -> Result<(), Refusal> {
    config.aims().map_err(Refusal::Senseless)?;
    if ledger.state().autoscale.as_ref() != Some(&config) {
        ledger.say(match config.policy {
            AutoscalePolicy::Off => "autoscaling is off".into(),
            _ => format!(
                "autoscaling: {} to {} servers for a database of {}/s{}",
                config.min,
                config.max,
                config.database_rate,
                if config.dry_run { ", a dry run" } else { "" }
            ),
        });
        ledger.change().autoscale = Some(config);
    }
    Ok(())
}

impl Autoscaled {
    pub(crate) fn status(&self, state: &State) -> AutoscaleStatus {
        let stopping = state.retiring.iter().map(|id| id.0).collect();
        let config = state.autoscale.clone();
        AutoscaleStatus { config, stopping, ..self.status.clone() }
    }

    pub(crate) fn looked(&mut self, ledger: &mut Ledger, look: Look) {
        let status = &mut self.status;
        if status.starting < look.starting {
            self.changes[0] += 1;
        }
        status.starting = look.starting;
        status.last = Some(look.look);
        if let Some(outcome) = look.outcome {
            status.outcomes.insert(0, outcome);
            status.outcomes.truncate(OUTCOMES_MAX);
        }
        look.said.into_iter().for_each(|said| ledger.say(said));
    }
}
