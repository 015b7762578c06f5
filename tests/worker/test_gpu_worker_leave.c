/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_leave.c - kernels that stand in a GPU's queue behind words that their client can write. When they are to leave, the worker
 * writes there what lets them go on; a client that takes that back keeps none of them there once it has stopped to do so or is gone. A kernel
 * that stays would end the worker with an error, which fake_stop() sees.
 */
#include <pthread.h>

#include "kernels/gpu/bound.h"
#include "proto/session.h"
#include "tests/fake_gpu/fake_gpu_raw.h"
#include "tests/fake_gpu/fake_gpu_runs.h"

/* Writes a word all the time. */
struct writer {
    pthread_t thread;
    _Atomic bool stop;
    _Atomic uint32_t *word;
    uint32_t value;
};

static void *writer_main(void *argument)
{
    struct writer *w = argument;

    while (!w->stop)
        atomic_store(w->word, w->value);
    return NULL;
}

static void writer_start(struct writer *w, _Atomic uint32_t *word, uint32_t value)
{
    w->stop = false;
    w->word = word;
    w->value = value;
    CHECK(pthread_create(&w->thread, NULL, writer_main, w) == 0);
}

static void writer_stop(struct writer *w)
{
    w->stop = true;
    CHECK(pthread_join(w->thread, NULL) == 0);
}

enum end { ABORTS, CLOSES, TIMES_OUT };

/* The session's memory, mapped once more by a client that keeps it when its connection is over. */
static struct fcc_session_memory *memory_keep(const struct raw *r)
{
    struct fcc_session_memory *kept = mremap(r->memory, 0, sizeof(*kept), MREMAP_MAYMOVE);

    CHECK(kept != MAP_FAILED);
    return kept;
}

static void speaker_end(struct speaker *o, enum end end)
{
    if (end == ABORTS) {
        struct fcc_comm_msg m = {.comm = o->comm, .reason = "enough"};
        CHECK(ask(o->r, &m, FCC_MSG_COMM_ABORT, sizeof(m))->status == 0);
    } else if (end == CLOSES) {
        raw_close(o->r);
        o->r = NULL;
    }
}

/* All have left. */
static void kernels_await(void)
{
    double until = await_end();

    while (fake->ended < fake->enqueued) {
        CHECK(now_ms() < until);
        nap();
    }
}

/* The stream does not come to its operator. The client says so again and again, while the worker says the contrary. */
static void taken_back(enum end end)
{
    struct fcc_session_memory *kept;
    struct test_daemon d;
    struct writer writer;
    struct speaker o;

    fake_start(&d, GPUS, end == TIMES_OUT ? (const char *const[]){"--time-limit-ms", "1000", NULL} : NULL);
    speaker_open(&o, &d);
    uint32_t slot = submit_silently(&o, FCC_PREPARE_RUN, 0, 0);
    await(&fake->enqueued, 1);
    kept = memory_keep(o.r);
    writer_start(&writer, &kept->slot[slot].stream_started, 0);
    speaker_end(&o, end);
    if (end != CLOSES)
        CHECK(daemon_logged(&d, end == ABORTS ? "enough" : "the stream of rank 0", true));
    else
        CHECK(daemon_logged(&d, "is gone", true));
    (void)usleep(20000); /* the worker has stored what lets the kernel go on, and the client 0 */
    writer_stop(&writer);
    kernels_await();
    CHECK(munmap(kept, sizeof(*kept)) == 0);
    if (o.r)
        raw_close(o.r);
    fake_stop(&d);
}

static void aborted(void)
{
    taken_back(ABORTS);
}

static void closed(void)
{
    taken_back(CLOSES);
}

static void timed_out(void)
{
    taken_back(TIMES_OUT);
}

/* A run of a bound operator, whose kernel the client has not put anywhere, so that nothing tells of its end, and one of the worker's behind it. */
static void run_missing(enum end end)
{
    struct fcc_session_memory *kept;
    struct test_daemon d;
    struct writer writer;
    struct speaker o;

    fake_start(&d, GPUS, end == TIMES_OUT ? (const char *const[]){"--time-limit-ms", "1000", NULL} : NULL);
    speaker_open(&o, &d);
    const struct fcc_binding *words = bind_repeated(&o);
    size_t at = (size_t)((const char *)&words->ended - (const char *)o.r->memory);
    (void)submit(&o, FCC_PREPARE_RUN, words->number, 1);
    int before = fake->enqueued;
    o.noop = true;
    (void)submit(&o, FCC_PREPARE_RUN, 0, 0);
    await(&fake->enqueued, before + 1);
    kept = memory_keep(o.r);
    writer_start(&writer, (_Atomic uint32_t *)(void *)((char *)kept + at), 0); /* its lower half */
    speaker_end(&o, end);
    CHECK(daemon_logged(&d, end == ABORTS ? "enough" : end == CLOSES ? "is gone" : "time limit", true));
    (void)usleep(20000);
    writer_stop(&writer);
    kernels_await();
    CHECK(munmap(kept, sizeof(*kept)) == 0);
    if (o.r)
        raw_close(o.r);
    fake_stop(&d);
}

static void run_aborted(void)
{
    run_missing(ABORTS);
}

static void run_closed(void)
{
    run_missing(CLOSES);
}

static void run_timed_out(void)
{
    run_missing(TIMES_OUT);
}

/* Two operators that wait for one word to reach two numbers: what lets the one go on could hold back the other. The second is refused. */
static void slot_used_again(void)
{
    struct test_daemon d;
    struct speaker o;

    fake_start(&d, GPUS, NULL);
    speaker_open(&o, &d);
    uint32_t slot = submit_silently(&o, FCC_PREPARE_RUN, 0, 0);
    await(&fake->enqueued, 1);
    o.again = true;
    o.count[slot] += 1u << 31;
    CHECK(submit_silently(&o, FCC_PREPARE_RUN, 0, 0) == slot);
    CHECK(daemon_logged(&d, "it uses a slot again whose operator on a stream is not over", true));
    CHECK(raw_closed(o.r));
    kernels_await();
    CHECK(fake->enqueued == 1);
    raw_close(o.r);
    fake_stop(&d);
}

/* One that is over has let its slot go. */
static void slot_used_in_turn(void)
{
    struct test_daemon d;
    struct speaker o;

    fake_start(&d, GPUS, NULL);
    speaker_open(&o, &d);
    for (unsigned i = 0; i < 2 * FCC_SLOTS; i++)
        submit_and_wait(&o, FCC_PREPARE_RUN, 0);
    raw_close(o.r);
    fake_stop(&d);
}

/* ---- prepared operators: a rank writes over what tells another rank's kernels to leave ---- */

struct vandal {
    _Atomic int step, done;
};

enum { MAPPINGS = 64 };

/* Writes zeroes all the time. */
struct spoiler {
    pthread_t thread;
    _Atomic bool begun, stop;
    _Atomic uint64_t *words[MAPPINGS];
    int n;
};

static void *spoiler_main(void *argument)
{
    struct spoiler *s = argument;

    for (; !s->stop; s->begun = true)
        for (int i = 0; i < s->n; i++)
            atomic_store(s->words[i], 0);
    return NULL;
}

/* Where the failure epoch would be in each piece of GPU memory that this process has mapped, the other rank's area among them. */
static int words_find(_Atomic uint64_t *words[MAPPINGS])
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;

    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f) && n < MAPPINGS) {
        unsigned long from, end;
        char access[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &end, access) == 3 && access[1] == 'w' && strstr(line, "memfd:fake-gpu") &&
            end - from >= GPU_PREPARED_FAILURE_AT + sizeof(uint64_t))
            words[n++] = (_Atomic uint64_t *)(from + GPU_PREPARED_FAILURE_AT);
    }
    (void)fclose(f);
    return n;
}

static void vandal_rank(int rank, const struct ranks *all, void *argument)
{
    struct vandal *v = argument;
    struct spoiler spoiler = {.n = 0};
    int step = 0;
    struct lane l;

    lane_open(&l, all, rank, 0);
    fcc_prepared *p = prepare(&l, TWO_STEPS);
    work_run(&l, TWO_STEPS, p, l.stream);
    stream_sync(l.stream);
    spoiler.n = words_find(spoiler.words);
    int runs = fake->runs;
    CHECK(spoiler.n > 1);
    step_meet(&v->step, PAIR, &step);
    if (rank == 0) { /* to which the other does not come */
        OK(fcc_prepared_enqueue(p, l.stream));
        await(&fake->runs, runs + 1);
        v->done = 1;
        stream_sync(l.stream);
        FAILS(fcc_noop(l.comm), -ECONNABORTED, "enough");
    } else {
        await(&v->done, 1);
        CHECK(pthread_create(&spoiler.thread, NULL, spoiler_main, &spoiler) == 0);
        while (!spoiler.begun)
            nap();
        OK(fcc_comm_abort(l.comm, "enough"));
        (void)usleep(20000); /* the worker has told the other's kernel to leave */
        spoiler.stop = true;
        CHECK(pthread_join(spoiler.thread, NULL) == 0);
    }
    step_meet(&v->step, PAIR, &step);
    fcc_prepared_free(p);
    lane_close(&l);
}

static void failure_written_over(void)
{
    fake_ranks_run(PAIR, vandal_rank, shared_memory(sizeof(struct vandal)));
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"aborted", aborted, 0},
        {"closed", closed, 0},
        {"timed_out", timed_out, 0},
        {"run_aborted", run_aborted, 0},
        {"run_closed", run_closed, 0},
        {"run_timed_out", run_timed_out, 0},
        {"slot_used_again", slot_used_again, 0},
        {"slot_used_in_turn", slot_used_in_turn, 0},
        {"failure_written_over", failure_written_over, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_leave", TESTS(tests));
}
