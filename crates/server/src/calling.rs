//! A call of a coordinator's API, for servers and for operators' commands: of whichever coordinator leads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mbal_control::api::{Failure, Leads};
use mbal_locks::{Mutex, MutexGuard, ranks};

/// An answer of an older term than one that was heard so lately is ignored: its coordinator leads no more, and does not know. Later it may be that
/// etcd was restored.
const TERM_COUNTS: Duration = Duration::from_secs(30);
/// A coordinator that did not answer at all is not asked again for so long, while others answer: one that is asleep costs the whole
/// time that a call may take.
const PASSED_OVER: Duration = Duration::from_secs(3);
/// A coordinator that is asked whether it leads answers within this, or does not say.
const SAYS_WITHIN: Duration = Duration::from_millis(500);
/// The header in which a leader says its term; one with a file has none.
const TERM: &str = "MBal-Term";

/// Who calls a coordinator.
pub struct Caller {
    agent: ureq::Agent,
    /// Of all coordinators of the cluster.
    urls: Vec<String>,
    /// The one that has answered last.
    current: AtomicUsize,
    /// When each of them did not answer.
    silent_at: Mutex<ranks::SilentCoordinators, Vec<Option<Instant>>>,
    newest: Mutex<ranks::NewestTerm, Newest>,
    token: Option<String>,
}

/// The highest term that was heard, and when it was heard last.
#[derive(Default)]
struct Newest {
    term: u64,
    at: Option<Instant>,
}

/// Why a call was in vain.
#[derive(Debug)]
pub enum CallFailed {
    /// Nobody answers, or somebody who is ill, or who does not lead: later perhaps.
    Silent(String),
    /// By a coordinator that is well: its status, and what it says.
    Refused(u16, String),
}

/// What came of asking one coordinator.
enum Tried {
    Told(Result<String, CallFailed>),
    /// It answers, and is not the one to ask.
    Unfit(String),
    Silent(String),
}

impl Caller {
    /// `urls` are like `http://10.0.0.1:11210`, separated by commas; the error says so. A coordinator that does not answer
    /// within `timeout` is silent, and the next one is asked: a call may be executed twice.
    pub fn new(urls: &str, token: Option<String>, timeout: Duration) -> Result<Caller, String> {
        let urls = Caller::checked(urls)?;
        let agent = ureq::AgentBuilder::new().timeout(timeout).build();
        let (current, newest) = (AtomicUsize::new(0), Mutex::default());
        let silent_at = Mutex::new(vec![None; urls.len()]);
        Ok(Caller { agent, urls, current, silent_at, newest, token })
    }

    /// The URLs of coordinators, without the slashes at their ends; or which is none.
    pub fn checked(urls: &str) -> Result<Vec<String>, String> {
        let checked = urls.split(',').map(|url| match url.starts_with("http://") {
            true => Ok(url.trim_end_matches('/').to_owned()),
            false => Err(format!(
                "--coordinator {url}: it is like http://10.0.0.1:11210 (MBAL_COORDINATOR, too)"
            )),
        });
        checked.collect()
    }

    /// The answer's text, by the first coordinator that leads, beginning with the one that answered last.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl serde::Serialize>,
    ) -> Result<String, CallFailed> {
        let first = self.current.load(Ordering::Relaxed);
        let all = (0..self.urls.len()).map(|turn| first.wrapping_add(turn) % self.urls.len());
        let (asleep, awake): (Vec<usize>, Vec<usize>) = all.partition(|at| self.is_asleep(*at));
        let mut whys: Vec<String> = Vec::new();
        let mut has_answered = false;
        for at in awake.iter().chain(&asleep) {
            if has_answered && asleep.contains(at) {
                continue;
            }
            match self.call_one(&self.urls[*at], method, path, body) {
                Tried::Told(answer) => {
                    self.current.store(*at, Ordering::Relaxed);
                    return answer;
                }
                Tried::Unfit(why) => {
                    has_answered = true;
                    whys.push(why);
                }
                Tried::Silent(why) => {
                    self.silent_at()[*at] = Some(Instant::now());
                    whys.push(why);
                }
            }
        }
        Err(CallFailed::Silent(whys.join("; ")))
    }

    /// Whether calls say a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks all coordinators at once whether they lead; `None` of those that do not say.
    pub(crate) fn who_leads(&self) -> Vec<Option<bool>> {
        let ask = |url: &String| {
            let asked = self.with_token(self.agent.get(&format!("{url}/v1/leads")));
            let asked = asked.timeout(SAYS_WITHIN).call();
            Some(asked.ok()?.into_json::<Leads>().ok()?.leads)
        };
        thread::scope(|scope| {
            let asked: Vec<_> = self.urls.iter().map(|url| scope.spawn(move || ask(url))).collect();
            asked.into_iter().map(|one| one.join().ok().flatten()).collect()
        })
    }

    /// Of all coordinators.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    fn silent_at(&self) -> MutexGuard<'_, ranks::SilentCoordinators, Vec<Option<Instant>>> {
        self.silent_at.lock()
    }

    fn is_asleep(&self, at: usize) -> bool {
        self.silent_at()[at].is_some_and(|silent| silent.elapsed() < PASSED_OVER)
    }

    fn call_one(
        &self,
        url: &str,
        method: &str,
        path: &str,
        body: Option<&impl serde::Serialize>,
    ) -> Tried {
        let request = self.with_token(self.agent.request(method, &format!("{url}{path}")));
        let answer = match body {
            Some(body) => request.send_json(body),
            None => request.call(),
        };
        let response = match answer {
            Ok(response) | Err(ureq::Error::Status(_, response)) => response,
            // It names the URL by itself.
            Err(ureq::Error::Transport(error)) => return Tried::Silent(error.to_string()),
        };
        if let Err(why) = self.check_term(&response) {
            return Tried::Unfit(format!("{url}: {why}"));
        }
        let status = response.status();
        if status < 400 {
            return match response.into_string() {
                Ok(text) => Tried::Told(Ok(text)),
                Err(error) => Tried::Silent(format!("{url}: {error}")),
            };
        }
        let why = match response.into_json::<Failure>() {
            // A sentence of somebody else's: it begins no line of a log.
            Ok(failure) => failure.error.replace(['\n', '\r'], " "),
            Err(_) => format!("status {status}"),
        };
        match status {
            408 | 500..=599 => Tried::Unfit(format!("{url}: {why}")),
            _ => Tried::Told(Err(CallFailed::Refused(status, why))),
        }
    }

    fn with_token(&self, request: ureq::Request) -> ureq::Request {
        match &self.token {
            Some(token) => request.set("Authorization", &format!("Bearer {token}")),
            None => request,
        }
    }

    fn check_term(&self, response: &ureq::Response) -> Result<(), String> {
        let term = response.header(TERM).and_then(|text| text.parse().ok());
        let mut newest = self.newest.lock();
        newest.allows(term, Instant::now())
    }
}

impl Newest {
    fn allows(&mut self, term: Option<u64>, now: Instant) -> Result<(), String> {
        let Some(term) = term else { return Ok(()) };
        let is_recent = self.at.is_some_and(|at| now.duration_since(at) < TERM_COUNTS);
        if term < self.term && is_recent {
            return Err(format!("it answers in term {term}, and {} has begun", self.term));
        }
        *self = Newest { term, at: Some(now) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A coordinator that answers this, whatever it is asked; its URL.
    fn answering(answer: &'static str) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
        let url = format!("http://{}", listener.local_addr().expect("it has an address"));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("it connects");
                drop(stream.read(&mut [0; 4096]));
                drop(stream.write_all(answer.as_bytes()));
            }
        });
        url
    }

    fn nobody() -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
        format!("http://{}", listener.local_addr().expect("it has an address"))
    }

    fn caller(urls: &[String]) -> Caller {
        Caller::new(&urls.join(","), None, Duration::from_secs(5)).expect("they are URLs")
    }

    fn call(caller: &Caller) -> Result<String, CallFailed> {
        caller.call("GET", "/", None::<&()>)
    }

    const STANDBY: &str = "HTTP/1.1 503 No\r\nContent-Length: 23\r\nConnection: close\r\n\r\n{\"error\":\"not leading\"}";
    const LEADER: &str =
        "HTTP/1.1 200 OK\r\nMBal-Term: 7\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnews";
    const OLDER: &str =
        "HTTP/1.1 409 No\r\nMBal-Term: 6\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";

    #[test]
    fn who_does_not_answer_or_does_not_lead_is_passed_over() {
        let caller = caller(&[nobody(), answering(STANDBY), answering(LEADER)]);
        assert_eq!(call(&caller).expect("one leads"), "news");
        assert_eq!(caller.current.load(Ordering::Relaxed), 2, "it is asked first the next time");
    }

    #[test]
    fn who_did_not_answer_is_passed_over_while_others_do() {
        let sleeper = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
        sleeper.set_nonblocking(true).expect("it can be looked at");
        let asleep = format!("http://{}", sleeper.local_addr().expect("it has an address"));
        let within = Duration::from_millis(200);
        let caller = Caller::new(&[asleep.clone(), answering(STANDBY)].join(","), None, within);
        let caller = caller.expect("they are URLs");
        call(&caller).expect_err("nobody leads");
        assert!(sleeper.accept().is_ok(), "it was asked");
        call(&caller).expect_err("nobody leads");
        assert!(sleeper.accept().is_err(), "it is not asked again so soon");
        let alone =
            Caller::new(&[asleep, nobody()].join(","), None, within).expect("they are URLs");
        for _ in 0..2 {
            call(&alone).expect_err("nobody answers");
            assert!(sleeper.accept().is_ok(), "it is asked, since nobody answers");
        }
    }

    #[test]
    fn if_nobody_leads_each_says_why() {
        let caller = caller(&[nobody(), answering(STANDBY)]);
        let Err(CallFailed::Silent(why)) = call(&caller) else { panic!("nobody leads") };
        assert!(why.contains("Connection refused") && why.contains("not leading"), "{why}");
    }

    #[test]
    fn an_answer_of_an_older_term_is_none_even_if_it_refuses() {
        let urls = [answering(LEADER), answering(OLDER)];
        let caller = caller(&urls);
        call(&caller).expect("it leads");
        caller.current.store(1, Ordering::Relaxed);
        assert_eq!(call(&caller).expect("the newer one is asked again"), "news");
        let Err(CallFailed::Refused(409, _)) = call(&self::caller(&urls[1..])) else {
            panic!("who has heard of no newer one hears it")
        };
    }

    #[test]
    fn an_older_term_counts_again_after_a_while() {
        let (mut newest, begin) = (Newest::default(), Instant::now());
        let later = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(newest.allows(Some(7), begin), Ok(()));
        assert!(newest.allows(Some(6), later(29)).is_err());
        assert_eq!(newest.allows(None, later(29)), Ok(()), "one with a file has no term");
        assert_eq!(newest.allows(Some(6), later(31)), Ok(()), "etcd was restored");
        assert_eq!(newest.allows(Some(6), later(32)), Ok(()));
    }

    #[test]
    fn a_list_of_urls_is_checked_each_by_itself() {
        let urls = Caller::checked("http://a:1/,http://b:2").expect("they are");
        assert_eq!(urls, ["http://a:1", "http://b:2"]);
        for wrong in ["", "http://a:1,", "a:1", "http://a:1, http://b:2", "https://a:1"] {
            let why = Caller::checked(wrong).expect_err(wrong);
            assert!(why.contains("it is like http://10.0.0.1:11210"), "{why}");
        }
    }
}
