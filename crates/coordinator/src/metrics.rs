//! What the coordinator knows and has done, as Prometheus reads it: the text format 0.0.4.

use std::fmt::{Display, Write};
use std::time::Duration;

use mbal_control::api::{BalanceMode, HotMode, HotStatus, ScaleState, ScaleStatus, Status};
use mbal_control::{Autoscaled, Coordinator};
use mbal_model::Why;

const STATES: [&str; 10] = [
    "serving", "starting", "unlinked", "awaited", "silent", "lost", "draining", "stuck", "drained",
    "retired",
];
const MODES: [(&str, BalanceMode); 3] =
    [("on", BalanceMode::On), ("off", BalanceMode::Off), ("dry-run", BalanceMode::DryRun)];
const HOT_MODES: [(&str, HotMode); 3] =
    [("off", HotMode::Off), ("async", HotMode::Async), ("atomic", HotMode::Atomic)];
const SCALE_STATES: [(&str, ScaleState); 5] = [
    ("idle", ScaleState::Idle),
    ("asking", ScaleState::Asking),
    ("moving", ScaleState::Moving),
    ("growing", ScaleState::Growing),
    ("done", ScaleState::Done),
];
const WHYS: [(&str, Why); 4] = [
    ("overload", Why::Overload),
    ("exchange", Why::Exchange),
    ("drain", Why::Drain),
    ("share", Why::Share),
];

pub(crate) fn page(
    status: &Status,
    coordinator: &Coordinator,
    planned_in: Duration,
    scaling: &ScaleStatus,
) -> String {
    let (state, balanced) = (coordinator.state(), coordinator.balanced());
    let mut page = Page::leads(true, false);
    let servers =
        |state: &str| status.servers.iter().filter(|server| server.state == state).count();
    page.gauge_by(
        "servers",
        "Servers by state.",
        "state",
        STATES.map(|name| (name, servers(name))),
    );
    let help = "Links that a server misses to another one, while both are heard.";
    page.gauge("broken_links", help, status.broken_links.len());
    page.gauge("map_version", "Version of the newest map.", status.map_version);
    page.gauge("moves", "Moves of cachelets under way.", status.moves.len());
    page.counter("moves_total", "Moves of cachelets that were ordered.", state.moves_ever);
    let mode = MODES.map(|(name, mode)| (name, u8::from(mode == state.balance)));
    page.gauge_by("balance", "1 for the mode of balance between servers.", "mode", mode);
    page.counter("plans_total", "Plans of balance since the start.", balanced.plans);
    let seconds = planned_in.as_secs_f64();
    page.gauge("planning_seconds", "How long the last plan took.", seconds);
    let begun = WHYS.map(|(name, why)| (name, balanced.begun.get(&why).copied().unwrap_or(0)));
    let help = "Moves that plans began since the start, by why.";
    page.counter_by("planned_moves_total", help, "why", begun);
    let help = "Moves and splits of plans that did not fit the state any more.";
    page.counter("outdated_moves_total", help, balanced.outdated);
    let plan = &balanced.plan;
    page.gauge("servers_asking", "Servers in phase 3.", plan.asking.len());
    let help = "More servers that would bring every worker under its limit; 0 is none.";
    page.gauge("servers_wanted", help, plan.servers_wanted);
    let help = "Cachelets that are too heavy for any worker.";
    page.gauge("cachelets_too_heavy", help, plan.too_heavy.len());
    page.gauge("load_mean", "Mean load of all workers; 1 is saturated.", plan.load_mean);
    page.gauge("load_max", "Load of the busiest worker.", plan.load_max);
    page.hot_keys(&status.hot.unwrap_or_default());
    page.autoscaled(coordinator.autoscaled());
    page.scaling(scaling);
    page.0
}

/// Of a coordinator that does not lead: it knows nothing of servers.
pub(crate) fn of_who_stands_by() -> String {
    Page::leads(false, false).0
}

/// Of one whose last change is not saved yet, after a second: it waits for its disk, or for etcd.
pub(crate) fn of_who_waits() -> String {
    let mut page = Page::default();
    page.waits(true);
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn leads(leads: bool, waits: bool) -> Page {
        let mut page = Page::default();
        page.gauge("leads", "1 if this coordinator leads.", u8::from(leads));
        page.waits(waits);
        page
    }

    fn waits(&mut self, waits: bool) {
        let help = "1 if nothing is known of servers for now, since this coordinator waits for its disk or for etcd.";
        self.gauge("waits", help, u8::from(waits));
    }

    fn hot_keys(&mut self, hot: &HotStatus) {
        let mode = HOT_MODES.map(|(name, mode)| (name, u8::from(mode == hot.told.mode)));
        self.gauge_by("hot_keys_mode", "1 for how hot keys are copied.", "mode", mode);
        let seconds = hot.told.lease_ms as f64 / 1e3;
        self.gauge("copy_lease_seconds", "How long a lease of a copy lasts.", seconds);
        let help = "Requests a second for each copy of a key at most; 0: each server's own holds.";
        let threshold = hot.told.threshold.unwrap_or(0.0);
        self.gauge("copy_threshold_requests_per_second", help, threshold);
        self.gauge("hot_keys", "Keys that have copies on other servers.", hot.copied);
        self.gauge("copies", "Copies of these keys beside the originals.", hot.copies);
    }

    fn autoscaled(&mut self, autoscaled: &Autoscaled) {
        let status = &autoscaled.status;
        let last = status.last.clone().unwrap_or_default();
        self.gauge(
            "autoscaler_servers",
            "Servers that the autoscaler has seen last.",
            last.servers,
        );
        let help = "Servers that it wanted then.";
        self.gauge("autoscaler_servers_wanted", help, last.servers_wanted);
        self.gauge("hit_ratio", "Part of the reads that hit, in the last minute.", last.hit_ratio);
        let help = "Least hit ratio with which the database bears the misses.";
        self.gauge("hit_ratio_needed", help, last.hit_ratio_needed);
        let help = "Hit ratio that is forecast for the servers that are wanted.";
        self.gauge("hit_ratio_expected", help, last.hit_ratio_expected);
        let [out, r#in] = autoscaled.changes;
        let help = "Changes of the size that the autoscaler has begun.";
        self.counter_by("autoscaler_changes_total", help, "way", [("out", out), ("in", r#in)]);
        let outcome = status.outcomes.first().copied().unwrap_or_default();
        let help = "Hit ratio after the last change: what was forecast, and what came true.";
        let both = [("expected", outcome.expected), ("measured", outcome.measured)];
        self.gauge_by("last_change_hit_ratio", help, "which", both);
    }

    fn scaling(&mut self, scaling: &ScaleStatus) {
        let state = SCALE_STATES.map(|(name, state)| (name, u8::from(state == scaling.state)));
        self.gauge_by("scaling", "1 for the state of the last scaling.", "state", state);
        let help = "Servers that the last scaling wanted; those that serve, before there was one.";
        self.gauge("scaling_servers", help, scaling.servers);
        self.gauge("scaling_servers_to_start", "Servers that are to be started.", scaling.more);
        let help = "Of what retiring servers had, the part that has moved.";
        self.gauge("scaling_part_done", help, scaling.part_done);
        let help = "Bytes that its moves have carried.";
        self.gauge("scaling_bytes", help, scaling.bytes);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP mbal_coordinator_{name} {help}"));
        self.line(format_args!("# TYPE mbal_coordinator_{name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes all");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.line(format_args!("mbal_coordinator_{name} {value}"));
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.one(name, "gauge", help, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.one(name, "counter", help, value);
    }

    fn by<V: Display>(
        &mut self,
        name: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'static str, V)>,
    ) {
        for (of, value) in values {
            self.line(format_args!("mbal_coordinator_{name}{{{label}=\"{of}\"}} {value}"));
        }
    }

    fn gauge_by<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'static str, V)>,
    ) {
        self.family(name, "gauge", help);
        self.by(name, label, values);
    }

    fn counter_by<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'static str, V)>,
    ) {
        self.family(name, "counter", help);
        self.by(name, label, values);
    }
}
