/* SPDX-License-Identifier: MIT
 *
 * launched_rank.h - a rank that finds the others by what its launcher has said in the environment.
 */
#ifndef FCC_TEST_LAUNCHED_RANK_H
#define FCC_TEST_LAUNCHED_RANK_H

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/bed/harness.h"

/* FCC_TEST_GATHER names a file: wait until all four ranks of two worlds have come there. */
static inline void gather(void)
{
    const char *path = getenv("FCC_TEST_GATHER");
    struct stat st = {.st_size = 0};

    if (!path)
        return;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    while (st.st_size < 4) {
        (void)usleep(1000);
        CHECK(fstat(fd, &st) == 0);
    }
    (void)close(fd);
}

/* Three communicators, two of them at a time, one after the other. */
static inline int rank_main(void)
{
    struct fcc_env e;
    fcc_context *context;
    fcc_comm *first, *second;

    if (fcc_env_find(&e)) {
        printf("refused: %s\n", fcc_last_error());
        return 3;
    }
    OK(fcc_connect(NULL, &context));
    gather();
    if (fcc_comm_init_env(context, NULL, &first)) {
        printf("refused: %s\n", fcc_last_error());
        fcc_disconnect(context);
        return 3;
    }
    OK(fcc_noop(first));
    OK(fcc_comm_init_env(context, NULL, &second));
    OK(fcc_noop(second));
    OK(fcc_noop(first));
    fcc_comm_destroy(first);
    OK(fcc_comm_init_env(context, NULL, &first));
    OK(fcc_noop(first));
    CHECK(fcc_comm_rank(first) == e.rank && fcc_comm_size(first) == e.size);
    printf("rank %d of %d, local %d of %d, %s, job %s, world %s, meeting %s.\n", e.rank, e.size, e.local_rank, e.local_size,
           e.launcher, e.job, e.world, e.meeting);
    OK(fcc_noop(second)); /* nobody leaves before all have come */
    fcc_disconnect(context);
    return 0;
}

/* Whoever runs the tests may have been started by a launcher. */
static inline void variables_clear(void)
{
    static const char *const prefixes[] = {"SLURM",         "OMPI_",    "PMIX_",          "PMI_",        "MPI_LOCAL",
                                           "TORCHELASTIC_", "RANK=",    "WORLD_SIZE=",    "LOCAL_",      "MASTER_",
                                           "FCC_RANK",      "FCC_SIZE", "FCC_LOCAL_RANK", "FCC_MEETING", "FCCD_JOB"};

    for (char **v = environ; *v;) {
        char name[256];
        size_t i = 0, n = sizeof(prefixes) / sizeof(prefixes[0]);
        while (i < n && strncmp(*v, prefixes[i], strlen(prefixes[i])) != 0)
            i++;
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(*v, "="), *v);
        if (i < n)
            CHECK(unsetenv(name) == 0); /* the next one moves here */
        else
            v++;
    }
}

#endif
