//! Numbers as memcached reads and writes them.
//!
//! Most words of a request are digits and nothing else ([`word_u32`], [`word_u64`], [`word_i32`]). The flags and
//! the exptime of the storage commands, and the values that are counted, follow C's `strtol` family: white space
//! and a sign may lead, white space may end the number and hide whatever follows it, and 32-bit targets take the
//! low bits of a 64-bit result.

/// memcached reads no more digits than this, leading zeros and the sign included.
const WORD_32_BYTES_MAX: usize = 11;
const WORD_64_BYTES_MAX: usize = 22;

/// Digits and nothing else, up to 2^64 − 1.
#[inline]
pub fn word_u64(word: &[u8]) -> Option<u64> {
    if word.is_empty() || word.len() > WORD_64_BYTES_MAX {
        return None;
    }
    word.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(digit.into()) }
    })
}

/// Digits and nothing else, up to 2^32 − 1.
pub fn word_u32(word: &[u8]) -> Option<u32> {
    let word = Some(word).filter(|word| word.len() <= WORD_32_BYTES_MAX)?;
    word_u64(word)?.try_into().ok()
}

/// Digits, perhaps behind a minus sign, from −2^31 to 2^31 − 1. A sign alone is 0.
#[inline]
pub fn word_i32(word: &[u8]) -> Option<i32> {
    if word.len() > WORD_32_BYTES_MAX {
        return None;
    }
    match word {
        b"-" => Some(0),
        [b'-', digits @ ..] => {
            i64::try_from(word_u64(digits)?).ok()?.checked_neg()?.try_into().ok()
        }
        digits => word_u64(digits)?.try_into().ok(),
    }
}

struct Digits {
    magnitude: u64,
    negative: bool,
}

/// C's `isspace` in the C locale.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

fn digits(text: &[u8]) -> Option<Digits> {
    let mut at = 0;
    while at < text.len() && is_space(text[at]) {
        at += 1;
    }
    let negative = text.get(at) == Some(&b'-');
    if negative || text.get(at) == Some(&b'+') {
        at += 1;
    }
    let first = at;
    let mut magnitude: u64 = 0;
    while let Some(digit) = text.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|d| *d < 10) {
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit))?;
        at += 1;
    }
    let ends = text.get(at).is_none_or(|byte| is_space(*byte) || *byte == 0);
    (first < at && ends).then_some(Digits { magnitude, negative })
}

/// Up to 2^64 − 1. A negative number wraps around, and is refused where the result would have the
/// highest bit set.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    let digits = digits(text)?;
    let value = if digits.negative { digits.magnitude.wrapping_neg() } else { digits.magnitude };
    if (value as i64) < 0 && digits.negative {
        return None;
    }
    Some(value)
}

/// The digit that most flags and exptimes are: a 0.
#[inline(always)]
fn one_digit(text: &[u8]) -> Option<u8> {
    match text {
        [digit @ b'0'..=b'9'] => Some(digit - b'0'),
        _ => None,
    }
}

/// The low 32 bits of what [`parse_u64`] accepts.
#[inline]
pub fn parse_u32(text: &[u8]) -> Option<u32> {
    if let Some(digit) = one_digit(text) {
        return Some(digit.into());
    }
    parse_u64(text).map(|value| value as u32)
}

/// The low 32 bits of a number from −2^63 to 2^63 − 1.
#[inline]
pub fn parse_i32(text: &[u8]) -> Option<i32> {
    if let Some(digit) = one_digit(text) {
        return Some(digit.into());
    }
    let digits = digits(text)?;
    let value = i128::from(digits.magnitude) * if digits.negative { -1 } else { 1 };
    i64::try_from(value).ok().map(|value| value as i32)
}

/// A fraction as `strtod` reads it, in decimal or hexadecimal; white space before it and what follows white space or
/// a zero byte are ignored.
pub(crate) fn parse_f64(text: &[u8]) -> Option<f64> {
    let text = &text[text.iter().position(|byte| !is_space(*byte))?..];
    let end = text.iter().position(|byte| is_space(*byte) || *byte == 0).unwrap_or(text.len());
    let text = std::str::from_utf8(&text[..end]).ok()?;
    let value = text.parse().ok().or_else(|| parse_hexadecimal(text))?;
    // Too large a number is none; `inf` is one.
    let overflows = f64::is_infinite(value) && text.contains(|c: char| c.is_ascii_digit());
    (!overflows).then_some(value)
}

/// `-0x1.8p3`.
fn parse_hexadecimal(text: &str) -> Option<f64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let text = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let (digits, exponent) = match text.split_once(['p', 'P']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.len() + fraction.len() == 0 {
        return None;
    }
    let add = |sum: f64, digit: char| Some(sum * 16.0 + f64::from(digit.to_digit(16)?));
    let sum = whole.chars().chain(fraction.chars()).try_fold(0.0, add)?;
    let shift = exponent.saturating_sub(4 * i32::try_from(fraction.len()).ok()?);
    Some(sign * sum * 2f64.powi(shift))
}

const PAIRS: &[u8; 200] = b"00010203040506070809101112131415161718192021222324252627282930313233\
343536373839404142434445464748495051525354555657585960616263646566676869707172737475767778798081\
828384858687888990919293949596979899";

/// Appends `value` in decimal.
#[inline]
pub fn push_u64(out: &mut Vec<u8>, mut value: u64) {
    if value < 10 {
        out.push(b'0' + value as u8);
        return;
    }
    if value < 100 {
        let pair = value as usize * 2;
        out.extend_from_slice(&PAIRS[pair..pair + 2]);
        return;
    }
    let mut buffer = [0; 20];
    let mut at = buffer.len();
    while value >= 100 {
        let pair = (value % 100) as usize * 2;
        value /= 100;
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if value >= 10 {
        let pair = value as usize * 2;
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else {
        at -= 1;
        buffer[at] = b'0' + value as u8;
    }
    out.extend_from_slice(&buffer[at..]);
}

/// Appends `value` in decimal.
pub fn push_i64(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    push_u64(out, value.unsigned_abs());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers_follow_strtoull() {
        for (text, value) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            (" +7", Some(7)),
            ("7\tx", Some(7)),
            ("7 x", Some(7)),
            ("7x", None),
            ("", None),
            ("-", None),
            ("-1", None),
            ("-18446744073709551615", Some(1)),
            ("18446744073709551615\t-", Some(u64::MAX)),
            ("0000000000000000000000000000012", Some(12)),
        ] {
            assert_eq!(parse_u64(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn words_are_digits_alone() {
        for (word, value) in [
            ("0", Some(0)),
            ("0000000000000000000012", Some(12)),
            ("00000000000000000000012", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("-", None),
            ("+7", None),
            ("7\t", None),
            ("7\0", None),
        ] {
            assert_eq!(word_u64(word.as_bytes()), value, "{word:?}");
        }
        assert_eq!(word_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(word_u32(b"4294967296"), None);
        assert_eq!(word_u32(b"000000000012"), None);
        for (word, value) in [
            ("2147483647", Some(i32::MAX)),
            ("2147483648", None),
            ("-2147483648", Some(i32::MIN)),
            ("-2147483649", None),
            ("00000000001", Some(1)),
            ("-00000000001", None),
            ("-", Some(0)),
            ("-0", Some(0)),
            ("", None),
            ("--1", None),
        ] {
            assert_eq!(word_i32(word.as_bytes()), value, "{word:?}");
        }
    }

    #[test]
    fn thirty_two_bits_are_the_low_half() {
        assert_eq!(parse_u32(b"4294967296"), Some(0));
        assert_eq!(parse_u32(b"-1"), None);
        assert_eq!(parse_i32(b"4294967297"), Some(1));
        assert_eq!(parse_i32(b"-1"), Some(-1));
        assert_eq!(parse_i32(b"9223372036854775808"), None);
        assert_eq!(parse_i32(b"-9223372036854775808"), Some(0));
    }

    #[test]
    fn fractions_follow_strtod() {
        for (text, value) in [
            (" 0.5 x", Some(0.5)),
            ("1.", Some(1.0)),
            ("1.\0x", Some(1.0)),
            ("0x1", Some(1.0)),
            ("+0x1.8", Some(1.5)),
            ("-0X.8p+1", Some(-1.0)),
            ("0xAp-1", Some(5.0)),
            ("inf", Some(f64::INFINITY)),
            ("1e999", None),
            ("0x1p9999", None),
            ("0x1p", None),
            ("0x", None),
            ("0x.", None),
            ("0x1g", None),
            ("+", None),
            ("", None),
        ] {
            assert_eq!(parse_f64(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let powers = (0..64).map(|bit| 1u64 << bit);
        for value in powers.flat_map(|power| [power - 1, power, power + 1]).chain([u64::MAX]) {
            let mut out = Vec::new();
            push_u64(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
            assert_eq!(parse_u64(&out), Some(value));
        }
    }
}
