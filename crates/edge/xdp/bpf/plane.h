// What the packet program and its loader share: src/layout.rs holds the same in Rust, and compares the sizes when it loads.
#pragma once

#define POINTS_MAX 16384   // of a ring: routing's Flat has the same bound
#define SLOTS_MAX 32768    // of a ring
#define STEPS_MAX 16       // from a slot's first point to a hash's
#define UPSTREAMS_MAX 256
#define KEY_MAX 250
#define ANSWER_MAX 1392    // memcached's datagrams are 1,400 bytes with their frame
#define HOT_MAX 1024       // keys with a rule of their own
#define SETS 1024          // of ways
#define WAYS 4

// Where the keys up to this hash go.
struct point {
    __u32 at;
    __u32 upstream;
};

// Network byte order. The differences are one's complement sums of what the rewrite changes.
struct upstream {
    __u8 mac[6]; // of the next hop
    __be16 port;
    __be32 addr; // 0: not known, packets pass
    __u16 ip_difference;
    __u16 udp_difference;
};

struct ring {
    __u32 shift; // of a hash, to its slot
    __u32 reserved;
    __u16 first[SLOTS_MAX]; // the slot's first point
    struct point points[POINTS_MAX + STEPS_MAX];
    struct upstream upstreams[UPSTREAMS_MAX];
};

// Two, of which one is in use while the loader writes the other.
struct rings {
    __u32 active;
    __u32 reserved;
    struct ring ring[2];
};

enum rule { ANSWER = 1, PASS = 2 };

// A hot key. Nothing but `until_ns` changes while a way leads here.
struct hot {
    __u64 until_ns; // monotonic; after it, the key is like any other
    __u32 rule;
    __u32 sum; // of the answer's 16-bit words, as they are in memory
    __u16 key_length;
    __u16 answer_length;
    __u32 reserved;
    __u8 key[256]; // zeros at its end
    __u8 answer[ANSWER_MAX];
};

struct hots {
    __u64 ways[SETS][WAYS]; // hash << 32 | 1 + place in `hot`; 0 is free
    struct hot hot[HOT_MAX];
};

// Of one CPU.
struct tally {
    __u64 foreign;   // not for the service
    __u64 unusual;   // IP options, fragments, bad lengths, requests in several datagrams
    __u64 other;     // not a get of one key
    __u64 by_rule;   // keys whose rule is to pass
    __u64 unready;   // upstreams without an address
    __u64 forwarded;
    __u64 answered;
    __u64 expired;   // hot keys past `until_ns`, forwarded as well
    __u64 cramped;   // hot keys whose answer found no room in the packet's memory, forwarded as well
    __u64 sampled;
    __u64 lost;      // samples for which there was no room
    __u64 dice;
};

struct sample {
    __u32 hash;
    __u32 length;
    __u8 key[256];
};
