//! The map is kept true: a task asks a server for news from time to time, at once when a reply told of some, and sees to servers
//! that are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mbal_model::{Address, Changes, ClusterView, MapVersion, Owner, ServerId, WorkerId};
use mbal_routing::Routes;
use tokio::time::{Instant, timeout, timeout_at};

use crate::client::Inner;
use crate::connection::{Connection, Outcome, Requests};
use crate::dial::dial;
use crate::error::Error;
use crate::options::Options;
use crate::reply::{Form, Reply};

/// However much news there is, so long is waited between two questions.
const PAUSE: Duration = Duration::from_millis(10);

/// Until the client is dropped.
pub(crate) async fn run(client: Weak<Inner>) {
    let Some(inner) = client.upgrade() else { return };
    let (news, poll) = (Arc::clone(&inner.news), inner.options.poll);
    let mut poll_at = Instant::now() + poll;
    let mut probe_at = None;
    drop(inner);
    loop {
        let wake_at = probe_at.map_or(poll_at, |probe_at| poll_at.min(probe_at));
        let is_news = timeout_at(wake_at, news.notify.notified()).await.is_ok();
        let Some(inner) = client.upgrade() else { return };
        probe_at = inner.pool.probe(std::time::Instant::now()).map(Instant::from_std);
        if is_news || poll_at <= Instant::now() {
            inner.refresh().await;
            poll_at = Instant::now() + poll;
            drop(inner);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The map, from the first of these addresses that gives one.
pub(crate) async fn first(seeds: &[Address], options: &Options) -> Result<Routes, Error> {
    let mut why = "there is no address to ask".to_owned();
    for seed in seeds {
        match ask_seed(seed, options).await {
            Ok(view) => return Ok(Routes::new(&view, seed)),
            Err(error) => why = format!("{seed}: {error}"),
        }
    }
    Err(Error::NoMap(why))
}

/// By a connection of its own.
async fn ask_seed(seed: &Address, options: &Options) -> Result<ClusterView, String> {
    let stream = dial(seed, options).await.map_err(|error| error.to_string())?;
    let connection = Connection::new(stream, |_| {});
    let asked = ask_view(&connection, None, options.timeout);
    let page = timeout(options.timeout, asked).await.unwrap_or(Err("no answer".into()))?;
    ClusterView::parse(&page.ok_or("it says that there is nothing new")?)
}

/// What has changed since what is known, or the whole document. `None`: nothing is new.
async fn ask_view(
    connection: &Connection,
    known: Option<MapVersion>,
    patience: Duration,
) -> Result<Option<String>, String> {
    let known = known.map(|known| format!(" {known} changes")).unwrap_or_default();
    let bytes = format!("config get mbal{known}\r\n").into_bytes();
    match connection.ask(Requests { bytes, form: Form::View, replies: 1, patience }).await {
        Outcome::Unsent | Outcome::Lost => Err("no answer".into()),
        Outcome::Replies(replies) => match replies.into_iter().next() {
            Some(Reply::View(page)) => Ok(page),
            Some(Reply::Refused(text)) => Err(format!("it answers {text}: is it MBal?")),
            _ => Err("it answers something else".into()),
        },
    }
}

impl Inner {
    /// Asks one server for news: the one that is said to have some, else one after the other.
    async fn refresh(&self) {
        for server in self.news.take_lost() {
            self.routes_mut().forget(server);
        }
        let preferred = self.asks.lock().take();
        let mut servers: Vec<ServerId> = self.routes().servers().collect();
        let turn = self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % servers.len();
        servers.rotate_left(turn);
        let mut candidates = preferred.into_iter().chain(servers);
        let answered = loop {
            let Some(server) = candidates.next() else { break false };
            if !self.pool.is_left_alone(server) && self.ask_for_news(server).await {
                break true;
            }
        };
        if !answered {
            self.ask_seeds().await;
        }
        self.rounds.send_modify(|round| *round += 1);
    }

    /// True if it answered.
    async fn ask_for_news(&self, server: ServerId) -> bool {
        let (address, known) = {
            let routes = self.routes();
            let first = Owner { server, worker: WorkerId(0) };
            let Some(address) = routes.address(first).cloned() else { return false };
            (address, routes.known(server))
        };
        let asked = async {
            let connection = self.pool.connection(server, &address, 0).await.ok()?;
            let timeout = self.options.timeout;
            let news = ask_view(&connection, Some(known), timeout).await.ok()?;
            let Some(Ok(changes)) = news.as_deref().and_then(Changes::of_view) else {
                return Some(news);
            };
            let fits = self.routes_mut().change(&changes, server, &address);
            match fits {
                true => self.keep_connections(),
                // What is known by hints may be of another map than these.
                false => return ask_view(&connection, None, timeout).await.ok(),
            }
            Some(None)
        };
        let Ok(Some(news)) = timeout(self.options.timeout, asked).await else { return false };
        match news.map(|page| ClusterView::parse(&page)) {
            Some(Ok(view)) => self.learn(&view, Some(server), &address),
            Some(Err(_)) => return false,
            None => {}
        }
        true
    }

    /// No server of the map answers: perhaps all have moved.
    async fn ask_seeds(&self) {
        for seed in &self.seeds {
            if let Ok(view) = ask_seed(seed, &self.options).await {
                return self.learn(&view, None, seed);
            }
        }
    }

    fn learn(&self, view: &ClusterView, from: Option<ServerId>, at: &Address) {
        let is_news = self.routes_mut().learn(view, from, at);
        if is_news {
            self.keep_connections();
        }
    }

    /// To those that there are, and to no others.
    fn keep_connections(&self) {
        let routes = self.routes();
        let mut addresses: BTreeMap<ServerId, BTreeSet<Address>> =
            routes.servers().map(|server| (server, BTreeSet::new())).collect();
        for owner in routes.owners() {
            let address = routes.address(owner).expect("it is one of the table's").clone();
            addresses.entry(owner.server).or_default().insert(address);
        }
        drop(routes);
        self.pool.keep(&addresses);
    }
}
