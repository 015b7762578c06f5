/* SPDX-License-Identifier: MIT
 *
 * map.c - output maps: pieces of ranks' memory, one behind the other.
 *
 * On the CPU, mremap(2) with an old size of 0 maps the pages of a shared mapping once more: the same memory at another address. The
 * kernel keeps the pages while they are mapped anywhere. So a map needs nothing of its buffers, its communicator or the worker any more
 * once it is made, and outlives them all.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/core/context.h"
#include "client/device/pieces.h"
#include "client/memory/buffer.h"
#include "proto/base/huge.h"

struct fcc_map {
    uint32_t process; /* process.c's number of the process that has made the map */
    int rank;         /* of the map's owner, for error texts */
    unsigned char *data;
    size_t bytes;
    void *mapped; /* on the CPU: what is to be unmapped */
    size_t mapped_bytes;
    struct accelerator_pieces *gpu; /* NULL: on the CPU */
    int n;
    struct fcc_map_piece piece[]; /* [n], by `at` */
};

static int map_check(const struct fcc_map *m)
{
    const _Atomic uint32_t *number = atomic_load_explicit(&process_number, memory_order_relaxed);

    if (!m)
        return last_error_set(-EINVAL, "map: NULL: not allowed");
    if (m->process != atomic_load_explicit(number, memory_order_relaxed))
        return last_error_set(-ECHILD, "map: it is of the process from which this one was forked");
    return 0;
}

int fcc_map_granularity(fcc_comm *comm, size_t *out)
{
    int status = comm_check(comm);
    size_t bytes = 0;

    if (status)
        return status;
    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    if (comm->accelerator)
        status = accelerator_granularity(comm->accelerator, &bytes);
    else
        bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (!status && !bytes)
        status = last_error_set(-EIO, "rank %d: map: the device's granularity is 0", comm->rank);
    if (!status)
        *out = bytes;
    return status;
}

/* ---- what pieces may be ---- */

/* The piece, which the caller has copied, is one of this communicator by itself. `i` is its place in the caller's array. */
static int piece_check(const fcc_comm *comm, const struct fcc_map_piece *p, int i, size_t granularity)
{
    int status = buffer_check(p->buffer);

    if (status)
        return last_error_set(status, "rank %d: map: pieces[%d]: buffer: no buffer of this process", comm->rank, i);
    for (size_t r = 0; r < sizeof(p->reserved) / sizeof(p->reserved[0]); r++)
        if (p->reserved[r])
            return last_error_set(-EINVAL, "rank %d: map: pieces[%d].reserved[%zu]: %u: must be 0", comm->rank, i, r,
                                  p->reserved[r]);
    if (p->buffer->comm != comm)
        return last_error_set(-EINVAL, "rank %d: map: pieces[%d]: buffer: it is of another communicator", comm->rank, i);
    if (p->rank < 0 || p->rank >= comm->nranks)
        return last_error_set(-EINVAL, "rank %d: map: pieces[%d]: rank: %d: allowed are 0 to %d", comm->rank, i, p->rank,
                              comm->nranks - 1);
    if (p->at % granularity || p->offset % granularity)
        return last_error_set(-EINVAL,
                              "rank %d: map: pieces[%d]: %s: %llu: it must be a multiple of %zu, the granularity of this "
                              "rank's device",
                              comm->rank, i, p->at % granularity ? "at" : "offset",
                              (unsigned long long)(p->at % granularity ? p->at : p->offset), granularity);
    if (!p->bytes || p->offset > p->buffer->bytes || p->bytes > p->buffer->bytes - p->offset)
        return last_error_set(-EINVAL,
                              "rank %d: map: pieces[%d]: %llu bytes from offset %llu: they do not lie in the buffer of rank "
                              "%d, which has %zu bytes",
                              comm->rank, i, (unsigned long long)p->bytes, (unsigned long long)p->offset, p->rank,
                              p->buffer->bytes);
    if (comm->accelerator && p->offset)
        return last_error_set(-EOPNOTSUPP,
                              "rank %d: map: pieces[%d]: offset: %llu: GPU drivers map an allocation as a whole: "
                              "allowed is 0, with a buffer for each piece",
                              comm->rank, i, (unsigned long long)p->offset);
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct fcc_map_piece *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* The sorted pieces fill the map. */
static int places_check(const fcc_comm *comm, const struct fcc_map_piece piece[], int n, size_t granularity)
{
    uint64_t end = 0;

    for (int i = 0; i < n; i++) {
        const struct fcc_map_piece *p = &piece[i];
        if (p->at != end)
            return last_error_set(-EINVAL, "rank %d: map: the piece at %llu: %s %llu", comm->rank, (unsigned long long)p->at,
                                  p->at < end ? "it overlaps the piece before it, which ends at"
                                              : "there is a hole before it, from",
                                  (unsigned long long)end);
        if (i < n - 1 && p->bytes % granularity)
            return last_error_set(-EINVAL,
                                  "rank %d: map: the piece at %llu: bytes: %llu: but for the last piece it must be a multiple "
                                  "of %zu, the granularity of this rank's device",
                                  comm->rank, (unsigned long long)p->at, (unsigned long long)p->bytes, granularity);
        if (p->bytes > SIZE_MAX / 4 || end > SIZE_MAX / 4)
            return last_error_set(-EINVAL, "rank %d: map: the piece at %llu: the map would be too large", comm->rank,
                                  (unsigned long long)p->at);
        end += p->bytes;
    }
    return 0;
}

/* No memory of a rank is in the map twice: what a library stores at one address must not change what it has stored at another. */
static int aliases_check(const fcc_comm *comm, const struct fcc_map_piece piece[], int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            const struct fcc_map_piece *a = &piece[j], *b = &piece[i];
            if (a->buffer == b->buffer && a->rank == b->rank && a->offset < b->offset + b->bytes &&
                b->offset < a->offset + a->bytes)
                return last_error_set(-EINVAL,
                                      "rank %d: map: the pieces at %llu and %llu: they overlap in the memory of rank %d",
                                      comm->rank, (unsigned long long)a->at, (unsigned long long)b->at, a->rank);
        }
    return 0;
}

/* ---- mapping ---- */

static size_t up(size_t bytes, size_t granularity)
{
    return (bytes + granularity - 1) / granularity * granularity;
}

static int host_map(struct fcc_map *m, size_t page)
{
    unsigned char *place, *at;
    void *from;
    int status;

    m->mapped_bytes = up(m->bytes, page) + HUGE_BYTES;
    place = mmap(NULL, m->mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return last_error_set(-ENOMEM, "rank %d: map: no addresses for %zu bytes: %s", m->rank, m->bytes, strerror(errno));
    m->mapped = place;
    m->data = at = place + -(uintptr_t)place % HUGE_BYTES;
    for (int i = 0; i < m->n; i++) {
        const struct fcc_map_piece *p = &m->piece[i];
        size_t bytes = up((size_t)p->bytes, page);
        status = p->rank == m->rank ? 0 : fcc_buffer_peer(p->buffer, p->rank, &from);
        if (status)
            return status;
        if (p->rank == m->rank)
            from = p->buffer->map.data;
        if (mremap((unsigned char *)from + p->offset, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
            return last_error_set(-ENOMEM, "rank %d: map: mapping %zu bytes of rank %d: %s", m->rank, bytes, p->rank,
                                  strerror(errno));
        at += bytes;
    }
    return 0;
}

static int gpu_map(const fcc_comm *comm, struct fcc_map *m, size_t granularity)
{
    struct accelerator_piece *pieces = calloc((size_t)m->n, sizeof(pieces[0]));
    int status = pieces ? 0 : last_error_set(-ENOMEM, "rank %d: map: out of memory", m->rank);
    void *at;

    for (int i = 0; pieces && i < m->n && !status; i++) {
        const struct fcc_map_piece *p = &m->piece[i];
        status = p->rank == m->rank ? 0 : fcc_buffer_peer(p->buffer, p->rank, &at);
        if (status)
            break;
        /* entries of peers are only added */
        pieces[i] =
            (struct accelerator_piece){.memory = p->rank == m->rank ? &p->buffer->map.gpu : &p->buffer->peers[p->rank].gpu,
                                       .bytes = up((size_t)p->bytes, granularity)};
        if (pieces[i].bytes != pieces[i].memory->bytes)
            status = last_error_set(
                -EOPNOTSUPP,
                "rank %d: map: the piece at %llu: bytes: %llu: GPU drivers map an allocation as a whole: allowed "
                "is the buffer's length, here up to %zu, with a buffer for each piece",
                m->rank, (unsigned long long)p->at, (unsigned long long)p->bytes, pieces[i].memory->bytes);
    }
    if (!status)
        status = accelerator_pieces_map(comm->accelerator, pieces, m->n, &m->gpu);
    if (!status)
        m->data = (unsigned char *)(uintptr_t)accelerator_pieces_address(m->gpu);
    free(pieces);
    return status;
}

static void map_release(struct fcc_map *m)
{
    if (m->gpu)
        accelerator_pieces_unmap(m->gpu);
    if (m->mapped)
        (void)munmap(m->mapped, m->mapped_bytes);
    free(m);
}

static int map_make(fcc_comm *comm, const struct fcc_map_piece pieces[], int n, size_t granularity, struct fcc_map *m)
{
    int status = 0;

    *m = (struct fcc_map){.process = comm->context->process, .rank = comm->rank, .n = n};
    memcpy(m->piece, pieces, (size_t)n * sizeof(pieces[0]));
    for (int i = 0; i < n && !status; i++)
        status = piece_check(comm, &m->piece[i], i, granularity);
    if (status)
        return status;
    qsort(m->piece, (size_t)n, sizeof(m->piece[0]), by_place);
    status = places_check(comm, m->piece, n, granularity);
    if (!status)
        status = aliases_check(comm, m->piece, n);
    if (status)
        return status;
    for (int i = 0; i < n; i++)
        m->bytes += (size_t)m->piece[i].bytes;
    return comm->accelerator ? gpu_map(comm, m, granularity) : host_map(m, granularity);
}

int fcc_map_create(fcc_comm *comm, const struct fcc_map_piece pieces[], int n, fcc_map **out)
{
    struct fcc_map *m;
    size_t granularity;
    int status = comm_check(comm);

    if (status)
        return status;
    if (!pieces || !out)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", pieces ? "out" : "pieces");
    if (n < 1 || n > FCC_MAP_PIECES)
        return last_error_set(-EINVAL, "rank %d: map: n: %d pieces: allowed are 1 to %d", comm->rank, n, FCC_MAP_PIECES);
    status = fcc_map_granularity(comm, &granularity);
    if (status)
        return status;
    m = calloc(1, sizeof(*m) + (size_t)n * sizeof(pieces[0]));
    if (!m)
        return last_error_set(-ENOMEM, "rank %d: map: out of memory", comm->rank);
    status = map_make(comm, pieces, n, granularity, m);
    if (status)
        map_release(m);
    else
        *out = m;
    return status;
}

void fcc_map_free(fcc_map *map)
{
    if (map && !map_check(map))
        map_release(map);
}

void *fcc_map_data(const fcc_map *map)
{
    return map_check(map) ? NULL : map->data;
}

size_t fcc_map_size(const fcc_map *map)
{
    return map_check(map) ? 0 : map->bytes;
}

int fcc_map_find(const fcc_map *map, uint64_t offset, struct fcc_map_piece *out)
{
    int status = map_check(map);

    if (status)
        return status;
    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    for (int i = 0; i < map->n; i++)
        if (offset - map->piece[i].at < map->piece[i].bytes) {
            *out = map->piece[i];
            return 0;
        }
    return last_error_set(-EINVAL, "rank %d: map: offset: %llu: the map has %zu bytes", map->rank, (unsigned long long)offset,
                          map->bytes);
}

/* ---- rows ---- */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    assert(a > 0); /* one of the two is not 0 */
    return a;
}

int fcc_map_stride(fcc_comm *comm, uint64_t row_bytes, uint64_t rows, uint64_t element, uint64_t *out)
{
    const uint64_t most = UINT64_MAX >> 16;
    size_t granularity;
    uint64_t unit, stride;
    int status = fcc_map_granularity(comm, &granularity);

    if (status)
        return status;
    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    if (!row_bytes || !rows || !element || row_bytes > most || element > most)
        return last_error_set(-EINVAL, "rank %d: map: row_bytes %llu, rows %llu, element %llu: allowed are 1 and more",
                              comm->rank, (unsigned long long)row_bytes, (unsigned long long)rows, (unsigned long long)element);
    /* rows * stride is a multiple of the granularity where stride is one of `unit`, and so it is of the element. */
    unit = granularity / common_divisor(granularity, rows);
    unit = unit / common_divisor(unit, element) * element;
    assert(unit > 0); /* a divisor of the granularity, times the element */
    stride = (row_bytes + unit - 1) / unit * unit;
    if (stride > (row_bytes + element - 1) / element * element && (stride - row_bytes) * 10 > row_bytes)
        return last_error_set(
            -EOPNOTSUPP,
            "rank %d: map: %llu rows of %llu bytes: the smallest stride with which they are a multiple of %zu "
            "is %llu, more than 1.1 times a row: use a tensor, and a call of the library, for each piece",
            comm->rank, (unsigned long long)rows, (unsigned long long)row_bytes, granularity, (unsigned long long)stride);
    *out = stride;
    return 0;
}
