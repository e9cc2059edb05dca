//! Conformance scripts: requests and expected replies with remarks between.
//!
//! ```text
//! # A remark; the first one cites the paragraph of protocol.txt.
//! flags -I 2m          the server's extra flags; `{here}` is the script's folder
//! whole                depends on how bytes arrive, so not run a byte at a time
//! > get a              a request line; `\r\n` follows, unless the line ends in a lone `\`
//! < END                an expected line, to the byte
//! <* STAT {*} {**}     any number of such lines
//! b> get a             the same on a second connection, which opens when first named
//! wait 2               seconds pass
//! finish b             end of file from the client's side
//! closed b             the server closes, having sent nothing more
//! hangup b             the client closes; nothing is expected
//! ```
//!
//! In a line: `\r \n \t \0 \\ \{ \$ \xNN` are bytes; `{k*251}` is 251 times `k`; `$name` a cas, learnt
//! where it is first expected. In an expected line also: `{*}` any word, `{**}` the rest of the line,
//! `{99~1}` a number within 1 of 99, `{a|b}` one of several.

/// A connection's name in a script; the unnamed one is "".
pub type Name = String;

#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub flags: Vec<String>,
    pub whole: bool,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// Line in the file, for messages.
    pub line: usize,
    pub conn: Name,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    Send(Vec<Atom>),
    Expect { pattern: Vec<Atom>, many: bool },
    Wait(u32),
    Finish,
    Closed,
    Hangup,
}

/// A piece of a request or of an expected line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Atom {
    Bytes(Vec<u8>),
    /// A cas by name.
    Cas(String),
    Word,
    Rest,
    Near(i64, i64),
    OneOf(Vec<Vec<u8>>),
}

impl Script {
    pub fn parse(name: &str, text: &str) -> Result<Script, String> {
        let mut script =
            Script { name: name.to_string(), flags: Vec::new(), whole: false, steps: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            script
                .parse_line(index + 1, line)
                .map_err(|error| format!("{name}:{}: {error}", index + 1))?;
        }
        Ok(script)
    }

    fn parse_line(&mut self, line: usize, text: &str) -> Result<(), String> {
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let mut push = |conn: &str, what| {
            self.steps.push(Step { line, conn: conn.to_string(), what });
            Ok(())
        };
        match word {
            "flags" => self.flags.extend(rest.split_whitespace().map(str::to_string)),
            "whole" => self.whole = true,
            "wait" => {
                let seconds =
                    rest.parse().map_err(|_| format!("{rest:?} is no time in seconds"))?;
                return push("", What::Wait(seconds));
            }
            "finish" => return push(rest, What::Finish),
            "closed" => return push(rest, What::Closed),
            "hangup" => return push(rest, What::Hangup),
            _ => {
                if let Some(conn) = word.strip_suffix("<*") {
                    return push(conn, What::Expect { pattern: atoms(rest)?, many: true });
                }
                if let Some(conn) = word.strip_suffix('<') {
                    return push(conn, What::Expect { pattern: atoms(rest)?, many: false });
                }
                if let Some(conn) = word.strip_suffix('>') {
                    return push(conn, What::Send(atoms(rest)?));
                }
                return Err(format!("{word:?} begins no line that a script knows"));
            }
        }
        Ok(())
    }
}

/// The pieces of one line, its `\r\n` included.
fn atoms(text: &str) -> Result<Vec<Atom>, String> {
    let mut atoms = Vec::new();
    let mut plain = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut ends_line = true;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if at + 1 == bytes.len() => {
                ends_line = false;
                at += 1;
            }
            b'\\' => {
                let (byte, length) = escape(&bytes[at + 1..])?;
                plain.push(byte);
                at += 1 + length;
            }
            b'$' => {
                let name: String = text[at + 1..]
                    .chars()
                    .take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
                    .collect();
                if name.is_empty() {
                    return Err("a name follows `$`".to_string());
                }
                at += 1 + name.len();
                flush(&mut plain, &mut atoms);
                atoms.push(Atom::Cas(name));
            }
            b'{' => {
                let end = text[at..].find('}').ok_or("`{` without `}`")? + at;
                let inside = &text[at + 1..end];
                at = end + 1;
                if let Some((byte, count)) = repeated(inside) {
                    plain.resize(plain.len() + count, byte);
                } else {
                    flush(&mut plain, &mut atoms);
                    atoms.push(pattern(inside)?);
                }
            }
            byte => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    if ends_line {
        plain.extend_from_slice(b"\r\n");
    }
    flush(&mut plain, &mut atoms);
    Ok(atoms)
}

fn flush(plain: &mut Vec<u8>, atoms: &mut Vec<Atom>) {
    if !plain.is_empty() {
        atoms.push(Atom::Bytes(std::mem::take(plain)));
    }
}

/// The byte that an escape stands for, and the length of the escape after its backslash.
fn escape(rest: &[u8]) -> Result<(u8, usize), String> {
    match rest[0] {
        b'r' => Ok((b'\r', 1)),
        b'n' => Ok((b'\n', 1)),
        b't' => Ok((b'\t', 1)),
        b'0' => Ok((0, 1)),
        byte @ (b'\\' | b'{' | b'$') => Ok((byte, 1)),
        b'x' => rest
            .get(1..3)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .map(|byte| (byte, 3))
            .ok_or_else(|| "two hexadecimal digits follow `\\x`".to_string()),
        other => Err(format!("`\\{}` stands for nothing", char::from(other))),
    }
}

fn repeated(inside: &str) -> Option<(u8, usize)> {
    let (byte, count) = inside.split_once('*')?;
    let [byte] = byte.as_bytes() else { return None };
    Some((*byte, count.parse().ok()?))
}

fn pattern(inside: &str) -> Result<Atom, String> {
    if inside == "*" {
        return Ok(Atom::Word);
    }
    if inside == "**" {
        return Ok(Atom::Rest);
    }
    if let Some((number, tolerance)) = inside.split_once('~') {
        let number = number.parse().map_err(|_| format!("{number:?} is no number"))?;
        let tolerance = tolerance.parse().map_err(|_| format!("{tolerance:?} is no number"))?;
        return Ok(Atom::Near(number, tolerance));
    }
    if inside.contains('|') {
        return Ok(Atom::OneOf(inside.split('|').map(|word| word.as_bytes().to_vec()).collect()));
    }
    Err(format!("{{{inside}}} is no pattern"))
}

/// Writes bytes as a script's line would name them.
pub fn quoted(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        let run = bytes[at..].iter().take_while(|other| **other == byte).count();
        if run > 24 && byte.is_ascii_alphanumeric() {
            text.push_str(&format!("{{{}*{run}}}", char::from(byte)));
            at += run;
            continue;
        }
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\\' => text.push_str("\\\\"),
            b'{' => text.push_str("\\{"),
            b'$' => text.push_str("\\$"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
        at += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_line_ends_itself_unless_told_not_to() {
        assert_eq!(atoms("get a").unwrap(), [Atom::Bytes(b"get a\r\n".to_vec())]);
        assert_eq!(atoms("get a\\").unwrap(), [Atom::Bytes(b"get a".to_vec())]);
        assert_eq!(atoms("a\\x00\\r").unwrap(), [Atom::Bytes(b"a\0\r\r\n".to_vec())]);
    }

    #[test]
    fn an_expected_line_knows_its_patterns() {
        assert_eq!(
            atoms("{k*3} t{9~1} c$one {*} {a|b}\\").unwrap(),
            [
                Atom::Bytes(b"kkk t".to_vec()),
                Atom::Near(9, 1),
                Atom::Bytes(b" c".to_vec()),
                Atom::Cas("one".to_string()),
                Atom::Bytes(b" ".to_vec()),
                Atom::Word,
                Atom::Bytes(b" ".to_vec()),
                Atom::OneOf(vec![b"a".to_vec(), b"b".to_vec()]),
            ]
        );
    }

    #[test]
    fn a_line_that_means_nothing_is_refused_with_its_number() {
        let error = Script::parse("x.txt", "> get a\n= END\n").unwrap_err();
        assert_eq!(error, "x.txt:2: \"=\" begins no line that a script knows");
    }

    #[test]
    fn quoted_bytes_parse_back() {
        let bytes: Vec<u8> = (0..=255).chain([b'k'; 30]).collect();
        let line = format!("{}\\", quoted(&bytes));
        assert_eq!(atoms(&line).unwrap(), [Atom::Bytes(bytes)]);
    }
}
