//! What the fuzz targets share: a worker without sockets, and what holds for every parser.

use std::sync::Arc;

use mbal_cachelet::{Options, Store};
use mbal_model::{KEY_BYTES_MAX, WorkerId};
use mbal_wire::{LINE_BYTES_MAX, Limits, Login, Parsed, Request, base64_decode};
use mbal_worker::{
    Action, Actions, ConnId, Event, Now, OUTPUT_BYTES_MAX, Passwords, Shared, Settings, Worker,
};

pub const CONN: ConnId = ConnId(0);
pub const ITEM_BYTES_MAX: usize = 16 << 10;

/// A worker with one connection, the same at every start.
pub struct Rig {
    worker: Worker,
    now: Now,
    /// The connection is closed.
    pub closed: bool,
}

impl Rig {
    pub fn new(settings: Settings) -> Rig {
        let settings =
            Settings { item_bytes_max: ITEM_BYTES_MAX, memory_bytes: 512 << 10, ..settings };
        let store = Store::new(Options {
            memory_bytes: settings.memory_bytes as usize,
            workers: 1,
            cachelets: 1,
            item_bytes_max: settings.item_bytes_max,
            evict: settings.evict,
            generation: 0,
        });
        let passwords = Passwords::parse(b"u:p", false).expect("it has a colon");
        let admits = move |user: &[u8], word: &[u8]| passwords.admits(user, word);
        let server = Shared::new(settings, store).guarded_by(Arc::new(admits));
        let now = Now { second: 100, unix: 1_700_000_000, micros: 0 };
        let worker = Worker::new(WorkerId(0), Arc::new(server));
        let mut rig = Rig { worker, now, closed: false };
        rig.handle(Event::Opened { conn: CONN, own_port: false });
        rig
    }

    pub fn handle(&mut self, event: Event<'_>) -> Actions {
        let mut actions = Actions::default();
        self.worker.handle(self.now, event, &mut actions);
        actions
    }

    /// All replies to `bytes`, as a client that reads would get them.
    pub fn send(&mut self, bytes: &[u8], replies: &mut Vec<u8>) {
        let mut actions = self.handle(Event::Received { conn: CONN, bytes });
        loop {
            assert!(!self.closed || actions.list.is_empty(), "busy after it was closed");
            let reply_max = OUTPUT_BYTES_MAX + 2 * ITEM_BYTES_MAX;
            assert!(actions.bytes.len() <= reply_max, "{} bytes at once", actions.bytes.len());
            let (mut stalled, mut paused) = (false, false);
            for action in &actions.list {
                match action {
                    Action::Close { .. } => {
                        assert!(!self.closed, "closed twice");
                        self.closed = true;
                    }
                    Action::Stall { .. } => stalled = true,
                    Action::Pause { .. } => paused = true,
                    Action::Resume { .. } => paused = false,
                    _ => {}
                }
            }
            replies.append(&mut actions.bytes);
            actions = match self.worker.next_wake() {
                Some(wake) => {
                    self.now.micros += wake.left(self.now.instant()).as_micros() as u32;
                    self.handle(Event::Woken)
                }
                None if stalled => self.handle(Event::Drained { conn: CONN }),
                None => return assert!(!paused, "it waits for nothing"),
            };
        }
    }
}

/// Takes `input` apart, and holds every request against the parser's promises.
pub fn check_parser(
    input: &[u8],
    parse: for<'a> fn(&'a [u8], &Limits) -> Parsed<'a>,
    login: Login,
) {
    let limits = Limits { item_bytes_max: ITEM_BYTES_MAX, login };
    let mut rest = input;
    while !rest.is_empty() {
        let (request, bytes, skip) = match parse(rest, &limits) {
            Parsed::NeedMore { bytes } => {
                assert!(bytes == 0 || bytes > rest.len(), "{bytes} of {} bytes", rest.len());
                return;
            }
            Parsed::Close => return,
            Parsed::Request { request, bytes, skip } => (request, bytes, skip),
        };
        assert!(0 < bytes && bytes <= rest.len());
        assert!(skip <= i32::MAX as usize);
        check_key(&request);
        // What stands behind a request does not change it, and a part of it is not another one.
        let same = Parsed::Request { request, bytes, skip };
        assert_eq!(parse(&rest[..bytes], &limits), same);
        for part in [bytes - 1, bytes / 2, 1] {
            // A line that is too long is taken or not by how it arrives, as in memcached.
            if 0 < part && part < bytes && bytes <= LINE_BYTES_MAX {
                let parsed = parse(&rest[..part], &limits);
                let waits =
                    matches!(parsed, Parsed::NeedMore { bytes } if bytes == 0 || bytes > part);
                assert!(waits, "{part} of {bytes} bytes are {parsed:?}");
            }
        }
        rest = &rest[bytes..];
        rest = &rest[skip.min(rest.len())..];
    }
}

fn check_key(request: &Request<'_>) {
    let Some((key, base64)) = request.key() else { return };
    if matches!(request, Request::Get(_)) {
        return assert!(!key.is_empty());
    }
    let mut decoded = [0; KEY_BYTES_MAX];
    assert!(!key.is_empty() && key.len() <= KEY_BYTES_MAX);
    if base64 {
        let length = base64_decode(key, &mut decoded).expect("the parser tried it");
        assert!((1..=KEY_BYTES_MAX).contains(&length));
    }
}
