//! Servers that only say how they are, and are rid of a cachelet as soon as it is to leave.

use std::thread;
use std::time::{Duration, Instant};

use mbal_control::api::{
    AgesAsked, AgesReport, ClassAges, CurveReport, Heartbeat, Incarnation, MoveReport, News,
    Progress, Registration, WorkerReport,
};
use mbal_coordinator::Running;
use mbal_model::Cluster;
use serde_json::to_value;

use crate::{EVERY, call};

const WITHIN: Duration = Duration::from_secs(30);
const SERVER_BYTES: u64 = 16_384 << 10;

pub struct Servers<'a> {
    running: &'a Running,
    since: Instant,
    each: Vec<Server>,
}

#[derive(Default)]
struct Server {
    id: u16,
    map_version: u64,
    asked: Option<AgesAsked>,
    moves: Vec<MoveReport>,
}

impl<'a> Servers<'a> {
    /// Pods of a StatefulSet: the first server is that of the highest number.
    pub fn register(running: &'a Running, count: u16) -> Servers<'a> {
        let register = |id: u16| {
            let pod = format!("mbal-{}.mbal", count - id);
            let registration = Registration {
                id: Some(id),
                incarnation: Incarnation(id.into()),
                cluster: "mbal".into(),
                moves: true,
                client: format!("{pod}:11211"),
                link: format!("{pod}:11311"),
                workers: vec![format!("{pod}:11411")],
                memory_bytes: SERVER_BYTES,
                ..Registration::default()
            };
            let registration = to_value(registration).expect("JSON");
            call(running, "POST", "/v1/servers", Some(registration));
            Server { id, map_version: 1, ..Server::default() }
        };
        let each = (1..=count).map(register).collect();
        Servers { running, since: Instant::now(), each }
    }

    /// Half of what is read hits with a server's memory, and everything with four times that.
    fn curve(&self) -> CurveReport {
        let reads = (self.since.elapsed().as_secs_f64() * 10_000.0) as u64;
        // 16 KiB, and four points for each doubling: the 41st is 16 MiB.
        let points =
            (0..49).map(|at: u64| if at < 41 { 12 * at } else { 500 + 63 * (at - 40) }).collect();
        CurveReport {
            reads,
            hits: reads / 2,
            counted: 1000.0,
            points,
            state_bytes: 1,
            item_bytes: 100,
        }
    }

    pub fn beat(&mut self) {
        let curve = self.curve();
        for server in &mut self.each {
            let heartbeat = Heartbeat {
                incarnation: Incarnation(server.id.into()),
                map_version: server.map_version,
                workers: vec![WorkerReport::default()],
                curve: Some(curve.clone()),
                ages: server.asked.map(|asked| ages(server.id, asked)),
                moves: std::mem::take(&mut server.moves),
                ..Heartbeat::default()
            };
            let path = format!("/v1/servers/{}/heartbeat", server.id);
            let heartbeat = to_value(heartbeat).expect("JSON");
            let news = call(self.running, "POST", &path, Some(heartbeat));
            server.hear(serde_json::from_value(news).expect("news"));
        }
    }

    /// Servers say how they are until this is so.
    pub fn until<T>(&mut self, mut is: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + WITHIN;
        while Instant::now() < end {
            self.beat();
            if let Some(found) = is() {
                return found;
            }
            thread::sleep(EVERY / 2);
        }
        panic!("it is not so: {}", call(self.running, "GET", "/v1/autoscale", None));
    }
}

impl Server {
    fn hear(&mut self, news: News) {
        if let Some(map) = news.map {
            self.map_version = Cluster::parse(&map).expect("a map").map.version();
        }
        self.asked = news.ages;
        let leave = news.moves.iter().filter(|one| one.from == self.id);
        let sealed =
            |number| MoveReport { number, progress: Progress::Sealed, ..MoveReport::default() };
        self.moves = leave.map(|one| sealed(one.number)).collect();
    }
}

/// All are as full as they can be; the first one is the warmest, the last one the coldest.
fn ages(id: u16, asked: AgesAsked) -> AgesReport {
    let ages = (0..100).map(|at| 100 * u32::from(id) + at).collect();
    let class = ClassAges { class: 5, items: 1_000, bytes: SERVER_BYTES, ages };
    AgesReport {
        number: asked.number,
        memory_bytes: SERVER_BYTES,
        used_bytes: SERVER_BYTES,
        classes: vec![class],
    }
}
