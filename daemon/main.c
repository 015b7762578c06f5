/* SPDX-License-Identifier: MIT
 *
 * main.c - fccd: the broker, or, started by it, a worker or the lister of GPUs.
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "daemon/broker/broker.h"
#include "daemon/common/gpus.h"
#include "daemon/worker/run.h"
#include "proto/version.h"

#define STACK_BYTES ((rlim_t)1 << 20) /* smallest stack of a thread */

/* Makes sure that the stacks of this thread and of new threads are large enough for a BLAS, even if RLIMIT_STACK is smaller.
 * Returns false if the limit cannot be raised. */
static bool stacks_allow(void)
{
    struct rlimit l;
    pthread_attr_t a;
    size_t bytes;

    if (!getrlimit(RLIMIT_STACK, &l) && l.rlim_cur < STACK_BYTES) {
        l.rlim_cur = STACK_BYTES;
        if (l.rlim_max < STACK_BYTES || setrlimit(RLIMIT_STACK, &l))
            return false;
    }
    if (pthread_getattr_default_np(&a)) /* the default is RLIMIT_STACK at the program's start */
        return true;
    if (!pthread_attr_getstacksize(&a, &bytes) && bytes < STACK_BYTES && !pthread_attr_setstacksize(&a, STACK_BYTES))
        (void)pthread_setattr_default_np(&a);
    (void)pthread_attr_destroy(&a);
    return true;
}

int main(int argc, char *argv[])
{
    struct config config;
    enum config_action action;
    struct error e = {0};
    int status;

    /* Writing to a closed connection is then an error instead of a signal. libevent's writes have no flag for that. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ,
                 SIG_IGN); /* RLIMIT_FSIZE applies to memfds, too; exceeding it is then the error EFBIG of the allocation */
    if (!stacks_allow()) {
        (void)fprintf(stderr, "fccd: RLIMIT_STACK (ulimit -s): needed are %llu KiB\n", (unsigned long long)STACK_BYTES >> 10);
        return 2;
    }
    if (argc >= 2 && !strcmp(argv[1], "--worker"))
        return worker_run(argc - 2, argv + 2);
    if (config_load(argc, argv, &config, &action, &e)) {
        (void)fprintf(stderr, "fccd: %s\n", text_clean(e.text));
        return 2;
    }
    switch (action) {
    case CONFIG_HELP:
        config_print_help();
        return EXIT_SUCCESS;
    case CONFIG_VERSION:
        puts("fccd " VERSION_TEXT);
        return EXIT_SUCCESS;
    case CONFIG_CHECK:
        printf("fccd: the configuration is valid\n");
        return EXIT_SUCCESS;
    case CONFIG_LIST_GPUS:
        return gpus_print(&config);
    case CONFIG_BACKGROUND:
        if ((status = background_enter(&config))) {
            (void)fprintf(stderr, "fccd: --background: %s\n", strerror(-status));
            return EXIT_FAILURE;
        }
        break;
    case CONFIG_RUN:
        break;
    }
    return broker_run(&config, argc, argv);
}
