/* SPDX-License-Identifier: MIT
 *
 * trace.h - draws a trace: when each slice of one operator ran, on every rank and workgroup.
 *
 * A trace is fccd's JSON answer to a TRACE query:
 *   {"comm", "op", "number", "schedule", "dtype", "nranks", "duration_ns", "ranks": [{"rank", "device", "workgroups":
 *     [{"workgroup", "events": [{"slice", "kind", "dst" (-1: several), "row", "rows", "col", "cols", "start_ns", "end_ns"}]}]}]}
 * with times since the operator's launch; or to a RULES query, in the same form: "op" is "rules", each "workgroup" a rule with its "name",
 * each event a run of it with "run" and "bytes" instead of the slice, its rows and columns, times are since the first of them, and "dropped"
 * is how many earlier ones are not in it any more.
 */
#ifndef FCC_CLIENT_FCCCTL_TRACE_TRACE_H
#define FCC_CLIENT_FCCCTL_TRACE_TRACE_H

#include <stdbool.h>
#include <stdio.h>

#include "client/fccctl/field.h"
#include "proto/proto.h"

struct json_object;

/* What a slice did, from its "kind". */
enum trace_kind { TRACE_COMPUTE_PUT, TRACE_COMPUTE, TRACE_PUT, TRACE_REDUCE, TRACE_WAIT, TRACE_OTHER, TRACE_KINDS };
enum trace_kind trace_kind(struct json_object *event);
extern const char *const trace_kind_names[TRACE_KINDS];

/* Whether it is of rules. */
bool trace_is_rules(struct json_object *trace);

/* Writes what an event moves: "rows 0+8, cols 0+64", or for a rule's run "4096 bytes". */
struct words trace_tile(struct json_object *event);

/* Whether slices of that kind go to other ranks. */
bool trace_has_destination(enum trace_kind kind);

/* The events of n ranks from `first` on, as far as there are so many. */
struct trace_sum {
    double ns[TRACE_KINDS], latest_ns;
    size_t slices[TRACE_KINDS], all_slices, workgroups;
    bool to_several; /* some go to several destinations */
};
struct trace_sum trace_sum(struct json_object *trace, size_t first, size_t n);

/* The latest of the operator's duration and its events' ends, in ns; at least 1, whatever duration the worker has sent. */
double trace_duration(struct json_object *trace);

/* Draws a self-contained picture: a lane for each workgroup, grouped by rank; slices coloured by kind and marked by
 * destination. The trace has at least one event. Returns 0 or -ENOMEM; ferror(out) tells whether writing failed. */
int trace_svg(struct json_object *trace, FILE *out);

#endif
