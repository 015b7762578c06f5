# SPDX-License-Identifier: MIT
"""The way through the daemon and nothing else: a noop on the caller's stream, beside an empty kernel on that stream.

  pipelined     many calls in a row, as fast as this process makes them
  queued        the same, but the stream is held until all are enqueued: what the GPU alone takes. Ranks do not come to the end of
                that at the same time; one call that is not counted brings them together
  synchronised  one call on an idle GPU, waited for
"""
from . import figures

CALLS = 32  # in a row; fewer than may be in flight
SAMPLES, WARMUP = 160, 3  # some tenths of a second in all: a host that is busy for a while is not all that is seen
HOLD_CYCLES = 3000000  # of the GPU's clock: longer than CALLS calls take to enqueue


def measure(rank, client):
    """{what: [us per call]}"""
    torch, stream = rank.torch, rank.stream
    noop = client.noop_enqueuer(stream.cuda_stream)

    def kernel():
        torch.cuda._sleep(0)  # begins and ends

    def kernel_and_noop():
        kernel()
        noop()
    found = {}
    for name, run in (("noop", noop), ("kernel", kernel), ("kernel and noop", kernel_and_noop)):
        client.noop()
        found[f"{name} pipelined"] = rank.time(lambda r=run: repeat(r), CALLS, SAMPLES, WARMUP)
        client.noop()
        found[f"{name} queued"] = queued(torch, stream, run)
        found[f"{name} synchronised"] = synchronised(torch, stream, run, client)
    client.error()
    return found


def repeat(run):
    for _ in range(CALLS):
        run()


def queued(torch, stream, run):
    """[us per call] of the samples in which all calls were enqueued before the first one began."""
    samples = []
    for i in range(WARMUP + SAMPLES):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(HOLD_CYCLES)
            run()
            before.record()
            repeat(run)
            held = not before.query()  # the stream was still held when the last one was enqueued
            after.record()
        stream.synchronize()
        if i >= WARMUP and held:
            samples.append(before.elapsed_time(after) * 1e3 / CALLS)
    return samples


def synchronised(torch, stream, run, client):
    samples = []
    for i in range(WARMUP + SAMPLES):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream.synchronize()
        client.noop()
        with torch.cuda.stream(stream):
            before.record()
            run()
            after.record()
        stream.synchronize()
        if i >= WARMUP:
            samples.append(before.elapsed_time(after) * 1e3)
    return samples


def slowest(per_rank):
    """{what: figures of the slowest rank}; without what a rank has no samples of."""
    return {what: figures.slowest([answer[what] for answer in per_rank])
            for what in per_rank[0] if all(answer[what] for answer in per_rank)}
