//! Who is let in, and how much of what he says is kept: before a call is looked at.
//!
//! ```text
//!   head ──► Host, Origin: no web page's ──► token ──► JSON? ──► body, if there is room ──► api.rs
//! ```
//! `docs/security.md` has the rules.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use mbal_control::web::{Hosts, is_json, is_same_origin};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::api::failed;

/// A heartbeat of 64 workers and 4,096 cachelets is a tenth of it.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Most bodies are shorter. Longer ones are few at a time, so that nobody keeps heartbeats waiting by them.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// Room for bodies that are read or worked on, short ones and long ones by themselves: all that callers can make this process keep.
const ROOM_BYTES: usize = 32 << 20;
/// A body has come by then.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// By which a browser says where the page is from that had this sent.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The call that may be a dry run.
pub(crate) const SCALE: &str = "/v1/scale";

pub(crate) struct Gate {
    hosts: Hosts,
    /// Of `Authorization: Bearer`, hashed: what changes anything needs it.
    token: Option<Vec<u8>>,
    /// Nobody but this host's own programs comes.
    is_loopback: bool,
    /// In KiB.
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn new(hosts: Hosts, token: Option<&str>, is_loopback: bool) -> Gate {
        let room = || Arc::new(Semaphore::new(ROOM_BYTES >> 10));
        let (short, long) = (room(), room());
        Gate { hosts, token: token.map(hashed), is_loopback, short, long }
    }

    #[expect(clippy::result_large_err, reason = "the error is the answer, and is made once a call")]
    fn let_in(&self, request: &Request) -> Result<Entry, Response> {
        let (headers, path) = (request.headers(), request.uri().path());
        let (host, origin) = (one(headers, header::HOST)?, one(headers, header::ORIGIN)?);
        let site = one(headers, FETCH_SITE)?;
        let is_foreign = origin.is_some_and(|origin| !is_same_origin(origin, host));
        // A link to the page is followed from anywhere.
        let is_link = *request.method() == Method::GET && path == "/";
        if is_foreign || site.is_some_and(|site| !is_own_site(site)) && !is_link {
            let why = "a web page of another site may not call a coordinator";
            return Err(failed(StatusCode::FORBIDDEN, why));
        }
        let said = one(headers, header::AUTHORIZATION)?;
        let said = said.and_then(|value| value.strip_prefix("Bearer ")).map(hashed);
        let knows_token = self.token.is_some() && said == self.token;
        // Numbers without names, for probes and for Prometheus, which name hosts as they like.
        let is_public = path == "/healthz" || path == "/metrics" && !self.is_loopback;
        let named = [host, request.uri().authority().map(|authority| authority.as_str())];
        let foreign = named.into_iter().flatten().find(|host| !self.hosts.allow(host));
        if let Some(host) = foreign.filter(|_| !knows_token && !is_public) {
            let why = format!(
                "{} is no name of this coordinator: call it by its address, say --allow-host at its start, or bring its token",
                host.escape_debug()
            );
            return Err(failed(StatusCode::FORBIDDEN, why));
        }
        if !is_changing(request.method()) {
            return Ok(Entry::Free);
        }
        // Without a token whoever is on this host may change things, but no page in his browser.
        if self.token.is_none() && (origin.is_some() || site.is_some()) {
            let why =
                "a page changes nothing without a token: start the coordinator with --token-file";
            return Err(failed(StatusCode::UNAUTHORIZED, why));
        }
        let entry = match self.token.is_some() && !knows_token {
            true if *request.method() == Method::POST && path == SCALE => Entry::OnlyDry,
            true => return Err(unauthorized()),
            false => Entry::Free,
        };
        let has_body = !is_empty(headers);
        match one(headers, header::CONTENT_TYPE)? {
            Some(said) if is_json(said) => Ok(entry),
            None if !has_body => Ok(entry),
            _ => {
                let why = "a body is JSON, and says so: `Content-Type: application/json`";
                Err(failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, why))
            }
        }
    }

    async fn room_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Response> {
        let kib = bytes.div_ceil(1 << 10) as u32;
        let room = match bytes {
            0..=SHORT_BYTES_MAX => {
                let short = Arc::clone(&self.short).acquire_many_owned(kib);
                timeout(BODY_WITHIN, short).await.ok().and_then(Result::ok)
            }
            _ => Arc::clone(&self.long).try_acquire_many_owned(kib).ok(),
        };
        let busy = "too many calls at a time; nothing was done";
        room.ok_or_else(|| failed(StatusCode::SERVICE_UNAVAILABLE, busy))
    }
}

/// Lets a call in, with its whole body.
pub(crate) async fn enter(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let bytes_max = match gate.let_in(&request) {
        Ok(Entry::Free) => BODY_BYTES_MAX,
        Ok(Entry::OnlyDry) => {
            request.extensions_mut().insert(OnlyDry);
            SHORT_BYTES_MAX
        }
        Err(response) => return response,
    };
    if !is_changing(request.method()) {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    let bytes = match length(&head.headers) {
        Some(bytes) if bytes > bytes_max => {
            let why = format!("a body has {bytes_max} bytes at most");
            return failed(StatusCode::PAYLOAD_TOO_LARGE, why);
        }
        Some(bytes) => bytes,
        None if is_empty(&head.headers) => 0,
        None => bytes_max,
    };
    let _room = match gate.room_for(bytes).await {
        Ok(room) => room,
        Err(response) => return response,
    };
    match timeout(BODY_WITHIN, to_bytes(body, bytes)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, Body::from(body))).await,
        Ok(Err(error)) => failed(StatusCode::BAD_REQUEST, format!("its body: {error}")),
        Err(_) => failed(StatusCode::REQUEST_TIMEOUT, "its body did not come in time"),
    }
}

/// What somebody may do who was let in.
enum Entry {
    Free,
    /// Without the token: a dry run of a scaling changes nothing.
    OnlyDry,
}

/// Goes with a call whose caller has not said the token.
#[derive(Clone, Copy)]
pub(crate) struct OnlyDry;

pub(crate) fn unauthorized() -> Response {
    let why = "this call needs `Authorization: Bearer TOKEN`";
    let mut response = failed(StatusCode::UNAUTHORIZED, why);
    let bearer = "Bearer".parse().expect("a header's value");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    response
}

/// Of this coordinator's own page, or of nobody's: a person has typed it.
fn is_own_site(site: &str) -> bool {
    matches!(site, "same-origin" | "none")
}

fn is_changing(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD)
}

fn length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn is_empty(headers: &HeaderMap) -> bool {
    let has_length = headers.contains_key(header::CONTENT_LENGTH);
    !headers.contains_key(header::TRANSFER_ENCODING) && (!has_length || length(headers) == Some(0))
}

/// What a header says that may be there once.
#[expect(clippy::result_large_err, reason = "the error is the answer, and is made once a call")]
fn one(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Response> {
    let mut values = headers.get_all(&name).iter();
    let value = values.next().map(|value| value.to_str()).transpose();
    match (value, values.next()) {
        (Ok(value), None) => Ok(value),
        _ => Err(failed(StatusCode::BAD_REQUEST, format!("{name}: once, in ASCII"))),
    }
}

fn hashed(token: &str) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref().to_vec()
}
