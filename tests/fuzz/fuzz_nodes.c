/* SPDX-License-Identifier: MIT
 *
 * fuzz_nodes.c - clients of any manners, and the workers of two nodes (program.h).
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
    static const struct program_kind kind = {.nodes = 2, .device = FCC_DEVICE_CPU};

    program_run(&kind, data, size);
    return 0;
}
