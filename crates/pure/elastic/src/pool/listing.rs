//! A server's items as `lru_crawler metadump` lists them.

use crate::Age;
use mbal_routing::ketama::KeyHash;

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Decoded.
    pub key: Vec<u8>,
    /// By the server's clock, in seconds since 1970; `None` is never.
    pub expires: Option<u64>,
    /// Likewise.
    pub last_access: u64,
    pub cas: u64,
    /// With header, key and value.
    pub bytes: u64,
}

/// One item of a listing.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    key_at: u64,
    key_len: u8,
    /// On the ring of the clients.
    pub place: u32,
    pub age: Age,
    pub bytes: u32,
}

/// The items of a server, and their keys behind each other: 24 bytes an item and its key.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    keys: Vec<u8>,
    items: Vec<Listed>,
}

impl Line {
    /// `key=... exp=... la=... cas=... fetch=... cls=... size=...`, without its end; `None` if it is no such line. Fields that
    /// later versions may add are passed over.
    pub fn parse(line: &[u8]) -> Option<Line> {
        let mut parsed = Line { key: vec![], expires: None, last_access: 0, cas: 0, bytes: 0 };
        let mut seen = 0;
        for field in line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()) {
            let end = field.iter().position(|&byte| byte == b'=')?;
            let (name, value) = (&field[..end], &field[end + 1..]);
            let number = || std::str::from_utf8(value).ok()?.parse::<i64>().ok();
            match name {
                b"key" => parsed.key = decoded(value)?,
                b"exp" => parsed.expires = u64::try_from(number()?).ok(),
                b"la" => parsed.last_access = u64::try_from(number()?).ok()?,
                b"cas" => parsed.cas = std::str::from_utf8(value).ok()?.parse().ok()?,
                b"size" => parsed.bytes = u64::try_from(number()?).ok()?,
                _ => continue,
            }
            seen += 1;
        }
        (seen == 5 && !parsed.key.is_empty() && parsed.key.len() <= 255).then_some(parsed)
    }
}

/// Without the percent signs of URIs.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            key.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            key.push(*first);
            rest = after;
        }
    }
    Some(key)
}

impl Listing {
    /// Adds an item. `now` is the moment from which ages count, by the server's clock; what has been read since is of age 0, and
    /// what has expired is left out.
    pub fn push(&mut self, line: &Line, now: u64, hash: KeyHash) {
        if line.expires.is_some_and(|expires| expires <= now) {
            return;
        }
        let age = now.saturating_sub(line.last_access);
        self.items.push(Listed {
            key_at: self.keys.len() as u64,
            key_len: line.key.len() as u8,
            place: hash.place(&line.key),
            age: Age::try_from(age).unwrap_or(Age::MAX),
            bytes: u32::try_from(line.bytes).unwrap_or(u32::MAX),
        });
        self.keys.extend_from_slice(&line.key);
    }

    /// Youngest first, as planning wants it.
    pub fn sort(&mut self) {
        self.items.sort_by_key(|item| item.age);
    }

    pub fn items(&self) -> &[Listed] {
        &self.items
    }

    pub fn key(&self, item: &Listed) -> &[u8] {
        &self.keys[item.key_at as usize..][..usize::from(item.key_len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_memcached() {
        let line = b"key=caf%C3%A9%20%25 exp=-1 la=1795623754 cas=18446744073709551615 fetch=yes cls=6 size=260";
        let parsed = Line {
            key: "café %".into(),
            expires: None,
            last_access: 1_795_623_754,
            cas: u64::MAX,
            bytes: 260,
        };
        assert_eq!(Line::parse(line), Some(parsed.clone()));
        let later = [&line[..], b" ext_page=3 ext_offset=7"].concat();
        assert_eq!(Line::parse(&later), Some(parsed));
    }

    #[test]
    fn what_is_no_line_is_none() {
        for wrong in [
            &b""[..],
            b"END\r",
            b"key=a exp=-1 la=1 cas=1 fetch=no cls=1",
            b"key= exp=-1 la=1 cas=1 fetch=no cls=1 size=60",
            b"key=%4 exp=-1 la=1 cas=1 fetch=no cls=1 size=60",
            b"key=%zz exp=-1 la=1 cas=1 fetch=no cls=1 size=60",
            b"key=a exp=-1 la=x cas=1 fetch=no cls=1 size=60",
        ] {
            assert_eq!(Line::parse(wrong), None, "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn ages_are_of_one_moment_and_expired_items_are_left_out() {
        let mut listing = Listing::default();
        for (key, last_access, expires) in [
            ("old", 10, None),
            ("read since", 101, None),
            ("expired", 90, Some(100)),
            ("expires", 90, Some(101)),
        ] {
            let line = Line { key: key.into(), expires, last_access, cas: 1, bytes: 60 };
            listing.push(&line, 100, KeyHash::Md5);
        }
        listing.sort();
        let told: Vec<_> =
            listing.items().iter().map(|item| (listing.key(item), item.age)).collect();
        assert_eq!(told, [(&b"read since"[..], 0), (b"expires", 10), (b"old", 90)]);
    }
}
