//! One transaction after the other: decide, save, answer. What cannot be saved did not happen.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mbal_control::api::{AutoscaleStatus, ScaleStatus};
use mbal_control::{Coordinator, Refusal, Request, Response, Settings, State};
use mbal_election::Term;
use mbal_model::{Cluster, Instant};
use mbal_reactor::LeaseClock;
use mbal_webpage::{EVENTS_SHOWN, EventTold as Event, Found, Look};

use crate::metrics;
use crate::move_lines::MoveLines;
use crate::planning::Word;
use crate::seat::{NotLeading, Saved, Seat};
use crate::state_file::{NotWritten, StateFile};
use crate::weight;

/// Events that are remembered; the log has all.
const EVENTS_MAX: usize = 1000;

/// A full disk makes each change fail, some fifty a second.
const SAY_UNSAVED_EVERY: Duration = Duration::from_secs(10);

/// Takes news for the log.
pub type Say = dyn Fn(&str) + Send + Sync;

pub(crate) struct Driver {
    settings: Settings,
    storage: Storage,
    led: Option<Led>,
    clock: LeaseClock,
    events: VecDeque<Event>,
    events_ever: u64,
    /// How long the last plan took.
    planned_in: Duration,
    /// Who starts and stops servers.
    machines: &'static str,
    say: Arc<Say>,
    /// Unless each move is to have lines of its own.
    move_lines: Option<MoveLines>,
    planner: Option<Sender<Word>>,
    /// While nothing can be saved: until when that is not said again, and how often it has happened since it was.
    unsaved: Option<(Instant, u64)>,
}

pub(crate) enum Storage {
    /// Nobody else has it: this coordinator leads.
    File { file: StateFile, is_unsettled: bool },
    /// Whoever leads has it.
    Etcd(Arc<Seat>),
}

/// What this process decides by while it leads.
struct Led {
    /// None of a file.
    term: Option<Term>,
    coordinator: Coordinator,
    /// Its time begins here: a new leader has heard nothing.
    began: Instant,
}

/// Why there is no answer.
pub(crate) enum Failed {
    Refused(Refusal),
    /// The state could not be saved, or nobody knows.
    Unsaved(String),
    NotLeading(NotLeading),
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Refused(refusal) => refusal.fmt(out),
            Failed::Unsaved(why) | Failed::NotLeading(NotLeading { why, .. }) => out.write_str(why),
        }
    }
}

impl Driver {
    /// With the coordinator that a file tells of; with etcd there is none before it leads.
    pub(crate) fn new(
        settings: Settings,
        storage: Storage,
        coordinator: Option<Coordinator>,
        say: Arc<Say>,
    ) -> Driver {
        let clock = LeaseClock::start();
        let led =
            coordinator.map(|coordinator| Led { term: None, coordinator, began: clock.now() });
        let (events, events_ever) = (VecDeque::new(), 0);
        let planned_in = Duration::ZERO;
        let machines = "nobody";
        let planner = None;
        Driver {
            settings,
            storage,
            led,
            clock,
            events,
            events_ever,
            planned_in,
            machines,
            say,
            move_lines: Some(MoveLines::default()),
            planner,
            unsaved: None,
        }
    }

    /// The log has each move, not only how many there were.
    pub(crate) fn says_each_move(&mut self) {
        self.move_lines = None;
    }

    pub(crate) fn with_machines(self, machines: &'static str) -> Driver {
        Driver { machines, ..self }
    }

    /// Whom to tell when a plan cannot wait.
    pub(crate) fn planned_by(&mut self, planner: Sender<Word>) {
        self.planner = Some(planner);
    }

    /// How the autoscaler is set up, and what it has done.
    pub(crate) fn autoscale(&mut self) -> (Option<Term>, Result<AutoscaleStatus, Failed>) {
        let (term, answer) = self.ask(Request::AutoscaleStatus);
        let status = answer.map(|answer| match answer {
            Response::Autoscale(status) => status,
            _ => AutoscaleStatus::default(),
        });
        (term, status.map(|status| AutoscaleStatus { machines: self.machines.into(), ..status }))
    }

    /// One transaction, and the term in which it was done.
    pub(crate) fn ask(&mut self, ask: Request) -> (Option<Term>, Result<Response, Failed>) {
        match self.lead() {
            Ok(term) => (term, self.decide(ask)),
            Err(failed) => (None, Err(failed)),
        }
    }

    /// The term in which it has decided last; none of a file.
    pub(crate) fn term(&self) -> Option<Term> {
        self.led.as_ref()?.term
    }

    fn decide(&mut self, ask: Request) -> Result<Response, Failed> {
        let now = self.clock.now();
        let led = self.led.as_mut().expect("it leads");
        let done = led.coordinator.handle(mbal_model::Instant::ZERO + (now - led.began), ask);
        if let Some(before) = done.before {
            self.save(before)?;
        }
        done.said.iter().for_each(|text| self.tell(text));
        self.say_moves();
        // The lease may have ended meanwhile, though this process was asleep: then it answers nobody.
        self.still_leads()?;
        if let Some(planner) = self.planner.as_ref().filter(|_| done.is_pressing) {
            // One that has ended plans nothing.
            drop(planner.send(Word::Plan));
        }
        done.answer.map_err(Failed::Refused)
    }

    /// Takes up what it has been elected for.
    fn lead(&mut self) -> Result<Option<Term>, Failed> {
        let seat = match &mut self.storage {
            Storage::File { is_unsettled: false, .. } => return Ok(None),
            Storage::File { .. } => return self.settle_file().map(|()| None),
            Storage::Etcd(seat) => Arc::clone(seat),
        };
        let term = seat.leads().map_err(Failed::NotLeading)?;
        if self.led.as_ref().is_none_or(|led| led.term != Some(term)) {
            self.led = None;
            let Some(state) = seat.take_elected(term) else {
                let why = "this coordinator has just resigned".into();
                return Err(Failed::NotLeading(NotLeading { leader: None, why }));
            };
            let coordinator = match state {
                None => Ok(Coordinator::new(self.settings.clone())),
                Some(stored) => weight::decode(&stored.bytes).and_then(|state| {
                    Coordinator::resume(self.settings.clone(), state)
                        .map_err(|refusal| refusal.to_string())
                }),
            };
            match coordinator {
                Ok(coordinator) => {
                    let began = self.clock.now();
                    self.led = Some(Led { term: Some(term), coordinator, began });
                }
                Err(why) => {
                    let name = &self.settings.cluster;
                    seat.refuse(format!("the state in etcd, mbal/{name}/state: {why}"));
                    return Err(seat.leads().err().map_or_else(
                        || Failed::Unsaved("this coordinator resigns".into()),
                        Failed::NotLeading,
                    ));
                }
            }
        }
        Ok(Some(term))
    }

    /// Takes up what it has been elected for, if that can be had at once: a broken state is told before anybody asks.
    pub(crate) fn look(&mut self) {
        drop(self.lead());
    }

    fn still_leads(&mut self) -> Result<(), Failed> {
        let Storage::Etcd(seat) = &self.storage else { return Ok(()) };
        let led = self.led.as_ref().and_then(|led| led.term);
        match seat.leads() {
            Ok(term) if Some(term) == led => Ok(()),
            Ok(_) => {
                let why = "this coordinator has led anew since; ask again".into();
                Err(Failed::NotLeading(NotLeading { leader: None, why }))
            }
            Err(not) => Err(Failed::NotLeading(not)),
        }
    }

    /// Saves what the coordinator has decided, or puts `before` back.
    fn save(&mut self, before: Arc<State>) -> Result<(), Failed> {
        let led = self.led.as_mut().expect("it has decided");
        let state = led.coordinator.state();
        let failed = match &mut self.storage {
            Storage::File { file, is_unsettled } => match file.save(state) {
                Ok(()) => None,
                Err(NotWritten { error, is_certain }) => {
                    *is_unsettled = !is_certain;
                    Some((error.to_string(), is_certain))
                }
            },
            Storage::Etcd(seat) => match seat.save(led.term, &weight::encode(state)) {
                Saved::Yes => None,
                Saved::No(why) => Some((why, true)),
                Saved::Unknown(why) => {
                    // The next leader reads what is there.
                    self.led = None;
                    Some((why, false))
                }
            },
        };
        let Some((why, is_certain)) = failed else {
            if self.unsaved.take().is_some() {
                (self.say)("the coordinator's state can be saved again");
            }
            return Ok(());
        };
        if let Some(led) = &mut self.led {
            led.coordinator.restore(before);
        }
        let why = match is_certain {
            true => format!("the coordinator's state cannot be saved: {why}"),
            false => format!("whether the coordinator's state was saved is not known: {why}"),
        };
        self.say_unsaved(&why);
        Err(Failed::Unsaved(why))
    }

    /// Every heartbeat may fail so: the log has one line of many.
    fn say_unsaved(&mut self, why: &str) {
        let now = self.clock.now();
        match &mut self.unsaved {
            Some((until, more)) if now < *until => *more += 1,
            unsaved => {
                let more = unsaved.take().map_or(0, |(_, more)| more);
                match more {
                    0 => (self.say)(why),
                    _ => (self.say)(&format!(
                        "{why} ({more} times more since the last of these lines)"
                    )),
                }
                self.unsaved = Some((now + SAY_UNSAVED_EVERY, 0));
            }
        }
    }

    /// A file of which nobody knows what is in it is written anew, before anything is told.
    fn settle_file(&mut self) -> Result<(), Failed> {
        let Storage::File { file, is_unsettled } = &mut self.storage else { return Ok(()) };
        let led = self.led.as_ref().expect("with a file it leads");
        match file.save(led.coordinator.state()) {
            Ok(()) => {
                *is_unsettled = false;
                Ok(())
            }
            Err(NotWritten { error, .. }) => Err(Failed::Unsaved(format!(
                "whether the coordinator's state was saved is not known: {error}"
            ))),
        }
    }

    /// To the log and to whoever asks for events.
    pub(crate) fn tell(&mut self, text: &str) {
        // Servers' own words may be in it: they begin no line of a log.
        let text = text.replace(['\n', '\r'], " ");
        let now = self.clock.now();
        let is_kept = self.move_lines.as_mut().is_some_and(|lines| lines.keeps(&text, now));
        if !is_kept {
            (self.say)(&text);
        }
        self.remember(text);
    }

    /// With each heartbeat, too.
    fn say_moves(&mut self) {
        let now = self.clock.now();
        if let Some(line) = self.move_lines.as_mut().and_then(|lines| lines.due(now)) {
            (self.say)(&line);
        }
    }

    pub(crate) fn planned_in(&mut self, elapsed: Duration) {
        self.planned_in = elapsed;
    }

    /// For Prometheus, which asks each coordinator by itself.
    pub(crate) fn metrics(&mut self) -> String {
        let scaling = self.scaling().unwrap_or_default();
        match (self.ask(Request::Status), &self.led) {
            ((_, Ok(Response::Status(status))), Some(Led { coordinator, .. })) => {
                metrics::page(&status, coordinator, self.planned_in, &scaling)
            }
            _ => metrics::of_who_stands_by(),
        }
    }

    /// For the page: all of it at one moment.
    pub(crate) fn look_at_all(&mut self) -> Look {
        match self.ask(Request::Overview).1 {
            Ok(Response::Overview(overview)) => {
                let events = self.events.iter().rev().take(EVENTS_SHOWN).cloned();
                Look::Seen(overview, events.collect())
            }
            Err(Failed::NotLeading(NotLeading { why, leader })) => Look::StandsBy(why, leader),
            Err(failed) => Look::Blind(failed.to_string()),
            Ok(_) => unreachable!("a question has an answer of its own kind"),
        }
    }

    /// Where a key or a cachelet is, and what is known of it.
    pub(crate) fn search(&mut self, what: &str) -> (Option<Term>, Result<Found, Failed>) {
        let (term, answer) = self.ask(Request::Overview);
        let found = answer.and_then(|answer| {
            let Response::Overview(overview) = answer else {
                unreachable!("a question has an answer of its own kind")
            };
            let state = self.led.as_ref().and_then(|led| led.coordinator.state().document());
            let no_map = || Failed::Refused(Refusal::Conflict("there is no map yet".into()));
            let map = state.ok_or_else(no_map)?;
            let events: Vec<Event> = self.events.iter().rev().cloned().collect();
            let found = mbal_webpage::search(what, &map, &overview, &events);
            found.map_err(|why| Failed::Refused(Refusal::Senseless(why.into())))
        });
        (term, found)
    }

    fn remember(&mut self, text: String) {
        self.events_ever += 1;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.events.push_back(Event { number: self.events_ever, unix, text });
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    pub(crate) fn scaling(&mut self) -> Option<ScaleStatus> {
        match self.ask(Request::Scaling) {
            (_, Ok(Response::Scale(status))) => Some(*status),
            _ => None,
        }
    }

    /// The map and the servers, once all of them let clients in.
    pub(crate) fn served(&mut self) -> Option<Cluster> {
        let (_, Ok(Response::Status(status))) = self.ask(Request::Status) else { return None };
        let serve = status.servers.iter().all(|server| server.state == "serving");
        self.led.as_ref().filter(|_| serve)?.coordinator.state().document()
    }

    /// What this process has decided, newest first.
    pub(crate) fn events(&mut self) -> (Option<Term>, Result<Vec<Event>, Failed>) {
        match self.lead() {
            Ok(term) => (term, Ok(self.events.iter().rev().cloned().collect())),
            Err(failed) => (None, Err(failed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use mbal_control::api::Registration;
    use mbal_model::ServerId;

    use super::*;

    fn registration() -> Request {
        Request::Register(Registration {
            incarnation: 7.into(),
            cluster: "mbal".into(),
            client: "10.0.0.1:1".into(),
            link: "10.0.0.1:2".into(),
            ..Registration::default()
        })
    }

    fn why(told: (Option<Term>, Result<Response, Failed>)) -> String {
        match told.1 {
            Err(Failed::Unsaved(why)) => why,
            Err(Failed::Refused(refusal)) => format!("refused: {refusal}"),
            Err(Failed::NotLeading(_)) => "not leading".into(),
            Ok(answer) => format!("{answer:?}"),
        }
    }

    #[test]
    fn while_a_file_is_in_doubt_nothing_is_told_and_then_what_was_before_the_change() {
        let folder = std::env::temp_dir().join(format!("mbal-driver-{}", std::process::id()));
        let path = folder.join("mbal.json");
        std::fs::create_dir_all(&folder).expect("the system's folder can be written");
        let (mut file, _) = StateFile::open(&path).expect("it can be made");
        let sound = file.syncs_in(folder.join("gone"));
        let settings = Settings::default();
        let coordinator = Coordinator::new(settings.clone());
        let storage = Storage::File { file, is_unsettled: false };
        let mut driver = Driver::new(settings, storage, Some(coordinator), Arc::new(|_| {}));
        let doubt = "whether the coordinator's state was saved is not known";
        assert!(why(driver.ask(registration())).contains(doubt));
        assert!(
            why(driver.ask(Request::Status)).contains(doubt),
            "the file says one thing, this process another"
        );
        let Storage::File { file, .. } = &mut driver.storage else { panic!("it is a file") };
        file.syncs_in(sound);
        assert!(why(driver.ask(Request::Lost(ServerId(1)))).contains("there is no server 1"));
        let saved = std::fs::read_to_string(&path).expect("it is there");
        assert!(!saved.contains("10.0.0.1"), "{saved}");
        std::fs::remove_dir_all(folder).expect("it is the test's");
    }

    #[test]
    fn a_full_disk_is_said_once_and_that_it_is_over() {
        let folder = std::env::temp_dir().join(format!("mbal-full-{}", std::process::id()));
        let path = folder.join("mbal.json");
        std::fs::create_dir_all(&folder).expect("the system's folder can be written");
        let (file, _) = StateFile::open(&path).expect("it can be made");
        let (settings, said) = (Settings::default(), Arc::new(std::sync::Mutex::new(Vec::new())));
        let storage = Storage::File { file, is_unsettled: false };
        let lines = Arc::clone(&said);
        let say =
            Arc::new(move |line: &str| lines.lock().expect("it is sound").push(line.to_owned()));
        let coordinator = Coordinator::new(settings.clone());
        let mut driver = Driver::new(settings, storage, Some(coordinator), say);
        // A folder in the place of the new file.
        let new = folder.join("mbal.json.new");
        std::fs::create_dir(&new).expect("it can be made");
        for _ in 0..50 {
            assert!(why(driver.ask(registration())).contains("cannot be saved"));
        }
        assert_eq!(said.lock().expect("it is sound").len(), 1, "{said:?}");
        driver.unsaved.as_mut().expect("it cannot save").0 = Instant::ZERO;
        drop(driver.ask(registration()));
        std::fs::remove_dir(&new).expect("it is empty");
        assert!(driver.ask(registration()).1.is_ok());
        let said = said.lock().expect("it is sound");
        assert!(said[1].ends_with("(49 times more since the last of these lines)"), "{said:?}");
        assert_eq!(said[2], "the coordinator's state can be saved again");
        std::fs::remove_dir_all(folder).expect("it is the test's");
    }
}
