//! `mbal pool resize`: resizes a pool of stock memcacheds behind ketama clients.

mod auto;
mod results;
mod telling;
mod through;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use mbal_dial::{Access, Dialer, ServerName, Speech};
use mbal_elastic::pool::{Evidence, Fit, Listed, Plan, Resize, plan};
use mbal_elastic::switch::Ending;
use mbal_pool::{
    Dial, Failed, Leases, Life, Move, Pace, Stream, Surveyed, choose, lives, survey, sweep,
    tell_filled, untell_filled,
};
use mbal_reactor::process::Signals;
use mbal_routing::ketama::{Dialect, KeyHash, Ring, RingServer};
use mbal_server::token_of;
use serde_json::json;

pub use auto::{AutoPool, autoscale};
use results::{has, is, listed};
use telling::Telling;
use through::{Known, Lists, Through};

/// A server that says nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Likewise a proxy, which waits for what its servers have to answer first.
const PATIENCE_WITH_PROXIES: Duration = Duration::from_secs(10);
/// Sources are listed again at most so often, to copy what was read or added meanwhile.
const CHECKS_MAX: usize = 3;
/// Fewer new items are not worth another check.
const FRESH_FEW: u64 = 100;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After clients have the list, whoever flushes a server that comes has done so by then.
const FLUSHED_WITHIN: Duration = Duration::from_secs(2);
/// Copies that were flushed are made again so often.
const COPIES_AGAIN_MAX: usize = 3;

const EXAMPLES: &str = "\
EXAMPLES
  mbal pool resize a:11211,b:11211,c:11211 --to 2 --dry-run
                        which one would retire, and what would travel
  mbal pool resize a,b,c --to 2 --i-stop-writers
                        moves; asks you to change the clients' list; tidies up
  mbal pool resize a,b --to-servers a,b,c --i-stop-writers --rate 50
                        a server more; at most 50 MB a second
  mbal pool resize a,b --to 1 --i-stop-writers --switch-command ./deploy
                        ./deploy gives clients the list in $MBAL_SERVERS
  mbal pool resize a,b --to-servers a,b
                        deletes what an earlier change has left on them
  mbal pool resize a,b,c --to 2 --through p1:11311,p2:11311 --token-file t
                        behind these proxies: writers go on

The memcacheds are stock ones, 1.6 or newer, and know nothing of it. Items keep
value, flags and time to live. A server in a list is HOST[:PORT[:WEIGHT]], as in
the clients' list; behind a blank may be twemproxy's name of it. If the others
have less room than all items need, only the youngest travel.

Without --through nothing may be written, incremented or deleted from the beginning
until every client has the new list, or a client reads what was overwritten. Reads go on, and
a value may be added that a read has missed. What can still go wrong:
docs/how-to/resize-a-stock-pool.md. Ctrl-C takes back what was copied.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Pool {
    /// The servers as clients have them now, separated by commas
    #[arg(value_name = "SERVERS", value_delimiter = ',', required = true)]
    servers: Vec<RingServer>,

    /// How many servers stay: the coldest others retire
    #[arg(long, value_name = "N", required_unless_present = "to_servers")]
    to: Option<usize>,

    /// The servers as clients are to have them
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', conflicts_with = "to")]
    to_servers: Vec<RingServer>,

    /// How the clients place keys: libmemcached, libmemcached-unweighted, twemproxy or spymemcached
    #[arg(long, value_name = "RING", default_value = "libmemcached")]
    ring: Dialect,

    /// How they hash keys, if not as is usual with that ring: md5, fnv1a_64, fnv1a_32 or one_at_a_time
    #[arg(long, value_name = "HASH")]
    hash: Option<KeyHash>,

    /// Copy at most so many MB a second
    #[arg(long, value_name = "MB", value_parser = rate)]
    rate: Option<u64>,

    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    /// I see to it that nothing is written until every client has the new list
    #[arg(long)]
    i_stop_writers: bool,

    /// Delete items that are not where the ring has them, though the pool does not prove that it is the clients' ring
    #[arg(long)]
    delete_strays: bool,

    /// Gives every client the new list, which is in $MBAL_SERVERS, and returns when they have it
    #[arg(long, value_name = "COMMAND")]
    switch_command: Option<String>,

    /// All proxies (mbal proxy) that clients use, separated by commas: they switch, and writers need not stop
    #[arg(long, value_name = "PROXIES", value_delimiter = ',', requires = "token_file")]
    #[arg(conflicts_with_all = ["i_stop_writers", "switch_command", "delete_strays"])]
    through: Vec<RingServer>,

    /// A file with the token of the proxies' --resize-token-file
    #[arg(long, value_name = "FILE", requires = "through")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    access: Access,
}

/// Bytes a second.
fn rate(text: &str) -> Result<u64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate > 0.0 && rate.is_finite());
    rate.map(|rate| (rate * 1e6) as u64).ok_or_else(|| format!("{text:?} is not a rate in MB/s"))
}

/// How it ends if not well.
enum Ended {
    /// Nothing was begun.
    Refused(String),
    Failed(Failed),
    Interrupted,
    /// The command that gives clients the new list.
    NotSwitched(String),
}

impl From<Failed> for Ended {
    fn from(failed: Failed) -> Ended {
        Ended::Failed(failed)
    }
}

pub fn resize(args: &Pool) -> ExitCode {
    let ended = match Signals::take() {
        Ok(signals) => run(args, &signals).0,
        Err(error) => Err(Ended::Refused(error.to_string())),
    };
    let why = match ended {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Ended::Refused(why) | Ended::NotSwitched(why)) => why,
        Err(Ended::Failed(failed)) => failed.to_string(),
        Err(Ended::Interrupted) => "interrupted".to_owned(),
    };
    eprintln!("mbal pool resize: {}", mbal_wire::printable(&why));
    ExitCode::FAILURE
}

/// How it ended, and whether a signal has come.
fn run(args: &Pool, signals: &Signals) -> (Result<(), Ended>, bool) {
    let telling = Telling { json: args.json };
    let pace = Pace::new(args.rate);
    let (asked, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let ended = thread::scope(|scope| {
        scope.spawn(|| heed(signals, &pace, &asked, &over));
        let ended = args.access.open().map_err(Ended::Refused).and_then(|dialer| {
            let dial = |server: &RingServer| dialed(&dialer, server, PATIENCE);
            let to_proxy = |proxy: &RingServer| dialed(&dialer, proxy, PATIENCE_WITH_PROXIES);
            let dial_proxies: Dial = &to_proxy;
            let (dialect, hash) = (args.ring, args.hash);
            let (pace, asked) = (&pace, &asked);
            let scaling =
                Scaling { args, telling, pace, asked, dial: &dial, dial_proxies, dialect, hash };
            scaling.scale()
        });
        over.store(true, Relaxed);
        ended
    });
    (ended, asked.load(Relaxed) > 0)
}

fn dialed(dialer: &Dialer, server: &RingServer, patience: Duration) -> io::Result<Box<dyn Stream>> {
    let name = ServerName::Tcp { host: server.host.clone(), port: server.port };
    let mut stream = dialer.connect(&name)?;
    stream.set_read_timeout(Some(patience))?;
    dialer.log_in(Speech::Text, &mut stream)?;
    Ok(Box::new(stream))
}

/// Counts signals, the first of which stops the work.
fn heed(signals: &Signals, pace: &Pace, asked: &AtomicUsize, over: &AtomicBool) {
    while !over.load(Relaxed) {
        if let Ok(Some(_)) = signals.next() {
            asked.fetch_add(1, Relaxed);
            pace.stop.store(true, Relaxed);
        }
        thread::sleep(LOOK_EVERY);
    }
}

struct Scaling<'a> {
    args: &'a Pool,
    telling: Telling,
    pace: &'a Pace,
    /// How often the user has pressed Ctrl-C.
    asked: &'a AtomicUsize,
    dial: Dial<'a>,
    dial_proxies: Dial<'a>,
    /// Of the clients' ring; behind proxies, theirs.
    dialect: Dialect,
    hash: Option<KeyHash>,
}

impl Scaling<'_> {
    fn ring(&self, servers: &[RingServer]) -> Ring {
        Ring::new(self.dialect, self.hash, servers)
    }

    fn scale(&self) -> Result<(), Ended> {
        self.check_lists().map_err(Ended::Refused)?;
        match self.args.through.is_empty() {
            true => self.scale_by(None),
            false => self.scale_through(),
        }
    }

    /// By the proxies' ring, and on the way that an earlier resize has begun.
    fn scale_through(&self) -> Result<(), Ended> {
        let path = self.args.token_file.as_ref().expect("clap requires it");
        let token = token_of("--token-file", path).map_err(Ended::Refused)?;
        let through = Through {
            proxies: &self.args.through,
            token: token.as_bytes(),
            dial_proxies: self.dial_proxies,
            dial: self.dial,
            pace: self.pace,
        };
        let known = through.meet(&self.args.servers).map_err(Ended::Refused)?;
        // In the proxies' order.
        let args = Pool { servers: known.list.clone(), ..self.args.clone() };
        let (dialect, hash) = (known.dialect, Some(known.hash));
        let scaling = Scaling { args: &args, dialect, hash, ..*self };
        scaling.scale_by(Some((&through, &known)))
    }

    fn scale_by(&self, through: Option<(&Through, &Known)>) -> Result<(), Ended> {
        let Pool { servers: old, to, to_servers, .. } = self.args;
        let old_ring = self.ring(old);
        let places = |servers: &[RingServer], new: &[RingServer]| {
            new.iter().map(|server| place(servers, server)).collect::<Vec<_>>()
        };
        let next = through.and_then(|(_, known)| known.next.as_ref());
        if let Some(next) = next {
            self.check_next(next).map_err(Ended::Refused)?;
        }
        let to_servers = next.unwrap_or(to_servers);
        let to = to.filter(|_| next.is_none());
        let mut servers = old.clone();
        servers.extend(to_servers.iter().filter(|server| !has(old, server)).cloned());
        if let Some((through, known)) = through.filter(|(_, known)| known.has_turned) {
            // Nothing is to be chosen or copied any more: who retires may be gone.
            let new = to_servers;
            let resize = Resize {
                old: old_ring,
                old_members: (0..old.len()).collect(),
                new: self.ring(new),
                new_members: places(&servers, new),
            };
            let lists = Lists { old, new, servers: &servers, resize: &resize };
            return self.switch_through(through, known, &lists);
        }
        let members = self.telling.while_doing("listing", self.pace, || {
            survey(&servers, self.dial, old_ring.hash(), self.pace)
        })?;
        self.telling.members(&members);
        let new = match to {
            Some(count) => {
                let retiring = choose(&members, old.len() - count, self.dialect, self.hash);
                let kept = old.iter().enumerate().filter(|(at, _)| !retiring.contains(at));
                kept.map(|(_, server)| server.clone()).collect()
            }
            None => to_servers.clone(),
        };
        let resize = Resize {
            old: old_ring,
            old_members: (0..old.len()).collect(),
            new: self.ring(&new),
            new_members: places(&servers, &new),
        };
        let planned: Vec<_> = members.iter().map(Surveyed::member).collect();
        let plan = plan(&planned, &resize);
        self.telling.plan(&members, old, &new, &plan);
        let checked = match through {
            // The proxies' ring is the clients' own.
            Some(_) => self.check_newcomers(&members, &resize),
            None => self.check_rings(&members, &resize),
        };
        if self.args.dry_run {
            if let Err(why) = checked {
                self.telling.say(
                    &format!("It would not begin: {why}"),
                    "refused",
                    json!({ "why": why }),
                );
            }
            return Ok(());
        }
        if !self.args.delete_strays {
            checked.map_err(Ended::Refused)?;
        }
        if let Some((through, known)) = through {
            let lists = Lists { old, new: &new, servers: &servers, resize: &resize };
            return self.switch_through(through, known, &lists);
        }
        let mut moving = Move::new(&members, &resize, self.dial, self.pace);
        let switched = self.move_and_switch(&mut moving, &plan, &new);
        match switched {
            Ok(Some(lives)) => self.tidy(&mut moving, &plan, &new, (&resize.new, lives)),
            Ok(None) => Ok(()),
            Err(ended) => {
                self.undo(&mut moving);
                Err(ended)
            }
        }
    }

    fn check_lists(&self) -> Result<(), String> {
        let Pool { servers: old, to, to_servers: new, through, .. } = self.args;
        for list in [old, new, through] {
            for (at, server) in list.iter().enumerate() {
                if has(&list[..at], server) {
                    return Err(format!("{server} is there twice"));
                }
            }
        }
        match to {
            Some(0) => return Err("--to 0: somebody must keep the keys".into()),
            Some(count) if *count >= old.len() => {
                return Err(format!(
                    "--to {count}: the pool has {} servers; name the new ones with --to-servers",
                    old.len()
                ));
            }
            _ => {}
        }
        let sweeps = to.is_none() && same(old, new);
        let is_led = !self.args.through.is_empty();
        if is_led && sweeps {
            return Err(
                "--to-servers: the proxies have this list, or another run ends with it".into()
            );
        }
        if !self.args.dry_run && !self.args.i_stop_writers && !sweeps && !is_led {
            return Err(
                "a value that is written while its item moves would be lost, and an old one \
                        read: stop all writers, and say so with --i-stop-writers; or let proxies \
                        switch, with --through; or look first, with --dry-run"
                    .into(),
            );
        }
        Ok(())
    }

    /// What is deleted is deleted on the word of the rings, which the keys have to prove.
    fn check_rings(&self, members: &[Surveyed], resize: &Resize) -> Result<(), String> {
        let Pool { servers: old, .. } = self.args;
        let was = &members[..old.len()];
        let items = |members: &[Surveyed]| -> usize {
            members.iter().map(|member| member.listing.items().len()).sum()
        };
        if items(was) > 0 {
            let listings: Vec<_> = was.iter().map(|member| &member.listing).collect();
            let evidence = Evidence::new(&listings);
            let fit = evidence.fit(|key| resize.old.owner(key));
            let ring = self.dialect.label();
            let (best, of_best) = evidence.best(old);
            let proven = old.len() > 1 && fit.proves();
            let text = match proven {
                true => {
                    format!("{} of {} keys are where --ring {ring} has them", fit.there, fit.keys)
                }
                false if old.len() == 1 => "one server shows no ring".to_owned(),
                false => format!(
                    "{} of {} keys are where --ring {ring} has them; no more than {} of {} are where the one has them that fits best: {best}",
                    fit.there, fit.keys, of_best.there, of_best.keys
                ),
            };
            let fields = json!({ "proven": proven, "keys": fit.keys, "there": fit.there, "best": best, "there_by_best": of_best.there });
            self.telling.say(&text, "ring", fields);
            if !proven {
                return Err(format!(
                    "nothing shows that clients place keys by this ring: with another one, items that they use would be deleted. \
                     Say the clients' --ring and --hash, and servers by the names and in the order that they use; \
                     or --delete-strays if you know that it is theirs ({text})"
                ));
            }
        }
        self.check_newcomers(members, resize)
    }

    /// What servers that come have is deleted.
    fn check_newcomers(&self, members: &[Surveyed], resize: &Resize) -> Result<(), String> {
        let old = &self.args.servers;
        let came = &members[old.len()..];
        for (number, member) in came.iter().enumerate() {
            let all = member.listing.items();
            let own = |item: &&Listed| resize.owner_after(item.place) == old.len() + number;
            let fit = Fit { there: all.iter().filter(own).count(), keys: all.len() };
            let ours = all.is_empty() || resize.new_members.len() > 1 && fit.proves();
            if !ours {
                return Err(format!(
                    "{} has {} items, and nothing shows that this pool has left them there: they would be deleted. \
                     Flush it, or say --delete-strays, if nobody uses them",
                    member.server, fit.keys
                ));
            }
        }
        Ok(())
    }

    /// What proxies are on their way to is what is wanted.
    fn check_next(&self, next: &[RingServer]) -> Result<(), String> {
        let Pool { servers: old, to, to_servers, .. } = self.args;
        let is_it = match to {
            Some(count) => next.len() == *count && next.iter().all(|one| old.contains(one)),
            None => same_servers(to_servers, next),
        };
        match is_it {
            true => Ok(()),
            false => Err(format!(
                "a proxy has another list, or a resize to it is not over: {}",
                listed(next)
            )),
        }
    }

    /// Proxies switch, with writers running.
    fn switch_through(&self, through: &Through, known: &Known, lists: &Lists) -> Result<(), Ended> {
        let mut leases = Leases::new(lists.servers, lists.resize, self.dial, self.pace);
        let before = std::cell::Cell::new("");
        let said = |stage: &'static str| {
            if before.replace(stage) != stage {
                self.telling.say(&format!("proxies: {stage}"), "proxies", json!({ "step": stage }));
            }
        };
        let ending = self.telling.while_doing("switching", self.pace, || {
            through.lead(&known.ring, lists, &mut leases, &said)
        });
        match ending {
            Ending::Switched { cold } => {
                self.telling.counts("copied", &leases.counts);
                let text = format!("all proxies have the new list: {}", listed(lists.new));
                let mut text = text;
                if cold > 0 {
                    text += &format!(
                        "\n{cold} keys begin cold: their last write has no known outcome, or there were too many"
                    );
                }
                let fields = json!({ "servers": listed(lists.new), "cold": cold });
                self.telling.say(&text, "switched", fields);
            }
            Ending::WasSwitched => {
                let text = format!("all proxies have the new list already: {}", listed(lists.new));
                let fields = json!({ "servers": listed(lists.new), "cold": 0 });
                self.telling.say(&text, "switched", fields);
            }
            Ending::Refused(why) => return Err(Ended::Refused(why)),
            Ending::TakenOver => {
                return Err(Ended::NotSwitched("another mbal pool resize has taken over".into()));
            }
            Ending::Unfinished(why) => {
                return Err(Ended::NotSwitched(format!(
                    "{why}: some proxies may have the new list, and writes of keys that move are refused. Run the same command again"
                )));
            }
            Ending::Undone(why) => {
                self.take_back(&mut leases);
                return Err(Ended::NotSwitched(format!("{why}: the pool is as it was")));
            }
        }
        self.sweep_behind(lists)
    }

    /// Copies that nobody reads.
    fn take_back(&self, leases: &mut Leases) {
        let copies = leases.copies();
        if copies == 0 {
            return;
        }
        let undone = self.telling.while_doing("taking back", self.pace, || leases.undo());
        let text = match undone {
            Ok(()) => format!("{copies} copies were deleted again"),
            Err(failed) => format!(
                "{} copies are still there, where nobody looks for them ({failed}): the next mbal pool resize deletes them first",
                leases.copies()
            ),
        };
        self.telling.say(&text, "taken_back", json!({ "copies": copies, "left": leases.copies() }));
    }

    /// Originals go when no read of them can be on its way.
    fn sweep_behind(&self, lists: &Lists) -> Result<(), Ended> {
        let list = listed(lists.new);
        let again = |failed: String| {
            Ended::NotSwitched(format!(
                "{failed}; proxies have the new list; tidy up: {}",
                self.tidying(&list)
            ))
        };
        thread::sleep(FLUSHED_WITHIN);
        self.go_on().map_err(|_| again("interrupted".into()))?;
        let swept = self
            .telling
            .while_doing("sweeping", self.pace, || {
                sweep(lists.new, &lists.resize.new, self.dial, self.pace)
            })
            .map_err(|failed| again(failed.to_string()))?;
        let mut text = format!("{swept} items that belong to other servers now were deleted");
        let retired: Vec<RingServer> =
            lists.old.iter().filter(|old| !has(lists.new, old)).cloned().collect();
        if !retired.is_empty() {
            text += &format!("\nThese may be stopped: {}", listed(&retired));
        }
        let fields = json!({ "swept": swept, "written_late": 0, "may_stop": listed(&retired) });
        self.telling.say(&text, "done", fields);
        Ok(())
    }

    /// If clients have the new list now: the lives of its servers before that.
    fn move_and_switch(
        &self,
        moving: &mut Move,
        plan: &Plan,
        new: &[RingServer],
    ) -> Result<Option<Vec<Life>>, Ended> {
        self.telling.while_doing("clearing", self.pace, || moving.clear(plan))?;
        self.go_on()?;
        self.telling.while_doing("copying", self.pace, || moving.carry(plan))?;
        self.go_on()?;
        for _ in 0..CHECKS_MAX {
            let fresh =
                self.telling.while_doing("checking", self.pace, || moving.check(plan, true))?;
            self.go_on()?;
            if fresh < FRESH_FEW {
                break;
            }
        }
        self.telling.counts("copied", &moving.counts);
        let lives = lives(new, self.dial)?;
        if same(&self.args.servers, new) {
            return Ok(Some(lives));
        }
        let came = || new.iter().filter(|one| !has(&self.args.servers, one));
        let switched =
            tell_filled(came(), self.dial).map_err(Ended::from).and_then(|()| self.switch(new));
        if switched.is_err() {
            // Who cannot be reached has forgotten it within the hour.
            drop(untell_filled(came(), self.dial));
        }
        Ok(switched?.then_some(lives))
    }

    fn go_on(&self) -> Result<(), Ended> {
        if self.pace.is_stopped() { Err(Ended::Interrupted) } else { Ok(()) }
    }

    fn switch(&self, new: &[RingServer]) -> Result<bool, Ended> {
        let list = listed(new);
        if let Some(command) = &self.args.switch_command {
            let mut switching = Command::new("sh");
            switching.args(["-c", command]).env("MBAL_SERVERS", &list);
            if self.args.json {
                // What it says is no JSON.
                switching.stdout(io::stderr());
            }
            let status = switching.status();
            return match status {
                Ok(status) if status.success() => {
                    self.telling.say("switched", "switched", json!({ "servers": list }));
                    Ok(true)
                }
                Ok(status) => Err(Ended::NotSwitched(format!("--switch-command: {status}"))),
                Err(error) => Err(Ended::NotSwitched(format!("--switch-command: {error}"))),
            };
        }
        self.telling.say(
            &format!("All copies are there. Give every client this list now:\n  {list}"),
            "ready",
            json!({ "servers": list }),
        );
        if !io::stdin().is_terminal() || self.args.json {
            self.telling.say(
                &format!("Then tidy up: {}", self.tidying(&list)),
                "tidy_up_later",
                json!({}),
            );
            return Ok(false);
        }
        eprintln!("Then press Enter. (Ctrl-C takes the copies back.)");
        let (sender, entered) = mpsc::channel();
        // It may wait for a line until the process ends.
        thread::spawn(move || sender.send(io::stdin().read_line(&mut String::new())));
        loop {
            self.go_on()?;
            match entered.recv_timeout(LOOK_EVERY) {
                Ok(Ok(1..)) => return Ok(true),
                Ok(_) => return Err(Ended::NotSwitched("nobody says that clients have it".into())),
                Err(_) => {}
            }
        }
    }

    /// What deletes the originals when clients have this list, with the clients' ring.
    fn tidying(&self, list: &str) -> String {
        let mut command = format!("mbal pool resize {list} --to-servers {list}");
        if self.dialect != Dialect::Libmemcached {
            command += &format!(" --ring {}", self.dialect.label());
        }
        if let Some(hash) = self.hash {
            command += &format!(" --hash {}", hash.name());
        }
        command + ", and flags for TLS and logins as now"
    }

    /// After clients have the new list.
    fn tidy(
        &self,
        moving: &mut Move,
        plan: &Plan,
        new: &[RingServer],
        (ring, before): (&Ring, Vec<Life>),
    ) -> Result<(), Ended> {
        let list = listed(new);
        let again = |failed: String| {
            Ended::NotSwitched(format!(
                "{failed}; clients have the new list; tidy up: {}",
                self.tidying(&list)
            ))
        };
        self.keep_copies(moving, plan, new, before).map_err(again)?;
        let before = moving.counts.outdated;
        self.telling
            .while_doing("checking", self.pace, || moving.check(plan, false))
            .map_err(|failed| again(failed.to_string()))?;
        let late = moving.counts.outdated - before;
        let swept = self
            .telling
            .while_doing("sweeping", self.pace, || sweep(new, ring, self.dial, self.pace))
            .map_err(|failed| again(failed.to_string()))?;
        self.go_on().map_err(|_| again("interrupted".into()))?;
        let retired: Vec<RingServer> =
            self.args.servers.iter().filter(|old| !has(new, old)).cloned().collect();
        let mut text = format!("{swept} items that belong to other servers now were deleted");
        if late > 0 {
            text += &format!(
                "\n{late} items were written after they had been copied: their copies were deleted, but may have been read"
            );
        }
        if !retired.is_empty() {
            text += &format!("\nThese may be stopped: {}", listed(&retired));
        }
        let fields = json!({ "swept": swept, "written_late": late, "may_stop": listed(&retired) });
        self.telling.say(&text, "done", fields);
        Ok(())
    }

    /// Originals are deleted only when the copies have outlived the change of the list: whoever has flushed a server that came, or has
    /// started it again, has emptied it. Then its copies are made again.
    fn keep_copies(
        &self,
        moving: &mut Move,
        plan: &Plan,
        new: &[RingServer],
        mut before: Vec<Life>,
    ) -> Result<(), String> {
        if same(&self.args.servers, new) {
            return Ok(());
        }
        let told = |failed: Failed| failed.to_string();
        let mut emptied = String::new();
        for _ in 0..=COPIES_AGAIN_MAX {
            let begin = Instant::now();
            while begin.elapsed() < FLUSHED_WITHIN && !self.pace.is_stopped() {
                thread::sleep(LOOK_EVERY);
            }
            self.go_on().map_err(|_| "interrupted".to_owned())?;
            let now = lives(new, self.dial).map_err(told)?;
            let changed =
                new.iter().zip(now.iter().zip(&before)).filter(|(_, (one, other))| one != other);
            let changed: Vec<RingServer> = changed.map(|(server, _)| server.clone()).collect();
            if changed.is_empty() {
                return Ok(());
            }
            emptied = listed(&changed);
            self.telling.say(
                &format!("{emptied} was flushed, or has begun anew: it is filled again"),
                "emptied",
                json!({ "servers": emptied }),
            );
            before = now;
            self.telling.while_doing("copying", self.pace, || moving.carry(plan)).map_err(told)?;
        }
        Err(format!("{emptied} was flushed again and again: nothing was deleted"))
    }

    fn undo(&self, moving: &mut Move) {
        let copies = moving.copies();
        if copies == 0 {
            return;
        }
        let before = self.asked.load(Relaxed);
        let give_up = || self.asked.load(Relaxed) > before;
        let undone = self.telling.while_doing("taking back", self.pace, || moving.undo(&give_up));
        let left = moving.copies();
        let mut text = match left {
            0 => format!("{copies} copies were deleted again: the pool is as it was"),
            left => format!(
                "{left} of {copies} copies are still there, on servers where clients do not look for them. \
                 Delete them before the pool changes: the next mbal pool resize does so first"
            ),
        };
        if let Err(failed) = undone {
            text += &format!(" ({failed})");
        }
        self.telling.say(&text, "taken_back", json!({ "copies": copies, "left": left }));
    }
}

fn same(old: &[RingServer], new: &[RingServer]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(one, other)| one == other)
}

/// Likewise, in any order.
fn same_servers(old: &[RingServer], new: &[RingServer]) -> bool {
    old.len() == new.len() && old.iter().all(|one| new.contains(one))
}

fn place(list: &[RingServer], server: &RingServer) -> usize {
    list.iter().position(|one| is(one, server)).expect("the list has all servers")
}
