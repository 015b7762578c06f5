/* SPDX-License-Identifier: MIT
 *
 * fccctl_run.h - fccctl as a program: what it prints, as text and as JSON; and operators for it to look at.
 */
#ifndef FCC_TEST_FCCCTL_RUN_H
#define FCC_TEST_FCCCTL_RUN_H

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <string.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

#define OUTPUT_MAX (4u << 20)

static char *output; /* of the last program that was run */

/* Run a program with these arguments (NULL at the end) and return its exit code; what it printed is in `output`. */
static int run(const char *path, const char *const arguments[])
{
    if (!output)
        output = malloc(OUTPUT_MAX);
    CHECK(output != NULL);
    int status = program_run(output, OUTPUT_MAX, path, arguments);
    (void)fprintf(stderr, "%s %s: %d%s%s\n", arguments[0] ? arguments[0] : "", arguments[0] && arguments[1] ? arguments[1] : "",
                  status, status ? ": " : "", status ? output : "");
    return status;
}

static int fccctl(const char *const arguments[])
{
    return run(fccctl_binary(), arguments);
}
#define FCCCTL(...) fccctl((const char *const[]){__VA_ARGS__, NULL})

/* The output as one JSON object. The caller puts it. */
static inline struct json_object *parse(void)
{
    struct json_object *o = json_tokener_parse(output);

    if (!o)
        check_failed(__FILE__, __LINE__, "not JSON: %s", output);
    return o;
}

/* o["a"]["b"] for the path "a.b"; numbers index arrays. */
static struct json_object *field(struct json_object *o, const char *path)
{
    char name[64];

    for (const char *p = path; *p; p += *p == '.') {
        size_t n = strcspn(p, ".");
        (void)snprintf(name, sizeof(name), "%.*s", (int)n, p);
        struct json_object *next = NULL;
        if (json_object_is_type(o, json_type_array))
            next = json_object_array_get_idx(o, (size_t)atoi(name));
        else
            (void)json_object_object_get_ex(o, name, &next);
        if (!next)
            check_failed(__FILE__, __LINE__, "no \"%s\" (%s) in %s", name, path, output);
        o = next;
        p += n;
    }
    return o;
}

static inline int64_t number(struct json_object *o, const char *path)
{
    return json_object_get_int64(field(o, path));
}

static inline const char *text(struct json_object *o, const char *path)
{
    return json_object_get_string(field(o, path));
}

static inline bool says(const char *what)
{
    if (strstr(output, what))
        return true;
    (void)fprintf(stderr, "\"%s\" is not in:\n%s\n", what, output);
    return false;
}

/* ---- what it looks at ---- */

static inline void gemv_once(fcc_comm *comm, int times)
{
    fcc_buffer *x, *w, *y;
    enum { N = 1024, K = 2048 };

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, K * 4, &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)N * K * 4, &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * 4, &y));
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x, 0, FCC_F32, 1, K),
                                            .w = fcc_tensor_2d(w, 0, FCC_F32, N, K),
                                            .y = fcc_tensor_2d(y, 0, FCC_F32, 1, N),
                                            .schedule = FCC_SCHEDULE_FUSED};
    for (int i = 0; i < times; i++)
        OK(fcc_gemv_all_reduce(comm, &args));
}

struct stage {
    _Atomic int ready, go;
};

#endif
