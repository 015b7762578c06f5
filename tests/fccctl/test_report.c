/* SPDX-License-Identifier: MIT
 *
 * test_report.c - fccctl report: it has every part, works without a daemon, and the cluster's key is not in it, wherever it was said.
 */
#include <sys/stat.h>

#include "tests/fccctl/fccctl_run.h"

static const char base64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void base64(const unsigned char *in, size_t n, char *out)
{
    for (size_t i = 0; i + 2 < n; i += 3) {
        unsigned group = (unsigned)in[i] << 16 | (unsigned)in[i + 1] << 8 | in[i + 2];
        for (int k = 18; k >= 0; k -= 6)
            *out++ = base64_digits[group >> k & 63];
    }
    *out = '\0';
}

/* The key as people may have said it: plain, hexadecimal in both cases, and base64 from each of the first bytes. */
enum { FORMS = 6, KEY_BYTES = 36 };
struct forms {
    char text[FORMS][128];
};

static struct forms forms_of(const char *key)
{
    struct forms f;

    (void)snprintf(f.text[0], sizeof(f.text[0]), "%s", key);
    for (int i = 0; i < KEY_BYTES; i++) {
        (void)snprintf(f.text[1] + 2 * i, 3, "%02x", (unsigned char)key[i]);
        (void)snprintf(f.text[2] + 2 * i, 3, "%02X", (unsigned char)key[i]);
    }
    for (int i = 0; i < 3; i++)
        base64((const unsigned char *)key + i, (size_t)(KEY_BYTES - i), f.text[3 + i]);
    return f;
}

/* No 12 characters of any form. */
static void expect_no_key(const char *report, const struct forms *f)
{
    for (int form = 0; form < FORMS; form++)
        for (size_t at = 0; at + 16 <= strlen(f->text[form]); at += 4) {
            char piece[17];
            (void)snprintf(piece, sizeof(piece), "%.16s", f->text[form] + at);
            if (strstr(report, piece))
                check_failed(__FILE__, __LINE__, "form %d of the key: \"%s\"", form, piece);
        }
}

static char *file_all(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = calloc(1, OUTPUT_MAX);
    size_t n = f && text ? fread(text, 1, OUTPUT_MAX - 1, f) : 0;

    CHECK(f && n > 0 && fclose(f) == 0);
    return text;
}

static void noop_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    OK(fcc_noop(comm));
    stage->ready++;
    while (!stage->go)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void report_has_no_key(void)
{
    static const char key[] = "correct/horse+Battery9staple~0123456";
    static const char *const parts[] = {"versions.kernel",   "environment",       "config.SOCKET", "status.jobs",
                                        "doctor.findings",   "devices.devices",   "nodes.nodes",   "comms.workers.0",
                                        "links.workers.0",   "metrics.text",      "log.lines.0",   "flights.0",
                                        "flights.0.comms.0", "config.CLUSTER_KEY"};
    static const char *const named[] = {"token=hunter2abc, all is well",
                                        "password: hunter2abc",
                                        "SECRET = 'hunter2abc'",
                                        "{\"passwd\": \"hunter2abc\"}",
                                        "token=hunter2abc",
                                        "api_key:\thunter2abc",
                                        "password=\"two hunter2abc words\" and more",
                                        "{\"text\": \"{\\\"token\\\": \\\"hunter2abc\\\"}\"}",
                                        "Authorization: Bearer hunter2abc",
                                        "https_proxy=http://me:hunter2abc@proxy:3128/ is used"};
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    struct forms f = forms_of(key);
    char path[300], keyfile[300], log[300], listen[64];
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/report", test_directory());
    (void)snprintf(keyfile, sizeof(keyfile), "%s/key", test_directory());
    (void)snprintf(log, sizeof(log), "%s/fccd.log", test_directory());
    FILE *out = fopen(keyfile, "we");
    CHECK(out && fputs(key, out) >= 0 && fclose(out) == 0 && chmod(keyfile, 0600) == 0);
    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", port_choose());
    daemon_start(&d, (const char *const[]){"--node-listen", listen, "--cluster-key", keyfile, "--log-file", log, NULL});
    char half[64];
    (void)snprintf(half, sizeof(half), "%.60s", f.text[1]);
    CHECK(setenv("FCCD_JOB", half, 1) == 0); /* a job's name has no room for all of it */
    for (int i = 0; i < FORMS; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "FCC_TEST_FORM%d", i);
        CHECK(setenv(name, f.text[i], 1) == 0);
    }
    ranks_start(&r, 2, noop_rank, stage);
    while (stage->ready < 2)
        (void)usleep(1000);
    out = fopen(log, "ae");
    CHECK(setenv("FCC_TEST_TOKEN", "hunter2abc", 1) == 0);
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
        CHECK(out && fprintf(out, "someone has said \"%s\", and %s\n", f.text[i % FORMS], named[i]) > 0);
    CHECK(fclose(out) == 0);
    CHECK(FCCCTL("report", path) == 0 && says("look it through"));
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    char *report = file_all(path);
    expect_no_key(report, &f);
    CHECK(strstr(report, "[removed]") && strstr(report, "someone has said") && strstr(report, "all is well") &&
          strstr(report, "and more") && strstr(report, "proxy:3128/ is used") && !strstr(report, "hunter2abc"));
    struct json_object *o = json_tokener_parse(report);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        CHECK(field(o, parts[i]) != NULL);
    CHECK(strcmp(text(o, "config.CLUSTER_KEY"), keyfile) == 0);
    CHECK(strcmp(text(o, "flights.0.comms.0.operators.0.op"), "noop") == 0);
    (void)json_object_put(o);
    free(report);
    CHECK(FCCCTL("report", "--json") == 0);
    expect_no_key(output, &f);
    CHECK(FCCCTL("report") == 2 && says("FILE: none was given"));
    CHECK(FCCCTL("report", "/nonexistent/report") == 1 && says("/nonexistent/report"));
    stage->go = 1;
    ranks_join(&r);
    daemon_stop(&d);
    CHECK(FCCCTL("report", path) == 3 && says("not reachable"));
    report = file_all(path);
    o = json_tokener_parse(report);
    CHECK(field(o, "versions.kernel") && field(o, "config.error") && field(o, "doctor.findings"));
    (void)json_object_put(o);
    free(report);
    CHECK(unlink(path) == 0 && unlink(keyfile) == 0 && unlink(log) == 0);
    free(output);
    output = NULL;
}

/* A log of which nothing is kept. */
static void log_is_no_file(void)
{
    struct test_daemon d;

    daemon_start(&d, (const char *const[]){"--log-file", "/dev/null", NULL});
    CHECK(FCCCTL("report", "--json") == 0);
    struct json_object *o = parse();
    CHECK(strstr(text(o, "log.error"), "no regular file") && strcmp(text(o, "log.file"), "/dev/null") == 0);
    (void)json_object_put(o);
    daemon_stop(&d);
    free(output);
    output = NULL;
}

int main(void)
{
    const struct test tests[] = {{"report_has_no_key", report_has_no_key, 60}, {"log_is_no_file", log_is_no_file, 0}};

    return tests_run("report", TESTS(tests));
}
