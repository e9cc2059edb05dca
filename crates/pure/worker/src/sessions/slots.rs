//! Replies leave a connection in the order of its requests, though those of peers arrive when
//! they like and local ones are there at once.
//!
//! ```text
//!   requests     set a    get b c d    mg e     mn
//!   served by    peer 1   here, 2, 3   here     here
//!                  |          |          |       |
//!   slots        [ … ]    [ B … D ]   [   HD, MN   ]
//! ```
//! A slot leaves when all its parts are there and nothing stands before it. What was asked together leaves together, in one
//! send: a client that sends many requests at a time would else get, and send, fewer and fewer at a time. A connection whose
//! requests are all served here has no slots.

use std::collections::VecDeque;
use std::ops::Range;

use crate::forwarding::flush::Everywhere;
use crate::forwarding::reply_bytes::{REPLY_BYTES_MIN, ReplyBytes};
use crate::forwarding::unreachable::{END, Lost, NO_ROUTE_LINE};
use crate::sessions::gather::Gather;
use mbal_model::{Instant, Key, ServerId};

/// Replies beyond so many bytes, of those that wait, have memory of their own.
const STORE_BYTES_MAX: usize = 64 << 10;
/// What is kept of that memory while nothing waits.
const STORE_BYTES_KEPT: usize = 4 << 10;

#[derive(Default)]
pub(crate) struct Slots {
    queue: VecDeque<Slot>,
    /// The number of the front slot; they count up.
    first: u64,
    /// Replies that were there before the first slot, of requests that came with its.
    ahead: Vec<u8>,
    /// The slots before this one are of requests that came together, and so many of those are not ready.
    together_to: u64,
    unready: usize,
    /// Replies, one behind the other.
    store: Vec<u8>,
    /// Bytes that wait.
    held: usize,
    /// Keys whose values may still come, and how long those were that came last; `None` before the first.
    keys: usize,
    reply_bytes: Option<ReplyBytes>,
    /// A part of a `get` failed: its other parts, further back, are dropped.
    get_failed: bool,
    /// The map by which the first of them was sent.
    map_version: u64,
    /// How many of them are a `flush_all`'s.
    flushes: usize,
    /// Some have gone to copies.
    leased: bool,
}

/// What one request went for, and where: a later one that goes elsewhere for the same could overtake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub hash: u64,
    pub to: ServerId,
    pub asked: Instant,
    /// It is for a copy, which a lease was taken for.
    pub by_lease: bool,
}

enum Slot {
    /// Replies of requests that were served here.
    Local(Reply),
    /// A request of one peer, and what the client is told if there is no reply.
    Peer {
        reply: Option<Reply>,
        lost: Lost,
        sent: Sent,
    },
    /// What a refused value was to replace, until its owner has removed it. The client is told nothing of that.
    Removal {
        done: bool,
        sent: Sent,
    },
    Gather(Gather),
    Everywhere(Everywhere),
}

/// A reply that waits.
enum Reply {
    /// There in [`Slots::store`].
    Stored(Range<usize>),
    Own(Vec<u8>),
}

impl Reply {
    fn len(&self) -> usize {
        match self {
            Reply::Stored(range) => range.len(),
            Reply::Own(bytes) => bytes.len(),
        }
    }
}

/// Where a peer's reply belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    slot: u64,
    source: usize,
}

impl Slots {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes that wait for replies before them.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Bytes that are there, and about as many as are to come; and what one key more may bring.
    pub fn expected_bytes(&self, of_links: ReplyBytes) -> (usize, usize) {
        let each = self.reply_bytes.unwrap_or(of_links).0.max(REPLY_BYTES_MIN);
        (self.held + self.keys * each, each)
    }

    fn saw(&mut self, keys: usize, bytes: usize) {
        self.keys -= keys;
        if let Some(each) = bytes.checked_div(keys) {
            self.reply_bytes.get_or_insert(ReplyBytes(each)).saw(each);
        }
    }

    /// Keeps a reply that is there behind those that are not.
    pub fn push_local(&mut self, reply: &[u8]) {
        self.held += reply.len();
        let reply = self.keep(reply);
        if let (Some(Slot::Local(Reply::Stored(last))), Reply::Stored(next)) =
            (self.queue.back_mut(), &reply)
        {
            if last.end == next.start {
                last.end = next.end;
                return;
            }
        }
        self.queue.push_back(Slot::Local(reply));
    }

    fn keep(&mut self, reply: &[u8]) -> Reply {
        let start = self.store.len();
        if start + reply.len() > STORE_BYTES_MAX {
            return Reply::Own(reply.to_vec());
        }
        self.store.extend_from_slice(reply);
        Reply::Stored(start..self.store.len())
    }

    /// The end of a turn that began without a slot: replies from `start` on were there before the first of them.
    pub fn keep_ahead(&mut self, start: usize, out: &mut Vec<u8>) {
        self.ahead.extend_from_slice(&out[start..]);
        self.held += out.len() - start;
        out.truncate(start);
    }

    /// What has been asked up to here came together, unless what came before still waits.
    fn close_group(&mut self) {
        if self.together_to <= self.first {
            self.together_to = self.first + self.queue.len() as u64;
            self.unready = self.queue.iter().filter(|slot| !slot.is_ready()).count();
        }
    }

    /// Requests are sent by this map, unless others that were sent before are still here.
    pub fn sent_by(&mut self, map_version: u64) {
        if self.queue.is_empty() {
            self.map_version = map_version;
            self.leased = false;
        }
    }

    /// What was sent last goes to a copy: the next request for its key may have to go another way.
    pub fn has_leased(&mut self) {
        self.leased = true;
    }

    /// The server where a request for a key of this hash is under way. Nobody, if it is one of several.
    pub fn under_way(&self, hash: u64) -> Option<ServerId> {
        let mut unready = self.queue.iter().filter(|slot| !slot.is_ready());
        unready.find_map(|slot| match slot {
            Slot::Local(_) => None,
            Slot::Peer { sent, .. } | Slot::Removal { sent, .. } => {
                (sent.hash == hash).then_some(sent.to)
            }
            Slot::Gather(gather) => gather.asks(hash).then_some(ServerId::NOBODY),
            Slot::Everywhere(_) => Some(ServerId::NOBODY),
        })
    }

    /// What the request of this place went for, if it was one key.
    pub fn sent_of(&self, place: Place) -> Option<Sent> {
        match &self.queue[self.index(place)] {
            Slot::Peer { sent, .. } | Slot::Removal { sent, .. } => Some(*sent),
            _ => None,
        }
    }

    /// The hashes of the keys that it went for, if they are of a `get` of several.
    pub fn gathered_by(&self, place: Place) -> Vec<u64> {
        match &self.queue[self.index(place)] {
            Slot::Gather(gather) => gather.hashes_of(place.source).collect(),
            _ => Vec::new(),
        }
    }

    /// True if nothing here went by another map than this one, and no `flush_all` is among it.
    #[inline]
    pub fn is_plain(&self, map_version: u64) -> bool {
        let same = self.map_version == map_version && self.flushes == 0 && !self.leased;
        self.queue.is_empty() || same
    }

    /// True if a request for this key that is unanswered went elsewhere than to `to` (`None`: here), which could overtake it.
    pub fn would_overtake(&self, key: &Key<'_>, to: Option<ServerId>) -> bool {
        let unready = self.queue.iter().filter(|slot| !slot.is_ready());
        unready.into_iter().any(|slot| match slot {
            Slot::Local(_) => false,
            Slot::Peer { sent, .. } | Slot::Removal { sent, .. } => {
                sent.hash == key.hash() && Some(sent.to) != to
            }
            Slot::Gather(gather) => gather.asked_elsewhere(key, to),
            // Whoever is asked may pass the request on, to a server that has not been flushed yet.
            Slot::Everywhere(_) => true,
        })
    }

    /// True if what this place is for changes nothing, whenever it is executed.
    pub fn reads(&self, place: Place) -> bool {
        match &self.queue[self.index(place)] {
            Slot::Peer { lost, .. } => lost.reads,
            Slot::Gather(gather) => !gather.touches,
            Slot::Local(_) | Slot::Removal { .. } | Slot::Everywhere(_) => false,
        }
    }

    /// True if something is unanswered.
    pub fn waits(&self) -> bool {
        self.queue.iter().any(|slot| !slot.is_ready())
    }

    /// A place for a peer's reply.
    pub fn push_peer(&mut self, lost: Lost, sent: Sent) -> Place {
        self.keys += usize::from(lost.missed);
        self.queue.push_back(Slot::Peer { reply: None, lost, sent });
        Place { slot: self.first + self.queue.len() as u64 - 1, source: 0 }
    }

    /// A place for whatever the owner of an item to remove says.
    pub fn push_removal(&mut self, sent: Sent) -> Place {
        self.queue.push_back(Slot::Removal { done: false, sent });
        Place { slot: self.first + self.queue.len() as u64 - 1, source: 0 }
    }

    /// Places for the replies of its sources.
    pub fn push_gather(&mut self, gather: Gather) -> impl Fn(usize) -> Place + use<> {
        self.held += gather.bytes();
        self.keys += gather.keys_to_come();
        self.queue.push_back(Slot::Gather(gather));
        let slot = self.first + self.queue.len() as u64 - 1;
        move |source| Place { slot, source }
    }

    /// The reply has come. How many keys' owners could not be reached, and were misses for that.
    pub fn fill(&mut self, place: Place, bytes: &[u8]) -> u64 {
        // A peer that had no route either says so as if the client spoke text.
        let is_lost = bytes == NO_ROUTE_LINE;
        let index = self.index(place);
        let keys = match &self.queue[index] {
            Slot::Peer { lost, .. } => usize::from(lost.missed),
            Slot::Gather(gather) => gather.sources[place.source].keys,
            _ => 0,
        };
        self.saw(keys, bytes.len());
        let missed = match &mut self.queue[index] {
            Slot::Peer { lost, .. } => {
                let told = std::mem::take(&mut lost.told);
                let missed = if is_lost { lost.missed.into() } else { 0 };
                let bytes = if is_lost { &told } else { bytes };
                self.held += bytes.len();
                let kept = self.keep(bytes);
                let Slot::Peer { reply, .. } = &mut self.queue[index] else { unreachable!() };
                *reply = Some(kept);
                missed
            }
            Slot::Gather(gather) => {
                let bytes = if is_lost { END } else { bytes };
                self.held += bytes.len();
                gather.sources[place.source].reply = Some(bytes.to_vec());
                if is_lost { keys as u64 } else { 0 }
            }
            Slot::Everywhere(everywhere) => {
                everywhere.fill(bytes);
                0
            }
            Slot::Removal { done, .. } => {
                *done = true;
                0
            }
            Slot::Local(_) => unreachable!("nobody has a place there"),
        };
        if place.slot < self.together_to && self.queue[index].is_ready() {
            self.unready -= 1;
        }
        missed
    }

    fn index(&self, place: Place) -> usize {
        usize::try_from(place.slot - self.first).expect("slots leave when filled")
    }

    /// The reply will not come.
    pub fn fail(&mut self, place: Place) -> u64 {
        self.fill(place, NO_ROUTE_LINE)
    }

    /// A place for the replies of all other servers.
    pub fn push_everywhere(&mut self, everywhere: Everywhere) -> Place {
        self.flushes += 1;
        self.queue.push_back(Slot::Everywhere(everywhere));
        Place { slot: self.first + self.queue.len() as u64 - 1, source: 0 }
    }

    /// Appends to `out` what may leave. At the end of a turn: what is asked in it later belongs to what was asked before.
    pub fn release(&mut self, out: &mut Vec<u8>) {
        self.close_group();
        while self.unready == 0 && !self.queue.is_empty() {
            self.release_group(out);
            self.close_group();
        }
        if self.queue.is_empty() {
            self.store.clear();
            self.store.shrink_to(STORE_BYTES_KEPT);
        }
    }

    fn release_group(&mut self, out: &mut Vec<u8>) {
        self.held -= self.ahead.len();
        out.append(&mut self.ahead);
        while self.first < self.together_to {
            let slot = self.queue.pop_front().expect("there is a front");
            self.first += 1;
            self.held -= slot.bytes();
            match slot {
                Slot::Local(reply) | Slot::Peer { reply: Some(reply), .. } => match reply {
                    Reply::Stored(range) => out.extend_from_slice(&self.store[range]),
                    Reply::Own(bytes) => out.extend_from_slice(&bytes),
                },
                Slot::Peer { reply: None, .. } => unreachable!("it is ready"),
                Slot::Removal { .. } => {}
                Slot::Gather(gather) => self.release_get(&gather, out),
                Slot::Everywhere(everywhere) => {
                    self.flushes -= 1;
                    everywhere.push(out);
                }
            }
        }
    }

    fn release_get(&mut self, gather: &Gather, out: &mut Vec<u8>) {
        if !gather.continues {
            self.get_failed = false;
        }
        if self.get_failed {
            return;
        }
        let start = out.len();
        if let Err(error) = gather.merge(out) {
            out.truncate(start);
            out.extend_from_slice(error);
            self.get_failed = true;
        }
    }
}

impl Slot {
    fn is_ready(&self) -> bool {
        match self {
            Slot::Local(_) => true,
            Slot::Peer { reply, .. } => reply.is_some(),
            Slot::Removal { done, .. } => *done,
            Slot::Gather(gather) => gather.is_ready(),
            Slot::Everywhere(everywhere) => everywhere.is_ready(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Slot::Local(reply) => reply.len(),
            Slot::Peer { reply, .. } => reply.as_ref().map_or(0, Reply::len),
            Slot::Gather(gather) => gather.bytes(),
            Slot::Removal { .. } | Slot::Everywhere(_) => 0,
        }
    }
}
