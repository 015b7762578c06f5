/* SPDX-License-Identifier: MIT
 *
 * config.h - the administrator's settings. The defaults, the file's parser, the environment (FCCD_KEY), the command line
 * (--key) and the help text are all made from one list of keys. The command line overrides the environment, which overrides the
 * file.
 */
#ifndef FCC_DAEMON_COMMON_CONFIG_H
#define FCC_DAEMON_COMMON_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#include "daemon/common/account.h"
#include "proto/base/error.h"
#include "proto/base/network.h"
#include "proto/proto.h"

/* X(KEY, field, unit, default, smallest, largest, description) */
#define CONFIG_NUMBERS(X)                                                                                                      \
    X(CPU_DEVICES, cpu_devices, "", 1, 1, 64, "number of cpu devices that the node offers")                                    \
    X(CPU_WORKGROUPS, cpu_workgroups, "", 0, 0, 256, "threads of each cpu device; 0: the node's cores shared out, at least 1") \
    X(TIME_LIMIT_MS, time_limit_ms, "ms", 30000, 10, 86400000, "how long an operator may wait for its ranks, and run")         \
    X(MEMORY_PER_USER_MB, memory_per_user_mb, "MiB", 0, 0, 1u << 30,                                                           \
      "memory of each user's jobs; 0: half of the node's, or of its control group's")                                          \
    X(MEMORY_PER_JOB_MB, memory_per_job_mb, "MiB", 0, 0, 1u << 30, "memory of each job; 0: as much as its user's")             \
    X(GPU_MEMORY_PER_USER_MB, gpu_memory_per_user_mb, "MiB", 0, 0, 1u << 30,                                                   \
      "memory of GPUs of each user's jobs; 0: what the GPUs have")                                                             \
    X(GPU_MEMORY_PER_JOB_MB, gpu_memory_per_job_mb, "MiB", 0, 0, 1u << 30, "memory of GPUs of each job; 0: as its user's")     \
    X(COMMS_PER_USER, comms_per_user, "", 4096, 1, 1000000, "communicators that a user's jobs may have at a time")             \
    X(COMMS_PER_JOB, comms_per_job, "", 4096, 1, 1000000, "communicators that a job may have at a time")                       \
    X(OPERATORS_PER_USER, operators_per_user, "", 262144, 1, 100000000,                                                        \
      "requests for operators that a user's jobs may have in flight")                                                          \
    X(OPERATORS_PER_JOB, operators_per_job, "", 65536, 1, 100000000, "requests for operators that a job may have in flight")   \
    X(STREAMS_PER_USER, streams_per_user, "", 65536, 1, 100000000, "of these, those on streams of GPUs, of a user's jobs")     \
    X(STREAMS_PER_JOB, streams_per_job, "", 16384, 1, 100000000, "of these, those on streams of GPUs, of a job")               \
    X(JOBS_PER_USER, jobs_per_user, "", 16, 1, 4096, "jobs that a user may have at a time")                                    \
    X(CONNECTIONS_PER_JOB, connections_per_job, "", 1024, 1, 1000000, "connections that a job may have at a time")             \
    X(CONNECTIONS_PER_USER, connections_per_user, "", 2048, 1, 1000000, "connections that a user's jobs may have at a time")   \
    X(SPIN_US, spin_us, "us", 200, 0, 1000000, "how long workers and clients look for work before they sleep")                 \
    X(WORKER_IDLE_MS, worker_idle_ms, "ms", 2000, 0, 86400000, "how long a worker without clients stays")                      \
    X(SILENCE_MS, silence_ms, "ms", 2500, 2500, 86400000, "how long another node's worker may be silent before it is lost")    \
    X(DRAIN_MS, drain_ms, "ms", 5000, 0, 86400000, "how long running operators may go on at a shutdown")                       \
    X(ADOPT_SECONDS, adopt_seconds, "", 60, 1, 86400, "how long jobs wait for the next fccd after a restart's begin")

/* X(KEY, field, bytes, default, description) */
#define CONFIG_STRINGS(X)                                                                                                      \
    X(SOCKET, socket, sizeof(((struct sockaddr_un *)0)->sun_path), FCC_SOCKET_DEFAULT, "path of the socket")                   \
    X(SOCKET_GROUP, socket_group, 64, "", "group that may connect; empty: the daemon's own group")                             \
    X(USER_WEIGHTS, user_weights, 1024, "",                                                                                    \
      "weights of users where jobs share processors and GPUs: UID=WEIGHT,..., each 1 to 10000; all others have 100")           \
    X(GPUS, gpus, 8, "auto", "GPUs that the node offers: auto (all that there are), none, cuda or hip")                        \
    X(GPU_SHARING, gpu_sharing, 8, "auto", "how clients import GPU memory: auto (file descriptors, where there are), or ipc")  \
    X(GPU_BEGIN, gpu_begin, 16, "alone", "whether a GPU may begin before other ranks' streams have come: alone, or together")  \
    X(GPU_BIND, gpu_bind, 8, "own",                                                                                            \
      "whose ranks launch operators themselves: with a GPU of their own each, or shared ones, too")                            \
    X(GPU_TURNS, gpu_turns, 16, "free",                                                                                        \
      "whose turn it is on a GPU that jobs share: weighted (by USER_WEIGHTS), or free (the driver's affair)")                  \
    X(GPU_COMPILER, gpu_compiler, 256, "auto",                                                                                 \
      "compiler of programs' steps: auto (NVRTC or hiprtc, where it is), none, or the path of its library")                    \
    X(CODE_CACHE, code_cache, 256, "",                                                                                         \
      "directory below which each user's compiled steps are; empty: .cache/fccd-code in the user's home")                      \
    X(PLUGIN_DIR, plugin_dir, 256, "", "directory of the GPU plug-ins; empty: ../lib/fccd beside the program")                 \
    X(NODE_LISTEN, node_listen, FCC_NODE_MAX, "", "host:port to listen to other nodes; empty: this node speaks to no other")   \
    X(NODE_ADDRESS, node_address, FCC_NODE_MAX, "", "host:port under which others reach this node; empty: NODE_LISTEN")        \
    X(NODES, nodes, 4096, "", "other nodes: host:port,... or the absolute path of a file with one a line; may be empty")       \
    X(TRANSPORT, transport, 8, "auto", "what carries data between nodes: auto (verbs where there is RDMA), tcp or verbs")      \
    X(RAILS, rails, 8, "auto", "links to each other node: auto (one for each RDMA adapter near a GPU), or 1 to 8")             \
    X(RAIL_NETWORKS, rail_networks, NETWORKS_MAX *NETWORK_TEXT_MAX, "auto",                                                    \
      "whose RDMA adapters are rails: auto (of networks that both nodes have), or networks ADDRESS/BITS,...")                  \
    X(CLUSTER_KEY, cluster_key, 256, "", "file of 32 to 4096 bytes, mode 0600, the same on all nodes; needed by NODE_LISTEN")  \
    X(LOG_LEVEL, log_level, 16, "info", "error, warning, info or debug")                                                       \
    X(LOG_FORMAT, log_format, 8, "text", "text, or json (an object a line)")                                                   \
    X(LOG_FILE, log_file, 256, "", "file for the log; empty: standard error, and with --background one beside the socket")     \
    X(PID_FILE, pid_file, 256, "", "file for the process id; empty: none, and with --background one beside the socket")        \
    X(SECCOMP, seccomp, 8, "on", "whether system calls are confined to those that are needed: on, log or off")                 \
    X(METRICS_LISTEN, metrics_listen, sizeof(((struct sockaddr_un *)0)->sun_path), "",                                         \
      "where GET /metrics is answered: the path of a socket, or 127.0.0.1:port; empty: nowhere")                               \
    X(HOLD_FILE, hold_file, 256, "", "file on which processes hold locks (flock): fccd ends when none does; empty: it stays")

struct config {
#define X(KEY, field, unit, standard, smallest, largest, what) uint32_t field;
    CONFIG_NUMBERS(X)
#undef X
#define X(KEY, field, bytes, standard, what) char field[bytes];
    CONFIG_STRINGS(X)
#undef X
};

struct json_object;

enum config_action { CONFIG_RUN, CONFIG_BACKGROUND, CONFIG_CHECK, CONFIG_LIST_GPUS, CONFIG_HELP, CONFIG_VERSION };

/* Reads defaults, file, environment and command line into *out, and what the program is to do into *action. -EINVAL for an
 * unknown key, a value that is not allowed or a file that cannot be read, with the place, the key, the value and what is
 * allowed. (The default file may be missing.) */
int config_load(int argc, char *argv[], struct config *out, enum config_action *action, struct error *e);

/* Copies from `fresh`, which was read later, the settings that a running daemon can change. Calls changed() for each key that
 * differs: `taken` is true if the value was copied, false if it needs a restart. */
void config_take(struct config *running, const struct config *fresh, void (*changed)(const char *key, bool taken));

/* The settings as JSON, {"KEY": value, ...}. None is a secret by itself: CLUSTER_KEY is a file's name. */
struct json_object *config_describe(const struct config *config);

/* Prints the text for --help. */
void config_print_help(void);

/* Settings with their automatic value (0) replaced by the actual one. */
uint64_t config_memory_per_user(const struct config *config); /* bytes */
/* What the daemon's settings allow a user and each job. */
struct account_limits config_limits(const struct config *config);
/* A user's weight, by USER_WEIGHTS. */
uint32_t config_weight(const struct config *config, uint32_t uid);
/* By how much the nice value of a user's workers is above the daemon's: 0 for those with the largest weight that is set, and one more for each
 * factor of 1.25 by which a user's weight is smaller, as the kernel's scheduler weighs threads. At most 19. */
int config_nice(const struct config *config, uint32_t uid);
uint32_t config_cpu_workgroups(const struct config *config);
uint32_t config_rails(const struct config *config); /* 0: auto */
/* Does GPUS allow GPUs of that kind ("cuda", "hip")? */
bool config_allows_gpus(const struct config *config, const char *kind);

#endif
