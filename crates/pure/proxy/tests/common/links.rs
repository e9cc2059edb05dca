//! Connections between proxies: bytes that are late, cut, or handled after their sender has died.

use std::collections::VecDeque;

use mbal_proxy::{ClientId, ConnId};

/// From one proxy, which asks, to another.
pub struct Link {
    pub asks: End,
    pub conn: ConnId,
    pub serves: End,
    /// As the serving proxy knows the other, once it does.
    pub client: Option<ClientId>,
    pub there: VecDeque<Vec<u8>>,
    pub back: VecDeque<Vec<u8>>,
    /// Nothing arrives until then.
    pub stalled_until: u64,
}

/// One side of a link.
pub struct End {
    pub proxy: usize,
    /// Which life of the proxy.
    pub life: u64,
    pub is_open: bool,
}

/// What arrives next at one of the ends.
pub enum Arrival {
    /// At the serving proxy; the first bytes make a client.
    There(Vec<u8>),
    /// The serving proxy hears that the link is gone.
    ThereEnds,
    Back(Vec<u8>),
    BackEnds,
}

impl Link {
    /// One of the things that arrive, by choice. An end hears that the other has closed behind all that it has sent.
    pub fn next(&mut self, there: bool) -> Option<Arrival> {
        if there {
            return match (self.serves.is_open, self.there.pop_front()) {
                (true, Some(bytes)) => Some(Arrival::There(bytes)),
                (true, None) if !self.asks.is_open => {
                    self.serves.is_open = false;
                    Some(Arrival::ThereEnds)
                }
                _ => None,
            };
        }
        match (self.asks.is_open, self.back.pop_front()) {
            (true, Some(bytes)) => Some(Arrival::Back(bytes)),
            (true, None) if !self.serves.is_open => {
                self.asks.is_open = false;
                Some(Arrival::BackEnds)
            }
            _ => None,
        }
    }

    pub fn is_over(&self) -> bool {
        !self.asks.is_open && !self.serves.is_open
    }
}
