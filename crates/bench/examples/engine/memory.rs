//! What an item costs, and what a server's memory comes to (*Engine*, line 4), against memcached at the same `-m`.

use std::path::Path;

use mbal_bench::Random;
use mbal_cachelet::{Draft, Store};
use mbal_model::Key;

use crate::drawn;
use crate::engine::{Engine, options};
use crate::output::{Page, Sheet};
use crate::server::Server;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value = "target/release/mbal serve -t 1")]
    mbal: String,
    #[arg(long, default_value = "memcached -u root -t 1")]
    memcached: String,
}

impl Args {
    fn servers(&self) -> [(&'static str, &str); 2] {
        [("MBal", &self.mbal), ("memcached", &self.memcached)]
    }
}

const VALUE_BYTES: [usize; 10] = [8, 20, 64, 100, 250, 500, 1000, 4096, 16_384, 65_536];
/// An octave by quarters: somewhere in it every index is at its best and at its worst.
const MEMORIES_MIB: [usize; 4] = [128, 152, 181, 215];
/// Sizes that have a limit, loaded at each of these memories; the others at the first.
const NAMED: [(usize, f64); 2] = [(20, 1.6), (500, 1.15)];
const KEY_BYTES: usize = 10;
const MIB: f64 = (1 << 20) as f64;

/// Where a server first evicted.
struct Filled {
    items: u64,
    rss_bytes: u64,
}

impl Filled {
    fn items_per_mib(&self) -> f64 {
        self.items as f64 / (self.rss_bytes as f64 / MIB)
    }
}

fn fill(command: &str, memory_mib: usize, value_bytes: usize) -> Result<Filled, String> {
    let mut server = Server::start(command, memory_mib)?;
    // A thousandth of what could fit at most, between two looks.
    let step = ((memory_mib << 20) / (value_bytes + 30) / 1000).max(1) as u64;
    let mut items = 0;
    for from in (0..).step_by(step as usize) {
        server.set(from, from + step, value_bytes)?;
        let [evictions, now, refused] =
            server.stats(["evictions", "curr_items", "store_no_memory"])?;
        if evictions + refused > 0 {
            break;
        }
        items = now;
    }
    Ok(Filled { items, rss_bytes: server.rss_bytes()? })
}

/// Bytes beside key and value of each item in a store that has just begun to evict.
fn beside(memory_bytes: usize, value_bytes: usize) -> f64 {
    let store = Store::new(options(memory_bytes, 1, 16));
    let mut engine = Engine::new(&store, 0);
    let value = vec![7; value_bytes];
    for number in 0u64.. {
        let text = format!("{number:010}");
        let key = Key::new(text.as_bytes()).expect("ten bytes");
        let draft = Draft { parts: &[&value], ..Draft::default() };
        engine.set(&key, &draft, 1).expect("eviction makes room");
        if number % 1024 == 0 && store.stats().evictions > 0 {
            break;
        }
    }
    let items = store.stats().items as usize;
    memory_bytes as f64 / items as f64 - (KEY_BYTES + value_bytes) as f64
}

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    let mut page = Page::new(out, "memory", "Memory");
    let mut csv = Sheet::new(["what", "value_bytes", "memory_mib", "server", "items", "bytes"]);

    page.say(
        "Items per resident MiB when the server first evicts: 10 B keys, sets without reply on one connection, \
         one worker, `memcached -t 1`.",
    );
    let columns = ["value B", "-m", "MBal", "memcached", "MBal / memcached"];
    let mut table = Sheet::new(columns);
    let mut ratios = Vec::new();
    for value_bytes in VALUE_BYTES {
        let named = NAMED.iter().any(|(named, _)| *named == value_bytes);
        for memory_mib in &MEMORIES_MIB[..if named { MEMORIES_MIB.len() } else { 1 }] {
            let mut both = [0.0; 2];
            for (at, (name, command)) in args.servers().into_iter().enumerate() {
                let filled = fill(command, *memory_mib, value_bytes)?;
                both[at] = filled.items_per_mib();
                csv.row([
                    "first eviction".into(),
                    value_bytes.to_string(),
                    memory_mib.to_string(),
                    name.into(),
                    filled.items.to_string(),
                    filled.rss_bytes.to_string(),
                ]);
            }
            ratios.push((value_bytes, both[0] / both[1]));
            let [ours, theirs] = both.map(|items| format!("{items:.0}"));
            let ratio = format!("{:.2}", both[0] / both[1]);
            table.row([value_bytes.to_string(), memory_mib.to_string(), ours, theirs, ratio]);
        }
    }
    page.table(&table);
    for (value_bytes, least) in NAMED {
        let of = ratios.iter().filter(|(bytes, _)| *bytes == value_bytes).map(|(_, ratio)| *ratio);
        let worst = of.fold(f64::INFINITY, f64::min);
        page.verdict(
            worst >= least,
            &format!("{value_bytes} B values: at least {least} × memcached's items, at every `-m`"),
            &format!("worst {worst:.2}"),
        );
    }

    let bytes: Vec<f64> = (0..16).map(|step| beside((64 << 20) + step * (4 << 20), 20)).collect();
    let best = bytes.iter().copied().fold(f64::INFINITY, f64::min);
    let worst = bytes.iter().copied().fold(0.0, f64::max);
    page.verdict(
        worst <= 22.0,
        "header, index and waste at most 22 B per item of 10 + 20 B, in process, 64 to 124 MiB by 4, 16 cachelets",
        &format!("best {best:.1}, worst {worst:.1}"),
    );
    for (step, bytes) in bytes.iter().enumerate() {
        let mib = (64 + 4 * step).to_string();
        csv.row([
            "beside".into(),
            "20".into(),
            mib,
            "MBal".into(),
            String::new(),
            format!("{bytes:.2}"),
        ]);
    }

    churn(args, &mut page, &mut csv)?;
    page.save(&csv, &drawn::memory(&csv)?)
}

const CHURN_MIB: usize = 128;

/// Resident memory while the sizes that are written change, each until twice `-m` was written.
fn churn(args: &Args, page: &mut Page, csv: &mut Sheet) -> Result<(), String> {
    /// Shortest and longest value of each phase.
    const PHASES: [(usize, usize); 7] = [
        (20, 20),
        (4000, 4000),
        (100, 100),
        (60_000, 60_000),
        (10, 1000),
        (500_000, 500_000),
        (10, 100_000),
    ];
    let bound = CHURN_MIB as f64 * 1.05 + 50.0;
    for (name, command) in args.servers() {
        let mut server = Server::start(command, CHURN_MIB)?;
        let mut random = Random::new(3);
        let (mut number, mut written, mut looked, mut most) = (0, 0.0, None, 0.0f64);
        for (least, most_bytes) in PHASES {
            let mut in_phase = 0.0;
            while in_phase < 2.0 * CHURN_MIB as f64 {
                let value_bytes = least + random.below((most_bytes - least + 1) as u64) as usize;
                let count = ((1 << 20) / (value_bytes + 40)).clamp(1, 64) as u64;
                server.set(number, number + count, value_bytes)?;
                number += count;
                let mib = count as f64 * (value_bytes + KEY_BYTES) as f64 / MIB;
                in_phase += mib;
                written += mib;
                if looked.is_none_or(|at| written - at > 4.0) {
                    server.stats([])?;
                    let rss = server.rss_bytes()?;
                    most = most.max(rss as f64 / MIB);
                    looked = Some(written);
                    let cells = [CHURN_MIB.to_string(), name.into(), number.to_string()];
                    let heads = ["churn".into(), value_bytes.to_string()];
                    csv.row(heads.into_iter().chain(cells).chain([rss.to_string()]));
                }
            }
        }
        page.verdict(
            most <= bound,
            &format!("{name}: RSS at most -m + 5% + 50 MiB ({bound:.0}) while sizes change"),
            &format!("{most:.0} MiB"),
        );
    }
    Ok(())
}
