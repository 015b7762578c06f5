/* SPDX-License-Identifier: MIT
 *
 * test_header.c - fccclient.h in C++: no compiler that is there has a word to say about it, by any standard, nor about what it tells its
 * readers to write.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

static const char source[] =
    "#include <fccclient.h>\n"
    "unsigned one = FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT;\n"
    "fcc_gemv_all_reduce_args arguments(fcc_schedule_kind kind, fcc_schedule_route route)\n"
    "{\n"
    "    fcc_gemv_all_reduce_args args = {fcc_tensor(), fcc_tensor(), fcc_tensor(), kind | route, {0, 0, 0, 0, 0, 0, 0}};\n"
    "    args.schedule = FCC_SCHEDULE_HIERARCHICAL | FCC_SCHEDULE_AUTO;\n"
    "    args.schedule |= FCC_SCHEDULE_FLAT;\n"
    "    return args;\n"
    "}\n"
    "#if __cplusplus >= 201103L\n"
    "static_assert((FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT) == 0x41, \"\");\n"
    "static_assert((FCC_SCHEDULE_HIERARCHICAL | FCC_SCHEDULE_SEQUENTIAL) == 0x82, \"\");\n"
    "static_assert(((FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT) & FCC_SCHEDULE_ROUTES) == FCC_SCHEDULE_FLAT, \"\");\n"
    "#endif\n"
    "int main() { return one != 0x41; }\n";

static void compile(const char *compiler, const char *path)
{
    static const char *const standards[] = {"-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20", "-std=c++23"};
    char text[4096];

    for (size_t i = 0; i < sizeof(standards) / sizeof(standards[0]); i++) {
        const char *arguments[] = {standards[i], "-Wall",         "-Wextra", "-Wpedantic", "-Wconversion", "-Werror",
                                   "-Iproto",    "-fsyntax-only", "-x",      "c++",        path,           NULL};
        if (!program_run(text, sizeof(text), compiler, arguments))
            continue;
        if (strstr(text, "invalid value") || strstr(text, "unrecognized command-line option"))
            continue; /* an older compiler does not know the standard */
        check_failed(__FILE__, __LINE__, "%s %s: %s", compiler, standards[i], text);
    }
}

static void cxx(void)
{
    char path[160];
    bool any = false;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/use.cc", test_directory());
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, source, strlen(source)) == (ssize_t)strlen(source));
    (void)close(fd);
    for (size_t i = 0; i < 2; i++) {
        const char *compiler = i ? "clang++" : "g++";
        if (!program_found(compiler))
            continue;
        any = true;
        compile(compiler, path);
    }
    (void)unlink(path);
    if (!any)
        test_skip("no C++ compiler");
}

int main(void)
{
    const struct test tests[] = {{"cxx", cxx, 0}};

    return tests_run("header", TESTS(tests));
}
