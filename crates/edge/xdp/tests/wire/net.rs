//! Small hosts on one machine: network namespaces at a bridge.
//!
//! ```text
//!   client 10.77.0.1 ──┐
//!   proxy  10.77.0.99 ─┤ bridge   and the service's address, 10.77.0.100, which the servers have too, at their loopback,
//!   server 10.77.0.11 ─┤          without answering ARP for it
//!   server 10.77.0.12 ─┘
//! ```

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use mbal_random::Random;
use mbal_routing::ketama::KeyHash;
use mbal_routing::{Continuum, Point};
use mbal_xdp::{Mode, Plane, Service, Upstream, neighbours};

pub const SERVERS: u32 = 2;
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 100), 11_211);

pub fn server(place: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 11 + place as u8), 11_211)
}

static NETS: AtomicU32 = AtomicU32::new(0);

pub struct Net {
    prefix: String,
    servers: Vec<Child>,
}

impl Net {
    /// `None` where this cannot be had: not root, no memcached.
    pub fn new() -> Option<Net> {
        let number = NETS.fetch_add(1, Ordering::Relaxed);
        let net = Net { prefix: format!("x{}-{number}", std::process::id()), servers: Vec::new() };
        match net.build() {
            Ok(()) => Some(net.with_servers()),
            Err(error) => {
                eprintln!("SKIPPED, NOT TESTED: {error}");
                assert!(std::env::var_os("MBAL_XDP_MUST_LOAD").is_none(), "{error}");
                None
            }
        }
    }

    fn build(&self) -> Result<(), String> {
        which("memcached")?;
        let bridge = self.name("bridge");
        run(&format!("ip netns add {bridge}"))?;
        run(&format!("ip -n {bridge} link add bridge0 type bridge"))?;
        run(&format!("ip -n {bridge} link set bridge0 up"))?;
        let servers = (0..SERVERS).map(|place| (format!("s{place}"), server(place)));
        let client = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 0);
        // Servers would not answer the ARP of an address that they have too.
        let proxy = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 99), 0);
        let hosts = [("client".to_owned(), client), ("proxy".to_owned(), proxy)];
        for (host, address) in hosts.into_iter().chain(servers) {
            let (name, ip) = (self.name(&host), address.ip());
            run(&format!("ip netns add {name}"))?;
            run(&format!(
                "ip link add eth0 netns {name} type veth peer name {host} netns {bridge}"
            ))?;
            // Checksums have to be in the packets.
            self.at(&host, || checksums_in_packets("eth0"))?;
            run(&format!("ip -n {bridge} link set {host} master bridge0 up"))?;
            run(&format!("ip -n {name} addr add {ip}/24 dev eth0"))?;
            run(&format!("ip -n {name} link set lo up"))?;
            run(&format!("ip -n {name} link set eth0 up"))?;
            if host == "proxy" {
                run(&format!("ip -n {name} addr add {}/32 dev eth0", SERVICE.ip()))?;
            }
            if host.starts_with('s') {
                for (setting, value) in [("arp_ignore", 1), ("arp_announce", 2)] {
                    run(&format!(
                        "ip netns exec {name} sysctl -qw net.ipv4.conf.all.{setting}={value}"
                    ))?;
                }
                run(&format!("ip -n {name} addr add {}/32 dev lo", SERVICE.ip()))?;
            }
        }
        Ok(())
    }

    fn with_servers(mut self) -> Net {
        for place in 0..SERVERS {
            let (ours, service) = (server(place), SERVICE.ip());
            let listen = format!("{},{service}", ours.ip());
            let memcached = self
                .command(&format!("s{place}"), "memcached")
                .args(["-u", "root", "-t", "1", "-l", &listen, "-U", "11211"])
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            self.servers.push(memcached);
        }
        self.at("proxy", || (0..SERVERS).for_each(|place| drop(connect(server(place)))));
        self
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// Runs something on one of the hosts.
    pub fn at<T: Send>(&self, host: &str, run: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/var/run/netns/{}", self.name(host))).unwrap();
        let enter = move || {
            // SAFETY: the file is open; the call changes nothing but this thread's network.
            let code = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
            run()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    /// A command on one of the hosts.
    pub fn command(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host), program]);
        command
    }

    /// twemproxy on the proxy's host, before the same servers.
    pub fn twemproxy(&self, listen: SocketAddrV4, hash: &str) -> Command {
        let servers: String =
            (0..SERVERS).map(|place| format!("   - {}:1\n", server(place))).collect();
        let config = std::env::temp_dir().join(format!("xdp-twemproxy-{}.yml", std::process::id()));
        let pool = format!("pool:\n  listen: {listen}\n  hash: {hash}\n");
        let text = format!("{pool}  distribution: ketama\n  servers:\n{servers}");
        std::fs::write(&config, text).unwrap();
        let mut command = self.command("proxy", "nutcracker");
        command.arg("-c").arg(&config).args(["-v", "0", "-s", "22222"]);
        command
    }

    /// At the bridge's end of the proxy's interface, which takes what a packet program sends only if there is one too.
    pub fn nothing_at_the_bridge(&self) -> Plane {
        let service = Service { address: SERVICE, mac: [0; 6], hash: KeyHash::Murmur, sample: 0 };
        let mut plane = Plane::load(service).unwrap();
        self.at("bridge", || plane.attach_nothing("proxy").unwrap());
        plane
    }

    /// To a server's process.
    pub fn signal(&self, place: u32, name: &str) {
        // The shell has one of its own; a small system has no program for it.
        let kill = format!("kill -s {name} {}", self.servers[place as usize].id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// At the proxy's interface, before both servers.
    pub fn plane(&self) -> Plane {
        let mut plane = self.at("proxy", || {
            let mac = neighbours::own("eth0").unwrap();
            let service = Service { address: SERVICE, mac, hash: KeyHash::Murmur, sample: 0 };
            let mut plane = Plane::load(service).unwrap();
            let upstreams: Vec<Upstream> = (0..SERVERS)
                .map(|place| {
                    let mac = neighbours::look_up("eth0", *server(place).ip()).unwrap();
                    assert!(mac.is_some(), "it was connected to");
                    Upstream { address: SERVICE, mac }
                })
                .collect();
            plane.update_ring(&continuum(), &upstreams).unwrap();
            plane.attach("eth0", Mode::Native).unwrap();
            plane
        });
        self.at("bridge", || plane.attach_nothing("proxy").unwrap());
        plane
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill().and_then(|()| server.wait());
        }
        let servers = (0..SERVERS).map(|place| format!("s{place}"));
        for host in ["client", "proxy", "bridge"].map(str::to_owned).into_iter().chain(servers) {
            let _ = run(&format!("ip netns del {}", self.name(&host)));
        }
    }
}

pub fn continuum() -> Continuum {
    let mut random = Random::new(7);
    let points = (0..160 * SERVERS)
        .map(|i| Point { at: random.word() as u32, upstream: i % SERVERS })
        .collect();
    Continuum::new(points).unwrap()
}

/// Where the key is.
pub fn home(key: &[u8]) -> SocketAddrV4 {
    server(continuum().upstream(KeyHash::Murmur.place(key)))
}

pub fn connect(to: SocketAddrV4) -> TcpStream {
    for _ in 0..100 {
        match TcpStream::connect(to) {
            Ok(stream) => {
                stream.set_nodelay(true).unwrap();
                return stream;
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
    panic!("{to} does not listen");
}

/// Asks by memcached's UDP protocol, one request at a time.
pub struct Client {
    socket: UdpSocket,
    id: u16,
}

impl Client {
    pub fn new(to: SocketAddrV4) -> Client {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Client { socket, id: 0 }
    }

    /// The text of a reply of one datagram. `None` if it is lost.
    pub fn ask(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        self.id = self.id.wrapping_add(1);
        let frame = [&self.id.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0]].concat();
        self.socket.send(&[&frame, text].concat()).unwrap();
        let mut reply = [0; 2048];
        loop {
            let length = self.socket.recv(&mut reply).ok()?;
            // A reply that came too late is another request's.
            if reply[..8] == frame {
                return Some(reply[8..length].to_vec());
            }
        }
    }

    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.ask(&[b"get ", key, b"\r\n"].concat())
    }
}

/// `key` with this value, at a server.
pub fn set(stream: &mut TcpStream, key: &[u8], value: &[u8]) {
    use std::io::{Read, Write};
    let head = format!(" 0 0 {}\r\n", value.len());
    stream.write_all(&[b"set ", key, head.as_bytes(), value, b"\r\n"].concat()).unwrap();
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"STORED\r\n");
}

pub fn reply(key: &[u8], value: &[u8]) -> Vec<u8> {
    let head = format!(" 0 {}\r\n", value.len());
    [b"VALUE ", key, head.as_bytes(), value, b"\r\nEND\r\n"].concat()
}

/// The interface's sender computes them: what `ethtool -K INTERFACE tx off` does.
fn checksums_in_packets(interface: &str) -> Result<(), String> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let mut off = [ETHTOOL_STXCSUM, 0];
    // SAFETY: zeros are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (into, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *into = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = off.as_mut_ptr().cast();
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(|why| why.to_string())?;
    // SAFETY: the socket is open, and the request points to the two words that the kernel reads.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
    match code {
        0 => Ok(()),
        _ => Err(format!("checksums of {interface}: {}", std::io::Error::last_os_error())),
    }
}

fn which(program: &str) -> Result<(), String> {
    run(&format!("which {program}"))
}

fn run(command: &str) -> Result<(), String> {
    let mut words = command.split(' ');
    let done = Command::new(words.next().unwrap()).args(words).output();
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(format!("{command}: {}", String::from_utf8_lossy(&done.stderr))),
        Err(error) => Err(format!("{command}: {error}")),
    }
}
