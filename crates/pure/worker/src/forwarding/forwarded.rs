//! What another server asks for its client, before it is executed.

use mbal_model::{Instant, ServerId};
use mbal_wire::{Admin, BINARY_REQUEST, Limits, PeerRequest, Request};

use crate::ids::Ticketed;
use crate::sessions::job::{Job, next_job};
use crate::time::until;

/// A peer's request, parsed.
pub(crate) struct ForwardedRequest<'a> {
    pub from: ServerId,
    pub as_it_came: Ticketed<'a>,
    /// Until when it may be executed, here or wherever it is passed on to.
    pub until: Instant,
    pub peer: PeerRequest<'a>,
}

impl<'a> ForwardedRequest<'a> {
    /// `None` for what is no request, or more than one; else the request is in `place`.
    pub fn parse(
        from: ServerId,
        asked: &Ticketed<'a>,
        now: Instant,
        limits: &Limits,
        place: &mut Option<Job<'a>>,
    ) -> Option<ForwardedRequest<'a>> {
        let peer = PeerRequest::decode(asked.bytes)?;
        let binary = peer.request[0] == BINARY_REQUEST;
        let job = next_job(binary, limits, peer.request, 0, place).ok()?;
        let is_for_all =
            matches!(job.request, Request::Admin { command: Admin::FlushAll { .. }, .. });
        let until = until(now, asked.micros_left);
        let is_meant = job.skip == 0 && (is_for_all || job.request.key().is_some());
        is_meant.then_some(ForwardedRequest { from, as_it_came: *asked, until, peer })
    }
}
