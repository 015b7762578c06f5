# SPDX-License-Identifier: MIT
"""Fused operators of your own, in Triton.

A kernel stores tiles of its result into other ranks' parts of a symmetric tensor as it finishes them, tells them by signals,
and waits for theirs, in the memory order that fccd's own kernels keep to::

    c = fcc.zeros(rows, n, dtype=torch.float16, symmetric=True)         # every rank has one; so has it of
    flags = fcc.zeros(tiles, dtype=torch.int64, symmetric=True)         # signals
    c_window, flag_window = fcc.triton.Window(c), fcc.triton.Window(flags)
    kernel[grid](..., c_window.table, flag_window.table, flag_window.status, epoch, ...)

    @triton.jit
    def kernel(..., c, flags, status, epoch, ...):
        fcc.triton.put_tile(c, rank, offsets, tile, mask)               # stored there
        fcc.triton.signal(flags, rank, index, epoch)                    # and told
        if fcc.triton.wait(flags, me, other, epoch, status):            # until the other one has, too: 30 s, or limit_ns
            ...

In a CUDA graph arguments stay as they were captured. There the kernel itself counts its runs, in memory of the GPU::

    runs = torch.zeros(2, dtype=torch.int64, device=comm.device)        # in the place of epoch
            epoch = fcc.triton.run_begin(runs)                          # every program, first
            fcc.triton.run_end(runs, tl.num_programs(0))                # every program, last

Ranks on other nodes have no address here (Window.remote). What goes there is registered with Triggers, stored into memory of
this rank, and triggered; the other rank waits for its signal as for any::

    triggers = fcc.triton.Triggers()
    number = triggers.register(rank, mine[0], c[4], flags, index)       # rows, where they go, and the signal behind them
            fcc.triton.trigger(fifo, number, epoch, status)             # in a kernel; fifo: triggers.table

A kernel that only computes, and lets fccd's worker move its result, counts what it has produced for a rule of a Tracker::

            fcc.triton.produced(count, 1)                               # in a kernel; count: rule.count

Triton launches on torch's current device, so with several GPUs call torch.cuda.set_device(comm.device) first. Programs that
wait keep their place on the GPU: what they wait for must find room beside them, also where ranks share a GPU.

`device` says what each function promises. With TRITON_INTERPRET=1 in the environment, before anything of this is imported, the
same kernels run in Triton's interpreter over cpu devices. The example triton_gemm_*.py is a whole operator.
"""

from .device import peer, produced, put_tile, reason, run_begin, run_end, signal, trigger, wait, wait_all
from .triggers import Triggers
from .window import Window

__all__ = ["Triggers", "Window", "peer", "produced", "put_tile", "reason", "run_begin", "run_end", "signal", "trigger", "wait", "wait_all"]
