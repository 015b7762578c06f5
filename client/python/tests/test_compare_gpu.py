# SPDX-License-Identifier: MIT
"""What tests/bench/compare_gpu takes from this package for its rows of torch.ops, of collectives and of decode steps: of the first two the
package's own names, which no program may use."""
import ctypes
import sys
from types import SimpleNamespace

import fcc
import pytest
import torch
from daemon import ROOT
from fcc._library import library

SIZE = 2
COPIES = 2


def both_of(comm):
    """The two ways that are compared, on this rank."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from gpu import shapes, torch_ops
    at = SimpleNamespace(torch=torch, device=comm.device, ranks=comm.size, rank=comm.rank, seed=5,
                         shape=shapes.Gemv(3, 64, 32, "float32"))
    stream = torch.cuda.Stream(comm.device) if comm.device.type == "cuda" else SimpleNamespace(cuda_stream=None)
    return torch_ops.Both(SimpleNamespace(at=at, torch=torch, stream=stream, copies=lambda shape: COPIES), fcc, comm)


def same_result(comm):
    both = both_of(comm)
    found = []
    for copy in range(COPIES):
        both.y.fill_(float("nan"))
        if comm.device.type == "cuda":
            with torch.cuda.stream(both.rank.stream):
                both.c()
        else:  # enqueue() refuses a rank without a stream; the same arguments can be started
            request = ctypes.c_void_p()
            library().check(library().operators["gemv_all_reduce"].start(both.handle, both.packed[copy], ctypes.byref(request)))
            library().check(library().request_wait(request, -1))
            library().request_free(request)
        y = both.torch_ops()
        comm.synchronize()
        found.append(torch.equal(both.y, y))
    return found


def enqueues(comm):
    both = both_of(comm)
    with pytest.raises(fcc.Error, match="only operators of ranks on GPUs can be enqueued"):
        both.c()


def collectives(comm):
    """Their arguments reach the C library, which says that there is no GPU here."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from gpu import collectives, shapes
    session = collectives.Session.__new__(collectives.Session)
    session.rank = SimpleNamespace(rank=comm.rank, stream=SimpleNamespace(cuda_stream=None))
    session.torch, session.library, session.comm = torch, library(), comm
    for kind in shapes.COLLECTIVE_KINDS:
        enqueue, result = session.fccd(kind, torch.ones(8, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16))
        assert result.numel() == (4 if kind == "reduce_scatter" else 8)
        with pytest.raises(RuntimeError, match=f"{kind}: FCC_ADDRESS: allowed only where this process launches the operator"):
            enqueue()
    comm.barrier()


def steps(comm):
    """How many elements of fccd's way are wrong, as the bench sees it, for shapes of each way that it is made of; and of results that
    are wrong in one place, and in all. PyTorch's addition and norm are what the other ways have behind their sums."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from gpu import decode, shapes
    found = []
    for shape in (shapes.Decode(1, 264, 72), shapes.Decode(64, 136, 256), shapes.Decode(65, 2048, 264), shapes.Norm(3, 4096)):
        at = SimpleNamespace(torch=torch, device=comm.device, ranks=comm.size, rank=comm.rank, seed=5, shape=shape)
        with torch.no_grad():
            step = decode.Step(at, COPIES, fcc, comm)
            right = step.fccd(COPIES - 1)
            followed = step.followed(fcc.all_reduce(step.summand(COPIES - 1).float(), comm).bfloat16())
            others = step.fccd(0)  # of other inputs
        found.append([decode.differ(*pair) for pair in zip((*right, *followed), step.wanted * 2)])
        for result, wanted in zip(right, step.wanted):
            for wrong in (float("nan"), 0.0, -result[-1, -1].item()):
                result[-1, -1] = wrong if abs(wanted[-1, -1]) > 0.1 * wanted.abs().max() else float("inf")
                found[-1].append(decode.differ(result, wanted) - 1)
        found[-1].append(min(decode.differ(*pair) / others[0].numel() for pair in zip(others, step.wanted)) > 0.8)
    return found


def test_steps_have_the_result_of_float64(run):
    assert run(SIZE, steps) == [[[0] * 10 + [True]] * 4] * SIZE


def test_both_ways_have_one_result(run):
    assert run(SIZE, same_result) == [[True] * COPIES] * SIZE


def test_the_arguments_reach_the_c_library(run, device):
    if device != "cpu":
        pytest.skip("what the C library says of a rank on the cpu")
    run(SIZE, enqueues)
    run(SIZE, collectives)
