//! Those who are answered once: the sender of a datagram, and a server whose `get` is gathered for it.

use std::collections::BTreeMap;

use mbal_model::ServerId;

use crate::ids::{Sender, Ticket};
use crate::sessions::slots::Slots;

/// Who gets the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recipient {
    Sender { to: Sender, request_id: u16 },
    Peer { server: ServerId, ticket: Ticket },
}

/// One whose requests wait for other servers.
struct Once {
    recipient: Recipient,
    slots: Slots,
}

#[derive(Default)]
pub(crate) struct AnsweredOnce {
    all: BTreeMap<u64, Once>,
    last_serial: u64,
}

impl AnsweredOnce {
    pub fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Its requests have gone out.
    pub fn begun(&mut self, serial: u64, recipient: Recipient, slots: Slots) {
        self.all.insert(serial, Once { recipient, slots });
    }

    pub fn slots_of(&mut self, serial: u64) -> Option<&mut Slots> {
        self.all.get_mut(&serial).map(|once| &mut once.slots)
    }

    /// What may leave of its answer, and to whom; and whether that is all.
    pub fn release(&mut self, serial: u64) -> Option<(Recipient, Vec<u8>, bool)> {
        let once = self.all.get_mut(&serial)?;
        let mut reply = Vec::new();
        once.slots.release(&mut reply);
        let (recipient, is_over) = (once.recipient, once.slots.is_empty());
        if is_over {
            self.all.remove(&serial);
        }
        Some((recipient, reply, is_over))
    }
}
