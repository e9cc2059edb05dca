//! Transcripts of the autoscaler's pilot: what it hears, and what it does.

use std::time::Duration;

use mbal_control::api::{AutoscaleConfig, AutoscaleStatus, ServerStatus, Status};
use mbal_control::{Demand, Request, Response};
use mbal_elastic::Forecast;
use mbal_model::{Instant, ServerId};
use mbal_planning::Stoppable;
use mbal_planning::autoscaling::{Action, Event, Pauses, Pilot, Time};

const MINUTE: Duration = Duration::from_secs(60);

struct Rig {
    pilot: Pilot,
    now: Instant,
    status: AutoscaleStatus,
    /// By server, from 1 on.
    states: Vec<&'static str>,
    /// What machines say.
    done: Result<(), String>,
}

impl Rig {
    /// So many servers are wanted, and as many as there are states are there.
    fn new(wanted: usize, states: &[&'static str]) -> Rig {
        let (min, max) = (wanted, wanted);
        let config = AutoscaleConfig { min, max, database_rate: 1e9, ..Default::default() };
        let status = AutoscaleStatus { config: Some(config), ..AutoscaleStatus::default() };
        let now = Instant::from_secs(7);
        let pilot = Pilot::new(Pauses::of(MINUTE), Stoppable::Any, now);
        Rig { pilot, now, status, states: states.to_vec(), done: Ok(()) }
    }

    fn answer(&self, ask: &Request) -> Response {
        let client = |id: usize| format!("h{id}:11211");
        let servers = self.states.iter().zip(1..);
        match ask {
            Request::AutoscaleStatus => Response::Autoscale(self.status.clone()),
            Request::Scaling => Response::Scale(Box::default()),
            Request::Status => {
                let server = |(state, id): (&&str, usize)| ServerStatus {
                    id: id as u16,
                    client: client(id),
                    state: (*state).into(),
                    ..ServerStatus::default()
                };
                Response::Status(Status {
                    servers: servers.map(server).collect(),
                    ..Status::default()
                })
            }
            Request::Demand => Response::Demand(Box::new(Demand {
                forecast: Forecast::new(&[]),
                rate: 0.0,
                hit_ratio: 0.0,
                servers: servers.map(|(_, id)| (ServerId(id as u16), client(id))).collect(),
                servers_told: self.states.len(),
                server_bytes: 1 << 30,
                item_bytes: 0.0,
                state_bytes: 0,
                more_wanted: 0,
                load_mean: 0.0,
            })),
            _ => Response::Done,
        }
    }

    /// Woken after so many seconds: what it does beside asking how things are.
    fn after(&mut self, seconds: u64) -> Vec<String> {
        self.now += Duration::from_secs(seconds);
        let time = Time { now: self.now, unix: self.now - Instant::ZERO };
        let (mut did, mut actions) = (Vec::new(), Vec::new());
        self.pilot.handle(time, Event::Woken, &mut actions);
        while !actions.is_empty() {
            let event = match actions.remove(0) {
                Action::Tell(text) => {
                    did.push(text);
                    continue;
                }
                Action::Ask(ask) => {
                    match &ask {
                        Request::Scale(call) => did.push(format!("scale to {}", call.servers)),
                        Request::Looked(look) => {
                            did.push(format!("looked, {} start", look.starting))
                        }
                        _ => {}
                    }
                    Event::Answered(Ok(self.answer(&ask)))
                }
                Action::Start { count, more } => {
                    did.push(format!("start {more} of {count}"));
                    Event::Done(self.done.clone())
                }
                Action::Stop { count, leavers } => {
                    let ids: Vec<u16> = leavers.iter().map(|one| one.id).collect();
                    did.push(format!("stop {ids:?} of {count} that stay"));
                    Event::Done(self.done.clone())
                }
            };
            self.pilot.handle(time, event, &mut actions);
        }
        did
    }
}

#[test]
fn servers_that_are_started_are_waited_for_and_who_does_not_come_is_told_of() {
    let mut rig = Rig::new(3, &["serving", "serving"]);
    assert_eq!(rig.after(1), ["start 1 of 3", "looked, 1 start"], "as soon as it is set up");
    assert_eq!(rig.after(1), [""; 0]);
    assert_eq!(rig.after(60), ["looked, 1 start"], "once: it is on its way");
    rig.states.push("serving");
    assert_eq!(rig.after(1), [""; 0]);
    assert_eq!(rig.after(60), ["looked, 0 start"]);
    rig.states.pop();
    assert_eq!(rig.after(60), ["start 1 of 3", "looked, 1 start"]);
    let late = "autoscaling: 1 servers that were started have not come";
    assert_eq!(rig.after(301), [late, "start 1 of 3", "looked, 1 start"]);
}

#[test]
fn what_machines_refuse_is_tried_again_later() {
    let mut rig = Rig::new(2, &["serving"]);
    rig.done = Err("no machine".into());
    assert_eq!(rig.after(1), ["start 1 of 2", "looked, 0 start"]);
    // Another wish is looked at at once.
    rig.status.config.as_mut().expect("it is set up").headroom = 2.0;
    assert_eq!(rig.after(1), ["looked, 0 start"]);
    rig.done = Ok(());
    assert_eq!(rig.after(60), ["start 1 of 2", "looked, 1 start"]);
}

#[test]
fn who_retires_is_stopped_when_all_are_empty_and_again_if_it_stays() {
    let mut rig = Rig::new(1, &["serving"; 3]);
    assert_eq!(rig.after(1), ["looked, 0 start"], "what was before is not known: it rests");
    assert_eq!(rig.after(600), ["scale to 1", "looked, 0 start"]);
    rig.status.stopping = vec![2, 3];
    rig.states = vec!["serving", "drained", "draining"];
    assert_eq!(rig.after(1), [""; 0]);
    rig.states[2] = "drained";
    assert_eq!(rig.after(1), ["stop [2, 3] of 1 that stay"]);
    rig.states[2] = "retired";
    assert_eq!(rig.after(29), [""; 0]);
    assert_eq!(rig.after(1), ["stop [2] of 1 that stay"]);
}
