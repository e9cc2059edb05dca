//! Sockets and connections of the API, and the end of the process.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mbal_control::{Coordinator, Settings};
use mbal_model::Cluster;
use tokio::sync::Semaphore;

use crate::api::{Shared, hashed, router};
use crate::driver::{Driver, Say};
use crate::planning::Planning;
use crate::state_file::StateFile;

/// Connections at a time: a thousand servers keep one each. One more waits in the kernel.
const CONNECTIONS_MAX: usize = 4096;
/// A request's head has arrived by then, or its connection is closed.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// A whole request has been answered by then.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// Without descriptors, accepting pauses for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// All that a coordinator is told at its start.
pub struct Config {
    /// Where it listens; port 0 is any free one.
    pub listen: SocketAddr,
    /// The file with its state.
    pub state: PathBuf,
    pub settings: Settings,
    /// What callers that change something have to know.
    pub token: Option<String>,
}

/// A coordinator that serves until it is dropped.
pub struct Running {
    /// First, since what is dropped first ends first.
    _planning: Planning,
    runtime: tokio::runtime::Runtime,
    driver: Arc<Mutex<Driver>>,
    pub address: SocketAddr,
}

/// Opens file and socket, and serves on threads of its own. The error is for the operator.
pub fn start(config: Config, say: Box<Say>) -> Result<Running, String> {
    let (file, state) = StateFile::open(&config.state)?;
    let epoch = config.settings.epoch;
    let coordinator = match state {
        Some(state) => Coordinator::resume(config.settings, state)
            .map_err(|refusal| format!("{}: {refusal}", config.state.display()))?,
        None => Coordinator::new(config.settings),
    };
    // Whether it can be written is better known now than at the first change.
    let saved = file.save(coordinator.state());
    saved.map_err(|error| format!("{}: {error}", config.state.display()))?;
    let failed = |error: io::Error| format!("{}: {error}", config.listen);
    let listener = TcpListener::bind(config.listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let shared = Shared {
        driver: Arc::new(Mutex::new(Driver::new(coordinator, file, say))),
        token: config.token.as_deref().map(hashed),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("mbal-coordinator")
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let driver = Arc::clone(&shared.driver);
    runtime.spawn(serve(listener, router(shared)));
    let planning =
        Planning::start(Arc::clone(&driver), epoch).map_err(|error| error.to_string())?;
    Ok(Running { _planning: planning, runtime, driver, address })
}

impl Running {
    /// The map and the servers, once there is a map.
    pub fn cluster(&self) -> Option<Cluster> {
        self.driver.lock().expect("a transaction does not panic").cluster()
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
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
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
