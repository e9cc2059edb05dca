//! Curves of servers become the cluster's forecast; the autoscaler is set up, and tells what it saw.

mod rig;

use std::time::Duration;

use mbal_control::api::{
    AutoscaleConfig, AutoscaleLook, AutoscalePolicy, CurveReport, ForecastTold, Heartbeat,
    OutcomeTold, Registration,
};
use mbal_control::{Look, Refusal, Request, Response, Settings, State};
use mbal_model::{Instant, ServerId};
use mbal_sketch::{Random, StackDistances, mix};
use rig::{Rig, registration};

const SECOND: u64 = 1_000_000;
const SERVER_BYTES: u64 = 1 << 20;

fn servers(servers: u16) -> Rig {
    let mut rig = Rig::with(servers, Settings::default(), |id| {
        let (workers, memory_bytes) = (Vec::new(), SERVER_BYTES);
        Registration { workers, memory_bytes, ..registration(id, id.into()) }
    });
    rig.now = Instant::from_micros(SECOND);
    rig
}

impl Rig {
    /// Whether the heartbeat is taken.
    fn tells(&mut self, id: u16, curve: CurveReport) -> bool {
        self.beats(id, Heartbeat { curve: Some(curve), ..Heartbeat::default() }).is_ok()
    }

    fn forecast(&mut self, servers: usize, database_rate: Option<f64>) -> ForecastTold {
        match self.ask(Request::Forecast { servers, database_rate }) {
            Ok(Response::Forecast(told)) => told,
            other => panic!("{other:?}"),
        }
    }
}

/// Of uniform reads of `items` items of 1,000 bytes, half of which have been written and read.
fn curve(items: u64, reads: u64, hits: u64) -> CurveReport {
    let mut distances = StackDistances::new(8_192);
    let mut bits = Random::new(1);
    for round in 0..200_000 {
        if round == 100_000 {
            distances.fade(0.0);
        }
        distances.observe(mix(bits.word() % items), 1_000);
    }
    let curve = distances.by_bytes();
    let (counted, points) = (curve.requests(), curve.points());
    CurveReport { reads, hits, counted, points, state_bytes: 1, item_bytes: 1_000 }
}

#[test]
fn curves_of_servers_are_told_as_hit_ratios_of_every_size() {
    let mut rig = servers(2);
    assert_eq!(rig.forecast(4, None).servers_told, 0);
    for minutes in 0..12 {
        for id in [1, 2] {
            // 2,048 items each: half of them fit.
            assert!(rig.tells(id, curve(2_097, 60_000 * minutes, 30_000 * minutes)));
        }
        rig.now += Duration::from_micros(60 * SECOND);
    }
    let told = rig.forecast(4, Some(500.0));
    assert_eq!((told.servers, told.servers_told, told.server_bytes), (2, 2, SERVER_BYTES));
    assert!((told.reads_per_second - 2_000.0).abs() < 1.0, "{told:?}");
    assert_eq!(told.hit_ratio_needed, Some(0.75));
    let ratios: Vec<f64> = told.sizes.iter().map(|size| size.hit_ratio).collect();
    for (ratio, expected) in ratios.iter().zip([0.25, 0.5, 0.75, 1.0]) {
        assert!((ratio - expected).abs() < 0.02, "{ratios:?}");
    }
    assert!((told.sizes[1].database_rate - 1_000.0).abs() < 40.0, "{told:?}");
    // One MiB more, by misses of 1 MB a second that become 0.5 MB.
    let fills: Vec<_> = told.sizes.iter().map(|size| size.fills_in_s).collect();
    assert_eq!(fills[..2], [None, None]);
    let third = fills[2].expect("it fills");
    assert!((third - 1.049 / 0.5 * 2.0_f64.ln()).abs() < 0.1, "{third}");
}

#[test]
fn forecasts_go_through_what_was_measured_while_nothing_changed() {
    let mut rig = servers(2);
    let ratio_of_half = |rig: &mut Rig| rig.forecast(2, None).sizes[0].hit_ratio;
    for minutes in 0..12 {
        for id in [1, 2] {
            assert!(rig.tells(id, curve(2_097, 60_000 * minutes, 45_000 * minutes)));
        }
        match minutes {
            0 => assert!((ratio_of_half(&mut rig) - 0.25).abs() < 0.02, "by the curve alone"),
            8 => {
                assert_eq!(rig.forecast(2, None).hit_ratio_measured, None, "not long enough");
                assert!((ratio_of_half(&mut rig) - 0.5).abs() < 0.02, "by the last minute");
            }
            _ => {}
        }
        rig.now += Duration::from_micros(60 * SECOND);
    }
    let told = rig.forecast(2, None);
    assert_eq!(told.hit_ratio_measured, Some(0.75));
    assert!((told.sizes[1].hit_ratio - 0.75).abs() < 0.001, "as it was measured: {told:?}");
    assert!((ratio_of_half(&mut rig) - 0.5).abs() < 0.02, "a fourth less, as by the curve");
    // One leaves: what the other hits meanwhile is no measure.
    rig.ask(Request::Drain(ServerId(2), true)).expect("it is taken");
    for minutes in 12..20 {
        assert!(rig.tells(1, curve(2_097, 60_000 * minutes, 45_000 * 11)));
        rig.now += Duration::from_micros(60 * SECOND);
    }
    assert_eq!(rig.forecast(2, None).hit_ratio_measured, Some(0.75));
}

#[test]
fn reports_that_are_none_do_no_harm() {
    let mut rig = servers(1);
    let points = vec![u64::MAX; 1_000];
    let of = |counted| CurveReport { counted, points: points.clone(), ..CurveReport::default() };
    let worst = [
        (of(f64::NAN), false),
        (of(-1.0), false),
        (of(f64::INFINITY), false),
        (CurveReport { reads: 1, ..of(1e9) }, true),
        (CurveReport { reads: 5, hits: 9, points: vec![3, 1, 2], ..of(4.0) }, true),
    ];
    for (report, is_taken) in worst {
        assert_eq!(rig.tells(1, report), is_taken);
        rig.now += Duration::from_micros(SECOND);
        let told = rig.forecast(3, Some(1.0));
        let ratios = told.sizes.iter().map(|size| size.hit_ratio);
        assert!(ratios.clone().all(|ratio| (0.0..=1.0).contains(&ratio)), "{told:?}");
        assert!(told.reads_per_second >= 0.0, "{told:?}");
    }
}

fn config() -> AutoscaleConfig {
    AutoscaleConfig { min: 2, max: 6, database_rate: 100.0, ..AutoscaleConfig::default() }
}

#[test]
fn the_autoscaler_s_setting_is_saved_and_what_is_none_is_refused() {
    let mut rig = servers(1);
    let schedule = vec!["4 from 08:00 to 20:00".to_owned()];
    let set = AutoscaleConfig { schedule, policy: AutoscalePolicy::Reactive, ..config() };
    rig.ask(Request::Autoscale(set.clone())).expect("it is taken");
    let saved = rig.coordinator.state().to_json();
    let read = State::from_json(&saved).expect("it is a state");
    assert_eq!((&read, read.autoscale.as_ref()), (rig.coordinator.state(), Some(&set)));
    for wrong in [
        AutoscaleConfig { min: 0, ..config() },
        AutoscaleConfig { max: 1, ..config() },
        AutoscaleConfig { database_rate: f64::NAN, ..config() },
        AutoscaleConfig { headroom: 0.5, ..config() },
        AutoscaleConfig { rest_minutes: 0, ..config() },
        AutoscaleConfig { schedule: vec!["often".into()], ..config() },
    ] {
        let done = rig.coordinator.handle(rig.now, Request::Autoscale(wrong));
        assert!(matches!(done.answer, Err(Refusal::Senseless(_))), "{done:?}");
        assert_eq!(rig.coordinator.state().autoscale.as_ref(), Some(&set));
    }
}

#[test]
fn what_a_look_has_seen_and_what_came_true_is_told() {
    let mut rig = servers(1);
    rig.ask(Request::Autoscale(config())).expect("it is taken");
    let outcome = OutcomeTold { unix: 7, from: 1, to: 2, expected: 0.5, measured: 0.4 };
    for (starting, outcome) in [(1, None), (0, Some(outcome))] {
        let look = AutoscaleLook { servers: 1, servers_wanted: 2, ..AutoscaleLook::default() };
        let said = vec!["2 servers".to_owned()];
        rig.ask(Request::Looked(Look { look, starting, outcome, said })).expect("it is taken");
    }
    let Ok(Response::Autoscale(status)) = rig.ask(Request::AutoscaleStatus) else {
        panic!("a status")
    };
    assert_eq!((status.outcomes.as_slice(), status.config), (&[outcome][..], Some(config())));
    assert_eq!(rig.coordinator.autoscaled().changes, [1, 0]);
    assert_eq!(rig.said.last().map(String::as_str), Some("2 servers"));
}
