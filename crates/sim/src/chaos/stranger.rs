//! Bytes of strangers: requests with something broken, and noise.

use super::dice::Dice;

const REQUESTS: &[&[u8]] = &[
    b"get s1 s2 s3\r\n",
    b"gets s1\r\n",
    b"gat 10 s1 s2\r\n",
    b"set s1 0 0 5\r\nhello\r\n",
    b"set s2 1 -1 70000 noreply\r\n",
    b"set s3 0 0 4294967295\r\n",
    b"append s1 0 0 3\r\nabc\r\n",
    b"cas s1 0 0 2 18446744073709551615\r\nxy\r\n",
    b"incr s1 18446744073709551616\r\n",
    b"decr s1 1\r\n",
    b"delete s1 0 noreply\r\n",
    b"touch s1 99999999999\r\n",
    b"mg s1 v c f h k l t O0123456789 q L1.1\r\n",
    b"mg czE= b v k\r\n",
    b"mg s4 N30 R10 T-1 v\r\n",
    b"ms s1 5 c T0 F5 I MS O9\r\nhello\r\n",
    b"ms czI= 2 b ME\r\nhi\r\n",
    b"ms s1 S100\r\n",
    b"md s1 q I T5 C7\r\n",
    b"ma s5 N0 J13 D2 MD v t c\r\n",
    b"me s1\r\n",
    b"me czE= b\r\n",
    b"mn\r\n",
    b"stats\r\n",
    b"stats settings\r\n",
    b"stats items\r\n",
    b"stats slabs\r\n",
    b"stats cachedump 1 1\r\n",
    b"stats detail on\r\n",
    b"stats detail dump\r\n",
    b"verbosity 1\r\n",
    b"version\r\n",
    b"cache_memlimit 1\r\n",
    b"shutdown\r\n",
    b"lru_crawler metadump all\r\n",
    b"config get mbal 1.1\r\n",
    b"quit\r\n",
    b"\r\n",
    b"\x80\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00s1",
    b"\x80\x01\x00\x02\x08\x00\x00\x01\x00\x00\x00\x0f\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
];

/// A few requests, most of them with a byte changed, lost or doubled.
pub fn noise(dice: &mut Dice) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..dice.between(1..=6) {
        let mut request = dice.pick(REQUESTS).to_vec();
        for _ in 0..dice.below(4) {
            spoil(dice, &mut request);
        }
        bytes.extend_from_slice(&request);
    }
    if dice.percent(3) {
        bytes.resize(bytes.len() + dice.pick(&[2_100, 9_000]), b'x');
    }
    spare_the_others(&mut bytes);
    bytes
}

/// What is allowed to a stranger and would disturb the others: binary `flush`.
fn spare_the_others(bytes: &mut [u8]) {
    const MAGIC: u8 = 0x80;
    for at in 0..bytes.len() {
        if bytes[at] == MAGIC && matches!(bytes.get(at + 1), None | Some(0x08 | 0x18)) {
            bytes[at] = b'?';
        }
    }
}

fn spoil(dice: &mut Dice, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = dice.below(bytes.len());
    match dice.below(6) {
        0 => bytes[at] ^= 1 << dice.below(8),
        1 => bytes[at] = dice.pick(b"\r\n \0=9-Lbqv\xff"),
        2 => drop(bytes.remove(at)),
        3 => bytes.insert(at, dice.pick(b"\r\n \0=9-Lbqv\xff")),
        4 => bytes.truncate(at),
        _ => {
            let rest = bytes[at..].to_vec();
            bytes.extend_from_slice(&rest);
        }
    }
}
