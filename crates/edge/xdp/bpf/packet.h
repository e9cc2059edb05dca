// The packets that the program takes: memcached's UDP protocol in IPv4, without options and tags.
#pragma once

// Of memcached, before the text.
struct frame {
    __be16 id;
    __be16 number;
    __be16 count;
    __be16 reserved;
};

struct headers {
    struct ethhdr *eth;
    struct iphdr *ip;
    struct udphdr *udp;
    struct frame *frame;
    __u32 *text; // its first bytes
};

#define IP sizeof(struct ethhdr)
#define UDP (IP + sizeof(struct iphdr))
#define FRAME (UDP + sizeof(struct udphdr))
#define TEXT (FRAME + sizeof(struct frame))

static __always_inline struct headers headers(void *data)
{
    return (struct headers){data, data + IP, data + UDP, data + FRAME, data + TEXT};
}

static __always_inline __u16 fold(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return sum + (sum >> 16);
}

// Adds the words that came instead of others to a checksum.
static __always_inline __u16 checksum_after(__u16 checksum, __u16 difference)
{
    return ~fold((__u64)(__u16)~checksum + difference);
}
