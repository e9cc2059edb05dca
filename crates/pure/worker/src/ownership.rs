//! Who owns what, for clients that know the workers. Others never see any of it.

use mbal_model::{Key, MapVersion, Route, WorkerId};

use crate::load::key_work;
use crate::turn::Turn;

impl Turn<'_> {
    /// The version of what [`Turn::ownership`] tells.
    pub fn version(&self) -> MapVersion {
        MapVersion { map: self.map_version, local: self.shared.store.version() }
    }

    /// `config get mbal`, in the framing of ElastiCache's auto-discovery.
    pub fn ownership(&mut self, known: Option<MapVersion>) {
        // Read before the owners: they may be newer than it says, which the next question finds out.
        let version = self.version();
        if known != Some(version) {
            let mut payload = format!("version {version}\n");
            for (worker, address) in self.shared.settings.worker_addresses.iter().enumerate() {
                payload += &format!("worker {worker} {} {}\n", address.ip(), address.port());
            }
            let store = &self.shared.store;
            for held in store.held() {
                payload += &format!("cachelet {} {}\n", held.prefix, held.owner.0);
            }
            let length = payload.len();
            self.line(format!("CONFIG mbal 0 {length}").as_bytes());
            self.line(payload.as_bytes());
        }
        self.line(b"END");
    }

    /// Of a client that knows the workers, a request is done whose reply begins at `before`.
    pub fn followed(&mut self, before: usize, request_bytes: usize, key: &Key<'_>) {
        self.follows = true;
        match self.route(key) {
            Route::Own => {
                let bytes = request_bytes + self.out.len() - before;
                self.shared.store.count_work(key.hash(), key_work(1, bytes as u64));
            }
            Route::Neighbour(owner) => self.tell_owner(before, owner),
            Route::Peer(_) | Route::Moving(_) => {}
        }
    }

    /// Adds to the reply that begins at `before` where the key's cachelet has gone.
    #[cold]
    fn tell_owner(&mut self, before: usize, owner: WorkerId) {
        const STATUSES: [&[u8]; 6] = [b"HD", b"VA", b"EN", b"NF", b"NS", b"EX"];
        let reply = &self.out[before..];
        let Some(end) = memchr::memchr(b'\n', reply).filter(|end| *end > 2) else { return };
        if !STATUSES.contains(&&reply[..2]) {
            return;
        }
        let rest = self.out.split_off(before + end - 1);
        self.out.extend_from_slice(format!(" L{}.{}", self.version(), owner.0).as_bytes());
        self.out.extend_from_slice(&rest);
    }
}
