//! Sockets and connections of the API, and the end of the process.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mbal_control::api::ScaleStatus;
use mbal_control::web::Hosts;
use mbal_control::{Coordinator, Leases, Settings};
use mbal_election::Terms;
use mbal_etcd::{Etcd, Leadership, OwnersKeys};
use mbal_locks::{Mutex, ranks};
use mbal_model::Cluster;
use mbal_webpage::STUCK_AFTER;
use tokio::sync::Semaphore;

use crate::api::{Shared, router};
use crate::autoscaling::{Autoscale, Autoscaling};
use crate::driver::{Driver, Say, Storage};
use crate::gate::Gate;
use crate::page::{Page, produce};
use crate::patient::Patient;
use crate::planning::Planning;
use crate::seat::Seat;
use crate::state_file::StateFile;
use crate::watching::Watching;

/// Connections at a time: a thousand servers keep one each. One more waits in the kernel.
const CONNECTIONS_MAX: usize = 4096;
/// A request's head has arrived by then, or its connection is closed.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: usize = 16 << 10;
/// A whole request has been answered by then.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// Without descriptors, accepting pauses for so long; and who has been elected is looked at so often.
const PAUSE: Duration = Duration::from_millis(100);

/// All that a coordinator is told at its start.
pub struct Config {
    /// Where it listens; port 0 is any free one.
    pub listen: SocketAddr,
    pub state: StateIn,
    pub settings: Settings,
    /// What callers that change something have to know.
    pub token: Option<String>,
    /// By which names it may be called, beside its addresses and names without a dot.
    pub allow_hosts: Vec<String>,
    pub autoscale: Autoscale,
    /// The log has each move, not only how many there were.
    pub says_each_move: bool,
}

/// Where the state is kept.
pub enum StateIn {
    File(PathBuf),
    /// In etcd, where one of several coordinators leads.
    Etcd {
        /// URLs like `http://10.0.0.1:2379`.
        members: Vec<String>,
        /// The URL by which others reach this coordinator; without, where it listens.
        advertised: Option<String>,
        /// By which servers own.
        terms: Terms,
        /// Members of etcd as servers reach them.
        for_servers: Vec<String>,
    },
}

/// A coordinator that serves until it is dropped. Then it leads no more, and others hear of that.
pub struct Running {
    /// First, since what is dropped first ends first.
    _planning: Planning,
    _autoscaling: Autoscaling,
    _watching: Option<Watching>,
    runtime: tokio::runtime::Runtime,
    seat: Option<(Arc<Seat>, JoinHandle<()>)>,
    driver: Arc<Mutex<ranks::Driver, Driver>>,
    pub address: SocketAddr,
}

/// Opens file and socket, and serves on threads of its own. The error is for the operator.
pub fn start(config: Config, say: Box<Say>) -> Result<Running, String> {
    let say: Arc<Say> = say.into();
    let Config { listen, mut settings, autoscale, says_each_move, .. } = config;
    let epoch = settings.epoch;
    // A file that cannot be used is told before anybody can connect.
    let file = match &config.state {
        StateIn::File(path) => Some(opened(path, &settings)?),
        StateIn::Etcd { .. } => None,
    };
    let failed = |error: io::Error| format!("{listen}: {error}");
    let listener = TcpListener::bind(listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let advertised = match &config.state {
        StateIn::Etcd { advertised, .. } => advertised.clone(),
        StateIn::File(_) => None,
    };
    let names = config.allow_hosts.into_iter().chain(advertised).chain(own_name());
    let gate = Gate::new(Hosts::and(names), config.token.as_deref(), address.ip().is_loopback());
    let (mut taken, mut coordinator, mut keys) = (None, None, None);
    let storage = match (config.state, file) {
        (StateIn::Etcd { members, advertised, terms, for_servers }, _) => {
            let url = advertised.unwrap_or_else(|| format!("http://{address}"));
            let etcd = Etcd::new(&members, &settings.cluster)?;
            keys = Some(OwnersKeys::new(Etcd::new(&members, &settings.cluster)?));
            let address = url.clone();
            settings.leases = Some(Leases { terms, etcd: for_servers, address });
            let seat = Seat::new(Leadership::new(etcd, &url), Arc::clone(&say));
            taken = Some(Arc::clone(&seat));
            Storage::Etcd(seat)
        }
        (StateIn::File(_), file) => {
            let (file, of_file) = file.expect("it was opened above");
            coordinator = Some(of_file);
            Storage::File { file, is_unsettled: false }
        }
    };
    let cluster = settings.cluster.clone();
    let machines = autoscale.machines.name();
    let mut driver = Driver::new(settings, storage, coordinator, say).with_machines(machines);
    if says_each_move {
        driver.says_each_move();
    }
    let (page, arriving) = Page::new(config.token.is_some());
    let shared = Shared {
        driver: Arc::new(Mutex::new(driver)),
        seat: taken.clone(),
        turn: Arc::new(Semaphore::new(1)),
        gate: Arc::new(gate),
        page: Arc::new(page),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("mbal-coordinator")
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let driver = Arc::clone(&shared.driver);
    runtime.spawn(produce(shared.clone(), arriving));
    runtime.spawn(serve(listener, router(shared)));
    let mut seat = None;
    if let Some(taken) = taken {
        let thread = taken.take().map_err(|error| error.to_string())?;
        seat = Some((taken, thread));
        runtime.spawn(look(Arc::clone(&driver)));
    }
    let planning =
        Planning::start(Arc::clone(&driver), epoch).map_err(|error| error.to_string())?;
    let autoscaling = Autoscaling::start(Arc::clone(&driver), autoscale, cluster);
    let autoscaling = autoscaling.map_err(|error| error.to_string())?;
    let watching = keys.map(|keys| Watching::start(Arc::clone(&driver), keys)).transpose();
    let watching = watching.map_err(|error| error.to_string())?;
    Ok(Running {
        _planning: planning,
        _autoscaling: autoscaling,
        _watching: watching,
        runtime,
        seat,
        driver,
        address,
    })
}

/// This machine's.
fn own_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned())
}

fn opened(path: &Path, settings: &Settings) -> Result<(StateFile, Coordinator), String> {
    let (file, state) = StateFile::open(path)?;
    let coordinator = match state {
        Some(state) => Coordinator::resume(settings.clone(), state)
            .map_err(|refusal| format!("{}: {refusal}", path.display()))?,
        None => Coordinator::new(settings.clone()),
    };
    // Whether it can be written is better known now than at the first change.
    let saved = file.save(coordinator.state());
    saved.map_err(|not| format!("{}: {}", path.display(), not.error))?;
    Ok((file, coordinator))
}

/// A leader takes up its work before it is asked: a state that it cannot use is told at once, and left to others.
async fn look(driver: Arc<Mutex<ranks::Driver, Driver>>) {
    loop {
        tokio::time::sleep(PAUSE).await;
        let driver = Arc::clone(&driver);
        // It is locked while something is saved: whoever saves leads already.
        let look = tokio::task::spawn_blocking(move || {
            if let Some(mut driver) = driver.try_lock() {
                driver.look();
            }
        });
        drop(look.await);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((seat, thread)) = self.seat.take() {
            seat.leave();
            drop(thread.join());
        }
    }
}

impl Running {
    /// The map and the servers, once all of them let clients in. None while somebody else is asked, which may take as long as a disk takes.
    pub fn served(&self) -> Option<Cluster> {
        self.driver.try_lock()?.served()
    }

    /// How many servers are wanted, and who has retired; none of who does not lead, or while somebody else is asked.
    pub fn scaling(&self) -> Option<ScaleStatus> {
        self.driver.try_lock()?.scaling()
    }

    /// Serves until SIGTERM or SIGINT.
    pub fn wait(self) -> io::Result<()> {
        self.runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (mut term, mut int) =
                (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            Ok(())
        })
    }
}

async fn serve(listener: TcpListener, router: Router) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("inside of the runtime");
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    // Of what has not been looked at yet, for each connection.
    http.max_buf_size(HEAD_BYTES_MAX);
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let stream = Patient::new(stream, STUCK_AFTER);
        let router = router.clone();
        let timed = tower::service_fn(move |request| {
            let router = router.clone();
            async move {
                let answer = tower::ServiceExt::oneshot(router, request);
                match tokio::time::timeout(REQUEST_WITHIN, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Ok(axum::response::IntoResponse::into_response(
                        axum::http::StatusCode::REQUEST_TIMEOUT,
                    )),
                }
            }
        });
        let connection =
            http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(timed));
        tokio::spawn(async move {
            // One that breaks is its client's business.
            drop(connection.await);
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn got(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{path}: {error}"));
        answer
    }

    #[test]
    fn a_disk_that_hangs_mutes_neither_probes_nor_metrics_nor_who_leads() {
        let folder = std::env::temp_dir().join(format!("mbal-serving-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the system's folder can be written");
        let config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            state: StateIn::File(folder.join("mbal.json")),
            settings: Settings::default(),
            token: None,
            allow_hosts: Vec::new(),
            autoscale: Autoscale::default(),
            says_each_move: false,
        };
        let running = start(config, Box::new(|_| {})).expect("it starts");
        assert!(got(running.address, "/metrics").contains("\nmbal_coordinator_waits 0\n"));
        // As who saves has it, for as long as that takes.
        let held = running.driver.lock();
        // One that waits for the driver, and more who scrape than there is patience for.
        let address = running.address;
        let waiting = std::thread::spawn(move || got(address, "/v1/status"));
        let scraping = [(); 8].map(|()| std::thread::spawn(move || got(address, "/metrics")));
        for scrape in scraping {
            let page = scrape.join().expect("it is answered");
            assert!(page.contains("\nmbal_coordinator_waits 1\n"), "{page}");
        }
        assert!(got(address, "/v1/leads").ends_with("{\"leads\":true}"));
        assert!(got(address, "/healthz").ends_with("ok\n"));
        let second = got(address, "/v1/map");
        assert!(
            second.starts_with("HTTP/1.1 503") && second.contains("nothing was done"),
            "{second}"
        );
        let mut page = TcpStream::connect(address).expect("it listens");
        page.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
        page.write_all(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
        let (mut told, mut part) = (String::new(), [0; 4096]);
        while !told.contains("\"trouble\":\"the coordinator waits for its disk or for etcd\"") {
            let count = page.read(&mut part).expect("frames go on");
            assert!(count > 0, "{told}");
            told.push_str(&String::from_utf8_lossy(&part[..count]));
        }
        assert!(got(address, "/").contains("<title>MBal</title>"));
        drop(held);
        assert!(got(address, "/metrics").contains("\nmbal_coordinator_waits 0\n"));
        drop(waiting.join().expect("it is answered"));
        drop(running);
        std::fs::remove_dir_all(folder).expect("it is the test's");
    }
}
