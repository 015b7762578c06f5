/* SPDX-License-Identifier: MIT
 *
 * families.h - every metric: X(NAME, name, type, unit, help). The text has them in this order. Counters' samples end with _total. Names are
 * stable: dashboards and alarms of people have them.
 */
#ifndef FCC_DAEMON_BROKER_METRICS_FAMILIES_H
#define FCC_DAEMON_BROKER_METRICS_FAMILIES_H

#define METRIC_FAMILIES(X)                                                                                                     \
    X(BUILD, fccd_build, info, , "Version of fccd.")                                                                           \
    X(START, fccd_start_time_seconds, gauge, seconds, "When fccd was started, in seconds since 1970.")                         \
    X(CONNECTIONS, fccd_connections, counter, , "Connections that were accepted.")                                             \
    X(REFUSED, fccd_connections_refused, counter, , "Connections that were refused.")                                          \
    X(VISITORS, fccd_visitors, gauge, , "Connections that wait at the broker.")                                                \
    X(HANDOVERS, fccd_handovers_queued, gauge, , "Messages for workers that their sockets have no room for.")                  \
    X(WORKERS_STARTED, fccd_workers_started, counter, , "Workers that were started.")                                          \
    X(WORKERS_ADOPTED, fccd_workers_adopted, counter, , "Workers of an earlier fccd that this one has taken over.")            \
    X(WORKERS_DIED, fccd_workers_died, counter, , "Workers that were killed or failed.")                                       \
    X(DEVICES, fccd_devices, gauge, , "Devices of the node.")                                                                  \
    X(USER_JOBS, fccd_user_jobs, gauge, , "Jobs of a user.")                                                                   \
    X(USER_CONNECTIONS, fccd_user_connections, gauge, , "Connections of clients of a user's jobs.")                            \
    X(USER_MEMORY, fccd_user_memory_bytes, gauge, bytes, "Memory that is charged to a user.")                                  \
    X(USER_GPU_MEMORY, fccd_user_gpu_memory_bytes, gauge, bytes, "Memory of GPUs that is charged to a user.")                  \
    X(USER_COMMS, fccd_user_communicators, gauge, , "Communicators of a user's jobs.")                                         \
    X(USER_OPERATORS, fccd_user_operators, gauge, , "Requests for operators that a user's jobs have in flight.")               \
    X(USER_STREAMS, fccd_user_stream_operators, gauge, , "Of these, those on streams of GPUs.")                                \
    X(LIMIT_JOBS, fccd_limit_jobs, gauge, , "JOBS_PER_USER: jobs that a user may have.")                                       \
    X(LIMIT_CONNECTIONS, fccd_limit_connections, gauge, , "CONNECTIONS_PER_USER: connections that a user may have.")           \
    X(LIMIT_MEMORY, fccd_limit_memory_bytes, gauge, bytes, "MEMORY_PER_USER_MB: memory that a user may have.")                 \
    X(LIMIT_GPU_MEMORY, fccd_limit_gpu_memory_bytes, gauge, bytes, "GPU_MEMORY_PER_USER_MB: memory of GPUs.")                  \
    X(LIMIT_COMMS, fccd_limit_communicators, gauge, , "COMMS_PER_USER: communicators that a user may have.")                   \
    X(LIMIT_OPERATORS, fccd_limit_operators, gauge, , "OPERATORS_PER_USER: requests that a user may have in flight.")          \
    X(LIMIT_STREAMS, fccd_limit_stream_operators, gauge, , "STREAMS_PER_USER: of these, those on streams.")                    \
    X(LIMIT_REFUSALS, fccd_limit_refusals, counter, , "What a limit of a user or a job has refused, by the limit's key.")      \
    X(COMMS_FORMED, fccd_communicators_formed, counter, , "Communicators that have formed.")                                   \
    X(COMMS_SHRUNK, fccd_communicators_shrunk, counter, , "Of these, those that took the place of one that had lost ranks.")   \
    X(COMMS, fccd_communicators, gauge, , "Communicators that there are now.")                                                 \
    X(OPERATORS, fccd_operators, counter, , "Operators that have ended well.")                                                 \
    X(FAILED, fccd_operators_failed, counter, , "Operators that have ended with an error for all ranks.")                      \
    X(QUEUED, fccd_operators_queued, gauge, , "Requests of ranks that wait or run.")                                           \
    X(RUNNING, fccd_operators_running, gauge, , "Operators that run.")                                                         \
    X(RUN, fccd_operator_run_seconds, histogram, seconds, "From when all ranks had come to the operator's end.")               \
    X(WAIT, fccd_operator_wait_seconds, histogram, seconds, "From when the first rank came until all had come.")               \
    X(ABORTS, fccd_aborts, counter, , "Communicators that were aborted, by reason.")                                           \
    X(TIME_LIMITS, fccd_time_limits, counter, , "Time limits that have passed, by what took too long.")                        \
    X(NODE_UP, fccd_node_up, gauge, , "Whether the link to another node's broker stands.")                                     \
    X(NODE_FLAPS, fccd_node_link_losses, counter, , "How often the link to another node's broker was lost.")                   \
    X(LINK_SENT, fccd_link_sent_bytes, counter, bytes, "Bytes that jobs have sent to another node.")                           \
    X(LINK_RECEIVED, fccd_link_received_bytes, counter, bytes, "Bytes that jobs have received from another node.")             \
    X(LINK_SENT_MESSAGES, fccd_link_sent_messages, counter, , "Writes, flags and signals that were sent.")                     \
    X(LINK_RECEIVED_MESSAGES, fccd_link_received_messages, counter, , "Writes, flags and signals that were received.")         \
    X(LINK_WAITS, fccd_link_waits, counter, , "How often a send waited for room in its link's queue.")                         \
    X(LINK_LOSSES, fccd_link_losses, counter, , "How often a job has lost its worker on another node.")                        \
    X(PROXY_LAG, fccd_proxy_lag_seconds, histogram, seconds, "Over nodes: from the end of computing to the operator's end.")   \
    X(GPUS, fccd_gpu_contexts, gauge, , "Contexts that workers hold on GPUs, by whether an MPS server holds them.")            \
    X(GPU_HELD, fccd_gpu_share_waits, counter, , "How often an operator was held back for its job's share of a GPU.")          \
    X(GPU_HELD_SECONDS, fccd_gpu_share_wait_seconds, counter, seconds, "For how long, in all.")                                \
    X(GPU_SHARED, fccd_gpu_shared, gauge, , "GPUs that several jobs use now, whose turns fccd weighs.")

#endif
