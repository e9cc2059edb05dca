// Which cache lines threads take from each other. A library for programs whose loads and stores the compiler reports as it does to
// ThreadSanitizer (`-Zsanitizer=thread -Zexternal-clangrt`); see `run` beside this file.
//
// For each line it keeps what a cache would: who wrote it last, and who has read it since. A *transfer* is an access for which the line has
// to come from another thread: a read of what another has written, or a write of what another has read or written since.
//
// The environment's MBAL_LINES is a FIFO. Each line that is written to it is the name of a file, which gets a table of the transfers since
// the table before: line, thread, read or write, place in the program, how often.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINE_SHIFT 6
#define ADDRESS_BITS 47
#define LINES (1ull << (ADDRESS_BITS - LINE_SHIFT))
// Of which a state has room for a bit and a number. Those that come later count as one.
#define THREADS_MAX 56
#define READERS ((1ull << THREADS_MAX) - 1)
// So many transfers of a line have no place: a page that changes hands makes some with each of its lines.
#define UNPLACED 16
#define SITES (1u << 18)

struct line {
    uint64_t state; // a bit for each who has it, and above them who wrote it last
    uint64_t count; // of transfers, and above it the number of the table that they are for
};

struct site {
    uint64_t line;
    uintptr_t place;
    uint32_t who; // thread, and whether it writes
    uint32_t count;
};

static struct line *lines;
static uint64_t table = 1;
static uint32_t threads;
static char names[THREADS_MAX + 1][16];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct site sites[SITES];
static uint64_t overflown;

static __thread struct {
    uint64_t bit, owns;
    uintptr_t stack, stack_bytes;
    uint32_t id;
} me;

static void enrol(void) {
    pthread_attr_t attributes;
    void *stack;
    size_t bytes;
    uint32_t id = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    me.id = id < THREADS_MAX ? id : THREADS_MAX;
    me.bit = 1ull << (me.id - 1);
    me.owns = (uint64_t)me.id << THREADS_MAX | me.bit;
    pthread_getname_np(pthread_self(), names[me.id], sizeof names[me.id]);
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        if (pthread_attr_getstack(&attributes, &stack, &bytes) == 0) {
            me.stack = (uintptr_t)stack;
            me.stack_bytes = bytes;
        }
        pthread_attr_destroy(&attributes);
    }
}

static void place(uint64_t line, int writes, uintptr_t place) {
    uint32_t who = me.id << 1 | writes, at = (line * 31 + place * 7 + who) * 2654435761u % SITES, tries = 0;
    pthread_mutex_lock(&lock);
    while (sites[at].count && (sites[at].line != line || sites[at].place != place || sites[at].who != who) && ++tries < SITES)
        at = (at + 1) % SITES;
    if (tries < SITES)
        sites[at] = (struct site){line, place, who, sites[at].count + 1};
    else
        overflown++;
    pthread_mutex_unlock(&lock);
}

static void transfer(uint64_t line, int writes, uintptr_t at) {
    uint64_t now = __atomic_load_n(&table, __ATOMIC_RELAXED), new, old = __atomic_load_n(&lines[line].count, __ATOMIC_RELAXED);
    do
        new = (old >> 32 == now ? old : now << 32) + 1;
    while (!__atomic_compare_exchange_n(&lines[line].count, &old, new, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if ((uint32_t)new > UNPLACED)
        place(line, writes, at);
}

static inline void see(const volatile void *address, size_t bytes, int writes, void *from) {
    uintptr_t at = (uintptr_t)address;
    if (!me.bit)
        enrol();
    if (bytes == 0 || at - me.stack < me.stack_bytes)
        return;
    for (uint64_t line = at >> LINE_SHIFT; line <= (at + bytes - 1) >> LINE_SHIFT && line < LINES; line++) {
        uint64_t new, old = __atomic_load_n(&lines[line].state, __ATOMIC_RELAXED);
        do
            new = writes ? me.owns : old | me.bit;
        while (old != new && !__atomic_compare_exchange_n(&lines[line].state, &old, new, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        if (old != new && (writes ? old & READERS & ~me.bit : old >> THREADS_MAX))
            transfer(line, writes, (uintptr_t)from);
    }
}

static void tell(const char *name) {
    FILE *file = fopen(name, "w");
    if (!file)
        return;
    pthread_mutex_lock(&lock);
    for (uint32_t at = 0; at < SITES; at++) {
        Dl_info info = {0};
        if (sites[at].count && dladdr((void *)sites[at].place, &info))
            fprintf(file, "%llx %s %s 0x%llx %u\n", (unsigned long long)sites[at].line << LINE_SHIFT, names[sites[at].who >> 1],
                    sites[at].who & 1 ? "writes" : "reads", (unsigned long long)(sites[at].place - 1 - (uintptr_t)info.dli_fbase),
                    sites[at].count);
    }
    fprintf(file, "end of the table, %llu left out\n", (unsigned long long)overflown);
    memset(sites, 0, sizeof sites);
    overflown = 0;
    __atomic_add_fetch(&table, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    fclose(file);
}

static void *serve(void *fifo) {
    char name[4096];
    for (;;) {
        FILE *asked = fopen(fifo, "r");
        if (!asked)
            return NULL;
        while (fgets(name, sizeof name, asked)) {
            name[strcspn(name, "\n")] = 0;
            tell(name);
        }
        fclose(asked);
    }
}

__attribute__((constructor(101))) static void begin(void) {
    if (lines)
        return;
    lines = mmap(NULL, LINES * sizeof *lines, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (lines == MAP_FAILED) {
        perror("no room for the states of all lines");
        _Exit(70);
    }
    madvise(lines, LINES * sizeof *lines, MADV_NOHUGEPAGE);
    madvise(lines, LINES * sizeof *lines, MADV_DONTDUMP);
    char *fifo = getenv("MBAL_LINES");
    sigset_t all, before;
    pthread_t thread;
    if (fifo) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        pthread_create(&thread, NULL, serve, fifo);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
}

// What the compiler calls. Orders of memory are the strictest, whatever was asked for.

#define FROM __builtin_return_address(0)
#define SEQ __ATOMIC_SEQ_CST

void __tsan_init(void) { begin(); }
void __tsan_func_entry(void *from) { (void)from; }
void __tsan_func_exit(void) {}

#define PLAIN(bytes)                                                                   \
    void __tsan_read##bytes(void *at) { see(at, bytes, 0, FROM); }                     \
    void __tsan_write##bytes(void *at) { see(at, bytes, 1, FROM); }                    \
    void __tsan_unaligned_read##bytes(void *at) { see(at, bytes, 0, FROM); }           \
    void __tsan_unaligned_write##bytes(void *at) { see(at, bytes, 1, FROM); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

void *__tsan_memcpy(void *to, const void *source, size_t bytes) {
    see(source, bytes, 0, FROM);
    see(to, bytes, 1, FROM);
    return memcpy(to, source, bytes);
}

void *__tsan_memmove(void *to, const void *source, size_t bytes) {
    see(source, bytes, 0, FROM);
    see(to, bytes, 1, FROM);
    return memmove(to, source, bytes);
}

void *__tsan_memset(void *to, int value, size_t bytes) {
    see(to, bytes, 1, FROM);
    return memset(to, value, bytes);
}

#define CHANGE(bits, name, change)                                                     \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t *at, uint##bits##_t value, int order) { \
        (void)order;                                                                   \
        see(at, bits / 8, 1, FROM);                                                    \
        return change(at, value, SEQ);                                                 \
    }
#define ATOMIC(bits)                                                                   \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *at, int order) { \
        (void)order;                                                                   \
        see(at, bits / 8, 0, FROM);                                                    \
        return __atomic_load_n(at, SEQ);                                               \
    }                                                                                  \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *at, uint##bits##_t value, int order) { \
        (void)order;                                                                   \
        see(at, bits / 8, 1, FROM);                                                    \
        __atomic_store_n(at, value, SEQ);                                              \
    }                                                                                  \
    uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                         \
        volatile uint##bits##_t *at, uint##bits##_t old, uint##bits##_t new, int order, int failed) { \
        (void)order, (void)failed;                                                     \
        see(at, bits / 8, 1, FROM);                                                    \
        __atomic_compare_exchange_n(at, &old, new, 0, SEQ, SEQ);                       \
        return old;                                                                    \
    }                                                                                  \
    CHANGE(bits, exchange, __atomic_exchange_n)                                        \
    CHANGE(bits, fetch_add, __atomic_fetch_add)                                        \
    CHANGE(bits, fetch_sub, __atomic_fetch_sub)                                        \
    CHANGE(bits, fetch_and, __atomic_fetch_and)                                        \
    CHANGE(bits, fetch_or, __atomic_fetch_or)                                          \
    CHANGE(bits, fetch_xor, __atomic_fetch_xor)                                        \
    CHANGE(bits, fetch_nand, __atomic_fetch_nand)
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_atomic_thread_fence(int order) {
    (void)order;
    __atomic_thread_fence(SEQ);
}

void __tsan_atomic_signal_fence(int order) { (void)order; }
