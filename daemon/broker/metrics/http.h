/* SPDX-License-Identifier: MIT
 *
 * http.h - METRICS_LISTEN.
 */
#ifndef FCC_DAEMON_BROKER_METRICS_HTTP_H
#define FCC_DAEMON_BROKER_METRICS_HTTP_H

struct broker;

/* Listens, if METRICS_LISTEN says where. Returns 0 or -errno (logged). */
int metrics_open(struct broker *b);
void metrics_close(struct broker *b);

#endif
