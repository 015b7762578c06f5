/* SPDX-License-Identifier: MIT
 *
 * plugin.h - the GPU plug-ins (kernels/gpu/abi.h): which there can be, where they lie, and how one is loaded. The broker loads
 * none: a GPU's runtime would make it a process with GPU state of its own, and under MPS a client of the MPS server.
 */
#ifndef FCC_DAEMON_COMMON_PLUGIN_H
#define FCC_DAEMON_COMMON_PLUGIN_H

#include "kernels/gpu/abi.h"

/* Every kind that there can be, in the order in which GPUs are listed. A plug-in is the file KIND.so. */
#define PLUGIN_KINDS 2
extern const char *const plugin_kinds[PLUGIN_KINDS];

/* `dir` is where the plug-ins lie; "" is ../lib/fccd, seen from this program. */

/* Is the file there? 0, or the reason: -ENOENT if it was not built or not installed, -ELIBBAD if it cannot be reached. */
int plugin_find(const char *kind, const char *dir, struct error *e);

/* Where it is, as an absolute path for other processes: 0, or -ENAMETOOLONG or what the system says. */
int plugin_file(const char *kind, const char *dir, char *out, size_t room, struct error *e);

/* Load the plug-in, which stays for the process's life; loading it again gives the same. NULL with the reason:
 *   -ENOENT   the file is not there
 *   -ELIBBAD  it cannot be reached or loaded: the system's or the loader's words
 *   -EPROTO   it is not a plug-in of this kind and version */
const struct gpu_plugin *plugin_load(const char *kind, const char *dir, struct error *e);

/* The same for any plug-in's file, which is NAME.so: for dlsym(). NULL with the reason: -ENOENT or -ELIBBAD. */
void *plugin_open(const char *name, const char *dir, struct error *e);

#endif
