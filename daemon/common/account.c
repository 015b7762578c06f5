/* SPDX-License-Identifier: MIT */
#include "daemon/common/account.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/sealed.h"

#define TRIES 16 /* attempts to charge if other workers charge at the same time */

#define X(NAME, user, job, text) {#user, #job},
static const char *const key_names[ACCOUNT_COUNT][ACCOUNT_WHOSE] = {ACCOUNT_KINDS(X)};
#undef X
#define X(NAME, user, job, text) text,
static const char *const kind_texts[ACCOUNT_COUNT] = {ACCOUNT_KINDS(X)};
#undef X

const char *account_key(enum account_whose whose, enum account_kind kind)
{
    return key_names[kind][whose];
}

const char *account_text(enum account_kind kind)
{
    return kind_texts[kind];
}

int account_make(struct account *a, uint32_t places, int *fd)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (places * sizeof(a->places[0]) + page - 1) / page * page;
    void *memory;
    int status = sealed_memory_make("fccd-account", bytes, &memory, fd);

    if (!status)
        *a = (struct account){.places = memory, .nplaces = (uint32_t)(bytes / sizeof(a->places[0]))};
    return status;
}

int account_open(struct account *a, int fd)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < (off_t)sizeof(a->places[0]))
        return -EPROTO;
    void *memory = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    *a = (struct account){.places = memory, .nplaces = (uint32_t)((size_t)st.st_size / sizeof(a->places[0]))};
    return 0;
}

void account_close(struct account *a)
{
    if (a->places)
        (void)munmap((void *)a->places, a->nplaces * sizeof(a->places[0]));
    *a = (struct account){.places = NULL};
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return b > INT64_MAX - a ? INT64_MAX : a + b;
}

uint64_t account_used(const struct account *a, enum account_kind kind)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < a->nplaces; i++)
        sum = add(sum, account_used_by(a, i, kind));
    return sum;
}

uint64_t account_used_by(const struct account *a, uint32_t place, enum account_kind kind)
{
    uint64_t n = place < a->nplaces ? atomic_load_explicit(&a->places[place].used[kind], memory_order_seq_cst) : 0;

    return n > INT64_MAX ? INT64_MAX : n;
}

static bool is_over(uint64_t used, uint64_t more, uint64_t limit)
{
    return more > limit || used > limit - more;
}

bool account_charge(struct account *a, uint32_t place, enum account_kind kind, uint64_t more,
                    const struct account_limits *limits, struct account_refusal *why)
{
    uint64_t limit = limits->of[ACCOUNT_USER][kind], own = account_used_by(a, place, kind);
    _Atomic uint64_t *used = &a->places[place].used[kind];

    if (is_over(own, more, limits->of[ACCOUNT_JOB][kind])) {
        *why = (struct account_refusal){ACCOUNT_JOB, own};
        return false;
    }
    for (int i = 0; i < TRIES; i++) {
        /* What is too much in any case must not be there even for a moment: another worker would take it for used. */
        *why = (struct account_refusal){ACCOUNT_USER, account_used(a, kind)};
        if (is_over(why->used, more, limit))
            return false;
        (void)atomic_fetch_add_explicit(used, more, memory_order_seq_cst);
        uint64_t all = account_used(a, kind);
        if (all <= limit && more <= all)
            return true;
        (void)atomic_fetch_sub_explicit(used, more, memory_order_seq_cst);
        (void)sched_yield();
    }
    return false;
}

void account_release(struct account *a, uint32_t place, enum account_kind kind, uint64_t less)
{
    (void)atomic_fetch_sub_explicit(&a->places[place].used[kind], less, memory_order_seq_cst);
}

void account_clear(struct account *a, uint32_t place)
{
    for (int kind = 0; kind < ACCOUNT_COUNT; kind++)
        atomic_store_explicit(&a->places[place].used[kind], 0, memory_order_seq_cst);
    account_own(a, place, 0);
}

void account_own(struct account *a, uint32_t place, int32_t owner)
{
    atomic_store_explicit(&a->places[place].owner, owner, memory_order_relaxed);
}

bool account_is_owned(const struct account *a, uint32_t place)
{
    int32_t owner = atomic_load_explicit(&a->places[place].owner, memory_order_relaxed);

    return owner > 0 && (!kill(owner, 0) || errno != ESRCH);
}
