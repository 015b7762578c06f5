/* SPDX-License-Identifier: MIT
 *
 * test_program_tune.c - ranks tune a program together: all take one choice, whatever their caches have, and what is wrong with a cache or a rank is said.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "client/program/program.h"
#include "proto/base/disk_cache.h"
#include "tests/bed/harness.h"

static const char text[] = "program t(N = 4000)\nin g: f32[N] local\ninout p: f32[N]\nscalar lr\n"
                           "s = all_reduce(g)\nu = lr * s\np = p - u\n";

/* Calibration alone may take seconds on a busy machine. */
enum { TUNE_LIMIT_MS = 60000 };

/* What a bar is drawn of: it never goes back, and is whole at the end. */
struct progress {
    int calls, done, all;
};
static void progressed(void *argument, int done, int all)
{
    struct progress *p = argument;

    CHECK(done > p->done && done <= all && (p->calls == 0 || all == p->all));
    *p = (struct progress){p->calls + 1, done, all};
}

static struct fcc_tuning *tuned(fcc_comm *comm, const char *cache, bool again)
{
    struct progress progress = {.calls = 0};
    const struct fcc_tune_options o = {
        .cache = cache, .limit_ms = TUNE_LIMIT_MS, .again = again, .progress = progressed, .argument = &progress};
    struct fcc_tuning *t = NULL;
    fcc_program *p;

    OK(fcc_program_tune(comm, text, strlen(text), NULL, 0, &o, &t));
    CHECK(t && (t->from_cache ? progress.calls == 0 : progress.calls >= t->nrows));
    CHECK(t && t->nrows >= 1 && t->winner < t->nrows && t->schedule == t->rows[t->winner].schedule);
    OK(fcc_program_open(comm, t->text, strlen(t->text), NULL, 0, &p)); /* all ranks have one text, or this fails */
    fcc_program_close(p);
    return t;
}

/* Rank 0's cache cannot be used; rank 1's is used by both. */
static void together_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    char own[256], link[280];

    (void)argument;
    (void)snprintf(own, sizeof(own), "%s/cache%d", test_directory(), rank);
    (void)snprintf(link, sizeof(link), "%s.link", own);
    struct fcc_tuning *t = tuned(comm, own, false);
    CHECK(!t->from_cache && t->nrows > 2 && strncmp(t->cache, own, strlen(own)) == 0);
    for (int i = 0; i < t->nrows; i++)
        CHECK(t->rows[i].state != FCC_TUNE_WRONG && t->rows[i].state != FCC_TUNE_FAILED && t->rows[i].steps > 0);
    CHECK(t->rows[0].state == FCC_TUNE_TIMED && t->rows[0].measured_s > 0);
    CHECK(t->winner == 0 || t->rows[t->winner].measured_s < t->rows[0].measured_s);
    (void)fprintf(stderr, "from nothing: %.3f s\n", t->seconds);
    char kept[300];
    (void)snprintf(kept, sizeof(kept), "%s", t->cache);
    fcc_tuning_free(t);
    t = tuned(comm, own, false);
    CHECK(t->from_cache && t->nrows == 1);
    (void)fprintf(stderr, "from the cache: %.3f ms\n", t->seconds * 1e3);
    fcc_tuning_free(t);
    for (int wrong = 1; wrong <= 2; wrong++) { /* a byte of rank 0's file is another one; of both ranks' */
        if (rank < wrong) {
            FILE *f = fopen(kept, "r+");
            CHECK(f && fseek(f, -1, SEEK_END) == 0 && fputc(wrong == 1 ? '?' : '!', f) > 0 && fclose(f) == 0);
        }
        OK(fcc_noop(comm)); /* rank 0 has been given the schedule of rank 1, and may have kept it */
        t = tuned(comm, own, false);
        CHECK(t->from_cache == (wrong == 1));
        fcc_tuning_free(t);
        OK(fcc_noop(comm));
    }
    t = tuned(comm, own, rank == 0);
    CHECK(!t->from_cache);
    fcc_tuning_free(t);
    const struct rlimit none = {0, RLIM_INFINITY};
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    if (rank == 1) { /* its disk is full */
        (void)signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    }
    t = tuned(comm, own, true);
    CHECK(strncmp(t->cache, rank == 1 ? "not kept: " : own, rank == 1 ? 10 : strlen(own)) == 0);
    fcc_tuning_free(t);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(symlink(own, link) == 0 && chmod(own, 0700) == 0);
    t = tuned(comm, link, false);
    CHECK(!t->from_cache && strncmp(t->cache, "not kept: ", 10) == 0);
    fcc_tuning_free(t);
    OK(fcc_noop(comm));
    CHECK(unlink(link) == 0 && unlink(kept) == 0 && rmdir(own) == 0); /* nothing else is left in it */
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void together(void)
{
    ranks_run(2, together_rank, NULL);
}

/* Groups of ranks, rows of tables and products: everything that is timed runs and is right. */
static void kinds_rank(int rank, const struct ranks *all, void *argument)
{
    static const char *const texts[] = {"program t(N = 400)\ngroups 2\nin x: f32[N] local\nin b: f32[N]\nout y: f32[N]\ns = "
                                        "all_reduce(x)\nu = s + b\ny = send(u, 1)\n",
                                        "program t(T = 4, B = 9)\nin w: bf16[T, 20, 8] sliced(0)\nin i: i64[100] local\nin o: "
                                        "i64[T*B/ranks + 1] local\nout y: bf16[B, T, 8] "
                                        "sliced(0)\nr = embedding(w, i, o)\ny = all_to_all(r, 0)\n",
                                        "program t(M = 9, K = 32)\nin a: f32[M, K] sliced(1)\nin b: f32[K, 20] sliced(0)\nout "
                                        "y: f32[M, 20]\np = matmul(a, b)\ns = "
                                        "all_reduce(p)\ny = gelu(s)\n"};
    fcc_comm *comm = comm_open(all, rank, 0);
    char own[256];

    (void)argument;
    (void)snprintf(own, sizeof(own), "%s/kinds%d", test_directory(), rank);
    for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
        const struct fcc_tune_options o = {.cache = own, .limit_ms = TUNE_LIMIT_MS};
        struct fcc_tuning *t = NULL;
        OK(fcc_program_tune(comm, texts[k], strlen(texts[k]), NULL, 0, &o, &t));
        CHECK(t->nrows > 1 && t->rows[0].state == FCC_TUNE_TIMED);
        for (int i = 0; i < t->nrows; i++)
            if (t->rows[i].state == FCC_TUNE_WRONG || t->rows[i].state == FCC_TUNE_FAILED)
                check_failed(__FILE__, __LINE__, "state %d: %s of %s", t->rows[i].state, t->rows[i].schedule, texts[k]);
        CHECK(unlink(t->cache) == 0);
        fcc_tuning_free(t);
    }
    CHECK(rmdir(own) == 0);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void kinds(void)
{
    ranks_run(2, kinds_rank, NULL);
}

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    struct fcc_tuning *t = NULL;
    const char *wrong = rank ? "program t(\n" : text;

    (void)argument;
    FAILS(fcc_program_tune(comm, wrong, strlen(wrong), NULL, 0, NULL, &t), -EINVAL, "line 2, column 1");
    CHECK(t == NULL);
    fcc_tuning_free(NULL);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void refused(void)
{
    ranks_run(2, refused_rank, NULL);
}

static void dies(void *argument, int done, int all)
{
    (void)all;
    if (done == 2 && *(int *)argument == 1)
        (void)raise(SIGKILL);
}

/* A rank is killed while all tune: the others hear, and keep nothing. */
static void killed_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    char own[256];
    struct fcc_tuning *t = NULL;

    (void)argument;
    (void)snprintf(own, sizeof(own), "%s/killed%d", test_directory(), rank);
    const struct fcc_tune_options o = {.cache = own, .limit_ms = TUNE_LIMIT_MS, .progress = dies, .argument = &rank};
    CHECK(fcc_program_tune(comm, text, strlen(text), NULL, 0, &o, &t) < 0 && t == NULL && access(own, F_OK) != 0);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void killed(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, killed_rank, NULL);
    CHECK(rank_wait(&r, 0) == 0 && rank_wait(&r, 1) == SIGKILL);
    daemon_stop_unclean(&d);
}

/* The first element of what a fused step makes is another one, on rank 1: of schedules with fewer steps than `text` has as written. */
enum { STEPS_WRITTEN = 3 };
static bool spoils;
int __real_program_step_run(struct fcc_program *p, struct program_step *step);
int __wrap_program_step_run(struct fcc_program *p, struct program_step *step);
int __wrap_program_step_run(struct fcc_program *p, struct program_step *step)
{
    const int status = __real_program_step_run(p, step);

    if (status == 0 && spoils && p->steps.nsteps < STEPS_WRITTEN && step->kind == STEP_OF_CODE &&
        step->out.kind == PLACE_PARAMETER)
        *(float *)fcc_buffer_data(p->tensors[step->out.index].buffer) += 100;
    return status;
}

/* Schedules whose results differ on one rank are out on all. */
static void wrong_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    char own[256];
    int wrong = 0;

    (void)argument;
    spoils = rank == 1;
    (void)snprintf(own, sizeof(own), "%s/wrong%d", test_directory(), rank);
    struct fcc_tuning *t = tuned(comm, own, false);
    for (
        int tries = 1;;
        tries++) { /* on a busy machine fused schedules may be estimated, or found, too slow to be run: the same on all ranks */
        for (int i = 0; i < t->nrows; i++)
            wrong += t->rows[i].state == FCC_TUNE_WRONG;
        if (wrong || tries == 20)
            break;
        fcc_tuning_free(t);
        t = tuned(comm, own, true);
    }
    CHECK(wrong > 0 && t->rows[t->winner].state == FCC_TUNE_TIMED);
    CHECK(unlink(t->cache) == 0 && rmdir(own) == 0);
    fcc_tuning_free(t);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void wrong(void)
{
    ranks_run(2, wrong_rank, NULL);
}

/* Any byte that is another one, or missing, is noticed. */
static void damaged(const struct disk_cache *cache, const char *path)
{
    unsigned char bytes[256], other;
    struct error e = {0};
    size_t n;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    const ssize_t all = read(fd, bytes, sizeof(bytes));

    CHECK(fd >= 0 && all > 30);
    for (ssize_t i = 0; i < all; i++) {
        other = bytes[i] ^ 1;
        CHECK(pwrite(fd, &other, 1, i) == 1 && !disk_cache_read(cache, "k", &n, &e) &&
              (e.status == -EBADMSG || e.status == -ENOENT));
        CHECK(pwrite(fd, &bytes[i], 1, i) == 1);
    }
    for (ssize_t i = 0; i < all; i++)
        CHECK(ftruncate(fd, i) == 0 && !disk_cache_read(cache, "k", &n, &e) && e.status == -EBADMSG);
    CHECK(pwrite(fd, bytes, (size_t)all, 0) == all && close(fd) == 0);
}

/* Of more files than there may be the one goes that is longest unchanged. */
static void full(const struct disk_cache *cache)
{
    static const char *const keys[] = {"a", "b", "c"};
    static const char large[4096];
    char path[DISK_CACHE_PATH] = "", first[DISK_CACHE_PATH] = "";
    const struct timespec old[] = {{1, 0}, {1, 0}};
    struct error e = {0};
    size_t n;
    void *value;

    for (int i = 0; i < 2; i++)
        CHECK(disk_cache_write(cache, keys[i], "1", 1, i ? path : first, &e) == 0);
    CHECK(utimensat(AT_FDCWD, first, old, 0) == 0 && disk_cache_write(cache, keys[2], "1", 1, path, &e) == 0);
    CHECK(!disk_cache_read(cache, keys[0], &n, &e) && e.status == -ENOENT);
    for (int i = 1; i < 3; i++) {
        CHECK((value = disk_cache_read(cache, keys[i], &n, &e)) != NULL && n == 1);
        free(value);
    }
    CHECK((value = disk_cache_read(cache, "k", &n, &e)) != NULL);
    free(value);
    CHECK(disk_cache_write(cache, "d", large, sizeof(large), first, &e) == -EFBIG);
}

static void caches(void)
{
    char directory[256], path[DISK_CACHE_PATH];
    const struct disk_cache cache = {.directory = directory, .bytes_most = 4096, .files_most = 3},
                            nowhere = {.directory = "/proc/nothing", .bytes_most = 4096, .files_most = 3};
    size_t n;
    struct error e = {0};
    const struct rlimit none = {0, 0};

    (void)snprintf(directory, sizeof(directory), "%s/cache", test_directory());
    CHECK(!disk_cache_read(&cache, "k", &n, &e) && e.status == -ENOENT);
    CHECK(disk_cache_write(&cache, "k", "value\n", 6, path, &e) == 0);
    char *value = disk_cache_read(&cache, "k", &n, &e);
    CHECK(value && n == 6 && strcmp(value, "value\n") == 0);
    free(value);
    damaged(&cache, path);
    full(&cache);
    CHECK(chmod(directory, 0755) == 0 && !disk_cache_read(&cache, "k", &n, &e) && e.status == -EPERM);
    CHECK(disk_cache_write(&cache, "k", "v", 1, path, &e) == -EPERM && chmod(directory, 0700) == 0);
    if (geteuid() == 0) {
        CHECK(chown(directory, 40001, 0) == 0 && !disk_cache_read(&cache, "k", &n, &e) && e.status == -EPERM &&
              strstr(e.text, "40001"));
        CHECK(chown(directory, 0, 0) == 0 && chown(path, 40001, 0) == 0 && !disk_cache_read(&cache, "k", &n, &e) &&
              e.status == -EPERM);
        CHECK(chown(path, 0, 0) == 0);
    }
    pid_t pid = fork();
    if (pid == 0) { /* no room: what was there stays */
        (void)signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0 && disk_cache_write(&cache, "k", "other", 5, path, &e) == -EFBIG);
        _exit(0);
    }
    int how;
    CHECK(waitpid(pid, &how, 0) == pid && how == 0);
    value = disk_cache_read(&cache, "k", &n, &e);
    CHECK(value && strcmp(value, "value\n") == 0);
    free(value);
    CHECK(rename(path, "/dev/null/x") != 0 && unlink(path) == 0 && symlink("/etc/passwd", path) == 0);
    CHECK(!disk_cache_read(&cache, "k", &n, &e) && e.status == -ELOOP);
    CHECK(disk_cache_write(&nowhere, "k", "v", 1, path, &e) < 0 && strstr(e.text, "/proc/nothing"));
    (void)snprintf(path, sizeof(path), "rm -r '%s'", directory);
    CHECK(system(path) == 0);
}

int main(void)
{
    const struct test tests[] = {{"together", together, 60}, {"kinds", kinds, 60}, {"refused", refused, 0},
                                 {"killed", killed, 60},     {"wrong", wrong, 60}, {"caches", caches, 0}};

    return tests_run("program_tune", TESTS(tests));
}
