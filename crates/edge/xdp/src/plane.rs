//! The packet program, loaded: its ring, its hot keys, what it counts.

use std::fmt;
use std::io;
use std::net::SocketAddrV4;
use std::sync::atomic::Ordering::{Acquire, Release};

use aya::maps::{Array, ArrayOfMaps, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::{ProgramError, TestRun, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};
use mbal_locks::{Mutex, ranks};
use mbal_routing::ketama::KeyHash;
use mbal_routing::{Continuum, Point};

use crate::hot::{HotTable, Rule};
use crate::layout::{Rings, Tally, UPSTREAMS_MAX, UpstreamEntry, difference, words};
use crate::map::Mapped;

static PROGRAM: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/plane.o"));

#[derive(Debug)]
pub enum Error {
    /// The kernel or the object file.
    Load(EbpfError),
    Program(ProgramError),
    Map(MapError),
    Io(io::Error),
    /// More than 256.
    Upstreams(usize),
    /// Not 1 to 250 bytes.
    KeyLength(usize),
    /// An answer that does not fit one datagram.
    AnswerLength(usize),
    /// There is no room for a key of this hash.
    HotFull,
    /// Too dear for a packet, or not what twemproxy's clients use.
    Hash(KeyHash),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Load(error) => write!(f, "the packet program cannot be loaded: {error}"),
            Error::Program(error) => write!(f, "the packet program cannot be run: {error}"),
            Error::Map(error) => write!(f, "a map of the packet program: {error}"),
            Error::Io(error) => write!(f, "a map of the packet program: {error}"),
            Error::Upstreams(count) => write!(f, "{count} upstreams, at most {UPSTREAMS_MAX}"),
            Error::KeyLength(bytes) => write!(f, "a key of {bytes} bytes"),
            Error::AnswerLength(bytes) => write!(f, "an answer of {bytes} bytes"),
            Error::Hash(hash) => write!(f, "keys hashed by {hash:?}: murmur or fnv1a_64 can be"),
            Error::HotFull => write!(f, "no room for another hot key of this hash"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Load(error) => error.source(),
            Error::Program(error) => error.source(),
            Error::Map(error) => error.source(),
            Error::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Error {
        Error::Map(error)
    }
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        Error::Program(error)
    }
}

/// What clients send to, and how their keys are hashed.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    pub address: SocketAddrV4,
    /// Of the interface. A bridge shows it packets for others, those that were forwarded among them.
    pub mac: [u8; 6],
    pub hash: KeyHash,
    /// One key of so many is told to [`Plane::samples`]; 0 is none.
    pub sample: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Upstream {
    pub address: SocketAddrV4,
    /// Of the next hop to it, on the interface. Without it, reads of its keys pass to the sockets.
    pub mac: Option<[u8; 6]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel makes anything of a packet.
    Native,
    /// Behind the driver: slow, but any interface can do it.
    Generic,
}

/// Packets since the program was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub forwarded: u64,
    pub answered: u64,
    /// Passed: not for the service.
    pub foreign: u64,
    /// Passed: IP options, fragments, bad lengths, requests in several datagrams.
    pub unusual: u64,
    /// Passed: not a get of one key.
    pub other: u64,
    /// Passed: of keys with [`Rule::Pass`].
    pub by_rule: u64,
    /// Passed: no way to the upstream is known.
    pub unready: u64,
    /// Forwarded, because the key's answer was too old.
    pub expired: u64,
    /// Forwarded, because the interface's driver left no room for the key's answer.
    pub cramped: u64,
    pub sampled: u64,
    /// Samples that nobody fetched in time.
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    pub hash: u32,
    pub key: &'a [u8],
}

/// What came of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// XDP's: 1 dropped, 2 passed, 3 sent from where it came.
    pub verdict: u32,
    pub packet: Vec<u8>,
    /// The mean of all repetitions, as the kernel measures it.
    pub ns: u64,
}

/// Detached when it is dropped, and by the kernel when its process ends in any way. Threads may share it.
pub struct Plane {
    ebpf: Ebpf,
    service: SocketAddrV4,
    rings: Mutex<ranks::XdpRings, Mapped<Rings>>,
    hot: Mutex<ranks::XdpHot, HotTable>,
    tallies: PerCpuArray<MapData, Tally>,
    samples: Mutex<ranks::XdpSamples, RingBuf<MapData>>,
    fence: Mutex<ranks::XdpFence, Fence>,
}

impl Plane {
    /// At no interface yet.
    pub fn load(service: Service) -> Result<Plane, Error> {
        Plane::load_program(PROGRAM, service)
    }

    /// Of another object file: tests load programs with mistakes.
    pub fn load_program(program: &[u8], service: Service) -> Result<Plane, Error> {
        let addr = u32::from_ne_bytes(service.address.ip().octets());
        let port = service.address.port().to_be();
        let hash: u32 = match service.hash {
            KeyHash::Murmur => 0,
            KeyHash::Fnv1a64 => 1,
            other => return Err(Error::Hash(other)),
        };
        let sample_below = match service.sample {
            0 => 0,
            one_in => u32::MAX / one_in,
        };
        let [a, b, c, d, e, f] = service.mac;
        let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        let mut ebpf = EbpfLoader::new()
            .override_global("service_mac", &mac, true)
            .override_global("service_addr", &addr, true)
            .override_global("service_port", &port, true)
            .override_global("key_hash", &hash, true)
            .override_global("sample_below", &sample_below, true)
            .load(program)
            .map_err(Error::Load)?;
        for name in ["plane", "nothing"] {
            program_of(&mut ebpf, name).load()?;
        }
        let mut map = |name| ebpf.take_map(name).expect("the packet program has these maps");
        let fence = Fence { outer: map("fence").try_into()?, token: map("token").try_into()? };
        let tallies = PerCpuArray::try_from(map("tallies"))?;
        let samples = RingBuf::try_from(map("samples"))?;
        let (Map::Array(rings), Map::Array(hots)) = (map("rings"), map("hots")) else {
            panic!("both are arrays in the packet program");
        };
        let (rings, hot) = (Mapped::new(&rings)?, HotTable::new(&hots, service.hash)?);
        Ok(Plane {
            ebpf,
            service: service.address,
            rings: Mutex::new(rings),
            hot: Mutex::new(hot),
            tallies,
            samples: Mutex::new(samples),
            fence: Mutex::new(fence),
        })
    }

    /// From here on packets that arrive at the interface are seen.
    pub fn attach(&mut self, interface: &str, mode: Mode) -> Result<(), Error> {
        self.attach_program("plane", interface, mode)
    }

    /// A program that does nothing, at the other end of the interface's veth pair: that end takes what the plane sends only if it
    /// runs one. Real interfaces need none.
    pub fn attach_nothing(&mut self, interface: &str) -> Result<(), Error> {
        self.attach_program("nothing", interface, Mode::Native)
    }

    fn attach_program(&mut self, name: &str, interface: &str, mode: Mode) -> Result<(), Error> {
        let mode = match mode {
            Mode::Native => XdpMode::Driver,
            Mode::Generic => XdpMode::Skb,
        };
        program_of(&mut self.ebpf, name).attach(interface, mode)?;
        Ok(())
    }

    /// Each packet goes by the old ring or by the new one; when this returns, by the new one.
    ///
    /// # Panics
    /// If a point names an upstream, by its place in the list, that is not there.
    pub fn update_ring(&self, continuum: &Continuum, upstreams: &[Upstream]) -> Result<(), Error> {
        if upstreams.len() > UPSTREAMS_MAX {
            return Err(Error::Upstreams(upstreams.len()));
        }
        let known = |point: &Point| (point.upstream as usize) < upstreams.len();
        assert!(continuum.points().iter().all(known), "each point is of an upstream");
        let locked = self.rings.lock();
        let rings = locked.get();
        self.settle()?;
        // SAFETY: the ring that is not active was used last by programs that began before `settle`. A continuum is never longer
        // than the arrays, which have its bounds.
        unsafe {
            let next = 1 - ((*rings).active.load(Acquire) & 1);
            let ring = &raw mut (*rings).ring[next as usize];
            (&raw mut (*ring).shift).write(continuum.shift());
            let first = (&raw mut (*ring).first).cast::<u16>();
            first.copy_from_nonoverlapping(continuum.first().as_ptr(), continuum.first().len());
            let points = (&raw mut (*ring).points).cast::<[u32; 2]>();
            for (at, point) in continuum.points().iter().enumerate() {
                points.add(at).write(words(point));
            }
            let entries = (&raw mut (*ring).upstreams).cast::<UpstreamEntry>();
            entries.write_bytes(0, UPSTREAMS_MAX);
            for (at, upstream) in upstreams.iter().enumerate() {
                entries.add(at).write(self.entry(upstream));
            }
            (*rings).active.store(next, Release);
        }
        self.settle()
    }

    fn entry(&self, upstream: &Upstream) -> UpstreamEntry {
        let Some(mac) = upstream.mac else { return UpstreamEntry::default() };
        let words = |address: &SocketAddrV4| (address.ip().octets(), address.port().to_be_bytes());
        let ((old_addr, old_port), (addr, port)) = (words(&self.service), words(&upstream.address));
        UpstreamEntry {
            mac,
            port,
            addr,
            ip_difference: difference(&old_addr, &addr),
            udp_difference: difference(
                &[&old_addr[..], &old_port].concat(),
                &[&addr[..], &port].concat(),
            ),
        }
    }

    /// The key's reads follow this rule from here on. A key that had one gets the new one.
    ///
    /// # Errors
    /// `KeyLength` and `AnswerLength` if it does not fit, `HotFull` if there are too many: then an older rule stands.
    pub fn put(&self, key: &[u8], rule: Rule<'_>) -> Result<(), Error> {
        if self.hot.lock().must_settle() {
            self.settle()?;
        }
        self.hot.lock().put(key, rule)
    }

    /// The key is like any other again, and nothing that was answered by its rule is still on its way through this host's
    /// kernel. Waits for that: some milliseconds. False if it had no rule.
    pub fn remove(&self, key: &[u8]) -> Result<bool, Error> {
        let was = self.retract(key);
        self.settle()?;
        Ok(was)
    }

    /// The first half of [`Plane::remove`], which does not wait: packets that are seen after this find no rule.
    pub fn retract(&self, key: &[u8]) -> bool {
        self.hot.lock().retract(key)
    }

    /// The second half, for all that was retracted before it is called.
    pub fn settle(&self) -> Result<(), Error> {
        let limbo = self.hot.lock().limbo();
        self.fence.lock().wait()?;
        self.hot.lock().settled(limbo);
        Ok(())
    }

    /// A mistake that tests have to find: places are used again while programs may read them.
    #[cfg(feature = "planted")]
    pub fn settle_without_waiting(&self) {
        let limbo = self.hot.lock().limbo();
        self.hot.lock().settled(limbo);
    }

    /// The key is answered until then. False if it has no rule.
    pub fn renew(&self, key: &[u8], until_ns: u64) -> bool {
        self.hot.lock().renew(key, until_ns)
    }

    pub fn counters(&self) -> Result<Counters, Error> {
        let mut sum = Counters::default();
        for tally in self.tallies.get(&0, 0)?.iter() {
            sum.forwarded += tally.forwarded;
            sum.answered += tally.answered;
            sum.foreign += tally.foreign;
            sum.unusual += tally.unusual;
            sum.other += tally.other;
            sum.by_rule += tally.by_rule;
            sum.unready += tally.unready;
            sum.expired += tally.expired;
            sum.cramped += tally.cramped;
            sum.sampled += tally.sampled;
            sum.lost += tally.lost;
        }
        Ok(sum)
    }

    /// The keys that were sampled since it was asked last.
    pub fn samples(&self, mut see: impl FnMut(Sample<'_>)) {
        let mut samples = self.samples.lock();
        while let Some(record) = samples.next() {
            let word = |at| u32::from_ne_bytes(record[at..at + 4].try_into().expect("four bytes"));
            see(Sample { hash: word(0), key: &record[8..8 + word(4) as usize] });
        }
    }

    /// Shows a packet to the program, as an interface would: for tests and figures.
    pub fn run(&self, packet: &[u8], repeat: u32) -> Result<Ran, Error> {
        self.run_program("plane", packet, repeat)
    }

    /// The same with a program that does nothing: what the kernel's way of measuring costs by itself.
    pub fn run_nothing(&self, packet: &[u8], repeat: u32) -> Result<Ran, Error> {
        self.run_program("nothing", packet, repeat)
    }

    fn run_program(&self, name: &str, packet: &[u8], repeat: u32) -> Result<Ran, Error> {
        let program = self.ebpf.program(name).expect("the packet program has these programs");
        let program: &Xdp = program.try_into()?;
        let mut out = vec![0; 4096];
        let ran = program.test_run(TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            repeat,
            ..TestRunOptions::new()
        })?;
        out.truncate(ran.data_size_out as usize);
        Ok(Ran { verdict: ran.return_value, packet: out, ns: ran.duration.as_nanos() as u64 })
    }
}

fn program_of<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut Xdp {
    let program = ebpf.program_mut(name).expect("the packet program has these programs");
    program.try_into().expect("all are for XDP")
}

/// Waits for programs that run.
struct Fence {
    outer: ArrayOfMaps<MapData, Array<MapData, u32>>,
    token: Array<MapData, u32>,
}

impl Fence {
    /// Returns when no program runs that ran when it was called, and what those sent has been handed to the driver.
    ///
    /// An update of a map of maps does so in all kernels since 4.20: bpf(2) returns after an RCU grace period, and XDP programs
    /// run in a read-side section that ends after the driver was told of their packets.
    fn wait(&mut self) -> Result<(), Error> {
        self.outer.set(0, &self.token, 0)?;
        Ok(())
    }
}

/// Of the monotonic clock, which the packet program reads.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is where the kernel may write.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    assert_eq!(code, 0, "Linux has this clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
