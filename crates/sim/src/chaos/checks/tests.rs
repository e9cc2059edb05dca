//! Histories that are right, and histories that a checker has to refuse.

use super::*;

/// The requests of a run: connection, times, what was asked, what was told.
fn verdict(ops: &[(usize, Micros, Micros, Asks, Observed)]) -> Option<u8> {
    verdict_of(ops, true)
}

/// The same; `calm` if no memory was ever short.
fn verdict_of(ops: &[(usize, Micros, Micros, Asks, Observed)], calm: bool) -> Option<u8> {
    verdict_at(ops, Some(0), calm)
}

/// The same of a key that this server has had all the time; all requests went to server 0.
fn verdict_at(
    ops: &[(usize, Micros, Micros, Asks, Observed)],
    home: Option<usize>,
    calm: bool,
) -> Option<u8> {
    verdict_cut(ops, home, calm, &[])
}

/// The same of a key whose cachelet moved with what was chosen.
fn verdict_cut(
    ops: &[(usize, Micros, Micros, Asks, Observed)],
    home: Option<usize>,
    calm: bool,
    cuts: &[(Micros, Micros)],
) -> Option<u8> {
    let mut history = History { by_tag: vec![0; 10], ..History::default() };
    for (at, (connection, asked, answered, asks, told)) in ops.iter().enumerate() {
        if let Asks::Store { tag, .. } | Asks::Append { tag } = asks {
            history.by_tag[*tag as usize] = at;
        }
        history.ops.push(Op {
            key: if matches!(asks, Asks::Flush { .. }) { ALL_KEYS } else { 0 },
            connection: *connection,
            place: at as u32,
            session: *connection,
            stale: 0,
            host: 0,
            unordered: *told == Observed::Nothing,
            is_forgotten: false,
            asked: *asked,
            answered: *answered,
            evictions: (0, 0),
            asks: *asks,
            told: told.clone(),
            quiet: false,
        });
    }
    let facts = Facts {
        kinds: &[Kind::Register],
        homes: &[home],
        put_off: &[0],
        cuts: &[cuts.to_vec()],
        lag: 0,
        skew: 0,
        calm,
        lease: None,
    };
    check(&mut history, &facts).err().map(|violation| violation.invariant)
}

const DONE: Observed = Observed::Done { cas: 0 };

fn set(tag: u32) -> Asks {
    Asks::Store { tag, exptime: 0, when: When::Always }
}

fn hit(base: u32) -> Observed {
    Observed::Hit { state: State { base, count: 0, tokens: Vec::new() }, cas: 0 }
}

fn log(base: u32, tokens: &[u32]) -> Observed {
    Observed::Hit { state: State { base, count: 0, tokens: tokens.to_vec() }, cas: 0 }
}

#[test]
fn while_a_write_is_under_way_either_value_may_be_read() {
    let ops =
        |read| [(0, 0, 1, set(1), DONE), (0, 2, 9, set(2), DONE), (1, 3, 4, Asks::Read, read)];
    assert_eq!([hit(1), hit(2)].map(|read| verdict(&ops(read))), [None, None]);
    assert_eq!(verdict(&ops(Observed::Absent)), Some(LOST));
}

#[test]
fn nobody_reads_an_older_value_after_a_newer_one() {
    let write = [(0, 0, 1, set(1), DONE), (0, 2, 9, set(2), DONE)];
    let reads = [(1, 3, 4, Asks::Read, hit(2)), (2, 5, 6, Asks::Read, hit(1))];
    assert_eq!(verdict(&[write.clone(), reads].concat()), Some(WENT_BACK));
    let after = [(1, 10, 11, Asks::Read, hit(1))];
    assert_eq!(verdict(&[&write[..], &after[..]].concat()), Some(WENT_BACK));
}

#[test]
fn what_was_lost_may_be_done_later_and_once() {
    let lost = (0, 2, NEVER, set(2), Observed::Nothing);
    let ops = [(0, 0, 1, set(1), DONE), lost, (0, 4, 5, set(3), DONE)];
    let reads = |told: &[Observed]| {
        let reads =
            told.iter().zip([8, 10]).map(|(told, at)| (1, at, at + 1, Asks::Read, told.clone()));
        verdict(&[&ops[..], &reads.collect::<Vec<_>>()].concat())
    };
    assert_eq!([hit(2), hit(3)].map(|told| reads(&[told])), [None, None]);
    assert_eq!([hit(1), Observed::Absent].map(|told| reads(&[told])), [Some(WENT_BACK), None]);
    assert_eq!(reads(&[hit(3), hit(2)]), None);
    assert_eq!(reads(&[hit(2), hit(3)]), Some(WENT_BACK));
}

#[test]
fn what_was_removed_stays_away_and_what_was_not_stays() {
    let read = |told| (1, 8, 9, Asks::Read, told);
    for remove in [Asks::Delete, Asks::Flush { delay: 0 }] {
        let ops = |told| [(0, 0, 1, set(1), DONE), (2, 4, 5, remove, DONE), read(told)];
        assert_eq!(verdict(&ops(hit(1))), Some(WENT_BACK), "{remove:?}");
        assert_eq!(verdict(&ops(Observed::Absent)), None, "{remove:?}");
    }
    assert_eq!(verdict(&[(0, 0, 1, set(1), DONE), read(Observed::Absent)]), Some(LOST));
}

#[test]
fn a_flush_that_has_not_reached_every_server_is_done_at_the_one_that_was_asked() {
    let told = Observed::NotEverywhere { failed: 1, servers: 3 };
    let flush = (2, 4, 5, Asks::Flush { delay: 0 }, told);
    let ops = |read| [(0, 0, 1, set(1), DONE), flush.clone(), (1, 8, 9, Asks::Read, read)];
    let at = |home| [Observed::Absent, hit(1)].map(|read| verdict_at(&ops(read), home, true));
    assert_eq!(at(Some(0)), [None, Some(WENT_BACK)]);
    assert_eq!(at(Some(1)), [None, None]);
    // A key that has been with several servers.
    assert_eq!(at(None), [None, None]);
    // What was on a link that broke may still arrive, and remove what was written since.
    let late = [flush.clone(), (0, 6, 7, set(1), DONE), (1, 8, 9, Asks::Read, Observed::Absent)];
    assert_eq!(verdict_at(&late, Some(1), true), None);
    assert_eq!(verdict_at(&late, Some(0), true), Some(LOST));
}

#[test]
fn a_write_without_an_answer_may_have_found_no_memory_and_taken_the_old_item_along() {
    let quiet = (1, 2, 3, set(2), Observed::Quiet);
    let ops = |read| [(0, 0, 1, set(1), DONE), quiet.clone(), (2, 4, 5, Asks::Read, read)];
    let calm = [Observed::Absent, hit(1), hit(2)].map(|read| verdict_of(&ops(read), true));
    assert_eq!(calm, [Some(LOST), Some(WENT_BACK), None]);
    let short = [Observed::Absent, hit(2)].map(|read| verdict_of(&ops(read), false));
    assert_eq!(short, [None, None]);
}

#[test]
fn an_append_is_done_once() {
    let append = Asks::Append { tag: 2 };
    let ops = |tokens: &[u32]| {
        [(0, 0, 1, set(1), DONE), (1, 2, 3, append, DONE), (2, 4, 5, Asks::Read, log(1, tokens))]
    };
    let verdicts = [&[2][..], &[], &[2, 2]].map(|tokens| verdict(&ops(tokens)));
    assert_eq!(verdicts, [None, Some(LOST), Some(LOST)]);
}

#[test]
fn a_deadline_is_kept() {
    let expiring = Asks::Store { tag: 1, exptime: 2, when: When::Always };
    let ops = |at: Micros, told| {
        [(0, 0, 1, expiring, DONE), (1, at * SECOND, at * SECOND + 1, Asks::Read, told)]
    };
    assert_eq!(verdict(&ops(1, Observed::Absent)), Some(LOST));
    assert_eq!(verdict(&ops(2, Observed::Absent)), None);
    assert_eq!(verdict(&ops(3, hit(1))), Some(WENT_BACK));
}

#[test]
fn a_change_under_a_cas_changes_that_item() {
    let cas = |tag, expected| Asks::Store { tag, exptime: 0, when: When::Unchanged(expected) };
    let done = |cas| Observed::Done { cas };
    let ops =
        [(0, 0, 9, set(1), done(5)), (1, 0, 9, set(2), done(6)), (2, 0, 9, cas(3, 5), done(7))];
    assert_eq!(verdict(&ops), Some(LOST));
    let back = [(0, 0, 1, set(1), done(5)), (1, 2, 3, set(2), done(4))];
    assert_eq!(verdict(&back), Some(WENT_BACK));
}

#[test]
fn what_was_used_since_the_cutoff_of_a_move_is_not_left_behind() {
    let ops = [(0, 10, 20, set(1), DONE), (0, 60, 70, Asks::Read, Observed::Absent)];
    let verdict = |cuts: &[(Micros, Micros)]| verdict_cut(&ops, Some(0), true, cuts);
    assert_eq!(verdict(&[]), Some(LOST));
    assert_eq!(verdict(&[(50, 30)]), None, "it was used before");
    assert_eq!(verdict(&[(50, 10)]), Some(LOST), "it was used since");
    assert_eq!(verdict(&[(80, 30)]), Some(LOST), "the move was not ordered yet");
}
