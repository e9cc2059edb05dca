//! Bytes of the other side of a move, for both sides: whatever they are, nothing is called gone or served that has not come.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use mbal_migration::destination::{self, Destination, Imported};
use mbal_migration::source::{self, Exported, Source};
use mbal_migration::{Response, Request, Begin, Incarnation, Order};
use mbal_model::{Instant, MoveId, Prefix, WorkerId};

/// Parts that the fuzzed source has exported: the last hash of the slice of each, and whether it was taken.
#[derive(Default)]
struct Exports {
    slice: u32,
    last: u64,
    untaken: u32,
}

fn carry_out(source: &mut Source, exports: &mut Exports, now: Instant, prefix: Prefix) {
    for _ in 0..40 {
        match source.next(now) {
            source::Next::Wait(_) => return,
            source::Next::Say(_) => {}
            source::Next::Do(step) => match step {
                source::Step::BeginToLeave => source.began(now, true),
                source::Step::Freeze => source.froze(now, Some(1)),
                source::Step::Look(_) => source.looked(now, true),
                source::Step::Export => {
                    let number = exports.untaken;
                    let last = exports.last.max(prefix.first_hash());
                    let last = (last + (1 << 56)).min(prefix.last_hash());
                    let (slice, more) = (exports.slice, number < 2);
                    exports.untaken += 1;
                    exports.last = if more { exports.last } else { last };
                    source.exported(now, Exported { slice, number, last, bytes: 9, more });
                }
                source::Step::Thaw => {
                    *exports = Exports {
                        slice: exports.slice + 1,
                        last: source.gone().unwrap_or(0),
                        untaken: 0,
                    };
                    source.thawed(now);
                }
                source::Step::Forget => {
                    *exports = Exports { slice: exports.slice + 1, untaken: 0, ..*exports };
                    source.forgot(now, false);
                }
                source::Step::Stay => source.stayed(),
                source::Step::Release => source.released(),
            },
        }
        assert!(source.gone().is_none_or(|last| prefix.contains(last)), "gone, and not of it");
    }
}

fn carry_out_there(there: &mut Destination, came: &mut Option<u64>, served: &mut Option<u64>) {
    for _ in 0..40 {
        match there.next(Instant::ZERO) {
            destination::Next::Wait(_) => return,
            destination::Next::Say(answer) => {
                let mut bytes = Vec::new();
                let kind = answer.encode(&mut bytes);
                assert_eq!(Response::parse(kind, &bytes), Ok(answer));
            }
            destination::Next::Do(step) => match step {
                destination::Step::Adopt => {
                    there.adopted(Instant::ZERO, destination::Adopted::Arrives)
                },
                destination::Step::Import(part) => {
                    let Some((last, _)) = part.split_first_chunk() else {
                        assert!(there.imported(None).is_err());
                        continue;
                    };
                    *came = Some(u64::from_le_bytes(*last));
                    let imported = Imported { slice: 0, number: 0, last: came.expect("set") };
                    there.imported(Some(imported)).expect("it reads");
                }
                destination::Step::LookForRoom => there.looked_for_room(Instant::ZERO, true),
                destination::Step::ServeUntil(last) => {
                    assert!(Some(last) == *came || Some(last) <= *served, "it has not come");
                    *served = (*served).max(Some(last));
                    there.serves(last);
                }
                destination::Step::GiveUp => there.gave_up(false),
                destination::Step::Inherit => there.inherited(),
                destination::Step::Release => there.released(),
            },
        }
    }
}

// Records, one behind the other: kind, length, payload. Kinds below 16 are what links and the coordinator do.
fuzz_target!(|input: &[u8]| {
    let prefix = Prefix::nth(1, 2);
    let (here, there) = (Incarnation(1), Incarnation(2));
    let (worker, generation) = (WorkerId(0), 1);
    let id = MoveId(7);
    let mut source =
        Source::new(Order { id, prefix, source: here, destination: there, worker, generation });
    let begin = Begin { prefix, source: here, destination: there, worker, generation, gone: None };
    let mut target = Destination::new(Instant::ZERO, id, begin);
    let (mut exports, mut came, mut served) = (Exports::default(), None, None);
    let (mut rest, mut now) = (input, Instant::ZERO);
    while let [kind, length, behind @ ..] = rest {
        let (payload, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = behind;
        now += Duration::from_millis((*length).into());
        let before = source.gone();
        let event = match kind {
            0 | 1 => Some(source::Event::LinkUp),
            2 => Some(source::Event::LinkDown),
            3 => Some(source::Event::Cancel),
            4 => Some(source::Event::Lost),
            5 => Some(source::Event::HandedOver),
            6 => {
                target.handle(destination::Event::LinkDown).expect("no peer says so");
                None
            }
            7 => {
                target.handle(destination::Event::Owned).expect("no peer says so");
                None
            }
            _ => None,
        };
        if let Some(event) = event {
            source.handle(now, event).expect("no peer says so");
        }
        if let Ok(answer) = Response::parse(*kind, payload) {
            let mut again = Vec::new();
            assert_eq!((answer.encode(&mut again), again.as_slice()), (*kind, payload));
            source.handle(now, source::Event::Answer(answer)).ok();
        }
        if source.gone() != before {
            assert!(source.gone() >= before && exports.untaken > 0, "nothing was sent");
        }
        carry_out(&mut source, &mut exports, now, prefix);
        if let Ok(ask) = Request::parse(*kind, payload) {
            let mut again = Vec::new();
            assert_eq!((ask.encode(&mut again), again.as_slice()), (*kind, payload));
            target.handle(destination::Event::Asked(ask)).ok();
        }
        carry_out_there(&mut target, &mut came, &mut served);
    }
});
