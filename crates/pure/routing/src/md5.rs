//! MD5 (RFC 1321), for rings that other clients have placed points on. Not for secrets.

/// Floor of 2^32 * |sin(i + 1)|, as the RFC's table.
const SINES: [u32; 64] = [
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
];
const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
const BLOCK: usize = 64;

/// The digest as four words; its bytes are theirs, little-endian.
pub(crate) fn digest(text: &[u8]) -> [u32; 4] {
    let mut state = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476];
    let blocks = text.chunks_exact(BLOCK);
    let rest = blocks.remainder();
    for block in blocks {
        absorb(&mut state, block.try_into().expect("chunks of that size"));
    }
    // The rest, a one bit, zeros, and the length in bits: in one block or in two.
    let mut tail = [0; 2 * BLOCK];
    tail[..rest.len()].copy_from_slice(rest);
    tail[rest.len()] = 0x80;
    let end = if rest.len() + 9 > BLOCK { 2 * BLOCK } else { BLOCK };
    tail[end - 8..end].copy_from_slice(&(8 * text.len() as u64).to_le_bytes());
    for block in tail[..end].chunks_exact(BLOCK) {
        absorb(&mut state, block.try_into().expect("chunks of that size"));
    }
    state
}

fn absorb(state: &mut [u32; 4], block: &[u8; BLOCK]) {
    let word = |at: usize| {
        u32::from_le_bytes(block[4 * at..4 * at + 4].try_into().expect("four bytes of a block"))
    };
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..64 {
        let (mixed, at) = match step / 16 {
            0 => ((b & c) | (!b & d), step),
            1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
            2 => (b ^ c ^ d, (3 * step + 5) % 16),
            _ => (c ^ (b | !d), (7 * step) % 16),
        };
        let sum = a.wrapping_add(mixed).wrapping_add(SINES[step]).wrapping_add(word(at));
        (a, d, c) = (d, c, b);
        b = b.wrapping_add(sum.rotate_left(SHIFTS[step / 16][step % 4]));
    }
    for (word, more) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn hex(text: &[u8]) -> String {
        let mut hex = String::new();
        for byte in digest(text).iter().flat_map(|word| word.to_le_bytes()) {
            write!(hex, "{byte:02x}").unwrap();
        }
        hex
    }

    #[test]
    fn the_rfcs_test_suite() {
        for (text, wanted) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
            (
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
                "d174ab98d277d9f5a5611c2c9f419d9f",
            ),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(hex(text.as_bytes()), wanted, "{text:?}");
        }
    }
}
