/* SPDX-License-Identifier: MIT */
#include "daemon/common/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static_assert(sizeof(struct counters) == COUNTERS * sizeof(uint64_t), "an array of numbers");
static_assert(LEDGER_METERS % 4096 == 0, "meters begin with a page");

static_assert(LEDGER_SHARE % 4096 == 0, "each writer of the share has pages of its own");

static int64_t now_ns(clockid_t clock)
{
    struct timespec t;

    (void)clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int ledger_make(void)
{
    int fd = memfd_create("fccd-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING), status;
    struct flight begin = {.magic = FLIGHT_MAGIC, .version = FLIGHT_VERSION};
    const uint64_t ncounters = COUNTERS;

    if (fd < 0)
        return -errno;
    begin.realtime_ns = now_ns(CLOCK_REALTIME) - now_ns(CLOCK_MONOTONIC);
    /* What the meters need is there before a worker writes them. */
    if (ftruncate(fd, (off_t)LEDGER_BYTES) || fallocate(fd, 0, (off_t)LEDGER_METERS, (off_t)(LEDGER_BYTES - LEDGER_METERS)) ||
        pwrite(fd, &begin, sizeof(begin) - sizeof(begin.comms), 0) < 0 ||
        pwrite(fd, &ncounters, sizeof(ncounters), (off_t)(LEDGER_METERS + offsetof(struct meters, ncounters))) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        status = -errno;
        (void)close(fd);
        return status;
    }
    return fd;
}

const struct flight *ledger_map(int fd)
{
    void *there = mmap(NULL, LEDGER_BYTES, PROT_READ, MAP_SHARED, fd, 0);

    return there == MAP_FAILED ? NULL : there;
}

void ledger_unmap(const struct flight *flight)
{
    (void)munmap((void *)flight, LEDGER_BYTES);
}

#define LEDGER_TOLD (LEDGER_SHARE + offsetof(struct share, told))

struct share_told *ledger_told_map(int fd)
{
    void *there = mmap(NULL, sizeof(struct share_told), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)LEDGER_TOLD);

    return there == MAP_FAILED ? NULL : there;
}

void ledger_told_unmap(struct share_told *told)
{
    if (told)
        (void)munmap(told, sizeof(*told));
}

/* Who writes a record or a place anew sets its `turn` or `number` to 0 first. So whoever has read any of the rest does not find the old one again when it
 * looks once more (flight_words_load()). */
void flight_comm_copy(const struct flight_comm *from, struct flight_comm *to)
{
    uint32_t number = atomic_load_explicit(&from->number, memory_order_acquire);

    *to = (struct flight_comm){.number = number, .nranks = __atomic_load_n(&from->nranks, __ATOMIC_ACQUIRE)};
    flight_words_load((char *)to + offsetof(struct flight_comm, state),
                      (const char *)from + offsetof(struct flight_comm, state),
                      offsetof(struct flight_comm, records) - offsetof(struct flight_comm, state));
    for (unsigned i = 0; i < FLIGHT_OPERATORS; i++) {
        const struct flight_record *r = &from->records[i];
        uint64_t turn = atomic_load_explicit(&r->turn, memory_order_acquire);
        flight_words_load((char *)&to->records[i] + sizeof(turn), (const char *)r + sizeof(turn), sizeof(*r) - sizeof(turn));
        to->records[i].turn = atomic_load_explicit(&r->turn, memory_order_relaxed) == turn ? turn : 0;
    }
    for (unsigned i = 0; i < FLIGHT_RUNS; i++) {
        const struct flight_run *r = &from->runs[i];
        uint64_t record = atomic_load_explicit(&r->record, memory_order_acquire);
        flight_words_load((char *)&to->runs[i] + sizeof(record), (const char *)r + sizeof(record), sizeof(*r) - sizeof(record));
        to->runs[i].record = atomic_load_explicit(&r->record, memory_order_relaxed) == record ? record : 0;
    }
    if (atomic_load_explicit(&from->number, memory_order_relaxed) != number)
        to->number = 0;
}

int ledger_open(int fd, struct flight **flight, struct meters **meters)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size != (off_t)LEDGER_BYTES)
        return -EPROTO;
    void *there = mmap(NULL, LEDGER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (there == MAP_FAILED)
        return -errno;
    *flight = there;
    *meters = (struct meters *)(void *)((char *)there + LEDGER_METERS);
    return 0;
}

void ledger_close(struct flight *flight)
{
    if (flight)
        (void)munmap(flight, LEDGER_BYTES);
}

void counters_take(const struct counters *now, struct counters *last, struct counters *sum)
{
    const uint64_t *from = (const uint64_t *)now;
    uint64_t *before = (uint64_t *)last, *to = (uint64_t *)sum;

    for (size_t i = 0; i < COUNTERS; i++) {
        uint64_t n = meter_get(&from[i]);
        if (n <= before[i] || n > INT64_MAX)
            continue;
        to[i] = to[i] + (n - before[i]) > INT64_MAX ? INT64_MAX : to[i] + (n - before[i]);
        before[i] = n;
    }
}
