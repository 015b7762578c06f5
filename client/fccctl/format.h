/* SPDX-License-Identifier: MIT
 *
 * format.h - human-readable figures.
 */
#ifndef FCC_CLIENT_FCCCTL_FORMAT_H
#define FCC_CLIENT_FCCCTL_FORMAT_H

#define FORMAT_ROOM 32

/* printf() of a line that has text of the daemon or of other users: cleaned (text_clean()), and cut to FORMAT_LINE bytes. A newline
 * at the end of `format` is printed. */
void print_clean(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define FORMAT_LINE 2048

/* All other functions write into out and return it. */
const char *format_duration(double seconds,
                            char out[FORMAT_ROOM]);            /* "12 ms", "3.4 s", "5 min 2 s", "2 d 3 h"; "-" if negative */
const char *format_bytes(double bytes, char out[FORMAT_ROOM]); /* "512 B", "1.5 GiB" */
const char *format_ns(double ns, char out[FORMAT_ROOM]);       /* "850 ns", "12.3 us", "4.56 ms", "1.2 s" */

#endif
