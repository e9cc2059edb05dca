//! Byte buffers that go round, so that a request allocates nothing.

/// Of new ones: they need not grow with the first few words.
const CAPACITY_MIN: usize = 256;
/// Of those that are kept.
const CAPACITY_MAX: usize = 16 << 10;
const KEPT_MAX: usize = 256;

/// Buffers that nobody uses.
#[derive(Default)]
pub(crate) struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// An empty one.
    #[inline]
    pub fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_else(|| Vec::with_capacity(CAPACITY_MIN))
    }

    #[inline]
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() != 0 && buffer.capacity() <= CAPACITY_MAX && self.0.len() < KEPT_MAX {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

/// Bytes that a socket has not taken.
#[derive(Default)]
pub(crate) struct Output {
    pub bytes: Vec<u8>,
    start: usize,
    /// At the end, bytes that may not leave yet.
    held: usize,
    /// The driver has been told of them.
    pub told: bool,
}

impl Output {
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    #[inline]
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..self.bytes.len() - self.held]
    }

    /// The last `bytes` may not leave yet, after those that may not already.
    #[inline]
    pub fn hold(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// All may leave.
    #[inline]
    pub fn free(&mut self) {
        self.held = 0;
    }

    /// As [`Output::sent`], of one that is filled again at once: it keeps its memory.
    #[inline]
    pub fn passed(&mut self, count: usize) {
        self.start += count;
        if self.start == self.bytes.len() {
            self.start = 0;
            self.bytes.clear();
            self.bytes.shrink_to(CAPACITY_MAX);
        } else if CAPACITY_MAX < self.start && self.bytes.len() < 2 * self.start {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    #[inline]
    pub fn sent(&mut self, count: usize, spare: &mut Spare) {
        if self.start + count == self.bytes.len() {
            self.start = 0;
            spare.give(std::mem::take(&mut self.bytes));
        } else {
            self.passed(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_leaves_in_order() {
        let (mut output, mut spare) = (Output::default(), Spare::default());
        let bytes: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        output.bytes.extend_from_slice(&bytes);
        let mut taken = Vec::new();
        for count in [1, 20_000, 40_000, 30_000, 9_999] {
            taken.extend_from_slice(&output.unsent()[..count]);
            output.sent(count, &mut spare);
            assert_eq!(output.len(), bytes.len() - taken.len());
        }
        assert_eq!(taken, bytes);
    }
}
