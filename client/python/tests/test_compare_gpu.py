# SPDX-License-Identifier: MIT
"""What tests/bench/compare_gpu takes from this package for its rows of torch.ops, of collectives, of decode steps and of T3's sublayers: of the first two the
package's own names, which no program may use."""
import contextlib
import ctypes
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import fcc
import pytest
import torch
import torch.distributed as dist
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


class OnCpu:
    """A rank of the bench without a GPU: what it captures is run each time, and takes a microsecond."""

    def __init__(self, comm):
        self.rank, self.torch = comm.rank, torch
        self.settings = SimpleNamespace(ranks=comm.size)
        self.at = SimpleNamespace(torch=torch, device=comm.device, ranks=comm.size, rank=comm.rank, seed=5, shape=None)
        self.stream = SimpleNamespace(synchronize=lambda: None)
        self.copies, self.warmup = lambda shape: COPIES, lambda: 1

    def captured(self, run, calls, ncopies):
        def replay():
            for i in range(calls):
                run(i % ncopies)
        return SimpleNamespace(replay=replay)

    def time(self, sample, calls, samples, warmup):
        for _ in range(warmup + 1):
            sample()
        return [1.0] * samples


def flashinfer_stand_in():
    """Has what decode.py calls, and no kernel for three rows."""
    rival = ModuleType("flashinfer.comm")

    def workspace(rank, size, most_m, most_n, group):
        assert group is dist.group.WORLD
        return [[0] * size], (most_m * most_n, size, rank)

    def allreduce_fusion(*, allreduce_in, token_num, hidden_dim, workspace_ptrs, world_size, world_rank, residual_in, residual_out, norm_out, rms_gamma,
                         rms_eps, pattern_code, **others):
        assert workspace_ptrs[1:] == (world_size, world_rank) and (token_num, hidden_dim) == tuple(allreduce_in.shape) and pattern_code == 1
        assert set(others) == {"launch_with_pdl", "trigger_completion_at_end", "fp32_acc", "use_oneshot", "allreduce_out", "quant_out", "scale_out",
                               "scale_factor", "layout_code"}
        if token_num == 3:
            raise RuntimeError("no kernel\nfor this")
        total = allreduce_in.clone()
        dist.all_reduce(total)
        residual_out.copy_(total + residual_in)
        norm_out.copy_(torch.nn.functional.rms_norm(residual_out, (hidden_dim,), rms_gamma, rms_eps))
    rival.trtllm_create_ipc_workspace_for_all_reduce_fusion, rival.trtllm_allreduce_fusion = workspace, allreduce_fusion
    rival.AllReduceFusionPattern = SimpleNamespace(kARResidualRMSNorm=1)
    package = ModuleType("flashinfer")
    package.comm = rival
    return {"flashinfer": package, "flashinfer.comm": rival}


@contextlib.contextmanager
def bench_rank(comm, store, module):
    """This rank as one of the bench, of whose files `module` joins: gloo in NCCL's place, no GPU, and each set of inputs once in a graph."""
    from gpu import shapes
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
    with contextlib.ExitStack() as stack:
        for name in ("synchronize", "empty_cache", "stream"):
            stack.enter_context(patch.object(torch.cuda, name, lambda *_: contextlib.nullcontext()))
        stack.enter_context(patch.object(shapes, "calls_per_sample", lambda shape, ncopies: ncopies))
        stack.enter_context(patch.object(module, "join", lambda rank, uid: (fcc, comm)))
        stack.enter_context(torch.no_grad())
        yield
    dist.destroy_process_group()


def course(comm, store):
    """What the bench's rank answers for a shape with FlashInfer, and one without."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from gpu import decode, shapes
    found = []
    with bench_rank(comm, store, decode), patch.dict(sys.modules, flashinfer_stand_in()):
        session = decode.Session(OnCpu(comm), "id")
        session.rival_open()
        for shape in (shapes.Decode(2, 264, 72), shapes.Decode(65, 136, 64), shapes.Norm(3, 4096)):
            found += [session.measure(shape), session.measure_rival()]
        with patch.object(decode.Step, "fccd", lambda step, i: [-out for out in step.followed(step.summand(i) * (comm.rank + 1))]):
            found.append(session.measure(shape))
    return found


def sublayers(comm, store):
    """What the bench's rank answers for each of T3's operators; then of one whose result is wrong."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from gpu import shapes, t3
    found = []
    with bench_rank(comm, store, t3):
        session = t3.Session(OnCpu(comm), "id")
        for kind, m, n, k in ((shapes.GEMM_REDUCE_SCATTER, 48, 40, 24), (shapes.ALL_GATHER_GEMM, 48, 24, 40), (shapes.GEMM_ALL_REDUCE, 16, 40, 8)):
            found.append(session.measure(shapes.Sublayer(kind, m, n, k, "random")))
        with patch.object(t3.Layer, "fccd", lambda layer, i: -layer.nccl(i)):
            found.append(session.measure(shapes.Sublayer(kind, m, n, k, "random")))
    return found


def test_a_rank_measures_sublayers(run, on_cpu, tmp_path):
    for answers in run(SIZE, sublayers, str(tmp_path / "store")):
        *answers, wrong = answers
        for answer, rings in zip(answers, (True, True, False)):
            assert set(answer["times"]) == {"product", "exchange", "NCCL", "collective", "fccd"} | ({"ring"} if rings else set())
            assert not any(answer["wrong"].values()), answer["wrong"]
            assert list(answer["missing"]) == ["PyTorch"] and bool(answer["pieces"]) == rings
        assert wrong["wrong"]["fccd"] > 16 * 40 * 0.9 and wrong["where"]["fccd"] and not wrong["wrong"]["NCCL"]


def test_a_rank_measures_steps(run, on_cpu, tmp_path):
    for answers in run(SIZE, course, str(tmp_path / "store")):
        *answers, wrong = answers
        for answer, ways in zip(answers, (["product", "NCCL", "fccd"], ["FlashInfer"]) * 2 + (["fccd"], [])):
            assert list(answer["times"]) == ways
            assert answer["wrong"] == dict.fromkeys(ways, 0) and answer.get("apart", 0) == 0
            assert all(len(us) == 30 for us in answer["times"].values())
        assert [list(answer["missing"]) for answer in answers] == [["one-shot"], []] * 2 + [[], ["FlashInfer"]]
        assert answers[-1]["missing"]["FlashInfer"] == "RuntimeError: no kernel for this"
        assert wrong["wrong"]["fccd"] > 3 * 4096
    assert wrong["apart"] > 4096  # of the last rank


def test_flashinfer_is_not_there():
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from gpu import decode
    with patch.dict(sys.modules, {"flashinfer": None}):
        assert decode.rival_missing(torch).startswith("ModuleNotFoundError: ")
    with patch.dict(sys.modules, flashinfer_stand_in()):
        assert "trtllm_lamport_initialize" in decode.rival_missing(torch)


def test_steps_have_the_result_of_float64(run):
    assert run(SIZE, steps) == [[[0] * 10 + [True]] * 4] * SIZE


def test_both_ways_have_one_result(run):
    assert run(SIZE, same_result) == [[True] * COPIES] * SIZE


def test_the_arguments_reach_the_c_library(run, device):
    if device != "cpu":
        pytest.skip("what the C library says of a rank on the cpu")
    run(SIZE, enqueues)
    run(SIZE, collectives)
