//! A switch of the pool, step by step: what is told of each kind of request, what waits, and who is refused (docs/design/switching.md).

mod common;

use std::time::Duration;

use common::transcript::World;
use common::{MS, server, settings};
use mbal_model::Instant;
use mbal_proxy::{ClientId, ConnId, Event, RingServer, Settings, SwitchSettings, SwitchWork};
use mbal_wire::{
    SwitchLine, SwitchOrder, SwitchReply, SwitchStep, SwitchWritten, base64_encode, binary_request,
};

const TOKEN: &[u8] = b"0123456789abcdef";
const LEASE_MS: u64 = 1000;

/// A proxy, whose pool of two is to become the first of them; and the tool.
struct Site {
    world: World,
    tool: ClientId,
    session: u64,
}

fn entries(list: &[RingServer]) -> Vec<String> {
    list.iter().map(RingServer::entry).collect()
}

impl Site {
    fn new(change: impl FnOnce(&mut Settings)) -> Site {
        let mut settings = settings(2);
        settings.switch = Some(SwitchSettings { token: TOKEN.to_vec(), interrupted: None });
        settings.doubt = Duration::from_secs(5);
        change(&mut settings);
        let mut world = World::new(settings);
        let tool = world.client();
        Site { world, tool, session: 0 }
    }

    /// It copies.
    fn begun(proxies: u64) -> Site {
        let mut site = Site::new(|_| {});
        site.greet();
        assert_eq!(site.order(site.begin(proxies)), None);
        assert_eq!(site.works(), SwitchWork::Resolve(vec![server(0)]));
        assert_eq!(site.heard(), Some(SwitchReply::Done));
        site
    }

    fn begin(&self, proxies: u64) -> SwitchOrder {
        let (from, to) = (entries(&[server(0), server(1)]), entries(&[server(0)]));
        SwitchOrder::Begin { lease_ms: LEASE_MS, proxies, from, to }
    }

    fn greet(&mut self) -> SwitchStep {
        self.session = 0;
        match self.order(SwitchOrder::Hello) {
            Some(SwitchReply::Session(session)) => {
                self.session = session.session;
                session.step
            }
            other => panic!("{other:?}"),
        }
    }

    fn order(&mut self, order: SwitchOrder) -> Option<SwitchReply> {
        let mut line = Vec::new();
        SwitchLine { token: TOKEN, session: self.session, order }.push(&mut line);
        self.world.says(self.tool, &String::from_utf8(line).expect("text"));
        self.heard()
    }

    fn heard(&mut self) -> Option<SwitchReply> {
        let told = std::mem::take(&mut self.world.told[self.tool.0 as usize]);
        let (reply, length) = SwitchReply::parse(told.as_bytes()).expect("a reply")?;
        assert_eq!(length, told.len());
        Some(reply)
    }

    /// The driver does what is wanted of it.
    fn works(&mut self) -> SwitchWork {
        let task = self.world.tasks.remove(0);
        assert!(self.world.tasks.is_empty());
        let now = Instant::from_nanos(self.world.now);
        if let SwitchWork::Follow(list) = &task.work {
            self.world.proxy.change(now, list.clone(), |_, _| true);
        }
        self.world.proxy.switch_done(now, task.number, Ok(()));
        self.world.carry_out();
        task.work
    }

    fn held(&mut self) {
        assert_eq!(self.order(SwitchOrder::Hold), None);
        assert_eq!(self.works(), SwitchWork::Record(vec![server(0)]));
        assert_eq!(self.heard(), Some(SwitchReply::Done));
    }

    fn turned(&mut self) {
        assert_eq!(self.order(SwitchOrder::Turn), None);
        assert_eq!(self.works(), SwitchWork::Follow(vec![server(0)]));
        assert_eq!(self.heard(), Some(SwitchReply::Done));
        // The one that left is asked nothing more but to forget that it was filled.
        self.world.asked[2].clear();
    }

    fn written(&mut self) -> SwitchWritten {
        match self.order(SwitchOrder::Written) {
            Some(SwitchReply::Written(written)) => written,
            other => panic!("{other:?}"),
        }
    }

    fn told(&mut self) -> Vec<String> {
        let text = |key: Vec<u8>| String::from_utf8(key).expect("text");
        self.written().keys.into_iter().map(text).collect()
    }
}

#[test]
fn a_key_is_told_when_what_may_have_changed_it_is_answered() {
    let mut site = Site::begun(1);
    let client = site.world.client();
    let (moves, stays) = (site.world.key(1), site.world.key(0));
    let mut coded = Vec::new();
    base64_encode(moves.as_bytes(), &mut coded);
    let coded = String::from_utf8(coded).expect("text");
    for (request, reply) in [
        ("set K 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("set K 0 0 1 noreply\r\nx\r\n", "STORED\r\n"),
        ("add K 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace K 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("append K 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("prepend K 0 0 1 noreply\r\nx\r\n", "STORED\r\n"),
        ("cas K 0 0 1 7\r\nx\r\n", "EXISTS\r\n"),
        ("incr K 1\r\n", "5\r\n"),
        ("decr K 1 noreply\r\n", "4\r\n"),
        ("delete K\r\n", "DELETED\r\n"),
        ("touch K 5\r\n", "TOUCHED\r\n"),
        ("gat 5 K\r\n", "VALUE K 0 1\r\nx\r\nEND\r\n"),
        ("gats 5 K\r\n", "END\r\n"),
        ("mg K T5\r\n", "HD\r\n"),
        ("mg K N30 v\r\n", "VA 0 W\r\n\r\n"),
        ("ms K 1 q\r\nx\r\n", "HD\r\n"),
        ("ms CODED 1 b\r\nx\r\n", "HD\r\n"),
        ("md K\r\n", "NF\r\n"),
        ("ma K\r\n", "HD\r\n"),
    ] {
        let named = |text: &str| text.replace("CODED", &coded).replace('K', &moves);
        site.world.says(client, &named(request));
        assert_ne!(site.world.asked[2], "", "{request}");
        assert_eq!(site.told(), [""; 0], "{request} is not answered");
        site.world.asked[2].clear();
        site.world.replies(1, &named(reply));
        assert_eq!(site.told(), [moves.as_str()], "{request}");
        assert_eq!(site.told(), [""; 0], "{request} is told once");
    }
    for (request, reply) in
        [("get K\r\n", "END\r\n"), ("mg K v t f c\r\n", "EN\r\n"), ("me K\r\n", "EN\r\n")]
    {
        site.world.says(client, &request.replace('K', &moves));
        site.world.asked[2].clear();
        site.world.replies(1, reply);
        assert_eq!(site.told(), [""; 0], "{request}");
    }
    site.world.says(client, &format!("set {stays} 0 0 1\r\nx\r\n"));
    site.world.replies(0, "STORED\r\n");
    assert_eq!(site.told(), [""; 0], "it does not move");
    // Several keys, of which one moves.
    site.world.says(client, &format!("gat 5 {moves} {stays}\r\n"));
    site.world.replies(0, "END\r\n");
    assert_eq!(site.told(), [""; 0]);
    site.world.replies(1, "END\r\n");
    assert_eq!(site.told(), [moves]);
}

#[test]
fn what_binary_has_changed_is_told_and_waits_too() {
    let mut site = Site::begun(1);
    let client = site.world.client();
    let moves = site.world.key(1);
    let says = |site: &mut Site, opcode: u8, key: &str| {
        let request = binary_request(opcode, key.as_bytes(), b"");
        site.world.event(Event::Received { client, bytes: &request });
        site.world.connect_all();
    };
    let replies = |site: &mut Site, opcode: u8, conn: u32| {
        let mut reply = [0; 24];
        reply[..2].copy_from_slice(&[0x81, opcode]);
        site.world.event(Event::Replied { conn: ConnId(conn), bytes: &reply });
    };
    says(&mut site, 0x04, &moves);
    assert_eq!(site.told(), [""; 0]);
    replies(&mut site, 0x04, 3);
    assert_eq!(site.told(), [moves.as_str()]);
    site.held();
    site.world.asked[3].clear();
    says(&mut site, 0x04, &moves);
    assert_eq!(site.world.asked[3], "", "it waits");
    site.turned();
    assert_eq!(site.world.asked[1], "");
    assert_eq!(site.order(SwitchOrder::End), None);
    site.works();
    site.world.connect_all();
    assert_ne!(site.world.asked[1], "", "at its new place");
}

#[test]
fn it_holds_when_what_is_under_way_is_answered_and_turns_before_it_writes() {
    let mut site = Site::begun(2);
    let (writer, reader) = (site.world.client(), site.world.client());
    let moves = site.world.key(1);
    let (set, get) = (format!("set {moves} 0 0 1\r\nx\r\n"), format!("get {moves}\r\n"));
    site.world.says(writer, &set);
    assert_eq!(site.order(SwitchOrder::Hold), None);
    assert!(site.world.tasks.is_empty(), "a write is under way");
    site.world.answers(1, &set, "STORED\r\n");
    assert_eq!(site.works(), SwitchWork::Record(vec![server(0)]));
    assert_eq!(site.heard(), Some(SwitchReply::Done));
    assert_eq!(site.told(), [moves.as_str()], "it is told after that");
    site.world.hears(writer, "STORED\r\n");
    site.world.says(writer, &set);
    site.world.says(reader, &get);
    site.world.answers(1, &get, "END\r\n");
    site.world.hears(reader, "END\r\n");
    site.turned();
    site.world.says(reader, &get);
    site.world.answers(0, &get, "END\r\n");
    assert_eq!(site.order(SwitchOrder::End), None);
    assert_eq!(site.world.asked[0], "", "the write waits");
    assert_eq!(site.works(), SwitchWork::Save(vec![server(0)]));
    assert_eq!(site.heard(), Some(SwitchReply::Done));
    site.world.answers(0, &set, "STORED\r\n");
    site.world.hears(writer, "STORED\r\n");
    assert_eq!(site.greet(), SwitchStep::Old);
}

#[test]
fn an_old_cas_number_is_refused_for_two_seconds() {
    let mut site = Site::begun(1);
    let client = site.world.client();
    let (moves, stays) = (site.world.key(1), site.world.key(0));
    site.held();
    site.turned();
    site.order(SwitchOrder::End);
    site.works();
    for (request, reply) in [
        ("cas K 0 0 1 7\r\nx\r\n", "EXISTS\r\n"),
        ("cas K 0 0 1 7 noreply\r\nx\r\n", ""),
        ("ms K 1 C7 O9 k q\r\nx\r\n", "EX O9 kK\r\n"),
        ("md K C7\r\n", "EX\r\n"),
        ("ma K C7\r\n", "EX\r\n"),
    ] {
        site.world.says(client, &request.replace('K', &moves));
        site.world.hears(client, &reply.replace('K', &moves));
        assert_eq!(site.world.asked[0], "", "{request}");
    }
    let cas = |key: &str| format!("cas {key} 0 0 1 7\r\nx\r\n");
    for key in [&stays, &moves] {
        site.world.says(client, &cas(key));
        site.world.answers(0, &cas(key), "STORED\r\n");
        site.world.wait(2000 * MS);
    }
}

#[test]
fn a_write_that_was_lost_is_told_as_such() {
    let mut site = Site::new(|_| {});
    let moves = site.world.key(1);
    let set = format!("set {moves} 0 0 1\r\nx\r\n");
    let lose = |site: &mut Site| {
        let client = site.world.client();
        site.world.says(client, &set);
        site.world.event(Event::Lost { conn: ConnId(2) });
        site.world.connect_all();
    };
    // In doubt before it begins.
    lose(&mut site);
    site.greet();
    site.order(site.begin(1));
    site.works();
    site.heard();
    let lost = |site: &mut Site| {
        let written = site.written();
        assert!(written.keys.is_empty());
        written.lost
    };
    assert_eq!(lost(&mut site), [moves.clone().into_bytes()]);
    assert!(lost(&mut site).is_empty(), "it is told once");
    let mut site = Site::begun(1);
    lose(&mut site);
    assert_eq!(lost(&mut site), [moves.into_bytes()]);
}

#[test]
fn a_silent_tool_leaves_what_is_safe() {
    // It copies: the pool is as it was.
    let mut site = Site::begun(2);
    site.world.wait((LEASE_MS + 1) * MS);
    assert_eq!(site.order(SwitchOrder::Written), Some(SwitchReply::Gone));
    assert_eq!(site.greet(), SwitchStep::Old);
    // It holds, alone: it goes back.
    let mut site = Site::begun(1);
    site.held();
    site.world.wait((LEASE_MS + 1) * MS);
    assert_eq!(site.works(), SwitchWork::Restore(vec![server(0), server(1)]));
    assert_eq!(site.greet(), SwitchStep::Old);
    // It has turned, alone: it goes on.
    let mut site = Site::begun(1);
    site.held();
    site.turned();
    site.world.wait((LEASE_MS + 1) * MS);
    assert_eq!(site.works(), SwitchWork::Save(vec![server(0)]));
    // One of several: it reads, and refuses writes.
    let mut site = Site::begun(2);
    let (writer, reader) = (site.world.client(), site.world.client());
    let moves = site.world.key(1);
    site.held();
    site.world.says(writer, &format!("set {moves} 0 0 1\r\nx\r\n"));
    site.world.wait((LEASE_MS + 1) * MS);
    let refused = "SERVER_ERROR a resize of the pool is not over: run mbal pool resize again\r\n";
    site.world.hears(writer, refused);
    let get = format!("get {moves}\r\n");
    site.world.says(reader, &get);
    site.world.answers(1, &get, "END\r\n");
    assert_eq!(site.greet(), SwitchStep::Held);
    assert_eq!(site.order(SwitchOrder::Back), None);
    site.works();
    assert_eq!(site.heard(), Some(SwitchReply::Done));
    assert_eq!(site.greet(), SwitchStep::Old);
}

#[test]
fn who_was_restarted_serves_no_key_that_moves_until_it_is_told() {
    let mut site = Site::new(|settings| {
        settings.switch.as_mut().expect("it has a token").interrupted = Some(vec![server(0)]);
    });
    let client = site.world.client();
    let (moves, stays) = (site.world.key(1), site.world.key(0));
    let refused = "SERVER_ERROR a resize of the pool is not over: run mbal pool resize again\r\n";
    for (request, reply) in [
        (format!("get {moves}\r\n"), "END\r\n"),
        (format!("mg {moves} v\r\n"), "EN\r\n"),
        (format!("set {moves} 0 0 1\r\nx\r\n"), refused),
        (format!("gat 5 {moves}\r\n"), refused),
        ("flush_all\r\n".to_owned(), refused),
    ] {
        site.world.says(client, &request);
        site.world.hears(client, reply);
    }
    let get = format!("get {stays}\r\n");
    site.world.says(client, &get);
    site.world.answers(0, &get, "END\r\n");
    site.world.hears(client, "END\r\n");
    assert_eq!(site.greet(), SwitchStep::Lost);
    site.turned();
    site.world.says(client, &format!("get {moves}\r\n"));
    site.world.answers(0, &format!("get {moves}\r\n"), "END\r\n");
}

#[test]
fn orders_need_the_token_and_the_last_session() {
    let mut site = Site::begun(1);
    let stranger = site.world.client();
    site.world.says(stranger, "switch 0123456789abcdeX 0 hello\r\n");
    site.world.hears(stranger, "REFUSED not its token: --resize-token-file\r\n");
    site.world.says(stranger, "switch 0123456789abcdef 0 dance\r\n");
    site.world.hears(stranger, "REFUSED no such order\r\n");
    let before = site.session;
    assert_eq!(site.greet(), SwitchStep::Copying);
    site.session = before;
    assert_eq!(site.order(SwitchOrder::Hold), Some(SwitchReply::Taken));
    // Without a token it is no command.
    let mut site = Site::new(|settings| settings.switch = None);
    site.world.says(site.tool, "switch x 0 hello\r\n");
    site.world.hears(site.tool, "ERROR\r\n");
    let mut site = Site::new(|settings| settings.eject = true);
    let refused = Some(SwitchReply::Refused("it ejects upstreams".to_owned()));
    assert_eq!(site.order(SwitchOrder::Hello), refused);
}

#[test]
fn a_flush_or_another_list_ends_it() {
    let mut site = Site::begun(1);
    let client = site.world.client();
    site.world.says(client, "flush_all\r\n");
    assert_eq!(site.order(SwitchOrder::Hold), Some(SwitchReply::Gone));
    let mut site = Site::begun(1);
    let now = Instant::from_nanos(site.world.now);
    site.world.proxy.change(now, vec![server(1), server(0)], |_, _| true);
    assert_eq!(site.order(SwitchOrder::Hold), Some(SwitchReply::Gone));
    // While it holds a flush waits.
    let mut site = Site::begun(1);
    let client = site.world.client();
    site.held();
    site.world.says(client, "flush_all\r\n");
    assert_eq!(site.world.asked[0], "");
    site.turned();
    site.order(SwitchOrder::End);
    site.works();
    site.world.answers(0, "flush_all\r\n", "OK\r\n");
    site.world.hears(client, "OK\r\n");
}
