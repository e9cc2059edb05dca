//! The thread that scales: looks once a minute, decides by `mbal_elastic`, has servers started, emptied and stopped.
//!
//! ```text
//!   driver ◄──Ask::Demand── mbal-autoscaler ── Resizer::decide
//!          ◄──Ask::Looked──      │  more: machines start them, and they register
//!          ◄──Ask::Scale───      └  fewer: who retires is chosen and emptied; when all are, machines stop them
//! ```
//! What is wanted, and who is to be stopped, is in the saved state: another coordinator goes on with it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mbal_control::api::{
    AutoscaleConfig, AutoscaleLook, AutoscaleStatus, OutcomeTold, ScaleCall, ScaleState,
    ScaleStatus, ServerStatus, Status,
};
use mbal_control::{Answer, Ask, Demand, Look};
use mbal_elastic::{Outcome, Policy, Resizer, Seen};
use mbal_locks::{Mutex, ranks};

use crate::driver::Driver;
use crate::machines::{Leaver, Machines};

/// What is under way is looked at so often, at most.
const STEP: Duration = Duration::from_secs(1);
/// A server that was started has registered by then, or is not waited for any more; and who is asked for ages has told them.
const COMES_WITHIN: Duration = Duration::from_secs(300);
/// What machines refused is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Scales until it is dropped.
pub(crate) struct Autoscaling {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Autoscaling {
    /// `every`: a minute, as the deciders count.
    pub(crate) fn start(
        driver: Arc<Mutex<ranks::Driver, Driver>>,
        machines: Machines,
        cluster: String,
        every: Duration,
    ) -> io::Result<Autoscaling> {
        let (stop, stopped) = channel();
        let pilot = Pilot {
            driver,
            machines,
            cluster,
            every,
            resizer: None,
            change: None,
            asks_since: None,
            set_up: None,
            again: None,
        };
        let thread = thread::Builder::new()
            .name("mbal-autoscaler".into())
            .spawn(move || pilot.run(&stopped))?;
        Ok(Autoscaling { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Autoscaling {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct Pilot {
    driver: Arc<Mutex<ranks::Driver, Driver>>,
    machines: Machines,
    cluster: String,
    every: Duration,
    /// None while nobody has set it up, or this coordinator does not lead.
    resizer: Option<Resizer>,
    change: Option<Change>,
    /// Since when servers are asked for ages, for fewer of them.
    asks_since: Option<Instant>,
    /// How it was set up, when that was looked at last.
    set_up: Option<AutoscaleConfig>,
    /// What was refused is not tried before.
    again: Option<Instant>,
}

/// A change of the size under way.
#[derive(Clone, Debug)]
struct Change {
    from: usize,
    to: usize,
    expected: f64,
    begun: Instant,
}

impl Pilot {
    fn run(mut self, stopped: &Receiver<()>) {
        let mut looks = Instant::now() + self.every;
        while stopped.recv_timeout(STEP.min(self.every)) == Err(RecvTimeoutError::Timeout) {
            let set_up = self.status().and_then(|status| status.config);
            let is_new = set_up.is_some() && set_up != self.set_up;
            self.set_up = set_up;
            if is_new || looks <= Instant::now() {
                looks = Instant::now() + self.every;
                // Servers that were started still come, though nobody decides for a moment.
                if self.look().is_none() {
                    self.resizer = None;
                }
            }
            let _went_on = self.step();
        }
    }

    fn ask(&self, ask: Ask) -> Option<Answer> {
        self.driver.lock().ask(ask).1.ok()
    }

    fn tell(&self, text: &str) {
        self.driver.lock().tell(text);
    }

    fn status(&self) -> Option<AutoscaleStatus> {
        match self.ask(Ask::AutoscaleStatus)? {
            Answer::Autoscale(status) => Some(status),
            _ => None,
        }
    }

    fn scaling(&self) -> Option<ScaleStatus> {
        match self.ask(Ask::Scaling)? {
            Answer::Scale(status) => Some(*status),
            _ => None,
        }
    }

    fn servers(&self) -> Option<Status> {
        match self.ask(Ask::Status)? {
            Answer::Status(status) => Some(status),
            _ => None,
        }
    }

    fn unix() -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn minute(&self) -> u64 {
        (Pilot::unix().as_millis() / self.every.as_millis()) as u64
    }

    /// None: there is nothing to decide, or not by this coordinator.
    fn look(&mut self) -> Option<()> {
        let status = self.status()?;
        let config = status.config?;
        let aims = config.aims().ok()?;
        if aims.policy == Policy::Off && status.stopping.is_empty() {
            return None;
        }
        let Answer::Demand(demand) = self.ask(Ask::Demand)? else { return None };
        let minute = self.minute();
        let resizer = match &mut self.resizer {
            Some(resizer) => {
                resizer.aim(aims);
                resizer
            }
            none => none.insert(Resizer::new(aims, minute)),
        };
        let servers = demand.servers.len();
        let seen = seen(minute, &demand);
        let is_known = servers > 0 && demand.servers_told >= servers;
        let (decision, outcome) = match is_known {
            true => (resizer.decide(&seen), resizer.came_true(&seen)),
            false => Default::default(),
        };
        let retires = is_under_way(&self.scaling()?);
        let why = match (is_known, &self.change) {
            (false, _) => format!(
                "{} of {servers} servers have told their hit ratios by size: it is waited for the others",
                demand.servers_told
            ),
            (true, Some(change)) => format!(
                "from {} to {} servers, which goes on; {}",
                change.from, change.to, decision.why
            ),
            (true, None) if retires => format!("servers retire, which goes on; {}", decision.why),
            (true, None) => decision.why.clone(),
        };
        let wanted = if is_known { decision.servers } else { servers };
        let mut said = Vec::new();
        if let Some(outcome) = &outcome {
            said.push(came_true_in_words(outcome));
        }
        let is_free = self.change.is_none() && !retires && status.stopping.is_empty();
        let acts =
            wanted != servers && is_free && self.again.is_none_or(|again| again <= Instant::now());
        let was_wanted = status.last.as_ref().map(|last| (last.servers, last.servers_wanted));
        if acts && (!config.dry_run || was_wanted != Some((servers, wanted))) {
            let would = if config.dry_run { "would change" } else { "changes" };
            said.push(format!("autoscaling {would} from {servers} to {wanted} servers: {why}; a hit ratio of {:.3} is expected", decision.expected));
        }
        if acts && !config.dry_run {
            let change = Change {
                from: servers,
                to: wanted,
                expected: decision.expected,
                begun: Instant::now(),
            };
            if let Err(why) = self.begin(&change, &demand) {
                said.push(format!("autoscaling: {why}"));
                self.again = Some(Instant::now() + AGAIN_AFTER);
            } else {
                self.change = Some(change);
            }
        }
        let look = AutoscaleLook {
            unix: Pilot::unix().as_secs(),
            servers,
            servers_wanted: wanted,
            hit_ratio: demand.hit_ratio,
            hit_ratio_needed: decision.needed,
            hit_ratio_expected: decision.expected,
            why,
        };
        let starting = self.change.as_ref().map_or(0, |change| change.to.saturating_sub(servers));
        let outcome = outcome.map(|outcome| self.outcome_told(&outcome));
        self.ask(Ask::Looked(Look { look, starting, outcome, said }))?;
        Some(())
    }

    fn outcome_told(&self, outcome: &Outcome) -> OutcomeTold {
        let unix_ms = u128::from(outcome.minute) * self.every.as_millis();
        OutcomeTold {
            unix: (unix_ms / 1000) as u64,
            from: outcome.from,
            to: outcome.to,
            expected: outcome.expected,
            measured: outcome.measured,
        }
    }

    fn begin(&self, change: &Change, demand: &Demand) -> Result<(), String> {
        let Change { from, to, .. } = *change;
        let servers = demand.servers.iter();
        let servers = servers.map(|(id, client)| Leaver { id: id.0, client: client.clone() });
        let servers: Vec<Leaver> = servers.collect();
        if from < to {
            let count = self.machines.count(&servers) + (to - from);
            return self.machines.start(&self.cluster, count, to - from);
        }
        if matches!(self.machines, Machines::Nobody) {
            return Err("nobody stops servers: see `mbal coordinator --help`".into());
        }
        let retire = self.machines.who_retires(servers, from - to);
        let call = ScaleCall { servers: to, retire, stops: true, ..ScaleCall::default() };
        let mut driver = self.driver.lock();
        driver.ask(Ask::Scale(call)).1.map(drop).map_err(|why| why.to_string())
    }

    /// Who is not told what servers have cannot choose: then nobody retires.
    fn looks_whether_ages_come(&mut self, scaling: &ScaleStatus) {
        if scaling.state != ScaleState::Asking {
            self.asks_since = None;
            return;
        }
        let since = *self.asks_since.get_or_insert_with(Instant::now);
        if since.elapsed() > COMES_WITHIN {
            self.asks_since = None;
            self.ask(Ask::EndScaling);
            self.tell("autoscaling: servers do not tell the ages of their items, so none retires");
        }
    }

    /// Goes on with what is under way.
    fn step(&mut self) -> Option<()> {
        let (status, scaling, servers) = (self.status()?, self.scaling()?, self.servers()?);
        if scaling.stops && is_under_way(&scaling) {
            self.looks_whether_ages_come(&scaling);
            return Some(());
        }
        let is_leaving = |id: u16| status.stopping.contains(&id);
        if !status.stopping.is_empty() {
            let alive = servers.servers.iter().filter(|server| server.state != "lost");
            let (leaving, staying): (Vec<_>, Vec<_>) =
                alive.partition(|server| is_leaving(server.id));
            let are_empty = leaving.iter().all(|server| server.state == "drained");
            if !are_empty || self.again.is_some_and(|again| Instant::now() < again) {
                return Some(());
            }
            let named = |servers: Vec<&ServerStatus>| {
                let named = |one: &ServerStatus| Leaver { id: one.id, client: one.client.clone() };
                servers.into_iter().map(named).collect::<Vec<Leaver>>()
            };
            let count = self.machines.count(&named(staying));
            self.again = Some(Instant::now() + AGAIN_AFTER);
            if let Err(why) = self.machines.stop(&self.cluster, count, &named(leaving)) {
                self.tell(&format!("autoscaling: {why}"));
            }
            return Some(());
        }
        let change = self.change.clone()?;
        let serving = servers.servers.iter().filter(|server| server.state == "serving").count();
        let is_late = change.begun.elapsed() > COMES_WITHIN;
        if change.to < change.from || serving >= change.to || is_late {
            if serving < change.to && change.from < change.to {
                let missing = change.to - serving;
                self.tell(&format!(
                    "autoscaling: {missing} servers that were started have not come"
                ));
            }
            let minute = self.minute();
            if let Some(resizer) = &mut self.resizer {
                resizer.changed(minute, change.from, change.to, change.expected);
            }
            (self.change, self.again) = (None, None);
        }
        Some(())
    }
}

/// Servers retire, or are asked for what that is decided by.
fn is_under_way(scaling: &ScaleStatus) -> bool {
    !scaling.dry_run && matches!(scaling.state, ScaleState::Asking | ScaleState::Moving)
}

fn seen(minute: u64, demand: &Demand) -> Seen<'_> {
    Seen {
        minute,
        rate: demand.rate,
        hit_ratio: demand.hit_ratio,
        forecast: &demand.forecast,
        servers: demand.servers.len(),
        server_bytes: demand.server_bytes,
        more_wanted: demand.more_wanted,
        load_mean: demand.load_mean,
    }
}

fn came_true_in_words(outcome: &Outcome) -> String {
    format!(
        "from {} to {} servers: a hit ratio of {:.3} was expected, and {:.3} has come",
        outcome.from, outcome.to, outcome.expected, outcome.measured
    )
}

/// How its owner sets it up.
#[derive(Debug)]
pub struct Autoscale {
    pub machines: Machines,
    /// Between two looks; a minute but for tests.
    pub every: Duration,
}

impl Default for Autoscale {
    fn default() -> Autoscale {
        Autoscale { machines: Machines::Nobody, every: Duration::from_secs(60) }
    }
}
