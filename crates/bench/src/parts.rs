//! Many reads at once: those that one worker is asked for leave together.

use mbal_model::ReplicaVersion;

/// One read of a batch: whom it asks. `T` is what a client calls a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRead<T> {
    pub target: T,
    /// The key's place in the batch.
    pub at: usize,
    /// Of a read by a lease, what the copy must not be older than.
    pub seen: Option<ReplicaVersion>,
}

/// In the order of the targets, and for one target in the order of the batch.
pub fn sort_by_target<T: Ord>(reads: &mut [BatchRead<T>]) {
    reads.sort_unstable_by(|one, other| (&one.target, one.at).cmp(&(&other.target, other.at)));
}

/// Reads that were sorted, by whom they ask.
pub fn parts<T: Eq>(reads: &[BatchRead<T>]) -> impl Iterator<Item = &[BatchRead<T>]> {
    reads.chunk_by(|one, other| one.target == other.target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_is_asked_once_for_its_keys_in_their_order() {
        let seen = Some(ReplicaVersion { grant: 3, version: 1 });
        let read = |at, target| BatchRead { target, at, seen: seen.filter(|_| at == 4) };
        let mut reads: Vec<_> = ["b", "a", "b", "c", "a", "a"]
            .into_iter()
            .enumerate()
            .map(|(at, to)| read(at, to))
            .collect();
        let places = |part: &[BatchRead<&'static str>]| {
            (part[0].target, part.iter().map(|read| read.at).collect::<Vec<_>>())
        };
        sort_by_target(&mut reads);
        let found: Vec<_> = parts(&reads).map(places).collect();
        assert_eq!(found, [("a", vec![1, 4, 5]), ("b", vec![0, 2]), ("c", vec![3])]);
        assert_eq!(parts(&reads).flatten().filter(|read| read.seen == seen).count(), 1);
        assert_eq!(parts::<u8>(&[]).count(), 0);
    }
}
