/* SPDX-License-Identifier: MIT
 *
 * calibrate.c - measures what cost.h's model is made of, with small programs on the ranks that tune, all at once: their device, as busy as it will be.
 * Each program has work of one kind more than the ones before.
 */
#include <string.h>

#include "client/tune/tuner.h"

#define REPEATS 5
#define LARGE "1048576"

static const char *const programs[] = {
    "program launch(N = 1)\nin x: f32[N]\nout y: f32[N]\ny = x + 1\n",
    "program memory(N = " LARGE ")\nin x: f32[N]\nout y: f32[N]\ny = x + 1\n",
    "program code(N = " LARGE ")\nin x: f32[N]\nout y: f32[N]\na = x * x + x\nb = a * a + x\nc = b * x + a\nd = c * c + b\n"
    "y = d * a + c * b + x\nschedule\nfuse a, b, c, d, y\n",
    "program product(N = 512)\nin a, b: f32[N, N]\nout c: f32[N, N]\nc = matmul(a, b)\n",
    "program link(N = " LARGE ")\nin x: f32[N] local\nout y: f32[N]\ny = all_reduce(x)\n",
};
enum { MEASURED = sizeof(programs) / sizeof(programs[0]) };

/* One program's row: its work, and the smallest of some times of the slowest rank. */
static int row_measure(const struct tuner *of, int i, uint64_t end, struct cost_row *row)
{
    struct tuner t = {.comm = of->comm, .text = programs[i], .length = strlen(programs[i]), .mine = of->mine, .most = of->most};
    struct error e = {.status = 0};
    fcc_program *p = NULL;
    double least = 0, seconds;
    int status = program_parse(t.text, t.length, &t.written, &e);

    if (status == 0)
        status = program_bind(t.written, t.comm->nranks, NULL, 0, &e);
    if (status == 0)
        status = candidates_make(t.written, &t.candidates, &e);
    if (status == 0)
        status = program_schedule(t.written, &e);
    if (status) /* of a constant text: on all ranks */
        (void)last_error_set(status, "tuning: calibration: %s", e.text);
    if (status == 0)
        status = memory_make(&t);
    if (status == 0)
        status = candidate_open(&t, 0, &p);
    if (status == 0) { /* also what is done once only: its kernel is made */
        status = candidate_run(&t, p, &seconds);
        kernels_await(&t, end);
    }
    for (int k = 0; k < REPEATS && status == 0; k++) {
        status = candidate_run(&t, p, &seconds);
        if (status == 0)
            status = ranks_most(&t, &seconds, 1);
        least = k == 0 || seconds < least ? seconds : least;
    }
    if (status == 0)
        *row = (struct cost_row){t.candidates.candidate[0].work, least};
    fcc_program_close(p);
    memory_free(&t);
    candidates_free(&t.candidates);
    program_free(t.written);
    return status;
}

int model_measure(struct tuner *t, uint64_t end)
{
    struct cost_row rows[MEASURED];
    int status = 0;

    for (int i = 0; i < MEASURED && status == 0; i++)
        status = row_measure(t, i, end, &rows[i]);
    if (status == 0) { /* a launch is what moves nothing, and one element is next to nothing */
        const struct cost_work more = {.instructions = rows[2].work.instructions - rows[1].work.instructions};
        const struct cost_row fitted[] = {{{.operators = rows[0].work.operators}, rows[0].seconds},
                                          {more, rows[2].seconds - rows[1].seconds}, /* of the same memory */
                                          rows[1],
                                          rows[3],
                                          rows[4]};
        t->has_model = cost_fit(fitted, t->comm->nranks > 1 ? 5 : 4, &t->model);
    }
    return status;
}
