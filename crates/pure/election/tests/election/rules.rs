//! The rules of docs/design/cluster.md, one by one.

use std::time::Duration;

use mbal_election::{
    Election, Fence, LOOK_EVERY, Leader, News, Next, Request, Response, SaveResponse, Sight,
    Stored, UNUSABLE_PAUSE, Verdict, Why,
};
use mbal_model::Instant;

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn sight(term: Option<u64>, state: Option<u64>) -> Sight {
    let leader = term.map(|term| Leader { term, address: format!("http://{term}") });
    Sight { leader, state, raft_term: 1 }
}

/// Asks all that is to be asked, and tells these answers.
fn play(election: &mut Election, now: Instant, answers: Vec<Response>) -> Vec<Request> {
    let play = answers.into_iter().map(|answer| match election.next(now) {
        Next::Ask(question) => {
            election.answered(now, answer);
            question
        }
        Next::Wait(until) => panic!("nothing is asked before {until:?}"),
    });
    play.collect()
}

/// Leads in term 10, by a state of revision 5, until 2.7 s.
fn leader() -> Election {
    let mut election = Election::new();
    let state = Some(Stored { revision: 5, bytes: b"state".to_vec() });
    let answers = vec![
        Response::Seen(sight(None, Some(5))),
        Response::Granted { lease: 7, lasts: ms(3000) },
        Response::Won { term: 10, state },
    ];
    play(&mut election, at(0), answers);
    assert_eq!(election.leads(at(0)), Some(10));
    election.take_news();
    election
}

fn renewed() -> Response {
    Response::Renewed { lasts: ms(3000), raft_term: 1 }
}

#[test]
fn who_sees_a_leader_names_it_and_looks_again() {
    let mut election = Election::new();
    play(&mut election, at(0), vec![Response::Seen(sight(Some(3), None))]);
    assert_eq!(election.leader(), Some("http://3"));
    assert_eq!(election.next(at(0)), Next::Wait(at(0) + LOOK_EVERY));
    assert_eq!(election.next(at(0) + LOOK_EVERY), Next::Ask(Request::Look));
}

#[test]
fn who_was_slower_gives_its_lease_back() {
    let mut election = Election::new();
    let answers = vec![
        Response::Seen(sight(None, None)),
        Response::Granted { lease: 7, lasts: ms(3000) },
        Response::Lost(sight(Some(4), None)),
        Response::Revoked,
    ];
    let asked = play(&mut election, at(0), answers);
    let campaign = Request::Campaign { lease: 7 };
    assert_eq!(asked, [Request::Look, Request::Grant, campaign, Request::Revoke { lease: 7 }]);
    assert_eq!(election.take_news(), []);
}

#[test]
fn a_lease_lasts_nine_tenths_from_before_it_was_asked_for() {
    let mut election = leader();
    assert_eq!(election.leads(at(2699)), Some(10));
    assert_eq!(election.leads(at(2700)), None);
    assert_eq!(election.next(at(1000)), Next::Ask(Request::Renew { lease: 7 }));
    election.answered(at(1400), renewed());
    assert_eq!(election.leads(at(2700)), None, "a renewal counts only with a look");
    play(&mut election, at(1500), vec![Response::Seen(sight(Some(10), Some(5)))]);
    assert_eq!(election.leads(at(3699)), Some(10));
    assert_eq!(election.leads(at(3700)), None);
}

#[test]
fn a_leader_that_was_stopped_leads_no_more_and_revokes_its_lease() {
    let mut election = leader();
    assert_eq!(election.next(at(9000)), Next::Ask(Request::Revoke { lease: 7 }));
    assert_eq!(election.take_news(), [News::Deposed { term: 10, why: Why::LeaseOver }]);
}

#[test]
fn a_leader_whose_key_is_anothers_leads_no_more() {
    for answers in [
        vec![renewed(), Response::Seen(sight(Some(11), Some(5)))],
        vec![renewed(), Response::Seen(sight(None, Some(5)))],
        vec![Response::Renewed { lasts: ms(0), raft_term: 1 }],
    ] {
        let mut election = leader();
        play(&mut election, at(100), answers);
        assert_eq!(election.leads(at(100)), None);
        assert_eq!(election.take_news(), [News::Deposed { term: 10, why: Why::Replaced }]);
    }
}

#[test]
fn a_renewal_under_another_leader_of_etcd_is_asked_for_again() {
    let mut election = leader();
    let look = Sight { raft_term: 2, ..sight(Some(10), Some(5)) };
    play(&mut election, at(1000), vec![renewed(), Response::Seen(look)]);
    assert_eq!(election.leads(at(2700)), None);
    assert_eq!(election.next(at(1000)), Next::Ask(Request::Renew { lease: 7 }));
}

#[test]
fn a_save_is_fenced_by_the_term_and_the_state_that_is_known() {
    let mut election = leader();
    assert_eq!(election.begin_save(at(1)), Some(Fence { term: 10, state: Some(5) }));
    assert_eq!(election.settle(at(2), SaveResponse::Written(12)), Verdict::Saved);
    assert_eq!(election.begin_save(at(3)), Some(Fence { term: 10, state: Some(12) }));
    assert_eq!(election.settle(at(4), SaveResponse::NotExecuted), Verdict::NotSaved);
    assert_eq!(election.begin_save(at(5)), Some(Fence { term: 10, state: Some(12) }));
}

#[test]
fn a_save_that_was_not_answered_is_asked_again_until_it_is_certain() {
    let mut election = leader();
    election.begin_save(at(0));
    assert_eq!(election.settle(at(700), SaveResponse::Unknown), Verdict::Again);
    assert_eq!(election.settle(at(701), SaveResponse::NotExecuted), Verdict::Again);
    let ours = SaveResponse::Refused { leader: Some(10), ours: Some(12) };
    assert_eq!(election.settle(at(702), ours), Verdict::Saved);
    assert_eq!(election.begin_save(at(703)), Some(Fence { term: 10, state: Some(12) }));
}

#[test]
fn a_save_in_doubt_ends_with_the_lease_and_nobody_knows() {
    let mut election = leader();
    election.begin_save(at(0));
    assert_eq!(election.settle(at(2700), SaveResponse::Unknown), Verdict::Unknown);
    assert_eq!(election.take_news(), [News::Deposed { term: 10, why: Why::Unsettled }]);
    assert_eq!(election.begin_save(at(2701)), None);
}

#[test]
fn a_state_that_somebody_else_wrote_ends_the_leadership() {
    let mut election = leader();
    election.begin_save(at(0));
    let changed = SaveResponse::Refused { leader: Some(10), ours: None };
    assert_eq!(election.settle(at(1), changed), Verdict::NotSaved);
    assert_eq!(election.take_news(), [News::Deposed { term: 10, why: Why::StateChanged }]);
    assert_eq!(election.next(at(1)), Next::Ask(Request::Revoke { lease: 7 }));
}

#[test]
fn who_has_seen_a_state_does_not_lead_without_one() {
    let mut election = Election::new();
    let answers = vec![
        Response::Seen(sight(Some(3), Some(5))),
        Response::Seen(sight(None, None)),
        Response::Granted { lease: 7, lasts: ms(3000) },
        Response::Won { term: 10, state: None },
        Response::Revoked,
        Response::Seen(sight(None, None)),
        Response::Seen(sight(None, None)),
    ];
    let mut now = at(0);
    for answer in answers {
        if let Next::Wait(until) = election.next(now) {
            now = until;
        } else {
            election.answered(now, answer);
            continue;
        }
        play(&mut election, now, vec![answer]);
    }
    assert_eq!(election.take_news(), [News::Deposed { term: 10, why: Why::StateMissing }]);
    assert!(now < at(0) + UNUSABLE_PAUSE, "it looks on, and asks for no lease");
}
