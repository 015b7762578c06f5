/* SPDX-License-Identifier: MIT
 *
 * plugin.h - finds and loads the GPU plug-ins (kernels/gpu/abi.h). The broker loads none: a GPU's runtime would give the broker
 * GPU state of its own, and under MPS make it a client of the MPS server.
 */
#ifndef FCC_DAEMON_COMMON_PLUGIN_H
#define FCC_DAEMON_COMMON_PLUGIN_H

#include "kernels/gpu/abi.h"

/* All kinds, in the order in which GPUs are listed. A plug-in is the file KIND.so. */
#define PLUGIN_KINDS 2
extern const char *const plugin_kinds[PLUGIN_KINDS];

/* In all functions `dir` is the absolute path of the plug-ins' directory; "" is ../lib/fccd relative to this program's
 * directory. */

/* Does the plug-in's file exist? Returns 0, or with the reason -ENOENT (not built or not installed) or -ELIBBAD (not
 * accessible). */
int plugin_find(const char *kind, const char *dir, struct error *e);

/* The file's absolute path, for other processes. Returns 0, -ENAMETOOLONG or -errno. */
int plugin_file(const char *kind, const char *dir, char *out, size_t room, struct error *e);

/* Loads the plug-in for the rest of the process's life; a second call returns the same. Returns NULL with the reason:
 *   -ENOENT   the file does not exist
 *   -ELIBBAD  the file cannot be accessed or loaded; the text is the system's or the loader's
 *   -EPROTO   the file is not a plug-in of this kind and version */
const struct gpu_plugin *plugin_load(const char *kind, const char *dir, struct error *e);

/* Loads any NAME.so of the directory, for dlsym(). Returns NULL with the reason: -ENOENT or -ELIBBAD. */
void *plugin_open(const char *name, const char *dir, struct error *e);

#endif
