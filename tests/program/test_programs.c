/* SPDX-License-Identifier: MIT
 *
 * test_programs.c - programs on ranks of real daemons give what the reference computes in double precision, as they are written and as they are
 * scheduled, on one node and over two; and all ranks hear what is wrong with one rank's program.
 */
#include <sys/mman.h>

#include "tests/program/program_cases.h"

static void on_nodes(int nodes, int most)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, NULL);
    for (int n = nodes; n <= most; n++) {
        ranks_start(&r, n, cases_rank, NULL);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

static void on_one_node(void)
{
    on_nodes(1, 4);
}

/* All cases, until all steps have their kernels, which a thread of the worker makes meanwhile; then once more. */
static void generated_rank(int rank, const struct ranks *all, void *daemon)
{
    uint64_t(*bits)[BITS_RANKS] = case_bits;
    fcc_comm *comm = comm_open(all, rank, 0);

    for (int round = 0; round < 2; round++) {
        case_bits = round ? bits : NULL;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            case_now = (int)i;
            if (test_takes(i)) /* as cases_rank() */
                case_run(comm, rank, &cases[i]);
        }
        while (rank == 0 &&
               daemon_log_count(daemon, "step is to have a kernel") >
                   daemon_log_count(daemon, "step has its kernel") + daemon_log_count(daemon, "the interpreter runs"))
            (void)usleep(100000);
        OK(fcc_noop(comm));
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* GPUs: what the interpreter gives and what generated code gives are the reference's, and have the same bits. */
static void on_gpus(void)
{
    static const char *const options[][3] = {{"--gpu-compiler", "none", NULL}, {"--gpu-compiler", "auto", NULL}};
    const size_t bytes = BITS_CASES * sizeof(case_bits[0]);
    uint64_t(*both)[BITS_CASES][BITS_RANKS] = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct test_daemon d;
    struct ranks r;

    CHECK(both != MAP_FAILED);
    for (int way = 0; way < 2; way++) {
        case_bits = both[way];
        daemon_start(&d, options[way]);
        for (int n = 1; n <= 3; n += 2) {
            (void)printf("  %s, %d ranks\n", way ? "generated code" : "the interpreter", n);
            (void)fflush(stdout);
            ranks_start(&r, n, way ? generated_rank : cases_rank, &d);
            ranks_join(&r);
        }
        if (way == 1 && !daemon_logged(&d, "compiled a program's step", 0))
            check_failed(__FILE__, __LINE__, "nothing was compiled");
        CHECK(!daemon_logged(&d, way ? "the interpreter runs" : "compiled a program's step", 0));
        daemon_stop(&d);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int rank = 0; rank < 3; rank++)
            if (both[0][i][rank] != both[1][i][rank])
                check_failed(__FILE__, __LINE__, "rank %d: other bits than the interpreter's: %s", rank,
                             cases[i].file ? cases[i].file : cases[i].text);
    CHECK(munmap(both, 2 * bytes) == 0);
}

static void on_two_nodes(void)
{
    on_nodes(2, 4);
}

/* ---- what one rank has wrong, all ranks hear ---- */

#define GOOD "program t(N = 8)\nin x: f32[N] local\nscalar k\nout y: f32[N]\ns = all_reduce(x)\ny = s * k\n"

#define TRANSPOSED "program t(M = 3)\nin x: f32[M, 4]\nout y: f32[4, M]\ny = transpose(x)\n"

#define STRETCHED                                                                                                              \
    "program t(M = 3, N = 8)\nin x: f32[M, N]\nin b: f32[N]\nscalar seed, step\nout y: f32[M, N]\n"                            \
    "y = x + dropout(b, 0.5, seed, step)\n"

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    const bool last = rank == all->n - 1;
    const char *other = "program t(N = 8)\nin x: f32[N] local\nscalar k\nout y: f32[N]\ns = all_reduce(x)\ny = s + k\n";
    const struct fcc_program_size size = {"N", last ? 9 : 8};
    fcc_program *p = NULL;
    fcc_buffer *x, *y;

    (void)argument;
    FAILS(fcc_program_open(comm, last ? "program t(\n" : GOOD, last ? 11 : strlen(GOOD), NULL, 0, &p), -EINVAL,
          "rank 1: program_step", "line 2, column 1: the line ends: expected is a name");
    FAILS(fcc_program_open(comm, last ? other : GOOD, strlen(GOOD), NULL, 0, &p), -EINVAL,
          "program: rank 1 has another text than rank 0, from line 6 on");
    FAILS(fcc_program_open(comm, GOOD, strlen(GOOD), &size, 1, &p), -EINVAL, "program: rank 1 has other sizes than rank 0");
    FAILS(fcc_program_open(comm, TRANSPOSED, strlen(TRANSPOSED), NULL, 0, &p), -EOPNOTSUPP,
          "line 4, column 5: transpose: of what is not the second factor of a matmul: nothing runs it yet");
    FAILS(fcc_program_open(comm, STRETCHED, strlen(STRETCHED), NULL, 0, &p), -EOPNOTSUPP,
          "line 6, column 9: dropout: of a tensor that is stretched then: allowed is to give dropout's result a name");
    OK(fcc_program_open(comm, GOOD, strlen(GOOD), NULL, 0, &p));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 64, &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, 64, &y));
    struct fcc_tensor tx = fcc_tensor_1d(x, 0, FCC_F32, 8), ty = fcc_tensor_1d(y, 0, FCC_F32, 8),
                      wrong = fcc_tensor_1d(x, 0, FCC_F32, 7);
    FAILS(fcc_program_tensor(p, "z", &tx), -ENOENT, "parameter `z`: it has none of this name");
    FAILS(fcc_program_tensor(p, "x", &wrong), -EINVAL, "7 elements: allowed is f32 (1), 8 elements");
    FAILS(fcc_program_scalar(p, "x", 1), -EINVAL, "`x` is a tensor");
    OK(fcc_program_tensor(p, "x", &tx));
    OK(fcc_program_tensor(p, "y", &ty));
    if (!last)
        OK(fcc_program_scalar(p, "k", 1));
    FAILS(fcc_program_run(p), -EINVAL, "program: `k`: not given");
    OK(fcc_program_scalar(p, "k", last ? 2 : 1));
    FAILS(fcc_program_run(p), -EINVAL, "program: line 6: a number: rank 1 has 2, rank 0 has 1");
    OK(fcc_program_scalar(p, "k", 3));
    OK(fcc_program_run(p));
    fcc_program_close(p);
    fcc_program_close(NULL);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

#define TABLE                                                                                                                  \
    "program t(N = 8, T = 3)\nin x: f32[N] local scattered(T)\nin w: f32[N] sliced(0) scattered(T)\nout y: f32[T]\n"           \
    "y = tensor_sum(all_reduce(x)) + tensor_sum(w)\n"

/* What is wrong with the table of scattered tensors. */
static void table_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    const bool last = rank == all->n - 1;
    static const int64_t wrong[3] = {1, 2, 6}, negative[3] = {-1, 3, 6}, good[3] = {5, 0, 3}, other[3] = {4, 1, 3};
    fcc_program *p = NULL;
    fcc_buffer *x, *z, *y;

    (void)argument;
    FAILS(fcc_program_open(comm, "program t(N = 8)\nin x: f32[N] scattered(2000)\nout y: f32[N]\ny = x\n", 65, NULL, 0, &p),
          -EINVAL, "line 2, column 4: `x`: scattered(2000): allowed are 1 to 1024 tensors");
    FAILS(fcc_program_open(comm, "program t(N = 8)\nin x: f32[N]\nout y: f32[2]\ny = tensor_norm(x)\n", 63, NULL, 0, &p),
          -EINVAL, "line 4, column 5: tensor_norm: of what is no table of tensors");
    OK(fcc_program_open(comm, TABLE, strlen(TABLE), NULL, 0, &p));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 96, &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 96, &z));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, 64, &y));
    struct fcc_tensor t[3] = {fcc_tensor_1d(x, 40, FCC_F32, 5), fcc_tensor_1d(x, 0, FCC_F32, 0),
                              fcc_tensor_1d(x, 0, FCC_F32, 3)};
    const struct fcc_tensor ty = fcc_tensor_1d(y, 0, FCC_F32, 3), tw = fcc_tensor_1d(z, 0, FCC_F32, 4);
    OK(fcc_program_tensor(p, "y", &ty));
    OK(fcc_program_tensor(p, "w", &tw));
    FAILS(fcc_program_tensors(p, "x", t, 3), -EINVAL, "`x`: 3 tensors: allowed are 3, after fcc_program_table()");
    FAILS(fcc_program_run(p), -EINVAL, "scattered(3): its tensors: not given: needed is fcc_program_table() before the run");
    FAILS(fcc_program_table(p, wrong, 3), -EINVAL, "elements of its table: allowed are 0 and more, together 8");
    FAILS(fcc_program_table(p, negative, 3), -EINVAL, "elements of its table: allowed are 0 and more, together 8");
    FAILS(fcc_program_table(p, good, 2), -EINVAL, "a table of 2 tensors: allowed are 3");
    OK(fcc_program_table(p, good, 3));
    FAILS(fcc_program_tensors(p, "w", t, 3), -EINVAL, "`w`: slices of scattered tensors: allowed is fcc_program_tensor()");
    FAILS(fcc_program_tensors(p, "y", t, 3), -EINVAL, "`y`: not scattered: allowed is fcc_program_tensor()");
    t[2].offset = 32;
    FAILS(fcc_program_tensors(p, "x", t, 3), -EINVAL, "`x`: tensors 2 and 0 overlap");
    t[2].offset = 2;
    FAILS(fcc_program_tensors(p, "x", t, 3), -EINVAL, "`x`: tensor 2: its offset: allowed are multiples of an element's size");
    t[2] = fcc_tensor_1d(z, 0, FCC_F32, 3);
    FAILS(fcc_program_tensors(p, "x", t, 3), -EINVAL, "`x`: tensor 2: another buffer than the tensors before it");
    t[2] = fcc_tensor_1d(x, 0, FCC_BF16, 3);
    FAILS(fcc_program_tensors(p, "x", t, 3), -EINVAL, "`x`: tensor 2: dtype ", "allowed is a dense one, f32, 3 elements");
    t[2] = fcc_tensor_1d(x, 0, FCC_F32, 3);
    OK(fcc_program_tensors(p, "x", t, 3));
    OK(fcc_program_run(p));
    if (last) {
        t[0] = fcc_tensor_1d(x, 40, FCC_F32, 4);
        t[1] = fcc_tensor_1d(x, 60, FCC_F32, 1);
        OK(fcc_program_table(p, other, 3));
        FAILS(fcc_program_run(p), -EINVAL, "`x`: not given");
        OK(fcc_program_tensors(p, "x", t, 3));
    } else {
        FAILS(fcc_program_run(p), -EINVAL, "`x`: not given");
    }
    FAILS(fcc_program_run(p), -EINVAL, "program: tensor 0 of the table: rank 1 has 4 elements, rank 0 has 5");
    fcc_program_close(p);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

#define STAGES                                                                                                                 \
    "program t(N = 8)\ngroups 2\nin x: f32[N] local\nscalar k, seed\nout y: f32[N]\ns = all_reduce(x) * k + seed\ny = "        \
    "send(s, 1)\n"

/* Of four ranks in two groups: what one rank has refused, and what ranks of one group disagree about, all hear; and the next run is right. */
static void groups_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    const bool last = rank == all->n - 1;
    float values[8];
    fcc_program *p = NULL;
    fcc_buffer *x, *y;

    (void)argument;
    OK(fcc_program_open(comm, STAGES, strlen(STAGES), NULL, 0, &p));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(values), &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(values), &y));
    const struct fcc_tensor tx = fcc_tensor_1d(x, 0, FCC_F32, 8), ty = fcc_tensor_1d(y, 0, FCC_F32, 8);
    for (int i = 0; i < 8; i++)
        values[i] = (float)(rank + 1);
    OK(fcc_buffer_write(x, 0, values, sizeof(values)));
    OK(fcc_program_tensor(p, "x", &tx));
    OK(fcc_program_tensor(p, "y", &ty));
    OK(fcc_program_scalar(p, "seed", rank < 2 ? 0 : 1)); /* groups may have numbers of their own */
    if (!last)
        OK(fcc_program_scalar(p, "k", 2));
    FAILS(fcc_program_run(p), -EINVAL, "rank 3: program_step: program: `k`: not given");
    OK(fcc_program_scalar(p, "k", last ? 3 : 2));
    FAILS(fcc_program_run(p), -EINVAL, "program: line 6: a number: rank 1 has 3, rank 0 has 2");
    OK(fcc_program_scalar(p, "k", 2));
    for (int round = 0; round < 2; round++) {
        OK(fcc_program_run(p));
        OK(fcc_buffer_read(y, 0, values, sizeof(values)));
        for (int i = 0; i < 8; i++)
            CHECK(values[i] == (rank / 2 ? 3 * 2 + 0 : 7 * 2 + 1));
    }
    fcc_program_close(p);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void groups_refused(void)
{
    ranks_run(4, groups_rank, NULL);
}

/* One rank of a group aborts the communicator of all in the middle of a run: its group, which waits for it, hears, and so does the other. */
static void aborted_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_program *p = NULL;
    fcc_buffer *x, *y;

    (void)argument;
    OK(fcc_program_open(comm, STAGES, strlen(STAGES), NULL, 0, &p));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 32, &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 32, &y));
    const struct fcc_tensor tx = fcc_tensor_1d(x, 0, FCC_F32, 8), ty = fcc_tensor_1d(y, 0, FCC_F32, 8);
    OK(fcc_program_tensor(p, "x", &tx));
    OK(fcc_program_tensor(p, "y", &ty));
    OK(fcc_program_scalar(p, "k", 1));
    OK(fcc_program_scalar(p, "seed", 1));
    if (rank == 3) { /* what a run begins with, and no more */
        OK(fcc_noop(comm));
        OK(fcc_comm_abort(comm, "enough"));
    } else {
        FAILS(fcc_program_run(p), -ECONNABORTED, "enough");
    }
    fcc_program_close(p);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void groups_aborted(void)
{
    ranks_run(4, aborted_rank, NULL);
}

static void table_refused(void)
{
    ranks_run(2, table_rank, NULL);
}

static void refused(void)
{
    ranks_run(2, refused_rank, NULL);
}

/* Memory of a rank's own that only one rank gets. */
static void scarce_rank(int rank, const struct ranks *all, void *argument)
{
    static const char text[] = "program t(N = 10000000)\nin x: f32[N]\nout y: f32[N]\na = x * 2\ny = a + 1\n";
    fcc_comm *comm = comm_open(all, rank, 0);
    const struct fcc_program_size small = {"N", 1000};
    fcc_program *p = NULL;

    (void)argument;
    FAILS(fcc_program_open(comm, text, strlen(text), NULL, 0, &p), -ENOMEM, "rank ", "MEMORY_PER_USER_MB");
    CHECK(p == NULL);
    OK(fcc_program_open(comm, text, strlen(text), &small, 1, &p));
    fcc_program_close(p);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void scarce(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, (const char *const[]){"--memory-per-user-mb", "64", NULL});
    ranks_start(&r, 2, scarce_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test of_gpus[] = {{"on_gpus", on_gpus, 300}}; /* each step of each case is compiled */
    const struct test tests[] = {{"on_one_node", on_one_node, 300},
                                 {"on_two_nodes", on_two_nodes, 300},
                                 {"refused", refused, 0},
                                 {"groups_refused", groups_refused, 0},
                                 {"groups_aborted", groups_aborted, 20},
                                 {"table_refused", table_refused, 0},
                                 {"scarce", scarce, 0}};

    const char *device = getenv("FCC_TEST_DEVICE"); /* several nodes' GPUs run none: tests/worker/test_gpu_worker_programs.c */
    if (device && strcmp(device, "cpu") != 0)
        return tests_run("programs", TESTS(of_gpus));
    return tests_run("programs", TESTS(tests));
}
