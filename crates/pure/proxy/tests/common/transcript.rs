//! What clients and upstreams say, and what a proxy says to them.

use mbal_model::Instant;
use mbal_proxy::{
    Action, ClientId, ConnId, Event, KernelChange, KeyHash, Proxy, Settings, SwitchTask,
};
use mbal_random::Random;

use super::{MS, actions, to_upstream};

pub const TIMEOUT: u64 = 100 * MS;

/// A proxy with upstreams whose connections are up; the tests speak for all others.
pub struct World {
    pub proxy: Proxy,
    pub now: u64,
    /// By upstream connection, by client: what was sent to it and not looked at.
    pub asked: Vec<String>,
    pub told: Vec<String>,
    /// What upstreams say when they are asked for their cluster.
    pub cluster: String,
    pub dialing: Vec<ConnId>,
    pub hung_up: Vec<ConnId>,
    pub closed: Vec<ClientId>,
    pub paused: Vec<ClientId>,
    pub changes: Vec<KernelChange>,
    /// What a switch of the pool needs.
    pub tasks: Vec<SwitchTask>,
    /// In a row: changes of the kernel, and what clients and upstreams were told.
    pub order: Vec<&'static str>,
    /// Clients take some of what is said to them, by chance; all of it at once, if there is none.
    pub takes: Option<Random>,
}

impl World {
    pub fn new(settings: Settings) -> World {
        World::of(settings, "ERROR\r\n")
    }

    /// All upstreams say this when they are asked for their cluster.
    pub fn of(settings: Settings, cluster: &str) -> World {
        World::with(Proxy::new(settings), cluster)
    }

    pub fn with(proxy: Proxy, cluster: &str) -> World {
        let mut world = World {
            proxy,
            now: 1,
            asked: vec![String::new(); 16],
            told: Vec::new(),
            cluster: cluster.into(),
            dialing: Vec::new(),
            hung_up: Vec::new(),
            closed: Vec::new(),
            paused: Vec::new(),
            changes: Vec::new(),
            tasks: Vec::new(),
            order: Vec::new(),
            takes: None,
        };
        world.proxy.start(Instant::from_nanos(1));
        world.connect_all();
        world
    }

    pub fn connect_all(&mut self) {
        self.wait(2);
        for conn in std::mem::take(&mut self.dialing) {
            self.event(Event::Connected { conn });
        }
    }

    pub fn event(&mut self, event: Event<'_>) {
        self.proxy.handle(Instant::from_nanos(self.now), event);
        self.carry_out();
    }

    pub fn carry_out(&mut self) {
        loop {
            let changes = self.proxy.take_kernel_changes();
            self.order.extend(changes.iter().map(|_| "kernel"));
            self.changes.extend(changes);
            let Some(actions) = actions(&mut self.proxy) else { return };
            for action in actions {
                match action {
                    Action::ToClient(client) => self.take(client),
                    Action::ToUpstream(conn) => {
                        let out = to_upstream(&mut self.proxy, conn);
                        let out = String::from_utf8_lossy(&out);
                        // The first question over a new connection.
                        let rest = out.strip_prefix("config get mbal servers\r\n");
                        self.asked[conn.0 as usize] += rest.unwrap_or(&out);
                        if rest.is_some() {
                            let bytes = self.cluster.clone().into_bytes();
                            self.proxy.handle(
                                Instant::from_nanos(self.now),
                                Event::Replied { conn, bytes: &bytes },
                            );
                        }
                        self.order.push("upstream");
                    }
                    Action::Dial { conn, .. } => self.dialing.push(conn),
                    Action::HangUp(conn) | Action::Abandon(conn) => {
                        self.hung_up.push(conn);
                        self.dialing.retain(|other| *other != conn);
                        self.asked[conn.0 as usize].clear();
                    }
                    Action::Close(client) | Action::CutOff(client) => self.closed.push(client),
                    Action::Pause(client) => self.paused.push(client),
                    Action::Switch => self.tasks.extend(self.proxy.take_switch_task()),
                    Action::Resume(client) => self.paused.retain(|one| *one != client),
                }
            }
        }
    }

    fn take(&mut self, client: ClientId) {
        self.order.push("client");
        let mut out = self.proxy.client_output(client).to_vec();
        if let Some(random) = &mut self.takes {
            out.truncate(random.below(out.len() as u64 + 1) as usize);
        }
        self.told[client.0 as usize] += &String::from_utf8_lossy(&out);
        self.proxy.client_took(client, out.len());
    }

    /// A client that did not take all has room again.
    pub fn takes_more(&mut self, client: ClientId) {
        if !self.proxy.client_output(client).is_empty() {
            self.take(client);
            self.carry_out();
        }
    }

    pub fn client(&mut self) -> ClientId {
        let client = self.proxy.open();
        self.listens(client)
    }

    pub fn listens(&mut self, client: ClientId) -> ClientId {
        self.told.resize(self.told.len().max(client.0 as usize + 1), String::new());
        client
    }

    pub fn says(&mut self, client: ClientId, text: &str) {
        self.event(Event::Received { client, bytes: text.as_bytes() });
    }

    /// Upstream `at` is asked `request`, and says `reply`.
    pub fn answers(&mut self, at: usize, request: &str, reply: &str) {
        assert_eq!(std::mem::take(&mut self.asked[2 * at]), request);
        self.replies(at, reply);
    }

    pub fn replies(&mut self, at: usize, reply: &str) {
        self.event(Event::Replied { conn: ConnId(2 * at as u32), bytes: reply.as_bytes() });
    }

    pub fn hears(&mut self, client: ClientId, text: &str) {
        assert_eq!(std::mem::take(&mut self.told[client.0 as usize]), text);
    }

    pub fn wait(&mut self, time: u64) {
        let until = self.now + time;
        self.carry_out();
        while let Some(wake) =
            self.proxy.next_wake().map(Instant::as_nanos).filter(|wake| *wake <= until)
        {
            self.now = self.now.max(wake);
            self.event(Event::Woken);
        }
        self.now = until;
    }

    /// A key that belongs to upstream `at`, and is not one of the others.
    pub fn key(&mut self, at: usize) -> String {
        let upstreams = self.proxy.upstreams().count();
        let is_its =
            |key: &String| KeyHash::Fnv1a64.place(key.as_bytes()) as usize % upstreams == at;
        (0..).map(|number| format!("k{number}")).find(is_its).expect("there are many")
    }
}
