/* SPDX-License-Identifier: MIT
 *
 * test_plugins.c - the GPU plug-ins that were built, on a machine with or without GPUs: they load, say what there is or why
 * there is nothing, and their absence is no event to anybody who does not ask for them.
 */
#include <errno.h>
#include <json-c/json.h>
#include <string.h>
#include <unistd.h>

#include "tests/bed/harness.h"

static const char *const kinds[] = {"cuda", "hip"};

static bool is_built(const char *kind)
{
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s.so",
                   getenv("FCC_TEST_PLUGIN_DIR") ? getenv("FCC_TEST_PLUGIN_DIR") : "build/lib/fccd", kind);
    return access(path, R_OK) == 0;
}

static struct json_object *output_of(const char *command)
{
    static char text[1 << 16];
    FILE *f = popen(command, "r");

    CHECK(f != NULL);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    CHECK(pclose(f) == 0);
    struct json_object *o = json_tokener_parse(text);
    CHECK(o != NULL);
    return o;
}

static const char *string_of(struct json_object *o, const char *key)
{
    struct json_object *value;

    CHECK(json_object_object_get_ex(o, key, &value));
    return json_object_get_string(value);
}

/* What was built loads here and now: it has found GPUs, or it says that there is none. */
static void they_load(void)
{
    struct json_object *plugins;
    char command[640];

    (void)snprintf(command, sizeof(command), "%s --config /dev/null --list-gpus", daemon_binary());
    struct json_object *o = output_of(command);
    CHECK(json_object_object_get_ex(o, "plugins", &plugins));
    CHECK(json_object_array_length(plugins) == sizeof(kinds) / sizeof(kinds[0]));
    for (size_t i = 0; i < json_object_array_length(plugins); i++) {
        struct json_object *p = json_object_array_get_idx(plugins, i);
        const char *kind = string_of(p, "kind"), *state = string_of(p, "state"), *status = string_of(p, "status");
        printf("%s: %s: %s\n", kind, state, status);
        if (!is_built(kind))
            CHECK(!strcmp(state, "not built"));
        else
            CHECK(!strcmp(state, "ok") || (!strcmp(state, "none") && strstr(status, "no GPU")));
    }
    CHECK(json_object_put(o) == 1);
}

static void only_cpu(const char *words)
{
    struct fcc_comm_options gpu = {.device = -1, .device_kind = FCC_DEVICE_GPU}, unknown = {.device = -1, .device_kind = 9};
    struct fcc_unique_id id;
    fcc_context *c;
    fcc_comm *comm;

    OK(fcc_connect(NULL, &c));
    OK(fcc_get_unique_id(c, &id));
    FAILS(fcc_comm_init(c, &id, 1, 0, &gpu, &comm), -ENODEV, "rank 0", "device_kind", "no such GPU", words);
    FAILS(fcc_comm_init(c, &id, 1, 0, &unknown, &comm), -EINVAL, "device_kind", "9");
    OK(fcc_comm_init(c, &id, 1, 0, NULL, &comm));
    CHECK(fcc_comm_device_kind(comm) == FCC_DEVICE_CPU);
    OK(fcc_noop(comm));
    fcc_disconnect(c);
}

/* Without GPUs to offer, whoever asks for one hears why, and the cpu serves. */
static void none_allowed(void)
{
    static const char *const options[] = {"--gpus", "none", NULL};
    struct test_daemon d;

    daemon_start(&d, options);
    only_cpu("GPUS=none");
    daemon_stop(&d);
}

static void none_built(void)
{
    const char *options[] = {"--gpus", "auto", "--plugin-dir", test_directory(), NULL};
    struct test_daemon d;

    daemon_start(&d, options);
    only_cpu("not built");
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {{"they_load", they_load, 0}, {"none_allowed", none_allowed, 0}, {"none_built", none_built, 0}};

    (void)unsetenv("FCC_TEST_DEVICE");
    return tests_run("plugins", TESTS(tests));
}
