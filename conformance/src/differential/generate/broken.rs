//! What is no command, or a command that is broken on its way.

use super::*;

impl Generator {
    pub(super) fn junk(&mut self) -> Command {
        let line = match self.random.below(16) {
            0 => "hello world".to_string(),
            1 => String::new(),
            2 => " ".repeat(self.random.below(9)),
            3 => "GET a".to_string(),
            4 => "x".to_string(),
            5 => "mz a".to_string(),
            6 => (*self.random.pick(&["gett a", "sett a 0 0 1", "incrr a 1", "touchy", "lruu"]))
                .to_string(),
            7 => "debugtime 1".to_string(),
            8 => (*self.random.pick(&[
                "set",
                "add a",
                "cas a 0 0 1",
                "incr",
                "incr n1",
                "decr",
                "touch",
                "touch a",
                "delete",
                "replace",
                "append a 0",
                "prepend",
                "delete a 0 1 2",
            ]))
            .to_string(),
            9 => "a b c d e f g h i j k l m n o p q r s t u v w x y z".to_string(),
            10 => "\u{1}\u{2}\u{7f}\u{e4}".to_string(),
            11 => (*self.random.pick(&["hello noreply", "bget a", "noreply", " get a", "get\ta"]))
                .to_string(),
            12 => (*self.random.pick(&["get a\0b", "set a\0b 0 0 0\r\n", "mg a\0b v", "\0\0\0\0"]))
                .to_string(),
            13 => (*self.random.pick(&["\n", "x\n", "mn\n", "mn\nabc", "abc", "mn x", "mnx"]))
                .to_string(),
            14 => (*self.random.pick(&["get noreply", "delete noreply", "touch noreply noreply"]))
                .to_string(),
            _ => "ms\r\nms a\r\nms a x".to_string(),
        };
        let row = match line.split(' ').next().unwrap_or("") {
            "set" => "set",
            "add" => "add",
            "cas" => "cas",
            "incr" => "incr",
            "decr" => "decr",
            "touch" => "touch",
            "delete" => "delete",
            "replace" => "replace",
            "append" => "append",
            "prepend" => "prepend",
            "ms\r\nms" => "ms",
            _ => "unknown",
        };
        line_of(row, &format!("{line}\r\n"), true)
    }

    /// Damages a good command's line.
    pub(super) fn broken(&mut self, mut command: Command) -> Command {
        if command.row == "flush_all" || command.row == "cache_memlimit" || command.row == "slabs" {
            return command;
        }
        // What is in a class is compared by scripts.
        if matches!(&command.pieces[..], [Piece::Bytes(line)] if line.starts_with(b"stats cachedump"))
        {
            return command;
        }
        // Damaged base64 makes memcached read on behind it.
        if command.pieces.contains(&flag(" b")[0]) {
            return command;
        }
        // Without its size, an `ms` may find one in a flag.
        if command.row == "ms"
            && command.pieces.iter().any(|piece| is_of(std::slice::from_ref(piece), b'E'))
        {
            return command;
        }
        let (row, length) = (command.row, size(&command, 0));
        let whole = command.clone();
        let Some(Piece::Bytes(bytes)) = command.pieces.first_mut() else { return command };
        let line = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap_or(bytes.len());
        if line < 2 || length > TORN_BYTES_MAX {
            return command;
        }
        // A size that falls apart asks for more than the no-ops behind the command can fill.
        let has_block =
            matches!(row, "set" | "add" | "replace" | "append" | "prepend" | "cas" | "ms");
        let damage: &[u8] = if has_block { b"\0\xffx\t" } else { b"\0\xffx -+\t" };
        let blanks = (0..line).filter(|at| bytes[*at] == b' ');
        let end = if has_block { blanks.take(2).last().unwrap_or(line) } else { line };
        let at = self.random.below(end.max(1));
        match self.random.below(7) {
            0 => bytes[at] = *self.random.pick(damage),
            1 => {
                bytes.remove(at);
            }
            2 => bytes.insert(at, *self.random.pick(damage)),
            3 if !has_block => {
                let blanks = self.random.below(5);
                bytes.splice(at..at, std::iter::repeat_n(b' ', blanks));
            }
            4 => bytes.splice(line..line, b" 7".iter().copied()).for_each(drop),
            5 => bytes
                .splice(line..line, b" 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2".iter().copied())
                .for_each(drop),
            _ => {
                let last = bytes[..line].iter().rposition(|byte| *byte == b' ').unwrap_or(line);
                bytes.drain(last..line);
            }
        }
        if ends_soon(bytes.split(|byte| *byte == b'\n').next().unwrap_or(bytes)) {
            return whole;
        }
        // It may name another key now, and a cas may have become one.
        command.key = None;
        for piece in &mut command.pieces {
            if let Piece::Cas { .. } = piece {
                *piece = Piece::Bytes(b"1".to_vec());
            }
        }
        command.is_marked = true;
        command.is_filled = true;
        command.is_fenced = true;
        command
    }

    /// A line over the limit of 2,048 bytes, with an end and without.
    pub(super) fn long_line(&mut self) -> (Command, End) {
        let length = 2049 + self.random.below(3000);
        let unfinished = *self.random.pick(&["x", "set ", "mg ", " get ", "gat 0 ", "gets"]);
        match self.random.below(5) {
            0 | 1 => {
                let line = format!("{unfinished}{}", "k".repeat(length));
                (line_of("long line", &line, false), End::Closed)
            }
            2 => (
                line_of("long line", &format!("set {} 0 0 1\r\nv\r\n", "k".repeat(length)), true),
                End::Sync,
            ),
            3 => {
                (line_of("long line", &format!("mg {} v\r\n", "k".repeat(length)), true), End::Sync)
            }
            _ => (line_of("get", &format!("get{}\r\n", " k".repeat(length / 2)), true), End::Sync),
        }
    }

    /// What ends a connection.
    pub(super) fn ending(&mut self) -> (Command, End) {
        match self.random.below(5) {
            // Nothing is sent after it: a close with bytes unread would take replies away with it.
            0 | 1 => (closing("quit", "quit\r\n"), End::Closed),
            2 => {
                let line = self.random.pick::<&str>(&[
                    "GET / HTTP/1.1\r\n",
                    "x HTTP/\r\n",
                    "HTTP/1.0\r\n",
                ]);
                (closing("unknown", line), End::Closed)
            }
            _ => {
                let mut command = self.storage();
                command.is_fenced = true;
                command.is_marked = false;
                command.is_filled = false;
                command.row = "torn";
                if let Some(Piece::Bytes(bytes)) = command.pieces.last_mut() {
                    bytes.truncate(self.random.below(bytes.len().max(1)));
                }
                (command, End::Finish)
            }
        }
    }
}
