//! Ages of items, for scaling: told when they are asked for, and what was chosen by them.

use mbal_control::api::{AgesAsked, AgesReport, ClassAges, Selected};
use mbal_worker::{AgeThresholds, Now, Shared};

pub(crate) fn report(shared: &Shared, now: Now, asked: &AgesAsked) -> AgesReport {
    let number = asked.number;
    let (memory_bytes, used_bytes) = shared.memory_and_used();
    let all = shared.ages(now, number, asked.ago_ms).into_iter().enumerate();
    let class = |(class, mbal_worker::ClassAges { items, bytes, ages })| ClassAges {
        class: class as u8,
        items,
        bytes,
        ages,
    };
    let classes = all.filter(|(_, ages)| ages.items > 0).map(class).collect();
    AgesReport { number, memory_bytes, used_bytes, classes }
}

/// `None` if the moment of these ages is not remembered.
pub(crate) fn thresholds(shared: &Shared, now: Now, selected: &Selected) -> Option<AgeThresholds> {
    let classes = selected.classes.iter();
    let classes = classes.map(|class| (class.class, class.younger_than, class.tied));
    shared.age_thresholds(now, selected.number, classes)
}
