/* SPDX-License-Identifier: MIT */
#include "daemon/common/account.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/sealed.h"

#define TRIES 16 /* attempts to charge if other workers charge at the same time */

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

uint64_t account_used(const struct account *a)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < a->nplaces; i++)
        sum = add(sum, account_used_by(a, i));
    return sum;
}

uint64_t account_used_by(const struct account *a, uint32_t place)
{
    uint64_t n = place < a->nplaces ? atomic_load_explicit(&a->places[place], memory_order_seq_cst) : 0;

    return n > INT64_MAX ? INT64_MAX : n;
}

bool account_charge(struct account *a, uint32_t place, uint64_t bytes, uint64_t limit, uint64_t *used)
{
    for (int i = 0; i < TRIES; i++) {
        (void)atomic_fetch_add_explicit(&a->places[place], bytes, memory_order_seq_cst);
        uint64_t all = account_used(a);
        if (all <= limit && bytes <= all)
            return true;
        (void)atomic_fetch_sub_explicit(&a->places[place], bytes, memory_order_seq_cst);
        *used = account_used(a);
        if (bytes > limit || *used > limit - bytes)
            return false; /* over the limit even without other workers' attempts */
        (void)sched_yield();
    }
    return false;
}

void account_release(struct account *a, uint32_t place, uint64_t bytes)
{
    (void)atomic_fetch_sub_explicit(&a->places[place], bytes, memory_order_seq_cst);
}

void account_clear(struct account *a, uint32_t place)
{
    atomic_store_explicit(&a->places[place], 0, memory_order_seq_cst);
}
