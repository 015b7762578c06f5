/* SPDX-License-Identifier: MIT
 *
 * flight.h - what fccctl flight shows, as JSON that is made of a worker's flight recorder, and its picture.
 *
 * {"flight", "uid", "job", "pid", "comms": [{"comm", "nranks", "device", "state", "status", "error", "age_ms", "turns", "pids": [],
 *   "operators": [{"turn", "number", "op", "schedule", "state", "status", "came", "missing": [ranks], "first", "last",
 *                  "arrived_ns", "begun_ns", "ended_ns", "since_ms", "wait_ns", "run_ns"}],
 *   "runs", "run": {"prepared", "op", "run", "since_ms", "missing": [ranks]},
 *   "launched": [{"record", "prepared", "run", "op", "dtype", "bytes", "state", "missing": [ranks], "inside": [ranks], "first", "last",
 *                 "begun_ns", "came_ns", "ended_ns", "since_ms", "wait_ns", "run_ns"}]}]}
 */
#ifndef FCC_CLIENT_FCCCTL_FLIGHT_H
#define FCC_CLIENT_FCCCTL_FLIGHT_H

#include <stdint.h>
#include <stdio.h>

#include "proto/flight.h"

struct json_object;

/* The last `most` operators, and runs that ranks have launched, of communicator `comm` (0: of all) in the recorder, which may have anything in it. now_ns: CLOCK_MONOTONIC. */
struct json_object *flight_parse(const struct flight *f, int64_t comm, unsigned most, uint64_t now_ns);
/* Draws them: a lane for each communicator, time to the right. Returns 0. */
int flight_draw(struct json_object *flight, FILE *out);

#endif
