/* SPDX-License-Identifier: MIT
 *
 * test_gpu_errors.c - nothing hangs on a GPU: a client is killed, a rank or a rank's stream never comes, a communicator is
 * aborted by a rank or with fccctl, while the others' streams wait for its operator. Each of them hears who and why, its
 * stream goes on, and the GPUs are free for another communicator. How long it took is printed, and decides nothing.
 */
#include <signal.h>

#include "tests/gpu/gpu_client.h"

enum { MEMBERS = 3, VICTIM = 1, LIMIT_MS = 300 };
#define WHY "the loss is not a number"
#define OUTSIDE "night shift"

enum event { KILLED, LATE, ABORTED, ABORTED_OUTSIDE };

static const struct {
    const char *name;
    int status;
    const char *says[4]; /* NULL at the end */
} verdicts[] = {
    [KILLED] = {"killed", -ECONNABORTED, {"rank 1", "pid", "gone"}},
    [LATE] = {"late", -ETIMEDOUT, {"rank 1", "300 ms"}},
    [ABORTED] = {"aborted", -ECONNABORTED, {"rank 1", WHY}},
    [ABORTED_OUTSIDE] = {"aborted outside", -ECONNABORTED, {"fccctl", OUTSIDE}},
};

struct scene {
    enum event event;
    bool submitted;    /* the victim has enqueued the operator too, but its stream waits for a word that does not come */
    bool other_exists; /* another communicator on the same GPUs, already then */
    struct fcc_unique_id warm, other;
    _Atomic int gates[3];
    _Atomic int begun, heard;
    double event_ms;
    double heard_ms[MEMBERS];
};

static void gate_pass(struct scene *scene, int gate)
{
    scene->gates[gate]++;
    await(&scene->gates[gate], MEMBERS);
}

static void verdict_check(const struct scene *scene, const char *call, int status)
{
    check_error(__FILE__, __LINE__, call, status, verdicts[scene->event].status, verdicts[scene->event].says);
}

/* Contexts and kernels take their time; the communicator of the test, with its time limit, is opened when they are there, and
 * its first operator has run. */
static struct product member_open(fcc_context *context, int rank, const struct ranks *all, struct scene *scene)
{
    fcc_comm *warm = client_join(context, &scene->warm, MEMBERS, rank, -1, 0);
    struct product p;

    gpu_open(warm);
    p = product_open(warm, 1);
    product_works(&p, 2);
    gate_pass(scene, 0);
    fcc_comm_destroy(warm);
    gate_pass(scene, 1);
    p = product_open(client_join(context, &all->id, MEMBERS, rank, -1, scene->event == LATE ? LIMIT_MS : 0), 1);
    product_works(&p, 3);
    return p;
}

/* On the same GPU, whose context this thread has. */
static struct product other_open(fcc_context *context, int rank, const struct scene *scene)
{
    return product_open(client_join(context, &scene->other, MEMBERS - 1, rank > VICTIM, gpu.number, 0), 1);
}

/* Through the CPU, and on the stream that has seen the other one fail. */
static void other_works(const struct product *p, void *stream)
{
    product_works(p, 5);
    gpu_fill(stream, p->x, PRODUCT_K, 7);
    product_enqueue(p, 0, stream, NULL);
    product_fetch(p, stream);
    CU(gpu.stream_synchronize(stream));
    product_check(p, gpu.host, 7);
    OK(fcc_comm_error(p->comm));
}

static void survivor_run(fcc_context *context, int rank, const struct product *p, struct scene *scene)
{
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    struct product other;
    fcc_request *request;

    if (scene->other_exists)
        other = other_open(context, rank, scene);
    gate_pass(scene, 2);
    product_enqueue(p, 0, stream, &request);
    product_enqueue(p, 0, stream, NULL);
    product_fetch(p, stream);
    scene->begun++;
    verdict_check(scene, "fcc_request_wait", fcc_request_wait(request, -1));
    scene->heard_ms[rank] = now_ms();
    printf("rank %d heard: %s\n", rank, fcc_last_error());
    CU(gpu.stream_synchronize(stream));
    printf("rank %d: its stream went on %.2f ms later\n", rank, now_ms() - scene->heard_ms[rank]);
    scene->heard++;
    verdict_check(scene, "fcc_comm_error_wait", fcc_comm_error_wait(p->comm, -1));
    verdict_check(scene, "fcc_noop", fcc_noop(p->comm));
    if (!scene->other_exists)
        other = other_open(context, rank, scene);
    other_works(&other, stream);
    fcc_request_free(request);
    fcc_comm_destroy(other.comm);
}

static void victim_run(const struct product *p, struct scene *scene)
{
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    fcc_request *request = NULL;

    gate_pass(scene, 2);
    if (scene->submitted) {
        CU(gpu.stream_wait(stream, word_address(WORD_BLOCK), 1, CUDA_WAIT_REACHED));
        product_enqueue(p, 0, stream, &request);
    }
    scene->begun++;
    if (scene->event == KILLED)
        (void)pause();
    if (scene->event == ABORTED) {
        await(&scene->begun, MEMBERS);
        (void)usleep(100000); /* the others sleep in their wait */
        scene->event_ms = now_ms();
        OK(fcc_comm_abort(p->comm, WHY));
    }
    if (request) {
        verdict_check(scene, "fcc_request_wait", fcc_request_wait(request, -1));
        gpu.words[WORD_BLOCK] = 1;
        CU(gpu.stream_synchronize(stream));
        fcc_request_free(request);
    }
    await(&scene->heard, MEMBERS - 1);
    verdict_check(scene, "fcc_noop", fcc_noop(p->comm)); /* it comes too late: it hears why */
}

static void member_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    fcc_context *context = client_connect(NULL);
    struct product p = member_open(context, rank, all, scene);

    if (rank == VICTIM)
        victim_run(&p, scene);
    else
        survivor_run(context, rank, &p, scene);
    fcc_comm_destroy(p.comm);
    fcc_disconnect(context);
}

/* The test's process makes it happen, unless the ranks or the time do. */
static void event_make(struct scene *scene, struct ranks *r)
{
    char text[1024];

    await(&scene->begun, MEMBERS);
    if (scene->event == LATE) {
        scene->event_ms = now_ms() + LIMIT_MS;
        return;
    }
    if (scene->event == ABORTED)
        return;
    (void)usleep(100000);
    scene->event_ms = now_ms();
    if (scene->event == KILLED) {
        CHECK(kill(r->pid[VICTIM], SIGKILL) == 0);
        CHECK(WIFSIGNALED(rank_wait(r, VICTIM)));
        return;
    }
    int code = program_run(text, sizeof(text), fccctl_binary(), /* 2: the one after the warm one */
                           (const char *const[]){"abort", "--comm", "2", "--reason", OUTSIDE, NULL});
    if (code)
        check_failed(__FILE__, __LINE__, "fccctl abort: %d: %s", code, text);
}

static void event_run(enum event event, bool submitted, bool other_exists)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    *scene = (struct scene){.event = event, .submitted = submitted, .other_exists = other_exists};
    fcc_context *context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &scene->warm));
    OK(fcc_get_unique_id(context, &scene->other));
    fcc_disconnect(context);
    ranks_start(&r, MEMBERS, member_rank, scene);
    event_make(scene, &r);
    ranks_join(&r);
    for (int rank = 0; rank < MEMBERS; rank++)
        if (rank != VICTIM)
            printf("%s%s%s: rank %d heard after %.2f ms\n", verdicts[event].name, submitted ? ", stream does not come" : "",
                   other_exists ? ", beside another communicator" : "", rank, scene->heard_ms[rank] - scene->event_ms);
    daemon_stop(&d);
}

/* ---- the victim has not submitted ---- */

static void killed(void)
{
    event_run(KILLED, false, false);
}

static void late(void)
{
    event_run(LATE, false, false);
}

static void aborted(void)
{
    event_run(ABORTED, false, false);
}

static void aborted_outside(void)
{
    event_run(ABORTED_OUTSIDE, false, false);
}

/* ---- it has: the worker's GPU waits for its stream, or (beside another communicator) the worker does ---- */

/* Under MPS, too: a stream that waits for a word is no running kernel, and its death was seen to cost no other process's
 * context. */
static void killed_submitted(void)
{
    event_run(KILLED, true, false);
}

static void killed_beside_another(void)
{
    event_run(KILLED, true, true);
}

static void stream_late(void)
{
    event_run(LATE, true, false);
}

static void stream_late_beside_another(void)
{
    event_run(LATE, true, true);
}

static void aborted_submitted(void)
{
    event_run(ABORTED, true, false);
}

static void aborted_beside_another(void)
{
    event_run(ABORTED, true, true);
}

static void aborted_outside_submitted(void)
{
    event_run(ABORTED_OUTSIDE, true, false);
}

static void aborted_outside_beside_another(void)
{
    event_run(ABORTED_OUTSIDE, true, true);
}

int main(void)
{
    static const struct test tests[] = {
        {"killed", killed, 0},
        {"late", late, 0},
        {"aborted", aborted, 0},
        {"aborted_outside", aborted_outside, 0},
        {"killed_submitted", killed_submitted, 0},
        {"killed_beside_another", killed_beside_another, 0},
        {"stream_late", stream_late, 0},
        {"stream_late_beside_another", stream_late_beside_another, 0},
        {"aborted_submitted", aborted_submitted, 0},
        {"aborted_beside_another", aborted_beside_another, 0},
        {"aborted_outside_submitted", aborted_outside_submitted, 0},
        {"aborted_outside_beside_another", aborted_outside_beside_another, 0},
    };
    return gpus_found() ? tests_run("gpu_errors", TESTS(tests)) : EXIT_SUCCESS;
}
