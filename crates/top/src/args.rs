//! The flags of `mbal top`.

use std::time::Duration;

use mbal_dial::{Access, At};

const EXAMPLES: &str = "\
EXAMPLES
  mbal top                                  the cluster of the coordinator on this host; or the server on port
                                            11211, if there is none; q ends it
  mbal top cache1:11212 --interval 2        another one, every two seconds
  mbal top unix:/run/mbal.sock --once       over a unix socket; one look, as text
  mbal top cache1 --tls-ca ca.pem --user ann --password-file secret
  mbal top --coordinator http://10.0.0.1:11210  servers, loads, moves and decisions of a cluster
  mbal top --json | jq .hottest_keys        an object every half second

Of stock memcached it shows what `stats` tells, and keys by a `watch` of a fifth of a second every time.
NO_COLOR is heeded. Without a terminal, on a dumb one, and with --once it prints text: all workers, keys in full.";

/// Shows what a server does now: rate, hits, latency, workers, the hottest cachelets and keys
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub at: At,
    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    pub interval: Duration,
    /// Look once, print, and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub access: Access,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds, 0.1 to 3600".into())
}
