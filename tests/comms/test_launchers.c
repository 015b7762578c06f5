/* SPDX-License-Identifier: MIT
 *
 * test_launchers.c - ranks that find each other by what their launcher says: under real mpirun, mpiexec, srun and torchrun, where these
 * are there. This program is the ranks' program too ("test_launchers rank"), beside client/examples/example_env.c.
 *
 * FCC_TEST_SOCKETS, a list of sockets of daemons that run already and speak to each other, spreads the ranks over these, rank by rank;
 * FCC_TEST_MEETING is then the address of the first one.
 */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/bed/launched_rank.h"
#include "tests/bed/program.h"
#include "tests/bed/slurm.h"

#define TEXT_ROOM 65536
#define WORDS_MAX 40

static char self[512]; /* this program */

/* ---- where the ranks find daemons ---- */

struct place {
    struct test_daemon daemon; /* pid 0: FCC_TEST_SOCKETS says which there are */
    char chooser[128];         /* a script that takes one of these; "": there is one daemon */
};

static void chooser_write(struct place *p, const char *sockets)
{
    (void)snprintf(p->chooser, sizeof(p->chooser), "%s/.chooser", test_directory());
    FILE *f = fopen(p->chooser, "we");
    CHECK(f != NULL);
    (void)fprintf(f,
                  "#!/bin/sh\nrank=${RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}}\nset -- %s -- \"$@\"\nn=0\n"
                  "for s in \"$@\"; do [ \"$s\" != -- ] || break; n=$((n + 1)); done\n"
                  "eval FCCD_SOCKET=\\$$((rank %% n + 1))\nexport FCCD_SOCKET\nshift $((n + 1))\nexec \"$@\"\n",
                  sockets);
    CHECK(fclose(f) == 0 && chmod(p->chooser, 0755) == 0);
}

static int place_nodes = 1; /* that a place has */

static void place_open(struct place *p)
{
    const char *sockets = getenv("FCC_TEST_SOCKETS"), *meeting = getenv("FCC_TEST_MEETING");
    char both[2 * sizeof(p->daemon.socket)];

    memset(p, 0, sizeof(*p));
    if (!sockets)
        daemons_start(&p->daemon, place_nodes, NULL);
    if (!sockets && place_nodes > 1) {
        (void)snprintf(both, sizeof(both), "%s %s", p->daemon.node[0].socket, p->daemon.node[1].socket);
        sockets = both;
        meeting = p->daemon.node[0].address;
    }
    variables_clear();
    if (sockets) {
        chooser_write(p, sockets);
        (void)setenv("FCC_MEETING", meeting ? meeting : "", 1);
    }
}

static void place_close(struct place *p)
{
    if (p->daemon.pid)
        daemon_stop(&p->daemon);
}

/* ---- launching ---- */

static const char *example(void)
{
    const char *path = getenv("FCC_TEST_EXAMPLE_ENV");
    return path ? path : "build/bin/example_env";
}

#define OWN_PLACE "OWN_PLACE" /* stands for an address with a port that nobody uses, another one each time */

/* Run `program` (NULL after its words) under a launcher (likewise); its exit code. What was printed: text. */
static int launch(const struct place *p, const char *const launcher[], const char *const program[], char *text)
{
    char place[32];
    const char *words[WORDS_MAX];
    int n = 0;

    while (*launcher)
        words[n++] = *launcher++;
    for (int i = 0; i < n; i++)
        if (!strcmp(words[i], OWN_PLACE)) {
            (void)snprintf(place, sizeof(place), "localhost:%u", (unsigned)port_choose());
            words[i] = place;
        }
    if (p->chooser[0])
        words[n++] = p->chooser;
    while (*program)
        words[n++] = *program++;
    words[n] = NULL;
    CHECK(n < WORDS_MAX);
    int status = program_run(text, TEXT_ROOM, words[0], words + 1);
    printf("%s ... %s: %d\n%s", words[0], words[n - 1], status, text);
    return status;
}

/* Each rank has said this once. */
static void ranks_said(const char *text, int n, const char *rest)
{
    for (int rank = 0; rank < n; rank++) {
        char words[256];
        const char *found;
        (void)snprintf(words, sizeof(words), "rank %d of %d%s", rank, n, rest);
        found = strstr(text, words);
        if (!found || strstr(found + 1, words))
            check_failed(__FILE__, __LINE__, "\"%s\" %s in: %s", words, found ? "twice" : "not", text);
    }
}

/* The example computes what it should, and the ranks find what they should: `n` of them, and `says` after the launcher's name. */
static void launch_both(const struct place *p, const char *const launcher[], int n, const char *says)
{
    static char text[TEXT_ROOM];
    char result[64];

    CHECK(launch(p, launcher, (const char *const[]){example(), NULL}, text) == 0);
    (void)snprintf(result, sizeof(result), ": y[1] = %d, 0 of 512 wrong\n", 256 * n * (n + 1) / 2);
    ranks_said(text, n, result);
    CHECK(launch(p, launcher, (const char *const[]){self, "rank", NULL}, text) == 0);
    ranks_said(text, n, ", local ");
    if (!strstr(text, says))
        check_failed(__FILE__, __LINE__, "\"%s\" not in: %s", says, text);
}

/* Skips the test if the launcher cannot start anything. */
static void launcher_must_work(const char *name, const char *const launcher[])
{
    static char text[TEXT_ROOM];
    static const struct place nowhere;
    char reason[512];
    int status;

    if (!program_found(launcher[0]))
        (void)snprintf(reason, sizeof(reason), "skipped: no %s (%s; make deps-launchers)", name, launcher[0]);
    else if ((status = launch(&nowhere, launcher, (const char *const[]){"true", NULL}, text)))
        (void)snprintf(reason, sizeof(reason), "skipped: %s cannot start programs here: status %d: %.300s", launcher[0], status,
                       text);
    else
        return;
    for (char *c = reason; (c = strchr(c, '\n'));)
        *c = ' ';
    test_skip(reason);
}

/* ---- Open MPI, MPICH ---- */

#define OPENMPI "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n"
#define MPICH "mpiexec.mpich", "-n"

static void openmpi(void)
{
    static const char *const launcher[] = {OPENMPI, "3", NULL};
    struct place p;

    launcher_must_work("Open MPI", launcher);
    place_open(&p);
    launch_both(&p, launcher, 3, " of 3, openmpi, job ompi-");
    place_close(&p);
}

static void mpich(void)
{
    static const char *const launcher[] = {MPICH, "3", NULL};
    struct place p;

    launcher_must_work("MPICH", launcher);
    place_open(&p);
    launch_both(&p, launcher, 3, " of 3, mpich, job ");
    place_close(&p);
}

/* Two worlds of one size in one job keep apart: all four ranks are there before any looks for its others. */
static void mpich_twice(void)
{
    static const char *const shell[] = {
        "sh", "-c", "mpiexec.mpich -n 2 \"$@\" & first=$!; mpiexec.mpich -n 2 \"$@\" && wait $first", "sh", NULL};
    static char text[TEXT_ROOM];
    struct place p;
    char *second, file[128];

    launcher_must_work("MPICH", (const char *const[]){MPICH, "2", NULL});
    place_open(&p);
    (void)snprintf(file, sizeof(file), "%s/.gather", test_directory());
    (void)setenv("FCC_TEST_GATHER", file, 1);
    CHECK(launch(&p, shell, (const char *const[]){self, "rank", NULL}, text) == 0);
    for (int rank = 0; rank < 2; rank++) {
        char words[32];
        (void)snprintf(words, sizeof(words), "rank %d of 2, local", rank);
        second = strstr(text, words);
        CHECK(second && strstr(second + 1, words));
    }
    place_close(&p);
}

/* ---- torchrun ---- */

/* As --standalone, whose port torch 1.13 does not choose, so that it may be another's. Without redirection, torch 1.13 does not run with Python 3.11. */
#define TORCHRUN(logs, n)                                                                                                      \
    "torchrun", "--rdzv_backend", "c10d", "--rdzv_endpoint", OWN_PLACE, "--rdzv_id", "test", "--redirects", "1", "--tee", "1", \
        "--log_dir", (logs), "--monitor_interval", "0.1", "--nproc_per_node", (n), "--no_python"

static void torchrun(void)
{
    struct place p;
    char logs[128];
    const char *const launcher[] = {TORCHRUN(logs, "2"), NULL};

    (void)snprintf(logs, sizeof(logs), "%s/.torch", test_directory());
    launcher_must_work("torchrun", launcher);
    place_open(&p);
    launch_both(&p, launcher, 2, " of 2, torchrun, job torch-");
    place_close(&p);
}

/* ---- Slurm ---- */

static void slurm_one_node(struct place *p)
{
    launch_both(p, (const char *const[]){"srun", "-N1", "-n3", NULL}, 3, " of 3, slurm, job slurm-");
    launch_both(p, (const char *const[]){"srun", "-N1", "-n2", "--mpi=pmi2", NULL}, 2, " of 2, slurm, job slurm-");
    if (program_found("torchrun")) { /* which srun has started: it is torchrun */
        char logs[128];
        (void)snprintf(logs, sizeof(logs), "%s/.torch", test_directory());
        launch_both(p, (const char *const[]){"srun", "-N1", "-n1", TORCHRUN(logs, "2"), NULL}, 2,
                    " of 2, torchrun, job torch-");
    }
}

static void slurm_two_nodes(struct place *p)
{
    static char text[TEXT_ROOM];
    const char *const launcher[] = {"srun", "-N2", "-n3", NULL}, *const program[] = {self, "rank", NULL};

    if (p->daemon.pid && place_nodes == 1) { /* both are this machine, whose daemon speaks to no other */
        CHECK(launch(p, launcher, program, text) == 3);
        CHECK(strstr(text, "refused: meeting: a1: this node's fccd speaks to no other node"));
        (void)setenv("FCC_MEETING", "", 1);
    }
    launch_both(p, launcher, 3, "rank 2 of 3, local 0 of 1, slurm, job slurm-");
    CHECK(launch(p, launcher, program, text) == 0 && strstr(text, "rank 0 of 3, local 0 of 2, slurm, job slurm-"));
    if (p->daemon.pid && place_nodes == 1)
        (void)unsetenv("FCC_MEETING");
}

/* What starts ranks in a batch script, and what does not. */
static void slurm_batch(struct place *p)
{
    static char text[TEXT_ROOM];
    char path[128];
    const char *const submit[] = {"-W", "-N1", "-n3", "-o", "/dev/stdout", path, NULL};

    (void)snprintf(path, sizeof(path), "%s/.batch", test_directory());
    FILE *f = fopen(path, "we");
    CHECK(f != NULL);
    (void)fprintf(f, "#!/bin/sh\nexec >%s.out 2>&1\n%s rank\nsrun -n3 %s %s rank\n", path, self, p->chooser, self);
    if (program_found("mpirun.openmpi"))
        (void)fprintf(f, "mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 %s %s rank\n", p->chooser, self);
    if (program_found("mpiexec.mpich"))
        (void)fprintf(f, "mpiexec.mpich -n 2 %s %s rank\n", p->chooser, self);
    CHECK(fclose(f) == 0);
    int status = program_run(text, sizeof(text), "sbatch", submit);
    (void)snprintf(path, sizeof(path), "%s/.batch.out", test_directory());
    f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    text[n] = '\0';
    if (f)
        (void)fclose(f);
    printf("%s: %d\n%s", path, status, text);
    CHECK(status == 0);
    CHECK(strstr(text, "refused: SLURM_STEP_ID: not set") && strstr(text, "start it with srun"));
    ranks_said(text, 3, ", local ");
    if (program_found("mpirun.openmpi"))
        CHECK(strstr(text, "rank 1 of 2, local 1 of 2, openmpi, job ompi-"));
    if (program_found("mpiexec.mpich"))
        CHECK(strstr(text, "rank 1 of 2, local 1 of 2, mpich, job slurm-"));
}

static void slurm(void)
{
    struct place p;
    struct slurm s;

    variables_clear();
    slurm_start(&s);
    char conf[256];
    (void)snprintf(conf, sizeof(conf), "%s", getenv("SLURM_CONF"));
    place_open(&p);
    (void)setenv("SLURM_CONF", conf, 1);
    slurm_one_node(&p);
    slurm_two_nodes(&p);
    slurm_batch(&p);
    place_close(&p);
    slurm_stop(&s);
}

/* ---- the same over two nodes: even ranks at one, odd ones at the other ---- */

static void openmpi_over_nodes(void)
{
    place_nodes = 2;
    openmpi();
}

static void mpich_over_nodes(void)
{
    place_nodes = 2;
    mpich();
}

static void torchrun_over_nodes(void)
{
    place_nodes = 2;
    torchrun();
}

static void slurm_over_nodes(void)
{
    place_nodes = 2;
    slurm();
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"openmpi", openmpi, 60},
        {"mpich", mpich, 60},
        {"mpich_twice", mpich_twice, 60},
        {"torchrun", torchrun, 120},
        {"slurm", slurm, 180},
        {"openmpi_over_nodes", openmpi_over_nodes, 60},
        {"mpich_over_nodes", mpich_over_nodes, 60},
        {"torchrun_over_nodes", torchrun_over_nodes, 120},
        {"slurm_over_nodes", slurm_over_nodes, 180},
    };

    if (argc == 2 && !strcmp(argv[1], "rank"))
        return rank_main();
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    CHECK(n > 0);
    return tests_run("launchers", TESTS(tests));
}
