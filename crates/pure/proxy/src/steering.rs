//! Requests for keys that are hot: where reads go, what a write ends, how copies are filled.

use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{KEY_BYTES_MAX, Key};
use mbal_wire::{ReplyKind, Request, base64_decode, push_u64};

use crate::backend::Backend;
use crate::expect::{Echo, Expect};
use crate::hot::{AskId, Copy, Read, Through};
use crate::inflight::Who;
use crate::keeping::{Item, KEPT_BYTES_MAX, Kept, Shape, is_plain, written};
use crate::ledger::Ledger;
use crate::naming::{SUFFIX_BYTES, push_name};
use crate::promises::Course;
use crate::refusal::Refusal;

/// The reply to a question for a value that is to be copied.
const FILLS: (ReplyKind, Expect) =
    (ReplyKind::Meta, Expect::MetaGot { value: true, compares: false, echo: Echo::NONE });

/// What becomes of a request.
pub(crate) enum Steered {
    /// It goes where its key's hash says.
    Home,
    Copy {
        conn: usize,
        name: u64,
    },
    /// It is passed on to its key's coordinator.
    Pass {
        conn: usize,
    },
    Refused(Refusal),
    /// This answers it.
    Said(Vec<u8>),
    /// What this write brings answers it, when its reply comes.
    Behind(AskId, Shape),
}

impl Backend {
    /// A request for one key, `writes` if it may change the item.
    pub fn steer(
        &mut self,
        is_peer: bool,
        request: &Request<'_>,
        (key, base64): (&[u8], bool),
        writes: bool,
        ledger: &mut Ledger,
    ) -> Steered {
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = match base64 {
            true => match base64_decode(key, &mut decoded) {
                Some(length) => &decoded[..length],
                None => return Steered::Home,
            },
            false => key,
        };
        let Some(hash) = Key::new(key).map(|key| key.hash()) else { return Steered::Home };
        // What peers pass on they ask for more often than their other keys.
        if !is_peer {
            self.hot.observe(key, hash);
        }
        match self.peering.course_of(is_peer, hash) {
            Ok(Course::Pass(member)) => {
                return match self.peering.pass(member, key, writes, &mut self.upstreams, ledger) {
                    Ok(Some(conn)) => Steered::Pass { conn },
                    Ok(None) => Steered::Home,
                    Err(why) => Steered::Refused(why),
                };
            }
            Ok(Course::Own | Course::Hold) => {}
            Err(why) => return Steered::Refused(why),
        }
        if self.hot.table.is_empty() {
            return Steered::Home;
        }
        if writes {
            self.writes(request, hash, key, ledger);
            return Steered::Home;
        }
        if base64 || !is_plain(request) || !self.peering.is_sure(ledger.now) {
            return Steered::Home;
        }
        let may_fill = self.may_fill(hash, key, ledger);
        let upstreams = &self.upstreams;
        let load = |conn: u32| upstreams.conn(conn as usize).load();
        match self.hot.table.read(hash, key, ledger.now, may_fill, load) {
            Read::Home => Steered::Home,
            Read::Fill(epoch) => {
                let home = self.placing.home(key).expect("it may be filled");
                let conn = self.upstreams.conn_of(home, key);
                self.ask_fill(conn, key, Who::Fill { hash, epoch }, ledger);
                Steered::Home
            }
            Read::Behind(ask) => match Shape::of(request) {
                Some(shape) => Steered::Behind(ask, shape),
                None => Steered::Home,
            },
            Read::Cached(kept) => match Shape::of(request) {
                Some(shape) => {
                    let mut reply = ledger.spare.take();
                    shape.push(&mut reply, key, Some(kept));
                    ledger.counters.cache_hits += 1;
                    ledger.counters.get_hits += 1;
                    Steered::Said(reply)
                }
                None => Steered::Home,
            },
            Read::Copy { conn, name } if self.upstreams.conn(conn).is_up() => {
                ledger.counters.copy_reads += 1;
                Steered::Copy { conn, name }
            }
            Read::Copy { .. } => Steered::Home,
        }
    }

    /// A request that may change a key is about to be sent to its home.
    fn writes(&mut self, request: &Request<'_>, hash: u64, key: &[u8], ledger: &mut Ledger) {
        self.hot.end_copies(hash, key, &mut self.upstreams, ledger);
        let Some((kept, seconds)) = written(request) else { return };
        let may_keep = self.hot.table.takes_writes(hash, key, kept.value.len(), ledger.now)
            && self.may_fill(hash, key, ledger);
        if !may_keep {
            return;
        }
        let home = self.placing.home(key).expect("it may be filled");
        let conn = self.upstreams.conn_of(home, key);
        if self.upstreams.admit(conn, ledger).is_ok() {
            let ask = (conn as u32, self.upstreams.conn(conn).asked_in_all());
            let until = ledger.now + Duration::from_secs(seconds as u64);
            self.hot.table.write_through(hash, ask, kept, until);
        }
    }

    /// The reply to a write that reads may wait for: what it has brought, if the home has stored it.
    pub fn wrote(
        &mut self,
        ask: AskId,
        reply: &[u8],
        ledger: &mut Ledger,
    ) -> Option<(Through, bool)> {
        // A server that refuses a value has dropped the one before.
        let stored = reply == b"STORED\r\n" || reply.starts_with(b"HD");
        let (through, is_kept) = self.hot.table.wrote(ask, stored)?;
        let readers = through.readers.len() as u64;
        if stored {
            ledger.counters.written_hits += readers;
            ledger.counters.get_hits += readers;
        } else {
            ledger.counters.get_misses += readers;
        }
        ledger.counters.cache_writes += u64::from(is_kept);
        Some((through, stored))
    }

    /// All upstreams serve, and the key's home does what it was told.
    fn may_fill(&self, hash: u64, key: &[u8], ledger: &Ledger) -> bool {
        let Some(home) = self.placing.home(key).filter(|_| self.placing.all_present()) else {
            return false;
        };
        let both = self.upstreams.both_of(home, key);
        let [text, binary] = both.map(|conn| self.upstreams.conn(conn));
        let is_sure =
            !self.upstreams.are_in_doubt(both, ledger.now) || is_planted(Fault::DoubtForgotten);
        // A write in binary is in no order with the fill.
        text.is_up()
            && !self.clusters.is_any()
            && !binary.awaits_writes()
            && is_sure
            && self.peering.all_promised(hash)
            && key.len() + SUFFIX_BYTES <= KEY_BYTES_MAX
    }

    fn ask_fill(&mut self, conn: usize, key: &[u8], who: Who, ledger: &Ledger) {
        self.upstreams.ask_own(conn, &[b"mg ", key, b" v f t\r\n"], FILLS, who, ledger.now);
    }

    /// The home has answered a fill.
    pub fn filled(&mut self, hash: u64, epoch: u64, reply: &[u8], ledger: &mut Ledger) {
        let Some(hot) = self.hot.table.is_filling(hash, epoch) else { return };
        let (key, wanted, often_written) = (hot.key.clone(), hot.wanted, hot.often_written);
        let Some(item) = Item::parse(reply).filter(|item| item.seconds > 0) else {
            return self.hot.table.unfilled(hash, epoch);
        };
        if often_written && item.value.len() <= KEPT_BYTES_MAX {
            let kept = Kept { flags: item.flags, value: item.value.to_vec() };
            let until = ledger.now + item.lives();
            if self.hot.table.cached(hash, kept, until) {
                return;
            }
        }
        let home = self.placing.home(&key).expect("it was asked");
        let at_home =
            Copy { conn: self.upstreams.conn_of(home, &key) as u32, name: None, stored: true };
        let mut copies = vec![at_home];
        let mut named = Vec::new();
        for at in 1..wanted {
            let name = mbal_random::mix(epoch ^ u64::from(at));
            named.clear();
            push_name(&mut named, &key, name);
            let upstream = self.placing.home(&named).expect("somebody serves");
            let conn = self.upstreams.conn_of(upstream, &named);
            let same = copies.iter().find(|copy| copy.conn as usize == conn).copied();
            if let Some(same) = same {
                copies.push(same);
            } else if upstream == home || self.upstreams.admit(conn, ledger).is_err() {
                copies.push(at_home);
            } else {
                push_copy(self.upstreams.out(conn), &named, &item);
                let (shape, who) =
                    ((ReplyKind::Line, Expect::Stored), Who::Copy { hash, epoch, at });
                self.upstreams.ask_own(conn, &[], shape, who, ledger.now);
                copies.push(Copy { conn: conn as u32, name: Some(name), stored: false });
                ledger.counters.copies_stored += 1;
            }
        }
        self.hot.table.copied(hash, copies, ledger.now);
    }

    /// The end of an interval: what is hot now.
    pub fn end_interval(&mut self, ledger: &mut Ledger) {
        let (peering, servers) = (&self.peering, self.placing.order().len());
        let is_own = |hash| peering.is_own(hash);
        if self.hot.end_interval(is_own, servers, &mut self.upstreams, ledger) {
            self.peering.hurry(ledger.now);
            self.fill_kernel(ledger);
        }
    }

    /// Asks the homes of hot keys for values that the kernel lacks.
    fn fill_kernel(&mut self, ledger: &mut Ledger) {
        let (Some(kernel), Some(control)) = (&self.hot.kernel, self.hot.control()) else { return };
        // They are looked at once an interval.
        let until = ledger.now + 2 * control.replication.interval;
        for (hash, key) in kernel.wanting(until) {
            let home = self.placing.home(&key).expect("a pool has servers");
            // What binary was asked before has no order with this; what it is asked later ends the fill.
            let [conn, binary] = self.upstreams.both_of(home, &key);
            let may_ask = self.upstreams.conn(binary).is_idle()
                && !self.hot.table.is_suspended(ledger.now)
                && self.may_fill(hash, &key, ledger);
            if may_ask && self.upstreams.admit(conn, ledger).is_ok() {
                let number = self.hot.kernel.as_mut().expect("it was looked at").fill(hash);
                self.ask_fill(conn, &key, Who::KernelFill { hash, number }, ledger);
            }
        }
    }

    /// A home has answered; nothing if its connection is gone.
    pub fn kernel_filled(&mut self, hash: u64, number: u64, reply: &[u8], ledger: &Ledger) {
        if let Some(kernel) = &mut self.hot.kernel {
            kernel.filled(hash, number, Item::parse(reply), ledger.now);
        }
    }
}

/// Appends what stores a copy.
fn push_copy(out: &mut Vec<u8>, name: &[u8], item: &Item<'_>) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(name);
    for number in [item.flags.into(), item.seconds as u64, item.value.len() as u64] {
        out.push(b' ');
        push_u64(out, number);
    }
    for part in [b"\r\n", item.value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}
