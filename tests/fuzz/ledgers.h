/* SPDX-License-Identifier: MIT
 *
 * ledgers.h - ledgers that are scribbled on, for the target whose broker is real: by what the input says, and between any two of the broker's
 * instructions, too, by a thread that changes words of one of them all the time; and what must be true of metrics that are made of such ledgers.
 */
#ifndef FCC_FUZZ_LEDGERS_H
#define FCC_FUZZ_LEDGERS_H

#include "tests/fuzz/fuzz.h"

/* Once in the process: the thread, which lasts as long. */
void ledgers_begin(void);
/* The input's words on a ledger, mapped; NULL: they are on none. It may become the one that the thread scribbles on. */
void ledger_scribble(unsigned char *ledger, struct input *in);
/* Before it is unmapped. NULL is allowed. */
void ledger_leave(const unsigned char *ledger);
/* The samples of a text of metrics, which is written to: each has a number, which does not fall from one bucket to the next. */
void ledgers_metrics_check(char *text);

#endif
