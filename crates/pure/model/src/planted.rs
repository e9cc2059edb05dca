//! Faults that the checkers must catch, planted where they would be made (decision 0210).
//!
//! Nothing of this is in a server: without the feature `planted` every question is answered by a constant.

/// A fault in product code, by the invariant that it breaks (docs/design/invariants.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 1: a cachelet changes its owner, and the version stays.
    OwnerWithoutVersion,
    /// 2: a split sends requests to the new half before the items are there.
    RoutesBeforeItems,
    /// 2: a slice is exported while batches go on in which somebody was told that it is here.
    ExportBeforeBatchesEnd,
    /// 3: parts of a slice are imported over what a client has stored since.
    ImportOverNewer,
    /// 3: a part is imported again, when its items may have been deleted.
    ImportAgain,
    /// 3: what arrived of a slice stays, and its source serves it again.
    KeepsWhatArrived,
    /// 3: what was exported before a `flush_all` is imported after it.
    FlushNumberIgnored,
    /// 2: what arrives and finds no room is dropped and called taken, though nothing may be evicted.
    ImportDropsWhatFindsNoRoom,
    /// 3: `flush_all` in the middle of a split passes over the new half.
    FlushSkipsNewHalf,
    /// 5: a connection is handed over while it waits for its output to leave.
    StalledIsIdle,
    /// 3: the kernel answers a key on while it is written.
    KernelAnswersOutliveWrites,
    /// 3: the kernel sends reads to an upstream whose last write has no known outcome.
    KernelReadsUnsure,
    /// 6: a key that is no base64 is taken for one that is.
    Base64Unchecked,
    /// 1: a map that comes late takes the place of a newer one.
    OlderMapFollowed,
    /// 2: a peer's request is executed twice.
    ServedTwice,
    /// 3: a reply that is there does not wait for a peer's before it.
    RepliesOvertake,
    /// 3: a cachelet that is born anew gives smaller cas than it did elsewhere.
    BornTooOld,
    /// 2: a slice that is frozen is served on, while what it had is on its way.
    FrozenIsServed,
    /// 1: a store serves a slice as soon as a part of it has come.
    ServedWhileItComes,
    /// 2: a get that missed since its key's owner could not be reached is not counted.
    MissNotCounted,
    /// 3: `flush_all` says that it is done, though a server was not reached.
    FlushForgetsServers,
    /// 5: who waits for a link that breaks is told nothing.
    LostAreForgotten,
    /// 5: who waits for a peer that does not answer in time is told nothing.
    LateAreForgotten,
    /// 3: a peer's request is executed after its deadline, when its client has been told that it failed.
    LateAreExecuted,
    /// 3: a client is told that a write was lost with its link, while it may still be executed.
    LostAreToldAtOnce,
    /// 5: a client that sends no more is closed before peers have answered what it asked.
    HalfClosedIsClosed,
    /// 5: who waits for room is not tried again.
    NobodyIsWoken,
    /// 6: a request for a key of another server is served.
    TooFarIsServed,
    /// 5: a link of moves that has broken is not dialed again.
    BrokenMoveLinksStay,
    /// 1: the destination of a move serves what has come, and the source has not called gone.
    ServedBeforeGone,
    /// 1: the source of a move takes back what is gone, since its link broke.
    TakenBackUnasked,
    /// 2: a slice is called gone when it has been sent, and not all of it taken.
    GoneBeforeTaken,
    /// 2: a slice is forgotten before its destination has said that it serves it.
    ForgottenBeforeServed,
    /// 2: the destination drops a slice that was gone, when the source dies.
    GivesUpWhatIsServed,
    /// 3: the destination serves what came of a slice that was not gone, when the source dies.
    KeepsUnfinished,
    /// 3: the source serves its old copy of a slice that was gone, when the destination dies.
    ThawsWhatIsGone,
    /// 3: a cachelet that is taken back gives the cas again that its destination gave.
    TakenBackWithoutLeap,
    /// 5: a slice stays frozen while its destination is silent.
    FrozenForEver,
    /// 5: parts are sent, however many have not been taken.
    SendsWithoutBound,
    // Rules of the deciders (docs/design/balancing.md): 7, or a load that nobody takes away.
    /// Phase 3 is always open, and goes on to the last percent.
    LevelsTheLastPercent,
    /// A server is ordered more moves at a time than it takes.
    OrdersWithoutBound,
    /// What has just changed servers may change them again.
    NothingRests,
    /// A server that is to be emptied gets cachelets.
    DrainingTakes,
    /// A server that was not heard of gets cachelets.
    SilentTakes,
    /// What is on its way counts at its source still, so it is planned for again.
    ForgetsWhatIsUnderWay,
    /// A server gets more than its memory holds.
    OverMemory,
    /// Moves take what copies are going to take.
    NothingIsPending,
    /// A planner that begins anew knows nothing of what was under way and in vain.
    LedgerIsForgotten,
    /// Moves are planned while servers have not said yet what they do.
    NobodyIsAwaited,
    // What the judge of balancing as a whole must see (`mbal-lab closed`).
    /// A saturated worker is taken for one that has just its part.
    LoadsAreCapped,
    /// A case is never the coordinator's, as long as its server may act.
    ServersKeepTheirCases,
    /// What is pending and under way is planned again, and nothing is judged.
    LedgerIsIgnored,
    /// Moves cost nothing, and what has moved does not rest.
    NothingIsDamped,
    /// Nobody has a case.
    CasesStayClosed,
    /// Nobody is told that all are hot.
    AllHotIsKept,
    /// A server gives on and on, though what it has given stays its load.
    VainGoesOn,
    /// What is too heavy for any worker is named, and not split.
    NothingIsSplit,
    /// A cachelet is split though one of its keys has the load.
    OneKeyIsSplit,
    /// What has just been split is split again before it has shown what that does.
    SplitsGoOn,
    /// A server that joins a calm cluster gets nothing.
    EmptyStaysEmpty,
    /// A server has its share as soon as the rest of it is on its way.
    FilledOnPaper,
    /// A server that refuses its share is offered it again in every epoch.
    RefusalsAreForgotten,
    /// The balancer orders moves, though an operator has turned it off.
    OffIsIgnored,
    /// 7: what an epoch has counted is told with all that was counted before it.
    EpochCountsAll,
    // Rules of a proxy (docs/design/proxy.md).
    /// 3: copies of a hot key are read after it was written.
    CopiesOutliveWrites,
    /// 3: a value that was read before a write is copied after it.
    OlderFillTaken,
    /// 3: what a write brings is kept when it is stored, though another one came behind it.
    KeptThoughOvertaken,
    /// 3: a key is copied while its home may still execute a write of unknown outcome.
    DoubtForgotten,
    /// 3: a key is deleted once after a write of unknown outcome, which may be executed later.
    LateWritesForgotten,
    /// 3: a connection to an upstream is closed in order: the machine goes on sending what it was given.
    ClosedInOrder,
    /// 2: an upstream fails as often as connections to it do by one event: it is flushed though it is well.
    EachConnectionFails,
    /// 3: an upstream that was ejected serves what it had.
    ServesUnflushed,
    /// 2: an upstream that comes back is flushed, whatever it has missed.
    FlushedOnReturn,
    /// 2: each server of a cluster behind a proxy is told of a `flush_all`.
    FlushedByEach,
    /// 2: an upstream that closes idle connections fails by that.
    IdleCloseFails,
    /// 2: what a resize has filled is taken for what was there before.
    FilledForgotten,
    /// 3: an upstream that comes back into the pool serves what it had.
    ReturnsUnflushed,
    /// 3: while an upstream is ejected keys of others move too, and come back to what was there.
    AllKeysMove,
    /// 3: a peer promises to pass on requests while a write of its own is not answered.
    PromisedInFlight,
    /// 3: a peer promises to pass on requests while a write of its own has no known outcome.
    PromisedInDoubt,
    /// 3: copies are read when peers may have stopped passing on.
    CopiesOutliveLeases,
    /// 3: a proxy that starts again serves at once, and knows nothing of its promises.
    RestartForgetsPromises,
    /// 3: `flush_all` ends the copies of one proxy alone.
    FlushNotPassed,
    // Rules of a switch of a pool that is written to (docs/design/switching.md).
    /// 3: a key that is written while it moves is not copied again.
    WritesUntold,
    /// 3: a key whose write has no known outcome is copied.
    LostWritesUntold,
    /// 3: writes go on at the old place while others read at the new one.
    WritesDoNotHold,
    /// 3: a proxy says that it holds before its writes that are under way are answered.
    HeldInFlight,
    /// 3: a proxy that starts again serves by the list that it had, whatever was under way.
    RestartForgetsSwitch,
    /// 3: a proxy does what an earlier tool has asked, when another one has begun.
    EarlierToolHeard,
    /// 3: keys are copied before servers have executed what earlier connections have brought.
    CopiedAtOnce,
    /// 3: what stands at the new place is left there, though nobody has copied it.
    StraysStay,
    /// 3: the copier reads the old place, and takes no lease at the new one.
    CopiedWithoutLease,
    /// 3: one proxy writes at the new place before all read there.
    EndedBeforeAllTurned,
    /// 3: proxies turn before the last keys that were written are copied.
    TurnedBeforeCopied,
    /// 3: a cas number of the old place is taken at the new one.
    OldCasTaken,
    /// 2: what was filled by a switch is taken for what was there before.
    SwitchForgetsFilled,
    // Rules of hot keys' copies (docs/design/hotkeys.md), by the invariant that they keep.
    /// 3: a shadow takes an older version of a copy for a newer one.
    OlderCopyTaken,
    /// 3: a copy answers somebody who has seen a newer one.
    OlderCopyAnswers,
    /// 3: a client does not remember which version its home has told of when a lease begins.
    LeaseForgetsNewest,
    /// 3: an answer of the home without copies does not end a client's lease.
    LeaseNotTaken,
    /// 3: a lease counts whose request was sent before the home told of no copies.
    OldLeaseTaken,
    /// 3: an atomic write does not wait until shadows have let go.
    WritesDoNotWait,
    /// 3: a read finds nothing at the home, and is told so while shadows answer with what was there.
    MissDoesNotWait,
    /// 3: a cachelet that begins empty is served at once, while copies of an earlier home are read.
    NewbornServes,
    /// 3: a server says that it takes no copies of an earlier owner any more, and reads those that it has.
    FencedIsRead,
    /// 3: a cachelet that serves nothing yet moves to a server that serves it at once.
    NewbornLeaves,
    /// 3: leases go on when the map has changed: who holds them may have owned the key meanwhile, and has told newer values.
    LeasesOutliveMap,
    /// 3: a copy's time to live counts from when it came.
    TtlFromArrival,
    /// 3: a copy's time to live leaves nothing to clocks that run apart.
    TtlForgetsDrift,
    /// 4: a shadow answers from its copy when its lease is over.
    ReadAfterLease,
    /// 4: a shadow's lease counts from when it heard of it.
    ShadowLeaseFromNow,
    /// 4: the home counts a shadow's lease as over before it is.
    HomeForgetsDrift,
    /// 4: a client asks for a copy when its lease is over.
    ClientKeepsLease,
    /// 5: a shadow's lease counts from the home's last word, though it has been silent: each write waits for it again.
    SilentIsGivenMore,
    /// 5: a shadow that has forgotten its copy is not told again what it is to have.
    RestartedIsKept,
    /// 5: shadows have let go for a write that nobody waits for any more, and are told nothing.
    GivenUpStaysLetGo,
    // Rules of scaling (docs/design/scaling.md): 2, what was chosen is lost.
    /// 5: servers have told what they have, and nobody chooses which of them retire.
    NobodyIsChosen,
    /// A cachelet takes along what was not chosen, and leaves behind what was.
    ColdestTravel,
    /// Ages count from the moment of the move, not from that at which all servers told theirs.
    AgesFromTheMove,
    // Rules of several coordinators (docs/design/cluster.md), by the invariant that they keep.
    /// 1: a coordinator's save does not look who leads.
    SavedWithoutTerm,
    /// 1: a coordinator's save does not look which state it replaces.
    SavedWithoutRevision,
    /// 1: a coordinator counts its lease from etcd's answer.
    LeaseFromItsAnswer,
    /// 1: a coordinator leaves no part of its lease to clocks that run apart.
    LeaseToItsEnd,
    /// 1: a coordinator's renewal counts, though nobody looked for its key.
    RenewedUnseen,
    /// 1: a coordinator's renewal counts, though etcd has another leader since.
    RenewedByAnyone,
    /// 2: a change is called saved, though etcd did not answer.
    UnansweredIsSaved,
    /// 2: a change is called not saved, though etcd did not answer.
    UnansweredIsUnsaved,
    /// 5: a coordinator leads on, however long nobody knows what became of a save.
    SettledForEver,
    // Rules of ownership leases (docs/design/cluster.md).
    /// 1: a server owns by a key of which no coordinator has heard: it may have been said to be dead before.
    OwnsWithoutWord,
    /// 1: a server goes on without etcd as soon as one coordinator says that it does not lead.
    OneDoesNotLead,
    /// 1: a server is dead as soon as its key is gone.
    DeadWhenGone,
    /// 2: a server serves though its lease is over.
    ServesWithoutLease,
    /// 5: a server does not say how far its moves are.
    MovesUnreported,
    /// 1: a server is dead though it has been heard of within its lease.
    DeadThoughHeard,
    /// 7: the autoscaler lets servers leave that have just come.
    LeavesWithoutRest,
    /// 2: the autoscaler has servers stopped that still have items.
    StopsBeforeEmpty,
    // What workers share (docs/design/cores.md).
    /// All workers count in the same counters.
    CountersAreOne,
    /// Each worker looks with each batch at a mark that the first one writes with each of its own.
    MarksAreRead,
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

#[cfg(feature = "planted")]
static EVERYWHERE: std::sync::OnceLock<Fault> = std::sync::OnceLock::new();

/// Plants a fault, or none, for all that this thread does.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Plants a fault for all that this process does, in each thread that has none of its own. The first one stays.
#[cfg(feature = "planted")]
pub fn plant_everywhere(fault: Fault) {
    let _ = EVERYWHERE.set(fault);
}

/// True if this fault is to be made here.
#[inline(always)]
pub fn is_planted(_fault: Fault) -> bool {
    #[cfg(feature = "planted")]
    return PLANTED.get().or_else(|| EVERYWHERE.get().copied()) == Some(_fault);
    #[cfg(not(feature = "planted"))]
    false
}
