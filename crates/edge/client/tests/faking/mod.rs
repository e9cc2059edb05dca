//! Servers that say what a test wants.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mbal_client::{Client, Options};
use mbal_model::{Key, Prefix};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What a worker does about a request.
pub enum Deed {
    Reply(String),
    /// It goes on reading, and says nothing.
    Silence,
    Close,
    /// It answers when this says so.
    Wait(watch::Receiver<bool>, String),
}

pub fn reply(text: &str) -> Deed {
    Deed::Reply(text.to_owned())
}

type Behave = dyn Fn(usize, &str) -> Deed + Send + Sync;

/// Two workers of server 3, or one each of servers 3 and 4; the lower half of the hashes is the first one's.
pub struct Fake {
    servers: usize,
    pub ports: Vec<u16>,
    /// What each worker was asked, but for the map.
    asked: Mutex<Vec<(usize, String)>>,
    /// Version, and the workers of both halves.
    pub map: Mutex<(String, [usize; 2])>,
    behave: Box<Behave>,
}

impl Fake {
    pub async fn start(
        servers: usize,
        behave: impl Fn(usize, &str) -> Deed + Send + Sync + 'static,
    ) -> Arc<Fake> {
        let mut listeners = Vec::new();
        for _ in 0..2 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let ports = listeners.iter().map(|one| one.local_addr().unwrap().port()).collect();
        let (asked, map) = (Mutex::default(), Mutex::new(("1.0".into(), [0, 1])));
        let fake = Arc::new(Fake { servers, ports, asked, map, behave: Box::new(behave) });
        for (worker, listener) in listeners.into_iter().enumerate() {
            let fake = Arc::clone(&fake);
            tokio::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(Arc::clone(&fake).serve(worker, stream));
                }
            });
        }
        fake
    }

    async fn serve(self: Arc<Fake>, worker: usize, stream: TcpStream) {
        let (input, mut output) = stream.into_split();
        let mut input = BufReader::new(input);
        let mut line = String::new();
        while input.read_line(&mut line).await.is_ok_and(|bytes| bytes > 0) {
            let request = std::mem::take(&mut line).trim_end().to_owned();
            if let Some(bytes) = request.strip_prefix("ms ").and_then(|rest| rest.split(' ').nth(1))
            {
                let mut value = vec![0; bytes.parse::<usize>().unwrap() + 2];
                input.read_exact(&mut value).await.unwrap();
            }
            let text = match request.starts_with("config get mbal") {
                true => self.page(&request),
                false => {
                    self.asked.lock().unwrap().push((worker, request.clone()));
                    match (self.behave)(worker, &request) {
                        Deed::Reply(text) => text,
                        Deed::Silence => continue,
                        Deed::Close => return,
                        Deed::Wait(mut go_on, text) => {
                            go_on.wait_for(|go_on| *go_on).await.unwrap();
                            text
                        }
                    }
                }
            };
            if output.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn page(&self, request: &str) -> String {
        let (version, [lower, upper]) = self.map.lock().unwrap().clone();
        if request.split(' ').nth(3) == Some(&version) {
            return "END\r\n".into();
        }
        let [first, second] = self.ports[..] else { unreachable!() };
        let page = match self.servers {
            1 => format!(
                "version {version}\nserver 3 client 127.0.0.1:{first} workers 127.0.0.1:{first},127.0.0.1:{second}\n\
                 cachelet 0000/1 3/{lower}\ncachelet 8000/1 3/{upper}\n"
            ),
            _ => format!(
                "version {version}\nserver 3 client 127.0.0.1:{first} workers 127.0.0.1:{first}\n\
                 server 4 client 127.0.0.1:{second} workers 127.0.0.1:{second}\n\
                 cachelet 0000/1 {}/0\ncachelet 8000/1 {}/0\n",
                3 + lower,
                3 + upper
            ),
        };
        format!("CONFIG mbal 0 {}\r\n{page}\r\nEND\r\n", page.len())
    }

    pub async fn client(&self, options: Options) -> Client {
        Client::connect([format!("127.0.0.1:{}", self.ports[0])], options).await.unwrap()
    }

    pub fn asked(&self) -> Vec<(usize, String)> {
        self.asked.lock().unwrap().clone()
    }

    pub fn count(&self, begins: &str) -> usize {
        self.asked().iter().filter(|(_, request)| request.starts_with(begins)).count()
    }
}

/// The `nth` key of the lower or the upper half.
pub fn key(half: usize, nth: usize) -> String {
    let of_half = |word: &String| {
        let hash = Key::new(word.as_bytes()).unwrap().hash();
        Prefix::nth(half, 1).contains(hash)
    };
    (0..).map(|number| format!("k{number}")).filter(of_half).nth(nth).unwrap()
}

/// No poll but those that a test causes.
pub fn options() -> Options {
    Options::new().poll(Duration::from_secs(3600)).timeout(Duration::from_millis(300))
}

pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within ten seconds: {what}");
}
