//! How long replies are expected to be.

/// Replies are taken to be no shorter than this: so much is not known before they come.
pub(crate) const REPLY_BYTES_MIN: usize = 16 << 10;

/// How long a reply is expected to be, per key: as long as the longest of late. Short ones bring it down by a quarter of the way.
#[derive(Clone, Copy)]
pub(crate) struct ReplyBytes(pub usize);

impl ReplyBytes {
    pub fn saw(&mut self, bytes: usize) {
        self.0 = bytes.max(self.0 - self.0.saturating_sub(bytes).div_ceil(4));
    }
}
