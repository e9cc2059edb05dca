//! Requests of clients that behave.

use mbal_model::{MapVersion, ReplicaVersion};

use super::copies::{HOT_WAKES_PERCENT, HOT_WRITES_PERCENT};
use super::dice::Dice;
use super::history::{ALL_KEYS, Asks, History, Kind, When};
use super::profile::Profile;
use super::replies::Form;
use super::values;

/// A request's reply, and what it asks of which key.
pub struct Composed {
    pub form: Form,
    pub asks: Vec<(usize, Asks)>,
}

pub struct Composer<'a> {
    pub dice: &'a mut Dice,
    pub history: &'a mut History,
    pub profile: &'a Profile,
    /// The cas of each key that this client saw last; 0 is none.
    pub seen: &'a [u64],
    /// Keys that belong on this connection.
    pub keys: &'a [usize],
    /// The ownership that a smart client knows.
    pub version: Option<MapVersion>,
    pub out: &'a mut Vec<u8>,
}

const KEYS_AT_ONCE: u64 = 12;

impl Composer<'_> {
    /// Appends one request (or two, where a quiet one needs a fence).
    pub fn compose(&mut self) -> Composed {
        if self.dice.below(300) == 0 {
            return self.flush();
        }
        if let Some(hot) = &self.profile.hot {
            let hot = self.dice.pick(&hot.keys);
            if self.keys.contains(&hot) && self.dice.percent(HOT_WAKES_PERCENT) {
                return self.hot(hot);
            }
        }
        if self.profile.tight && self.dice.percent(30) {
            self.fill();
        }
        if let Some(version) = self.version.filter(|_| self.dice.percent(3)) {
            self.line(&format!("config get mbal {version}"));
            return Composed { form: Form::Config, asks: Vec::new() };
        }
        // Some keys are asked for more than others.
        let keys = self.keys.len();
        let key = self.keys[self.dice.below(keys).min(self.dice.below(keys))];
        match (self.dice.below(100), self.profile.keys[key].kind) {
            (0..12, _) => self.get_several(),
            (12..30, _) => self.get(key, false),
            (30..42, _) => self.meta_get(key),
            (42..46, _) => self.get(key, true),
            (46..50, _) => self.touch(key),
            (50..54, _) => self.delete(key),
            (54..57, _) => self.get_and_touch(key),
            (_, Kind::Register) => self.change_register(key),
            (percent, Kind::Log) if percent < 90 => self.append(key),
            (percent, Kind::Number) if percent < 90 => self.increment(key),
            (_, _) => self.base(key),
        }
    }

    /// A request for a hot key: mostly it is read.
    pub fn hot(&mut self, key: usize) -> Composed {
        if self.dice.percent(HOT_WRITES_PERCENT) {
            return self.change(key);
        }
        match self.dice.below(4) {
            0 => self.get(key, false),
            1 => self.get(key, true),
            _ => self.meta_read(key, self.l_token()),
        }
    }

    fn change(&mut self, key: usize) -> Composed {
        match (self.dice.below(10), self.profile.keys[key].kind) {
            (0, _) => self.delete(key),
            (1, _) => self.touch(key),
            (_, Kind::Register) => self.change_register(key),
            (percent, Kind::Log) if percent < 8 => self.append(key),
            (percent, Kind::Number) if percent < 8 => self.increment(key),
            (_, _) => self.base(key),
        }
    }

    /// A read that a copy may answer.
    fn meta_read(&mut self, key: usize, token: String) -> Composed {
        let kind = self.profile.keys[key].kind;
        let line = format!("mg {} v c{token}", self.name(key));
        self.line(&line);
        Composed { form: Form::Meta { kind }, asks: vec![(key, Asks::Read)] }
    }

    /// ... and of which the client knows that one is where it asks, which is to be no older than what it has seen.
    pub fn read_by_lease(&mut self, key: usize, seen: ReplicaVersion) -> Composed {
        let token = format!("{}*{seen}", self.l_token());
        let kind = self.profile.keys[key].kind;
        Composed { form: Form::Copy { kind }, ..self.meta_read(key, token) }
    }

    fn line(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// What a smart client adds to a meta command.
    fn l_token(&self) -> String {
        self.version.map(|version| format!(" L{version}")).unwrap_or_default()
    }

    fn name(&self, key: usize) -> &str {
        &self.profile.keys[key].name
    }

    fn flush(&mut self) -> Composed {
        // Servers' clocks differ: a copy may be read a moment after its home was flushed.
        let delay = if self.profile.hot.is_some() { 0 } else { self.dice.pick(&[0, 0, 1, 2]) };
        let line = if delay == 0 { "flush_all".to_owned() } else { format!("flush_all {delay}") };
        self.line(&line);
        Composed { form: Form::Line, asks: vec![(ALL_KEYS, Asks::Flush { delay })] }
    }

    /// Items that nobody asks for, so that memory gets short.
    fn fill(&mut self) {
        let (name, bytes) = (self.dice.below(200), self.dice.between(8_000..=15_000) as usize);
        self.line(&format!("set filling{name} 0 0 {bytes} noreply"));
        self.out.resize(self.out.len() + bytes, b'f');
        self.line("");
    }

    fn values(&mut self, keys: Vec<usize>, command: &str, cas: bool, asks: Asks) -> Composed {
        let names: Vec<&str> = keys.iter().map(|key| self.name(*key)).collect();
        let line = format!("{command} {}", names.join(" "));
        let named = |key: &usize| {
            let key = &self.profile.keys[*key];
            (key.kind, key.name.clone())
        };
        let form = Form::Values { keys: keys.iter().map(named).collect(), cas };
        self.line(&line);
        Composed { form, asks: keys.into_iter().map(|key| (key, asks)).collect() }
    }

    pub fn get(&mut self, key: usize, cas: bool) -> Composed {
        self.values(vec![key], if cas { "gets" } else { "get" }, cas, Asks::Read)
    }

    fn get_several(&mut self) -> Composed {
        let mut keys = self.keys.to_vec();
        self.dice.shuffle(&mut keys);
        let most = if self.profile.long { 2 * KEYS_AT_ONCE } else { KEYS_AT_ONCE };
        keys.truncate(self.dice.between(2..=most) as usize);
        self.values(keys, "get", false, Asks::Read)
    }

    fn get_and_touch(&mut self, key: usize) -> Composed {
        let exptime = self.exptime();
        self.values(vec![key], &format!("gats {exptime}"), true, Asks::Touch { exptime })
    }

    fn meta_get(&mut self, key: usize) -> Composed {
        let kind = self.profile.keys[key].kind;
        let line = format!("mg {} v c t{}", self.name(key), self.l_token());
        self.line(&line);
        Composed { form: Form::Meta { kind }, asks: vec![(key, Asks::Read)] }
    }

    fn exptime(&mut self) -> i32 {
        match self.dice.below(10) {
            0 => 1,
            1 => 2,
            2 => 4,
            3 => -1,
            _ => 0,
        }
    }

    fn touch(&mut self, key: usize) -> Composed {
        let exptime = self.exptime();
        let line = format!("touch {} {exptime}", self.name(key));
        self.one(key, &line, Form::Line, Asks::Touch { exptime })
    }

    fn one(&mut self, key: usize, line: &str, form: Form, asks: Asks) -> Composed {
        self.line(line);
        Composed { form, asks: vec![(key, asks)] }
    }

    fn delete(&mut self, key: usize) -> Composed {
        let kind = self.profile.keys[key].kind;
        let name = self.name(key).to_owned();
        match self.dice.below(3) {
            0 => self.one(key, &format!("delete {name} noreply"), Form::Silent, Asks::Delete),
            1 => self.one(
                key,
                &format!("md {name}{}", self.l_token()),
                Form::Meta { kind },
                Asks::Delete,
            ),
            _ => self.one(key, &format!("delete {name}"), Form::Line, Asks::Delete),
        }
    }

    /// Bytes of a new value: a few sizes, so that many overwrite in place.
    fn value_bytes(&mut self) -> usize {
        let max = self.profile.value_bytes_max;
        match self.dice.below(4) {
            0 => 40,
            1 => 100,
            2 => self.dice.skewed(16..=max) as usize,
            _ if self.dice.percent(4) => self.profile.item_bytes_max + 1,
            _ => (max / 2) as usize,
        }
    }

    fn change_register(&mut self, key: usize) -> Composed {
        let when = match self.dice.below(12) {
            0 => When::Absent,
            1 => When::Present,
            2..=4 if self.seen[key] != 0 => When::Unchanged(self.seen[key]),
            _ => When::Always,
        };
        let bytes = self.value_bytes();
        self.store(key, when, bytes)
    }

    /// What logs and numbers begin with.
    fn base(&mut self, key: usize) -> Composed {
        let when = self.dice.pick(&[When::Absent, When::Absent, When::Always]);
        self.store(key, when, 0)
    }

    fn store(&mut self, key: usize, when: When, bytes: usize) -> Composed {
        let tag = self.history.next_tag();
        let exptime = if self.dice.percent(30) { self.exptime() } else { 0 };
        let kind = self.profile.keys[key].kind;
        let bytes = values::length(kind, tag, bytes);
        let name = self.name(key).to_owned();
        // A value that is too long is refused in any case, with an answer.
        let quiet = when == When::Always && bytes < self.profile.item_bytes_max / 2;
        let (line, form) = match (self.dice.below(5), when) {
            (0, When::Always) if quiet => {
                (format!("set {name} 0 {exptime} {bytes} noreply"), Form::Silent)
            }
            (1, When::Always) if quiet => (
                format!("ms {name} {bytes} q T{exptime}{}", self.l_token()),
                Form::QuietMeta { kind },
            ),
            (0 | 1, When::Unchanged(cas)) => {
                (format!("cas {name} 5 {exptime} {bytes} {cas}"), Form::Line)
            }
            (0..=2, When::Always) => (format!("set {name} 5 {exptime} {bytes}"), Form::Line),
            (0..=2, When::Absent) => (format!("add {name} 0 {exptime} {bytes}"), Form::Line),
            (0..=2, When::Present) => (format!("replace {name} 0 {exptime} {bytes}"), Form::Line),
            (_, when) => {
                let condition = match when {
                    When::Always => String::new(),
                    When::Absent => " ME".to_owned(),
                    When::Present => " MR".to_owned(),
                    When::Unchanged(cas) => format!(" C{cas}"),
                };
                (
                    format!("ms {name} {bytes} c T{exptime}{condition}{}", self.l_token()),
                    Form::Meta { kind },
                )
            }
        };
        self.line(&line);
        values::write(kind, tag, bytes, self.out);
        self.out.extend_from_slice(b"\r\n");
        if matches!(form, Form::QuietMeta { .. }) {
            self.line("mn");
        }
        Composed { form, asks: vec![(key, Asks::Store { tag, exptime, when })] }
    }

    fn append(&mut self, key: usize) -> Composed {
        let tag = self.history.next_tag();
        let value = values::appended(tag);
        let kind = self.profile.keys[key].kind;
        let (name, bytes) = (self.name(key).to_owned(), value.len());
        let (line, form) = match self.dice.below(4) {
            0 => (format!("append {name} 0 0 {bytes} noreply"), Form::Silent),
            1 => (format!("append {name} 0 0 {bytes}"), Form::Line),
            _ => (format!("ms {name} {bytes} c MA{}", self.l_token()), Form::Meta { kind }),
        };
        self.line(&line);
        self.out.extend_from_slice(&value);
        self.out.extend_from_slice(b"\r\n");
        Composed { form, asks: vec![(key, Asks::Append { tag })] }
    }

    fn increment(&mut self, key: usize) -> Composed {
        let kind = self.profile.keys[key].kind;
        let name = self.name(key).to_owned();
        match self.dice.below(4) {
            0 => self.one(key, &format!("incr {name} 1 noreply"), Form::Silent, Asks::Increment),
            1 => self.one(key, &format!("incr {name} 1"), Form::Number, Asks::Increment),
            _ => self.one(
                key,
                &format!("ma {name} v c{}", self.l_token()),
                Form::Meta { kind },
                Asks::Increment,
            ),
        }
    }
}
