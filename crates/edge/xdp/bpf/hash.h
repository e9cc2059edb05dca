// twemproxy's hashes of a key, by words of 8 bytes: routing's KeyHash in Rust. All arithmetic is modulo 2^32.
#pragma once

enum key_hash { MURMUR = 0, FNV1A_64 = 1 };

#define MURMUR_M 0x5bd1e995u
#define FNV_INIT 0x84222325u
#define FNV_PRIME 435u

static __always_inline __u32 murmur_round(__u32 hash, __u32 word)
{
    word *= MURMUR_M;
    word ^= word >> 24;
    word *= MURMUR_M;
    return hash * MURMUR_M ^ word;
}

// twemproxy takes a byte as a signed char.
static __always_inline __u32 fnv_byte(__u32 hash, __u8 byte)
{
#ifdef PLANTED_BYTES_ARE_UNSIGNED
    return (hash ^ byte) * FNV_PRIME;
#endif
    return (hash ^ (__u32)(__s32)(__s8)byte) * FNV_PRIME;
}

static __always_inline __u32 begin_hash(__u32 kind, __u32 length)
{
    return kind == MURMUR ? (0xdeadbeefu * length) ^ length : FNV_INIT;
}

static __always_inline __u32 hash_word(__u32 kind, __u32 hash, __u64 word)
{
    if (kind == MURMUR)
        return murmur_round(murmur_round(hash, word), word >> 32);
#pragma unroll
    for (int i = 0; i < 8; i++)
        hash = fnv_byte(hash, word >> (8 * i));
    return hash;
}

// The last `rest` bytes, 0 to 7: the low ones of `tail`, above which are zeros.
static __always_inline __u32 end_hash(__u32 kind, __u32 hash, __u64 tail, __u32 rest)
{
    if (kind != MURMUR) {
        for (int i = 0; i < 7; i++)
            if (i < rest)
                hash = fnv_byte(hash, tail >> (8 * i));
        return hash;
    }
    if (rest & 4) {
        hash = murmur_round(hash, tail);
        tail >>= 32;
    }
    if (rest & 3)
        hash = (hash ^ (__u32)tail) * MURMUR_M;
    hash ^= hash >> 13;
    hash *= MURMUR_M;
    return hash ^ hash >> 15;
}
