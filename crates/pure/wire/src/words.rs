//! The words of a line.

/// A line that has not ended after so many bytes is not a client's, unless it is a `get`.
pub const LINE_BYTES_MAX: usize = 2048;
/// What is said of words that make no command.
pub(crate) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// The first word and what follows it.
#[inline]
pub fn next_word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut start = 0;
    while line.get(start) == Some(&b' ') {
        start += 1;
    }
    let line = &line[start..];
    if line.is_empty() {
        return None;
    }
    match find_blank(line) {
        Some(end) => Some((&line[..end], &line[end + 1..])),
        None => Some((line, &[])),
    }
}

/// Eight bytes at a time: words are short, and a call to `memchr` costs more than that.
#[inline]
pub(crate) fn find_blank(line: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(chunk) = line[at..].first_chunk() {
        if let Some(blank) = blank_in(u64::from_le_bytes(*chunk)) {
            return Some(at + blank);
        }
        at += 8;
    }
    let left = line.len() - at;
    let last = match line.last_chunk() {
        _ if left == 0 => return None,
        Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * left),
        None => few_bytes(line),
    };
    blank_in(last).map(|blank| at + blank)
}

/// The first of eight bytes that is a blank.
#[inline(always)]
fn blank_in(bytes: u64) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([0x01; 8]);
    const TOPS: u64 = u64::from_le_bytes([0x80; 8]);
    // A byte of `other` is zero where there is a blank.
    let other = bytes ^ u64::from_le_bytes([b' '; 8]);
    let blanks = other.wrapping_sub(ONES) & !other & TOPS;
    (blanks != 0).then(|| blanks.trailing_zeros() as usize / 8)
}

/// Fewer than eight bytes, and zeros. Its halves may overlap.
#[inline(always)]
fn few_bytes(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let high = u64::from(u32::from_le_bytes(*last)) << (8 * (bytes.len() - 4));
        return u64::from(u32::from_le_bytes(*first)) | high;
    }
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The words of a line, which blanks part.
pub fn words_of(words: &[u8]) -> impl Iterator<Item = &[u8]> {
    words.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// The words of a line, at most 23 of them; the first is the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens<'a> {
    line: &'a [u8],
    /// 1 to 23.
    pub count: usize,
}

/// memcached's bound on the words of a line (`get` takes as many keys as fit).
pub(crate) const TOKENS_MAX: usize = 23;

impl<'a> Tokens<'a> {
    pub fn new(line: &'a [u8]) -> Tokens<'a> {
        let mut tokens = Tokens { line, count: TOKENS_MAX };
        tokens.count = tokens.iter().count();
        tokens
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.line.split(|byte| *byte == b' ').filter(|token| !token.is_empty()).take(self.count)
    }

    /// The word at `index`, or an empty one.
    pub fn get(&self, index: usize) -> &'a [u8] {
        self.iter().nth(index).unwrap_or_default()
    }

    pub(crate) fn last(&self) -> &'a [u8] {
        self.get(self.count.saturating_sub(1))
    }

    /// What memcached looks at to find out whether an answer is wanted: the last word.
    pub fn noreply(&self) -> bool {
        self.last() == b"noreply"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_is_found_wherever_it_stands() {
        let odd = [0x00, 0x1f, 0x21, 0x7f, 0x80, 0xa0, 0xff];
        for length in 0..40 {
            for at in 0..=length {
                let mut line: Vec<u8> = (0..length).map(|at| odd[at % odd.len()]).collect();
                assert_eq!(find_blank(&line), None);
                line.splice(at..at, *b" x ");
                assert_eq!(find_blank(&line), Some(at));
            }
        }
    }
}
