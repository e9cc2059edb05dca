//! The balancer over a made-up server, in virtual time: one call is an epoch.

use mbal_balance::{
    Action, Balancer, Came, Cause, Event, Lighten, Mode, Nonsense, Proposal, Question, Thresholds,
    Verdict, propose,
};
use mbal_model::{
    CacheletLoad, Move, Order, Outcome, Owner, Prefix, Reading, ServerId, Service, Snapshot,
    WorkerId, WorkerLoad,
};

const WORKERS: usize = 4;
const CACHELETS: usize = 64;
/// `Thresholds::rest_epochs`.
const REST: u64 = 10;

/// What a planner does with a question.
type Planner = Box<dyn FnMut(&Question) -> Answer>;

enum Answer {
    Now(Proposal),
    Broken,
    Never,
}

struct Server {
    balancer: Balancer,
    planner: Planner,
    /// What is asked for, by cachelet and by worker: more than a worker has time for shows as 1.
    cachelets: Vec<f64>,
    connections: Vec<f64>,
    owners: Vec<usize>,
    /// All load is one connection's, which cannot be divided.
    one_connection: bool,
    moves: Vec<(u64, Move, f64)>,
    /// Loads vary by up to this part from epoch to epoch.
    noise: f64,
    dice: u64,
}

fn at(worker: usize) -> Owner {
    Owner { server: ServerId(0), worker: WorkerId(worker as u16) }
}

impl Server {
    fn new(mode: Mode) -> Server {
        Server {
            balancer: Balancer::new(mode, Thresholds::default()),
            planner: Box::new(|question| Answer::Now(propose(question))),
            cachelets: vec![0.2 * WORKERS as f64 / CACHELETS as f64; CACHELETS],
            connections: vec![0.0; WORKERS],
            owners: (0..CACHELETS).map(|cachelet| cachelet * WORKERS / CACHELETS).collect(),
            one_connection: false,
            moves: Vec::new(),
            noise: 0.0,
            dice: 7,
        }
    }

    fn with_planner(planner: impl FnMut(&Question) -> Answer + 'static) -> Server {
        Server { planner: Box::new(planner), ..Server::new(Mode::On) }
    }

    /// 95% of 2.8 workers' work falls on a few cachelets of worker 0.
    fn heat(&mut self) {
        self.cachelets =
            (0..CACHELETS).map(|at| if at < 16 { 2.66 / 16.0 } else { 0.14 / 48.0 }).collect();
    }

    fn unit(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as f64 / (1u64 << 53) as f64
    }

    fn asked(&self) -> Vec<f64> {
        let mut loads = self.connections.clone();
        self.owners.iter().zip(&self.cachelets).for_each(|(owner, load)| loads[*owner] += load);
        loads
    }

    fn served(&self) -> Vec<f64> {
        self.asked().into_iter().map(|load| load.min(1.0)).collect()
    }

    fn reading(&mut self) -> Reading {
        let noisy: Vec<f64> = (0..CACHELETS + WORKERS)
            .map(|_| 1.0 + self.noise * (2.0 * self.unit() - 1.0))
            .collect();
        let mut workers = Vec::new();
        let mut handable = Vec::new();
        for (worker, asked) in self.asked().into_iter().enumerate() {
            let part = if asked > 1.0 { 1.0 / asked } else { 1.0 };
            let connections = self.connections[worker] * part * noisy[CACHELETS + worker];
            let owned = (0..CACHELETS).filter(|&cachelet| self.owners[cachelet] == worker);
            let cachelets = owned.map(|cachelet| CacheletLoad {
                cachelet: Prefix::nth(cachelet, 15),
                load: self.cachelets[cachelet] * part * noisy[cachelet],
                bytes: 0,
                pinned: false,
            });
            handable.push(connections);
            workers.push(WorkerLoad {
                at: at(worker),
                service: Service::default(),
                fixed: connections,
                bytes_max: u64::MAX,
                cachelets: cachelets.collect(),
            });
        }
        Reading { snapshot: Snapshot { workers }, handable, seen: 0 }
    }

    fn epoch(&mut self) {
        let reading = self.reading();
        self.tell(Event::Epoch(reading));
    }

    fn epochs(&mut self, count: u64) {
        (0..count).for_each(|_| self.epoch());
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.balancer.handle(event, &mut actions);
        for action in actions {
            match action {
                Action::Ask(question) => {
                    let proposal = match (self.planner)(&question) {
                        Answer::Now(proposal) => Some(proposal),
                        Answer::Broken => None,
                        Answer::Never => continue,
                    };
                    self.tell(Event::Planned { number: question.number, proposal });
                }
                Action::Order { order, what } => {
                    let outcome = self.obey(what);
                    self.tell(Event::Reported { order, outcome });
                }
            }
        }
    }

    fn obey(&mut self, order: Order) -> Outcome {
        match order {
            Order::Lend { step, .. } => {
                let cachelet = step.cachelet.place();
                assert_eq!(at(self.owners[cachelet]), step.from);
                self.owners[cachelet] = usize::from(step.to.worker.0);
                self.moves.push((self.balancer.epoch(), step, self.cachelets[cachelet]));
                Outcome::Done
            }
            Order::Lighten { from, to, share, .. } => {
                let (from, to) = (usize::from(from.worker.0), usize::from(to.worker.0));
                let load = share * self.connections[from];
                if self.one_connection {
                    return Outcome::Leaving(0);
                }
                self.connections[from] -= load;
                self.connections[to] += load;
                Outcome::Leaving(1)
            }
        }
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.balancer.decisions().map(|decision| decision.verdict).collect()
    }
}

/// Max over average.
fn imbalance(loads: &[f64]) -> f64 {
    loads.iter().copied().fold(0.0, f64::max) * loads.len() as f64 / loads.iter().sum::<f64>()
}

#[test]
fn a_hot_worker_is_relieved_within_its_patience_and_three_epochs() {
    let mut server = Server::new(Mode::On);
    server.noise = 0.05;
    server.epochs(100);
    server.heat();
    assert!(imbalance(&server.served()) > 2.5);
    server.epochs(1);
    assert_eq!(server.moves, [], "one epoch is a blip");
    server.epochs(4);
    assert!(imbalance(&server.asked()) <= 1.15, "{:?}", server.asked());
    let begin = &server.balancer.decisions().next().expect("it was decided").clone();
    assert_eq!((begin.cause, begin.verdict), (Cause::Uneven, Verdict::Ordered));
    assert!(!begin.orders.is_empty() && !server.moves.is_empty(), "evened out by nothing");
    assert!(begin.orders.iter().all(|ordered| ordered.outcome == Some(Outcome::Done)));
    let (came, judged) = begin.came.as_ref().expect("looked at afterwards");
    assert!(imbalance(came) <= 1.3, "the decision is told what came of it: {came:?}");
    assert_eq!(*judged, Came::True);
}

#[test]
fn connections_are_handed_over_where_they_carry_the_load() {
    let mut server = Server::new(Mode::On);
    server.connections = vec![2.0, 0.0, 0.0, 0.0];
    server.epochs(4 + 3);
    assert!(imbalance(&server.asked()) <= 1.15, "{:?}", server.asked());
}

#[test]
fn a_day_of_even_load_moves_nothing() {
    for load in [0.001, 0.1, 0.6] {
        let mut server = Server::new(Mode::On);
        server.cachelets = vec![load * WORKERS as f64 / CACHELETS as f64; CACHELETS];
        server.connections = vec![load / 10.0; WORKERS];
        server.noise = 0.2;
        server.epochs(24 * 60 * 60);
        assert_eq!((server.moves.len(), server.verdicts().len()), (0, 0), "at {load}");
    }
}

#[test]
fn no_cachelet_goes_to_and_fro_unless_its_load_changes() {
    let mut server = Server::new(Mode::On);
    server.noise = 0.1;
    for shift in 0..200 {
        // The heat moves on every twenty epochs, to cachelets of whoever has them.
        let hot = shift * 5 % CACHELETS;
        let heat = |at: usize| if (at + CACHELETS - hot) % CACHELETS < 8 { 0.2 } else { 0.006 };
        server.cachelets = (0..CACHELETS).map(heat).collect();
        server.epochs(20);
    }
    assert!(server.moves.len() > 200, "{} moves", server.moves.len());
    for (index, (epoch, step, load)) in server.moves.iter().enumerate() {
        let back = server.moves[..index].iter().rev().take_while(|(then, ..)| then + REST > *epoch);
        for (then, before, was) in back.filter(|(_, before, _)| before.cachelet == step.cachelet) {
            let changed = (load - was).abs() >= 0.5 * was;
            assert!(before.from != step.to || changed, "{step:?} at {epoch}, and back at {then}");
        }
    }
}

#[test]
fn loans_end_when_the_heat_is_gone() {
    let mut server = Server::new(Mode::On);
    let (even, homes) = (server.cachelets.clone(), server.owners.clone());
    server.heat();
    server.epochs(20);
    assert!(!server.balancer.loans().is_empty());
    assert_ne!(server.owners, homes);
    server.cachelets = even;
    server.epochs(40);
    assert!(server.balancer.loans().is_empty(), "{:?}", server.owners);
    assert_eq!(server.owners, homes);
    assert!(!server.balancer.in_phase_two());
}

#[test]
fn off_takes_back_what_was_lent_and_nothing_else() {
    let mut server = Server::new(Mode::On);
    let mut homes = server.owners.clone();
    server.heat();
    server.epochs(20);
    // At once: what has just been lent is taken back before it is judged.
    let mut early = Server::new(Mode::On);
    early.heat();
    while early.balancer.loans().is_empty() {
        early.epochs(1);
    }
    early.tell(Event::SetMode(Mode::Off));
    early.epochs(4);
    assert_eq!(early.owners, homes);
    assert!(early.balancer.decisions().all(|decision| decision.came.is_none()));
    server.tell(Event::Move { cachelet: Prefix::nth(20, 15), to: at(3) });
    homes[20] = 3;
    assert_ne!(server.owners, homes);
    server.tell(Event::SetMode(Mode::DryRun));
    server.epochs(2);
    assert_ne!(server.owners, homes, "a dry run takes nothing back");
    server.tell(Event::SetMode(Mode::Off));
    server.epochs(1);
    assert_eq!(server.owners, homes);
    let last = server.balancer.decisions().next_back().expect("it was decided");
    assert_eq!((last.cause, last.verdict), (Cause::Withdrawn, Verdict::Ordered));
    // Nor is what a planner says later heard.
    let late = Proposal { moves: vec![step(1, 0, 2)], ..Proposal::default() };
    server.tell(Event::Planned { number: 1, proposal: Some(late) });
    let moves = server.moves.len();
    server.epochs(20);
    assert_eq!((server.moves.len(), &server.owners), (moves, &homes));
    server.tell(Event::SetMode(Mode::On));
    server.epochs(20);
    assert!(imbalance(&server.asked()) <= 1.15, "{:?}", server.asked());
}

#[test]
fn who_was_started_without_balancing_does_none_whatever_the_cluster_does() {
    for mode in [Mode::Off, Mode::DryRun] {
        let mut server = Server::new(mode);
        server.heat();
        server.tell(Event::SetMode(Mode::On));
        server.epochs(10);
        assert_eq!((server.moves.len(), server.balancer.mode()), (0, mode));
    }
}

#[test]
fn a_planner_that_never_answers_is_waited_for_and_nobody_waits() {
    let mut server = Server::with_planner(|_| Answer::Never);
    server.heat();
    server.epochs(100);
    assert_eq!((server.balancer.epoch(), server.verdicts()), (100, vec![Verdict::Slow(4)]));
    // The operator is served all the same.
    server.tell(Event::Move { cachelet: Prefix::nth(0, 15), to: at(3) });
    assert_eq!(server.owners[0], 3);
    // What it says at last is not what is asked any more.
    let late = Proposal { moves: vec![step(1, 0, 2)], ..Proposal::default() };
    server.tell(Event::Planned { number: 1, proposal: Some(late) });
    assert_eq!((server.owners[1], server.moves.len()), (0, 1));
    assert!(matches!(server.verdicts()[..], [_, _, Verdict::Slow(98)]));
}

#[test]
fn a_planner_that_breaks_is_asked_again() {
    let mut broken = 3;
    let mut server = Server::with_planner(move |question| {
        broken -= 1;
        if broken >= 0 { Answer::Broken } else { Answer::Now(propose(question)) }
    });
    server.heat();
    server.epochs(40);
    assert_eq!(server.verdicts()[..3], [Verdict::Failed; 3]);
    assert!(imbalance(&server.asked()) <= 1.15);
}

fn step(cachelet: u16, from: usize, to: usize) -> Move {
    Move { cachelet: Prefix::nth(usize::from(cachelet), 15), from: at(from), to: at(to) }
}

#[test]
fn nonsense_is_refused_whole() {
    let lighten = |from, to, load| Lighten { from, to, load, load_max: 1.0 };
    let moves = |moves: &[Move]| Proposal { moves: moves.to_vec(), ..Proposal::default() };
    let hands = |step| Proposal { lighten: vec![step], ..Proposal::default() };
    let cachelet = |number| Nonsense::Cachelet(Prefix::nth(number, 15));
    let good = step(0, 0, 1);
    for (proposal, wrong) in [
        (moves(&[good, step(20, 0, 1)]), cachelet(20)),
        (moves(&[good, step(64, 0, 1)]), cachelet(64)),
        (moves(&[good, step(0, 0, 2)]), cachelet(0)),
        (moves(&[step(1, 4, 1)]), cachelet(1)),
        (moves(&[good, step(1, 0, 0)]), Nonsense::Worker),
        (moves(&[good, step(1, 0, 9)]), Nonsense::Worker),
        (moves(&[step(20, 1, 0)]), Nonsense::NoGain),
        (moves(&(0..16).map(|at| step(at, 0, 1)).collect::<Vec<_>>()), Nonsense::NoGain),
        (hands(lighten(0, 0, 0.1)), Nonsense::Worker),
        (hands(lighten(0, 7, 0.1)), Nonsense::Worker),
        (hands(lighten(0, 1, f64::NAN)), Nonsense::Load),
        (hands(lighten(0, 1, -0.1)), Nonsense::Load),
        (hands(lighten(0, 1, 0.9)), Nonsense::Load),
    ] {
        let mut server = Server::with_planner(move |_| Answer::Now(proposal.clone()));
        server.heat();
        server.connections = vec![0.3; WORKERS];
        let before = (server.owners.clone(), server.connections.clone());
        server.epochs(4);
        assert_eq!(server.verdicts(), [Verdict::Rejected(wrong)]);
        assert_eq!((server.owners.clone(), server.connections.clone()), before);
    }
}

#[test]
fn what_rests_is_not_moved_by_anybody_but_the_operator() {
    let mut server = Server::with_planner(|_| {
        Answer::Now(Proposal { moves: vec![step(0, 3, 1)], ..Proposal::default() })
    });
    server.heat();
    server.epochs(1);
    server.tell(Event::Move { cachelet: Prefix::nth(0, 15), to: at(3) });
    // Saturation hides what is asked for, so that loads stay what they seem to be.
    server.cachelets[0] /= 2.66 / 0.95;
    server.epochs(3);
    let rejected = Verdict::Rejected(Nonsense::Restless(Prefix::nth(0, 15)));
    assert_eq!(server.verdicts(), [Verdict::Ordered, rejected]);
    server.tell(Event::Move { cachelet: Prefix::nth(0, 15), to: at(2) });
    assert_eq!(server.owners[0], 2);
}

#[test]
fn a_dry_run_says_what_it_would_do_and_off_says_nothing() {
    let mut server = Server::new(Mode::DryRun);
    server.heat();
    server.epochs(10);
    assert_eq!(server.moves, []);
    assert!(server.verdicts().iter().all(|verdict| *verdict == Verdict::OnlySaid));
    assert!(!server.verdicts().is_empty());
    let mut server = Server::new(Mode::Off);
    server.heat();
    server.epochs(10);
    assert_eq!((server.moves.len(), server.verdicts().len()), (0, 0));
    server.tell(Event::Move { cachelet: Prefix::nth(5, 15), to: at(1) });
    assert_eq!(server.owners[5], 1);
}

#[test]
fn what_cannot_be_helped_is_not_tried_all_the_time() {
    let mut server = Server::new(Mode::On);
    server.connections = vec![0.9, 0.0, 0.0, 0.0];
    server.one_connection = true;
    server.epochs(320);
    let decisions = server.verdicts().len();
    assert!((5..=20).contains(&decisions), "{decisions}");
    // Another heat meets the old patience.
    server.connections = vec![0.0; WORKERS];
    server.heat();
    server.epochs(7);
    assert!(imbalance(&server.asked()) <= 1.15, "{:?}", server.asked());
}

#[test]
fn a_server_is_helpless_while_a_worker_is_overloaded_and_nothing_can_be_done() {
    let with = |mode, load: f64| {
        let mut server = Server::new(mode);
        server.cachelets = vec![load * WORKERS as f64 / CACHELETS as f64; CACHELETS];
        server.epochs(2);
        server
    };
    assert!(with(Mode::On, 0.8).balancer.is_helpless(), "all are as hot");
    assert!(!with(Mode::On, 0.7).balancer.is_helpless());
    let hot = |mode| {
        let mut server = with(mode, 0.2);
        server.heat();
        server.epochs(2);
        server
    };
    let mut helps_itself = hot(Mode::On);
    assert!(!helps_itself.balancer.is_helpless(), "there is room beside the hot worker");
    helps_itself.epochs(20);
    assert!(!helps_itself.balancer.is_helpless());
    assert!(hot(Mode::Off).balancer.is_helpless() && hot(Mode::DryRun).balancer.is_helpless());
    let mut stuck = with(Mode::On, 0.1);
    stuck.connections = vec![0.9, 0.0, 0.0, 0.0];
    stuck.one_connection = true;
    stuck.planner = Box::new(|question| {
        // What a server is told whose connections cannot be handed over.
        let demand = Reading { handable: vec![0.0; WORKERS], ..question.demand.clone() };
        Answer::Now(propose(&Question { demand, ..question.clone() }))
    });
    stuck.epochs(12);
    assert!(stuck.balancer.is_helpless());
}

#[test]
fn a_loan_is_over_when_its_cachelet_has_changed_servers() {
    let mut server = Server::new(Mode::On);
    server.heat();
    server.epochs(6);
    let lent: Vec<Prefix> = server.balancer.loans().iter().map(|(prefix, ..)| prefix).collect();
    assert!(lent.len() > 1);
    let mut reading = server.reading();
    for worker in &mut reading.snapshot.workers {
        worker.cachelets.retain(|held| held.cachelet != lent[0]);
    }
    server.tell(Event::Epoch(reading));
    assert!(server.balancer.loans().iter().all(|(prefix, ..)| prefix != lent[0]));
}
