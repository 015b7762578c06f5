/* SPDX-License-Identifier: MIT
 *
 * process.c - which process an object belongs to. After a fork, the child has copies of its parent's objects, which use the
 * parent's socket and session memory: the worker would take the child's actions for the parent's. So every public function
 * first checks that its objects were made by this process. It refuses others before it touches anything, locks included, which
 * another thread may have held at the fork.
 *
 * The check costs no system call. The number of the process lies in a page that the kernel zeroes in every child
 * (MADV_WIPEONFORK). Where the kernel cannot, a handler of pthread_atfork() sets the number to 0 in children of fork(). Each
 * object keeps the number of the process that made it. A child's first connection gives the child the next number, which no
 * object of its ancestors has.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/core/context.h"

static _Atomic uint32_t no_process; /* 0: nobody has connected yet */
const _Atomic uint32_t *_Atomic process_number = &no_process;
static _Atomic(_Atomic uint32_t *) process_page; /* NULL: no page. Otherwise process_number points to the page */
static _Atomic uint32_t process_numbers;         /* how many numbers this process and its ancestors have given out */

/* The pthread_atfork() handler in a child. */
static void process_forked(void)
{
    atomic_store(atomic_load(&process_page), 0);
}

/* Takes no lock: in a forked child nobody would release the lock. */
static int page_make(void (*forked)(void))
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _Atomic uint32_t *none = NULL;
    int status;

    if (page == MAP_FAILED)
        return -errno;
    (void)madvise(page, bytes, MADV_WIPEONFORK);
    if (!atomic_compare_exchange_strong(&process_page, &none, (_Atomic uint32_t *)page)) {
        (void)munmap(page, bytes); /* another thread has installed its page first */
        return 0;
    }
    status = pthread_atfork(NULL, NULL, process_forked);
    if (!status)
        status = pthread_atfork(NULL, NULL, forked);
    return -status;
}

int process_begin(struct fcc_context *c, void (*forked)(void))
{
    int status = atomic_load(&process_page) ? 0 : page_make(forked);
    _Atomic uint32_t *number = atomic_load(&process_page);
    uint32_t none = 0;

    if (status)
        return last_error_set(status, "context: finding out about forks: %s", strerror(-status));
    (void)atomic_compare_exchange_strong(number, &none, atomic_fetch_add(&process_numbers, 1) + 1);
    atomic_store(&process_number, number);
    c->process = atomic_load(number);
    c->pid = getpid();
    return 0;
}

int handle_refuse(const char *name, const struct fcc_context *c)
{
    if (!c)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", name);
    return last_error_set(
        -ECHILD,
        "%s: it is of pid %d, from which this process (pid %d) was forked: a child cannot use what its parent "
        "connected; fcc_connect() gives it a connection of its own",
        name, c->pid, getpid());
}
