/* SPDX-License-Identifier: MIT
 *
 * fuzz_peers.c - clients of any manners, a worker, and another node with the cluster's key whose frames are the input's (outside.h).
 */
#include "tests/fuzz/program.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    bed_begin("");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct program_kind kind = {.nodes = 1, .outside = true, .device = FCC_DEVICE_CPU};

    program_run(&kind, data, size);
    return 0;
}
