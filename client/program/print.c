/* SPDX-License-Identifier: MIT
 *
 * print.c - programs as texts, without a communicator: what a program's schedule makes of it on so many ranks.
 */
#include "client/program/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int fcc_program_print(const char *text, size_t length, int nranks, const struct fcc_program_size sizes[], int nsizes, char *out,
                      size_t room)
{
    struct error e = {.status = 0};
    struct program *p = NULL;
    char *printed = NULL;

    if (!text || (room && !out) || nranks < 0 || nranks > FCC_MAX_RANKS)
        return last_error_set(-EINVAL, "%s: allowed are texts, 0 to %d ranks, and room where there is some",
                              !text                                  ? "text: NULL"
                              : nranks < 0 || nranks > FCC_MAX_RANKS ? "nranks: out of range"
                                                                     : "out: NULL",
                              FCC_MAX_RANKS);
    if (program_sizes_check(sizes, nsizes, &e) == 0 && program_parse(text, length, &p, &e) == 0 && nranks > 0 &&
        program_bind(p, nranks, (const struct program_size *)sizes, (size_t)nsizes, &e) == 0)
        (void)program_schedule(p, &e);
    if (!e.status && !(printed = program_print(p)))
        (void)error_set(&e, -ENOMEM, "out of memory");
    const size_t n = printed ? strlen(printed) : 0;
    if (printed && room) {
        const size_t copied = n < room ? n : room - 1;
        memcpy(out, printed, copied);
        out[copied] = '\0';
    }
    free(printed);
    program_free(p);
    return e.status ? last_error_set(e.status, "%s", e.text) : (int)n;
}
