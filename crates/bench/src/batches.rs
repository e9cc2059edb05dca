//! Gets of many keys that are asked of several workers at once: each is answered when the last of them has.

/// A batch that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId(u32);

/// The batches of a thread that are under way.
#[derive(Default)]
pub struct Batches {
    batches: Vec<Batch>,
    free: Vec<BatchId>,
}

#[derive(Clone, Copy)]
struct Batch {
    parts_left: usize,
    /// A part has missed a key.
    missed: bool,
}

impl Batches {
    /// A batch of so many parts. `None`: its only part is the whole.
    pub fn begin(&mut self, parts: usize) -> Option<BatchId> {
        if parts < 2 {
            return None;
        }
        let batch = Batch { parts_left: parts, missed: false };
        let Some(id) = self.free.pop() else {
            self.batches.push(batch);
            return Some(BatchId(self.batches.len() as u32 - 1));
        };
        self.batches[id.0 as usize] = batch;
        Some(id)
    }

    /// A part is answered, and has missed a key or not. Whether the batch has, if that was its last part.
    pub fn answered(&mut self, id: BatchId, missed: bool) -> Option<bool> {
        let batch = &mut self.batches[id.0 as usize];
        batch.parts_left -= 1;
        batch.missed |= missed;
        if batch.parts_left > 0 {
            return None;
        }
        self.free.push(id);
        Some(batch.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_answered_with_its_last_part_and_misses_what_any_part_does() {
        let mut batches = Batches::default();
        assert_eq!(batches.begin(1), None);
        let [first, second] = [3, 2].map(|parts| batches.begin(parts).unwrap());
        assert_eq!(batches.answered(first, true), None);
        assert_eq!(batches.answered(second, false), None);
        assert_eq!(batches.answered(second, false), Some(false));
        assert_eq!(batches.begin(2), Some(second), "its place is free");
        assert_eq!(batches.answered(first, false), None);
        assert_eq!(batches.answered(first, false), Some(true));
    }
}
