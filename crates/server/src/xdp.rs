//! The kernel's data plane of a proxy: does to `mbal_xdp` what `mbal_proxy` asks for, and finds the way to each upstream.
//!
//! ```text
//!   mbal-proxy       Ring, Put, Forget ──► packet program ◄── reads of clients
//!   mbal-xdp         settles what is forgotten, then KernelForgot; fetches samples
//!   mbal-xdp-ways    asks upstreams by UDP, and the kernel for their hardware addresses
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, process, thread};

use mbal_locks::{Mutex, ranks};
use mbal_proxy::{Distribution, Event, KernelChange, Point, Settings};
use mbal_reactor::{Clock, KernelPlane, Mailbox, ProxyLetter};
use mbal_routing::Continuum;
use mbal_xdp::{ANSWER_BYTES_MAX, Error, Mode, Plane, Rule, Service, Upstream, neighbours, now_ns};

use crate::page::Page;
use crate::{StartError, XdpConfig, log};

/// An upstream that does not answer so many datagrams, for so long each, is not reached.
const TRIES: usize = 3;
const PATIENCE: Duration = Duration::from_millis(300);
/// Upstreams are asked so often.
const ASKS: Duration = Duration::from_secs(2);
/// Samples are fetched so often: the ring buffer has room for 3,900.
const FETCHES: Duration = Duration::from_millis(50);
const EX_OSERR: i32 = 71;

/// `version`, in a datagram of its own.
const QUESTION: &[u8] = b"\0\x01\0\0\0\x01\0\0version\r\n";

/// The plane, at its interface.
pub(crate) struct Xdp {
    shared: Arc<Shared>,
    samples: bool,
}

struct Shared {
    plane: Plane,
    config: XdpConfig,
    service: SocketAddrV4,
    ways: Mutex<ranks::XdpWays, Ways>,
}

/// Where reads go.
struct Ways {
    continuum: Continuum,
    /// In the order of the ring, and whether they serve.
    upstreams: Vec<(SocketAddr, bool)>,
    /// Hardware addresses of those that answer by UDP.
    reached: BTreeMap<SocketAddrV4, [u8; 6]>,
}

impl Xdp {
    /// Loads the packet program, and attaches it. `udp` is where the proxy receives datagrams.
    pub fn attach(
        config: XdpConfig,
        udp: &[SocketAddr],
        upstreams: &[SocketAddr],
        settings: &Settings,
    ) -> Result<Xdp, StartError> {
        let refused = |why: String| StartError::Xdp(format!("--xdp {}: {why}", config.interface));
        let service = match udp {
            [SocketAddr::V4(at)] if !at.ip().is_unspecified() && !at.ip().is_loopback() => *at,
            _ => {
                let why =
                    "needs -U, and -l with the IPv4 address that clients send to, which is one";
                return Err(refused(why.into()));
            }
        };
        let hash = match settings.distribution {
            Distribution::Ketama(dialect, hash) => hash.unwrap_or(dialect.hash()),
            Distribution::Modula(_) => {
                return Err(refused("--placement modula has no ring".into()));
            }
        };
        let mac = neighbours::own(&config.interface).map_err(|why| match why.raw_os_error() {
            None => refused("no such interface".into()),
            Some(_) => refused(format!("no such interface: {why}")),
        })?;
        let sampling = settings.replication.map_or(0.0, |replication| replication.sampling);
        let sample = if sampling > 0.0 { (1.0 / sampling) as u32 } else { 0 };
        let service_of = Service { address: service, mac, hash, sample };
        let mut plane = Plane::load(service_of).map_err(|why| refused(told(&why)))?;
        let asked: BTreeSet<SocketAddrV4> = upstreams.iter().filter_map(v4).collect();
        let answering = answering(&asked).map_err(StartError::System)?;
        if answering.is_empty() {
            let why = "no upstream answers by UDP: start memcached with -U, at the same port";
            return Err(refused(why.into()));
        }
        if let Err(native) = plane.attach(&config.interface, Mode::Native) {
            plane.attach(&config.interface, Mode::Generic).map_err(|why| refused(told(&why)))?;
            let text = format!(
                "mbal proxy: --xdp {}: its driver has no XDP, so the kernel runs the program behind it, slower: {}",
                config.interface,
                told(&native)
            );
            log::warn("xdp_generic", &text);
        }
        let ways = Ways { continuum: nowhere(), upstreams: Vec::new(), reached: BTreeMap::new() };
        let shared = Arc::new(Shared { plane, config, service, ways: Mutex::new(ways) });
        let known = shared.ways_to(&asked, &answering).map_err(StartError::System)?;
        shared.ways.lock().reached = known;
        for missing in upstreams
            .iter()
            .filter(|at| v4(at).is_none_or(|at| !shared.ways.lock().reached.contains_key(&at)))
        {
            shared.warn_of(missing);
        }
        Ok(Xdp { shared, samples: sample > 0 })
    }

    pub fn answer_bytes_max(&self) -> usize {
        ANSWER_BYTES_MAX
    }

    /// Starts the threads beside the proxy's; what the proxy's tells its changes to.
    pub fn start(&self, mailbox: Mailbox<ProxyLetter>, clock: Clock) -> io::Result<KernelPlane> {
        let (forget, forgotten) = mpsc::channel();
        let (shared, samples) = (Arc::clone(&self.shared), self.samples);
        thread::Builder::new()
            .name("mbal-xdp".into())
            .spawn(move || shared.settle(&forgotten, samples, &mailbox, clock))?;
        let weak = Arc::downgrade(&self.shared);
        thread::Builder::new().name("mbal-xdp-ways".into()).spawn(move || look_for_ways(&weak))?;
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(move |changes, addresses| {
            for change in changes {
                match change {
                    KernelChange::Ring { points, upstreams } => {
                        let at = upstreams.iter().map(|one| (addresses[one.number], one.serves));
                        shared.change_ring(points, at.collect());
                    }
                    KernelChange::Forget { key, number } => {
                        shared.plane.retract(&key);
                        forget.send(number).expect("its thread ends after this one");
                    }
                    KernelChange::Put { key, flags, value, lives } => {
                        let until_ns = now_ns() + lives.as_nanos() as u64;
                        let rule = Rule::Answer { flags, value: &value, until_ns };
                        // Without room for it, its reads go to the upstream.
                        match shared.plane.put(&key, rule) {
                            Ok(()) | Err(Error::HotFull) => {}
                            Err(why) => fail(&why),
                        }
                    }
                }
            }
        }))
    }

    /// What became of packets, and where the way to an upstream is known.
    pub fn page(&self) -> String {
        let mut page = Page::default();
        let Ok(all) = self.shared.plane.counters() else { return page.text };
        let became = [
            ("forwarded", all.forwarded),
            ("answered", all.answered),
            ("not_for_the_service", all.foreign),
            ("unusual", all.unusual),
            ("not_a_get_of_one_key", all.other),
            ("no_way", all.unready),
        ];
        let labels = became.map(|(name, count)| ([("became", name)], count));
        let rows: Vec<(&[(&str, &str)], u64)> =
            labels.iter().map(|(label, count)| (&label[..], *count)).collect();
        let help = "Packets that the kernel's data plane saw.";
        page.counter("mbal_proxy_xdp_packets_total", help, &rows);
        let help =
            "Reads of hot keys for whose answer the packet had no room: they were forwarded.";
        page.counter("mbal_proxy_xdp_cramped_total", help, &[(&[], all.cramped)]);
        let help = "Samples of keys that nobody fetched in time.";
        page.counter("mbal_proxy_xdp_samples_lost_total", help, &[(&[], all.lost)]);
        let reached = self.shared.ways.lock().reached.len() as u64;
        let help = "Upstreams to which the kernel sends reads.";
        page.gauge("mbal_proxy_xdp_upstreams_reached", help, &[(&[], reached)]);
        page.text
    }
}

impl Shared {
    fn change_ring(&self, points: Vec<Point>, upstreams: Vec<(SocketAddr, bool)>) {
        let mut ways = self.ways.lock();
        ways.continuum = Continuum::new(points).unwrap_or_else(|why| {
            let text = format!("mbal proxy: the kernel sends no reads on: {why}");
            log::warn("xdp_ring_refused", &text);
            nowhere()
        });
        ways.upstreams = upstreams;
        self.apply(&ways);
    }

    /// When this returns, reads go by these ways alone.
    fn apply(&self, ways: &Ways) {
        let upstream = |(at, serves): &(SocketAddr, bool)| {
            let own = v4(at);
            let mac = own.filter(|_| *serves).and_then(|at| ways.reached.get(&at).copied());
            let address = match self.config.direct_return {
                true => self.service,
                false => own.unwrap_or(self.service),
            };
            Upstream { address, mac }
        };
        let upstreams: Vec<Upstream> = ways.upstreams.iter().map(upstream).collect();
        let updated = match self.plane.update_ring(&ways.continuum, &upstreams) {
            Err(why @ Error::Upstreams(_)) => {
                let text = format!("mbal proxy: the kernel sends no reads on: {why}");
                log::warn("xdp_ring_refused", &text);
                self.plane.update_ring(&nowhere(), &[Upstream { address: self.service, mac: None }])
            }
            updated => updated,
        };
        updated.unwrap_or_else(|why| fail(&why));
    }

    /// Waits until nothing is on its way that was answered by what is forgotten, and tells the proxy; and of samples.
    fn settle(
        &self,
        forgotten: &Receiver<u64>,
        samples: bool,
        mailbox: &Mailbox<ProxyLetter>,
        clock: Clock,
    ) {
        loop {
            let first = match samples {
                true => forgotten.recv_timeout(FETCHES),
                false => forgotten.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match first {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
                // One wait is for all of them.
                Ok(first) => {
                    let number = forgotten.try_iter().fold(first, u64::max);
                    self.plane.settle().unwrap_or_else(|why| fail(&why));
                    let work = move |proxy: &mut mbal_proxy::Proxy| {
                        proxy.handle(clock.now(), Event::KernelForgot { number });
                    };
                    mailbox.post(ProxyLetter::Do(Box::new(work)));
                }
            }
            let mut keys: Vec<Box<[u8]>> = Vec::new();
            self.plane.samples(|sample| keys.push(sample.key.into()));
            if !keys.is_empty() {
                let work = move |proxy: &mut mbal_proxy::Proxy| {
                    let now = clock.now();
                    keys.iter().for_each(|key| proxy.handle(now, Event::Sampled { key }));
                };
                mailbox.post(ProxyLetter::Do(Box::new(work)));
            }
        }
    }

    /// Hardware addresses of those that answer, as far as they are known.
    fn ways_to(
        &self,
        asked: &BTreeSet<SocketAddrV4>,
        answering: &BTreeSet<SocketAddrV4>,
    ) -> io::Result<BTreeMap<SocketAddrV4, [u8; 6]>> {
        let mut known = BTreeMap::new();
        for at in asked.intersection(answering) {
            if let Some(mac) = neighbours::look_up(&self.config.interface, *at.ip())? {
                known.insert(*at, mac);
            }
        }
        Ok(known)
    }

    fn warn_of(&self, upstream: &SocketAddr) {
        let text = format!(
            "mbal proxy: {upstream} does not answer by UDP, or not through {}: reads of its keys pass to the sockets",
            self.config.interface
        );
        log::warn("xdp_upstream_not_reached", &text);
    }

    /// Asks all upstreams, and changes the ring if the ways to them have changed.
    fn look(&self) -> io::Result<()> {
        let asked: BTreeSet<SocketAddrV4> =
            self.ways.lock().upstreams.iter().filter_map(|(at, _)| v4(at)).collect();
        let known = self.ways_to(&asked, &answering(&asked)?)?;
        let mut ways = self.ways.lock();
        if ways.reached != known {
            let lost = ways.reached.keys().filter(|at| !known.contains_key(at));
            lost.filter(|at| asked.contains(at)).for_each(|at| self.warn_of(&(*at).into()));
            ways.reached = known;
            self.apply(&ways);
        }
        Ok(())
    }
}

fn look_for_ways(shared: &Weak<Shared>) {
    loop {
        thread::sleep(ASKS);
        let Some(shared) = shared.upgrade() else { return };
        if let Err(why) = shared.look() {
            log::warn("xdp_ways_not_known", &format!("mbal proxy: --xdp: {why}"));
        }
    }
}

/// Those that answer a datagram.
fn answering(asked: &BTreeSet<SocketAddrV4>) -> io::Result<BTreeSet<SocketAddrV4>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let mut heard = BTreeSet::new();
    let mut reply = [0; 512];
    for _ in 0..TRIES {
        for at in asked.difference(&heard) {
            // One that cannot be sent is lost, as any may be.
            drop(socket.send_to(QUESTION, at));
        }
        let until = Instant::now() + PATIENCE;
        while heard.len() < asked.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            if let Ok((count, SocketAddr::V4(from))) = socket.recv_from(&mut reply) {
                let is_reply =
                    reply[..count].get(8..).is_some_and(|text| text.starts_with(b"VERSION"));
                if is_reply && asked.contains(&from) {
                    heard.insert(from);
                }
            }
        }
    }
    Ok(heard)
}

fn v4(at: &SocketAddr) -> Option<SocketAddrV4> {
    match at {
        SocketAddr::V4(at) => Some(*at),
        SocketAddr::V6(_) => None,
    }
}

/// A ring whose only upstream cannot be reached.
fn nowhere() -> Continuum {
    Continuum::new(vec![Point { at: 0, upstream: 0 }]).expect("it has a point")
}

/// What the kernel answers cannot be changed any more. With the process the program goes, so nothing stale is read.
fn fail(why: &Error) -> ! {
    log::error("xdp_failed", &format!("mbal proxy: ends, as --xdp failed: {}", told(why)));
    process::exit(EX_OSERR)
}

/// With all that caused it, and what helps.
fn told(error: &Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    let mut is_denied = false;
    while let Some(why) = cause {
        if !text.contains(&why.to_string()) {
            text += &format!(": {why}");
        }
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        is_denied |= why.downcast_ref().is_some_and(denied);
        cause = why.source();
    }
    if is_denied {
        text +=
            "\nroot may load packet programs, or who has CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";
    }
    text
}
