//! Those who are answered once: the sender of a datagram, and a server whose `get` is gathered for it.

use std::collections::BTreeMap;

use mbal_model::ServerId;

use crate::slots::Slots;
use crate::worker::Worker;
use crate::{Action, Actions, Sender, Ticket};

/// Who gets the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recipient {
    Sender { to: Sender, request_id: u16 },
    Peer { server: ServerId, ticket: Ticket },
}

/// One whose requests wait for other servers.
pub(crate) struct Once {
    recipient: Recipient,
    pub slots: Slots,
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
}

impl Worker {
    /// Sends what may leave of an answer, now that another server has answered.
    pub(crate) fn release_once(&mut self, serial: u64, actions: &mut Actions) {
        let Some(once) = self.once.all.get_mut(&serial) else { return };
        let mut reply = Vec::new();
        once.slots.release(&mut reply);
        let (recipient, is_over) = (once.recipient, once.slots.is_empty());
        if is_over {
            self.once.all.remove(&serial);
        }
        match recipient {
            Recipient::Sender { to, request_id } => {
                self.answer_datagram(to, request_id, reply, actions);
            }
            // There is one request, so it is all of the answer.
            Recipient::Peer { server, ticket } if is_over => {
                let start = actions.bytes.len();
                actions.bytes.extend_from_slice(&reply);
                let reply = start..actions.bytes.len();
                actions.list.push(Action::Answer { server, ticket, reply });
            }
            Recipient::Peer { .. } => {}
        }
    }
}
