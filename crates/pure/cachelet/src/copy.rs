//! Copies of bytes that others may read or, on the reader's side, overwrite at the same moment. A torn copy is a wrong
//! value that the bucket's version betrays (see [`crate::sync`]), and must not be undefined behaviour: to the
//! compiler, every byte is copied by a relaxed atomic access of its own.
//!
//! Compilers do not make wide moves of such a loop, so on x86-64 the moves are written out in assembly, which does
//! just what the loop would, in far fewer instructions (decision 0009). Elsewhere, and where a tool has to see each access (Miri, the address sanitizer
//! with `--cfg copy_by_words`), they are atomic accesses of one fixed division into words.

#[cfg(all(target_arch = "x86_64", not(miri), not(copy_by_words)))]
use by_moves as by;
#[cfg(not(all(target_arch = "x86_64", not(miri), not(copy_by_words))))]
use by_words as by;

/// Appends `len` bytes at `source` to `out`.
///
/// # Safety
/// `source..source + len` is item memory that the caller's epoch keeps from being reused.
#[inline(always)]
pub unsafe fn copy_shared(source: *const u8, len: usize, out: &mut Vec<u8>) {
    out.reserve(len);
    // SAFETY: reserved above; every byte below the new length is written by the copy.
    unsafe {
        by::read(source, out.as_mut_ptr().add(out.len()), len);
        out.set_len(out.len() + len);
    }
}

/// Overwrites `target` with `value`.
///
/// # Safety
/// `target` is a value of `value.len()` bytes; the caller holds the writer lock and has made the home
/// bucket's version odd.
#[inline]
pub unsafe fn overwrite_shared(target: *mut u8, value: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { by::write(value.as_ptr(), target, value.len()) }
}

/// Copies `bytes` bytes of the joined parts, from `skip` on, to memory that nobody sees yet.
///
/// # Safety
/// `target` has room for `bytes`, and the parts have `skip + bytes`.
pub unsafe fn write_parts(parts: &[&[u8]], mut skip: usize, mut bytes: usize, mut target: *mut u8) {
    for part in parts {
        let here = part.get(skip..).unwrap_or(&[]);
        skip = skip.saturating_sub(part.len());
        let taken = here.len().min(bytes);
        // SAFETY: `taken` bytes remain on both sides.
        unsafe {
            std::ptr::copy_nonoverlapping(here.as_ptr(), target, taken);
            target = target.add(taken);
        }
        bytes -= taken;
    }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(copy_by_words)))]
mod by_moves {
    use std::arch::asm;

    pub use copy as read;
    pub use copy as write;

    /// One move of so many bytes: a relaxed atomic load and store of each of them.
    macro_rules! moves {
        ($name:ident, $class:ident, $load:literal, $store:literal) => {
            #[inline(always)]
            unsafe fn $name(source: *const u8, target: *mut u8) {
                // SAFETY: the caller has both ranges valid; nothing but them and the register is touched.
                unsafe {
                    asm!($load, $store, x = out($class) _, source = in(reg) source, target = in(reg) target,
                         options(nostack, preserves_flags));
                }
            }
        };
    }

    moves!(move1, reg_byte, "mov {x}, byte ptr [{source}]", "mov byte ptr [{target}], {x}");
    moves!(move2, reg, "movzx {x:e}, word ptr [{source}]", "mov word ptr [{target}], {x:x}");
    moves!(move4, reg, "mov {x:e}, dword ptr [{source}]", "mov dword ptr [{target}], {x:e}");
    moves!(move8, reg, "mov {x}, qword ptr [{source}]", "mov qword ptr [{target}], {x}");
    moves!(move16, xmm_reg, "movups {x}, [{source}]", "movups [{target}], {x}");

    /// Four of 16, the loads first.
    #[inline(always)]
    unsafe fn move64(source: *const u8, target: *mut u8) {
        // SAFETY: as for one move.
        unsafe {
            asm!(
                "movups {a}, [{source}]",
                "movups {b}, [{source} + 16]",
                "movups {c}, [{source} + 32]",
                "movups {d}, [{source} + 48]",
                "movups [{target}], {a}",
                "movups [{target} + 16], {b}",
                "movups [{target} + 32], {c}",
                "movups [{target} + 48], {d}",
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                source = in(reg) source, target = in(reg) target,
                options(nostack, preserves_flags)
            );
        }
    }

    /// By the fewest moves: the last may copy again what the one before has copied.
    ///
    /// # Safety
    /// Both ranges are valid and apart; what of them others know they access through this module.
    #[inline(always)]
    pub unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: every move lies below `len`: the last of its size ends there, those before begin at least as
        // much before it.
        unsafe {
            let to_end = |bytes: usize| (source.add(len - bytes), target.add(len - bytes));
            macro_rules! two {
                ($bytes:literal, $move:ident) => {{
                    $move(source, target);
                    let (source, target) = to_end($bytes);
                    $move(source, target);
                }};
            }
            match len {
                33.. => {
                    let mut at = 0;
                    while at + 64 < len {
                        move64(source.add(at), target.add(at));
                        at += 64;
                    }
                    while at + 16 < len {
                        move16(source.add(at), target.add(at));
                        at += 16;
                    }
                    let (source, target) = to_end(16);
                    move16(source, target);
                }
                16.. => two!(16, move16),
                8.. => two!(8, move8),
                4.. => two!(4, move4),
                2.. => two!(2, move2),
                1 => move1(source, target),
                0 => {}
            }
        }
    }
}

#[cfg(any(test, not(target_arch = "x86_64"), miri, copy_by_words))]
mod by_words {
    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

    /// Values from this length on are copied by words of 8.
    const LONG_BYTES: usize = 64;

    /// # Safety
    /// As [`copy`], from the shared side.
    #[inline]
    pub unsafe fn read(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { copy(source, target, len, true) }
    }

    /// # Safety
    /// As [`copy`], to the shared side.
    #[inline]
    pub unsafe fn write(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { copy(source, target, len, false) }
    }

    /// Copies up to the shared side's next multiple of 4 by a byte and two, on by words of 4 (from
    /// [`LONG_BYTES`] on: up to the next multiple of 8, then by 8), and the rest by two and one. The division depends
    /// on the shared address and the length alone, so readers and writers of one value never access a byte in two
    /// sizes. For short values it depends on the address's last two bits alone, which are the same for all
    /// keys of one length: no guess at a branch goes wrong.
    ///
    /// # Safety
    /// Both ranges are valid and apart; the shared side (the source if `from_shared`) is accessed by
    /// everybody through this function while it is published.
    #[inline(always)]
    unsafe fn copy(source: *const u8, target: *mut u8, len: usize, from_shared: bool) {
        /// Copies one word: by an atomic access on the shared side, which is aligned, and as bytes on the other.
        macro_rules! copy {
            ($word:ty, $atomic:ty, $at:expr) => {{
                let (source, target) = (source.add($at), target.add($at));
                if from_shared {
                    let value = (*(source as *const $atomic)).load(Relaxed);
                    (target as *mut $word).write_unaligned(value);
                } else {
                    let value = (source as *const $word).read_unaligned();
                    (*(target as *const $atomic)).store(value, Relaxed);
                }
            }};
        }
        let shared = if from_shared { source as usize } else { target as usize };
        let mut at = 0;
        // SAFETY: a word is taken only where `len` has room for it, and where the shared address is a multiple of its
        // size: up to the words by the bits that are looked at; behind them because each is smaller than the one
        // before; and where `len` ends before a multiple of 8 is reached, because less than the next size is left.
        unsafe {
            if shared & 1 != 0 && len >= 1 {
                copy!(u8, AtomicU8, 0);
                at = 1;
            }
            if (shared + at) & 2 != 0 && len >= at + 2 {
                copy!(u16, AtomicU16, at);
                at += 2;
            }
            if len >= LONG_BYTES {
                if (shared + at) & 7 == 4 {
                    copy!(u32, AtomicU32, at);
                    at += 4;
                }
                while at + 8 <= len {
                    copy!(u64, AtomicU64, at);
                    at += 8;
                }
            }
            while at + 4 <= len {
                copy!(u32, AtomicU32, at);
                at += 4;
            }
            if at + 2 <= len {
                copy!(u16, AtomicU16, at);
                at += 2;
            }
            while at < len {
                copy!(u8, AtomicU8, at);
                at += 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole_at_every_alignment_and_nothing_beside_it() {
        const MOST: usize = 200;
        let bytes: Vec<u8> = (1..=250).collect();
        for (read, write) in
            [(by::read as Copy, by::write as Copy), (by_words::read, by_words::write)]
        {
            for (start, len) in (0..8).flat_map(|start| (0..MOST).map(move |len| (start, len))) {
                for copy in [read, write] {
                    let mut target = [0u8; MOST + 16];
                    // SAFETY: both ranges lie inside their vectors, and nobody else knows them.
                    unsafe { copy(bytes.as_ptr().add(start), target.as_mut_ptr().add(start), len) }
                    let end = start + len;
                    let expected = [&[0; 8][..start], &bytes[start..end], &[0; MOST + 16][end..]];
                    assert_eq!(target[..], expected.concat(), "{len} from {start}");
                }
            }
        }
        let mut out = vec![7];
        // SAFETY: as above.
        unsafe { copy_shared(bytes.as_ptr(), 3, &mut out) };
        assert_eq!(out, [7, 1, 2, 3]);
    }

    type Copy = unsafe fn(*const u8, *mut u8, usize);
}
