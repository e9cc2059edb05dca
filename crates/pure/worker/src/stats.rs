//! `stats`.

use mbal_wire::{Tokens, push_u64};

use crate::turn::Turn;

impl Turn<'_> {
    pub fn stats(&mut self, tokens: &Tokens<'_>) {
        match (tokens.count, tokens.get(1)) {
            (1, _) => self.general(),
            (_, b"reset") => {
                self.server.reset_sums();
                self.line(b"RESET");
            }
            _ => self.line(b"ERROR"),
        }
    }

    fn general(&mut self) {
        let sums = self.server.sums();
        for (name, value) in [("cmd_get", sums.cmd_get), ("cmd_set", sums.cmd_set)] {
            self.out.extend_from_slice(b"STAT ");
            self.out.extend_from_slice(name.as_bytes());
            self.out.push(b' ');
            push_u64(self.out, value);
            self.line(b"");
        }
        self.line(b"END");
    }
}

/// The slab class that memcached (growth factor 1.25, 512 KiB the largest) would put an item of
/// `bytes` into: the size class of statistics.
pub(crate) fn size_class(bytes: usize) -> usize {
    const LARGEST: usize = 512 << 10;
    let mut size = 96;
    let mut class = 1;
    while size * 5 / 4 < LARGEST && class < 63 {
        if bytes <= size {
            return class;
        }
        size = (size * 5 / 4).next_multiple_of(8);
        class += 1;
    }
    class
}
