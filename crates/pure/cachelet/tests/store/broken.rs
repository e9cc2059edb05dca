//! Parts that no store has written.

use mbal_cachelet::{Arriving, Broken, Cursor, Due, Part};
use mbal_model::Prefix;
use mbal_random::Random;

use crate::support::{MOVE, NOW, WORKER, fill, import, parts_of, small};

#[test]
fn a_broken_part_changes_nothing() {
    let source = small();
    fill(&source, 50);
    source.begin_to_leave(Prefix::ALL, MOVE);
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let bytes = parts_of(&source, Prefix::ALL, &mut Cursor::default()).remove(0);
    assert!(Part::read(&bytes).is_ok());
    let broken = |bytes: &[u8]| Part::read(bytes).err();
    let heading = 55;
    let whole: Vec<usize> =
        (0..bytes.len()).filter(|&cut| broken(&bytes[..cut]).is_none()).collect();
    assert!(whole[0] == heading && whole.len() < 120, "only between records: {whole:?}");
    assert_eq!(broken(&[bytes.as_slice(), b"x"].concat()), Some(Broken));
    let mut far = bytes.clone();
    far[34] = 1 << 7;
    assert_eq!(broken(&far[..heading]), Some(Broken), "a counter that would run over");
    // Pieces of nothing, and of more than there may be.
    let target = small();
    let further = |length: u32| {
        [&bytes[..heading], &[0], &length.to_le_bytes(), &vec![1; length as usize]].concat()
    };
    for orphan in [further(0), further(9)] {
        assert_eq!(import(&target, &mut Arriving::new(Prefix::ALL), &orphan, NOW), Err(Broken));
        target.leave(WORKER);
    }
    let mut huge = [&bytes[..heading], &[1, 16]].concat();
    huge.extend([0; 4 + 4 + 4 + 1 + 8]);
    huge.extend(u32::MAX.to_le_bytes());
    huge.extend(*b"k");
    huge.extend(2u32.to_le_bytes());
    huge.extend(*b"vw");
    assert_eq!(import(&target, &mut Arriving::new(Prefix::ALL), &huge, NOW), Ok(Due::Now));
    assert_eq!(target.stats().items, 0);
}

#[test]
fn random_bytes_are_broken_or_harmless() {
    let source = small();
    fill(&source, 60);
    source.begin_to_leave(Prefix::ALL, MOVE);
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let bytes = parts_of(&source, Prefix::ALL, &mut Cursor::default()).remove(0);
    let (target, mut random) = (small(), Random::new(5));
    for _ in 0..2_000 {
        let mut bent = bytes.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bent.len() as u64) as usize;
            bent[at] = random.word() as u8;
        }
        import(&target, &mut Arriving::new(Prefix::ALL), &bent, NOW).ok();
        target.leave(WORKER);
    }
}
