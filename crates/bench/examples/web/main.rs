//! Web requests of 100 keys on a pool of caches in front of PostgreSQL, as in ElMem's evaluation (ICDCS 2018, §V): look-aside, open loop,
//! one line of a CSV per second. `crates/bench/scripts/elmem-testbed` calls it, and changes the pool while it runs.
//!
//!   web fill --database DIR --keys N                  makes the table
//!   web rate --database DIR --keys N                  how many keys a second the database gives
//!   web load --database DIR --keys N --servers LIST   loads; commands come in a file (`control.rs`)
//!   web naive --servers LIST --retire LIST            moves by ElMem's "Naive": the hottest of each retiring server
//!   web plot FOLDER                                   draws its CSVs
#![forbid(unsafe_code)]

mod cache;
mod control;
mod database;
mod load;
mod naive;
mod plot;
mod routing;
mod values;

use std::path::PathBuf;

use clap::Parser;
use mbal_routing::ketama::RingServer;

#[derive(Parser, Clone, Debug)]
pub struct Args {
    /// fill, rate, load, naive or plot
    what: String,

    /// Of plot: where the CSVs are
    folder: Option<PathBuf>,

    /// The folder of PostgreSQL's socket
    #[arg(long, default_value = "/var/run/postgresql")]
    database: PathBuf,

    #[arg(long, default_value_t = 300_000)]
    keys: u32,

    /// The caches, in the clients' order
    #[arg(long, value_delimiter = ',')]
    servers: Vec<RingServer>,

    #[arg(long, value_delimiter = ',')]
    retire: Vec<RingServer>,

    /// They are MBal's: keys go by the cluster's map
    #[arg(long)]
    mbal: bool,

    /// Zipf's exponent of the keys' popularity, where no trace is given
    #[arg(long, default_value_t = 1.0)]
    zipf: f64,

    /// Keys come in the order of this trace, over and over
    #[arg(long)]
    trace: Option<PathBuf>,

    /// Web requests a second; intervals are exponential
    #[arg(long, default_value_t = 50.0)]
    rate: f64,

    /// Of all web requests, how many change the value of one of their keys
    #[arg(long, default_value_t = 0.0)]
    updates: f64,

    /// Keys of a web request
    #[arg(long, default_value_t = 100)]
    keys_each: usize,

    /// Seconds that are measured
    #[arg(long, default_value_t = 20)]
    seconds: u64,

    /// Seconds before, which have negative numbers
    #[arg(long, default_value_t = 0)]
    warmup: u64,

    /// Web requests under way at once; more wait
    #[arg(long, default_value_t = 48)]
    threads: usize,

    /// Where commands come
    #[arg(long)]
    control: Option<PathBuf>,

    #[arg(long)]
    csv: Option<PathBuf>,

    /// Where the time of each web request goes
    #[arg(long)]
    requests: Option<PathBuf>,

    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<(), String> {
    let args = Args::parse();
    match &args.what[..] {
        "fill" => database::fill(&args.database, args.keys),
        "rate" => load::database_rate(&args),
        "load" => load::load(&args),
        "naive" => naive::naive(&args),
        "plot" => plot::plot(args.folder.as_deref().ok_or("which folder?")?),
        what => Err(format!("{what:?} is none of fill, rate, load, naive, plot")),
    }
}
