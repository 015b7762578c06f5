/* SPDX-License-Identifier: MIT
 *
 * test_schedules.c - the schedules that the tuner tries, the choice among them, and the model of costs by which some are left out.
 */
#include <errno.h>
#include <string.h>

#include "kernels/tune/schedules.h"
#include "tests/bed/harness.h"

static struct program *bound(const char *file, const char *text, int ranks)
{
    static char room[65536];
    struct program *p;
    struct error e = {0};

    if (file) {
        FILE *f = fopen(file, "r");
        CHECK(f != NULL);
        room[fread(room, 1, sizeof(room) - 1, f)] = '\0';
        (void)fclose(f);
    }
    const char *source = file ? room : text;
    if (program_parse(source, strlen(source), &p, &e) || program_bind(p, ranks, NULL, 0, &e))
        check_failed(__FILE__, __LINE__, "%s", e.text);
    return p;
}

/* Each is legal, runs, has the parameters of the program as written, and runs something else than those before it. */
static void each_is_legal(void)
{
    static const char *const files[] = {"sgd",        "adam",      "lamb",      "lamb_tensors", "epilogue", "mlp",
                                        "mlp_slices", "mlp_whole", "attention", "embedding",    "pipeline"};

    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        char path[64];
        (void)snprintf(path, sizeof(path), "client/programs/%s.fcc", files[f]);
        struct program *p = bound(path, NULL, 4);
        struct candidates c, again;
        struct error e = {0};
        CHECK(candidates_make(p, &c, &e) == 0 && candidates_make(p, &again, &e) == 0);
        CHECK(c.n > 1 && candidates_hash(&c) == candidates_hash(&again));
        for (int i = 0; i < c.n; i++) {
            struct program *q = program_copy(p), *w = program_copy(p);
            struct program_steps steps;
            CHECK(q && w && program_schedule(w, &e) == 0 && schedule_apply(q, c.candidate[i].schedule, &e) == 0);
            CHECK(parameters_equal(q, w) && program_steps(q, &steps, &e) == 0 && steps.nsteps == c.candidate[i].steps);
            program_steps_free(&steps);
            for (int k = 0; k < i; k++)
                CHECK(c.candidate[k].runs != c.candidate[i].runs);
            program_free(q);
            program_free(w);
        }
        candidates_free(&c);
        candidates_free(&again);
        program_free(p);
    }
}

/* Of a program without a schedule the one that a person would write is found: everything in one step. */
static void finds_one_step(void)
{
    struct program *p = bound(NULL,
                              "program t(N = 64)\nin g: f32[N] local\ninout p: f32[N]\nscalar lr\ns = all_reduce(g)\n"
                              "u = lr * s\np = p - u\n",
                              2);
    struct candidates c;
    struct error e = {0};
    bool one = false;

    CHECK(candidates_make(p, &c, &e) == 0);
    CHECK(strcmp(c.candidate[0].schedule, "") == 0 && c.candidate[0].steps > 1);
    for (int i = 0; i < c.n; i++)
        one |= c.candidate[i].steps == 1;
    CHECK(one);
    candidates_free(&c);
    program_free(p);
}

/* What an exchange can send while the rest is made is tried with `overlap`, which is a step of its own kind. */
static void overlaps(void)
{
    struct program *p = bound("client/programs/mlp.fcc", NULL, 2);
    struct candidates c;
    struct error e = {0};
    int n = 0;

    CHECK(candidates_make(p, &c, &e) == 0);
    for (int i = 0; i < c.n; i++) {
        struct program *q = program_copy(p);
        struct program_steps steps;
        bool overlaps = false;
        CHECK(q && schedule_apply(q, c.candidate[i].schedule, &e) == 0 && program_steps(q, &steps, &e) == 0);
        for (uint32_t k = 0; k < steps.nsteps; k++)
            overlaps |= steps.steps[k].overlaps;
        CHECK(overlaps == (strstr(c.candidate[i].schedule, "overlap product, s") != NULL));
        n += overlaps;
        program_steps_free(&steps);
        program_free(q);
    }
    CHECK(n > 1);
    candidates_free(&c);
    program_free(p);
}

static void does_not_run(void)
{
    struct program *p = bound(NULL, "program t()\nin x: f32[4] sliced(0)\nout y: f32[4] sliced(0)\ny = all_to_all(x, 0)\n", 2);
    struct candidates c;
    struct error e = {0};

    CHECK(candidates_make(p, &c, &e) < 0 && c.n == 0 && *e.text);
    program_free(p);
}

static void texts(void)
{
    const char *text = "program t()\n# schedule\nx = 1\n  schedule # it\nsplit s\n";
    char *out = text_with_schedule(text, strlen(text), "fuse a, b\n");

    CHECK(out && strcmp(out, "program t()\n# schedule\nx = 1\nschedule\nfuse a, b\n") == 0);
    free(out);
    out = text_with_schedule("program t()", 11, "");
    CHECK(out && strcmp(out, "program t()\nschedule\n") == 0);
    free(out);
}

static void choices(void)
{
    const double clear[] = {3, 3, 3, 2, 2, 9, 2.5, 2.5, 2.5}, near[] = {3, 3, 3, 2.99, 2.99, 2.99};
    const double lucky[] = {3, 1, 3, 1, 1, 2.9, 4, 2.9, 4, 4};

    CHECK(candidates_choose(clear, 3, 3, 0.02) == 1); /* one round was disturbed */
    CHECK(candidates_choose(near, 2, 3, 0.02) == 0);
    CHECK(candidates_choose(lucky, 2, 5, 0.02) == 0); /* no smaller median */
    CHECK(candidates_choose(clear, 1, 3, 0.02) == 0 && candidates_choose(clear, 3, 0, 0.02) == 0);
}

static void costs(void)
{
    const struct cost_row rows[] = {{{.operators = 1}, 0.5},
                                    {{.operators = 1, .bytes = 10}, 1.5},
                                    {{.operators = 1, .bytes = 10, .instructions = 40}, 3.5},
                                    {{.operators = 1, .bytes = 10, .link_bytes = 30}, 4.5},
                                    {{.operators = 1, .flops = 100}, 1}};
    struct cost_model m;
    const struct cost_work all = {.operators = 2, .bytes = 20, .link_bytes = 20, .pieces = 4};

    CHECK(cost_fit(rows, 5, &m));
    CHECK(m.launch_s == 0.5 && m.memory_bytes_s == 10 && m.instructions_s == 20 && m.link_bytes_s == 10 && m.flops_s == 200);
    CHECK(cost_time(&m, &all) == 5);
    const struct cost_work product = {.operators = 1, .worked_bytes = 20, .flops = 200},
                           reads = {.worked_bytes = 20, .flops = 20};
    CHECK(cost_time(&m, &product) == 2.5 && cost_time(&m, &reads) == 2); /* the longer of both times */
    m.link_works_alone = true;
    CHECK(cost_time(&m, &all) == 3.5);
    CHECK(!cost_fit((struct cost_row[]){{{.operators = 1}, 2}, {{.operators = 1, .bytes = 8}, 1}}, 2, &m)); /* noise */
    CHECK(cost_time(&m, &all) < 0);
}

int main(void)
{
    const struct test tests[] = {{"each_is_legal", each_is_legal, 0},
                                 {"finds_one_step", finds_one_step, 0},
                                 {"overlaps", overlaps, 0},
                                 {"does_not_run", does_not_run, 0},
                                 {"texts", texts, 0},
                                 {"choices", choices, 0},
                                 {"costs", costs, 0}};

    return tests_run("schedules", TESTS(tests));
}
