/* SPDX-License-Identifier: MIT
 *
 * fuzz_config.c - what an administrator, and a launcher, may write: the configuration's file, its list of nodes, its environment and its
 * command line; and the lists of hosts that a launcher gives.
 *
 * An input is text in parts that end with a byte 0xff: the file, the list of nodes, arguments (one a line), the environment (KEY=VALUE, one
 * a line), and a list of hosts. A configuration that is accepted has every number within its bounds, and is the same again when its
 * values are given one by one; a refused one says why and leaves the caller's untouched.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/launchers/hostlist.h"
#include "daemon/common/cluster.h"
#include "daemon/common/config.h"
#include "tests/fuzz/fuzz.h"

/* Fixed, so that inputs can name the files: /proc/self/fd/100 and so on. */
enum { FD_FILE = 100, FD_NODES, FD_KEY, ARGS_MAX = 24 };

/* The next part as a string, in malloc'ed memory. */
static char *part_take(struct input *in)
{
    const uint8_t *end = in->left ? memchr(in->at, 0xff, in->left) : NULL;
    size_t n = end ? (size_t)(end - in->at) : in->left;
    char *text = malloc(n + 1);

    FUZZ_CHECK(text != NULL);
    if (n)
        memcpy(text, in->at, n);
    text[n] = '\0';
    in->at += n + (end != NULL);
    in->left -= n + (end != NULL);
    return text;
}

static void file_put(int fd, const char *text, size_t n)
{
    int memory = memfd_create("fuzz", MFD_CLOEXEC);

    FUZZ_CHECK(memory >= 0 && write(memory, text, n) == (ssize_t)n && fchmod(memory, 0600) == 0);
    FUZZ_CHECK(dup2(memory, fd) == fd);
    (void)close(memory);
}

/* Paths of a configuration are opened: of those that an input names, only such as cannot hold the fuzzer up. */
static bool paths_are_harmless(const char *text)
{
    return !strstr(text, "/dev") && !strstr(text, "pts") && !strstr(text, "tty") && !strstr(text, "fd/0") &&
           !strstr(text, "..");
}

static void environment_set(char *text, bool set)
{
    char *rest = text, *line, *equals;

    while ((line = strsep(&rest, "\n")))
        if ((equals = strchr(line, '=')) && !strncmp(line, "FCCD_", 5)) {
            *equals = '\0';
            if (set)
                (void)setenv(line, equals + 1, 1);
            else
                (void)unsetenv(line);
            *equals = '='; /* and once more, to take it away */
            if (rest)
                rest[-1] = '\n';
        } else if (rest) {
            rest[-1] = '\n';
        }
}

static void expect_numbers(const struct config *c)
{
#define X(KEY, field, unit, standard, smallest, largest, what)                                                                 \
    FUZZ_CHECK((uint64_t)c->field + 1 > (smallest) && c->field <= (largest));
    CONFIG_NUMBERS(X)
#undef X
#define X(KEY, field, bytes, standard, what) FUZZ_CHECK(memchr(c->field, 0, sizeof(c->field)));
    CONFIG_STRINGS(X)
#undef X
}

static bool config_equal(const struct config *a, const struct config *b)
{
    bool equal = true;

#define X(KEY, field, unit, standard, smallest, largest, what) equal &= a->field == b->field;
    CONFIG_NUMBERS(X)
#undef X
#define X(KEY, field, bytes, standard, what) equal &= !strcmp(a->field, b->field);
    CONFIG_STRINGS(X)
#undef X
    return equal;
}

/* "--key=value" of a KEY. */
static char *option_make(const char *key, const char *value)
{
    size_t n = strlen(key);
    char *option = malloc(n + strlen(value) + 4);

    FUZZ_CHECK(option != NULL);
    (void)sprintf(option, "--%s=%s", key, value);
    for (size_t i = 2; i < n + 2; i++)
        option[i] = (char)(option[i] == '_' ? '-' : option[i] >= 'A' && option[i] <= 'Z' ? option[i] + 'a' - 'A' : option[i]);
    return option;
}

static void expect_same_again(const struct config *c)
{
    char *argv[64] = {"fccd", "--config=/dev/null"}, number[16];
    enum config_action action;
    struct config again;
    struct error e = {0};
    int argc = 2;

#define X(KEY, field, unit, standard, smallest, largest, what)                                                                 \
    (void)snprintf(number, sizeof(number), "%u", c->field);                                                                    \
    argv[argc++] = option_make(#KEY, number);
    CONFIG_NUMBERS(X)
#undef X
#define X(KEY, field, bytes, standard, what) argv[argc++] = option_make(#KEY, c->field);
    CONFIG_STRINGS(X)
#undef X
    /* An address that only stands for the other one is not to be given without it. */
    int status = config_load(argc, argv, &again, &action, &e);
    if (status)
        fuzz_failed(__FILE__, __LINE__, "what was accepted is refused: %s", e.text);
    FUZZ_CHECK(action == CONFIG_RUN && config_equal(c, &again));
    for (int i = 2; i < argc; i++)
        free(argv[i]);
}

static void nodes_try(const struct config *c)
{
    node_address *nodes = NULL;
    size_t n = 0;
    struct error e = {0};

    if (cluster_nodes_read(c, &nodes, &n, &e))
        return;
    FUZZ_CHECK(n <= NODES_MAX);
    for (size_t i = 0; i < n; i++) {
        FUZZ_CHECK(!address_split(nodes[i], NULL, NULL) && strcmp(nodes[i], c->node_address) != 0);
        for (size_t j = 0; j < i && j < 64; j++)
            FUZZ_CHECK(strcmp(nodes[i], nodes[j]) != 0);
    }
    free(nodes);
}

static void lists_try(const char *text)
{
    struct network networks[NETWORKS_MAX];
    char host[64], part[FCC_NODE_MAX], port[6];
    uint32_t count = 0, tasks = 0, sum = 0;
    struct error e = {0};

    int n = networks_parse(text, networks);
    FUZZ_CHECK(n == -EINVAL || (n >= 0 && n <= NETWORKS_MAX));
    for (int i = 0; i < n; i++) {
        char shown[NETWORK_TEXT_MAX];
        FUZZ_CHECK(networks[i].prefix <= network_bits(networks[i].family));
        network_address_text(&networks[i], shown);
        FUZZ_CHECK(network_has(&networks[i], &networks[i]));
    }
    if (!address_split(text, part, port))
        FUZZ_CHECK(strlen(part) + strlen(port) < strlen(text) && strtoul(port, NULL, 10) <= 65535);
    for (uint32_t index = 0; index < 3; index++) {
        int status = hostlist_find("LIST", text, index, host, sizeof(host), &count, &e);
        FUZZ_CHECK(status == 0 || status == -EINVAL);
        FUZZ_CHECK(status || (memchr(host, 0, sizeof(host)) && count > index && count <= HOSTLIST_MAX));
        status = tasklist_find("TASKS", text, index, &tasks, &count, &sum, &e);
        FUZZ_CHECK(status == 0 || status == -EINVAL);
        FUZZ_CHECK(status || (count > index && sum >= tasks));
    }
}

static void config_try(int argc, char *argv[])
{
    struct config c, before;
    enum config_action action = CONFIG_RUN;
    struct error e = {0};

    memset(&c, 0x5a, sizeof(c));
    before = c;
    int status = config_load(argc, argv, &c, &action, &e);
    FUZZ_CHECK(status == 0 || status == -EINVAL || status == -ENOMEM);
    if (status) {
        FUZZ_CHECK(e.status == status && e.text[0] && memchr(e.text, 0, sizeof(e.text)));
        FUZZ_CHECK(!memcmp(&c, &before, sizeof(c)));
        return;
    }
    expect_numbers(&c);
    FUZZ_CHECK(config_memory_per_user(&c) && config_cpu_workgroups(&c) && config_rails(&c) <= 8);
    if (action != CONFIG_RUN && action != CONFIG_CHECK)
        return;
    nodes_try(&c);
    if (*c.node_listen)
        expect_same_again(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char secret[] = "forty bytes that are the cluster's secret";
    struct input in = {.at = data, .left = size};
    char *file = part_take(&in), *nodes = part_take(&in), *args = part_take(&in), *environment = part_take(&in),
         *hosts = part_take(&in), *rest = args, *line;
    char *argv[ARGS_MAX + 1] = {"fccd", "--config", "/proc/self/fd/100"};
    int argc = 3;

    while (argc < ARGS_MAX && (line = strsep(&rest, "\n")))
        if (*line)
            argv[argc++] = line;
    bool harmless = paths_are_harmless(file) && paths_are_harmless(environment);
    for (int i = 3; i < argc; i++)
        harmless &= paths_are_harmless(argv[i]);
    if (harmless) {
        file_put(FD_FILE, file, strlen(file));
        file_put(FD_NODES, nodes, strlen(nodes));
        file_put(FD_KEY, secret, sizeof(secret) - 1);
        environment_set(environment, true);
        config_try(argc, argv);
        environment_set(environment, false);
    }
    lists_try(hosts);
    free(file);
    free(nodes);
    free(args);
    free(environment);
    free(hosts);
    return 0;
}
