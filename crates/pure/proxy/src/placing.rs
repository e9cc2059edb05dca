//! Over which connection a key's request goes.

use mbal_model::KEY_BYTES_MAX;
use mbal_model::planted::{Fault, is_planted};
use mbal_routing::ketama::KeyHash;
use mbal_wire::base64_decode;

use crate::naming::SUFFIX_BYTES;
use crate::proxy::Proxy;
use crate::upstream::{Health, State};

/// Why an upstream is not asked.
pub(crate) type Refusal = &'static [u8];

pub(crate) const DOWN: Refusal = b"SERVER_ERROR upstream is down\r\n";
const BUSY: Refusal = b"SERVER_ERROR upstream is busy\r\n";

impl Proxy {
    /// The connection for a key, and what the name is made of that it has there, if it has another.
    #[inline]
    pub(crate) fn route(
        &mut self,
        key: &[u8],
        base64: bool,
    ) -> Result<(usize, Option<u64>), Refusal> {
        // An item has one place, however its key is spelled.
        if base64 {
            let mut decoded = [0; KEY_BYTES_MAX];
            let length = base64_decode(key, &mut decoded);
            return self.route_to(length.map_or(key, |length| &decoded[..length]), true);
        }
        self.route_to(key, false)
    }

    /// Likewise for a key as it is hashed. One that came in base64 has no other name.
    #[inline]
    fn route_to(&mut self, key: &[u8], base64: bool) -> Result<(usize, Option<u64>), Refusal> {
        let home = self.full.place(key).ok_or(DOWN)?;
        if self.upstreams[home].cluster.is_some() {
            return self.route_in_cluster(home, key, false).map(|conn| (conn, None));
        }
        // Keys of an upstream that serves stay there: what it has would be older when they came back.
        let serves = self.all_present
            || self.upstreams[home].health == Health::Serves && !is_planted(Fault::AllKeysMove);
        let (upstream, name) = match serves {
            true => (home, None),
            false => match self.present.place(key) {
                None => return Err(DOWN),
                Some(there) => (there, (there != home).then_some(self.epoch)),
            },
        };
        if name.is_some() && (base64 || KEY_BYTES_MAX < key.len() + SUFFIX_BYTES) {
            return Err(DOWN);
        }
        let conn = self.conn_of(upstream, key);
        self.admit(conn)?;
        Ok((conn, name))
    }

    /// The connection over which an upstream is asked for a key: always the same, so that its requests stay in order.
    #[inline]
    pub(crate) fn conn_of(&self, upstream: usize, key: &[u8]) -> usize {
        let conns = self.settings.conns_per_server;
        let among = if conns == 1 { 0 } else { KeyHash::OneAtATime.place(key) as usize % conns };
        self.upstreams[upstream].first_conn + among
    }

    /// Likewise for binary. A key whose upstream is ejected is nowhere.
    pub(crate) fn route_binary(&mut self, key: &[u8]) -> Result<usize, Refusal> {
        let home = self.full.place(key).ok_or(DOWN)?;
        if self.upstreams[home].cluster.is_some() {
            return self.route_in_cluster(home, key, true);
        }
        if self.upstreams[home].health != Health::Serves {
            return Err(DOWN);
        }
        let conn = self.conn_of(home, key) + self.settings.conns_per_server;
        self.admit(conn)?;
        Ok(conn)
    }

    /// Whether a connection takes one more request.
    #[inline]
    pub(crate) fn admit(&mut self, conn: usize) -> Result<(), Refusal> {
        let this = &self.conns[conn];
        match this.state {
            State::Closed { retry_at } if retry_at <= self.now => self.dial(conn),
            // It was closed since nobody used it.
            State::Closed { .. } if self.upstreams[this.upstream].failures == 0 => self.dial(conn),
            State::Closed { .. } => return Err(DOWN),
            State::Dialing { .. } | State::Up => {}
        }
        let limits = &self.settings.limits;
        let this = &self.conns[conn];
        match this.asked.len() < limits.conn_requests_max
            && this.out.len() < limits.conn_output_bytes_max
        {
            true => Ok(()),
            false => Err(BUSY),
        }
    }
}
