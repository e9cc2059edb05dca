//! `mbal coordinator`: flags, and the process around `mbal_coordinator`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use mbal_control::api::{COPY_LEASE_MS, HotMode};
use mbal_coordinator::{Autoscale, Config, Machines, StateIn, StatefulSet, Terms};
use mbal_server::{TOKEN_BYTES_MIN, log, token_of};

use crate::flags::{LogFlags, duration};

/// What a server asks by default has this port.
pub const PORT: u16 = 11210;
const EX_OSERR: u8 = 71;

const EXAMPLES: &str = "\
EXAMPLES
  mbal coordinator --servers 3
                        on this host; the map is made when three servers have come
  mbal coordinator --listen 10.0.0.1:11210 --token-file /etc/mbal/token
                        for other hosts, which have to know the token
  mbal coordinator --listen 10.0.0.1:11210 --etcd http://10.0.0.1:2379,http://10.0.0.2:2379
                        one of several, of which one leads; the state is in etcd
  mbal serve --coordinator http://10.0.0.1:11210 --cluster-secret /etc/mbal/secret
                        a server of its cluster
  curl http://10.0.0.1:11210/v1/status
                        servers and moves; /openapi.json describes all calls;
                        in a browser, http://10.0.0.1:11210/ is a page of the cluster

Servers go on with the last map while the coordinator is gone.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Coordinator {
    /// Where to listen; loopback unless told otherwise
    #[arg(long, env = "MBAL_COORDINATOR_LISTEN", value_name = "ip:port", default_value_t = SocketAddr::from(([127, 0, 0, 1], PORT)))]
    listen: SocketAddr,

    /// File of the coordinator's state; by default NAME.json in /var/lib/mbal, or in $XDG_STATE_HOME/mbal
    #[arg(long, env = "MBAL_COORDINATOR_STATE", value_name = "file")]
    state: Option<PathBuf>,

    /// Be one of several coordinators of which one leads: members of the etcd that has the state, like http://10.0.0.1:2379
    #[arg(long, env = "MBAL_ETCD", value_name = "url[,url]", value_delimiter = ',')]
    #[arg(conflicts_with = "state")]
    etcd: Vec<String>,

    /// URL by which others reach this coordinator; by default that of --listen
    #[arg(long, env = "MBAL_COORDINATOR_ADVERTISE", value_name = "url", requires = "etcd")]
    advertise: Option<String>,

    /// Members of etcd as servers reach them; by default those of --etcd
    #[arg(long, env = "MBAL_ETCD_ADVERTISE", value_name = "url[,url]", value_delimiter = ',')]
    #[arg(requires = "etcd")]
    etcd_advertise: Vec<String>,

    /// Milliseconds for which a server owns after each renewal of its lease in etcd
    #[arg(long, env = "MBAL_OWNERSHIP_LEASE_MS", value_name = "ms", default_value_t = 5000)]
    #[arg(value_parser = clap::value_parser!(u32).range(5000..=60_000), requires = "etcd")]
    ownership_lease_ms: u32,

    /// When servers stop that are without etcd while no coordinator leads: after a time like 30s, or never
    #[arg(long, env = "MBAL_ETCD_GRACE", value_name = "time", default_value = "never")]
    #[arg(value_parser = grace, requires = "etcd")]
    etcd_grace: Grace,

    /// The cluster's name
    #[arg(long, env = "MBAL_CLUSTER_NAME", value_name = "name", default_value = "mbal")]
    cluster_name: String,

    /// Servers that have to come before the first map is made
    #[arg(long, env = "MBAL_SERVERS", value_name = "num", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    servers: u16,

    /// Milliseconds between two heartbeats of a server
    #[arg(long, env = "MBAL_HEARTBEAT_MS", value_name = "ms", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=60_000))]
    heartbeat_ms: u32,

    #[command(flatten)]
    hot: HotKeys,

    #[command(flatten)]
    machines: StartsServers,

    /// A file with the token that callers need who change something, 16 bytes or more
    #[arg(long, env = "MBAL_COORDINATOR_TOKEN", value_name = "file")]
    token_file: Option<PathBuf>,

    /// Further names with a dot by which callers without the token reach this coordinator; those of web pages are refused
    #[arg(long, env = "MBAL_ALLOW_HOST", value_name = "name[,name]", value_delimiter = ',')]
    allow_host: Vec<String>,

    #[command(flatten)]
    log: LogFlags,

    /// Log each move; without, how many there were
    #[arg(short, long)]
    verbose: bool,
}

// How hot keys are copied. No docstring: it would become the help of who has these flags.
#[derive(Args, Debug)]
pub struct HotKeys {
    /// Copies of hot keys on other servers: none (off); told of a write after it was answered (async); or not read any more
    /// before it is executed (atomic). `mbal cluster hotkeys --copy` changes it
    #[arg(long, env = "MBAL_HOT_KEYS", value_name = "mode", default_value = "atomic")]
    hot_keys: CopyMode,

    /// How long a copy is read without word of the original, 100ms to 10s
    #[arg(long, env = "MBAL_LEASE", value_name = "time", default_value = "1s", value_parser = lease)]
    lease: Duration,

    /// Copy hot keys until the busiest server is predicted to have at most so many times the average's requests, 1.01 to 100
    #[arg(long, env = "MBAL_IMBALANCE_TARGET", value_name = "num", default_value = "1.25")]
    #[arg(value_parser = target)]
    imbalance_target: f64,
}

// Who starts and stops servers. No docstring: it would become the help of who has these flags.
#[derive(Args, Debug)]
#[group(multiple = true)]
struct StartsServers {
    /// Command that starts one more server, for `mbal cluster scale`: it gets $MBAL_CLUSTER, and in $MBAL_COUNT how many there are to be
    #[arg(long, env = "MBAL_START_COMMAND", value_name = "command", requires = "stop_command")]
    start_command: Option<String>,

    /// Command that stops a server, which has nothing any more: $MBAL_SERVER is its address, $MBAL_SERVER_ID its number
    #[arg(long, env = "MBAL_STOP_COMMAND", value_name = "command", requires = "start_command")]
    stop_command: Option<String>,

    /// URL that is called by POST for each server that is to be started or stopped, with the same as JSON
    #[arg(long, env = "MBAL_MACHINES_URL", value_name = "url", conflicts_with = "start_command")]
    machines_url: Option<String>,

    /// StatefulSet of the servers, in the Kubernetes in which this coordinator is
    #[arg(long, env = "MBAL_STATEFULSET", value_name = "namespace/name")]
    #[arg(conflicts_with_all = ["start_command", "machines_url"])]
    statefulset: Option<String>,

    /// Time between two looks of the autoscaler, which counts them as minutes; for tests
    #[arg(long, hide = true, default_value = "60s", value_parser = looks_every)]
    autoscale_every: Duration,
}

impl StartsServers {
    fn autoscale(&self) -> Result<Autoscale, String> {
        let machines = match self {
            StartsServers { start_command: Some(start), stop_command: Some(stop), .. } => {
                Machines::Commands { start: start.clone(), stop: stop.clone() }
            }
            StartsServers { machines_url: Some(url), .. } if !url.starts_with("http://") => {
                return Err(format!(
                    "--machines-url {url}: it is like http://10.0.0.1:8000/servers"
                ));
            }
            StartsServers { machines_url: Some(url), .. } => Machines::Http(url.clone()),
            StartsServers { statefulset: Some(name), .. } => {
                let set = StatefulSet::in_pod(name);
                Machines::Kubernetes(set.map_err(|why| format!("--statefulset: {why}"))?)
            }
            _ => Machines::Nobody,
        };
        Ok(Autoscale { machines, every: self.autoscale_every })
    }
}

pub fn looks_every(text: &str) -> Result<Duration, String> {
    let every = duration(text).filter(|every| (10..=600_000).contains(&every.as_millis()));
    every.ok_or_else(|| "10ms to 10m".into())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CopyMode {
    Off,
    Async,
    Atomic,
}

impl From<CopyMode> for HotMode {
    fn from(mode: CopyMode) -> HotMode {
        match mode {
            CopyMode::Off => HotMode::Off,
            CopyMode::Async => HotMode::Async,
            CopyMode::Atomic => HotMode::Atomic,
        }
    }
}

impl HotKeys {
    /// The rest is as by default.
    pub fn settings(&self) -> mbal_coordinator::Settings {
        mbal_coordinator::Settings {
            hot_keys: self.hot_keys.into(),
            copy_lease: self.lease,
            imbalance_target: self.imbalance_target,
            ..Default::default()
        }
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text).filter(|lease| {
        u64::try_from(lease.as_millis()).is_ok_and(|lease_ms| COPY_LEASE_MS.contains(&lease_ms))
    });
    lease.ok_or_else(|| "seconds, or with ms, from 100ms to 10s".into())
}

fn target(text: &str) -> Result<f64, String> {
    let target = text.parse().ok().filter(|target| (1.01..=100.0).contains(target));
    target.ok_or_else(|| "a number from 1.01 to 100".into())
}

pub fn run(flags: &Coordinator) -> ExitCode {
    flags.log.set();
    match flags.config().and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log::error("not_started", &format!("mbal coordinator: {why}"));
            ExitCode::from(EX_OSERR)
        }
    }
}

fn serve(config: Config) -> Result<(), String> {
    log::stamp();
    let needs_token = config.token.is_some();
    if !needs_token && !config.listen.ip().is_loopback() {
        log::warn(
            "no_token",
            "mbal coordinator: without --token-file whoever can connect can change the cluster",
        );
    }
    let state = match &config.state {
        StateIn::File(path) => format!("state in {}", path.display()),
        StateIn::Etcd { members, .. } => format!("state in etcd: {}", members.join(" ")),
    };
    let running = mbal_coordinator::start(
        config,
        Box::new(|text| log::info("coordinator", &format!("mbal: {text}"))),
    )?;
    let page = format!("page: http://{}/", running.address);
    log::info("started", &format!("mbal coordinator: http://{}, {state}", running.address));
    log::info("page_at", &format!("mbal coordinator: {page}"));
    running.wait().map_err(|error| error.to_string())
}

impl Coordinator {
    /// Why it would not start, as far as flags alone say.
    pub fn refusal(&self) -> Option<String> {
        let found = self.token().and_then(|_| self.checked_name());
        let found = found.and_then(|()| match self.etcd[..] {
            [] => Ok(()),
            _ => self.in_etcd().map(drop),
        });
        found.err()
    }

    fn token(&self) -> Result<Option<String>, String> {
        let token = self.token_file.as_ref();
        let token = token.map(|path| token_of("--token-file", path)).transpose()?;
        if let Some(short) = token.as_ref().filter(|token| token.len() < TOKEN_BYTES_MIN) {
            let many = short.len();
            return Err(format!(
                "--token-file: {many} bytes are guessed: {TOKEN_BYTES_MIN} or more"
            ));
        }
        Ok(token)
    }

    fn checked_name(&self) -> Result<(), String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if self.cluster_name.is_empty()
            || 64 < self.cluster_name.len()
            || !self.cluster_name.bytes().all(is_name)
        {
            return Err(format!(
                "--cluster-name {}: letters, digits, - _ and ., at most 64",
                self.cluster_name
            ));
        }
        Ok(())
    }

    fn config(&self) -> Result<Config, String> {
        let token = self.token()?;
        self.checked_name()?;
        let state = match &self.state {
            _ if !self.etcd.is_empty() => self.in_etcd()?,
            Some(path) => StateIn::File(path.clone()),
            None => {
                // Where state belongs; one that was named wrongly is not made.
                let folder = state_folder()?;
                std::fs::create_dir_all(&folder)
                    .map_err(|error| format!("{}: {error}", folder.display()))?;
                StateIn::File(folder.join(format!("{}.json", self.cluster_name)))
            }
        };
        Ok(Config {
            listen: self.listen,
            state,
            settings: mbal_coordinator::Settings {
                cluster: self.cluster_name.clone(),
                servers_first: self.servers.into(),
                epoch: Duration::from_millis(self.heartbeat_ms.into()),
                ..self.hot.settings()
            },
            token,
            allow_hosts: self.allow_host.clone(),
            autoscale: self.machines.autoscale()?,
            says_each_move: self.verbose,
        })
    }
}

impl Coordinator {
    fn in_etcd(&self) -> Result<StateIn, String> {
        let advertised = match &self.advertise {
            Some(url) if !url.starts_with("http://") => {
                return Err(format!("--advertise {url}: it is like http://10.0.0.1:{PORT}"));
            }
            None if self.listen.ip().is_unspecified() => {
                return Err(format!(
                    "--listen {} is no address that others reach: say --advertise",
                    self.listen
                ));
            }
            url => url.clone(),
        };
        let terms = Terms {
            lease: Duration::from_millis(self.ownership_lease_ms.into()),
            grace: self.etcd_grace.0,
        };
        let for_servers = match self.etcd_advertise.is_empty() {
            true => self.etcd.clone(),
            false => self.etcd_advertise.clone(),
        };
        Ok(StateIn::Etcd { members: self.etcd.clone(), advertised, terms, for_servers })
    }
}

/// How long servers go on without etcd; none is for ever.
#[derive(Clone, Copy, Debug)]
struct Grace(Option<Duration>);

fn grace(text: &str) -> Result<Grace, String> {
    match text {
        "never" => Ok(Grace(None)),
        _ => match duration(text) {
            Some(time) => Ok(Grace(Some(time))),
            None => Err("a time like 30s, or never".into()),
        },
    }
}

/// Where state that has to survive belongs.
fn state_folder() -> Result<PathBuf, String> {
    if mbal_reactor::process::is_root() {
        return Ok("/var/lib/mbal".into());
    }
    let absolute = |name| {
        std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME");
    let state = state
        .or_else(|| absolute("HOME").map(|home: PathBuf| home.join(Path::new(".local/state"))));
    state.map(|state| state.join("mbal")).ok_or_else(|| "say --state: there is no $HOME".into())
}
