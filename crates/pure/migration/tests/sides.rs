//! Each side of a move by itself: what it wants when what happens.

use mbal_migration::destination::{self, Adopted, Destination, Imported, Meeting, Met};
use mbal_migration::source::{self, Event, Exported, Next, Source, Step};
use mbal_migration::{
    BYTES_IN_FLIGHT_MAX, Begin, Incarnation, MOVES_MAX, Order, PART_BYTES, PARTS_IN_FLIGHT_MAX,
    Refusal, Request, Response, State, Why,
};
use mbal_model::{Instant, MoveId, Prefix, WorkerId};

const HERE: Incarnation = Incarnation(2);
const MILLISECOND: u64 = 1_000_000;

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

fn prefix() -> Prefix {
    Prefix::new(0x2c00, 6).expect("a prefix")
}

fn order() -> Order {
    Order {
        id: MoveId(7),
        prefix: prefix(),
        source: Incarnation(1),
        destination: HERE,
        worker: WorkerId(3),
        generation: 12,
    }
}

fn begin(gone: Option<u64>) -> Begin {
    let Order { prefix, source, destination, worker, generation, .. } = order();
    Begin { prefix, source, destination, worker, generation, gone }
}

/// The last hash of the first slice.
fn first_last() -> u64 {
    prefix().first_hash() + (1 << 50) - 1
}

fn taken(slice: u32, number: u32) -> Event {
    Event::Answer(Response::Taken { slice, number, strained: false })
}

fn part(slice: u32, number: u32, last: u64, more: bool) -> Exported {
    Exported { slice, number, last, bytes: PART_BYTES, more }
}

/// A source with a link, whose first slice is to be exported.
fn sending() -> Source {
    let mut source = Source::new(order());
    assert_eq!(source.next(at(0)), Next::Wait(None), "there is no link");
    source.handle(at(0), Event::LinkUp).unwrap();
    assert_eq!(source.next(at(0)), Next::Say(Request::Begin(begin(None))));
    assert_eq!((source.next(at(0)), source.state()), (Next::Wait(None), State::Asking));
    source.handle(at(0), Event::Answer(Response::Ready(None))).unwrap();
    assert_eq!(source.next(at(0)), Next::Do(Step::BeginToLeave));
    source.began(at(0), true);
    assert_eq!((source.next(at(0)), source.state()), (Next::Do(Step::Freeze), State::Moving));
    source.froze(at(0), Some(33));
    assert_eq!(source.next(at(0)), Next::Do(Step::Look(33)));
    source.looked(at(0), true);
    assert_eq!(source.next(at(0)), Next::Do(Step::Export));
    source
}

/// One whose first slice is gone, and not confirmed.
fn gone() -> Source {
    let mut source = sending();
    source.exported(at(0), part(0, 0, first_last(), false));
    source.handle(at(5), taken(0, 0)).unwrap();
    assert_eq!(source.next(at(5)), Next::Say(Request::Gone(first_last())));
    source
}

#[test]
fn a_slice_is_gone_when_all_of_it_is_taken_and_forgotten_when_it_is_served() {
    let mut source = sending();
    source.exported(at(0), part(0, 0, first_last(), true));
    assert_eq!(source.next(at(0)), Next::Do(Step::Export));
    source.exported(at(0), part(0, 1, first_last(), false));
    source.handle(at(1), taken(0, 0)).unwrap();
    assert_eq!(
        (source.next(at(1)), source.gone()),
        (Next::Wait(Some(at(200 * MILLISECOND))), None)
    );
    source.handle(at(2), taken(0, 1)).unwrap();
    assert_eq!(source.gone(), Some(first_last()));
    assert_eq!(source.next(at(2)), Next::Say(Request::Gone(first_last())));
    assert_eq!(source.next(at(2)), Next::Wait(None));
    source.handle(at(3), Event::Answer(Response::Served(first_last()))).unwrap();
    assert_eq!(source.next(at(3)), Next::Do(Step::Forget));
    source.forgot(at(3), true);
    assert_eq!(source.next(at(3)), Next::Do(Step::Forget));
    source.forgot(at(3), false);
    let rested = at(3 + 4 * MILLISECOND);
    assert_eq!(source.next(at(3)), Next::Wait(Some(rested)));
    assert_eq!(source.next(rested), Next::Do(Step::Freeze));
    let progress = source.progress();
    assert_eq!((progress.slices, progress.parts, progress.bytes), (1, 2, 2 * PART_BYTES as u64));
    assert_eq!((progress.paused_ns_longest, progress.paused_ns_sum), (2, 2));
}

#[test]
fn the_last_slice_seals_the_cachelet_and_a_map_releases_it() {
    let mut source = sending();
    let last = prefix().last_hash();
    source.exported(at(0), part(0, 0, last, false));
    source.handle(at(0), taken(0, 0)).unwrap();
    source.handle(at(0), Event::Answer(Response::Served(last))).unwrap();
    assert_eq!(source.next(at(0)), Next::Say(Request::Gone(last)));
    source.forgot(at(0), false);
    assert_eq!((source.state(), source.next(at(0))), (State::Sealed, Next::Wait(None)));
    source.handle(at(0), Event::Cancel).unwrap();
    source.handle(at(0), Event::LinkDown).unwrap();
    source.handle(at(0), Event::LinkUp).unwrap();
    assert_eq!(
        (source.next(at(0)), source.progress().cancelled_too_late),
        (Next::Wait(None), true)
    );
    source.handle(at(0), Event::HandedOver).unwrap();
    assert_eq!(source.next(at(0)), Next::Do(Step::Release));
    source.released();
    assert_eq!((source.state(), source.is_over()), (State::HandedOver, true));
}

#[test]
fn a_slice_that_finds_no_room_is_served_by_its_source_and_the_next_goes_when_there_is_some() {
    let mut source = gone();
    source.handle(at(6), Event::Answer(Response::Served(first_last()))).unwrap();
    assert_eq!(source.next(at(6)), Next::Do(Step::Forget));
    source.forgot(at(6), false);
    source.froze(at(6), Some(34));
    source.looked(at(6), true);
    source.exported(at(6), part(1, 0, first_last() + 100, true));
    source.handle(at(7), Event::Answer(Response::Refused(Refusal::NoRoom))).unwrap();
    // What was sent before it knew counts no more: the destination hears nothing before this.
    assert_eq!(source.next(at(7)), Next::Say(Request::Begin(begin(Some(first_last())))));
    assert_eq!(source.next(at(7)), Next::Do(Step::Thaw));
    source.thawed(at(7));
    assert_eq!((source.next(at(7)), source.state()), (Next::Wait(None), State::Moving));
    assert_eq!(source.progress().refused, Some(Refusal::NoRoom));
    source.handle(at(8), Event::Answer(Response::Served(first_last()))).unwrap();
    source.handle(at(9), Event::Answer(Response::Ready(Some(first_last())))).unwrap();
    assert_eq!((source.next(at(9)), source.progress().refused), (Next::Do(Step::Freeze), None));
    // Where nothing has gone the cachelet stays.
    let mut source = sending();
    source.exported(at(0), part(0, 0, first_last(), true));
    source.handle(at(1), Event::Answer(Response::Refused(Refusal::NoRoom))).unwrap();
    assert_eq!(source.next(at(1)), Next::Do(Step::Thaw));
    source.thawed(at(1));
    assert_eq!(source.next(at(1)), Next::Do(Step::Stay));
    source.stayed();
    assert_eq!(source.next(at(1)), Next::Say(Request::Cancel));
    assert_eq!(source.state(), State::Back(Why::Refused(Refusal::NoRoom)));
}

#[test]
fn a_link_that_breaks_thaws_what_is_on_its_way_and_what_is_gone_stays_gone() {
    let mut source = sending();
    source.exported(at(0), part(0, 0, first_last(), true));
    source.handle(at(1), Event::LinkDown).unwrap();
    assert_eq!(source.next(at(1)), Next::Do(Step::Thaw));
    source.thawed(at(1));
    assert_eq!(source.next(at(1)), Next::Wait(None));
    source.handle(at(9), Event::LinkUp).unwrap();
    assert_eq!(source.next(at(9)), Next::Say(Request::Begin(begin(None))));
    source.handle(at(9), Event::Answer(Response::Ready(None))).unwrap();
    assert_eq!((source.next(at(9)), source.progress().again), (Next::Do(Step::Freeze), 1));

    let mut source = gone();
    source.handle(at(6), Event::LinkDown).unwrap();
    assert_eq!((source.next(at(6)), source.gone()), (Next::Wait(None), Some(first_last())));
    source.handle(at(9), Event::LinkUp).unwrap();
    assert_eq!(source.next(at(9)), Next::Say(Request::Begin(begin(Some(first_last())))));
    let forgot_it = source.handle(at(9), Event::Answer(Response::Ready(None)));
    assert_eq!(forgot_it, Err(source::Broken), "it does not serve what is gone");
    source.handle(at(9), Event::Answer(Response::Ready(Some(first_last())))).unwrap();
    assert_eq!(source.next(at(9)), Next::Do(Step::Forget));
}

#[test]
fn a_slice_that_takes_too_long_is_served_again_and_gets_twice_the_time() {
    let mut source = sending();
    source.exported(at(0), part(0, 0, first_last(), false));
    let late = 200 * MILLISECOND;
    assert_eq!(source.next(at(late - 1)), Next::Wait(Some(at(late))));
    assert_eq!(source.next(at(late)), Next::Do(Step::Thaw));
    source.thawed(at(late));
    assert_eq!(source.next(at(9 * late)), Next::Wait(None), "a part is still on its way");
    source.handle(at(late), taken(0, 0)).unwrap();
    assert_eq!(source.gone(), None);
    assert_eq!(source.next(at(late)), Next::Wait(Some(at(2 * late))), "it rests");
    assert_eq!(source.next(at(2 * late)), Next::Do(Step::Freeze));
    source.froze(at(2 * late), Some(34));
    source.looked(at(2 * late), true);
    source.exported(at(2 * late), part(1, 0, first_last(), false));
    assert_eq!(source.next(at(3 * late)), Next::Wait(Some(at(4 * late))));
}

#[test]
fn parts_wait_until_others_are_taken() {
    let mut source = sending();
    let most = PARTS_IN_FLIGHT_MAX.min(BYTES_IN_FLIGHT_MAX / PART_BYTES) as u32;
    for number in 0..most {
        assert_eq!(source.next(at(0)), Next::Do(Step::Export));
        source.exported(at(0), part(0, number, first_last(), true));
    }
    assert!(matches!(source.next(at(0)), Next::Wait(_)));
    assert_eq!(source.handle(at(0), taken(0, 1)), Err(source::Broken), "out of turn");
    source.handle(at(0), taken(0, 0)).unwrap();
    assert_eq!(source.next(at(0)), Next::Do(Step::Export));
}

#[test]
fn a_cancelled_cachelet_stays_if_none_of_it_is_gone() {
    let mut source = sending();
    source.exported(at(0), part(0, 0, first_last(), false));
    source.handle(at(0), Event::Cancel).unwrap();
    source.handle(at(0), taken(0, 0)).unwrap();
    assert_eq!((source.gone(), source.next(at(0))), (None, Next::Do(Step::Thaw)));
    source.thawed(at(0));
    assert_eq!(source.next(at(0)), Next::Do(Step::Stay));
    source.stayed();
    assert_eq!(source.state(), State::Back(Why::Cancelled));
    assert_eq!((source.next(at(0)), source.is_over()), (Next::Say(Request::Cancel), true));

    let mut source = gone();
    source.handle(at(5), Event::Cancel).unwrap();
    source.handle(at(5), Event::Answer(Response::Served(first_last()))).unwrap();
    assert_eq!(source.next(at(5)), Next::Do(Step::Forget), "it goes on");
    assert!(source.progress().cancelled_too_late);
}

#[test]
fn what_is_gone_is_forgotten_before_it_is_taken_back() {
    let mut source = gone();
    source.handle(at(6), Event::LinkDown).unwrap();
    source.handle(at(6), Event::Lost).unwrap();
    assert_eq!(source.next(at(6)), Next::Do(Step::Forget));
    source.forgot(at(6), false);
    assert_eq!(source.next(at(6)), Next::Do(Step::Stay));
    source.stayed();
    assert_eq!((source.gone(), source.state()), (None, State::Back(Why::Lost)));
}

#[test]
fn what_a_dead_destination_has_said_counts_no_more() {
    let said = [
        Response::Served(first_last()),
        Response::Taken { slice: 0, number: 1, strained: true },
        Response::Refused(Refusal::NoRoom),
    ];
    for answer in said {
        let mut source = gone();
        source.handle(at(6), Event::Lost).unwrap();
        source.handle(at(6), Event::Answer(answer)).unwrap();
        assert_eq!(source.next(at(6)), Next::Do(Step::Forget));
        source.forgot(at(6), false);
        source.stayed();
        source.handle(at(6), Event::Answer(answer)).unwrap();
        assert_eq!(
            (source.next(at(6)), source.state()),
            (Next::Wait(None), State::Back(Why::Lost))
        );
    }
}

#[test]
fn a_refused_or_stuck_cachelet_stays() {
    let mut source = Source::new(order());
    source.handle(at(0), Event::LinkUp).unwrap();
    source.handle(at(0), Event::Answer(Response::Refused(Refusal::NoRoom))).unwrap();
    while source.next(at(0)) != Next::Wait(None) {}
    assert_eq!(source.state(), State::Back(Why::Refused(Refusal::NoRoom)));

    let mut source = Source::new(order());
    source.handle(at(0), Event::LinkUp).unwrap();
    source.handle(at(0), Event::Answer(Response::Ready(None))).unwrap();
    let (mut now, mut tries) = (at(0), 0);
    loop {
        match source.next(now) {
            Next::Do(step) => {
                assert_eq!(step, Step::BeginToLeave);
                source.began(now, false);
                tries += 1;
            }
            Next::Wait(Some(until)) => now = until,
            Next::Wait(None) => break,
            Next::Say(_) => {}
        }
    }
    assert_eq!(
        (source.state(), tries, now),
        (State::Back(Why::CannotLeave), 1_000, at(10_000 * MILLISECOND))
    );
}

#[test]
fn rests_are_between_slices() {
    let mut source = sending();
    source.exported(at(0), part(0, 0, first_last(), false));
    let strained = Response::Taken { slice: 0, number: 0, strained: true };
    source.handle(at(0), Event::Answer(strained)).unwrap();
    source.handle(at(0), Event::Answer(Response::Served(first_last()))).unwrap();
    assert_eq!(source.next(at(0)), Next::Say(Request::Gone(first_last())));
    source.forgot(at(0), false);
    assert_eq!(source.next(at(0)), Next::Wait(Some(at(4 * MILLISECOND))), "as any first slice");
    assert!(!source.progress().is_slowed, "nobody knows yet what it does");
}

/// A destination that is ready.
fn ready() -> Destination {
    let mut here = Destination::new(at(0), MoveId(7), begin(None));
    assert_eq!(here.next(at(0)), destination::Next::Do(destination::Step::Adopt));
    here.adopted(at(0), Adopted::NoRoom);
    assert_eq!(here.next(at(0)), destination::Next::Wait(Some(at(MILLISECOND))));
    assert_eq!(here.next(at(MILLISECOND)), destination::Next::Do(destination::Step::Adopt));
    here.adopted(at(0), Adopted::Arrives);
    assert_eq!(here.next(at(0)), destination::Next::Say(Response::Ready(None)));
    assert_eq!(here.next(at(0)), destination::Next::Wait(None));
    here
}

fn asked(here: &mut Destination, ask: Request<'_>) -> Result<(), destination::Broken> {
    here.handle(destination::Event::Asked(ask))
}

/// One with a slice in its store, which is not known to be gone.
fn with_slice() -> Destination {
    let mut here = ready();
    asked(&mut here, Request::Part(b"a part")).unwrap();
    let import = destination::Step::Import(b"a part".to_vec());
    assert_eq!(here.next(at(0)), destination::Next::Do(import));
    here.imported(Some(Imported { slice: 0, number: 0, last: first_last() })).unwrap();
    let taken = Response::Taken { slice: 0, number: 0, strained: false };
    assert_eq!(here.next(at(0)), destination::Next::Say(taken));
    assert_eq!(here.next(at(0)), destination::Next::Wait(None), "the source serves it");
    here
}

#[test]
fn what_came_is_served_when_it_is_gone_however_that_is_heard() {
    let serve = || destination::Next::Do(destination::Step::ServeUntil(first_last()));
    let mut here = with_slice();
    asked(&mut here, Request::Gone(first_last())).unwrap();
    assert_eq!(here.next(at(0)), serve());
    here.serves(first_last());
    assert_eq!(here.next(at(0)), destination::Next::Say(Response::Served(first_last())));

    let mut here = with_slice();
    here.has_gone(first_last()).unwrap();
    assert_eq!(here.next(at(0)), serve());
    here.serves(first_last());
    assert_eq!(here.next(at(0)), destination::Next::Wait(None), "no message came");

    let mut here = with_slice();
    here.handle(destination::Event::LinkDown).unwrap();
    asked(&mut here, Request::Begin(begin(Some(first_last())))).unwrap();
    assert_eq!(here.next(at(0)), serve());
    here.serves(first_last());
    assert_eq!(here.next(at(0)), destination::Next::Say(Response::Ready(Some(first_last()))));
}

#[test]
fn what_cannot_be_breaks_the_link() {
    let broken = Err(destination::Broken);
    let mut here = with_slice();
    assert_eq!(asked(&mut here, Request::Gone(first_last() + 1)), broken, "it has not come");
    let other = Begin { worker: WorkerId(4), ..begin(None) };
    assert_eq!(asked(&mut here, Request::Begin(other)), broken);
    for _ in 0..PARTS_IN_FLIGHT_MAX {
        asked(&mut here, Request::Part(b"")).unwrap();
    }
    assert_eq!(asked(&mut here, Request::Part(b"")), broken, "more than may be in flight");
    let mut here = with_slice();
    here.has_gone(first_last()).unwrap();
    assert_eq!(asked(&mut here, Request::Cancel), broken, "something has gone");
    assert_eq!(ready().imported(None), broken);
}

#[test]
fn a_dead_sources_unfinished_slice_is_given_up_and_what_was_gone_is_not() {
    let step = |step| destination::Next::Do(step);
    let mut here = with_slice();
    here.handle(destination::Event::Owned).unwrap();
    assert_eq!(here.next(at(0)), step(destination::Step::GiveUp));
    here.gave_up(true);
    assert_eq!(here.next(at(0)), step(destination::Step::GiveUp));
    here.gave_up(false);
    assert_eq!(here.next(at(0)), step(destination::Step::Inherit));
    here.inherited();
    assert_eq!((here.state(), here.is_over()), (destination::State::Owned, true));

    let mut here = with_slice();
    here.has_gone(first_last()).unwrap();
    here.handle(destination::Event::Owned).unwrap();
    assert_eq!(here.next(at(0)), step(destination::Step::ServeUntil(first_last())));
    here.serves(first_last());
    assert_eq!(here.next(at(0)), step(destination::Step::Inherit));
}

#[test]
fn what_a_dead_source_has_said_counts_no_more() {
    let said = [
        Request::Begin(begin(Some(first_last()))),
        Request::Part(b"a part"),
        Request::Gone(first_last()),
        Request::Cancel,
    ];
    for ask in said {
        let mut here = with_slice();
        here.handle(destination::Event::Owned).unwrap();
        for _ in 0..=PARTS_IN_FLIGHT_MAX {
            asked(&mut here, ask).unwrap();
        }
        assert_eq!(here.next(at(0)), destination::Next::Do(destination::Step::GiveUp));
        here.gave_up(false);
        asked(&mut here, ask).unwrap();
        assert_eq!(here.next(at(0)), destination::Next::Do(destination::Step::Inherit));
    }
}

#[test]
fn a_part_of_an_older_link_is_not_acknowledged() {
    let mut here = ready();
    asked(&mut here, Request::Part(b"a part")).unwrap();
    assert!(matches!(here.next(at(0)), destination::Next::Do(destination::Step::Import(_))));
    here.handle(destination::Event::LinkDown).unwrap();
    here.imported(Some(Imported { slice: 0, number: 0, last: first_last() })).unwrap();
    asked(&mut here, Request::Begin(begin(None))).unwrap();
    assert_eq!(here.next(at(0)), destination::Next::Say(Response::Ready(None)));
    assert_eq!(here.next(at(0)), destination::Next::Wait(None));
}

#[test]
fn a_begin_is_met_by_what_is_known() {
    let meet =
        |id: u32, begin: Begin, moves: &[Met]| Destination::meet(HERE, MoveId(id), &begin, moves);
    let refused = |why| Meeting::Refused(why);
    let elsewhere = Begin { destination: Incarnation(3), ..begin(None) };
    assert_eq!(meet(7, begin(None), &[]), Meeting::New);
    assert_eq!(meet(7, elsewhere, &[]), refused(Refusal::Incarnation));
    assert_eq!(meet(7, begin(Some(first_last())), &[]), refused(Refusal::OtherMove));
    let mut known = with_slice();
    assert_eq!(meet(7, begin(None), &[known.met()]), Meeting::Known(0));
    assert_eq!(meet(8, begin(None), &[known.met()]), Meeting::Instead(0));
    assert_eq!(meet(6, begin(None), &[known.met()]), refused(Refusal::OtherMove));
    let half = Begin { prefix: prefix().halves().expect("it has").1, ..begin(None) };
    assert_eq!(meet(8, half, &[known.met()]), Meeting::Instead(0), "it overlaps");
    known.serves(first_last());
    assert_eq!(meet(8, begin(None), &[known.met()]), refused(Refusal::OtherMove));
    let mut others: Vec<Destination> = (0..MOVES_MAX)
        .map(|at| Begin { prefix: Prefix::nth(63 - at, 6), ..begin(None) })
        .map(|begin| Destination::new(at(0), MoveId(0), begin))
        .collect();
    let all = |others: &[Destination]| {
        meet(8, begin(None), &others.iter().map(Destination::met).collect::<Vec<_>>())
    };
    assert_eq!(all(&others), refused(Refusal::NoRoom));
    // Of what is served here nothing comes any more, though no map has said yet that it is this server's.
    let last = others[3].begin().prefix.last_hash();
    assert_eq!(others[3].next(at(0)), destination::Next::Do(destination::Step::Adopt));
    others[3].adopted(at(0), Adopted::Arrives);
    assert_eq!(all(&others), refused(Refusal::NoRoom));
    others[3].serves(last);
    assert_eq!((others[3].state(), all(&others)), (destination::State::Whole, Meeting::New));
}

#[test]
fn room_and_the_end_of_a_flush_are_waited_for_and_then_refused() {
    for (flushing, refused) in [(0, 1_000), (2_000, 3_000), (20_000, 10_000)] {
        let mut here = Destination::new(at(0), MoveId(7), begin(None));
        let mut now = at(0);
        let answer = loop {
            let adopted = match now < at(flushing * MILLISECOND) {
                true => Adopted::Flushing,
                false => Adopted::NoRoom,
            };
            match here.next(now) {
                destination::Next::Do(_) => here.adopted(now, adopted),
                destination::Next::Wait(until) => now = until.expect("it tries again"),
                destination::Next::Say(answer) => break answer,
            }
        };
        let wanted = (Response::Refused(Refusal::NoRoom), refused * MILLISECOND);
        assert!(
            answer == wanted.0 && now.as_nanos().abs_diff(wanted.1) <= MILLISECOND,
            "{answer:?} at {now:?}"
        );
        assert_eq!((here.state(), here.is_over()), (destination::State::Dropped, true));
    }
}
