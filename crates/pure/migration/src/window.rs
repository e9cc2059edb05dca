//! What of a move is on its way: parts that have been sent and not been taken.

use std::collections::VecDeque;

/// A part is closed when it has so many bytes; the last step of its export may go beyond.
pub const PART_BYTES: usize = 64 << 10;
/// Parts that are sent and not taken.
pub const PARTS_IN_FLIGHT_MAX: usize = 8;
/// Their bytes; the last of them may go beyond.
pub const BYTES_IN_FLIGHT_MAX: usize = 256 << 10;

/// A part's name within its move.
pub type PartName = (u32, u32);

#[derive(Debug, Default)]
pub struct Window {
    parts: VecDeque<(PartName, usize)>,
    bytes: usize,
}

impl Window {
    pub fn has_room(&self) -> bool {
        self.parts.len() < PARTS_IN_FLIGHT_MAX && self.bytes < BYTES_IN_FLIGHT_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn sent(&mut self, name: PartName, bytes: usize) {
        self.parts.push_back((name, bytes));
        self.bytes += bytes;
    }

    /// Parts are taken in the order in which they were sent: this one's bytes, if it was the next.
    pub fn taken(&mut self, name: PartName) -> Option<usize> {
        let (_, bytes) = *self.parts.front().filter(|(next, _)| *next == name)?;
        self.parts.pop_front();
        self.bytes -= bytes;
        Some(bytes)
    }

    /// The link broke: what was on it is lost.
    pub fn clear(&mut self) {
        *self = Window::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_full_by_parts_or_by_bytes_and_opens_in_order() {
        let mut window = Window::default();
        for number in 0..PARTS_IN_FLIGHT_MAX as u32 {
            assert!(window.has_room());
            window.sent((3, number), 100);
        }
        assert!(!window.has_room());
        assert_eq!((window.taken((3, 1)), window.taken((2, 0))), (None, None));
        assert!(window.taken((3, 0)) == Some(100) && window.has_room());
        window.sent((4, 0), BYTES_IN_FLIGHT_MAX);
        assert!(window.taken((3, 1)).is_some() && !window.has_room(), "too many bytes");
        window.clear();
        assert!(window.is_empty() && window.has_room() && window.taken((4, 0)).is_none());
    }
}
