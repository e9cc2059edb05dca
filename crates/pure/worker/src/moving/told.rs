//! Moves of cachelets: what coordinator and other servers say of them.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use mbal_cachelet::AgeThresholds;
use mbal_locks::Mutex;
use mbal_migration::{
    Arriver, Destination, Incarnation, Leaver, Met, Order, Progress, Refusal, Request, Response,
    State, destination, source,
};
use mbal_model::{Cluster, MoveId, MoveLink, Prefix, ServerId, WorkerId};
use mbal_wire::Gone;

use crate::moving::moves::{Move, Side, Sides};
use crate::shared::Shared;
use crate::time::Now;

/// A cachelet comes by a move that the coordinator does not know. Its first word after the move began may answer what was said before;
/// the move's number was saved before its source heard of it, so the next word knows it, or nobody has ordered it.
const UNKNOWN_WORDS_MAX: u32 = 2;

/// What the coordinator says of a move of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveTold {
    pub order: Order,
    pub from: ServerId,
    pub to: ServerId,
    pub word: MoveDecision,
    /// At the source: what travels, if not everything.
    pub age_thresholds: Option<AgeThresholds>,
}

/// What it has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveDecision {
    Go,
    Cancel,
    DestinationLost,
}

/// What this server says of a move that it is the source of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoveReport {
    pub id: MoveId,
    pub state: State,
    pub progress: Progress,
    /// The part of the cachelet's hashes that is gone.
    pub part_gone: f64,
}

/// A message of a move, by a link of its own.
#[derive(Clone, Copy, Debug)]
pub struct MoveMessage<'a> {
    pub from: ServerId,
    pub link: MoveLink,
    pub id: MoveId,
    pub kind: u8,
    pub payload: &'a [u8],
}

/// What came of a message: who is to go on, and what is said at once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub worker: Option<WorkerId>,
    pub answer: Option<(u8, Vec<u8>)>,
}

/// It cannot have been said; the link is to be broken.
#[derive(Debug, PartialEq, Eq)]
pub struct BrokenLink;

fn refusal(why: Refusal) -> (u8, Vec<u8>) {
    let mut payload = Vec::new();
    (Response::Refused(why).encode(&mut payload), payload)
}

impl Shared {
    /// The number that this process has drawn; before any move is begun.
    pub fn set_incarnation(&self, incarnation: Incarnation) {
        self.copies.shadows.is_process(incarnation.0 as u16);
        self.moves.incarnation.store(incarnation.0, Relaxed);
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.moves.incarnation.load(Relaxed))
    }

    /// The coordinator's word on the moves of this server, all of them; the map that came with it has been followed. `ever`: the highest
    /// number that a move was given. Whom to tell that there is something to carry.
    pub fn moves_told(&self, now: Now, moves: &[MoveTold], ever: u32) -> Vec<WorkerId> {
        let here = self.here();
        let mut wake = Vec::new();
        for told in moves.iter().filter(|told| told.from == here) {
            let one = match self.moves.get(told.order.id) {
                Some(one) => one,
                None => self.begin_to_move(now, told),
            };
            if let Side::Leaves(leaver) = &mut one.lock().side {
                let word = match told.word {
                    MoveDecision::Go => None,
                    MoveDecision::Cancel => Some(source::Event::Cancel),
                    MoveDecision::DestinationLost => Some(source::Event::Lost),
                };
                let heard = word.map_or(Ok(()), |word| leaver.source.handle(now.instant(), word));
                heard.expect("a word is no answer");
            }
            wake.push(one.worker);
        }
        let is_meant = |one: &Move, told: &MoveTold| {
            let peer = if one.leaves { told.to } else { told.from };
            told.order.id == one.id && (told.order.prefix, peer) == (one.prefix, one.peer)
        };
        let is_over = |one: &Move| match one.id.0 <= ever {
            true => !moves.iter().any(|told| is_meant(one, told)),
            // Whoever said that it begins has made it up.
            false => !one.leaves && one.unknown.fetch_add(1, Relaxed) + 1 >= UNKNOWN_WORDS_MAX,
        };
        for one in self.moves.list(is_over) {
            // Before its lock is taken: whoever has the map's may want a move's.
            let owns = self.owns(one.prefix);
            let came_back = match &mut one.lock().side {
                Side::Leaves(leaver) => {
                    let came_back = leaver.source.is_over();
                    // It was handed over, and by a later map it begins here again: its destination has died since.
                    if !came_back && owns {
                        let heard = leaver.source.handle(now.instant(), source::Event::HandedOver);
                        heard.expect("a word is no answer");
                        wake.push(one.worker);
                    }
                    came_back
                }
                Side::Comes(arriver) => {
                    let ended = arriver.destination.handle(destination::Event::Ended);
                    ended.expect("a word is no message");
                    wake.push(one.worker);
                    false
                }
            };
            // The coordinator has heard of it. Of others that left the map says what became of them.
            if came_back {
                self.move_has_ended(one.id);
                wake.push(one.worker);
            }
        }
        if !self.moves.is_empty() {
            self.map.something_moves();
        }
        wake
    }

    /// By the newest map.
    fn owns(&self, prefix: Prefix) -> bool {
        let owner = |(here, cluster): (ServerId, Arc<Cluster>)| {
            cluster.map.at(prefix.first_hash()).1.server == here
        };
        self.cluster().is_some_and(owner)
    }

    fn begin_to_move(&self, now: Now, told: &MoveTold) -> Arc<Move> {
        let MoveTold { order, to, age_thresholds, .. } = *told;
        let mut leaver = Leaver::new(order);
        leaver.choose(age_thresholds);
        let links = self.moves.links();
        let link = links.get(&to).copied();
        if link.is_some() {
            leaver
                .source
                .handle(now.instant(), source::Event::LinkUp)
                .expect("nothing was answered");
        }
        let workers = self.settings.workers;
        let worker =
            self.store.owner(order.prefix).unwrap_or(WorkerId(order.id.0 as u16 % workers));
        let sides = Mutex::new(Sides { link, side: Side::Leaves(Box::new(leaver)) });
        let (id, prefix, gone) = (order.id, order.prefix, AtomicU64::new(0));
        let since = self.map_version();
        // With the links held, so that one that comes up now is not missed.
        self.moves.insert(Move {
            id,
            prefix,
            peer: to,
            worker,
            leaves: true,
            since,
            gone,
            unknown: AtomicU32::new(0),
            sides,
        })
    }

    /// A link for moves that this server dialed is up. Whom to tell.
    pub fn move_link_up(&self, now: Now, to: ServerId, link: MoveLink) -> Vec<WorkerId> {
        let mut links = self.moves.links();
        links.insert(to, link);
        let of_it = self.moves.list(|one| one.peer == to && one.leaves);
        for one in &of_it {
            let Sides { link: over, side } = &mut *one.lock();
            *over = Some(link);
            if let Side::Leaves(leaver) = side {
                leaver
                    .source
                    .handle(now.instant(), source::Event::LinkUp)
                    .expect("nothing was answered");
            }
        }
        of_it.iter().map(|one| one.worker).collect()
    }

    /// A link for moves has broken, whoever had dialed it.
    pub fn move_link_down(&self, now: Now, link: MoveLink) -> Vec<WorkerId> {
        self.moves.links().retain(|_, up| *up != link);
        let mut wake = Vec::new();
        for one in self.moves.list(|_| true) {
            let Sides { link: over, side } = &mut *one.lock();
            if *over != Some(link) {
                continue;
            }
            *over = None;
            side.link_is_down(now);
            wake.push(one.worker);
        }
        wake
    }

    /// The destination of a move answers, over a link that this server dialed.
    ///
    /// # Errors
    /// [`BrokenLink`], if it cannot be.
    pub fn move_answered(&self, now: Now, message: &MoveMessage<'_>) -> Result<Heard, BrokenLink> {
        let answer = Response::parse(message.kind, message.payload).map_err(|_| BrokenLink)?;
        let Some(one) = self.moves.get(message.id) else { return Ok(Heard::default()) };
        let Sides { link, side } = &mut *one.lock();
        if *link != Some(message.link) {
            return Ok(Heard::default());
        }
        let Side::Leaves(leaver) = side else { return Err(BrokenLink) };
        let before = leaver.source.progress().bytes;
        leaver
            .source
            .handle(now.instant(), source::Event::Answer(answer))
            .map_err(|_| BrokenLink)?;
        self.moves.carried.fetch_add(leaver.source.progress().bytes - before, Relaxed);
        one.publish(side);
        Ok(Heard { worker: Some(one.worker), answer: None })
    }

    /// The source of a move asks, over a link that it dialed.
    ///
    /// # Errors
    /// [`BrokenLink`], if it cannot be.
    pub fn move_asked(&self, now: Now, message: &MoveMessage<'_>) -> Result<Heard, BrokenLink> {
        let ask = Request::parse(message.kind, message.payload).map_err(|_| BrokenLink)?;
        let mut met = self.moves.get(message.id);
        if let Request::Begin(begin) = &ask {
            match self.meet(now, message, begin) {
                Ok(one) => met = Some(one),
                Err(why) => return Ok(Heard { worker: None, answer: Some(refusal(why)) }),
            }
        }
        let Some(one) = met else {
            // Its source may not know yet that it is over here. Whoever waited for an answer would wait for ever.
            let is_awaited = matches!(ask, Request::Part(_));
            let answer = is_awaited.then(|| refusal(Refusal::OtherMove));
            return Ok(Heard { worker: None, answer });
        };
        if one.peer != message.from {
            return Ok(Heard::default());
        }
        let Sides { link, side } = &mut *one.lock();
        let Side::Comes(arriver) = side else { return Err(BrokenLink) };
        match ask {
            Request::Begin(_) => *link = Some(message.link),
            _ if *link != Some(message.link) => return Ok(Heard::default()),
            _ => {}
        }
        let asked = destination::Event::Asked(ask);
        arriver.destination.handle(asked).map_err(|_| BrokenLink)?;
        Ok(Heard { worker: Some(one.worker), answer: None })
    }

    /// This process is about to end. Moves that have begun here go on; others are refused, and stay where they are.
    pub fn takes_no_more_moves(&self) {
        self.moves.leaving.store(true, Release);
    }

    fn meet(
        &self,
        now: Now,
        message: &MoveMessage<'_>,
        begin: &mbal_migration::Begin,
    ) -> Result<Arc<Move>, Refusal> {
        let coming = self.moves.list(|one| !one.leaves);
        let met = |one: &Arc<Move>| match &one.lock().side {
            Side::Comes(arriver) => Some(arriver.destination.met()),
            Side::Leaves(_) => None,
        };
        let known: Vec<Met> = coming.iter().filter_map(met).collect();
        let meeting = Destination::meet(self.incarnation(), message.id, begin, &known);
        match meeting {
            destination::Meeting::Refused(why) => return Err(why),
            // Older versions know this word too.
            destination::Meeting::Instead(_) | destination::Meeting::New
                if self.moves.leaving.load(Acquire) =>
            {
                return Err(Refusal::NoRoom);
            }
            destination::Meeting::Known(at) => return Ok(Arc::clone(&coming[at])),
            destination::Meeting::Instead(at) => {
                if let Side::Comes(arriver) = &mut coming[at].lock().side {
                    let ended = arriver.destination.handle(destination::Event::Ended);
                    ended.expect("a word is no message");
                }
            }
            destination::Meeting::New => {}
        }
        let worker = WorkerId(begin.worker.0 % self.settings.workers);
        let destination = Destination::new(now.instant(), message.id, *begin);
        let mut arriver = Arriver::new(destination, message.from);
        if self.moves.chosen.load(Relaxed) {
            arriver.is_chosen();
        }
        let sides = Sides { link: None, side: Side::Comes(Box::new(arriver)) };
        Ok(self.moves.insert(Move {
            id: message.id,
            prefix: begin.prefix,
            peer: message.from,
            worker,
            leaves: false,
            since: self.map_version(),
            gone: AtomicU64::new(0),
            unknown: AtomicU32::new(0),
            sides: Mutex::new(sides),
        }))
    }

    /// The source of a move has sent a request on, and says with it what is gone.
    pub(crate) fn knows_gone(&self, gone: Gone) {
        let Some(one) = self.moves.get(MoveId(gone.by_move)) else { return };
        if let Side::Comes(arriver) = &mut one.lock().side {
            // What has not come is not served: the request is then one of a cachelet that is not here.
            let _refused = arriver.knows_gone(&self.store, gone.last);
        }
    }

    /// For the next heartbeat: of all moves that this server is the source of.
    pub fn move_reports(&self) -> Vec<MoveReport> {
        let report = |one: Arc<Move>| match &one.lock().side {
            Side::Leaves(leaver) => {
                let (state, progress) = (leaver.source.state(), leaver.source.progress());
                let first = one.prefix.first_hash();
                let all = (one.prefix.last_hash() - first) as f64;
                let gone = leaver.source.gone().map_or(0.0, |last| (last - first) as f64);
                Some(MoveReport { id: one.id, state, progress, part_gone: gone / all })
            }
            Side::Comes(_) => None,
        };
        self.moves.list(|_| true).into_iter().filter_map(report).collect()
    }

    /// A cachelet cannot leave this server, or not all of it, since its destination has no room.
    pub fn moves_find_no_room(&self) -> bool {
        let finds_none = |one: &Arc<Move>| match &one.lock().side {
            Side::Leaves(leaver) => leaver.source.progress().refused == Some(Refusal::NoRoom),
            Side::Comes(_) => false,
        };
        self.moves.list(|_| true).iter().any(finds_none)
    }

    /// Moves that this server takes part in: number, cachelet, and whether it `gives` or `takes`.
    pub(crate) fn moves_in_words(&self) -> Vec<(MoveId, Prefix, &'static str)> {
        let in_words = |one: Arc<Move>| {
            let side = match one.lock().side {
                Side::Leaves(_) => "gives",
                Side::Comes(_) => "takes",
            };
            (one.id, one.prefix, side)
        };
        self.moves.list(|_| true).into_iter().map(in_words).collect()
    }

    pub(crate) fn moves_here(&self) -> Vec<Arc<Move>> {
        self.moves.list(|_| true)
    }

    pub(crate) fn move_has_ended(&self, id: MoveId) {
        self.moves.remove(id);
        self.map.look_again();
    }

    /// How many moves this server takes part in.
    pub fn moves_under_way(&self) -> usize {
        self.moves.len()
    }
}
