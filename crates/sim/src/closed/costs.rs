//! What serving takes. The machine decides that; what is modelled here can be measured on a testbed instead.

/// In seconds of a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// One turn of a connection, and each key of a request.
    pub turn: f64,
    pub key: f64,
    /// A request between servers shares its turn with others, at either end.
    pub link: f64,
    /// By events, a worker that has slept wakes up.
    pub wake: f64,
    /// By events, the one thread that asks for all smart clients, or for a server's ordinary ones: for each part of a request, and each key.
    pub client: f64,
    pub client_key: f64,
}

impl Costs {
    /// As workers count them: `worker/observing/load.rs`.
    pub const MODELLED: Costs =
        Costs { turn: 5e-6, key: 0.25e-6, link: 3e-6, wake: 0.0, client: 0.0, client_key: 0.0 };
}

impl Default for Costs {
    fn default() -> Costs {
        Costs::MODELLED
    }
}

/// How a kernel keeps quotas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quotas {
    /// Seconds of a core that a worker is given at a time.
    pub slice: f64,
    /// Seconds between two looks at what a worker has used that does not sleep.
    pub tick: f64,
}

impl Quotas {
    /// The least that Linux gives, and its usual 250 ticks a second.
    pub const LEAST: Quotas = Quotas { slice: 1e-3, tick: 4e-3 };
}

#[derive(clap::Args, Clone, Copy, Debug)]
pub struct CostArgs {
    /// Microseconds of a core for a turn of a connection.
    #[arg(long, value_name = "US", default_value_t = 1e6 * Costs::MODELLED.turn)]
    turn_us: f64,
    /// The same for each key of a request.
    #[arg(long, value_name = "US", default_value_t = 1e6 * Costs::MODELLED.key)]
    key_us: f64,
    /// The same for a part that a server asks of another, at either end.
    #[arg(long, value_name = "US", default_value_t = 1e6 * Costs::MODELLED.link)]
    link_us: f64,
    /// By events, the same for a worker that wakes up.
    #[arg(long, value_name = "US", default_value_t = 1e6 * Costs::MODELLED.wake)]
    wake_us: f64,
    /// By events, the same for who asks, for each part of a request: one thread for all smart clients, and one for each server's ordinary ones.
    #[arg(long, value_name = "US", default_value_t = 1e6 * Costs::MODELLED.client)]
    client_us: f64,
    /// And for each key.
    #[arg(long, value_name = "US", default_value_t = 1e6 * Costs::MODELLED.client_key)]
    client_key_us: f64,
}

impl CostArgs {
    pub fn costs(&self) -> Costs {
        // What costs nothing is no work that could stand in a queue.
        Costs {
            turn: self.turn_us / 1e6,
            key: self.key_us / 1e6,
            link: (self.link_us / 1e6).max(1e-9),
            wake: self.wake_us / 1e6,
            client: self.client_us / 1e6,
            client_key: self.client_key_us / 1e6,
        }
    }
}
