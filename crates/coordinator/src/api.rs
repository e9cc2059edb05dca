//! The HTTP API: paths to questions, answers to JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, RawQuery, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Json, Router};
use mbal_control::api::{
    AutoscaleConfig, BalanceCall, Failure, Heartbeat, HotCall, Leads, Leaving, LostCall, MoveCall,
    Registration, ScaleCall, SplitCall,
};
use mbal_control::{self as control, Refusal};
use mbal_election::Term;
use mbal_locks::{Mutex, ranks};
use mbal_model::ServerId;
use mbal_webpage::ASSETS;
use mbal_wire::unescaped;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::driver::{Driver, Failed};
use crate::gate::{Gate, OnlyDry, SCALE, enter, unauthorized};
use crate::metrics::of_who_waits;
use crate::page::{self, Page};
use crate::seat::{NotLeading, Seat};

/// The description of this API.
pub const OPENAPI: &str = include_str!("openapi.json");
/// Method and path of every call; a test compares them with the description.
pub const ROUTES: [(&str, &str); 28] = [
    ("get", "/v1/map"),
    ("get", "/v1/status"),
    ("get", "/v1/events"),
    ("get", "/v1/hotkeys"),
    ("get", "/v1/forecast"),
    ("get", "/v1/autoscale"),
    ("put", "/v1/autoscale"),
    ("get", "/openapi.json"),
    ("post", "/v1/servers"),
    ("delete", "/v1/servers/{id}"),
    ("post", "/v1/servers/{id}/heartbeat"),
    ("post", "/v1/servers/{id}/lost"),
    ("post", "/v1/moves"),
    ("delete", "/v1/moves/{number}"),
    ("post", "/v1/splits"),
    ("put", "/v1/balance"),
    ("put", "/v1/hotkeys"),
    ("post", "/v1/scale"),
    ("get", "/v1/scale"),
    ("delete", "/v1/scale"),
    ("post", "/v1/servers/{id}/drain"),
    ("delete", "/v1/servers/{id}/drain"),
    ("get", "/metrics"),
    ("get", "/v1/live"),
    ("get", "/v1/history"),
    ("get", "/v1/where"),
    ("get", "/v1/leads"),
    ("get", "/healthz"),
];

/// Who does not get his turn by then is told so: a disk or etcd hangs, and nothing was done.
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// Whoever scrapes does not wait longer for what is known of servers.
const PAGE_WITHIN: Duration = Duration::from_secs(1);

/// The term in which a leader answers, and who leads, by who does not.
const TERM: HeaderName = HeaderName::from_static("mbal-term");
const LEADER: HeaderName = HeaderName::from_static("mbal-leader");

#[derive(Clone)]
pub(crate) struct Shared {
    pub driver: Arc<Mutex<ranks::Driver, Driver>>,
    /// Its place among several; none of who has a file.
    pub seat: Option<Arc<Seat>>,
    /// Of whoever calls and wants the driver: one after the other, and none of those who wait has a thread.
    pub turn: Arc<Semaphore>,
    pub gate: Arc<Gate>,
    pub page: Arc<Page>,
}

pub(crate) fn router(shared: Shared) -> Router {
    let files = ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(move || page::file(asset)))
    });
    files
        .route("/v1/map", get(map))
        .route("/v1/status", get(status))
        .route("/v1/events", get(events))
        .route("/v1/hotkeys", get(hot_keys).put(copy_hot_keys))
        .route("/v1/forecast", get(forecast))
        .route("/v1/autoscale", get(autoscale).put(set_autoscale))
        .route("/v1/leads", get(leads))
        .route("/openapi.json", get(openapi))
        .route("/healthz", get(async || "ok\n"))
        .route("/v1/servers", post(register))
        .route("/v1/servers/{id}", delete(leave))
        .route("/v1/servers/{id}/heartbeat", post(heartbeat))
        .route("/v1/servers/{id}/lost", post(lost))
        .route("/v1/servers/{id}/drain", post(drain).delete(undrain))
        .route("/v1/balance", put(balance))
        .route(SCALE, post(scale).get(scaling).delete(end_scaling))
        .route("/metrics", get(metrics))
        .route("/v1/live", get(page::live))
        .route("/v1/history", get(page::history))
        .route("/v1/where", get(whereabouts))
        .route("/v1/moves", post(begin_move))
        .route("/v1/moves/{number}", delete(cancel_move))
        .route("/v1/splits", post(split))
        .fallback(async || {
            failed(StatusCode::NOT_FOUND, "there is no such path; /openapi.json lists them")
        })
        .method_not_allowed_fallback(async || {
            failed(StatusCode::METHOD_NOT_ALLOWED, "not this way; /openapi.json says how")
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&shared.gate), enter))
        // The gate has a limit of its own.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

pub(crate) fn failed(status: StatusCode, why: impl Into<String>) -> Response {
    (status, Json(Failure { error: why.into(), leader: None })).into_response()
}

/// Who asks goes on to who leads.
fn not_leading(not: NotLeading) -> Response {
    let leader = not.leader.as_deref().and_then(|url| HeaderValue::from_str(url).ok());
    let failure = Failure { error: not.why, leader: not.leader };
    let mut response = (StatusCode::SERVICE_UNAVAILABLE, Json(failure)).into_response();
    if let Some(leader) = leader {
        response.headers_mut().insert(LEADER, leader);
    }
    response
}

fn unanswered(failed: Failed) -> Response {
    match failed {
        Failed::Refused(refusal) => {
            let status = match refusal {
                Refusal::Senseless(_) => StatusCode::BAD_REQUEST,
                Refusal::Unknown(_) => StatusCode::NOT_FOUND,
                Refusal::Conflict(_) => StatusCode::CONFLICT,
            };
            self::failed(status, refusal.to_string())
        }
        Failed::Unsaved(why) => self::failed(StatusCode::SERVICE_UNAVAILABLE, why),
        Failed::NotLeading(not) => not_leading(not),
    }
}

/// A JSON body; what is wrong with it is an answer like every other.
struct Body<T>(T);

impl<S: Send + Sync, T: for<'a> Deserialize<'a>> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Response> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| failed(rejection.status(), rejection.body_text()))?;
        // Nothing is an object without fields: some calls may do without any.
        let bytes = if bytes.is_empty() { b"{}" } else { bytes.as_ref() };
        match Json::<T>::from_bytes(bytes) {
            Ok(Json(body)) => Ok(Body(body)),
            Err(rejection) => Err(failed(StatusCode::BAD_REQUEST, rejection.body_text())),
        }
    }
}

impl Shared {
    /// The driver saves files: it does not belong on the threads that serve sockets. Refusals carry the term too.
    async fn with_driver<T: Send + 'static>(
        self,
        ask: impl FnOnce(&mut Driver) -> (Option<Term>, Result<T, Failed>) + Send + 'static,
        answer: impl FnOnce(T) -> Response,
    ) -> Response {
        let Ok(Ok(turn)) = timeout(TURN_WITHIN, Arc::clone(&self.turn).acquire_owned()).await
        else {
            let why = "the coordinator waits for its disk or for etcd; nothing was done";
            return failed(StatusCode::SERVICE_UNAVAILABLE, why);
        };
        let Ok((term, told)) = self.driven(turn, ask).await else {
            return failed(StatusCode::INTERNAL_SERVER_ERROR, "a fault of the coordinator");
        };
        let mut response = told.map_or_else(unanswered, answer);
        if let Some(term) = term {
            response.headers_mut().insert(TERM, term.into());
        }
        response
    }

    /// On a thread that may wait. The turn is over when that is, whether or not anybody still wants to know.
    pub(crate) fn driven<T: Send + 'static>(
        self,
        turn: OwnedSemaphorePermit,
        ask: impl FnOnce(&mut Driver) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        tokio::task::spawn_blocking(move || {
            let told = ask(&mut self.driver.lock());
            drop(turn);
            told
        })
    }

    async fn tell(self, ask: control::Request) -> Response {
        let answer = |answer| match answer {
            control::Response::Registered(registered) => Json(registered).into_response(),
            control::Response::News(news) => Json(news).into_response(),
            control::Response::Status(status) => Json(status).into_response(),
            control::Response::Map(document) => document.into_response(),
            control::Response::Move(number) => {
                Json(serde_json::json!({ "number": number })).into_response()
            }
            control::Response::HotKeys(told) => Json(told).into_response(),
            control::Response::Forecast(told) => Json(told).into_response(),
            control::Response::Scale(told) => Json(*told).into_response(),
            // Planners read it, not callers.
            control::Response::Outlook(_)
            | control::Response::Overview(_)
            | control::Response::Rates(_)
            | control::Response::Owners(_)
            | control::Response::Demand(_)
            | control::Response::Autoscale(_)
            | control::Response::Inventory(_)
            | control::Response::Done => Json(serde_json::json!({})).into_response(),
        };
        self.with_driver(|driver| driver.ask(ask), answer).await
    }
}

async fn map(State(shared): State<Shared>) -> Response {
    shared.tell(control::Request::Map).await
}

async fn status(State(shared): State<Shared>) -> Response {
    shared.tell(control::Request::Status).await
}

async fn hot_keys(State(shared): State<Shared>) -> Response {
    shared.tell(control::Request::HotKeys).await
}

/// `?servers=N&database_rate=R`, either or none.
async fn forecast(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let (mut servers, mut database_rate) = (0, None);
    for (name, value) in
        query.iter().flat_map(|query| query.split('&')).filter_map(|one| one.split_once('='))
    {
        let is_read = match name {
            "servers" => value.parse().map(|count| servers = count).is_ok(),
            "database_rate" => {
                database_rate = value.parse().ok().filter(|rate| (0.0..1e15).contains(rate));
                database_rate.is_some()
            }
            _ => true,
        };
        if !is_read {
            return failed(StatusCode::BAD_REQUEST, format!("{name}={value}: a number"));
        }
    }
    shared.tell(control::Request::Forecast { servers, database_rate }).await
}

async fn autoscale(State(shared): State<Shared>) -> Response {
    shared.with_driver(Driver::autoscale, |status| Json(status).into_response()).await
}

async fn set_autoscale(
    State(shared): State<Shared>,
    Body(body): Body<AutoscaleConfig>,
) -> Response {
    shared.tell(control::Request::Autoscale(body)).await
}

async fn events(State(shared): State<Shared>) -> Response {
    let answer = |events| Json(serde_json::json!({ "events": events })).into_response();
    shared.with_driver(Driver::events, answer).await
}

/// Not by the driver: it may be waiting for etcd.
async fn leads(State(shared): State<Shared>) -> Response {
    let leads = shared.seat.is_none_or(|seat| seat.leads().is_ok());
    Json(Leads { leads }).into_response()
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn register(State(shared): State<Shared>, Body(body): Body<Registration>) -> Response {
    shared.tell(control::Request::Register(body)).await
}

async fn heartbeat(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Body(body): Body<Heartbeat>,
) -> Response {
    match server(&id) {
        Ok(id) => shared.tell(control::Request::Heartbeat(id, body)).await,
        Err(response) => response,
    }
}

async fn leave(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Body(body): Body<Leaving>,
) -> Response {
    match server(&id) {
        Ok(id) => shared.tell(control::Request::Leave(id, body.incarnation)).await,
        Err(response) => response,
    }
}

async fn lost(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Body(body): Body<LostCall>,
) -> Response {
    match server(&id) {
        Ok(id) => shared.tell(control::Request::SaidLost(id, body)).await,
        Err(response) => response,
    }
}

async fn drain(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match server(&id) {
        Ok(id) => shared.tell(control::Request::Drain(id, true)).await,
        Err(response) => response,
    }
}

async fn undrain(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match server(&id) {
        Ok(id) => shared.tell(control::Request::Drain(id, false)).await,
        Err(response) => response,
    }
}

async fn balance(State(shared): State<Shared>, Body(body): Body<BalanceCall>) -> Response {
    shared.tell(control::Request::Balance(body.mode)).await
}

async fn copy_hot_keys(State(shared): State<Shared>, Body(body): Body<HotCall>) -> Response {
    shared.tell(control::Request::CopyHotKeys(body.mode)).await
}

async fn scale(
    State(shared): State<Shared>,
    only_dry: Option<Extension<OnlyDry>>,
    Body(body): Body<ScaleCall>,
) -> Response {
    if only_dry.is_some() && !body.dry_run {
        return unauthorized();
    }
    shared.tell(control::Request::Scale(body)).await
}

async fn scaling(State(shared): State<Shared>) -> Response {
    shared.tell(control::Request::Scaling).await
}

async fn end_scaling(State(shared): State<Shared>) -> Response {
    shared.tell(control::Request::EndScaling).await
}

/// Without the driver's answer it says that there is none: whoever is on watch is to hear of a hanging disk.
async fn metrics(State(shared): State<Shared>) -> Response {
    let page = timeout(PAGE_WITHIN, async {
        let turn = Arc::clone(&shared.turn).acquire_owned().await.ok()?;
        shared.driven(turn, Driver::metrics).await.ok()
    });
    let page = page.await.ok().flatten().unwrap_or_else(of_who_waits);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

/// `?what=KEY`: a key or a cachelet, as a URL writes it.
async fn whereabouts(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let what = query.as_deref().and_then(|query| query.strip_prefix("what="));
    let what = unescaped(what.unwrap_or_default().as_bytes());
    let what = String::from_utf8_lossy(&what).into_owned();
    let search = move |driver: &mut Driver| driver.search(&what);
    shared.with_driver(search, |found| Json(found).into_response()).await
}

async fn begin_move(State(shared): State<Shared>, Body(body): Body<MoveCall>) -> Response {
    shared.tell(control::Request::Move(body)).await
}

async fn cancel_move(State(shared): State<Shared>, Path(number): Path<String>) -> Response {
    match number.parse() {
        Ok(number) => shared.tell(control::Request::CancelMove(number)).await,
        Err(_) => failed(StatusCode::BAD_REQUEST, "a move has a number"),
    }
}

async fn split(State(shared): State<Shared>, Body(body): Body<SplitCall>) -> Response {
    shared.tell(control::Request::Split(body)).await
}

#[expect(clippy::result_large_err, reason = "the error is the answer, and is made once a call")]
fn server(id: &str) -> Result<ServerId, Response> {
    let id = id.parse().ok().map(ServerId).filter(|id| *id != ServerId::NOBODY);
    id.ok_or_else(|| failed(StatusCode::BAD_REQUEST, "a server is a number from 0 to 65534"))
}
