/* SPDX-License-Identifier: MIT
 *
 * test_versions.c - a client and a fccd of different versions of the protocol speak the older one's, on cpu devices, or say what is to be upgraded;
 * on GPUs they say so always. The older ones are made of today's sources, as they speak the oldest version (tests/files.mk); proto/ABI.md has
 * what was tried with those of that time.
 */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/session.h"
#include "proto/version.h"
#include "tests/bed/harness.h"
#include "tests/bed/raw.h"

static bool agreed(const char *refusal, uint32_t want)
{
    uint32_t version = FCC_PROTO_VERSION;
    bool changed = version_agree(refusal, &version);

    CHECK(changed == (version != FCC_PROTO_VERSION));
    return version == want;
}

static bool explained(const char *refusal, const char *want)
{
    char text[FCC_TEXT_MAX];

    version_explain(refusal, text, sizeof(text));
    printf("%s\n", text);
    return strstr(text, want);
}

/* A fccd's words, of those that have been said in five versions and of those of today. */
static void words(void)
{
    CHECK(agreed("hello: protocol version 9: this fccd speaks version 5", 5));
    CHECK(agreed("hello: protocol version 9: this fccd speaks version 4", FCC_PROTO_VERSION));
    CHECK(agreed("hello: protocol version 9: this fccd speaks version 9", FCC_PROTO_VERSION));
    CHECK(agreed("hello: protocol version 9: this fccd (0.0.1) speaks versions 3 to 5: upgrade fccd", 5));
    CHECK(agreed("hello: protocol version 9: this fccd (0.0.1) speaks versions 3 to 4: upgrade fccd", FCC_PROTO_VERSION));
    CHECK(agreed("hello: protocol version 9: this fccd (9.0.0) speaks versions 10 to 11: upgrade libfccclient",
                 FCC_PROTO_VERSION));
    CHECK(agreed("hello: job: allowed are 1 to 63 characters", FCC_PROTO_VERSION));
    CHECK(explained("hello: protocol version 9: this fccd speaks version 4", "speaks versions 5 to "));
    CHECK(explained("hello: protocol version 9: this fccd speaks version 4", ": upgrade fccd"));
    CHECK(explained("hello: protocol version 5: this fccd speaks version 10",
                    ": upgrade libfccclient (or the Python package fccd)"));
    CHECK(!explained("hello: job: allowed are 1 to 63 characters", "upgrade"));
}

static struct raw *hello_with(const struct test_daemon *d, uint32_t version)
{
    struct raw *r = raw_open(d);
    struct fcc_hello h = hello_make();

    h.version = version;
    raw_send(r, &h, sizeof(h), NULL, 0);
    return r;
}

static void refused(const struct test_daemon *d, uint32_t version, const char *says)
{
    struct raw *r = hello_with(d, version);
    const struct fcc_reply *reply = raw_receive(r);

    printf("%s\n", reply->text);
    CHECK(reply->status == -EPROTO && strstr(reply->text, says) && raw_closed(r));
    raw_close(r);
}

static void older_hello(void)
{
    struct test_daemon d;

    daemon_start(&d, NULL);
    refused(&d, FCC_PROTO_OLDEST - 1, ": upgrade libfccclient");
    refused(&d, FCC_PROTO_VERSION + 1, ": upgrade fccd");
    for (uint32_t v = FCC_PROTO_OLDEST; v <= FCC_PROTO_VERSION; v++) {
        struct raw *r = hello_with(&d, v);
        const struct fcc_reply *reply = raw_receive(r);
        CHECK(reply->status == 0 && ((const struct fcc_welcome *)reply)->version == v);
        /* on GPUs only a client of the same version joins, and there is no GPU */
        struct fcc_comm_init_msg m = {.msg = {.length = sizeof(m), .type = FCC_MSG_COMM_INIT, .id = 2},
                                      .unique_id.bytes = {1},
                                      .nranks = 1,
                                      .device = -1,
                                      .device_kind = FCC_DEVICE_CUDA};
        raw_send(r, &m, sizeof(m), NULL, 0);
        reply = raw_receive(r);
        CHECK(v == FCC_PROTO_VERSION ? reply->status != 0 && !strstr(reply->text, "upgrade")
                                     : reply->status == -EPROTO && strstr(reply->text, "upgrade libfccclient"));
        raw_close(r);
    }
    daemon_stop(&d);
}

/* A file beside the fccd that is tested: $BUILD/NAME. */
static const char *built(const char *name)
{
    static char path[512];
    const char *binary = daemon_binary();

    (void)snprintf(path, sizeof(path), "%.*s%s", (int)(strlen(binary) - strlen("bin/fccd")), binary, name);
    return path;
}

/* The example is the same program for each library. */
static void older_client(void)
{
    struct test_daemon d;
    int status;

    daemon_start(&d, (const char *const[]){"--log-level", "debug", NULL});
    pid_t pid = fork();
    if (pid == 0) {
        (void)setenv("LD_LIBRARY_PATH", built("tests/oldest/lib"), 1);
        (void)execl(built("bin/example_gemv"), "example_gemv", (char *)NULL);
        _exit(99);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    daemon_stop(&d);
}

static void older_daemon(void)
{
    struct test_daemon d;
    fcc_context *context;
    fcc_comm *comm;
    fcc_tracker *tracker;
    fcc_program *program;
    struct fcc_unique_id id;
    static const char text[] = "program twice(N = 8)\nin x: f32[N]\nout y: f32[N]\ny = x * 2\n";

    CHECK(setenv("FCCD_BINARY", built("tests/oldest/bin/fccd"), 1) == 0);
    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    FAILS(fcc_comm_init(context, &id, 1, 0, &(struct fcc_comm_options){.device = -1, .device_kind = FCC_DEVICE_GPU}, &comm),
          -EPROTO, "device_kind: this fccd speaks version", ": upgrade fccd");
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    OK(fcc_noop(comm));
    FAILS(fcc_tracker_create(comm, &tracker), -EOPNOTSUPP, "which has none: upgrade fccd");
    FAILS(fcc_program_open(comm, text, strlen(text), NULL, 0, &program), -EOPNOTSUPP,
          "rank 0: ", "speaks version 5 of the protocol", "none like this library's: upgrade fccd");
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {{.name = "words", .run = words},
                                 {.name = "older_hello", .run = older_hello},
                                 {.name = "older_client", .run = older_client},
                                 {.name = "older_daemon", .run = older_daemon}};

    return tests_run("versions", TESTS(tests));
}
