/* SPDX-License-Identifier: MIT
 *
 * tune.c - the way of a tuning: what caches have; or candidates, estimates, a first look at each, rounds of the best, and the choice.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/program/program.h"
#include "client/submission.h"
#include "client/tune/tuner.h"
#include "proto/base/clock.h"
#include "proto/base/disk_cache.h"

#define LIMIT_MS 20000
#define SLOW 2.0    /* an estimate, or a first time, so many times the best is out */
#define MARGIN 0.02 /* by which a winner is faster than the program as written */
#define LOOKS 2     /* runs of each candidate before the rounds */
#define SCHEDULE_BYTES 16384

struct tuned {
    struct fcc_tuning tuning; /* what the caller sees */
    struct fcc_tune_row rows[CANDIDATES_MAX];
    char cache[FCC_TEXT_MAX + 512];
};

void fcc_tuning_free(struct fcc_tuning *tuning)
{
    struct tuned *out = (struct tuned *)tuning; /* its first field */

    if (!out)
        return;
    for (int i = 0; i < out->tuning.nrows; i++)
        free((char *)(uintptr_t)out->rows[i].schedule);
    free((char *)(uintptr_t)out->tuning.text);
    free(out);
}

static bool limit_reached(struct tuner *t, uint64_t end, int *status)
{
    double late = t->comm->rank == 0 && clock_ns() > end;

    *status = ranks_most(t, &late, 1);
    return late > 0;
}

/* The first runs of candidate i: does it run, does it make what the program as written makes, and how long does it take? An error is the communicator's:
 * what concerns the candidate alone is its row's state, on all ranks the same. */
static int candidate_look(struct tuner *t, int i)
{
    struct fcc_tune_row *row = &t->rows[i];
    fcc_program *p = NULL;
    double seconds = 0, board[1] = {0};
    bool wrong = false;
    int status = candidate_open(t, i, &p);

    board[0] = status != 0;
    if (ranks_most(t, board, 1))
        return status ? status : -ECONNABORTED;
    if (board[0] > 0) {
        if (!status)
            fcc_program_close(p);
        row->state = FCC_TUNE_FAILED;
        return i ? 0 : status ? status : last_error_set(-EIO, "tuning: another rank cannot open the program as written");
    }
    for (int k = 0; k < LOOKS && board[0] == 0; k++) {
        status = candidate_run(t, p, &seconds);
        if (status == 0 && k == 0 && i)
            wrong = !results_agree(t);
        else if (status == 0 && k == 0)
            status = results_keep(t);
        /* a step that is refused is refused on all ranks; if they can still compare numbers, it is the candidate that does not run */
        double seen[3] = {status != 0, wrong, seconds};
        if (ranks_most(t, seen, 3)) {
            fcc_program_close(p);
            return status ? status : -ECONNABORTED;
        }
        board[0] = seen[0];
        wrong = seen[1] > 0;
        row->measured_s = k == 0 || seen[2] < row->measured_s ? seen[2] : row->measured_s;
    }
    fcc_program_close(p);
    if (board[0] > 0 && i == 0) /* the program as written does not run */
        return status ? status : last_error_set(-EIO, "tuning: another rank cannot run the program as written");
    row->state = board[0] > 0 ? FCC_TUNE_FAILED : wrong ? FCC_TUNE_WRONG : FCC_TUNE_TIMED;
    row->measured_s = board[0] > 0 ? 0 : row->measured_s;
    return 0;
}

/* One run of candidate i, so that the worker makes its kernels. What does not open or run the first look finds. */
static int candidate_warm(struct tuner *t, int i)
{
    fcc_program *p = NULL;
    double seconds, failed;
    int status = candidate_open(t, i, &p);

    const bool opened = status == 0;
    failed = !opened;
    int told = ranks_most(t, &failed, 1);
    if (told == 0 && failed == 0) {
        status = candidate_run(t, p, &seconds);
        failed = status != 0;
        told = ranks_most(t, &failed, 1);
    }
    if (opened)
        fcc_program_close(p);
    return told ? (status ? status : told) : 0;
}

/* The best estimate; -1: there is none. */
static double estimate_best(const struct tuner *t)
{
    double best = -1;

    for (int i = 0; i < t->candidates.n; i++)
        best = t->rows[i].estimate_s >= 0 && (best < 0 || t->rows[i].estimate_s < best) ? t->rows[i].estimate_s : best;
    return best;
}

static bool is_too_slow(const struct tuner *t, int i, double best)
{
    return i && best >= 0 && t->rows[i].estimate_s > SLOW * best;
}

/* On GPUs what is timed has kernels, as it will have: those of all candidates are made side by side, before the first one is timed. */
static int kernels_make(struct tuner *t, uint64_t end)
{
    const double best = estimate_best(t);
    int status = 0;

    for (int i = 0; i < t->candidates.n && status == 0 && t->comm->kind != FCC_DEVICE_CPU; i++)
        if (!is_too_slow(t, i, best) && !limit_reached(t, end, &status) && status == 0)
            status = candidate_warm(t, i);
    if (status == 0)
        kernels_await(t, end);
    return status;
}

static void tell(const struct fcc_tune_options *o, int done, int all)
{
    if (o->progress)
        o->progress(o->argument, done, all);
}

/* The first look at all, the best estimates first. */
static int looks(struct tuner *t, const struct fcc_tune_options *o, uint64_t end)
{
    const int n = t->candidates.n;
    bool looked[CANDIDATES_MAX] = {false};
    const double best = estimate_best(t);
    int status = 0;

    for (int done = 0; done < n && status == 0; done++) {
        int next = done ? -1 : 0; /* the program as written is the first */
        for (int i = 0; i < n && done; i++)
            if (!looked[i] && (next < 0 || t->rows[i].estimate_s < t->rows[next].estimate_s))
                next = i;
        looked[next] = true;
        if (is_too_slow(t, next, best))
            t->rows[next].state = FCC_TUNE_SLOW;
        else if (next && limit_reached(t, end, &status))
            t->rows[next].state = FCC_TUNE_LATE;
        else if (status == 0)
            status = candidate_look(t, next);
        tell(o, done + 1, n + ROUNDS);
    }
    return status;
}

/* The program as written and the fastest others. Returns their number. */
static int finalists_choose(struct tuner *t, int out[FINALISTS])
{
    int n = 1;

    out[0] = 0;
    for (; n < FINALISTS; n++) {
        int next = -1;
        for (int i = 1; i < t->candidates.n; i++) {
            bool taken = t->rows[i].state != FCC_TUNE_TIMED;
            for (int k = 0; k < n; k++)
                taken |= out[k] == i;
            if (!taken && (next < 0 || t->rows[i].measured_s < t->rows[next].measured_s))
                next = i;
        }
        if (next < 0 || (n > 1 && t->rows[next].measured_s > SLOW * t->rows[out[1]].measured_s))
            break;
        out[n] = next;
    }
    return n;
}

/* Rounds of the finalists, every other one in reverse. Sets the winner. */
static int rounds(struct tuner *t, const struct fcc_tune_options *o, uint64_t end, int *winner)
{
    fcc_program *p[FINALISTS] = {NULL};
    double seconds[FINALISTS * ROUNDS], board[BOARD];
    int finalists[FINALISTS], made = 0, status = 0;
    const int n = finalists_choose(t, finalists);

    for (int k = 0; k < n && status == 0; k++)
        status = candidate_open(t, finalists[k], &p[k]);
    for (bool late = n < 2; made < ROUNDS && !late && status == 0; made++) {
        for (int k = 0; k < n && status == 0; k++) {
            const int now = made % 2 ? n - 1 - k : k;
            status = candidate_run(t, p[now], &board[now]);
        }
        if (status == 0)
            status = ranks_most(t, board, n);
        for (int k = 0; k < n; k++)
            seconds[k * ROUNDS + made] = board[k];
        late = status == 0 && made >= 2 && limit_reached(t, end, &status);
        tell(o, t->candidates.n + made + 1, t->candidates.n + ROUNDS);
    }
    for (int k = 0; k < n; k++) /* candidates_choose() takes them without gaps */
        memmove(seconds + (size_t)k * (size_t)made, seconds + (size_t)k * ROUNDS, (size_t)made * sizeof(*seconds));
    for (int k = 0; k < n && status == 0 && made; k++)
        t->rows[finalists[k]].measured_s = median_of(seconds + (size_t)k * (size_t)made, made);
    *winner = status == 0 ? finalists[candidates_choose(seconds, n, made, MARGIN)] : 0;
    for (int k = 0; k < n; k++)
        fcc_program_close(p[k]);
    return status;
}

static int measure(struct tuner *t, const struct fcc_tune_options *o, uint64_t begin, int *winner)
{
    const uint64_t end = begin + (uint64_t)(o->limit_ms ? o->limit_ms : LIMIT_MS) * 1000000;
    const double hash = (double)candidates_hash(&t->candidates);
    double board[2] = {hash, -hash};
    int status = ranks_most(t, board, 2);

    if (status == 0 && board[0] != -board[1])
        status =
            last_error_set(-EPROTO, "tuning: ranks have different lists of schedules: allowed is one version of the library");
    if (status == 0)
        status = model_measure(t, end);
    /* estimates order what all ranks do, so they are of one model: that of the slowest rank in each figure */
    for (int i = 0; i < t->candidates.n && status == 0; i++) {
        double estimate = t->has_model ? cost_time(&t->model, &t->candidates.candidate[i].work) : -1;
        status = ranks_most(t, &estimate, 1);
        t->rows[i].estimate_s = estimate;
    }
    if (status == 0)
        status = memory_make(t);
    if (status == 0)
        status = kernels_make(t, end);
    if (status == 0)
        status = looks(t, o, end);
    return status ? status : rounds(t, o, end, winner);
}

/* ---- caches ---- */

static struct disk_cache cache_of(const struct fcc_tune_options *o)
{
    return (struct disk_cache){.directory = o->cache, .name = "fccd-tuned", .bytes_most = 65536, .files_most = 4096};
}

/* Program, sizes, ranks, device, version, on one line. */
static char *key_make(const struct tuner *t, const struct program *plain)
{
    char *text = program_print(plain), *key = NULL, host[65] = "";

    (void)gethostname(host, sizeof(host) - 1);
    if (text && asprintf(&key, "%s; %d ranks; device %d; %ld cores; %s; ", fcc_version(), t->comm->nranks, (int)t->comm->kind,
                         sysconf(_SC_NPROCESSORS_ONLN), host) < 0)
        key = NULL;
    char *whole = NULL;
    if (key && asprintf(&whole, "%s%s", key, text) < 0)
        whole = NULL;
    for (char *c = whole ? strchr(whole, '\n') : NULL; c; c = strchr(c, '\n'))
        *c = ';';
    free(text);
    free(key);
    return whole;
}

/* The schedule of the first rank whose cache has one, on all ranks, to be freed; NULL with 0: none has. */
static int schedule_share(struct tuner *t, const char *own, bool again, char **out)
{
    const int ranks = t->comm->nranks;
    double board[2] = {own && strlen(own) < SCHEDULE_BYTES ? ranks - t->comm->rank : 0, t->comm->rank == 0 && again};
    fcc_buffer *in = NULL, *all = NULL;
    int status = ranks_most(t, board, 2);
    const int root = ranks - (int)board[0];
    char *text = calloc(1, SCHEDULE_BYTES);

    *out = NULL;
    if (status || board[0] < 1 || board[1] > 0) {
        free(text);
        return status;
    }
    int made = text ? 0 : -ENOMEM;
    if (!made)
        made = fcc_buffer_alloc(t->comm, FCC_BUFFER_LOCAL, SCHEDULE_BYTES, &in);
    if (!made)
        made = fcc_buffer_alloc(t->comm, FCC_BUFFER_RESULT, SCHEDULE_BYTES, &all);
    if (!made && t->comm->rank == root) {
        (void)snprintf(text, SCHEDULE_BYTES, "%s", own);
        made = fcc_buffer_write(in, 0, text, SCHEDULE_BYTES);
    }
    board[0] = made != 0;
    status = ranks_most(t, board, 1);
    if (status == 0 && board[0] > 0)
        status = made ? last_error_set(made, "tuning: no memory for a schedule")
                      : last_error_set(-ENOMEM, "tuning: another rank has no memory");
    if (status == 0)
        status = fcc_broadcast(t->comm, &(struct fcc_broadcast_args){.in = t->comm->rank == root
                                                                               ? fcc_tensor_1d(in, 0, FCC_U8, SCHEDULE_BYTES)
                                                                               : (struct fcc_tensor){.buffer = NULL},
                                                                     .out = fcc_tensor_1d(all, 0, FCC_U8, SCHEDULE_BYTES),
                                                                     .root = root});
    if (status == 0)
        status = fcc_buffer_read(all, 0, text, SCHEDULE_BYTES - 1);
    fcc_buffer_free(in);
    fcc_buffer_free(all);
    *out = status ? NULL : text;
    if (status)
        free(text);
    return status;
}

/* Whether the schedule is one of this program: pure, so the same on all ranks. */
static bool schedule_fits(const struct tuner *t, const struct program *plain, const char *schedule)
{
    struct program *p = program_copy(plain);
    struct program_steps steps;
    bool fits = p && schedule_apply(p, schedule, NULL) == 0 && parameters_equal(p, t->written);

    if (fits && (fits = program_steps(p, &steps, NULL) == 0))
        program_steps_free(&steps);
    program_free(p);
    return fits;
}

/* ---- the whole ---- */

static int result_make(struct tuner *t, struct tuned *out, int winner, uint64_t begin)
{
    for (int i = 0; i < t->candidates.n; i++) { /* the texts change hands */
        out->rows[i] = t->rows[i];
        out->rows[i].schedule = t->candidates.candidate[i].schedule;
        out->rows[i].steps = (int32_t)t->candidates.candidate[i].steps;
    }
    out->tuning.rows = out->rows;
    out->tuning.nrows = t->candidates.n;
    out->tuning.winner = winner;
    t->candidates.n = 0;
    out->tuning.schedule = out->rows[winner].schedule;
    out->tuning.text = text_with_schedule(t->text, t->length, out->tuning.schedule);
    out->tuning.cache = out->cache;
    out->tuning.seconds = (double)(clock_ns() - begin) * 1e-9;
    return out->tuning.text ? 0 : last_error_set(-ENOMEM, "out of memory");
}

/* What all ranks have the same of, before any of them looks into its cache. */
static int tuner_begin(struct tuner *t, struct program **plain, struct error *e)
{
    struct program_size sizes[PROGRAM_SIZES_MAX];

    if (!t->text || t->nsizes < 0 || t->nsizes > (int)PROGRAM_SIZES_MAX || (t->nsizes && !t->sizes))
        return error_set(e, -EINVAL, "text: NULL, or sizes: %d: allowed are a text and 0 to %u sizes", t->nsizes,
                         PROGRAM_SIZES_MAX);
    for (int i = 0; i < t->nsizes; i++) {
        if (!t->sizes[i].name)
            return error_set(e, -EINVAL, "sizes[%d].name: NULL: not allowed", i);
        sizes[i] = (struct program_size){t->sizes[i].name, t->sizes[i].value};
    }
    if (program_parse(t->text, t->length, plain, e) || program_bind(*plain, t->comm->nranks, sizes, (size_t)t->nsizes, e))
        return e->status;
    t->written = program_copy(*plain);
    if (!t->written)
        return error_set(e, -ENOMEM, "out of memory");
    if (program_schedule(t->written, e) || candidates_make(*plain, &t->candidates, e))
        return e->status;
    if (fcc_buffer_alloc(t->comm, FCC_BUFFER_LOCAL, BOARD * sizeof(double), &t->mine) ||
        fcc_buffer_alloc(t->comm, FCC_BUFFER_RESULT, BOARD * sizeof(double), &t->most))
        return error_set(e, -ENOMEM, "%s", fcc_last_error());
    return 0;
}

static int tune(struct tuner *t, const struct program *plain, const struct fcc_tune_options *o, struct tuned *out)
{
    const uint64_t begin = clock_ns();
    struct error e = {.status = 0};
    const struct disk_cache cache = cache_of(o);
    size_t bytes;
    char *key = key_make(t, plain), *own = key ? disk_cache_read(&cache, key, &bytes, &e) : NULL, *shared = NULL,
         path[DISK_CACHE_PATH] = "";
    int winner = 0, status = schedule_share(t, own, o->again, &shared);

    if (status == 0 && shared && schedule_fits(t, plain, shared)) {
        candidates_free(&t->candidates);
        t->candidates.n = 1;
        t->candidates.candidate[0] = (struct candidate){.schedule = shared};
        shared = NULL;
        t->rows[0].estimate_s = -1;
        out->tuning.from_cache = 1;
    } else if (status == 0) {
        status = measure(t, o, begin, &winner);
    }
    if (status == 0 && own && out->tuning.from_cache)
        (void)snprintf(out->cache, sizeof(out->cache), "read");
    else if (status == 0 && key &&
             disk_cache_write(&cache, key, t->candidates.candidate[winner].schedule,
                              strlen(t->candidates.candidate[winner].schedule), path, &e) == 0)
        (void)snprintf(out->cache, sizeof(out->cache), "%s", path);
    else
        (void)snprintf(out->cache, sizeof(out->cache), "not kept: %s", e.text);
    free(key);
    free(own);
    free(shared);
    return status ? status : result_make(t, out, winner, begin);
}

/* Tunes, with memory that the caller frees. */
static int tuned_make(struct tuner *t, const struct fcc_tune_options *options, struct tuned *made)
{
    const struct fcc_tune_options none = {.cache = NULL};
    struct error e = {.status = 0};
    struct program *plain = NULL;
    int status = tuner_begin(t, &plain, &e);

    if (status == 0)
        status = program_agree(t->comm, t->text, t->length, plain, false);
    else
        status = operator_refuse_all(t->comm, FCC_PROGRAM_STEP, e.status, e.text);
    if (status == 0)
        status = tune(t, plain, options ? options : &none, made);
    memory_free(t);
    fcc_buffer_free(t->mine);
    fcc_buffer_free(t->most);
    candidates_free(&t->candidates);
    program_free(t->written);
    program_free(plain);
    return status;
}

int fcc_program_tune(fcc_comm *comm, const char *text, size_t length, const struct fcc_program_size sizes[], int nsizes,
                     const struct fcc_tune_options *options, struct fcc_tuning **out)
{
    int status = comm_check(comm);

    if (status || !comm)
        return status;
    struct tuner t = {.comm = comm, .text = text, .length = length, .sizes = sizes, .nsizes = nsizes};
    struct tuned *made = calloc(1, sizeof(*made));
    if (!out)
        status = operator_refuse_all(comm, FCC_PROGRAM_STEP, -EINVAL, "out: NULL: not allowed");
    else if (!made)
        status = operator_refuse_all(comm, FCC_PROGRAM_STEP, -ENOMEM, "out of memory");
    else if (!(status = tuned_make(&t, options, made))) {
        *out = &made->tuning;
        return 0;
    }
    if (made)
        fcc_tuning_free(&made->tuning);
    return status;
}
