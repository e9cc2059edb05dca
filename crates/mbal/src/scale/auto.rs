//! `mbal cluster forecast` and `mbal cluster autoscale`.

use std::fmt::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use mbal_control::api::{
    AutoscaleConfig, AutoscalePolicy, AutoscaleStatus, ForecastTold, OutcomeTold,
};
use mbal_server::Caller;

use super::bytes;
use super::prices::Prices;
use crate::cluster::{read, text, text_with};

const FORECAST: &str = "/v1/forecast";
const AUTOSCALE: &str = "/v1/autoscale";

/// A coordinator that was set up anew has looked by then.
const LOOKS_WITHIN: Duration = Duration::from_secs(5);
const ASKED_EVERY: Duration = Duration::from_millis(200);

// What is asked of the autoscaler. No docstring: it would become the help of who has these flags.
#[derive(Args, Debug)]
pub struct Auto {
    /// Servers at least
    #[arg(long, value_name = "num", requires_all = ["max", "database_rate"])]
    min: Option<usize>,

    /// Servers at most
    #[arg(long, value_name = "num", requires = "min")]
    max: Option<usize>,

    /// Reads that the database bears, a second
    #[arg(long, value_name = "rate", requires = "min")]
    database_rate: Option<f64>,

    /// What the last minute needs; or that, and what yesterday needed at this hour; or nothing
    #[arg(long, value_name = "policy")]
    policy: Option<Policy>,

    /// Never below so many servers at some hours, UTC: `6 from 08:00`, `6 from 22:00 to 06:00 on mon-fri`. Can be said several
    /// times
    #[arg(long, value_name = "rule", requires = "min")]
    schedule: Vec<String>,

    /// Only say what it would do
    #[arg(long, requires = "min")]
    dry_run: bool,

    /// Memory is planned for so many times the rate
    #[arg(long, value_name = "times", requires = "min")]
    headroom: Option<f64>,

    /// Minutes after a change in which no server leaves
    #[arg(long, value_name = "minutes", requires = "min")]
    rest: Option<u64>,
}

// What a forecast is asked of. No docstring: likewise.
#[derive(Args, Debug)]
pub struct Sizes {
    /// The largest size that is told
    #[arg(long, value_name = "num")]
    max: Option<usize>,

    /// Reads that the database bears, a second
    #[arg(long, value_name = "rate")]
    database_rate: Option<f64>,

    /// What a size costs, by a file in TOML: `currency`, and an hour's price of a `server` and of a `gigabyte` of its memory
    #[arg(long, value_name = "file")]
    prices: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Policy {
    Reactive,
    Predictive,
    Off,
}

impl From<Policy> for AutoscalePolicy {
    fn from(policy: Policy) -> AutoscalePolicy {
        match policy {
            Policy::Reactive => AutoscalePolicy::Reactive,
            Policy::Predictive => AutoscalePolicy::Predictive,
            Policy::Off => AutoscalePolicy::Off,
        }
    }
}

impl Auto {
    pub fn run(&self, caller: &Caller, json: bool) -> Result<String, String> {
        let before: AutoscaleStatus = read(&text(caller, "GET", AUTOSCALE, None)?)?;
        let Some(config) = self.config(before.config.as_ref())? else {
            let told = text(caller, "GET", AUTOSCALE, None)?;
            return if json { Ok(told) } else { Ok(shown(&read(&told)?)) };
        };
        let is_live =
            |config: &AutoscaleConfig| config.policy != AutoscalePolicy::Off && !config.dry_run;
        if config.dry_run && before.config.as_ref().is_some_and(is_live) {
            return Err("the autoscaler is at work, and a dry run would take its place: --policy off first, or mbal cluster forecast, which changes nothing".into());
        }
        text_with(caller, "PUT", AUTOSCALE, Some(&config))?;
        let told = looked(caller, &before)?;
        if json {
            return Ok(told);
        }
        let (max, database_rate) = (Some(config.max), Some(config.database_rate));
        let sizes = Sizes { max, database_rate, prices: None };
        if config.policy == AutoscalePolicy::Off {
            return Ok(shown(&read(&told)?));
        }
        let forecast = sizes.ask(caller)?;
        Ok(table(&read(&forecast)?, None) + &shown(&read(&told)?))
    }

    /// What is to be set up; nothing if it is only asked.
    fn config(&self, before: Option<&AutoscaleConfig>) -> Result<Option<AutoscaleConfig>, String> {
        let (Some(min), Some(max), Some(database_rate)) = (self.min, self.max, self.database_rate)
        else {
            let Some(policy) = self.policy else { return Ok(None) };
            let before = before.ok_or("say --min, --max and --database-rate, too")?.clone();
            return Ok(Some(AutoscaleConfig { policy: policy.into(), ..before }));
        };
        let usual = AutoscaleConfig::default();
        let config = AutoscaleConfig {
            min,
            max,
            database_rate,
            policy: self.policy.map_or(usual.policy, Into::into),
            schedule: self.schedule.clone(),
            dry_run: self.dry_run,
            headroom: self.headroom.unwrap_or(usual.headroom),
            rest_minutes: self.rest.unwrap_or(usual.rest_minutes),
        };
        config.aims().map(|_| Some(config))
    }
}

impl Sizes {
    pub fn told(&self, caller: &Caller, json: bool) -> Result<String, String> {
        let prices = self.prices.as_deref().map(Prices::of).transpose()?;
        let told = self.ask(caller)?;
        if json { Ok(told) } else { Ok(table(&read(&told)?, prices.as_ref())) }
    }

    fn ask(&self, caller: &Caller) -> Result<String, String> {
        let mut path = format!("{FORECAST}?servers={}", self.max.unwrap_or(0));
        if let Some(rate) = self.database_rate {
            path += &format!("&database_rate={rate}");
        }
        text(caller, "GET", &path, None)
    }
}

/// The autoscaler's word after its first look, or what there is.
fn looked(caller: &Caller, before: &AutoscaleStatus) -> Result<String, String> {
    let mut waited = Duration::ZERO;
    loop {
        let told = text(caller, "GET", AUTOSCALE, None)?;
        let status: AutoscaleStatus = read(&told)?;
        let is_off =
            status.config.as_ref().is_none_or(|config| config.policy == AutoscalePolicy::Off);
        if is_off || status.last != before.last || waited >= LOOKS_WITHIN {
            return Ok(told);
        }
        thread::sleep(ASKED_EVERY);
        waited += ASKED_EVERY;
    }
}

fn table(told: &ForecastTold, prices: Option<&Prices>) -> String {
    let mut out = format!(
        "{} servers of {}: {:.0} reads/s, {:.1}% hit",
        told.servers,
        bytes(told.server_bytes),
        told.reads_per_second,
        100.0 * told.hit_ratio,
    );
    out += &match told.hit_ratio_measured {
        Some(measured) => format!(", {:.1}% in ten steady minutes\n", 100.0 * measured),
        None => "; not measured for ten steady minutes yet\n".into(),
    };
    if told.servers_told < told.servers {
        let _ = writeln!(
            out,
            "{} of them have told their hit ratios by size: the others are taken to hit nothing",
            told.servers_told
        );
    }
    let needed = told.hit_ratio_needed;
    if let Some(needed) = needed {
        let _ =
            writeln!(out, "the database bears what misses if {:.1}% hit (p_min)", 100.0 * needed);
    }
    let cost = prices.map_or(String::new(), |prices| format!("   {}/h", prices.currency));
    let _ = writeln!(out, "servers   hit ratio   at most   to the database/s   full after{cost}");
    let enough =
        needed.and_then(|needed| told.sizes.iter().position(|size| size.hit_ratio >= needed));
    for (at, size) in told.sizes.iter().enumerate() {
        let now = if size.servers == told.servers { "  now" } else { "" };
        let first = if Some(at) == enough { "  enough" } else { "" };
        let fills = match size.fills_in_s {
            Some(seconds) => time(seconds),
            None if size.servers > told.servers => "?".into(),
            None => String::new(),
        };
        let hour =
            |prices: &Prices| format!(" {:>6.2}", prices.hour(size.servers, told.server_bytes));
        let _ = writeln!(
            out,
            "{:>7} {:>10.1}% {:>8.1}% {:>19.0} {fills:>12}{}{now}{first}",
            size.servers,
            100.0 * size.hit_ratio,
            100.0 * size.hit_ratio_most.max(size.hit_ratio),
            size.database_rate,
            prices.map_or(String::new(), hour),
        );
    }
    if let (Some(needed), None, Some(most)) = (needed, enough, told.sizes.last()) {
        let _ = writeln!(
            out,
            "no size is enough: at most {:.1}% with {} servers, {:.1}% is needed{}",
            100.0 * most.hit_ratio,
            most.servers,
            100.0 * needed,
            if told.sizes.iter().any(|size| size.hit_ratio < most.hit_ratio) {
                "; --max tells more sizes"
            } else {
                ""
            }
        );
    }
    out
}

fn time(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7_200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.0} h", seconds / 3_600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

fn shown(status: &AutoscaleStatus) -> String {
    let Some(config) = &status.config else {
        return "nobody has set the autoscaler up: mbal cluster autoscale --help\n".into();
    };
    if config.policy == AutoscalePolicy::Off {
        return "autoscaler: off\n".into();
    }
    let policy = match config.policy {
        AutoscalePolicy::Reactive => "reactive",
        AutoscalePolicy::Predictive => "predictive",
        AutoscalePolicy::Off => "off",
    };
    let mut out = format!(
        "autoscaler: {policy}{}, {} to {} servers for a database of {}/s; servers are started by {}\n",
        if config.dry_run { ", a dry run" } else { "" },
        config.min,
        config.max,
        config.database_rate,
        match status.machines.as_str() {
            // Its servers are its processes.
            "processes" => "mbal up",
            others => others,
        }
    );
    for rule in &config.schedule {
        let _ = writeln!(out, "never below {rule} UTC");
    }
    match &status.last {
        None => out += "it has not looked yet\n",
        Some(last) => {
            let (now, wanted) = (last.servers, last.servers_wanted);
            let does = match (now == wanted, config.dry_run) {
                (true, _) => format!("keeps {now} servers"),
                (false, true) => format!("would change from {now} to {wanted} servers"),
                (false, false) => format!("changes from {now} to {wanted} servers"),
            };
            let _ = writeln!(
                out,
                "{does}, {:.1}% expected to hit: {}",
                100.0 * last.hit_ratio_expected,
                last.why
            );
        }
    }
    if status.starting > 0 {
        let _ = writeln!(out, "{} servers are starting", status.starting);
    }
    if !status.stopping.is_empty() {
        let servers: Vec<String> = status.stopping.iter().map(u16::to_string).collect();
        let _ = writeln!(out, "emptied, to be stopped: {}", servers.join(" "));
    }
    for OutcomeTold { unix, from, to, expected, measured } in &status.outcomes {
        let (expected, measured) = (100.0 * expected, 100.0 * measured);
        let _ = writeln!(
            out,
            "{unix}: {from} to {to} servers, {expected:.1}% expected, {measured:.1}% hit"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use mbal_control::api::SizeForecast;

    use super::*;

    #[test]
    fn a_table_says_which_size_is_enough_or_that_none_is() {
        let size = |servers: usize, hit_ratio: f64| SizeForecast {
            servers,
            hit_ratio,
            hit_ratio_most: 0.7,
            database_rate: 1000.0 * (1.0 - hit_ratio),
            fills_in_s: (servers > 1).then_some(300.0),
        };
        let told = |needed: Option<f64>, ratios: &[f64]| ForecastTold {
            servers: 1,
            servers_told: 1,
            hit_ratio_needed: needed,
            sizes: ratios.iter().zip(1..).map(|(ratio, servers)| size(servers, *ratio)).collect(),
            ..ForecastTold::default()
        };
        for (needed, ratios, ending) in [
            (
                None,
                &[0.5, 0.6][..],
                "      2       60.0%     70.0%                 400        5 min\n",
            ),
            (
                Some(0.6),
                &[0.5, 0.6],
                "      2       60.0%     70.0%                 400        5 min  enough\n",
            ),
            (
                Some(0.9),
                &[0.5, 0.6],
                "no size is enough: at most 60.0% with 2 servers, 90.0% is needed; --max tells more sizes\n",
            ),
            (
                Some(0.9),
                &[0.6, 0.6],
                "no size is enough: at most 60.0% with 2 servers, 90.0% is needed\n",
            ),
        ] {
            let table = table(&told(needed, ratios), None);
            assert!(table.ends_with(ending), "{table}");
        }
        let prices = Prices::parse("currency = 'EUR'\nserver = 1.5").expect("prices");
        let table = table(&told(None, &[0.5, 0.6]), Some(&prices));
        assert!(table.contains("full after   EUR/h\n"), "{table}");
        assert!(table.ends_with("        5 min   3.00\n"), "{table}");
    }

    #[test]
    fn a_time_is_told_by_its_first_digits() {
        for (seconds, text) in
            [(0.4, "0 s"), (119.0, "119 s"), (150.0, "2 min"), (9_000.0, "2 h"), (4e5, "5 days")]
        {
            assert_eq!(time(seconds), text);
        }
    }
}
