/* SPDX-License-Identifier: MIT
 *
 * test_env.c - what launchers say: fcc_env_find() with the variables of each, right, wrong and contradictory; and
 * the ids that follow from names. test_hostlist.c has the lists of hosts.
 */
#include "tests/client/client_bed.h"

#include "daemon/worker/session/meeting.h"

/* ---- one environment and what is found in it ---- */

static const char *const variables[] = {"FCC_RANK",
                                        "FCC_SIZE",
                                        "FCC_LOCAL_RANK",
                                        "FCC_MEETING",
                                        "FCCD_JOB",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "OMPI_MCA_ess_base_jobid",
                                        "PMIX_NAMESPACE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PMI_FD",
                                        "PMI_JOBID",
                                        "MPI_LOCALRANKID",
                                        "MPI_LOCALNRANKS",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_NODEID",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_STEP_NUM_NODES",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_HET_SIZE"};

static void clear(void)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        (void)unsetenv(variables[i]);
}

/* "NAME=value ..."; "NAME" takes it away; values have no spaces. */
static void set(const char *settings)
{
    char text[1024], *rest = text;

    (void)snprintf(text, sizeof(text), "%s", settings);
    for (char *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = '\0';
        if (value)
            (void)setenv(word, value, 1);
        else
            (void)unsetenv(word);
    }
}

#define TORCH "TORCHELASTIC_RUN_ID=r1 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=29500"
#define OMPI                                                                                                                   \
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=3 "                 \
    "OMPI_MCA_ess_base_jobid=1338114049 PMIX_NAMESPACE=1338114049"
#define MPICH "PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3"
#define SLURM                                                                                                                  \
    "SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=a[1-2] "  \
    "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1"

static const struct finding {
    const char *base, *change;
    struct fcc_env expected;
} findings[] = {
    {"", "", {0, 1, 0, 1, "none", "default", "", ""}},
    {"FCCD_JOB=mine", "SLURM_JOB_ID=9 SLURM_NTASKS=4", {0, 1, 0, 1, "none", "mine", "", ""}}, /* salloc's shell */
    {"LOCAL_RANK=3", "MASTER_ADDR=x", {0, 1, 0, 1, "none", "default", "", ""}},
    {TORCH, "", {5, 8, 1, 4, "torchrun", "torch-r1", "port-29500", "n1"}},
    {TORCH, "MASTER_ADDR=fd00::2", {5, 8, 1, 4, "torchrun", "torch-r1", "port-29500", "[fd00::2]"}},
    {TORCH, "TORCHELASTIC_RUN_ID=none", {5, 8, 1, 4, "torchrun", "torch-n1:29500", "port-29500", "n1"}},
    {TORCH, "TORCHELASTIC_RUN_ID", {5, 8, 1, 4, "torchrun", "default", "port-29500", "n1"}},
    {TORCH, "MASTER_ADDR=localhost FCC_MEETING=", {5, 8, 1, 4, "torchrun", "torch-r1", "port-29500", ""}},
    {TORCH, "MASTER_ADDR=localhost FCC_MEETING=n2:7", {5, 8, 1, 4, "torchrun", "torch-r1", "port-29500", "n2:7"}},
    {TORCH, "LOCAL_WORLD_SIZE=8 MASTER_ADDR=localhost", {5, 8, 1, 8, "torchrun", "torch-r1", "port-29500", ""}},
    {TORCH " " SLURM, "", {5, 8, 1, 4, "torchrun", "torch-r1", "port-29500", "n1"}}, /* torchrun that srun started */
    {TORCH " " OMPI, "", {5, 8, 1, 4, "torchrun", "torch-r1", "port-29500", "n1"}},
    {OMPI, "", {1, 3, 1, 3, "openmpi", "ompi-1338114049", "1338114049", ""}},
    {OMPI " " SLURM, "PMI_RANK=9", {1, 3, 1, 3, "openmpi", "ompi-1338114049", "1338114049", ""}}, /* mpirun in a batch script */
    {OMPI, "OMPI_MCA_ess_base_jobid PMIX_NAMESPACE=p@1", {1, 3, 1, 3, "openmpi", "pmix-p@1", "p@1", ""}},
    {OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE=2 FCC_MEETING=n1", {1, 3, 1, 2, "openmpi", "ompi-1338114049", "1338114049", "n1"}},
    {OMPI, "RANK=1 WORLD_SIZE=3", {1, 3, 1, 3, "openmpi", "ompi-1338114049", "1338114049", ""}},
    {MPICH, "FCCD_JOB=j", {2, 3, 2, 3, "mpich", "j", "", ""}},
    {MPICH " " SLURM, "PMI_JOBID", {2, 3, 2, 3, "mpich", "slurm-7", "", ""}}, /* mpiexec that starts its proxies by srun */
    {MPICH, "PMI_JOBID=8.1", {2, 3, 2, 3, "mpich", "pmi-8.1", "", ""}},
    {MPICH, "FCCD_JOB=j MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0 FCC_MEETING=[::1]:9", {2, 3, 0, 1, "mpich", "j", "", "[::1]:9"}},
    {SLURM, "", {2, 3, 0, 1, "slurm", "slurm-7", "7.0", "a1"}},
    {SLURM, "PMI_RANK=2 PMI_SIZE=3 PMI_JOBID=7.0", {2, 3, 0, 1, "slurm", "slurm-7", "7.0", "a1"}},
    {SLURM, "SLURM_STEP_NODELIST=a7,b[1-3]-ib FCC_MEETING=", {2, 3, 0, 1, "slurm", "slurm-7", "7.0", ""}},
    {SLURM,
     "SLURM_STEP_TASKS_PER_NODE=3 SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0 SLURM_LOCALID=2 SLURM_STEP_NODELIST=?",
     {2, 3, 2, 3, "slurm", "slurm-7", "7.0", ""}},
    {SLURM,
     "SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_STEP_NUM_NODES=3 SLURM_STEP_NODELIST=x[09-10],a",
     {2, 3, 0, 1, "slurm", "slurm-7", "7.0", "x09"}},
    {SLURM, "FCC_RANK=1 FCC_SIZE=2 FCC_MEETING=", {1, 2, -1, -1, "fcc", "slurm-7", "", ""}},
    {TORCH, "FCC_RANK=1 FCC_SIZE=2 FCC_LOCAL_RANK=1 FCC_MEETING=h:1", {1, 2, 1, -1, "fcc", "torch-r1", "", "h:1"}},
    {TORCH, "FCC_LOCAL_RANK=3", {5, 8, 3, 4, "torchrun", "torch-r1", "port-29500", "n1"}},
    {"FCC_RANK=0", "FCC_SIZE=1", {0, 1, 0, 1, "fcc", "default", "", ""}},
};

static void test_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(findings) / sizeof(findings[0]); i++) {
        const struct finding *f = &findings[i];
        struct fcc_env e;
        clear();
        set(f->base);
        set(f->change);
        if (fcc_env_find(&e))
            fail_msg("finding %zu, %s: %s", i, f->change, fcc_last_error());
        if (e.rank != f->expected.rank || e.size != f->expected.size || e.local_rank != f->expected.local_rank ||
            e.local_size != f->expected.local_size)
            fail_msg("finding %zu, %s: rank %d of %d, local %d of %d", i, f->change, e.rank, e.size, e.local_rank,
                     e.local_size);
        assert_string_equal(e.launcher, f->expected.launcher);
        assert_string_equal(e.job, f->expected.job);
        assert_string_equal(e.world, f->expected.world);
        assert_string_equal(e.meeting, f->expected.meeting);
    }
    clear();
}

static const struct refusal {
    const char *base, *change, *words[2];
} refusals[] = {
    {"", "FCC_RANK=0", {"FCC_SIZE: not set"}},
    {"", "FCC_SIZE=2", {"FCC_RANK: not set"}},
    {"", "FCC_RANK=2 FCC_SIZE=2", {"FCC_RANK: \"2\": allowed are 0 to 1"}},
    {"", "FCC_RANK=-1 FCC_SIZE=2", {"FCC_RANK: \"-1\": allowed are 0 to 1"}},
    {"", "FCC_RANK=1x FCC_SIZE=2", {"FCC_RANK: \"1x\": allowed are 0 to 1"}},
    {"", "FCC_RANK=0 FCC_SIZE=0", {"FCC_SIZE: \"0\": allowed are 1 to"}},
    {"", "FCC_RANK=0 FCC_SIZE=99999999999", {"FCC_SIZE: \"99999999999\": allowed are 1 to"}},
    {"", "FCC_RANK=0 FCC_SIZE=2", {"FCC_MEETING: not set", "host:port"}},
    {"", "FCC_RANK=0 FCC_SIZE=2 FCC_MEETING=h:0", {"FCC_MEETING: \"h:0\": allowed are host, host:port"}},
    {"", "FCC_RANK=0 FCC_SIZE=2 FCC_MEETING= FCC_LOCAL_RANK=2", {"FCC_LOCAL_RANK: \"2\": allowed are 0 to 1"}},
    {"", "FCC_MEETING=a:b", {"FCC_MEETING: \"a:b\""}},
    {"", "RANK=0", {"WORLD_SIZE: not set", "FCC_RANK"}},
    {"", "WORLD_SIZE=2", {"RANK: not set"}},
    {"", "FCCD_JOB=a\x01", {"FCCD_JOB: character 1 is 0x01"}},
    {TORCH, "RANK", {"RANK: not set"}},
    {TORCH, "RANK=8", {"RANK: \"8\": allowed are 0 to 7"}},
    {TORCH, "LOCAL_RANK=4", {"LOCAL_RANK: \"4\": allowed are 0 to 3"}},
    {TORCH, "LOCAL_WORLD_SIZE=9", {"LOCAL_WORLD_SIZE: \"9\": allowed are 1 to 8"}},
    {TORCH, "LOCAL_WORLD_SIZE", {"LOCAL_WORLD_SIZE: not set"}},
    {TORCH, "MASTER_ADDR", {"MASTER_ADDR: not set"}},
    {TORCH, "MASTER_PORT=65536", {"MASTER_PORT: \"65536\": allowed are 1 to 65535"}},
    {TORCH, "MASTER_ADDR=localhost", {"MASTER_ADDR: \"localhost\"", "set FCC_MEETING"}},
    {TORCH, "MASTER_ADDR=127.1.2.3", {"LOCAL_WORLD_SIZE: 4 of WORLD_SIZE: 8"}},
    {TORCH, "MASTER_ADDR=::1", {"MASTER_ADDR: \"::1\""}},
    {TORCH,
     "MASTER_ADDR=a.name.that.is.longer.than.any.address.of.a.node.may.be.in.this.cluster",
     {"MASTER_ADDR: 71 characters"}},
    {TORCH, "FCC_LOCAL_RANK=4", {"FCC_LOCAL_RANK: \"4\": allowed are 0 to 3"}},
    {OMPI, "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_RANK: not set"}},
    {OMPI, "OMPI_COMM_WORLD_SIZE", {"OMPI_COMM_WORLD_SIZE: not set"}},
    {OMPI, "OMPI_COMM_WORLD_LOCAL_RANK=3", {"OMPI_COMM_WORLD_LOCAL_RANK: \"3\": allowed are 0 to 2"}},
    {OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE=2", {"FCC_MEETING: not set: openmpi", "2 of 3 are on this one"}},
    {OMPI, "OMPI_MCA_ess_base_jobid PMIX_NAMESPACE", {"PMIX_NAMESPACE: not set, nor OMPI_MCA_ess_base_jobid"}},
    {OMPI, "RANK=2 WORLD_SIZE=3", {"RANK: \"2\" and WORLD_SIZE: \"3\", but openmpi says rank 1 of 3", "FCC_RANK"}},
    {MPICH, "MPI_LOCALRANKID", {"MPI_LOCALRANKID: not set"}},
    {MPICH, "MPI_LOCALRANKID MPI_LOCALNRANKS", {"MPI_LOCALNRANKS: not set"}},
    {MPICH, "PMI_SIZE", {"PMI_SIZE: not set"}},
    {MPICH, "PMI_FD=-3", {"FCCD_JOB: not set: mpich", "-genv FCCD_JOB"}},
    {MPICH, "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0 FCC_MEETING=n1", {"FCCD_JOB: not set: mpich"}},
    {MPICH, "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0 FCCD_JOB=j", {"FCC_MEETING: not set: mpich", "2 of 3"}},
    {SLURM, "SLURM_PROCID", {"SLURM_PROCID: not set"}},
    {SLURM, "SLURM_STEP_ID", {"SLURM_STEP_ID: not set", "start it with srun"}},
    {SLURM, "SLURM_JOB_ID", {"SLURM_JOB_ID: not set"}},
    {SLURM, "SLURM_STEP_NUM_TASKS", {"SLURM_STEP_NUM_TASKS: not set"}},
    {SLURM, "SLURM_NTASKS=4", {"SLURM_NTASKS: 4, but SLURM_STEP_NUM_TASKS: 3"}},
    {SLURM, "SLURM_LOCALID=1", {"SLURM_LOCALID: \"1\": allowed are 0 to 0"}},
    {SLURM, "SLURM_NODEID=2", {"SLURM_NODEID: \"2\": allowed are 0 to 1"}},
    {SLURM, "SLURM_STEP_TASKS_PER_NODE=2", {"SLURM_STEP_TASKS_PER_NODE: \"2\": 1 hosts: host number 1 is none of them"}},
    {SLURM, "SLURM_STEP_TASKS_PER_NODE=2(x2)", {"\"2(x2)\" is 4 tasks on 2 nodes, but SLURM_STEP_NUM_TASKS: 3"}},
    {SLURM, "SLURM_STEP_TASKS_PER_NODE=2;1", {"SLURM_STEP_TASKS_PER_NODE: \"2;1\": character 1"}},
    {SLURM, "SLURM_STEP_TASKS_PER_NODE", {"SLURM_STEP_TASKS_PER_NODE: not set"}},
    {SLURM, "SLURM_STEP_NODELIST", {"SLURM_STEP_NODELIST: not set"}},
    {SLURM, "SLURM_STEP_NODELIST=a[1-2", {"SLURM_STEP_NODELIST: \"a[1-2\": character 5: expected a comma or ]", "FCC_MEETING"}},
    {SLURM, "SLURM_STEP_NODELIST=a[1-3]", {"\"a[1-3]\" is 3 nodes, but SLURM_STEP_NUM_NODES: 2"}},
    {SLURM, "SLURM_HET_SIZE=2", {"SLURM_HET_SIZE: 2: heterogeneous"}},
    {SLURM, "RANK=1 WORLD_SIZE=3", {"RANK: \"1\" and WORLD_SIZE: \"3\", but slurm says rank 2 of 3"}},
    {SLURM, "PMI_RANK=2 PMI_SIZE=4", {"PMI_SIZE: \"4\", but slurm says rank 2 of 3"}},
};

static void test_refused(void **state)
{
    static const struct fcc_env untouched = {.rank = 77};

    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const struct refusal *r = &refusals[i];
        struct fcc_env e = untouched;
        clear();
        set(r->base);
        set(r->change);
        int status = fcc_env_find(&e);
        if (status != -EINVAL || memcmp(&e, &untouched, sizeof(e)) != 0)
            fail_msg("refusal %zu, %s: %d", i, r->change, status);
        for (int w = 0; w < 2 && r->words[w]; w++)
            if (!strstr(fcc_last_error(), r->words[w]))
                fail_msg("refusal %zu, %s: \"%s\" does not say \"%s\"", i, r->change, fcc_last_error(), r->words[w]);
    }
    clear();
    assert_int_equal(fcc_env_find(NULL), -EINVAL);
}

/* Who started the ranks holds the other end of their connection to it. */
static void test_mpich_proxy(void **state)
{
    char settings[32], world[32];
    struct fcc_env e;
    int ends[2];

    (void)state;
    clear();
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    (void)snprintf(settings, sizeof(settings), "PMI_FD=%d", ends[0]);
    (void)snprintf(world, sizeof(world), "proxy-%d", (int)getpid());
    set(MPICH);
    set(settings);
    assert_int_equal(fcc_env_find(&e), 0);
    assert_string_equal(e.world, world);
    assert_string_equal(e.meeting, "");
    set("MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0 FCCD_JOB=j FCC_MEETING=n1"); /* other nodes have other proxies */
    assert_int_equal(fcc_env_find(&e), 0);
    assert_string_equal(e.world, "");
    clear();
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* ---- ids ---- */

static const unsigned char key[MEETING_KEY_BYTES] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                     16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

static struct fcc_unique_id_layout id_of(const unsigned char *with, const char *node, const char *name, const char *root)
{
    struct fcc_meeting m = {.name = ""};
    struct fcc_unique_id_layout id;
    struct fcc_unique_id out;
    struct error e;

    text_copy(m.name, sizeof(m.name), name);
    text_copy(m.root, sizeof(m.root), root);
    if (meeting_id(with, node, &m, &out, &e))
        fail_msg("%s", e.text);
    memcpy(&id, &out, sizeof(id));
    return id;
}

static void test_meeting_id(void **state)
{
    /* Python: info = b"slurm 7.0 size 4 number 0".ljust(128, b"\0") + b"n1:7800".ljust(64, b"\0"); t1 = hmac.digest(key, info +
     * b"\1", "sha256"); (t1 + hmac.digest(key, t1 + info + b"\2", "sha256"))[:40] */
    static const unsigned char expected[40] = {
        0x5f, 0x83, 0xf0, 0x35, 0x80, 0x44, 0xec, 0x89, 0xf8, 0xcb, 0xdd, 0xc8, 0xbc, 0x4f, 0xea, 0x82, 0x1e, 0x05, 0x1f, 0x17,
        0x60, 0xf7, 0xc4, 0xc4, 0x75, 0x1b, 0x05, 0xba, 0xa3, 0xdc, 0x64, 0x1e, 0x82, 0xca, 0x1a, 0x16, 0xaa, 0x4e, 0x88, 0xe9};
    static const char name[] = "slurm 7.0 size 4 number 0";
    unsigned char other[MEETING_KEY_BYTES];
    struct fcc_unique_id_layout a = id_of(key, "n2:7800", name, "n1"), b;

    (void)state;
    assert_memory_equal(a.secret, expected, sizeof(expected));
    assert_string_equal(a.root, "n1:7800");
    for (size_t i = 0; i < sizeof(a.zero); i++)
        assert_int_equal(a.zero[i], 0);
    b = id_of(key, "n1:7800", name, ""); /* the same at the root itself */
    assert_memory_equal(&a, &b, sizeof(a));
    b = id_of(key, "[fd00::2]:7800", name, "n1:7800");
    assert_memory_equal(&a, &b, sizeof(a));
    b = id_of(key, "n1:7801", name, "");
    assert_memory_not_equal(a.secret, b.secret, sizeof(a.secret));
    b = id_of(key, "n1:7800", "slurm 7.0 size 4 number 1", "");
    assert_memory_not_equal(a.secret, b.secret, sizeof(a.secret));
    memcpy(other, key, sizeof(other));
    other[31] ^= 1;
    b = id_of(other, "n1:7800", name, "");
    assert_memory_not_equal(a.secret, b.secret, sizeof(a.secret));
    b = id_of(key, "", name, "");
    assert_string_equal(b.root, "");
    b = id_of(key, "n2:7800", name, "[::1]");
    assert_string_equal(b.root, "[::1]:7800");
}

static void id_fails(const char *node, const struct fcc_meeting *m, int status, const char *words)
{
    struct fcc_unique_id out = {{7}}, before = out;
    struct error e;

    assert_int_equal(meeting_id(key, node, m, &out, &e), status);
    assert_memory_equal(&out, &before, sizeof(out));
    if (!strstr(e.text, words))
        fail_msg("\"%s\" does not say \"%s\"", e.text, words);
}

static void test_meeting_refused(void **state)
{
    struct fcc_meeting good = {.name = "x", .root = "n1"}, m = good;

    (void)state;
    id_fails("", &m, -ENETUNREACH, "n1: this node's fccd speaks to no other node");
    m.name[0] = '\0';
    id_fails("n2:1", &m, -EINVAL, "1 to 127");
    m.name[0] = '\n';
    id_fails("n2:1", &m, -EINVAL, "printable");
    memset(m.name, 'x', sizeof(m.name));
    id_fails("n2:1", &m, -EINVAL, "1 to 127");
    m = good;
    memset(m.root, 'x', sizeof(m.root));
    id_fails("n2:1", &m, -EINVAL, "at most 63");
    m.root[63] = '\0';
    id_fails("n2:1", &m, -EINVAL, ":1: more than 63 characters");
    (void)snprintf(m.root, sizeof(m.root), "n1:x");
    id_fails("n2:1", &m, -EINVAL, "\"n1:x\"");
}

/* ---- the way to the worker ---- */

static void test_comm_init_env(void **state)
{
    struct bed b = bed_connect(false);
    struct fcc_unique_id first;
    fcc_comm *comm = NULL;

    (void)state;
    clear();
    assert_int_equal(fcc_comm_init_env(NULL, NULL, &comm), -EINVAL);
    assert_int_equal(fcc_comm_init_env(b.context, NULL, NULL), -EINVAL);
    set("FCC_RANK=2 FCC_SIZE=2 FCC_MEETING=n1:5");
    assert_int_equal(fcc_comm_init_env(b.context, NULL, &comm), -EINVAL);
    assert_error_says("FCC_RANK");
    set("FCC_RANK=1");
    assert_int_equal(b.fake->calls[FCC_MSG_MEETING], 0);
    set_fault(&b, REPLY_TRUNCATED); /* a call that fails does not count */
    assert_true(fcc_comm_init_env(b.context, NULL, &comm) < 0);
    bed_close(&b);
    b = bed_connect(false);
    for (int number = 0; number < 2; number++) {
        char name[64];
        assert_int_equal(fcc_comm_init_env(b.context, NULL, &comm), 0);
        assert_int_equal(b.fake->calls[FCC_MSG_MEETING], number + 1);
        (void)snprintf(name, sizeof(name), "fcc  size 2 number %d", number);
        assert_string_equal(b.fake->meeting.name, name);
        assert_string_equal(b.fake->meeting.root, "n1:5");
        assert_int_equal(b.fake->comm_init.unique_id.bytes[9], b.fake->meeting.msg.id & 0xff); /* the fake's answer */
        assert_true(b.fake->comm_init.nranks == 2 && b.fake->comm_init.rank == 1);
        if (number == 0)
            first = b.fake->comm_init.unique_id;
        else
            assert_memory_not_equal(&first, &b.fake->comm_init.unique_id, sizeof(first));
        fcc_comm_destroy(comm);
    }
    clear();
    set(SLURM);
    assert_int_equal(fcc_comm_init_env(b.context, NULL, &comm), 0);
    assert_string_equal(b.fake->meeting.name, "slurm 7.0 size 3 number 2");
    assert_string_equal(b.fake->meeting.root, "a1");
    fcc_comm_destroy(comm);
    clear(); /* alone: nobody to agree with */
    assert_int_equal(fcc_comm_init_env(b.context, NULL, &comm), 0);
    assert_int_equal(b.fake->calls[FCC_MSG_MEETING], 3);
    assert_int_equal(b.fake->calls[FCC_MSG_UNIQUE_ID], 1);
    bed_close(&b);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        T(test_found), T(test_refused), T(test_mpich_proxy), T(test_meeting_id), T(test_meeting_refused), T(test_comm_init_env),
    };
    return cmocka_run_group_tests_name("env", tests, NULL, NULL);
}
