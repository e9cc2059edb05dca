use std::time::Duration;

const EXAMPLES: &str = "\
EXAMPLES
  mbal top                                  the server on port 11211; q ends it
  mbal top /run/mbal.sock --interval 2      over a unix socket, every two seconds
  mbal top cache1:11211 --once              one look, as text
  mbal top --json | jq .hottest_keys        an object every half second

Of stock memcached it shows what `stats` tells, and keys by a `watch` of a fifth of a second every time.
NO_COLOR is heeded; without a terminal, or on a dumb one, the screen is printed as text.";

/// Shows what a server does now: rate, hits, latency, workers, the hottest cachelets and keys
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Server to watch: HOST:PORT, or the path of a unix socket
    #[arg(default_value = "127.0.0.1:11211")]
    pub server: String,
    /// Seconds between two looks
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    pub interval: Duration,
    /// Look once, print, and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds, 0.1 to 3600".into())
}
