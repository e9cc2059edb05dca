//! What each server of a cluster does, by its own `stats`: asked in the background, over a connection of its own.

use std::io::{self, BufRead, BufReader, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::address::Target;

/// Statistics that count what was executed for clients.
const COUNTED: [&str; 2] = ["cmd_get", "cmd_set"];
const PAUSE: Duration = Duration::from_millis(500);
/// A look at the flag that ends it.
const NAP: Duration = Duration::from_millis(20);

/// One server's gets and sets, at a moment.
type Sample = (Instant, u64);

pub struct Servers<'a> {
    target: &'a Target,
    addresses: Vec<std::net::SocketAddr>,
}

impl<'a> Servers<'a> {
    /// The servers that `target` says, each by its first worker's port.
    pub fn of(target: &'a Target) -> Result<Self, String> {
        let routes = target.routes(true)?;
        let routes =
            routes.ok_or("--per-server needs a server that knows its cluster, or --map")?;
        Ok(Self { target, addresses: routes.servers() })
    }

    /// Asks all of them now and then, until `is_over`; the samples by server.
    pub fn watch(&self, is_over: &AtomicBool) -> Result<Vec<Vec<Sample>>, String> {
        let failed = |error: io::Error| format!("--per-server: {error}");
        let connect = |at: &std::net::SocketAddr| self.target.talk(*at).map(BufReader::new);
        let mut talks = self.addresses.iter().map(connect).collect::<Result<Vec<_>, _>>();
        let talks = talks.as_mut().map_err(|error| format!("--per-server: {error}"))?;
        let mut samples = vec![Vec::new(); talks.len()];
        loop {
            let is_last = is_over.load(Ordering::Relaxed);
            for (talk, samples) in talks.iter_mut().zip(&mut samples) {
                samples.push(sample(talk).map_err(failed)?);
            }
            if is_last {
                return Ok(samples);
            }
            let next = Instant::now() + PAUSE;
            while Instant::now() < next && !is_over.load(Ordering::Relaxed) {
                sleep(NAP);
            }
        }
    }
}

fn sample(talk: &mut BufReader<mbal_dial::Stream>) -> io::Result<Sample> {
    talk.get_mut().write_all(b"stats\r\n")?;
    let (mut sum, mut line) = (0, String::new());
    loop {
        line.clear();
        if talk.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["STAT", name, value] if COUNTED.contains(&name) => {
                sum += value.parse::<u64>().map_err(io::Error::other)?;
            }
            ["END"] => return Ok((Instant::now(), sum)),
            _ => {}
        }
    }
}

/// Gets and sets a second of each server, between the first and the last sample of the window.
pub fn rates(samples: &[Vec<Sample>], (start, end): (Instant, Instant)) -> Vec<f64> {
    let rate = |samples: &Vec<Sample>| {
        let inside = |(at, _): &&Sample| (start..=end).contains(at);
        let first = samples.iter().find(inside)?;
        let last = samples.iter().rev().find(inside)?;
        let seconds = (last.0 - first.0).as_secs_f64();
        (seconds > 0.0).then(|| last.1.saturating_sub(first.1) as f64 / seconds)
    };
    samples.iter().map(|samples| rate(samples).unwrap_or(f64::NAN)).collect()
}

/// The busiest server's rate, of the average.
pub fn max_over_mean(rates: &[f64]) -> Option<f64> {
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    (mean > 0.0).then(|| rates.iter().copied().fold(0.0, f64::max) / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_window_alone() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let busy = vec![(at(0), 0), (at(1), 900), (at(2), 1_200), (at(5), 2_100), (at(6), 9_000)];
        let idle = vec![(at(0), 5), (at(2), 5), (at(3), 5), (at(5), 305)];
        let rates = rates(&[busy, idle], (at(1), at(5)));
        assert_eq!(rates, [300.0, 100.0]);
        assert_eq!(max_over_mean(&rates), Some(1.5));
        assert_eq!(max_over_mean(&[0.0, 0.0]), None);
        assert_eq!(max_over_mean(&[f64::NAN]), None);
    }
}
