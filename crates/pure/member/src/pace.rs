//! How long a member waits between two heartbeats.

use std::time::Duration;

/// Between two heartbeats of a server that takes part in a move, or is emptied: each step at the coordinator waits for one.
const EPOCH_OF_MOVES: Duration = Duration::from_millis(100);
/// While it is emptied within a time so many in what is left of it, down to [`EPOCH_LEAST`]: its moves begin and end with them.
const HURRIED_BEATS: u32 = 16;
const EPOCH_LEAST: Duration = Duration::from_millis(10);
/// Likewise where the CPU quota is small and nothing hurries: a heartbeat costs as much as a slice of a move.
const EPOCH_OF_MOVES_IN_SMALL_QUOTA: Duration = Duration::from_millis(300);

/// `time_left` to be empty, if it has a time; `is_busy`: somebody waits for what heartbeats say and hear.
pub(crate) fn pause(
    epoch: Duration,
    time_left: Option<Duration>,
    is_busy: bool,
    has_small_quota: bool,
) -> Duration {
    let pause = match time_left {
        Some(left) => (left / HURRIED_BEATS).clamp(EPOCH_LEAST, EPOCH_OF_MOVES),
        None if !is_busy => epoch,
        None if has_small_quota => EPOCH_OF_MOVES_IN_SMALL_QUOTA,
        None => EPOCH_OF_MOVES,
    };
    pause.min(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_busy_speaks_often_who_hurries_more_often_and_nobody_less_than_once_an_epoch() {
        let ms = Duration::from_millis;
        for (epoch, left, busy, small, expected) in [
            (1_000, None, false, false, 1_000),
            (1_000, None, true, false, 100),
            (1_000, None, true, true, 300),
            (50, None, true, true, 50),
            (1_000, Some(16_000), true, true, 100),
            (1_000, Some(800), true, true, 50),
            (1_000, Some(0), false, true, 10),
        ] {
            let told = pause(ms(epoch), left.map(ms), busy, small);
            assert_eq!(told, ms(expected), "{epoch} {left:?} {busy} {small}");
        }
    }
}
