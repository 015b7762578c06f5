/* SPDX-License-Identifier: MIT
 *
 * flights.h - flight recorders (proto/flight.h) of workers that run, and of those that have ended, for fccctl flight.
 */
#ifndef FCC_DAEMON_BROKER_METRICS_FLIGHTS_H
#define FCC_DAEMON_BROKER_METRICS_FLIGHTS_H

#include "daemon/broker/broker.h"
#include "proto/flight.h"

struct ledgers;

/* The recorder of the job's worker. NULL: it has none. */
const struct flight *job_flight(const struct job *j);
/* The job's worker has ended: takes the mapped recorder, and keeps it if it has records. The oldest ones make room. */
void flight_keep(const struct job *j, const struct flight *flight);
void flights_forget(struct ledgers *ls);
/* The recorders that a user may see, as JSON: {"flights": [{"flight", "uid", "job", "pid", "ended_s" (not of workers that run)}]}. */
struct json_object *flights_describe(const struct broker *b, uid_t asks);
/* A sealed memfd with a copy of the recorder of that number. -ENOENT: there is none that this user may see. */
int flight_copy(const struct broker *b, uint64_t number, uid_t asks, struct error *e);

#endif
