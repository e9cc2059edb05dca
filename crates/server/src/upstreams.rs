//! Which upstreams a proxy has, and where they are dialed: as they are at its start, and again whenever they may have changed.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{io, thread};

use mbal_proxy::{CopiedKey, PoolTold, RingServer, Slots, SwitchTask, SwitchWork};
use mbal_reactor::{Mailbox, NOWHERE, ProxyLetter, process};

use crate::log;
use crate::switch_file::UpstreamsFile;

/// More in a pool are a mistake of whoever lists them.
const UPSTREAMS_MAX: usize = 4096;

/// Says which upstreams there are, in the order of the pool; and of a cluster who has which keys, and which have copies.
pub type Source = Box<dyn FnMut() -> Result<PoolTold, String> + Send>;

type Placed = (RingServer, SocketAddr);

/// The upstreams of a proxy, and who says what they are.
pub struct Upstreams {
    source: Source,
    known: Vec<Placed>,
    slots: Option<Slots>,
    copies: Vec<CopiedKey>,
    /// Why they could not be read the last time.
    failed: Option<String>,
    /// They are what they were at the start.
    stay: bool,
    /// When names were looked up last.
    named_at: Instant,
    /// Where the list is, if a switch may change it.
    file: Option<UpstreamsFile>,
    /// A switch is under way: no other list is followed.
    is_held: bool,
}

impl Upstreams {
    /// As they are now.
    pub fn read(mut source: Source) -> Result<Upstreams, String> {
        let PoolTold { servers, slots, .. } = source()?;
        let known = placed(servers, &[], look_up)?;
        for (server, _) in known.iter().filter(|(_, at)| *at == NOWHERE) {
            warn_of_name(server);
        }
        let named_at = Instant::now();
        let (failed, stay, file, is_held) = (None, false, None, false);
        let copies = Vec::new();
        Ok(Upstreams { source, known, slots, copies, failed, stay, named_at, file, is_held })
    }

    /// A switch may change the list, which is this file's; one is under way if `is_held`.
    pub fn with_file(mut self, file: UpstreamsFile, is_held: bool) -> Upstreams {
        (self.file, self.is_held) = (Some(file), is_held);
        self
    }

    /// Does what a switch of the pool needs.
    fn switch(
        &mut self,
        work: SwitchWork,
        mailbox: &Mailbox<ProxyLetter>,
        descriptors: Descriptors,
    ) -> Result<(), String> {
        let file = self.file.clone().ok_or("it has no --upstreams-file")?;
        let placed = |known: &[Placed], list: &[RingServer]| {
            placed(list.to_vec(), known, look_up).and_then(|next| all_known(next, known))
        };
        match work {
            SwitchWork::Resolve(list) => {
                for (server, at) in placed(&self.known, &list)? {
                    if !self.known.iter().any(|(other, _)| is_at(other, &server)) {
                        is_reached(&server, at)?;
                    }
                }
                file.is_writable()
            }
            SwitchWork::Record(list) => {
                file.set_record(&list)?;
                self.is_held = true;
                log::info("resize_holds", "mbal proxy: a resize is about to change the upstreams");
                Ok(())
            }
            SwitchWork::Follow(list) => {
                let next = placed(&self.known, &list)?;
                self.follow(next, mailbox, descriptors);
                Ok(())
            }
            SwitchWork::Save(list) => {
                file.save(&list)?;
                self.is_held = false;
                log::info(
                    "resize_over",
                    "mbal proxy: the resize is over: it has the new upstreams",
                );
                Ok(())
            }
            SwitchWork::Restore(list) => {
                if self.servers() != list {
                    let next = placed(&self.known, &list)?;
                    self.follow(next, mailbox, descriptors);
                }
                file.forget()?;
                self.is_held = false;
                log::info("resize_undone", "mbal proxy: the resize was taken back");
                Ok(())
            }
        }
    }

    /// They do not change any more: other proxies take them for what they were.
    pub(crate) fn stay(&mut self) {
        self.stay = true;
    }

    pub fn servers(&self) -> Vec<RingServer> {
        self.known.iter().map(|(server, _)| server.clone()).collect()
    }

    /// Of a cluster.
    pub fn slots(&self) -> Option<Slots> {
        self.slots.clone()
    }

    /// Where each is dialed.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.known.iter().map(|(_, address)| *address).collect()
    }

    /// Reads them again, if they can be read, and tells a proxy of those that have changed.
    fn again(&mut self, mailbox: &Mailbox<ProxyLetter>, descriptors: Descriptors) {
        if self.stay {
            let text =
                "mbal proxy: with --peers the upstreams stay as they are until it starts again";
            return log::warn("upstreams_not_read", text);
        }
        if self.is_held {
            let text = "mbal proxy: the upstreams stay as they are until a resize is over: \
                        run mbal pool resize again";
            return log::warn("upstreams_not_read", text);
        }
        let before = &self.known;
        let known = self.servers();
        let next = |told: PoolTold| {
            // A map comes twice a second: names are looked up when they are others, and when a connection fails.
            if told.slots.is_some() && told.servers == known {
                return Ok((before.clone(), told.slots, told.copies));
            }
            let next = placed(told.servers, before, look_up)?;
            Ok((all_known(next, before)?, told.slots, told.copies))
        };
        let (next, slots, copies) = match (self.source)().and_then(next) {
            Ok(next) => next,
            Err(why) => {
                let text = format!("mbal proxy: the upstreams stay as they are: {why}");
                // Once, however often they are looked for.
                if self.failed.replace(why.clone()) != Some(why) {
                    log::warn("upstreams_not_read", &text);
                }
                return;
            }
        };
        self.failed = None;
        let (has_new_map, has_new_copies) = (slots != self.slots, copies != self.copies);
        (self.slots, self.copies) = (slots, copies.clone());
        if !self.follow_all(next, has_new_map, mailbox, descriptors) && has_new_copies {
            mailbox.post(ProxyLetter::Do(Box::new(move |proxy| proxy.know_copies(copies))));
        }
    }

    /// Looks the names of those up that there are: one has failed, and may be elsewhere now.
    fn name_again(&mut self, mailbox: &Mailbox<ProxyLetter>, descriptors: Descriptors) {
        if self.named_at.elapsed() < NAMES_EVERY {
            return;
        }
        let next = placed(self.servers(), &self.known, look_up);
        self.named_at = Instant::now();
        let Ok(mut next) = next else { return };
        if self.stay {
            // Other proxies take them for what they were.
            let known = self.known.iter();
            next = next
                .into_iter()
                .zip(known)
                .map(|(new, old)| if old.1 == NOWHERE { new } else { old.clone() })
                .collect();
        }
        self.follow(next, mailbox, descriptors);
    }

    fn follow(
        &mut self,
        next: Vec<Placed>,
        mailbox: &Mailbox<ProxyLetter>,
        descriptors: Descriptors,
    ) {
        self.follow_all(next, false, mailbox, descriptors);
    }

    /// Likewise, with another map. False if nothing has changed.
    fn follow_all(
        &mut self,
        next: Vec<Placed>,
        has_new_map: bool,
        mailbox: &Mailbox<ProxyLetter>,
        descriptors: Descriptors,
    ) -> bool {
        let before = &self.known;
        if next == *before && !has_new_map {
            return false;
        }
        let wanted = descriptors.for_upstreams(next.len());
        if process::raise_descriptor_limit(wanted).is_ok_and(|limit| limit < wanted) {
            let text = format!("mbal proxy: {wanted} descriptors are more than there may be");
            log::warn("few_descriptors", &text);
        }
        let missing = |from: &[Placed], in_: &[Placed]| {
            let is_in = |(one, at): &&Placed| {
                let is_its = |(other, there): &Placed| is_at(other, one) && there == at;
                !in_.iter().any(is_its)
            };
            from.iter().filter(is_in).count()
        };
        let (came, left) = (missing(&next, before), missing(before, &next));
        let count = next.len();
        if next != *before {
            let text = format!("mbal proxy: {count} upstreams; {came} came, {left} left");
            log::info("upstreams_changed", &text);
        }
        let (servers, addresses) = next.iter().cloned().unzip();
        let pool = PoolTold { servers, slots: self.slots.clone(), copies: self.copies.clone() };
        mailbox.post(ProxyLetter::Upstreams(pool, addresses));
        self.known = next;
        true
    }
}

/// Descriptors that a proxy needs.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    pub clients: u64,
    pub conns_per_server: u64,
}

/// Beside those of clients and upstreams.
const BESIDE: u64 = 128;

impl Descriptors {
    /// Text and binary have connections of their own.
    pub fn for_upstreams(&self, upstreams: usize) -> u64 {
        self.clients + 2 * upstreams as u64 * self.conns_per_server + BESIDE
    }
}

/// Starts the thread that reads upstreams again, whenever it is told to and so often, and tells a proxy. To read may take seconds.
pub(crate) fn follow(
    mut upstreams: Upstreams,
    asked: Receiver<Look>,
    names_asked: Arc<AtomicBool>,
    mailbox: Mailbox<ProxyLetter>,
    descriptors: Descriptors,
    poll: Option<Duration>,
) -> io::Result<()> {
    let work = move || {
        let mut polled = Instant::now();
        loop {
            let look = match poll {
                Some(every) => asked.recv_timeout(every.saturating_sub(polled.elapsed())),
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match look {
                Ok(Look::Names) => {
                    names_asked.store(false, Relaxed);
                    upstreams.name_again(&mailbox, descriptors);
                }
                Ok(Look::Switch(SwitchTask { number, work })) => {
                    let result = upstreams.switch(work, &mailbox, descriptors);
                    // Behind the list, if there is one.
                    mailbox.post(ProxyLetter::Do(Box::new(move |proxy| {
                        let now = proxy.now();
                        proxy.switch_done(now, number, result);
                    })));
                }
                Ok(Look::All) | Err(RecvTimeoutError::Timeout) => {
                    polled = Instant::now();
                    upstreams.again(&mailbox, descriptors);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    thread::Builder::new().name("mbal-upstreams".into()).spawn(work)?;
    Ok(())
}

/// What is looked for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Which upstreams there are, and where.
    All,
    /// Where they are.
    Names,
    /// Nothing: something is to be done for a switch of the pool.
    Switch(SwitchTask),
}

/// A newcomer that nobody knows is a slip of the pen, or comes later.
fn all_known(next: Vec<Placed>, before: &[Placed]) -> Result<Vec<Placed>, String> {
    let was_there = |server: &RingServer| before.iter().any(|(other, _)| is_at(other, server));
    match next.iter().find(|(server, at)| *at == NOWHERE && !was_there(server)) {
        Some((server, _)) => Err(format!("{}: nobody knows this host", server.host)),
        None => Ok(next),
    }
}

/// Names are looked up so often at most.
const NAMES_EVERY: Duration = Duration::from_secs(1);
/// A server that comes is there by then.
const REACHED_WITHIN: Duration = Duration::from_secs(1);
/// So many questions wait for an answer.
pub(crate) const LOOKS_MAX: usize = 16;

/// Whether a server that comes can be reached from here: clients would hear errors.
fn is_reached(server: &RingServer, at: SocketAddr) -> Result<(), String> {
    let reached = TcpStream::connect_timeout(&at, REACHED_WITHIN);
    reached.map(drop).map_err(|why| format!("{server} cannot be reached: {why}"))
}

fn is_at(one: &RingServer, other: &RingServer) -> bool {
    (&one.host, one.port) == (&other.host, other.port)
}

fn look_up(server: &RingServer) -> io::Result<Vec<SocketAddr>> {
    Ok((server.host.as_str(), server.port).to_socket_addrs()?.collect())
}

fn warn_of_name(server: &RingServer) {
    let text = format!(
        "mbal proxy: {server} is down: nobody knows {}; it is looked up again",
        server.host
    );
    log::warn("name_unknown", &text);
}

/// Where each of a proxy's peers is dialed.
pub fn resolve(peers: Vec<RingServer>) -> Result<Vec<SocketAddr>, String> {
    let placed = placed(peers, &[], look_up)?;
    match placed.iter().find(|(_, at)| *at == NOWHERE) {
        Some((peer, _)) => Err(format!("{}: no such host", peer.host)),
        None => Ok(placed.into_iter().map(|(_, at)| at).collect()),
    }
}

/// Where each is dialed: IPv4 first, and where it was before if that is still one of its addresses, or nobody knows its name now.
fn placed(
    servers: Vec<RingServer>,
    before: &[Placed],
    look_up: impl Fn(&RingServer) -> io::Result<Vec<SocketAddr>>,
) -> Result<Vec<Placed>, String> {
    if servers.is_empty() {
        return Err("there are no upstreams".into());
    }
    if UPSTREAMS_MAX < servers.len() {
        return Err(format!("{} upstreams are more than {UPSTREAMS_MAX}", servers.len()));
    }
    let mut placed: Vec<Placed> = Vec::new();
    for server in servers {
        let is_it = |(other, _): &&Placed| is_at(other, &server);
        if placed.iter().any(|one| is_it(&one)) {
            return Err(format!("{server} is there twice"));
        }
        let found = look_up(&server).unwrap_or_default();
        let (v4, v6): (Vec<_>, Vec<_>) = found.into_iter().partition(SocketAddr::is_ipv4);
        let all: Vec<SocketAddr> = v4.into_iter().chain(v6).collect();
        let was = before.iter().find(is_it).map(|(_, at)| *at);
        let kept = was.filter(|at| all.contains(at) || all.is_empty());
        let at = kept.or(all.first().copied()).unwrap_or(NOWHERE);
        placed.push((server, at));
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(list: &[&str]) -> Vec<RingServer> {
        list.iter().map(|one| one.parse().expect("a server")).collect()
    }

    #[test]
    fn a_host_with_several_addresses_stays_where_it_was() {
        let list = servers(&["127.0.0.1:1", "localhost:2"]);
        let first = placed(list, &[], look_up).expect("they are there");
        let at = "127.0.0.9:1".parse().expect("an address");
        let before = vec![("127.0.0.1:1".parse().expect("a server"), at), first[1].clone()];
        let again = placed(servers(&["localhost:2", "127.0.0.1:1"]), &before, look_up);
        let again = again.expect("they are there");
        assert_eq!(again, [first[1].clone(), first[0].clone()]);
    }

    #[test]
    fn a_host_that_nobody_knows_is_nowhere_until_it_is_known_and_follows_its_name() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let list = || servers(&["cache-0:1"]);
        let mut known = Vec::new();
        for (answer, expected) in [
            (None, NOWHERE),
            (Some("10.0.0.1:1"), at("10.0.0.1:1")),
            // Its server of names is away.
            (None, at("10.0.0.1:1")),
            (Some("10.0.0.2:1"), at("10.0.0.2:1")),
        ] {
            let look_up = |_: &RingServer| match answer {
                Some(text) => Ok(vec![at(text)]),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            known = placed(list(), &known, look_up).expect("a pool");
            assert_eq!(known, [(list().remove(0), expected)]);
        }
    }

    #[test]
    fn a_pool_has_each_upstream_once_and_one_at_least() {
        assert_eq!(placed(Vec::new(), &[], look_up), Err("there are no upstreams".into()));
        let many = placed(servers(&["127.0.0.1:1"; 4097]), &[], look_up);
        assert_eq!(many, Err("4097 upstreams are more than 4096".into()));
        let twice = placed(servers(&["127.0.0.1:1:2", "127.0.0.1:1 a"]), &[], look_up);
        assert_eq!(twice, Err("127.0.0.1:1 is there twice".into()));
    }
}
