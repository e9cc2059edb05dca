//! `mbal scale`: how many servers share the keys, and what that brings: of a cluster, or of a pool of stock memcached.

mod auto;
mod cluster;
mod memcached;
mod results;
mod telling;

use std::process::ExitCode;

use clap::Args;

use crate::cluster::{At, told};

const EXAMPLES: &str = "\
EXAMPLES
  mbal scale 3              three servers are to serve: the coldest others retire
  mbal scale 3 --dry-run    says which, and what would travel
  mbal scale 3 --retire 4   server 4 retires, however warm: its hottest items travel
  mbal scale                how far it is
  mbal scale --cancel       those that were to retire serve on
  mbal scale --forecast     the hit ratio of every number of servers
  mbal scale --forecast --database-rate 4000
                            and how many a database of 4,000 reads/s needs
  mbal scale --auto --min 3 --max 12 --database-rate 4000 --dry-run
                            what the autoscaler would do, and why
  mbal scale --auto --min 3 --max 9 --database-rate 4000 --schedule '6 from 08:00'
                            it does so, and never below six from then on; UTC
  mbal scale --auto         what it has seen last, and what came true
  mbal scale --auto --policy off
                            sizes are people's business again
  mbal scale --memcached a:11211,b:11211,c:11211 --to 2 --dry-run
                            a pool of stock memcacheds: which one would retire,
                            and what would travel
  mbal scale --memcached a,b,c --to 2 --i-stop-writers
                            moves; asks you to change the clients' list; tidies up
  mbal scale --memcached a,b --to-servers a,b,c --i-stop-writers --rate 50
                            a server more; at most 50 MB a second
  mbal scale --memcached a,b --to 1 --i-stop-writers --switch-command ./deploy
                            ./deploy gives clients the list in $MBAL_SERVERS
  mbal scale --memcached a,b --to-servers a,b
                            deletes what an earlier change has left on them

Servers that retire are emptied together, and serve meanwhile. If the others have
less room than all items need, only the youngest travel, and the oldest make room
for them. Who has retired may be stopped. The autoscaler starts and stops servers
as `mbal coordinator` was told: by commands, an HTTP call or Kubernetes. `mbal up`
starts and stops processes.

The memcacheds are stock ones, 1.6 or newer, and know nothing of it. Items keep
value, flags and time to live. A server in a list is HOST[:PORT[:WEIGHT]], as in
the clients' list; behind a blank may be twemproxy's name of it. Nothing may be
written, incremented or deleted from the beginning until every client has the new
list, or a client reads what was overwritten. Reads go on, and a value may be
added that a read has missed. docs/operate.md says what can still go wrong.
Ctrl-C takes back what was copied.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Scale {
    #[command(flatten)]
    resize: cluster::Resize,

    #[command(flatten)]
    auto: auto::Auto,

    #[command(flatten)]
    pool: memcached::Memcached,

    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    at: At,
}

pub fn scale(scale: Scale) -> ExitCode {
    let Scale { resize, mut auto, mut pool, dry_run, json, at } = scale;
    if pool.is_asked() {
        (pool.dry_run, pool.json) = (dry_run, json);
        return memcached::run(&pool);
    }
    auto.dry_run = dry_run;
    told(at.caller().and_then(|caller| match auto.is_asked() {
        true => auto.run(&caller, json),
        false => resize.run(&caller, dry_run, json),
    }))
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
