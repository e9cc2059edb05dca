//! An upstream of few commands, whose connections do what those of real ones do now and then.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
pub enum Habit {
    None,
    /// It closes connections that nobody has used for so long.
    ClosesIdle(Duration),
    /// Something on the way forgets them: nothing comes through any more, in either direction.
    ForgetsIdle(Duration),
}

pub struct Fake {
    pub port: u16,
    pub items: Arc<Mutex<BTreeMap<String, String>>>,
    pub flushes: Arc<AtomicU64>,
    pub connections: Arc<AtomicU64>,
    /// The connections that there are executes nothing until it is set back; later ones do.
    stuck: Arc<Mutex<Arc<AtomicBool>>>,
}

impl Fake {
    pub fn start(habit: Habit) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let fake = Fake {
            port,
            items: Arc::default(),
            flushes: Arc::default(),
            connections: Arc::default(),
            stuck: Arc::default(),
        };
        let (items, flushes) = (Arc::clone(&fake.items), Arc::clone(&fake.flushes));
        let (count, stuck) = (Arc::clone(&fake.connections), Arc::clone(&fake.stuck));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (items, flushes) = (Arc::clone(&items), Arc::clone(&flushes));
                let stuck = Arc::clone(&stuck.lock().unwrap());
                count.fetch_add(1, SeqCst);
                thread::spawn(move || serve(stream.unwrap(), habit, &stuck, &items, &flushes));
            }
        });
        fake
    }

    pub fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The connections that are there execute nothing more, until [`Stuck`] is let go. Those to come do.
    pub fn stick(&self) -> Arc<AtomicBool> {
        let mut stuck = self.stuck.lock().unwrap();
        stuck.store(true, SeqCst);
        std::mem::take(&mut *stuck)
    }

    pub fn value(&self, key: &str) -> Option<String> {
        self.items.lock().unwrap().get(key).cloned()
    }
}

fn serve(
    stream: TcpStream,
    habit: Habit,
    stuck: &AtomicBool,
    items: &Mutex<BTreeMap<String, String>>,
    flushes: &AtomicU64,
) {
    if let Habit::ClosesIdle(time) = habit {
        stream.set_read_timeout(Some(time)).unwrap();
    }
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut last = Instant::now();
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
        if matches!(habit, Habit::ForgetsIdle(time) if time < last.elapsed()) {
            thread::sleep(Duration::from_secs(60));
            return;
        }
        last = Instant::now();
        while stuck.load(SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut items = items.lock().unwrap();
        let reply = match words[..] {
            ["version"] => "VERSION 1\r\n".to_owned(),
            ["flush_all"] => {
                flushes.fetch_add(1, SeqCst);
                items.clear();
                "OK\r\n".to_owned()
            }
            ["get", key] => match items.get(key) {
                Some(value) => format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len()),
                None => "END\r\n".to_owned(),
            },
            ["md", key] => if items.remove(key).is_some() { "HD\r\n" } else { "NF\r\n" }.to_owned(),
            ["set", key, _, _, length] => {
                let mut value = vec![0; length.parse::<usize>().unwrap() + 2];
                if reader.read_exact(&mut value).is_err() {
                    return;
                }
                value.truncate(value.len() - 2);
                items.insert(key.to_owned(), String::from_utf8(value).unwrap());
                "STORED\r\n".to_owned()
            }
            _ => "ERROR\r\n".to_owned(),
        };
        drop(items);
        if (&stream).write_all(reply.as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}
