# SPDX-License-Identifier: MIT
"""A decode step's row-parallel linear with what follows it: the product of this rank's columns, the sum over the ranks, the residual and
RMSNorm. All ways run in CUDA graphs, over as many weights in turns as pass several L2 caches:

  product     PyTorch's product of one rank alone
  NCCL        that, NCCL's AllReduce, PyTorch's addition and its rms_norm
  one-shot    the same with symmetric memory's one-shot AllReduce
  FlashInfer  the product, and FlashInfer's allreduce_fusion (AllReduce, addition and RMSNorm in one kernel), where it is there
  fccd        Step.fccd() has what it is made of

What follows the product is also measured alone (shapes.Norm): FlashInfer and fccd.

A shape should take about 2 s: for each way WARM_S of warming up, SAMPLES graphs of some ms, and the capture of 64 to 200 calls.
PART_LIMIT_S of comparison.py ends one that hangs. FlashInfer's kernels are compiled in the first run on a machine: for RIVAL_LIMIT_S at most.
"""
import warnings

from . import inputs, shapes
from .collectives import FCCD, NCCL, join

PRODUCT, ONE_SHOT, FLASHINFER = "product", "one-shot", "FlashInfer"
OTHERS = (NCCL, ONE_SHOT, FLASHINFER)  # what fccd is compared with
RIVAL_LIMIT_S = 240
SAMPLES = 30
EPS = 1e-5
ERROR = 0.02  # of an element, and of all elements' root mean square: what rounding to bfloat16 a few times may make
MOST_M, MOST_N = shapes.DECODE_M[-1], shapes.DECODE_N[1]
RIVAL_NEEDS = ("trtllm_allreduce_fusion", "trtllm_create_ipc_workspace_for_all_reduce_fusion", "trtllm_lamport_initialize",
               "AllReduceFusionPattern")


def ways_of(shape):
    """In the order of the table."""
    return {shapes.DECODE: (PRODUCT, *OTHERS, FCCD), shapes.NORM: (FLASHINFER, FCCD), shapes.EXAMPLES: (NCCL, FCCD)}[shape.operator]


def differing(found, wanted):
    """Which elements are not those wanted, beyond what rounding explains. NaN is none that is wanted."""
    allowed = ERROR * (wanted.abs() + wanted.square().mean().sqrt())
    return ((found.double() - wanted).abs() <= allowed).logical_not()


def differ(found, wanted):
    """How many they are."""
    return int(differing(found, wanted).sum())


def rival_missing(torch):
    """Why FlashInfer is not there, or None. Needs no other rank: the first of its kernels to be called has them all compiled."""
    try:
        import flashinfer.comm
        for name in RIVAL_NEEDS:
            getattr(flashinfer.comm, name)
        scratch = torch.empty(1024, dtype=torch.float16, device="cuda")
        flashinfer.comm.trtllm_lamport_initialize(scratch.data_ptr(), scratch.numel(), scratch.dtype)
        torch.cuda.synchronize()
    except Exception as e:  # whatever its import, its compiler or its loader say
        return said(e)
    return None


def said(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class Step:
    """A shape's inputs on this rank, and the ways: each takes the number of a set of inputs, and returns what comes out, (normed, sum) but
    of the product alone."""

    def __init__(self, at, copies, fcc, comm):
        self.at, self.torch, self.fcc, self.comm = at, at.torch, fcc, comm
        self.shape, self.copies = at.shape, copies
        self.sets = [inputs.step(at, at.rank, i) for i in range(copies)]
        self.residual, self.weight = inputs.residual(at)
        self.wanted = inputs.step_reference(at, copies - 1, EPS)  # of the last call of a graph

    def summand(self, i):
        """This rank's part of the sum."""
        return self.torch.nn.functional.linear(*self.sets[i]) if isinstance(self.shape, shapes.Decode) else self.sets[i][0]

    def product(self, i):
        return (self.summand(i),)

    def followed(self, total):
        total = total + self.residual
        return self.torch.nn.functional.rms_norm(total, (self.shape.n,), self.weight, EPS), total

    def nccl(self, i):
        y = self.summand(i)
        self.torch.distributed.all_reduce(y)
        return self.followed(y)

    def one_shot(self, y, group, i):
        """y: in symmetric memory"""
        x, w = self.sets[i]
        self.torch.mm(x, w.t(), out=y)
        return self.followed(self.torch.ops.symm_mem.one_shot_all_reduce(y, "sum", group))

    def flashinfer(self, workspace, i):
        """What flashinfer.comm.allreduce_fusion() calls where it does not use multicast, as serving systems call it."""
        import flashinfer.comm as rival
        y, s = self.summand(i), self.shape
        normed, total = self.torch.empty_like(y), self.torch.empty_like(y)
        rival.trtllm_allreduce_fusion(
            allreduce_in=y, world_size=self.at.ranks, world_rank=self.at.rank, token_num=s.m, hidden_dim=s.n, workspace_ptrs=workspace,
            launch_with_pdl=True, trigger_completion_at_end=True, fp32_acc=True,
            pattern_code=rival.AllReduceFusionPattern.kARResidualRMSNorm, use_oneshot=None, allreduce_out=None, residual_in=self.residual,
            residual_out=total, norm_out=normed, quant_out=None, scale_out=None, rms_gamma=self.weight, rms_eps=EPS, scale_factor=None,
            layout_code=None)
        return normed, total

    def fccd(self, i):
        """Up to 64 rows one operator. Beyond, PyTorch's product and fcc.all_reduce_epilogue, one kernel."""
        epilogue = self.fcc.Epilogue(residual=self.residual, norm="rms", norm_weight=self.weight, norm_eps=EPS, sum=True)
        if isinstance(self.shape, shapes.Decode) and self.shape.m <= shapes.GEMV_MOST_M:
            result = self.fcc.gemv_all_reduce_epilogue(*self.sets[i], epilogue, self.comm)
        else:
            result = self.fcc.all_reduce_epilogue(self.summand(i), epilogue, self.comm)
        return result.y, result.sum


class Session:
    """rank: of rank.py, whose processes have a group of NCCL's. One communicator for all shapes."""

    def __init__(self, rank, uid):
        self.rank, self.torch, self.dist = rank, rank.torch, rank.torch.distributed
        self.fcc, self.comm = join(rank, uid)
        self.symmetric = self.workspace = self.step = None

    def close(self):
        self.step = self.symmetric = self.workspace = None
        self.comm.close()

    def measure(self, shape):
        """Of all ways but FlashInfer's: {"times": {way: [us per call]}, "wrong": {way: how many elements}, "missing": {way: why}}, and
        "apart", how many elements of fccd's result are not rank 0's, bit by bit."""
        self.step = None
        self.torch.cuda.empty_cache()
        self.rank.at.shape = shape
        step = self.step = Step(self.rank.at, self.rank.copies(shape), self.fcc, self.comm)
        found = {"times": {}, "wrong": {}, "missing": {}}
        if isinstance(shape, shapes.Decode):
            self.way(found, PRODUCT, step.product)
            self.way(found, NCCL, step.nccl)
            try:
                y, group = self.symmetric_rows(shape)
                self.way(found, ONE_SHOT, lambda i: step.one_shot(y, group, i))
            except (RuntimeError, AttributeError) as e:  # on all ranks: this PyTorch does not have it
                found["missing"][ONE_SHOT] = said(e)
        self.way(found, FCCD, step.fccd)
        self.comm.synchronize()
        return found

    def rival_open(self):
        """FlashInfer's memory for all shapes, which all ranks make together: without multicast, unlike its
        create_allreduce_fusion_workspace() where that chooses."""
        import flashinfer.comm as rival
        made = rival.trtllm_create_ipc_workspace_for_all_reduce_fusion(self.rank.rank, self.rank.settings.ranks, MOST_M, MOST_N,
                                                                       group=self.dist.group.WORLD)
        self.workspace = made  # (what is mapped, the kernel's table of addresses)
        self.torch.cuda.synchronize()

    def measure_rival(self):
        """As measure(), of FlashInfer and the shape that was measured last."""
        found = {"times": {}, "wrong": {}, "missing": {}}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a name is an older one
                self.way(found, FLASHINFER, lambda i: self.step.flashinfer(self.workspace[1], i))
        except Exception as e:  # on all ranks: it has no kernel for this shape
            found["missing"][FLASHINFER] = said(e)
            self.launch_error_clear()
        return found

    def launch_error_clear(self):
        """A launch that was refused is told to whoever asks next, once. An error that stays is one of this process."""
        try:
            self.torch.zeros(1, device=self.rank.at.device)
        except RuntimeError:
            pass
        self.torch.cuda.synchronize()

    def symmetric_rows(self, shape):
        """(a tensor [M][N] in symmetric memory, the name of the group)"""
        import torch.distributed._symmetric_memory as memory
        group = self.dist.group.WORLD.group_name
        if self.symmetric is None:
            whole = memory.empty(MOST_M * MOST_N, dtype=self.torch.bfloat16, device=self.rank.at.device)
            memory.rendezvous(whole, group)
            self.symmetric = whole
        return self.symmetric[:shape.m * shape.n].view(shape.m, shape.n), group

    def way(self, found, name, run):
        """Its result, from a graph, is looked at before it is timed, and again afterwards."""
        torch, step, last = self.torch, self.step, []
        calls = shapes.calls_per_sample(step.shape, step.copies)

        def keep(i):
            last[:] = run(i)
        torch.cuda.synchronize()  # inputs are made on another stream
        with torch.cuda.stream(self.rank.stream):
            for i in range(2):
                run(i)  # a way's first call sets up what a capture must not
            self.rank.stream.synchronize()
            graph = self.rank.captured(keep, calls, step.copies)
            for out in last:
                out.fill_(float("nan"))
            self.meet()
            graph.replay()
            wrong = 0 if name == PRODUCT else sum(map(differ, last, step.wanted))
            self.meet()
            times = self.rank.time(graph.replay, calls, SAMPLES, -(-self.rank.warmup() // calls))
            wrong += 0 if name == PRODUCT else sum(map(differ, last, step.wanted))
            if name == FCCD:
                found["apart"] = sum(map(self.apart, last))
            self.rank.stream.synchronize()
        del graph
        found["times"][name], found["wrong"][name] = times, wrong

    def meet(self):
        """Not at fccd's barrier, whose time limit ends the communicator: it is not fccd's fault where another way hangs."""
        self.dist.barrier()
        self.torch.cuda.synchronize()

    def apart(self, result):
        """How many elements are not rank 0's, bit by bit."""
        theirs = result.clone()
        self.dist.broadcast(theirs, 0)
        return int((theirs.view(self.torch.int16) != result.view(self.torch.int16)).sum())
