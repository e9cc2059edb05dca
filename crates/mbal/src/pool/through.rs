//! `mbal pool resize --through`: proxies switch the pool while clients write to it (docs/design/switching.md).

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::same_servers;
use mbal_elastic::pool::{Resize, plan};
use mbal_elastic::switch::{Ending, Pilot, PilotAction, PilotEvent};
use mbal_pool::{Dial, Failed, Leases, Move, Pace, Stream, Surveyed, survey};
use mbal_routing::ketama::{Dialect, KeyHash, RingServer};
use mbal_wire::{SwitchLine, SwitchOrder, SwitchReply, SwitchSession, SwitchStep};

/// A proxy that hears nothing for so long goes back, or refuses writes.
const LEASE: Duration = Duration::from_secs(3);
/// So long after a server has answered, it has executed all that earlier connections have brought.
const DOUBT: Duration = Duration::from_secs(5);
/// A round of keys that were written meanwhile, or a look at Ctrl-C, is not later.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Proxies, by their addresses, and what they want to hear.
pub struct Through<'a> {
    pub proxies: &'a [RingServer],
    pub token: &'a [u8],
    /// Where proxies, and servers, are reached.
    pub dial_proxies: Dial<'a>,
    pub dial: Dial<'a>,
    pub pace: &'a Pace,
}

/// What proxies have told before anything is begun.
pub struct Known {
    /// How they place keys, in their words.
    pub ring: String,
    pub dialect: Dialect,
    pub hash: KeyHash,
    /// The old list in their order.
    pub list: Vec<RingServer>,
    /// Some proxy has this list, or is on its way to it.
    pub next: Option<Vec<RingServer>>,
    /// Some proxy reads by it: nothing is to be copied any more.
    pub has_turned: bool,
}

/// The lists, and where keys are by them.
pub struct Lists<'a> {
    pub old: &'a [RingServer],
    pub new: &'a [RingServer],
    /// All of both.
    pub servers: &'a [RingServer],
    pub resize: &'a Resize,
}

impl Through<'_> {
    /// Greets all proxies: how they place keys, and whether an earlier resize has come to them.
    pub fn meet(&self, old: &[RingServer]) -> Result<Known, String> {
        let mut known: Option<Known> = None;
        for proxy in self.proxies {
            let told = |why: String| format!("{proxy}: {why}");
            let mut channel = Channel::open(self.dial_proxies, proxy).map_err(told)?;
            let session = match channel.ask(self.token, 0, SwitchOrder::Hello).map_err(told)? {
                SwitchReply::Session(session) => session,
                SwitchReply::Refused(why) => return Err(told(why)),
                other => return Err(told(format!("it answers {other:?}"))),
            };
            let (dialect, hash) = placement(&session.ring).map_err(told)?;
            let (list, next) = lists_of(&session, old).map_err(told)?;
            let has_turned = next.is_some() && list.is_none();
            let has_turned = has_turned || session.step == SwitchStep::Turned;
            match &mut known {
                None => {
                    let list = list.unwrap_or_else(|| old.to_vec());
                    let ring = session.ring;
                    known = Some(Known { ring, dialect, hash, list, next, has_turned });
                }
                Some(known) if known.ring != session.ring => {
                    return Err(told("it places keys otherwise than the proxy before".to_owned()));
                }
                Some(known) => {
                    known.list = list.unwrap_or_else(|| std::mem::take(&mut known.list));
                    known.next = known.next.take().or(next);
                    known.has_turned |= has_turned;
                }
            }
        }
        known.ok_or_else(|| "no proxy".to_owned())
    }

    /// Leads them; how it ends.
    pub fn lead(
        &self,
        ring: &str,
        lists: &Lists,
        leases: &mut Leases,
        said: &dyn Fn(&'static str),
    ) -> Ending {
        let begun = Instant::now();
        let now = || mbal_model::Instant::ZERO + begun.elapsed();
        let entries = |list: &[RingServer]| list.iter().map(RingServer::entry).collect();
        let names = self.proxies.iter().map(ToString::to_string).collect();
        let (old, new) = (entries(lists.old), entries(lists.new));
        let mut pilot = Pilot::new(names, old, new, ring.to_owned(), (LEASE, DOUBT), now());
        let (events, heard) = mpsc::channel();
        thread::scope(|scope| {
            let mut channels: Vec<Sender<(u64, SwitchOrder)>> = Vec::new();
            for proxy in 0..self.proxies.len() {
                let (orders, asked) = mpsc::channel();
                let events = events.clone();
                scope.spawn(move || self.talk(proxy, &asked, &events));
                channels.push(orders);
            }
            let (jobs, wanted) = mpsc::channel::<PilotAction>();
            scope.spawn(move || {
                for job in wanted {
                    let done = PilotEvent::Copied(self.copy(job, lists, leases));
                    if events.send(done).is_err() {
                        return;
                    }
                }
            });
            let mut is_stopped = false;
            loop {
                for action in pilot.take_actions() {
                    match action {
                        PilotAction::Ask { proxy, session, order } => {
                            if let Some(stage) = stage(&order) {
                                said(stage);
                            }
                            // Its thread lives as long, or has told why not.
                            channels[proxy].send((session, order)).unwrap_or(());
                        }
                        PilotAction::End(ending) => return ending,
                        job => jobs.send(job).expect("it copies as long as there are jobs"),
                    }
                }
                let wait = (pilot.next_wake() - now()).clamp(Duration::ZERO, LOOK_EVERY);
                let event = match heard.recv_timeout(wait) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout) => PilotEvent::Woken,
                    Err(RecvTimeoutError::Disconnected) => unreachable!("a thread copies"),
                };
                if self.pace.is_stopped() && !std::mem::replace(&mut is_stopped, true) {
                    pilot.handle(now(), PilotEvent::Stop);
                }
                pilot.handle(now(), event);
                if pilot.goes_back() {
                    self.pace.stop.store(true, Relaxed);
                }
            }
        })
    }

    /// Asks one proxy what it is to be asked, one thing after the other.
    fn talk(
        &self,
        proxy: usize,
        asked: &Receiver<(u64, SwitchOrder)>,
        events: &Sender<PilotEvent>,
    ) {
        let mut channel = Channel::open(self.dial_proxies, &self.proxies[proxy]);
        for (session, order) in asked {
            let reply = match &mut channel {
                Ok(channel) => channel.ask(self.token, session, order),
                Err(why) => Err(why.clone()),
            };
            let event = match reply {
                Ok(reply) => PilotEvent::Said { proxy, reply },
                Err(why) => PilotEvent::Silent { proxy, why },
            };
            if events.send(event).is_err() {
                return;
            }
        }
    }

    fn copy(&self, job: PilotAction, lists: &Lists, leases: &mut Leases) -> Result<(), String> {
        let done = match job {
            PilotAction::CopyAll => self.copy_all(lists, leases),
            PilotAction::Copy(keys) => leases.copy_again(keys),
            PilotAction::Drop(keys) => leases.drop_keys(&keys),
            PilotAction::Ask { .. } | PilotAction::End(_) => unreachable!("it is no job"),
        };
        done.map_err(|failed| failed.to_string())
    }

    /// What was written since the first listing is in this one, or is told by the proxies.
    fn copy_all(&self, lists: &Lists, leases: &mut Leases) -> Result<(), Failed> {
        let hash = lists.resize.old.hash();
        let members = survey(lists.servers, self.dial, hash, self.pace)?;
        let planned: Vec<_> = members.iter().map(Surveyed::member).collect();
        let plan = plan(&planned, lists.resize);
        let mut clearing = Move::new(&members, lists.resize, self.dial, self.pace);
        clearing.clear(&plan)?;
        leases.counts.strays += clearing.counts.strays;
        leases.carry(&members, &plan)
    }
}

/// What is said when proxies are asked for it.
fn stage(order: &SwitchOrder) -> Option<&'static str> {
    match order {
        SwitchOrder::Begin { .. } => Some("begin"),
        SwitchOrder::Hold => Some("hold"),
        SwitchOrder::Turn => Some("turn"),
        SwitchOrder::End => Some("end"),
        SwitchOrder::Back => Some("back"),
        SwitchOrder::Hello | SwitchOrder::Written => None,
    }
}

fn placement(ring: &str) -> Result<(Dialect, KeyHash), String> {
    let (dialect, hash) = ring.split_once('/').ok_or_else(|| format!("its ring is {ring:?}"))?;
    if dialect == "modula" {
        return Err("it places keys by remainder: nearly all would move".to_owned());
    }
    Ok((dialect.parse()?, hash.parse()?))
}

type List = Vec<RingServer>;

/// The old list as a proxy has it, and the one that it has instead, or is on its way to.
fn lists_of(
    session: &SwitchSession,
    old: &[RingServer],
) -> Result<(Option<List>, Option<List>), String> {
    let parse = |list: &[String]| {
        let parsed = list.iter().map(|one| one.parse::<RingServer>());
        parsed.collect::<Result<Vec<_>, _>>()
    };
    let servers = parse(&session.servers)?;
    let is_old = same_servers(&servers, old);
    Ok(match (session.next.is_empty(), is_old) {
        (false, _) => (is_old.then_some(servers), Some(parse(&session.next)?)),
        (true, true) => (Some(servers), None),
        (true, false) => (None, Some(servers)),
    })
}

/// A connection to a proxy.
struct Channel {
    stream: Box<dyn Stream>,
    heard: Vec<u8>,
}

impl Channel {
    fn open(dial: Dial, proxy: &RingServer) -> Result<Channel, String> {
        let stream = dial(proxy).map_err(|why| why.to_string())?;
        Ok(Channel { stream, heard: Vec::new() })
    }

    fn ask(
        &mut self,
        token: &[u8],
        session: u64,
        order: SwitchOrder,
    ) -> Result<SwitchReply, String> {
        let mut line = Vec::new();
        SwitchLine { token, session, order }.push(&mut line);
        let sent = self.stream.write_all(&line).and_then(|()| self.stream.flush());
        sent.map_err(|why| why.to_string())?;
        loop {
            let parsed = SwitchReply::parse(&self.heard);
            if let Some((reply, length)) = parsed.map_err(|said| no_proxy(&said))? {
                self.heard.drain(..length);
                return Ok(reply);
            }
            let mut some = [0; 16 << 10];
            match self.stream.read(&mut some) {
                Ok(0) => return Err("it hangs up".to_owned()),
                Ok(count) => self.heard.extend_from_slice(&some[..count]),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err("it does not answer in time".to_owned());
                }
                Err(why) => return Err(why.to_string()),
            }
        }
    }
}

fn no_proxy(said: &str) -> String {
    match said {
        "ERROR" => "it is no proxy with --resize-token-file".to_owned(),
        other => format!("it answers {other:?}"),
    }
}
