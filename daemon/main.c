/* SPDX-License-Identifier: MIT
 *
 * main.c - fccd: the broker, or, started by it, a worker or the lister of GPUs.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/background.h"
#include "broker/broker.h"
#include "gpus.h"
#include "json_fd.h"
#include "worker/worker.h"

int main(int argc, char *argv[])
{
    struct config config;
    enum config_action action;
    struct error e = {0};
    int status;

    /* What writes to a connection that another node has closed is told so: libevent's writes, too, which have no flag for it. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* RLIMIT_FSIZE, which memfds have, too, is then an error of who allocates: EFBIG */
    if (argc >= 2 && !strcmp(argv[1], "--worker"))
        return worker_run(argc - 2, argv + 2);
    if (config_load(argc, argv, &config, &action, &e)) {
        (void)fprintf(stderr, "fccd: %s\n", e.text);
        return 2;
    }
    switch (action) {
    case CONFIG_HELP:
        config_print_help();
        return EXIT_SUCCESS;
    case CONFIG_VERSION:
        printf("fccd %s\n", fcc_version_string);
        return EXIT_SUCCESS;
    case CONFIG_CHECK:
        printf("fccd: the configuration is well\n");
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
