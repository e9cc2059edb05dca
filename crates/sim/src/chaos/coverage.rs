//! What happened in the runs, counted: a thing that never happens is not tested.

macro_rules! sights {
    ($($name:ident: $what:literal,)*) => {
        /// Something that a run should meet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sight {
            $($name,)*
        }

        impl Sight {
            pub const ALL: &[Sight] = &[$(Sight::$name,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Sight::$name => $what,)*
                }
            }
        }
    };
}

sights! {
    EventOpened: "event: a connection was opened",
    EventReceived: "event: bytes arrived",
    EventAdopted: "event: a connection came from another worker",
    EventDrained: "event: a stalled connection's output left",
    EventClosed: "event: a connection ended",
    EventLend: "event: order to lend a cachelet",
    EventHandOver: "event: order to hand a connection over",
    EventLighten: "event: order to hand over some of the connections",
    EventMapped: "event: a map of the cluster",
    EventLinkUp: "event: a link came up",
    EventLinkBroken: "event: a link broke",
    EventAsked: "event: a peer forwards a request",
    EventAnswered: "event: a peer answered",
    EventUnanswered: "event: a peer did not answer in time",
    EventAskerGone: "event: the link has gone over which a peer asked",
    EventWoken: "event: a worker is woken at a moment that it asked for",
    EventHalfClosed: "event: a client sends no more",
    EventRests: "event: a worker rests",
    EventTiming: "event: a wake-up is timed",
    EventTimed: "event: a wake-up was timed",
    EventTick: "event: tick",
    ActionSend: "action: send",
    ActionStall: "action: stall",
    ActionHandOver: "action: hand over",
    ActionPause: "action: pause",
    ActionResume: "action: resume",
    ActionForward: "action: forward",
    ActionAnswer: "action: answer",
    ActionReport: "action: report",
    ActionClose: "action: close",
    RequestInPieces: "network: a request arrived in pieces",
    RequestsTogether: "network: several requests arrived at once",
    PeerLeft: "network: a client left with requests unanswered",
    Reset: "network: a client broke its connection off",
    HalfClosedWaits: "network: a client that sends no more waits for peers",
    HalfClosedEnds: "network: a client that sent no more got all its answers",
    Parted: "links: all between two servers broke",
    Silence: "links: one way was silent for a while",
    RequestLost: "links: a request was lost",
    ReplyLost: "links: a reply was lost",
    RequestTooLate: "links: a request came after its deadline",
    RequestAfterBreak: "links: a request arrived after its link had broken",
    ReplyAfterBreak: "links: a reply arrived after its link had broken",
    FramesTogether: "links: frames arrived together",
    ReplyTwice: "links: a reply arrived twice",
    ReplyTooLate: "links: a reply arrived after its request's deadline",
    FoundSilent: "links: one was given up, since nothing was heard",
    IdleAsked: "links: an idle one was asked whether the other side lives",
    Gathered: "peers: a get of several servers' keys",
    PassedOn: "peers: a request was passed on to a third server",
    EventCarry: "event: a move has heard something",
    ActionTellMove: "action: say something of a move",
    MapChanged: "coordinator: a new map says who has a cachelet",
    MapFollowed: "map: a server follows it",
    ChangesFollowed: "map: of an older one and what has changed since",
    MapLate: "map: an older one came to a worker after a newer one",
    Dropped: "item: gone with the process that held it",
    MoveOrdered: "move between servers: ordered",
    MovePlanned: "move between servers: planned by the balancer",
    MovePartly: "move between servers: some slices have gone",
    MoveSealed: "move between servers: all slices have gone",
    MoveBack: "move between servers: the cachelet stays",
    MoveTooLate: "move between servers: too late to be cancelled",
    MoveRefused: "move between servers: refused, though some has gone",
    SliceThawed: "move between servers: a slice was served by its source again",
    MoveLinkUp: "link of moves: came up",
    MoveLinkBroken: "link of moves: broke",
    CancelWanted: "operator: cancels a move",
    ScaleWanted: "operator: wants a number of servers",
    RetireesNamed: "operator: says who retires",
    ScaleChosen: "scaling: servers retire, and not all that they have travels",
    MoveChooses: "scaling: a move carries what was chosen alone",
    DrainHurries: "drain: a server has little time, and chooses before each slice",
    LeftBehind: "scaling: an item was not chosen, and stayed behind",
    ScaleCancelled: "scaling: cancelled",
    ScaleDone: "scaling: all who were to retire are empty",
    AutoscaleWanted: "operator: sets the autoscaler up",
    MachinesRefuse: "autoscaler: machines refuse",
    MachineStarted: "autoscaler: a server is started",
    MachineStopped: "autoscaler: a server that is empty is stopped",
    SplitWanted: "operator: splits a cachelet",
    SaidLost: "operator: says that a server is dead",
    ServerDied: "server: its process died",
    ServerReturned: "server: another process began in its place",
    ServerJoined: "server: joined later",
    LeaseWord: "ownership: a server owns by its lease",
    LeaseOver: "ownership: a server's lease ended, and it began anew",
    LeaseDead: "ownership: the coordinator saw that a lease was over",
    LeaseAwaited: "ownership: another process waited for the end of a lease",
    EtcdSilent: "ownership: etcd did not answer in time",
    EtcdElects: "ownership: another member of etcd leads",
    LeaseRevoked: "ownership: a server's key was removed",
    ServerStopped: "server: its process was stopped for a while",
    ClientBroken: "network: a client's server died",
    CoordinatorDied: "coordinator: its process died",
    CoordinatorStopped: "coordinator: its process was stopped for a while",
    CoordinatorSilent: "coordinator: one way to or from it was silent for a while",
    SaveFailed: "coordinator: could not save",
    SaveInDoubt: "coordinator: did not know whether it had saved",
    SavedUnanswered: "coordinator: died after it had saved, before it answered",
    CallLost: "coordinator: a call, or its answer, was lost",
    CallTwice: "coordinator: a call came twice",
    CallTimedOut: "coordinator: did not answer in time",
    PlannedUneven: "planner: moves where loads are uneven",
    SplitPlanned: "planner: splits what nobody has a place for",
    EvenIsQuiet: "planner: leaves alone what is even",
    Settled: "cluster: came to rest, and every key could be read",
    NoRoute: "peers: a client was told of no route",
    Unreachable: "peers: a get missed, since its key's owner could not be reached",
    NotEverywhere: "peers: flush_all did not reach every server",
    Everywhere: "peers: flush_all reached every server",
    QuietInDoubt: "peers: a request that wanted no answer may have been lost",
    SocketFull: "bound: a socket took no more",
    TurnOfRequests: "bound: a connection had its share of requests in a turn",
    OutputFull: "bound: output per connection",
    RoomInTurns: "bound: a value waited while room was made bit by bit",
    RoomInUse: "bound: a value waited for memory that another worker might see",
    PeerHeld: "bound: a peer's request waited for room, or stood behind one that did",
    ValueTooLarge: "bound: a value over the item limit",
    MemoryFull: "bound: items were evicted",
    SlowWorker: "race: a worker lost its core in its turn",
    OwnerChanged: "move: a cachelet changed its owner",
    NewsEpoch: "balancer: an epoch ended",
    NewsPlanned: "balancer: a planner answered",
    NewsReported: "balancer: a worker reported",
    NewsAsked: "balancer: the operator asked",
    DutyAsk: "balancer: asks a planner",
    DutyLend: "balancer: orders to lend",
    DutyLighten: "balancer: orders to hand over connections",
    Evened: "balancer: evens out",
    LoanOver: "balancer: a loan is over",
    NonsenseRejected: "balancer: refuses nonsense",
    AnswerTooLate: "balancer: gives up on a planner",
    PlannerPrompt: "planner: prompt",
    PlannerSlow: "planner: slow",
    PlannerSilent: "planner: never answers",
    PlannerBroken: "planner: breaks",
    PlannerLies: "planner: answers nonsense",
    ReportLost: "race: a report was lost",
    LendStale: "race: an order to lend came after the owner had changed",
    LendRefused: "order: to lend to nobody, or to oneself",
    HandOverNow: "move: a connection left at once",
    HandOverMidRequest: "race: a connection was to leave in the middle of a request",
    Lightened: "move: a worker handed over some of its connections",
    HandOverStale: "race: a connection was to leave that had gone",
    HandOverRefused: "order: to hand over a connection that stays, or to nobody",
    LeftWithOutput: "race: a connection was to leave with output that had not left",
    ArrivedUnderWay: "race: bytes arrived while their connection was between two workers",
    ClosedUnderWay: "race: a client closed while its connection was between two workers",
    Overtaken: "race: a later letter arrived first",
    ToldOwner: "smart client: told where a cachelet has gone",
    ToldServer: "smart client: told which server, and which worker of it, was asked instead",
    ToldMap: "smart client: told who owns what",
    MapUnchanged: "smart client: told that nothing has changed",
    ChangedUnderWay: "race: an owner changed with requests of its keys on their way",
    SplitBegan: "split: began",
    SplitDone: "split: done",
    SplitUnderWay: "race: a request met a cachelet that was being split",
    MovedInSplit: "race: a cachelet changed its owner while it was being split",
    FlushInSplit: "race: flush_all met a cachelet that was being split",
    FlushAtOnce: "command: flush_all",
    FlushLater: "command: flush_all with a delay",
    Expired: "item: gone by its deadline",
    CasFailed: "item: changed between gets and cas",
    ThresholdSet: "hot keys: the coordinator computed T",
    KeyHot: "hot keys: one has copies that all have its newest version",
    KeyPending: "hot keys: copies of one are being made or renewed",
    KeyCools: "hot keys: copies of one are being dropped",
    KeyRetired: "hot keys: one has no copies any more",
    ToldCopies: "hot keys: a smart client was told where copies are",
    CopyAsked: "hot keys: a copy answered a smart client",
    CopyPassedOn: "hot keys: a smart client asked for a copy that its home answered",
    CopyReadForOther: "hot keys: a copy answered an ordinary client of its server",
    ForwardByLease: "hot keys: a server asked a copy for an ordinary client",
    HotWritten: "hot keys: a write of one that has copies",
    HotFlushed: "hot keys: flush_all while one has copies",
    HotMoves: "hot keys: the cachelet of one that has copies is to move",
    HotHomeDied: "hot keys: the home of one that has copies died",
    ShadowDied: "hot keys: a server with copies died",
    NewbornWaits: "hot keys: one was asked for whose cachelet began empty, and served nothing yet",
    FenceAsked: "hot keys: a server was asked to fence off copies of a cachelet that began empty",
    Stranger: "stranger: broken requests arrived",
    StrangerClosed: "stranger: the server closed on one",
    StrangerAnswered: "stranger: one got an error for an answer",
}

/// How often each [`Sight`] was met.
#[derive(Clone, Debug)]
pub struct Coverage([u64; Sight::ALL.len()]);

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage([0; Sight::ALL.len()])
    }
}

impl Coverage {
    pub fn meet(&mut self, sight: Sight) {
        self.0[sight as usize] += 1;
    }

    pub fn of(&self, sight: Sight) -> u64 {
        self.0[sight as usize]
    }

    pub fn add(&mut self, other: &Coverage) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    pub fn never(&self) -> impl Iterator<Item = Sight> {
        Sight::ALL.iter().copied().filter(|sight| self.0[*sight as usize] == 0)
    }

    pub fn table(&self) -> String {
        let line = |sight: &Sight| format!("{:>12}  {}\n", self.0[*sight as usize], sight.name());
        Sight::ALL.iter().map(line).collect()
    }
}
