// The packet program of the kernel's data plane: reads of one key by memcached's UDP protocol are sent on to the key's
// upstream, or answered if the key is hot. Everything else passes to the sockets. docs/design/xdp.md has the whole.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "plane.h"
#include "hash.h"
#include "packet.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the words of a key are read as little-endian ones"
#endif

const volatile __u64 service_mac = 0; // of the interface: the low 6 bytes
const volatile __be32 service_addr = 0;
const volatile __be16 service_port = 0;
const volatile __u32 key_hash = MURMUR;
const volatile __u32 sample_below = 0; // of 2^32

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct rings);
} rings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct hots);
} hots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct tally);
} tallies SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} samples SEC(".maps");

// Never looked into: the loader updates `fence`, and the kernel returns from that when no program runs that had begun before.
struct token {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} token SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 1);
    __type(key, __u32);
    __array(values, struct token);
} fence SEC(".maps") = {.values = {&token}};

// The compiler forgets what it knows of a number, so that it uses the register that was checked, and the verifier sees that.
#define OPAQUE(number) asm volatile("" : "+r"(number))

#define GET 0x20746567      // "get "
#define MG 0x20676d         // "mg "
#define END 0x0a0d          // "\r\n"
#define MG_END 0x0a0d7620   // " v\r\n"

struct key {
    __u32 at; // in the packet
    __u32 length;
    __u32 hash;
    __u64 tail; // its last up to 7 bytes, and zeros
};

// Some byte of the word ends a key: a blank or a control character.
static __always_inline __u64 ends(__u64 word)
{
    return (word - 0x2121212121212121ull) & ~word & 0x8080808080808080ull;
}

// Hashes the key from `at`. False if it is none.
static __always_inline int read_key(struct xdp_md *ctx, struct key *key)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __u32 length = key->length, hash = begin_hash(key_hash, length);
    __u8 *bytes = data + key->at;
    __u64 bad = 0;
    for (int i = 0; i < KEY_MAX / 8; i++) {
        if (i * 8 + 8 > length)
            break;
        __u64 *word = (__u64 *)(bytes + i * 8);
        if ((void *)(word + 1) > end)
            return 0;
        bad |= ends(*word);
        hash = hash_word(key_hash, hash, *word);
    }
    // The last bytes are read by the word that ends with them: there may be nothing after the request.
    __u32 rest = length % 8, at = key->at + length - sizeof(__u64);
    if (at > TEXT + KEY_MAX)
        return 0;
    __u64 *last = data + at;
    if ((void *)(last + 1) > end)
        return 0;
    __u64 tail = rest ? *last >> (64 - 8 * rest) : 0;
    bad |= ends(tail | (~0ull << (8 * rest)));
    key->tail = tail;
#ifdef PLANTED_TAIL_IS_NOT_HASHED
    rest = 0;
#endif
    key->hash = end_hash(key_hash, hash, tail, rest);
    return !bad;
}

static __always_inline void sample(struct xdp_md *ctx, struct tally *tally, struct key *key)
{
    tally->dice = tally->dice * 6364136223846793005ull + 1442695040888963407ull;
    if ((__u32)(tally->dice >> 32) >= sample_below)
        return;
    struct sample *sample = bpf_ringbuf_reserve(&samples, sizeof(*sample), 0);
    if (!sample) {
        tally->lost++;
        return;
    }
    __u32 length = key->length;
    sample->hash = key->hash;
    sample->length = length;
    if (length == 0 || length > KEY_MAX || bpf_xdp_load_bytes(ctx, key->at, sample->key, length)) {
        bpf_ringbuf_discard(sample, BPF_RB_NO_WAKEUP);
        return;
    }
    tally->sampled++;
    bpf_ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
}

static __always_inline int is_key_of(struct xdp_md *ctx, struct hot *hot, struct key *key)
{
#ifdef PLANTED_KEYS_ARE_NOT_COMPARED
    return 1;
#endif
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (hot->key_length != key->length)
        return 0;
    __u8 *bytes = data + key->at;
    for (int i = 0; i < KEY_MAX / 8; i++) {
        if (i * 8 + 8 > key->length)
            break;
        __u64 *word = (__u64 *)(bytes + i * 8);
        if ((void *)(word + 1) > end || *word != *(__u64 *)(hot->key + i * 8))
            return 0;
    }
    return *(__u64 *)(hot->key + (key->length & 0xf8)) == key->tail;
}

static __always_inline struct hot *find_hot(struct xdp_md *ctx, struct key *key)
{
    __u32 zero = 0;
    struct hots *all = bpf_map_lookup_elem(&hots, &zero);
    if (!all)
        return NULL;
    volatile __u64 *ways = all->ways[key->hash % SETS];
    for (int i = 0; i < WAYS; i++) {
        __u64 way = ways[i];
        __u32 place = (__u32)way - 1;
        if (way >> 32 != key->hash || place >= HOT_MAX)
            continue;
        struct hot *hot = &all->hot[place];
        return is_key_of(ctx, hot, key) ? hot : NULL;
    }
    return NULL;
}

#ifdef PLANTED_SLOWNESS
static long do_nothing(__u32 index, void *with)
{
    return 0;
}
#endif

// Makes the request its answer. Nothing has changed if this is not XDP_TX.
static __always_inline int answer(struct xdp_md *ctx, struct hot *hot)
{
    __u32 length = hot->answer_length;
    if (length == 0 || length > ANSWER_MAX)
        return XDP_PASS;
    __u64 bytes = (void *)(long)ctx->data_end - (void *)(long)ctx->data;
    OPAQUE(bytes);
    if (bpf_xdp_adjust_tail(ctx, (int)(TEXT + length) - (int)bytes))
        return XDP_PASS;
    // Neither fails: the packet has just got this length.
    if (bpf_xdp_store_bytes(ctx, TEXT, hot->answer, length))
        return XDP_DROP;
    void *data = (void *)(long)ctx->data;
    if (data + TEXT > (void *)(long)ctx->data_end)
        return XDP_DROP;
    struct headers packet = headers(data);

    __u8 mac[ETH_ALEN];
    __builtin_memcpy(mac, packet.eth->h_source, ETH_ALEN);
    __builtin_memcpy(packet.eth->h_source, packet.eth->h_dest, ETH_ALEN);
    __builtin_memcpy(packet.eth->h_dest, mac, ETH_ALEN);

    __be32 client = packet.ip->saddr;
    packet.ip->saddr = packet.ip->daddr;
    packet.ip->daddr = client;
    packet.ip->tot_len = bpf_htons(TEXT - IP + length);
    packet.ip->ttl = 64;
    packet.ip->check = 0;
    __u64 sum = 0;
    __u16 *words = data + IP;
#pragma unroll
    for (int i = 0; i < sizeof(struct iphdr) / 2; i++)
        sum += words[i];
    packet.ip->check = ~fold(sum);

    __be16 port = packet.udp->source;
    packet.udp->source = packet.udp->dest;
    packet.udp->dest = port;
    packet.udp->len = bpf_htons(sizeof(struct udphdr) + sizeof(struct frame) + length);
    sum = (__u64)hot->sum + packet.ip->saddr + packet.ip->daddr + bpf_htons(IPPROTO_UDP);
    sum += (__u64)packet.udp->len * 2 + packet.udp->source + packet.udp->dest;
    sum += (__u64)packet.frame->id + packet.frame->count;
    __u16 check = ~fold(sum);
    packet.udp->check = check ? check : 0xffff;
    return XDP_TX;
}

static __always_inline struct upstream *find_upstream(__u32 hash)
{
    __u32 zero = 0;
    struct rings *all = bpf_map_lookup_elem(&rings, &zero);
    if (!all)
        return NULL;
    struct ring *ring = &all->ring[*(volatile __u32 *)&all->active & 1];
    __u32 at = ring->first[(hash >> (ring->shift & 31)) % SLOTS_MAX];
    if (at >= POINTS_MAX)
        return NULL;
    for (int i = 0; i < STEPS_MAX; i++) {
        struct point *point = &ring->points[at + i];
        if (point->at >= hash)
            return &ring->upstreams[point->upstream % UPSTREAMS_MAX];
    }
    return NULL;
}

static __always_inline int forward(struct xdp_md *ctx, struct tally *tally, __u32 hash)
{
    struct upstream *upstream = find_upstream(hash);
    if (!upstream || !upstream->addr) {
        tally->unready++;
        return XDP_PASS;
    }
    void *data = (void *)(long)ctx->data;
    if (data + TEXT > (void *)(long)ctx->data_end)
        return XDP_PASS;
    struct headers packet = headers(data);
    __builtin_memcpy(packet.eth->h_source, packet.eth->h_dest, ETH_ALEN);
    __builtin_memcpy(packet.eth->h_dest, upstream->mac, ETH_ALEN);
    packet.ip->daddr = upstream->addr;
    packet.ip->check = checksum_after(packet.ip->check, upstream->ip_difference);
    packet.udp->dest = upstream->port;
#ifndef PLANTED_UDP_CHECKSUM_STAYS
    // 0 is a datagram without a checksum.
    if (packet.udp->check) {
        __u16 check = checksum_after(packet.udp->check, upstream->udp_difference);
        packet.udp->check = check ? check : 0xffff;
    }
#endif
    tally->forwarded++;
    return XDP_TX;
}

SEC("xdp")
int plane(struct xdp_md *ctx)
{
    __u32 zero = 0;
    struct tally *tally = bpf_map_lookup_elem(&tallies, &zero);
    if (!tally)
        return XDP_PASS;
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct headers packet = headers(data);
    if ((void *)(packet.text + 1) > end || (*(__u64 *)data & 0xffffffffffff) != service_mac ||
        packet.eth->h_proto != bpf_htons(ETH_P_IP) ||
        packet.ip->daddr != service_addr || packet.ip->protocol != IPPROTO_UDP) {
        tally->foreign++;
        return XDP_PASS;
    }
    if (*(__u8 *)packet.ip != 0x45 || packet.ip->frag_off & bpf_htons(0x3fff)) {
        tally->unusual++;
        return XDP_PASS;
    }
    if (packet.udp->dest != service_port) {
        tally->foreign++;
        return XDP_PASS;
    }
    __u32 length = bpf_ntohs(packet.ip->tot_len);
    if (bpf_ntohs(packet.udp->len) + sizeof(struct iphdr) != length || packet.frame->number ||
        packet.frame->count != bpf_htons(1) || packet.frame->reserved) {
        tally->unusual++;
        return XDP_PASS;
    }
    OPAQUE(length);
    // Both commands around a key of one byte, and of 250.
    if (length < TEXT - IP + 7 || length > TEXT - IP + 7 + KEY_MAX) {
        tally->other++;
        return XDP_PASS;
    }
    __u32 *last = data + IP + length - sizeof(*last);
    if ((void *)(last + 1) > end) {
        tally->unusual++;
        return XDP_PASS;
    }
    __u32 first = *packet.text, is_meta = first != GET;
    struct key key;
    if (!is_meta && *last >> 16 == END) {
        key.at = TEXT + 4;
        key.length = length - (TEXT - IP) - 6;
    } else if ((first & 0xffffff) == MG && *last == MG_END) {
        key.at = TEXT + 3;
        key.length = length - (TEXT - IP) - 7;
    } else {
        tally->other++;
        return XDP_PASS;
    }
    if (key.length == 0 || key.length > KEY_MAX || !read_key(ctx, &key)) {
        tally->other++;
        return XDP_PASS;
    }
    sample(ctx, tally, &key);
    struct hot *hot = find_hot(ctx, &key);
#ifndef PLANTED_HOT_KEYS_ARE_PASSED_BY
    if (hot && hot->rule == PASS) {
        tally->by_rule++;
        return XDP_PASS;
    }
#endif
    if (hot && hot->rule == ANSWER && !is_meta) {
#ifndef PLANTED_ANSWERS_OUTLIVE_THEIR_LEASE
        if (bpf_ktime_get_ns() >= *(volatile __u64 *)&hot->until_ns) {
            tally->expired++;
            return forward(ctx, tally, key.hash);
        }
#endif
#ifdef PLANTED_SLOWNESS
        tally->by_rule++;
        for (int i = 0; i < 8; i++)
            bpf_loop(1 << 23, do_nothing, NULL, 0);
#endif
        int verdict = answer(ctx, hot);
        if (verdict != XDP_PASS) {
            tally->answered++;
            return verdict;
        }
        tally->cramped++;
    }
    return forward(ctx, tally, key.hash);
}

// What it costs to run a program at all, which figures subtract. And for the other end of a veth pair: that takes what the plane
// sends only if it runs a program.
SEC("xdp")
int nothing(struct xdp_md *ctx)
{
    return XDP_PASS;
}

char _license[] SEC("license") = "Apache-2.0";
