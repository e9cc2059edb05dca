//! Replies that a socket has not taken.

/// One receive takes at most this much; what is left in the kernel is reported again.
pub const RECEIVE_BYTES: usize = 64 * 1024;

/// Buffers keep their memory from one event to the next, up to this much.
pub(crate) const KEPT_BYTES_MAX: usize = 1 << 20;

/// What a connection has not taken yet.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    start: usize,
}

/// Capacity that an idle connection may keep.
const KEPT_BYTES: usize = 16 * 1024;

impl Output {
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(crate) fn sent(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            self.start = 0;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_in_order_and_gives_its_memory_back() {
        let mut output = Output::default();
        output.push(&[1; 40_000]);
        output.push(&[2; 3]);
        output.sent(39_999);
        assert_eq!(output.unsent(), [1, 2, 2, 2]);
        output.sent(4);
        assert!(output.is_empty());
        assert!(output.bytes.capacity() <= KEPT_BYTES);
    }
}
