//! The list: all locks that threads of a process share, in the order in which they are taken.
//!
//! Whoever adds a lock puts it behind those that may be held when it is taken, and before those that are taken while it is held.
//! Each line says what the lock guards, and who takes it. `docs/ARCHITECTURE.md` has the same order, and a test compares.

/// A lock's place in the order: what is smaller is taken first.
macro_rules! ranks {
    ($($name:ident: $guards:literal, $takes:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Rank { $(#[doc = concat!($guards, "; taken by: ", $takes)] $name),* }

        impl Rank {
            pub const ALL: &[Rank] = &[$(Rank::$name),*];

            /// What it guards.
            pub fn guards(self) -> &'static str {
                match self { $(Rank::$name => $guards),* }
            }
        }

        $(
            #[doc = $guards]
            #[derive(Debug)]
            pub enum $name {}

            impl Ranked for $name {
                const RANK: Rank = Rank::$name;
            }
        )*
    };
}

/// The kind of a lock, which has a place in the order.
pub trait Ranked {
    const RANK: Rank;
}

ranks! {
    // A coordinator.
    Driver: "the coordinator's state; held while it is saved", "its API, planner, autoscaler, watcher";
    Seat: "who leads among coordinators", "whoever has the driver, `mbal-election`";
    EtcdCluster: "which etcd it is", "whoever asks etcd";
    PageHistory: "a day of what the page has shown", "whoever makes frames, and serves them";

    // Threads of a server beside its workers.
    Departure: "how far a server's end has come", "main thread, `mbal-member`, `mbal-departure`";
    Ownership: "the lease by which a server owns", "`mbal-lease`, `mbal-member`";
    SilentCoordinators: "which coordinators were silent", "whoever asks a coordinator";
    NewestTerm: "the newest coordinator's term", "whoever asks a coordinator";
    Decisions: "how often the balancer decided what", "`mbal-balancer`, metrics";
    LastEpoch: "what a heartbeat says of loads", "`mbal-balancer`, `mbal-member`";
    LinksSeen: "to which servers links are missing, and why", "`mbal-linker`, `mbal-member`";
    SideDoors: "how many scrapers and operators are served", "`mbal-metrics`, `mbal-control`";

    // What workers share of the cluster.
    Settling: "making the store as the map says: one thread at a time", "workers, `mbal-member`";
    MoveLinks: "links for moves that are up", "`mbal-migrator`, `mbal-member`";
    MoveSides: "one move's state", "workers, `mbal-migrator`, `mbal-member`";
    CopyBackoff: "keys that are not to be copied for a while", "worker 0";
    Homes: "one shard of this server's keys that have copies; held while such a key is written", "workers, metrics";
    CopiesHere: "one shard of copies of others' keys", "workers, `mbal-member`, metrics";
    Heats: "how hot keys are by all workers", "workers, metrics";
    Hot: "one worker's hottest keys", "workers, metrics";
    Heat: "how hot keys are by one worker", "that worker";
    HotTerms: "what the coordinator says of hot keys", "workers, `mbal-member`";
    Newborn: "cachelets that serve nothing yet", "workers, `mbal-member`";
    Moves: "which moves there are", "workers, `mbal-migrator`, `mbal-member`";
    Following: "the newest map", "workers, `mbal-member`, metrics";

    // What workers share beside.
    NewestFlush: "the newest flush", "workers";
    Reference: "from when ages count", "workers, `mbal-member`";
    Hurry: "by when a server is to be empty", "workers, `mbal-member`, `mbal-departure`";
    Reset: "what `stats reset` subtracts", "workers, metrics";
    Distances: "stack distances", "workers, metrics, `mbal-member`";
    Echoed: "settings that commands change", "workers";
    Conns: "all connections", "workers, whoever accepts";
    LinksUp: "how often links came up", "workers";
    Passwords: "who may log in", "workers, main thread";

    // A store.
    Changes: "which cachelets are here", "workers, `mbal-member`";
    OwnSlots: "which cachelets one worker owns", "that worker";
    Gauge: "what one worker's evictions have shown", "that worker";
    Cachelet: "a cachelet: its writer's lock", "workers, metrics";
    NewHalf: "the upper half of a cachelet that is split, whose lower one is held", "its owner";
    Keep: "what a resize keeps", "workers, `mbal-member`";
    Begun: "the page that a worker is cleaning", "that worker";
    Evicted: "evicted items that somebody watches", "workers";
    LocalPool: "one worker's free pages", "workers";
    GlobalPool: "free pages", "workers";

    // Taken for a request while its cachelet is held.
    Details: "`stats detail`", "workers";
    Watchers: "who watches the log", "workers, main thread";
    WatcherQueue: "what one watcher is to get", "workers";

    // A proxy's data plane in the kernel.
    XdpWays: "where the kernel sends reads", "the proxy's loop, `mbal-xdp-ways`";
    XdpRings: "the kernel's rings", "the proxy's loop, `mbal-xdp-ways`";
    XdpFence: "waiting for packets on their way", "the proxy's loop, `mbal-xdp-settle`";
    XdpHot: "the kernel's hot keys", "the proxy's loop, `mbal-xdp-settle`";
    XdpSamples: "the kernel's samples", "`mbal-xdp-settle`";

    // A client, and tools.
    ClientAsks: "whom to ask for the map", "tasks";
    ClientRoutes: "where keys are", "tasks";
    ClientLeases: "leases on copies", "tasks";
    ClientServers: "the servers", "tasks";
    ClientSlots: "one server's connections", "tasks";
    ClientFailed: "the address of a server that failed", "tasks";
    ClientBreaker: "whether a server is asked", "tasks";
    ClientOpen: "one connection", "tasks";
    ClientLost: "servers whose connections were lost", "tasks";
    Pace: "how fast a pool is resized", "whoever copies";

    // Taken last by whoever has something to say.
    Certificates: "TLS certificates", "workers, main thread";
    Watched: "whom the watchdog watches", "threads that begin or end, `mbal-watchdog`";
    Letters: "a mailbox", "any thread";
}
