//! Meta commands, with flags that make sense together and some that do not.

use super::*;

impl Generator {
    fn meta_key(&mut self, flags: &mut Flags) -> (usize, String) {
        match self.random.below(20) {
            0..4 => {
                let key = self.random.below(KEYS.len());
                flags.push(flag(" b"));
                (key, KEYS[key].base64.to_string())
            }
            4 => {
                flags.push(flag(" b"));
                (0, self.random.pick(&["!!!!", "Zm=v", "====", "Zm9v!!!!"]).to_string())
            }
            _ => {
                let key = self.key();
                (key, self.key_text(key))
            }
        }
    }

    /// Flags that any meta command takes.
    fn common_flags(&mut self, flags: &mut Flags, known: &str) {
        for name in known.chars() {
            if self.random.percent(25) {
                let mut word = format!(" {name}");
                if name == 'O' {
                    let length =
                        if self.random.percent(28) { 29 + self.random.below(6) } else { 3 };
                    word.push_str(&"o".repeat(length));
                }
                flags.push(flag(&word));
            }
        }
        match self.random.below(50) {
            0 => flags.push(flag(self.random.pick::<&str>(&[" !", " {", " @", " 7", " _", " S3"]))),
            1 => flags.extend(flags.last().cloned()),
            2 => flags.push(flag(" Pproxy Lpath")),
            3 => flags.push(vec![Piece::Bytes(b" \xe4".to_vec())]),
            4 => flags.push(flag(" b c f h k l O P L q s t u v N88888 R99 T99999 I")),
            _ => {}
        }
    }

    fn number_flag(&mut self, flags: &mut Flags, name: char, number: String) {
        flags.push(vec![Piece::Bytes(format!(" {name}{number}").into_bytes())]);
    }

    /// A cas for the item, from those that mean the same on both servers.
    fn chosen_cas(&mut self, flags: &mut Flags) {
        if self.random.percent(12) {
            let number = match self.random.below(10) {
                0 => self.random.pick(&BAD_NUMBERS).to_string(),
                _ => self.random.pick(&CHOSEN_CAS).to_string(),
            };
            self.number_flag(flags, 'E', number);
        }
    }

    fn meta(
        &mut self,
        row: &'static str,
        key: usize,
        head: String,
        mut flags: Flags,
        quiet_percent: usize,
    ) -> Command {
        if self.random.percent(30) && flags.len() > 1 {
            let at = self.random.below(flags.len());
            flags.rotate_left(at);
        }
        let quiet = self.random.percent(quiet_percent);
        if quiet {
            flags.push(flag(" q"));
        }
        let key = named(&head, key);
        let mut pieces = vec![Piece::Bytes(head.into_bytes())];
        pieces.extend(flags.into_iter().flatten());
        pieces.push(Piece::Bytes(b"\r\n".to_vec()));
        let has_quiet = pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Bytes(b) if b.windows(2).any(|w| w == b" q")));
        Command {
            row,
            key,
            pieces,
            is_marked: quiet || has_quiet,
            is_filled: false,
            is_fenced: false,
        }
    }

    pub(super) fn meta_get(&mut self) -> Command {
        match self.random.below(40) {
            0 | 1 => return line_of("mn", "mn\r\n", false),
            2..6 => {
                let mut flags = Vec::new();
                let (key, text) = self.meta_key(&mut flags);
                if self.random.percent(50) {
                    flags.push(flag(self.random.pick::<&str>(&[" v", " x1", " 7", " !"])));
                }
                return self.meta("me", key, format!("me {text}"), flags, 0);
            }
            6 => return line_of("mg", self.random.pick::<&str>(&["mg\r\n", "mg \r\n"]), false),
            _ => {}
        }
        let mut flags = Vec::new();
        let stale = self.stale.filter(|_| self.random.percent(40));
        let named = stale.and_then(|key| Some((key, KEYS[key].text?.to_string())));
        let (key, text) = named.unwrap_or_else(|| self.meta_key(&mut flags));
        self.common_flags(&mut flags, "cfhklOstuvv");
        if self.random.percent(15) {
            let cas = self.cas(key);
            flags.push(vec![Piece::Bytes(b" C".to_vec()), cas]);
        }
        self.chosen_cas(&mut flags);
        if self.random.percent(22) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'N', ttl);
        }
        if self.random.percent(22) {
            let ttl = (*self.random.pick(&["77777", "95000", "0", "x", "99"])).to_string();
            self.number_flag(&mut flags, 'R', ttl);
        }
        if self.random.percent(12) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'T', ttl);
        }
        self.meta("mg", key, format!("mg {text}"), flags, 20)
    }

    pub(super) fn meta_set(&mut self) -> Command {
        let mut flags = Vec::new();
        let (key, text) = self.meta_key(&mut flags);
        let is_named = named(&format!("ms {text}"), key).is_some();
        self.common_flags(&mut flags, "ckOs");
        self.chosen_cas(&mut flags);
        if self.random.percent(20) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'N', ttl);
        }
        if self.random.percent(35) {
            let is_lower = self.random.percent(40);
            // Which of two keys' cas values is lower is no question to ask.
            let cas = match self.cas(key) {
                Piece::Cas { back, .. } if is_lower && is_named => Piece::Cas { key, back },
                Piece::Cas { .. } if is_lower => Piece::Bytes(b"1".to_vec()),
                cas => cas,
            };
            flags.push(vec![Piece::Bytes(b" C".to_vec()), cas]);
            if is_lower {
                flags.push(flag(" I"));
            }
        }
        if self.random.percent(15) {
            let number = self.number();
            self.number_flag(&mut flags, 'F', number);
        }
        if self.random.percent(25) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'T', ttl);
        }
        if self.random.percent(45) {
            let mode = self
                .random
                .pick(&["E", "A", "P", "R", "S", "E", "A", "P", "R", "e", "", "SS", "set", "\0"]);
            self.number_flag(&mut flags, 'M', (*mode).to_string());
        }
        let value = match self.random.below(1000) {
            _ if text.len() > 250
                || flags.len() > 12
                || flags.iter().any(|f| makes_no_command(f)) =>
            {
                vec![b'm'; 9]
            }
            0..22 => vec![b'z'; 1_048_577],
            _ => self.value(),
        };
        self.meta_set_of(key, &text, flags, value)
    }

    fn meta_set_of(&mut self, key: usize, text: &str, flags: Flags, mut value: Vec<u8>) -> Command {
        let is_long =
            flags.iter().flatten().any(|piece| matches!(piece, Piece::Bytes(b) if b.len() > 20));
        if is_long {
            value.truncate(TORN_BYTES_MAX);
        }
        let is_wrong = value.len() < TORN_BYTES_MAX && self.random.percent(15);
        let declared =
            if is_wrong { self.wrong_size(value.len()) } else { value.len().to_string() };
        let mut command = self.meta("ms", key, format!("ms {text} {declared}"), flags, 20);
        value.extend_from_slice(b"\r\n");
        command.pieces.push(Piece::Bytes(value));
        command.is_marked = true;
        command.is_filled = is_wrong;
        command
    }

    pub(super) fn meta_delete(&mut self) -> Command {
        let mut flags = Vec::new();
        let (key, text) = self.meta_key(&mut flags);
        self.common_flags(&mut flags, "kO");
        self.chosen_cas(&mut flags);
        if self.random.percent(25) {
            flags.push(flag(" x"));
            if self.random.percent(30) {
                let number = self.number();
                self.number_flag(&mut flags, 'F', number);
            }
        }
        if self.random.percent(30) {
            let cas = self.cas(key);
            flags.push(vec![Piece::Bytes(b" C".to_vec()), cas]);
        }
        if self.random.percent(85) {
            flags.push(flag(" I"));
            if self.random.percent(2) {
                flags.push(flag(" I"));
            }
            self.stale = Some(key);
        }
        if self.random.percent(35) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'T', ttl);
        }
        if self.random.percent(4) {
            return line_of("md", "md\r\n", false);
        }
        let head = format!("md {text}");
        self.meta("md", key, head, flags, 20)
    }

    pub(super) fn meta_arithmetic(&mut self) -> Command {
        let mut flags = Vec::new();
        let (key, text) = self.meta_key(&mut flags);
        self.common_flags(&mut flags, "ctvkO");
        self.chosen_cas(&mut flags);
        if self.random.percent(30) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'N', ttl);
        }
        if self.random.percent(20) {
            let number = self.number();
            self.number_flag(&mut flags, 'J', number);
        }
        if self.random.percent(30) {
            let number = self.number();
            self.number_flag(&mut flags, 'D', number);
        }
        if self.random.percent(12) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'T', ttl);
        }
        if self.random.percent(30) {
            let mode = self.random.pick(&["I", "D", "+", "-", "I", "D", "x", "II"]);
            self.number_flag(&mut flags, 'M', (*mode).to_string());
        }
        if self.random.percent(30) {
            let cas = self.cas(key);
            flags.push(vec![Piece::Bytes(b" C".to_vec()), cas]);
        }
        if self.random.percent(3) {
            return line_of("ma", "ma\r\n", false);
        }
        let head = format!("ma {text}");
        let command = self.meta("ma", key, head, flags, 30);
        Command { is_fenced: true, ..command }
    }
}
