//! The web page: its files, and one stream of frames for all who watch.
//!
//! ```text
//!   /, /page.js ... ──► files          /v1/live ──► Arrival ──► produce: a look, a frame ──► a place for one frame of each viewer
//!                                      /v1/history ──► Live, which `produce` fills
//! ```
//! Nobody waits for a viewer: whose place is taken misses a frame.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame};
use mbal_locks::{Mutex, ranks};
use mbal_webpage::{Asset, HEADERS, Live, Look, STREAM_HEADERS, STUCK_AFTER, Source, VIEWERS_MAX};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::api::{Shared, failed};
use crate::driver::Driver;

/// A look that takes longer shows that there is nothing to be seen.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// Whoever comes sees a frame that is no older, and costs no look.
const FRESH: Duration = Duration::from_millis(250);

/// What handlers and the producer share.
pub(crate) struct Page {
    live: Mutex<ranks::PageHistory, Live>,
    places: Arc<Semaphore>,
    arrivals: mpsc::Sender<Arrival>,
}

/// Where the frames of a new viewer go.
pub(crate) type Arrival = mpsc::Sender<Bytes>;

impl Page {
    /// `can_change`: there is a token, without which nothing is changed from a page.
    pub(crate) fn new(can_change: bool) -> (Page, mpsc::Receiver<Arrival>) {
        let (arrivals, arriving) = mpsc::channel(VIEWERS_MAX);
        let live = Mutex::new(Live::new(Source::Coordinator, can_change));
        (Page { live, places: Arc::new(Semaphore::new(VIEWERS_MAX)), arrivals }, arriving)
    }

    /// The next frame, if anybody watches.
    fn next(&self, seen: Look, is_watched: bool) -> Option<String> {
        let mut live = self.live.lock();
        live.looked(unix_ms(), seen, is_watched);
        is_watched.then(|| live.frame(unix_ms()))
    }
}

struct Viewer {
    place: Arrival,
    /// Since when it has taken nothing.
    stuck: Option<Instant>,
}

impl Viewer {
    /// False if it is gone, or as good as gone.
    fn takes(&mut self, frame: &Bytes) -> bool {
        match self.place.try_send(frame.clone()) {
            Ok(()) => {
                self.stuck = None;
                true
            }
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                self.stuck.get_or_insert_with(Instant::now).elapsed() < STUCK_AFTER
            }
        }
    }
}

/// Looks, and makes frames, until the process ends.
pub(crate) async fn produce(shared: Shared, mut arriving: mpsc::Receiver<Arrival>) {
    let page = Arc::clone(&shared.page);
    let mut viewers: Vec<Viewer> = Vec::new();
    let mut last: Option<(Instant, Bytes)> = None;
    loop {
        let pause = page.live.lock().pause(viewers.len());
        tokio::select! {
            () = sleep(pause) => {}
            arrival = arriving.recv() => {
                let Some(place) = arrival else { return };
                let mut viewer = Viewer { place, stuck: None };
                let fresh = last.as_ref().filter(|(made, _)| made.elapsed() < FRESH);
                let has_seen = fresh.map(|(_, frame)| viewer.takes(frame));
                if has_seen != Some(false) {
                    viewers.push(viewer);
                }
                if has_seen.is_some() {
                    continue;
                }
            }
        }
        // Who has gone is not looked for.
        viewers.retain(|viewer| !viewer.place.is_closed());
        let seen = look(shared.clone()).await;
        let frame = page.next(seen, !viewers.is_empty()).map(Bytes::from);
        last = frame.map(|frame| (Instant::now(), frame));
        if let Some((_, frame)) = &last {
            viewers.retain_mut(|viewer| viewer.takes(frame));
        }
    }
}

async fn look(shared: Shared) -> Look {
    let seen = timeout(LOOK_WITHIN, async {
        let turn = Arc::clone(&shared.turn).acquire_owned().await.ok()?;
        shared.driven(turn, Driver::look_at_all).await.ok()
    });
    let blind = || Look::Blind("the coordinator waits for its disk or for etcd".into());
    seen.await.ok().flatten().unwrap_or_else(blind)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn with(headers: &[(&'static str, &'static str)], body: impl Into<Body>) -> Response {
    let named = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    (named.collect::<HeaderMap>(), body.into()).into_response()
}

pub(crate) async fn file(asset: &'static Asset) -> Response {
    let mut response = with(&HEADERS, asset.bytes);
    let content_type = HeaderValue::from_static(asset.content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Frames, until either side has enough.
pub(crate) async fn live(State(shared): State<Shared>) -> Response {
    let page = &shared.page;
    let Ok(seat) = Arc::clone(&page.places).try_acquire_owned() else {
        let why = format!("{VIEWERS_MAX} pages watch already");
        return failed(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    let (place, frames) = mpsc::channel(1);
    if page.arrivals.send(place).await.is_err() {
        return failed(StatusCode::SERVICE_UNAVAILABLE, "the coordinator ends");
    }
    with(&STREAM_HEADERS, Body::new(Frames { frames, _seat: seat }))
}

/// `?seconds=N`: a span of the history.
pub(crate) async fn history(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let seconds = query.as_deref().and_then(|query| query.strip_prefix("seconds="));
    let seconds = match seconds.map(str::parse) {
        Some(Ok(seconds)) => seconds,
        None => 0,
        Some(Err(_)) => return failed(StatusCode::BAD_REQUEST, "seconds=N: a number"),
    };
    let told = shared.page.live.lock().history(seconds);
    ([(header::CONTENT_TYPE, "application/json")], told).into_response()
}

/// A body without an end.
struct Frames {
    frames: mpsc::Receiver<Bytes>,
    _seat: OwnedSemaphorePermit,
}

impl HttpBody for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.frames.poll_recv(context);
        next.map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
    }
}
