/* SPDX-License-Identifier: MIT
 *
 * test_config.c - the configuration: which source wins, and what is said about mistakes. test_config_nodes.c: what is
 * said of other nodes.
 */
#include <sched.h>

#include <sys/stat.h>

#include "proto/base/network.h"
#include "tests/common/config_bed.h"

static void defaults(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    assert_int_equal(load("# nothing\n\n", NULL, &c, &e), 0);
    assert_int_equal(c.time_limit_ms, 30000);
    assert_int_equal(c.jobs_per_user, 16);
    assert_int_equal(c.connections_per_job, 1024);
    assert_int_equal(c.connections_per_user, 2048);
    assert_int_equal(c.cpu_devices, 1);
    assert_string_equal(c.socket, FCC_SOCKET_DEFAULT);
    assert_string_equal(c.log_level, "info");
    assert_string_equal(c.gpus, "auto");
    assert_string_equal(c.plugin_dir, "");
}

/* systemd names a directory for caches by a variable; what is set is set. */
static void caches(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    assert_int_equal(setenv("CACHE_DIRECTORY", "/var/cache/fccd", 1), 0);
    assert_int_equal(load("", NULL, &c, &e), 0);
    assert_string_equal(c.code_cache, "/var/cache/fccd");
    assert_int_equal(load("CODE_CACHE=/mine\n", NULL, &c, &e), 0);
    assert_string_equal(c.code_cache, "/mine");
    assert_int_equal(setenv("CACHE_DIRECTORY", "here", 1), 0);
    assert_int_equal(load("", NULL, &c, &e), 0);
    assert_string_equal(c.code_cache, "");
    assert_int_equal(unsetenv("CACHE_DIRECTORY"), 0);
}

static void rails(void **state)
{
    struct network n[NETWORKS_MAX];
    struct config c;
    struct error e;

    (void)state;
    assert_int_equal(load("# nothing\n", NULL, &c, &e), 0);
    assert_int_equal(config_rails(&c), 0);
    assert_int_equal(load("RAILS=8\n", NULL, &c, &e), 0);
    assert_int_equal(config_rails(&c), 8);
    assert_int_equal(load("RAILS=8\n", (char *const[]){"--rails", "auto", NULL}, &c, &e), 0);
    assert_int_equal(config_rails(&c), 0);
    assert_string_equal(c.rail_networks, "auto");
    assert_int_equal(load("RAIL_NETWORKS=10.1.0.0/16,fd00:2::/32,0.0.0.0/0\n", NULL, &c, &e), 0);
    assert_int_equal(networks_parse(c.rail_networks, n), 3);
    assert_true(n[0].family == NETWORK_IPV4 && n[0].prefix == 16 && n[0].address[0] == 10 && n[0].address[1] == 1);
    assert_true(n[1].family == NETWORK_IPV6 && n[1].prefix == 32 && n[1].address[0] == 0xfd && n[1].address[3] == 2);
    assert_true(n[2].family == NETWORK_IPV4 && n[2].prefix == 0 && n[2].address[0] == 0);
}

static void who_wins(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    (void)setenv("FCCD_CPU_DEVICES", "5", 1);
    (void)setenv("FCCD_SPIN_US", "7", 1);
    assert_int_equal(load("CPU_DEVICES=3\n SPIN_US = 9 \nDRAIN_MS=11\nSOCKET=/a\n",
                          (char *const[]){"--spin-us", "8", "--socket=/b", NULL}, &c, &e),
                     0);
    (void)unsetenv("FCCD_CPU_DEVICES");
    (void)unsetenv("FCCD_SPIN_US");
    assert_int_equal(c.drain_ms, 11);   /* the file over the default */
    assert_int_equal(c.cpu_devices, 5); /* the environment over the file */
    assert_int_equal(c.spin_us, 8);     /* the command line over both */
    assert_string_equal(c.socket, "/b");
}

/* A user's workers weigh as much less as his weight says than those with the largest one, in the kernel's steps. */
static void weights(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    assert_int_equal(load("", NULL, &c, &e), 0);
    assert_int_equal(config_nice(&c, 0), 0);
    assert_int_equal(load("USER_WEIGHTS=1000=50\n", NULL, &c, &e), 0);
    assert_true(config_nice(&c, 1000) == 3 && config_nice(&c, 1001) == 0); /* 1.25^3 is 1.95 */
    assert_int_equal(load("USER_WEIGHTS=1000=400,1001=200,1002=1,4294967294=380\n", NULL, &c, &e), 0);
    assert_true(config_nice(&c, 1000) == 0 && config_nice(&c, 4294967294u) == 0 && config_nice(&c, 1001) == 3);
    assert_true(config_nice(&c, 0) == 6 && config_nice(&c, 1002) == 19); /* 27 would be right: there are 19 */
    wrong("USER_WEIGHTS=1000\n", NULL,
          "USER_WEIGHTS: \"1000\": allowed is a list UID=WEIGHT,... with weights from 1 to 10000, each user once");
    wrong("USER_WEIGHTS=root=5\n", NULL, "allowed is a list UID=WEIGHT");
    wrong("USER_WEIGHTS=1=0\n", NULL, "allowed is a list UID=WEIGHT");
    wrong("USER_WEIGHTS=1=10001\n", NULL, "allowed is a list UID=WEIGHT");
    wrong("USER_WEIGHTS=1=5,\n", NULL, "allowed is a list UID=WEIGHT");
    wrong("USER_WEIGHTS=1=5;2=5\n", NULL, "allowed is a list UID=WEIGHT");
    wrong("USER_WEIGHTS=1=5,2=5,1=7\n", NULL, "each user once");
    wrong("USER_WEIGHTS=4294967295=5\n", NULL, "allowed is a list UID=WEIGHT");
    wrong("USER_WEIGHTS=18446744073709551616=5\n", NULL, "allowed is a list UID=WEIGHT");
}

static void mistakes(void **state)
{
    char long_socket[256], says[96], networks[512];

    (void)state;
    wrong("# one\nCPU_DEVICE=3\n", NULL, ":2: unknown key \"CPU_DEVICE\"");
    wrong("# one\nCPU_DEVICE=3\n", NULL, "(did you mean CPU_DEVICES?)");
    wrong("CPU_DEVICES\n", NULL, ":1: \"CPU_DEVICES\": allowed are lines KEY=VALUE");
    wrong("CPU_DEVICES=0\n", NULL, "CPU_DEVICES: \"0\": allowed is a number from 1 to 64");
    wrong("CONNECTIONS_PER_JOB=0\n", NULL, "CONNECTIONS_PER_JOB: \"0\": allowed is a number from 1 to 1000000");
    wrong("CONNECTIONS_PER_USER=many\n", NULL, "CONNECTIONS_PER_USER: \"many\": allowed is a number from 1 to 1000000");
    wrong("CPU_DEVICES=two\n", NULL, "\"two\": allowed is a number from 1 to 64");
    wrong("TIME_LIMIT_MS=-5\n", NULL, "allowed is a number from 10 to 86400000 ms");
    wrong("TIME_LIMIT_MS=99999999999999999999\n", NULL, "allowed is a number");
    wrong("LOG_LEVEL=loud\n", NULL, "allowed are error, warning, info and debug");
    wrong("SOCKET=relative\n", NULL, "allowed is an absolute path");
    wrong("GPUS=amd\n", NULL, "GPUS: \"amd\": allowed are auto, none, cuda and hip");
    wrong("GPUS=\n", NULL, "GPUS: \"\": allowed are auto");
    wrong("GPU_SHARING=fd\n", NULL, "GPU_SHARING: \"fd\": allowed are auto and ipc");
    wrong("GPU_BEGIN=soon\n", NULL, "GPU_BEGIN: \"soon\": allowed are alone and together");
    wrong("GPU_COMPILER=nvcc\n", NULL, "GPU_COMPILER: \"nvcc\": allowed are auto, none and a path from / on");
    wrong("CODE_CACHE=here\n", NULL, "CODE_CACHE: \"here\": allowed is an absolute path, or nothing");
    wrong("GPU_TURNS=fair\n", NULL, "GPU_TURNS: \"fair\": allowed are weighted and free");
    wrong("GPU_BIND=all\n", NULL, "GPU_BIND: \"all\": allowed are own and shared");
    wrong("RAILS=0\n", NULL, "RAILS: \"0\": allowed are auto and a number from 1 to 8");
    wrong("RAILS=9\n", NULL, "RAILS: \"9\": allowed are");
    wrong("RAILS=\n", NULL, "RAILS: \"\": allowed are");
    wrong("RAILS=2x\n", NULL, "RAILS: \"2x\": allowed are");
    wrong("RAIL_NETWORKS=\n", NULL, "RAIL_NETWORKS: \"\": allowed are auto, and up to 32 networks ADDRESS/BITS");
    wrong("RAIL_NETWORKS=10.1.0.0\n", NULL, "RAIL_NETWORKS: \"10.1.0.0\": allowed are");
    wrong("RAIL_NETWORKS=10.1.0.0/33\n", NULL, "RAIL_NETWORKS: \"10.1.0.0/33\": allowed are");
    wrong("RAIL_NETWORKS=10.1.0/24\n", NULL, "RAIL_NETWORKS: \"10.1.0/24\": allowed are");
    wrong("RAIL_NETWORKS=10.1.0.0/16x\n", NULL, "RAIL_NETWORKS: \"10.1.0.0/16x\": allowed are");
    wrong("RAIL_NETWORKS=10.1.0.0/-1\n", NULL, "RAIL_NETWORKS: \"10.1.0.0/-1\": allowed are");
    wrong("RAIL_NETWORKS=fd00::/129\n", NULL, "RAIL_NETWORKS: \"fd00::/129\": allowed are");
    wrong("RAIL_NETWORKS=10.1.0.0/16,\n", NULL, "RAIL_NETWORKS: \"10.1.0.0/16,\": allowed are");
    wrong("RAIL_NETWORKS=auto,10.1.0.0/16\n", NULL, "RAIL_NETWORKS: \"auto,10.1.0.0/16\": allowed are");
    int length = snprintf(networks, sizeof(networks), "RAIL_NETWORKS=10.0.0.0/8");
    for (int i = 0; i < NETWORKS_MAX; i++) /* one too many */
        length += snprintf(networks + length, sizeof(networks) - (size_t)length, ",10.0.0.0/8");
    wrong(networks, NULL, "allowed are auto, and up to 32 networks");
    wrong("PLUGIN_DIR=lib\n", NULL, "PLUGIN_DIR: \"lib\": allowed is an absolute path, or nothing");
    wrong("LOG_FILE=log\n", NULL, "LOG_FILE: \"log\": allowed is an absolute path, or nothing");
    wrong("PID_FILE=pid\n", NULL, "PID_FILE: \"pid\": allowed is an absolute path, or nothing");
    wrong("LOG_FORMAT=xml\n", NULL, "LOG_FORMAT: \"xml\": allowed are text and json");
    memset(long_socket, 'x', sizeof(long_socket));
    memcpy(long_socket, "SOCKET=/", 8);
    long_socket[sizeof(long_socket) - 1] = '\0';
    (void)snprintf(says, sizeof(says), "allowed are at most %zu characters", sizeof(((struct config *)0)->socket) - 1);
    wrong(long_socket, NULL, says);
    wrong("", (char *const[]){"--frobnicate", "1", NULL}, "--frobnicate: unknown argument");
    wrong("", (char *const[]){"--memory-per-usr-mb=5", NULL}, "unknown argument (did you mean --memory-per-user-mb?)");
    wrong("", (char *const[]){"--backgroud", NULL}, "--backgroud: unknown argument (did you mean --background?)");
    wrong("", (char *const[]){"--check", NULL}, "(did you mean --check-config?)");
    wrong("", (char *const[]){"--help=1", NULL}, "--help=1: unknown argument (did you mean --help?)");
    wrong("", (char *const[]){"--CPU_DEVICES", "1", NULL}, "(did you mean --cpu-devices?)");
    wrong("", (char *const[]){"--", NULL}, "--: unknown argument; fccd");
    wrong("", (char *const[]){"-x", NULL}, "-x: unknown argument; fccd");
    wrong("--cpu-devices=2\n", NULL, "unknown key \"--cpu-devices\" (did you mean CPU_DEVICES?)");
    wrong("FCCD_SPIN_US=2\n", NULL, "unknown key \"FCCD_SPIN_US\" (did you mean SPIN_US?)");
    wrong("=2\n", NULL, "unknown key \"\"; fccd --help lists the keys");
    wrong("SPIN_US=+2\n", NULL, "SPIN_US: \"+2\": allowed is a number");
    wrong("", (char *const[]){"--spin-us", " 2", NULL}, "SPIN_US: \" 2\": allowed is a number");
    wrong("", (char *const[]){"spin", NULL}, "spin: unknown argument; fccd");
    wrong("", (char *const[]){"--spin-us", NULL}, "--spin-us: the value is missing");
    wrong("", (char *const[]){"--spin-us", "many", NULL}, "--spin-us: SPIN_US: \"many\"");
    (void)setenv("FCCD_SPIN_US", "x", 1);
    wrong("", NULL, "FCCD_SPIN_US: SPIN_US: \"x\"");
    (void)unsetenv("FCCD_SPIN_US");
}

static void files(void **state)
{
    struct config c;
    struct error e;
    enum config_action action;

    (void)state;
    assert_int_equal(config_load(3, (char *[]){"fccd", "--config", "/nonexistent/fccd.conf"}, &c, &action, &e), -EINVAL);
    assert_non_null(strstr(e.text, "/nonexistent/fccd.conf"));
    /* what can be opened, and not read */
    assert_int_equal(config_load(3, (char *[]){"fccd", "--config", "/tmp"}, &c, &action, &e), -EINVAL);
    assert_string_equal(e.text, "/tmp: Is a directory");
    assert_int_equal(config_load(3, (char *[]){"fccd", "--config", "/proc/self/mem"}, &c, &action, &e), -EINVAL);
    assert_string_equal(e.text, "/proc/self/mem: Input/output error");
    /* what has no end, or keeps who reads it waiting: nobody writes to the FIFO */
    char fifo[] = "/tmp/fccd-test-fifo.XXXXXX", says[128];
    assert_int_equal(close(mkstemp(fifo)) | unlink(fifo) | mkfifo(fifo, 0600), 0);
    (void)snprintf(says, sizeof(says), "%s: allowed is a regular file, or /dev/null", fifo);
    assert_int_equal(config_load(3, (char *[]){"fccd", "--config", fifo}, &c, &action, &e), -EINVAL);
    assert_string_equal(e.text, says);
    assert_int_equal(unlink(fifo), 0);
    assert_int_equal(config_load(3, (char *[]){"fccd", "--config", "/dev/zero"}, &c, &action, &e), -EINVAL);
    assert_string_equal(e.text, "/dev/zero: allowed is a regular file, or /dev/null");
    /* a NUL byte would hide the rest of its line */
    file_write("SPIN_US=5\n");
    FILE *f = fopen(path, "ae");
    assert_true(f &&
                fwrite("DRAIN_MS=1\0"
                       "2\n",
                       1, 13, f) == 13 &&
                fclose(f) == 0);
    assert_int_equal(config_load(3, (char *[]){"fccd", "--config", path}, &c, &action, &e), -EINVAL);
    assert_non_null(strstr(e.text, ":2: the line holds a NUL byte"));
    (void)unlink(path);
    /* what Windows' editors make of a text */
    assert_int_equal(load("\xef\xbb\xbfSPIN_US=8\r\nDRAIN_MS=9\r\n", NULL, &c, &e), 0);
    assert_true(c.spin_us == 8 && c.drain_ms == 9);
    assert_int_equal(load("\xef\xbb\xbf\n\xef\xbb\xbfSPIN_US=8\n", NULL, &c, &e), -EINVAL);
    /* of a key that is there twice the last line counts */
    assert_int_equal(load("SPIN_US=6\nSPIN_US=7\n", NULL, &c, &e), 0);
    assert_int_equal(c.spin_us, 7);
    /* the last line needs no newline */
    assert_int_equal(load("SPIN_US=6\nDRAIN_MS=7", NULL, &c, &e), 0);
    assert_true(c.spin_us == 6 && c.drain_ms == 7);
    assert_int_equal(config_load(4, (char *[]){"fccd", "--check-config", "--config", "/dev/null"}, &c, &action, &e), 0);
    assert_int_equal(action, CONFIG_CHECK);
    assert_int_equal(config_load(4, (char *[]){"fccd", "--list-gpus", "--config", "/dev/null"}, &c, &action, &e), 0);
    assert_int_equal(action, CONFIG_LIST_GPUS);
}

static void background(void **state)
{
    struct config c;
    struct error e;
    enum config_action action;
    char socket[sizeof(c.socket)];

    (void)state;
    assert_int_equal(
        config_load(5, (char *[]){"fccd", "--config", "/dev/null", "--socket", "/run/a.b/fccd.sock"}, &c, &action, &e), 0);
    assert_true(action == CONFIG_RUN && !*c.pid_file && !*c.log_file);
    assert_int_equal(config_load(6,
                                 (char *[]){"fccd", "--background", "--config", "/dev/null", "--socket", "/run/a.b/fccd.sock"},
                                 &c, &action, &e),
                     0);
    assert_int_equal(action, CONFIG_BACKGROUND);
    assert_string_equal(c.pid_file, "/run/a.b/fccd.pid");
    assert_string_equal(c.log_file, "/run/a.b/fccd.log");
    assert_int_equal(config_load(8,
                                 (char *[]){"fccd", "--config", "/dev/null", "--socket", "/run/a.b/.fccd", "--pid-file", "/p",
                                            "--background"},
                                 &c, &action, &e),
                     0);
    assert_string_equal(c.pid_file, "/p");
    assert_string_equal(c.log_file, "/run/a.b/.fccd.log");
    memset(socket, 'x', sizeof(socket) - 1);
    socket[0] = '/';
    socket[sizeof(socket) - 1] = '\0';
    assert_int_equal(
        config_load(6, (char *[]){"fccd", "--background", "--config", "/dev/null", "--socket", socket}, &c, &action, &e), 0);
    assert_int_equal(strlen(c.pid_file), sizeof(socket) + 3);
}

static char taken[512];

static void note(const char *key, bool taken_over)
{
    size_t n = strlen(taken);

    (void)snprintf(taken + n, sizeof(taken) - n, "%s%s ", key, taken_over ? "" : "!");
}

static void changes(void **state)
{
    struct config c, fresh;
    struct error e;

    (void)state;
    assert_int_equal(load("DRAIN_MS=5\nLOG_LEVEL=info\nSOCKET=/a\nNODE_LISTEN=\n", NULL, &c, &e), 0);
    assert_int_equal(load("DRAIN_MS=6\nLOG_LEVEL=debug\nSOCKET=/b\nCPU_DEVICES=3\n", NULL, &fresh, &e), 0);
    taken[0] = '\0';
    config_take(&c, &fresh, note);
    assert_string_equal(taken, "CPU_DEVICES! DRAIN_MS SOCKET! LOG_LEVEL ");
    assert_true(c.drain_ms == 6 && c.cpu_devices == 1 && !strcmp(c.socket, "/a") && !strcmp(c.log_level, "debug"));
    taken[0] = '\0';
    config_take(&c, &c, note);
    assert_string_equal(taken, "");
}

static void gpus(void **state)
{
    static const struct {
        const char *value;
        bool cuda, hip;
    } cases[] = {{"auto", true, true}, {"none", false, false}, {"cuda", true, false}, {"hip", false, true}};
    struct config c;
    struct error e;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[64];
        (void)snprintf(line, sizeof(line), "GPUS=%s\nPLUGIN_DIR=/opt/fccd\n", cases[i].value);
        assert_int_equal(load(line, NULL, &c, &e), 0);
        assert_string_equal(c.plugin_dir, "/opt/fccd");
        assert_int_equal(config_allows_gpus(&c, "cuda"), cases[i].cuda);
        assert_int_equal(config_allows_gpus(&c, "hip"), cases[i].hip);
    }
    assert_int_equal(load("PLUGIN_DIR=/opt/fccd\n", (char *const[]){"--plugin-dir", "", NULL}, &c, &e), 0);
    assert_string_equal(c.plugin_dir, "");
}

/* Cores that this process may not use are none of the node's to share out. */
static void one_core(void)
{
    struct config one_device = {.cpu_devices = 1}, *c = &one_device;
    cpu_set_t all, one;
    int core = 0;

    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    while (!CPU_ISSET(core, &all))
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(config_cpu_workgroups(c), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
    assert_int_equal(config_cpu_workgroups(c), CPU_COUNT(&all));
}

static void what_zero_means(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    assert_int_equal(load("CPU_DEVICES=64\n", NULL, &c, &e), 0);
    assert_true(config_cpu_workgroups(&c) >= 1);
    one_core();
    assert_true(config_memory_per_user(&c) > 1u << 20);
    assert_int_equal(load("CPU_WORKGROUPS=3\nMEMORY_PER_USER_MB=5\n", NULL, &c, &e), 0);
    assert_int_equal(config_cpu_workgroups(&c), 3);
    assert_int_equal(config_memory_per_user(&c), 5 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults), cmocka_unit_test(caches),     cmocka_unit_test(rails),   cmocka_unit_test(who_wins),
        cmocka_unit_test(weights),  cmocka_unit_test(mistakes),   cmocka_unit_test(files),   cmocka_unit_test(what_zero_means),
        cmocka_unit_test(gpus),     cmocka_unit_test(background), cmocka_unit_test(changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
