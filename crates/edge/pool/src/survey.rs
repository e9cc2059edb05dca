//! Looks at all servers of a pool: their items, their memory, their clocks.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use mbal_elastic::pool::{Line, Listing, Member, PAGE_BYTES, SlabPages, SlabSettings, Slabs};
use mbal_routing::ketama::{KeyHash, RingServer};

use crate::connection::{Connection, Dial, Failed};
use crate::pace::Pace;

/// A crawler that is at other work is asked again so often, for so long.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
const BUSY_MAX: Duration = Duration::from_secs(600);
/// Items are counted so many at a time.
const COUNTED: u64 = 4096;

/// What a server told.
#[derive(Debug)]
pub struct Surveyed {
    pub server: RingServer,
    pub version: String,
    pub listing: Listing,
    pub slabs: Slabs,
    pub held: SlabPages,
    pub clock: Clock,
    /// The moment from which ages count, by the server's clock.
    pub now: u64,
}

/// A server's clock, seen from here.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    seconds: u64,
    at: Instant,
}

impl Clock {
    /// What it shows at a moment, before or after it was read.
    pub fn at(&self, moment: Instant) -> u64 {
        match moment.checked_duration_since(self.at) {
            Some(since) => self.seconds + since.as_secs(),
            None => self.seconds.saturating_sub((self.at - moment).as_secs()),
        }
    }
}

impl Surveyed {
    pub fn member(&self) -> Member<'_> {
        Member { listing: &self.listing, slabs: &self.slabs, held: &self.held }
    }
}

/// All servers at once. Ages count from one moment, whatever the servers' clocks show and however long a listing takes.
pub fn survey(
    servers: &[RingServer],
    dial: Dial,
    hash: KeyHash,
    pace: &Pace,
) -> Result<Vec<Surveyed>, Failed> {
    pace.progress.begin(0);
    let begin = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = servers
            .iter()
            .map(|server| {
                scope.spawn(move || look(server, dial, hash, begin, (pace, servers.len())))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a survey does not panic")).collect()
    })
}

fn look(
    server: &RingServer,
    dial: Dial,
    hash: KeyHash,
    begin: Instant,
    (pace, servers): (&Pace, usize),
) -> Result<Surveyed, Failed> {
    let mut connection = Connection::open(dial, server)?;
    let odd = |what: String| Failed { server: server.to_string(), error: io::Error::other(what) };
    let general = connection.stats("")?;
    let clock = Clock { seconds: number(&general, "time").map_err(odd)?, at: Instant::now() };
    let version = general.get("version").cloned().unwrap_or_default();
    if !has_meta(&version) {
        return Err(odd(format!(
            "memcached {version} has no meta commands: version 1.6 or newer is needed"
        )));
    }
    let settings = connection.stats("settings")?;
    let slabs = Slabs::new(&SlabSettings {
        chunk_size: number(&settings, "chunk_size").map_err(odd)?,
        growth_factor: number(&settings, "growth_factor").map_err(odd)?,
        slab_chunk_max: number(&settings, "slab_chunk_max").map_err(odd)?,
    });
    let held = held(&connection.stats("slabs")?, &general, &slabs).map_err(odd)?;
    let items: u64 = number(&general, "curr_items").map_err(odd)?;
    pace.progress.total.fetch_add(items, Relaxed);
    let mut listing = Listing::default();
    let now = clock.at(begin);
    list(&mut connection, (pace, servers), |line| listing.push(&line, now, hash))?;
    listing.sort();
    Ok(Surveyed { server: server.clone(), version, listing, slabs, held, clock, now })
}

/// A listing's lines, one after the other; so many servers are listed at a time. What is stored or read meanwhile may be in it or not.
///
/// With a rate, the server's crawler sleeps longer meanwhile: its setting is changed, and changed back.
pub fn list(
    connection: &mut Connection,
    (pace, servers): (&Pace, usize),
    each: impl FnMut(Line),
) -> Result<(), Failed> {
    let Some(micros) = pace.crawler_sleep(servers) else { return list_at(connection, pace, each) };
    let settings = connection.stats("settings")?;
    let before: u64 = number(&settings, "lru_crawler_sleep")
        .map_err(|what| connection.failed(io::Error::other(what)))?;
    // Somebody has it sleep longer, or an interrupted resize had.
    if before >= micros {
        return list_at(connection, pace, each);
    }
    connection.crawler_sleeps(micros)?;
    let listed = list_at(connection, pace, each);
    let restored = connection.crawler_sleeps(before);
    listed.and(restored)
}

fn list_at(
    connection: &mut Connection,
    pace: &Pace,
    mut each: impl FnMut(Line),
) -> Result<(), Failed> {
    let begin = Instant::now();
    // Along the hash table, memcached 1.6.18 sleeps as often for an empty bucket as for an item.
    while !connection.begin_listing(pace.has_rate())? {
        if begin.elapsed() > BUSY_MAX {
            return Err(connection.strange(b"BUSY"));
        }
        thread::sleep(BUSY_PAUSE);
    }
    let mut items = 0;
    while let Some(line) = connection.listed()? {
        each(Line::parse(&line).ok_or_else(|| connection.strange(&line))?);
        items += 1;
        if items % COUNTED == 0 {
            pace.progress.add(COUNTED, 0);
        }
    }
    pace.progress.add(items % COUNTED, 0);
    Ok(())
}

/// Meta commands came with 1.6.
fn has_meta(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '_']).map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (1, 6))
}

fn number<T: std::str::FromStr>(stats: &BTreeMap<String, String>, name: &str) -> Result<T, String> {
    let told = stats.get(name).ok_or_else(|| format!("it does not tell {name}"))?;
    told.parse().map_err(|_| format!("it tells {name} as {told:?}"))
}

/// Pages by class, from `stats slabs`, and those to come up to the server's limit.
fn held(
    stats: &BTreeMap<String, String>,
    general: &BTreeMap<String, String>,
    slabs: &Slabs,
) -> Result<SlabPages, String> {
    let mut pages = vec![0; slabs.end()];
    for (name, value) in stats {
        let Some((class, field)) = name.split_once(':') else { continue };
        let class: usize = class.parse().map_err(|_| format!("it tells {name}"))?;
        let count: u64 = value.parse().map_err(|_| format!("it tells {name} as {value:?}"))?;
        if class >= slabs.end() || field == "chunk_size" && count != slabs.chunk_bytes(class) {
            return Err(format!(
                "its slab classes are not those of its settings ({name} {value}): a server with -o slab_sizes cannot be resized"
            ));
        }
        if field == "total_pages" {
            pages[class] = count;
        }
    }
    let limit = number::<u64>(general, "limit_maxbytes")? / PAGE_BYTES;
    let unassigned = number::<u64>(general, "slab_global_page_pool").unwrap_or(0);
    let free_pages = limit.saturating_sub(pages.iter().sum::<u64>()).max(unassigned);
    Ok(SlabPages { pages, free_pages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_read_once_and_known_before_and_after() {
        let at = Instant::now() + Duration::from_secs(100);
        let clock = Clock { seconds: 5_000, at };
        assert_eq!(clock.at(at), 5_000);
        assert_eq!(clock.at(at + Duration::from_secs(7)), 5_007);
        assert_eq!(clock.at(at - Duration::from_secs(30)), 4_970);
    }

    #[test]
    fn which_versions_have_meta_commands() {
        for (version, has) in [
            ("1.6.18", true),
            ("1.6.45-mbal", true),
            ("2.0.0", true),
            ("1.5.22", false),
            ("", false),
        ] {
            assert_eq!(has_meta(version), has, "{version}");
        }
    }
}
