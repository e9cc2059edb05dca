//! How input is cut and joined on its way changes nothing; and bytes from a stranger break
//! nothing.

use mbal_sketch::Random;
use mbal_worker::{Action, Event, Settings};

use crate::rig::{CONN, Rig};

/// The seed is all there is to a failure.
struct Requests(Random);

impl Requests {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    /// A request, more or less.
    fn request(&mut self) -> String {
        let key = self.pick(&["a", "b", "n", "Zm9v", "foo"]);
        let value = self.pick(&["", "1", "99", "hello", "a\r\nb", "mn\r\n"]);
        let other = self.pick(&["a", "b", "x"]);
        let flag = self.pick(&["", " v", " k q", " b", " v t N30", " T0", " I", " c", " O1", "!"]);
        let length = value.len() + usize::from(self.below(40) == 0);
        match self.below(12) {
            0 => format!("get {key} {other}\r\n"),
            1 => format!("gets {key}\n"),
            2 | 3 => {
                let verb = self.pick(&["set", "add", "append", "prepend", "replace"]);
                let noreply = self.pick(&["", "", " noreply"]);
                format!("{verb} {key} 0 0 {length}{noreply}\r\n{value}\r\n")
            }
            4 => format!("cas {key} 0 0 {length} {}\r\n{value}\r\n", self.below(30)),
            5 => format!("{} {key} {}\r\n", self.pick(&["incr", "decr"]), self.below(200)),
            6 => format!("{} {key}\r\n", self.pick(&["delete", "touch", "mn", "", "version"])),
            7 | 8 => format!("mg {key}{flag}\r\n"),
            9 => format!("ms {key} {length}{flag}\r\n{value}\r\n"),
            10 => format!("{} {key}{flag}\r\n", self.pick(&["md", "ma", "me"])),
            // In lines: a value that a wrong length has made requests is not a line that ends the connection.
            _ => format!("set {key} 0 0 1048576\r\n{}\r\n", "xxxxxxx\n".repeat(1 << 17)),
        }
    }
}

#[test]
fn input_may_be_cut_anywhere() {
    for seed in 1..20 {
        let mut random = Requests(Random::new(seed));
        let requests: Vec<String> = (0..30).map(|_| random.request()).collect();
        let input = requests.concat().into_bytes();
        let mut whole = Rig::new();
        let expected = whole.send(&input);

        let mut one_by_one = Rig::new();
        let replies: Vec<u8> =
            requests.iter().flat_map(|request| one_by_one.send(request.as_bytes())).collect();
        assert!(replies == expected, "seed {seed}, request by request");

        let mut cut = Rig::with(Settings { requests_per_event: 4, ..Settings::default() });
        let (mut replies, mut rest) = (Vec::new(), &input[..]);
        while !rest.is_empty() {
            let most = if random.below(3) == 0 { 200_000 } else { 30 };
            let (piece, tail) = rest.split_at((1 + random.below(most)).min(rest.len()));
            replies.extend(cut.send(piece));
            rest = tail;
        }
        assert!(replies == expected, "seed {seed}, cut at random");
    }
}

#[test]
fn every_byte_may_come_alone() {
    let input =
        "set a 1 0 4\r\na\r\nb\r\nget a x a\r\nms Zm9v 2 b k\r\nhi\r\nmg foo v k\r\n\r\nmn\r\n";
    let expected = Rig::new().send(input.as_bytes());
    let mut rig = Rig::new();
    let replies: Vec<u8> = input.bytes().flat_map(|byte| rig.send(&[byte])).collect();
    assert_eq!(String::from_utf8_lossy(&replies), String::from_utf8_lossy(&expected));
}

/// A reply line that no request can have led to is a bug; so is silence after `mn`, or a
/// connection that goes on after `Close`.
#[test]
fn bytes_from_a_stranger_break_nothing() {
    let mut rig = Rig::new();
    for seed in 1..400 {
        let mut random = Requests(Random::new(seed));
        rig.handle(Event::Closed { conn: CONN });
        rig.open(CONN);
        let mut input = Vec::new();
        for _ in 0..40 {
            let mut bytes = random.request().into_bytes();
            bytes.truncate(3000);
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len());
                match random.below(3) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => bytes.truncate(at + 1),
                    _ => bytes.insert(at, random.below(256) as u8),
                }
            }
            input.extend(bytes);
        }
        let mut closed = false;
        let mut replies = Vec::new();
        for piece in input.chunks(1 + random.below(500)) {
            let mut actions = rig.handle(Event::Received { conn: CONN, bytes: piece });
            loop {
                assert!(!closed || actions.list.is_empty(), "seed {seed}: busy after Close");
                closed |= actions.list.contains(&Action::Close { conn: CONN });
                replies.extend_from_slice(&actions.bytes);
                if !actions.list.contains(&Action::Stall { conn: CONN }) {
                    break;
                }
                actions = rig.handle(Event::Drained { conn: CONN });
            }
        }
        assert!(replies.is_empty() || replies.ends_with(b"\r\n"), "seed {seed}: half a reply");
    }
}
