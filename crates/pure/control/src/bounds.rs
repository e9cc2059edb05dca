//! What no caller can mean: numbers that are none, and texts and lists without an end. Refused before anything is kept of them.
//!
//! Each bound is far above what a server of ours says, and low enough that no sum of such numbers is infinite or too large.

use std::ops::RangeInclusive;

use crate::api::{
    AgesReport, AutoscaleConfig, CurveReport, Heartbeat, LATENCIES_LISTED, LOADS, LinkReport,
    MoveReport, Registration, RemedyReport, ScaleCall, VitalsReport, WorkerReport,
};
use crate::refusal::Refusal;
use crate::request::Request;

/// A second.
const RATES: RangeInclusive<f64> = 0.0..=1e15;
/// Of bytes, requests and other things that are counted; 65,536 of them have a sum.
const COUNT_MAX: u64 = 1 << 47;
const WORKERS_MAX: usize = 1 << 15;
/// Of one worker; an older server lists all of its cachelets.
const CACHELETS_MAX: usize = 1 << 15;
const MOVES_MAX: usize = 1 << 16;
const REMEDIES_MAX: usize = 256;
const LINKS_MAX: usize = 1 << 16;
const COORDINATORS_MAX: usize = 64;
const POINTS_MAX: usize = 1 << 12;
const CLASSES_MAX: usize = 256;
const RULES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;
/// Of a sentence, a URL or a rule.
const TEXT_BYTES_MAX: usize = 1024;
const SERVERS_MAX: usize = u16::MAX as usize;

impl Request {
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let checked = match self {
            Request::Register(one) => registration(one),
            Request::Heartbeat(_, one) => heartbeat(one),
            Request::Move(call) => text("prefix", &call.prefix, NAME_BYTES_MAX),
            Request::Split(call) => text("prefix", &call.prefix, NAME_BYTES_MAX),
            Request::Scale(call) => scale(call),
            Request::Autoscale(config) => autoscale(config),
            _ => Ok(()),
        };
        checked.map_err(Refusal::Senseless)
    }
}

fn registration(one: &Registration) -> Result<(), String> {
    text("cluster", &one.cluster, NAME_BYTES_MAX)?;
    text("client", &one.client, TEXT_BYTES_MAX)?;
    text("link", &one.link, TEXT_BYTES_MAX)?;
    texts("workers", &one.workers, WORKERS_MAX)?;
    texts("coordinators", &one.coordinators, COORDINATORS_MAX)?;
    count("memory_bytes", one.memory_bytes)
}

fn heartbeat(one: &Heartbeat) -> Result<(), String> {
    list("workers", one.workers.len(), WORKERS_MAX)?;
    one.workers.iter().try_for_each(worker)?;
    list("moves", one.moves.len(), MOVES_MAX)?;
    one.moves.iter().try_for_each(moved)?;
    list("links", one.links.len(), LINKS_MAX)?;
    one.links.iter().try_for_each(|link: &LinkReport| text("why", &link.why, TEXT_BYTES_MAX))?;
    list("remedies", one.remedies.len(), REMEDIES_MAX)?;
    one.remedies.iter().try_for_each(remedy)?;
    count("memory_bytes", one.memory_bytes)?;
    count("room_bytes", one.room_bytes.unwrap_or_default())?;
    within("requests", one.requests, &RATES)?;
    text("version", &one.version, NAME_BYTES_MAX)?;
    one.vitals.as_ref().map_or(Ok(()), vitals)?;
    one.curve.as_ref().map_or(Ok(()), curve)?;
    one.ages.as_ref().map_or(Ok(()), ages)
}

fn vitals(one: &VitalsReport) -> Result<(), String> {
    count("used_bytes", one.used_bytes)?;
    list("latency_ns", one.latency_ns.len(), LATENCIES_LISTED)?;
    one.latency_ns.iter().try_for_each(|(_, requests)| count("latency_ns", *requests))
}

fn worker(one: &WorkerReport) -> Result<(), String> {
    within("fixed", one.fixed, &LOADS)?;
    list("cachelets", one.cachelets.len(), CACHELETS_MAX)?;
    for cachelet in &one.cachelets {
        text("prefix", &cachelet.prefix, NAME_BYTES_MAX)?;
        within("load", cachelet.load, &LOADS)?;
        count("bytes", cachelet.bytes)?;
    }
    within("load", one.rest.load, &LOADS)?;
    for number in [one.rest.bytes, one.reads, one.hits, one.writes] {
        count("a worker", number)?;
    }
    Ok(())
}

fn remedy(one: &RemedyReport) -> Result<(), String> {
    text("split", one.split.as_deref().unwrap_or_default(), NAME_BYTES_MAX)?;
    let now = one.came.map_or(0.0, |(now, _)| now);
    [one.seen, one.expected, now].into_iter().try_for_each(|part| within("remedies", part, &LOADS))
}

fn moved(one: &MoveReport) -> Result<(), String> {
    within("part_gone", one.part_gone, &(0.0..=1.0))?;
    text("why", one.why.as_deref().unwrap_or_default(), TEXT_BYTES_MAX)?;
    count("bytes", one.bytes)
}

fn curve(one: &CurveReport) -> Result<(), String> {
    list("points", one.points.len(), POINTS_MAX)?;
    within("counted", one.counted, &(0.0..=COUNT_MAX as f64))?;
    [one.reads, one.hits, one.state_bytes].into_iter().try_for_each(|number| count("curve", number))
}

fn ages(one: &AgesReport) -> Result<(), String> {
    list("classes", one.classes.len(), CLASSES_MAX)?;
    count("memory_bytes", one.memory_bytes)?;
    count("used_bytes", one.used_bytes)?;
    for class in &one.classes {
        count("items", class.items)?;
        count("bytes", class.bytes)?;
    }
    Ok(())
}

fn scale(call: &ScaleCall) -> Result<(), String> {
    list("servers", call.servers, SERVERS_MAX)?;
    list("retire", call.retire.len(), SERVERS_MAX)
}

fn autoscale(config: &AutoscaleConfig) -> Result<(), String> {
    within("database_rate", config.database_rate, &RATES)?;
    list("schedule", config.schedule.len(), RULES_MAX)?;
    config.schedule.iter().try_for_each(|rule| text("schedule", rule, TEXT_BYTES_MAX))
}

fn within(name: &str, number: f64, bounds: &RangeInclusive<f64>) -> Result<(), String> {
    // What is no number is in no range.
    match bounds.contains(&number) {
        true => Ok(()),
        false => Err(format!(
            "{name}: {number:e} is not from {:e} to {:e}",
            bounds.start(),
            bounds.end()
        )),
    }
}

fn count(name: &str, number: u64) -> Result<(), String> {
    match number <= COUNT_MAX {
        true => Ok(()),
        false => Err(format!("{name}: {number} is more than {COUNT_MAX}")),
    }
}

fn list(name: &str, length: usize, most: usize) -> Result<(), String> {
    match length <= most {
        true => Ok(()),
        false => Err(format!("{name}: {length} are more than {most}")),
    }
}

fn text(name: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    match text.len() <= bytes_max {
        true => Ok(()),
        false => Err(format!("{name}: it has {} bytes, and {bytes_max} at most", text.len())),
    }
}

fn texts(name: &str, all: &[String], most: usize) -> Result<(), String> {
    list(name, all.len(), most)?;
    all.iter().try_for_each(|one| text(name, one, TEXT_BYTES_MAX))
}
