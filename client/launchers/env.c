/* SPDX-License-Identifier: MIT
 *
 * env.c - reads launchers' environment variables: this process's rank, the number of ranks, the job's id, and where the ranks
 * meet.
 *
 * One launcher may start another, such as torchrun under srun, or mpirun in a batch script of Slurm. Then the outer
 * launcher's variables are set, too, but describe the outer processes. So the innermost launcher counts; the order is
 * torchrun, Open MPI, MPICH, Slurm. This holds for the job's id, too: the outer launcher's variables may be missing on some
 * nodes (mpirun may start its daemons by ssh), while each launcher sets its own for all of its ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client/core/context.h"
#include "client/launchers/env.h"
#include "client/launchers/hostlist.h"
#include "proto/base/address.h"

#define OVERRIDE "FCC_RANK, FCC_SIZE and FCC_MEETING override what launchers say"

static_assert(sizeof(((struct fcc_env *)0)->job) == FCC_JOB_MAX && sizeof(((struct fcc_env *)0)->world) == FCC_JOB_MAX,
              "names");
static_assert(sizeof(((struct fcc_env *)0)->meeting) == FCC_NODE_MAX, "addresses");

/* An empty variable counts as not set. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* ---- which job ---- */

#define JOB_DEFAULT "default"

/* The variable with each launcher's job id. The launcher is in use if `marker` is set. */
static const struct {
    const char *marker, *variable, *prefix;
} jobs[] = {
    {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RUN_ID", "torch-"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess_base_jobid", "ompi-"},
    {"OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE", "pmix-"},
    {"MPI_LOCALRANKID", "PMI_JOBID", "pmi-"},
    {"SLURM_JOB_ID", "SLURM_JOB_ID", "slurm-"}, /* MPICH's mpiexec passes it on to its ranks on all nodes */
    {"OMPI_MCA_ess_base_jobid", "OMPI_MCA_ess_base_jobid", "ompi-"},
    {"PMIX_NAMESPACE", "PMIX_NAMESPACE", "pmix-"},
    {"PMI_JOBID", "PMI_JOBID", "pmi-"},
};

/* An id that the user has chosen is taken unchanged or refused. */
static int job_from_user(const char *source, const char *value, char job[FCC_JOB_MAX])
{
    size_t n = strlen(value);

    if (n == 0 || n >= FCC_JOB_MAX)
        return last_error_set(-EINVAL, "%s: %zu characters: allowed are 1 to %d", source, n, FCC_JOB_MAX - 1);
    for (size_t i = 0; i < n; i++)
        if (value[i] <= ' ' || value[i] > '~')
            return last_error_set(-EINVAL,
                                  "%s: character %zu is 0x%02x: allowed are printable ASCII characters other than space",
                                  source, i, (unsigned char)value[i]);
    memcpy(job, value, n + 1);
    return 0;
}

/* An id made by a launcher is made to fit: other characters become '_', and of a long id the end is kept, where such ids
 * differ. */
static void name_from_launcher(const char *prefix, const char *value, char name[FCC_JOB_MAX])
{
    size_t room = FCC_JOB_MAX - 1 - strlen(prefix), n = strlen(value);

    (void)snprintf(name, FCC_JOB_MAX, "%s%s", prefix, n > room ? value + (n - room) : value);
    for (char *p = name; *p; p++)
        if (*p <= ' ' || *p > '~')
            *p = '_';
}

/* torchrun's run id is "none" unless the user sets one. Then the address where the ranks meet identifies the job. */
static void job_from_torchrun(const char *id, char job[FCC_JOB_MAX])
{
    const char *host = variable("MASTER_ADDR"), *port = variable("MASTER_PORT");
    char place[512];

    if (!strcmp(id, "none") && host && port) {
        (void)snprintf(place, sizeof(place), "%s:%s", host, port);
        id = place;
    }
    name_from_launcher("torch-", id, job);
}

int job_find(const char *option, char job[FCC_JOB_MAX])
{
    const char *value = variable("FCCD_JOB");

    if (option)
        return job_from_user("options.job", option, job);
    if (value)
        return job_from_user("FCCD_JOB", value, job);
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        value = variable(jobs[i].variable);
        if (!value || !variable(jobs[i].marker))
            continue;
        if (i == 0)
            job_from_torchrun(value, job);
        else
            name_from_launcher(jobs[i].prefix, value, job);
        return 0;
    }
    return job_from_user("job", JOB_DEFAULT, job);
}

/* ---- numbers ---- */

#define WORLD_MAX 1000000

static int number_find(const char *name, int low, int high, int32_t *out)
{
    const char *value = variable(name);

    if (!value)
        return last_error_set(-EINVAL, "%s: not set, though others of its launcher's variables are; " OVERRIDE, name);
    size_t digits = strspn(value, "0123456789");
    long n = digits && digits < 10 && !value[digits] ? strtol(value, NULL, 10) : -1;
    if (n < low || n > high)
        return last_error_set(-EINVAL, "%s: \"%.100s\": allowed are %d to %d", name, value, low, high);
    *out = (int32_t)n;
    return 0;
}

/* A rank and a size. */
static int pair_find(const char *rank_name, const char *size_name, int most, int32_t *rank, int32_t *size)
{
    int32_t n = 0, r = 0;
    int status = number_find(size_name, 1, most, &n);

    if (!status)
        status = number_find(rank_name, 0, n - 1, &r);
    if (status)
        return status;
    *rank = r;
    *size = n;
    return 0;
}

static int world_find(const char *rank, const char *size, const char *local_rank, const char *local_size, struct fcc_env *e)
{
    int status = pair_find(rank, size, WORLD_MAX, &e->rank, &e->size);
    return status || !local_rank ? status : pair_find(local_rank, local_size, e->size, &e->local_rank, &e->local_size);
}

/* If both variables are set, they must agree with the launcher's rank and size. */
static int pair_agrees(const struct fcc_env *e, const char *rank_name, const char *size_name)
{
    const char *rank = variable(rank_name), *size = variable(size_name);
    char own_rank[16], own_size[16];

    (void)snprintf(own_rank, sizeof(own_rank), "%d", e->rank);
    (void)snprintf(own_size, sizeof(own_size), "%d", e->size);
    if (!rank || !size || (!strcmp(rank, own_rank) && !strcmp(size, own_size)))
        return 0;
    return last_error_set(-EINVAL,
                          "%s: \"%.100s\" and %s: \"%.100s\", but %s says rank %d of %d: unset the first two; " OVERRIDE,
                          rank_name, rank, size_name, size, e->launcher, e->rank, e->size);
}

/* ---- the launchers ---- */

/* Whether all ranks are on this node. */
static bool one_node(const struct fcc_env *e)
{
    return e->local_size == e->size;
}

/* Whether no meeting address is needed from the launcher. */
static bool meeting_known(const struct fcc_env *e)
{
    return one_node(e) || getenv("FCC_MEETING");
}

static int torchrun_find(struct fcc_env *e)
{
    const char *host = variable("MASTER_ADDR");
    int32_t port = 0;
    int status = number_find("MASTER_PORT", 1, UINT16_MAX, &port);

    if (status)
        return status;
    if (!host)
        return last_error_set(-EINVAL, "MASTER_ADDR: not set, though RANK is; " OVERRIDE);
    (void)snprintf(e->world, sizeof(e->world), "port-%d", port);
    if (meeting_known(e))
        return 0;
    if (!strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "::1"))
        return last_error_set(
            -EINVAL,
            "MASTER_ADDR: \"%s\", but LOCAL_WORLD_SIZE: %d of WORLD_SIZE: %d ranks are on this node: the others "
            "cannot meet it there; set FCC_MEETING to host:port of a node",
            host, e->local_size, e->size);
    if (strlen(host) >= sizeof(e->meeting) - 2)
        return last_error_set(-EINVAL, "MASTER_ADDR: %zu characters: allowed are at most %zu; " OVERRIDE, strlen(host),
                              sizeof(e->meeting) - 3);
    (void)snprintf(e->meeting, sizeof(e->meeting), strchr(host, ':') ? "[%s]" : "%s", host);
    return 0;
}

/* For launchers that give no address where the ranks can meet. */
static int meeting_required(const struct fcc_env *e)
{
    if (meeting_known(e))
        return 0;
    return last_error_set(-EINVAL,
                          "FCC_MEETING: not set: %s says nothing about where ranks on several nodes (%d of %d are on this one) "
                          "can meet: set it on all of them to host:port of a node that has a rank",
                          e->launcher, e->local_size, e->size);
}

static int openmpi_find(struct fcc_env *e)
{
    const char *id = variable("PMIX_NAMESPACE");

    if (!id)
        id = variable("OMPI_MCA_ess_base_jobid");
    if (!id)
        return last_error_set(
            -EINVAL, "PMIX_NAMESPACE: not set, nor OMPI_MCA_ess_base_jobid, though OMPI_COMM_WORLD_RANK is; " OVERRIDE);
    name_from_launcher("", id, e->world);
    return meeting_required(e);
}

/* The process at the other end of the connection to the launcher; one per node serves all ranks there. 0: unknown. */
static pid_t pmi_peer(void)
{
    struct ucred peer = {0};
    socklen_t length = sizeof(peer);
    int32_t fd = -1;

    if (!variable("PMI_FD") || number_find("PMI_FD", 0, INT32_MAX, &fd) ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
        return 0;
    return peer.pid > 0 ? peer.pid : 0;
}

static int mpich_find(struct fcc_env *e)
{
    /* mpiexec gives its ranks no common name. */
    pid_t peer = one_node(e) ? pmi_peer() : 0;
    if (peer)
        (void)snprintf(e->world, sizeof(e->world), "proxy-%d", (int)peer);
    else if (!strcmp(e->job, JOB_DEFAULT) && e->size > 1)
        return last_error_set(
            -EINVAL,
            "FCCD_JOB: not set: mpich says nothing that tells this world of %d ranks from another one of this "
            "user: set it on all of them to a name (mpiexec -genv FCCD_JOB NAME)",
            e->size);
    return meeting_required(e);
}

/* The number of the step's tasks on this node. */
static int slurm_local_size(struct fcc_env *e)
{
    const char *list = variable("SLURM_STEP_TASKS_PER_NODE");
    uint32_t tasks = 0, nodes = 0, sum = 0;
    int32_t node = 0, step_nodes = 0;
    struct error why;

    if (!list)
        return last_error_set(-EINVAL, "SLURM_STEP_TASKS_PER_NODE: not set, though SLURM_STEP_ID is; " OVERRIDE);
    int status = pair_find("SLURM_NODEID", "SLURM_STEP_NUM_NODES", WORLD_MAX, &node, &step_nodes);
    if (status)
        return status;
    if (tasklist_find("SLURM_STEP_TASKS_PER_NODE", list, (uint32_t)node, &tasks, &nodes, &sum, &why))
        return last_error_set(why.status, "%s", why.text);
    if (nodes != (uint32_t)step_nodes || sum != (uint32_t)e->size)
        return last_error_set(-EINVAL,
                              "SLURM_STEP_TASKS_PER_NODE: \"%.200s\" is %u tasks on %u nodes, but SLURM_STEP_NUM_TASKS: %d and "
                              "SLURM_STEP_NUM_NODES: %d",
                              list, sum, nodes, e->size, step_nodes);
    e->local_size = (int32_t)tasks;
    return number_find("SLURM_LOCALID", 0, (int)tasks - 1, &e->local_rank);
}

static int slurm_meeting(struct fcc_env *e)
{
    const char *list = variable("SLURM_STEP_NODELIST");
    uint32_t nodes = 0;
    int32_t step_nodes = 0;
    struct error why;

    if (meeting_known(e))
        return 0;
    if (!list)
        return last_error_set(-EINVAL, "SLURM_STEP_NODELIST: not set, though SLURM_STEP_ID is; " OVERRIDE);
    if (hostlist_find("SLURM_STEP_NODELIST", list, 0, e->meeting, sizeof(e->meeting), &nodes, &why))
        return last_error_set(why.status, "%s; set FCC_MEETING to host:port of a node", why.text);
    int status = number_find("SLURM_STEP_NUM_NODES", 1, WORLD_MAX, &step_nodes);
    if (status || nodes == (uint32_t)step_nodes)
        return status;
    return last_error_set(-EINVAL, "SLURM_STEP_NODELIST: \"%.200s\" is %u nodes, but SLURM_STEP_NUM_NODES: %d", list, nodes,
                          step_nodes);
}

static int slurm_find(struct fcc_env *e)
{
    const char *id = variable("SLURM_JOB_ID"), *step = variable("SLURM_STEP_ID"), *parts = variable("SLURM_HET_SIZE");
    char world[160];
    int32_t tasks = 0;

    if (!step)
        return last_error_set(-EINVAL,
                              "SLURM_STEP_ID: not set, though SLURM_PROCID is: this process is in a batch script and was not "
                              "started by srun: start it with srun; " OVERRIDE);
    if (!id)
        return last_error_set(-EINVAL, "SLURM_JOB_ID: not set, though SLURM_STEP_ID is; " OVERRIDE);
    if (parts && strcmp(parts, "1") != 0)
        return last_error_set(-EINVAL, "SLURM_HET_SIZE: %.20s: heterogeneous jobs are not understood; " OVERRIDE, parts);
    int status = world_find("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, NULL, e);
    if (!status && variable("SLURM_NTASKS"))
        status = number_find("SLURM_NTASKS", 1, WORLD_MAX, &tasks);
    if (status)
        return status;
    if (tasks && tasks != e->size)
        return last_error_set(-EINVAL,
                              "SLURM_NTASKS: %d, but SLURM_STEP_NUM_TASKS: %d: was this process started by srun? " OVERRIDE,
                              tasks, e->size);
    status = pair_agrees(e, "RANK", "WORLD_SIZE");
    if (!status)
        status = pair_agrees(e, "PMI_RANK", "PMI_SIZE"); /* srun --mpi=pmi2 */
    if (!status)
        status = slurm_local_size(e);
    (void)snprintf(world, sizeof(world), "%.64s.%.64s", id, step);
    name_from_launcher("", world, e->world);
    return status ? status : slurm_meeting(e);
}

static int override_find(struct fcc_env *e)
{
    if (e->size > 1 && !getenv("FCC_MEETING"))
        return last_error_set(-EINVAL,
                              "FCC_MEETING: not set, though FCC_RANK is: set it to host:port of a node that has a rank, or "
                              "to nothing if all ranks are on this node");
    return 0;
}

#define WORLD_OF_TORCHRUN                                                                                                      \
    {                                                                                                                          \
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"                                                                 \
    }
#define WORLD_OF_MPICH                                                                                                         \
    {                                                                                                                          \
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"                                                           \
    }

/* The launchers, innermost first. If any of a launcher's variables is set, all of them must be. */
static const struct launcher {
    const char *name;
    const char *variables[3];
    const char *world[4]; /* those of the rank and the size, and of those on this node; slurm_find() looks for its own */
    bool agrees;          /* RANK and WORLD_SIZE, if set, must agree with them */
    int (*find)(struct fcc_env *e);
} launchers[] = {
    {"fcc", {"FCC_RANK", "FCC_SIZE"}, {"FCC_RANK", "FCC_SIZE"}, false, override_find},
    {"torchrun", {"TORCHELASTIC_RUN_ID"}, WORLD_OF_TORCHRUN, false, torchrun_find},
    {"openmpi",
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
     true,
     openmpi_find},
    {"mpich", {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, WORLD_OF_MPICH, true, mpich_find},
    {"slurm", {"SLURM_PROCID", "SLURM_STEP_ID"}, {NULL}, false, slurm_find},
    {"mpich", {"PMI_RANK", "PMI_SIZE"}, WORLD_OF_MPICH, true, mpich_find}, /* which srun --mpi=pmi2 sets too */
    {"torchrun", {"RANK", "WORLD_SIZE"}, WORLD_OF_TORCHRUN, false, torchrun_find},
    {"none", {NULL}, {NULL}, false, NULL}, /* one rank */
};

static const struct launcher *launcher_find(void)
{
    const struct launcher *l = launchers;

    for (; l->variables[0]; l++)
        for (int i = 0; l->variables[i]; i++)
            if (variable(l->variables[i]))
                return l;
    return l;
}

/* FCC_RANK, FCC_SIZE and FCC_MEETING, which override every launcher. */
static int user_find(struct fcc_env *e)
{
    const char *meeting = getenv("FCC_MEETING");
    struct error why;
    int status = 0;

    if (variable("FCC_LOCAL_RANK"))
        status = number_find("FCC_LOCAL_RANK", 0, (e->local_size < 0 ? e->size : e->local_size) - 1, &e->local_rank);
    if (status || !meeting)
        return status;
    if (*meeting && address_check("FCC_MEETING", meeting, NULL, &why))
        return last_error_set(why.status, "%s", why.text);
    text_copy(e->meeting, sizeof(e->meeting), meeting);
    return 0;
}

int env_find(const char *job, struct fcc_env *out)
{
    const struct launcher *l = launcher_find();
    struct fcc_env e = {.size = 1, .local_rank = -1, .local_size = -1};
    int status = 0;

    text_copy(e.launcher, sizeof(e.launcher), l->name);
    text_copy(e.job, sizeof(e.job), job);
    if (l->world[0])
        status = world_find(l->world[0], l->world[1], l->world[2], l->world[3], &e);
    if (!status && l->agrees)
        status = pair_agrees(&e, "RANK", "WORLD_SIZE");
    if (!status && l->find)
        status = l->find(&e);
    if (status)
        return status;
    if (e.size == 1) {
        e.local_rank = 0;
        e.local_size = 1;
    }
    status = user_find(&e);
    if (!status)
        *out = e;
    return status;
}

int fcc_env_find(struct fcc_env *out)
{
    char job[FCC_JOB_MAX];

    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    int status = job_find(NULL, job);
    return status ? status : env_find(job, out);
}
