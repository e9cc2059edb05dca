//! What can happen to a proxy, and what it asks for.

use mbal_routing::ketama::RingServer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(pub u32);

/// What a driver is to do for a switch of the pool, and then says by [`crate::Proxy::switch_done`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchTask {
    pub number: u64,
    pub work: SwitchWork,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchWork {
    /// Look whether all these can be dialed.
    Resolve(Vec<RingServer>),
    /// Write to the disk that there is a switch to this list. From now on the pool follows no other.
    Record(Vec<RingServer>),
    /// Change the pool, by [`crate::Proxy::change`].
    Follow(Vec<RingServer>),
    /// This is the list, after a restart too: no switch is on the disk any more.
    Save(Vec<RingServer>),
    /// Likewise; the pool is changed if it has another one.
    Restore(Vec<RingServer>),
}

/// A connection to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnId(pub u32);

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Bytes of a client.
    Received { client: ClientId, bytes: &'a [u8] },
    /// It sends no more, and may still read.
    HalfClosed { client: ClientId },
    /// Its connection is gone.
    Closed { client: ClientId },
    /// What [`Action::Dial`] asked for is there.
    Connected { conn: ConnId },
    /// Bytes of an upstream.
    Replied { conn: ConnId, bytes: &'a [u8] },
    /// A connection is gone, or could not be made.
    Lost { conn: ConnId },
    /// All that was sent over an abandoned connection has arrived, and it is half-closed now. Directly behind [`Action::Abandon`].
    Lingers { conn: ConnId },
    /// The upstream has closed that connection too, or it was `closed` without waiting any longer.
    Ended { conn: ConnId, closed: bool },
    /// It is as late as [`crate::Proxy::next_wake`] said.
    Woken,
    /// Nothing that the kernel answered by what it was told to forget up to this number is on its way.
    KernelForgot { number: u64 },
    /// The kernel's data plane has seen a read of this key.
    Sampled { key: &'a [u8] },
}

/// What a driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// There is output for a client: [`crate::Proxy::client_output`].
    ToClient(ClientId),
    ToUpstream(ConnId),
    Dial {
        conn: ConnId,
        upstream: usize,
    },
    /// Give a connection up, by reset: the machine must not go on sending. Nothing of it is told any more.
    HangUp(ConnId),
    /// Likewise; but if the upstream's machine has all that was sent, close this side alone, and tell when the other closes:
    /// then all of it has been executed. [`Event::Lingers`], [`Event::Ended`].
    Abandon(ConnId),
    /// All output has been taken.
    Close(ClientId),
    /// Close it now, whatever it has not taken.
    CutOff(ClientId),
    /// Do not read this client until [`Action::Resume`].
    Pause(ClientId),
    Resume(ClientId),
    /// There is a task: [`crate::Proxy::take_switch_task`].
    Switch,
}
