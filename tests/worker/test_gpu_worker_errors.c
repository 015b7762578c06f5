/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_errors.c - nothing hangs and nothing is left behind, with the real daemon and the real library on fake
 * GPUs: ranks, streams and kernels that do not come or do not end, whatever ends their communicator. What goes on after that is
 * in test_gpu_worker_outlive.c, what ends one operator alone in test_gpu_worker_refusals.c, how a worker ends in
 * test_gpu_worker_ends.c. Some of the same on real GPUs is in test_gpu_errors.c and test_gpu_jobs.c; here it runs under the
 * sanitizers, and comes about at will.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"

/* ---- failures: the others hear who and why, streams go on, and the GPUs are free for another communicator ---- */

enum { MEMBERS = 3, VICTIM = 1, LIMIT_MS = 1000 };
#define WHY "the loss is not a number"
#define OUTSIDE "night shift"

enum event { KILLED, LATE, ABORTED, ABORTED_OUTSIDE };
enum victim {
    DOES_NOT_COME, /* to the operator */
    STREAM_LATE,   /* has enqueued it, but its stream does not come */
    KERNELS_HELD,  /* the operator runs, and does not end by itself */
};

struct scene {
    enum event event;
    enum victim victim;
    bool host_words;   /* streams hand over in the host's memory */
    bool other_exists; /* another communicator on the same GPUs, already then: the worker, not the GPU, waits for the streams */
    struct fcc_unique_id other;
    _Atomic int begun, heard, open;
};

static void verdict_check(const struct scene *scene, const char *call, int status)
{
    static const struct {
        int status;
        const char *says[4]; /* NULL at the end */
    } verdicts[] = {
        [KILLED] = {-ECONNABORTED, {"rank 1", "pid", "gone"}},
        [ABORTED] = {-ECONNABORTED, {"rank 1", WHY}},
        [ABORTED_OUTSIDE] = {-ECONNABORTED, {"fccctl", OUTSIDE}},
    };
    static const char *const late[][4] = {
        [DOES_NOT_COME] = {"rank 1 did not come within the time limit of 1000 ms"},
        [STREAM_LATE] = {"the stream of rank 1 did not come to it within the time limit of 1000 ms"},
        [KERNELS_HELD] = {"ran longer than the time limit of 1000 ms"},
    };

    if (scene->event == LATE)
        check_error(__FILE__, __LINE__, call, status, -ETIMEDOUT, late[scene->victim]);
    else
        check_error(__FILE__, __LINE__, call, status, verdicts[scene->event].status, verdicts[scene->event].says);
}

static struct product other_open(fcc_context *context, int rank, const struct scene *scene)
{
    return product_open(client_join(context, &scene->other, MEMBERS - 1, rank > VICTIM, 0));
}

static void survivor_run(fcc_context *context, int rank, const struct product *p, struct scene *scene)
{
    void *stream = stream_open();
    struct product other;
    fcc_request *request;

    if (scene->other_exists)
        other = other_open(context, rank, scene);
    product_enqueue(p, stream, &request);
    product_enqueue(p, stream, NULL);
    scene->begun++;
    verdict_check(scene, "fcc_request_wait", fcc_request_wait(request, -1));
    stream_sync(stream);
    scene->heard++;
    await(&scene->heard, MEMBERS - 1);
    verdict_check(scene, "fcc_comm_error_wait", fcc_comm_error_wait(p->comm, -1));
    verdict_check(scene, "fcc_noop", fcc_noop(p->comm));
    fake->hold = 0;
    if (!scene->other_exists)
        other = other_open(context, rank, scene);
    product_works(&other, stream);
    fcc_request_free(request);
    fcc_comm_destroy(other.comm);
    stream_close(stream);
}

static void victim_run(const struct product *p, struct scene *scene)
{
    void *stream = stream_open();
    fcc_request *request = NULL;

    if (scene->victim == STREAM_LATE)
        stream_gate(stream, &scene->open);
    if (scene->victim != DOES_NOT_COME)
        product_enqueue(p, stream, &request);
    scene->begun++;
    if (scene->event == KILLED)
        (void)pause();
    if (scene->event == ABORTED) {
        await(&scene->begun, MEMBERS);
        if (scene->victim == KERNELS_HELD)
            await(&fake->begun, GPUS);
        (void)usleep(20000); /* the others sleep in their wait */
        OK(fcc_comm_abort(p->comm, WHY));
    }
    if (request)
        verdict_check(scene, "fcc_request_wait", fcc_request_wait(request, -1));
    await(&scene->heard, MEMBERS - 1);
    verdict_check(scene, "fcc_noop", fcc_noop(p->comm)); /* it comes too late: it hears why */
    scene->open = 1;
    stream_close(stream);
    fcc_request_free(request);
}

static void member_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, MEMBERS, rank, scene->event == LATE ? LIMIT_MS : 0));
    if (rank == VICTIM)
        victim_run(&p, scene);
    else
        survivor_run(context, rank, &p, scene);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

/* The test's process makes it happen, unless the ranks or the time do. */
static void event_make(struct scene *scene, struct ranks *r)
{
    char text[1024];

    await(&scene->begun, MEMBERS);
    if (scene->event == LATE || scene->event == ABORTED)
        return;
    if (scene->victim == KERNELS_HELD)
        await(&fake->begun, GPUS);
    (void)usleep(20000);
    if (scene->event == KILLED) {
        CHECK(kill(r->pid[VICTIM], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(r, VICTIM)));
        return;
    }
    int code = program_run(text, sizeof(text), fccctl_binary(),
                           (const char *const[]){"abort", "--comm", "1", "--reason", OUTSIDE, NULL});
    if (code)
        check_failed(__FILE__, __LINE__, "fccctl abort: %d: %s", code, text);
}

static void event_run(enum event event, enum victim victim, bool other_exists, bool host_words)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    (void)fprintf(stderr, "event %d, victim %d, other %d\n", event, victim, other_exists);
    fake_start(&d, GPUS, NULL);
    fake->no_gpu_words = host_words;
    *scene = (struct scene){.event = event, .victim = victim, .other_exists = other_exists};
    scene->other = id_make();
    fake->hold = victim == KERNELS_HELD ? ALL_GPUS : 0;
    ranks_start(&r, MEMBERS, member_rank, scene);
    event_make(scene, &r);
    ranks_join(&r);
    fake_stop(&d);
}

/* One test for each: in the order of the enums. */
#define EVENT(name, event, victim)                                                                                             \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        event_run(event, victim, false, false);                                                                                \
    }                                                                                                                          \
    static void name##_beside_another(void)                                                                                    \
    {                                                                                                                          \
        event_run(event, victim, true, false);                                                                                 \
    }
EVENT(killed, KILLED, DOES_NOT_COME)
EVENT(killed_late, KILLED, STREAM_LATE)
EVENT(killed_held, KILLED, KERNELS_HELD)
EVENT(late, LATE, DOES_NOT_COME)
EVENT(late_stream, LATE, STREAM_LATE)
EVENT(late_held, LATE, KERNELS_HELD)
EVENT(aborted, ABORTED, DOES_NOT_COME)
EVENT(aborted_late, ABORTED, STREAM_LATE)
EVENT(aborted_held, ABORTED, KERNELS_HELD)
EVENT(aborted_outside, ABORTED_OUTSIDE, DOES_NOT_COME)
EVENT(aborted_outside_late, ABORTED_OUTSIDE, STREAM_LATE)
EVENT(aborted_outside_held, ABORTED_OUTSIDE, KERNELS_HELD)

/* Streams that have not come, by the other words. */
static void killed_late_host_words(void)
{
    event_run(KILLED, STREAM_LATE, false, true);
}

static void late_stream_host_words(void)
{
    event_run(LATE, STREAM_LATE, false, true);
}

static void aborted_late_host_words(void)
{
    event_run(ABORTED, STREAM_LATE, false, true);
}

int main(int argc, char *argv[])
{
#define PAIR_OF(name)                                                                                                          \
    {#name, name, 0},                                                                                                          \
    {                                                                                                                          \
#name "_beside_another", name##_beside_another, 0                                                                      \
    }
    static const struct test tests[] = {
        PAIR_OF(killed),
        PAIR_OF(killed_late),
        PAIR_OF(killed_held),
        PAIR_OF(late),
        PAIR_OF(late_stream),
        PAIR_OF(late_held),
        PAIR_OF(aborted),
        PAIR_OF(aborted_late),
        PAIR_OF(aborted_held),
        PAIR_OF(aborted_outside),
        PAIR_OF(aborted_outside_late),
        PAIR_OF(aborted_outside_held),
        {"killed_late_host_words", killed_late_host_words, 0},
        {"late_stream_host_words", late_stream_host_words, 0},
        {"aborted_late_host_words", aborted_late_host_words, 0},
    };
#undef PAIR_OF
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_errors", TESTS(tests));
}
