# SPDX-License-Identifier: MIT
"""Programs that compile() was to bind: ordinary calls of them, inside and outside of captures, and what all ranks hear of a wrong one, on fake GPUs; and where fccd launches them instead, and why."""
import os
import re

import fake_gpus
import fcc
import pytest
import torch
from ranks import Ranks, gpus
from test_bound import FUSED, captured, scaled

OTHER = fcc.Program("program other(N = 1000)\nin g: f32[N] local\ninout p: f32[N]\nscalar lr\ns = all_reduce(g)\np = p - lr * s\n")
LIVES = "the communicator goes on"


def tensors_of(run, comm, there):
    """In the daemon's memory, or in torch's."""
    make = run.empty if there else lambda name: torch.empty(run.shape(name))
    return make("g").fill_(comm.rank + 1), make("p").zero_(), make("m").zero_()


def told(comm, words):
    """What this rank hears of the last run, which was none."""
    with pytest.raises(fcc.ArgumentError, match=re.escape(words)):
        comm.check(wait=True)
    comm.check(wait=True)


def calls_rank(comm, bound, there):
    """Calls, with other tensors each time where these lie in torch's memory, and captures. Numbers are those of the call."""
    if bound is None:
        os.environ["FCC_BOUND"] = "1"
    run, ranks = FUSED.compile(comm, bound=bound, N=1003), comm.size * (comm.size + 1) // 2
    with pytest.raises(fcc.ArgumentError, match="set: it has not been called yet"):
        run.set(lr=1.0)
    g, p, m = tensors_of(run, comm, there)
    fake_gpus.events.clear()
    for lr in 1.0, 0.5:
        assert run(g, p, m, lr=lr, momentum=0.0) is None
        assert run.unbound is None and run._step is not None
        if not there:
            g, p, m = g.clone(), p.clone(), m.clone()
    assert p.eq(-1.5 * ranks).all(), p[:4]
    assert "record" not in str(fake_gpus.events), fake_gpus.events  # nobody waits
    if there:
        graph = captured(lambda: run(g, p, m, lr=7.0, momentum=0.0))
        for lr in 1.0, 2.0:
            run.set(lr=lr)
            graph.replay()
        run(g=g, p=p, m=m, lr=0.5, momentum=0.0)
        assert p.eq(-5.0 * ranks).all() and m.eq(ranks).all(), p[:4]
        graph.close()
    run.close()
    comm.barrier()


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
@pytest.mark.parametrize("bound, there, size", [(True, True, 1), (True, True, 2), (True, False, 2), (None, True, 2)])
def test_calls(bound_fakes, bound, there, size):
    Ranks(bound_fakes, "cuda", size, calls_rank, bound, there).results()


def outs_rank(comm):
    """An Out that is not given is a tensor of its own for each call."""
    run = scaled.compile(comm, bound=True, N=100)
    x = torch.arange(100.0)
    first = run(x, k=2.0)
    second = run(x + 1, k=3.0)
    assert torch.equal(first, 2 * x) and torch.equal(second, 3 * (x + 1))
    given = torch.empty(100)
    assert run(x, given, k=4.0) is given and torch.equal(given, 4 * x)


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_outs(bound_fakes):
    with pytest.raises(fcc.ArgumentError, match="bound: 'yes': allowed are True, False and None"):
        fcc._programs.running._launcher("yes")
    Ranks(bound_fakes, "cuda", 2, outs_rank).results()


def wrong_rank(comm):
    """One rank's call is wrong: it raises, the others hear why, no tensor has changed, and the next calls are right."""
    run, odd, expected = FUSED.compile(comm, bound=True, N=1000), comm.rank == 1, 0.0
    g, p, m = tensors_of(run, comm, True)
    other = run.empty("p").zero_()
    run(g, p, m, lr=0.0, momentum=0.0)
    wrongs = (({"g": g[:5]}, "`g`: torch.float32, 5 elements"), ({"lr": "x"}, "`lr`: str 'x': allowed is a number"), ({"more": 1}, "`more`: not a parameter"),
              ({"p": other}, "`p`: it is not the tensor of the first call, which lies in the daemon's memory"), ({"m": None}, "`m`: NoneType None: allowed is a torch.Tensor"))
    for wrong, words in wrongs:
        arguments = {"g": g, "p": p, "m": m, "lr": 1.0, "momentum": 0.0}
        if odd:
            with pytest.raises(fcc.ArgumentError, match=re.escape(f"rank 1: program sgd: {words}")):
                run(**(arguments | wrong))
            comm.check(wait=True)
        else:
            run(**arguments)
            told(comm, f"rank 1: program sgd(N = 1000): {words}"[:150])
        assert p.eq(expected).all() and other.eq(0).all()
        run(**arguments)
        expected -= 3.0
        assert p.eq(expected).all(), (wrong, p[:4], expected)
    comm.barrier()


def test_wrong(bound_fakes):
    Ranks(bound_fakes, "cuda", 2, wrong_rank).results()


def differ_rank(comm):
    """The ranks call other programs, other numbers, and a collective: all hear both, and go on; in captures, too."""
    run, other, odd = FUSED.compile(comm, bound=True, N=1000), OTHER.compile(comm, bound=True), comm.rank == 1
    g, p, m = tensors_of(run, comm, True)
    run(g, p, m, lr=0.0, momentum=0.0)
    other(g, p, lr=0.0)

    def ours():
        run(g, p, m, lr=1.0, momentum=0.0)

    def others():
        other(g, p, lr=1.0)
    both = "rank 1 runs program other(N = 1000), rank 0 runs program sgd(N = 1000)"
    (others if odd else ours)()
    told(comm, both)
    run(g, p, m, lr=2.0 if odd else 1.0, momentum=0.0)
    told(comm, "program sgd(N = 1000): scalars: rank 1's have other values than rank 0's: allowed are the same on all ranks")
    if odd:
        x = torch.ones(8)
        fcc.all_reduce(x, comm)
    else:
        ours()
    told(comm, "rank 1 called all_reduce of f32, rank 0 called program sgd(N = 1000)")
    graph = captured(others if odd else ours)
    graph.replay()
    told(comm, both)
    assert p.eq(0).all() and m.eq(3).all()  # of the first call
    ours()
    others()
    assert p.eq(-6).all()
    graph.close()
    comm.barrier()


def test_differ(bound_fakes):
    Ranks(bound_fakes, "cuda", 2, differ_rank).results()


def first_rank(comm):
    """Before the ranks have agreed: a capture, and a first call that is wrong on one rank; and ranks that want it launched otherwise."""
    run, odd = FUSED.compile(comm, bound=True, N=1000), comm.rank == 1
    g, p, m = tensors_of(run, comm, True)
    with fake_gpus.Graph() as graph, pytest.raises(fcc.CaptureError, match="Call it once before the capture"):
        run(g, p, m, lr=1.0, momentum=0.0)
    graph.close()
    with pytest.raises(fcc.ArgumentError, match="rank 1: program sgd: `g`: torch.float32, 5 elements"):
        run(g[:5] if odd else g, p, m, lr=1.0, momentum=0.0)
    run(g, p, m, lr=1.0, momentum=0.0)
    assert p.eq(-3).all() and run._step is not None
    for mine in (True, False), (False, True):
        with pytest.raises(fcc.ArgumentError, match=re.escape("rank 1 is to be launched otherwise than rank 0's: compile(bound=...) or $FCC_BOUND: allowed is the same on all ranks")):
            FUSED.compile(comm, bound=mine[odd], N=1000)
    os.environ["FCC_BOUND"] = "yes" if odd else "1"
    with pytest.raises(fcc.ArgumentError, match="FCC_BOUND: 'yes': allowed are 0 and 1"):
        FUSED.compile(comm, N=1000)
    comm.barrier()


def test_first(bound_fakes):
    Ranks(bound_fakes, "cuda", 2, first_rank).results()


def ends_rank(comm, how):
    """A rank makes no call, but raises: leaving the communicator's block ends it, and all hear why. Or it dies."""
    run = FUSED.compile(comm, bound=True, N=1000)
    g, p, m = tensors_of(run, comm, True)
    run(g, p, m, lr=0.0, momentum=0.0)
    comm.barrier()
    if comm.rank == 1 and how == "dies":
        os._exit(0)
    if comm.rank == 1:
        with pytest.raises(ZeroDivisionError), comm:
            1 / 0
        return
    with pytest.raises(fcc.AbortedError, match="rank 1.*ZeroDivisionError: division by zero" if how == "raises" else "rank 1"):
        run(g, p, m, lr=1.0, momentum=0.0)
        comm.check(wait=True)
        comm.barrier()
    assert p.eq(0).all()


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_ends(bound_fakes, how):
    outcomes = Ranks(bound_fakes, "cuda", 2, ends_rank, how).outcomes()
    assert outcomes[0][0] and (outcomes[1][0] or how == "dies"), outcomes


def unbound_rank(comm, words):
    """Where it cannot be bound, fccd launches it, and the program says why; bound=True is an error on all ranks."""
    os.environ["FCC_BOUND"] = "1"
    run = FUSED.compile(comm, N=1000)
    g, p, m = tensors_of(run, comm, True)
    for _ in range(2):
        run(g, p, m, lr=1.0, momentum=0.0)
    assert p.eq(-2 * comm.size * (comm.size + 1) // 2).all() and re.search(words, run.unbound), run.unbound
    with pytest.raises(fcc.ArgumentError, match="set: it is not bound: .*" + words):
        run.set(lr=1.0)
    must = FUSED.compile(comm, bound=True, N=1000)
    with pytest.raises(fcc.UnsupportedError, match=words):
        must(g, p, m, lr=1.0, momentum=0.0)
    del os.environ["FCC_BOUND"]
    plain = FUSED.compile(comm, N=1000)
    plain(g, p, m, lr=0.0, momentum=0.0)
    assert plain.unbound is None and plain._step is None
    comm.barrier()


def test_unbound(fakes, run, device):
    Ranks(fakes, "cuda", 2, unbound_rank, "its kernel cannot be made: GPU_COMPILER=none").results()
    if device == "cpu":
        run(2, unbound_rank, "its ranks are on cpu devices: allowed on CUDA GPUs")


def optimizers_rank(comm):
    """Steps of an optimizer with capturable=True: a wrong number on one rank is none on all, and the steps that follow are right."""
    os.environ["FCC_BOUND"] = "1"
    p = torch.nn.Parameter(torch.ones(40))
    o = fcc.optim.SGD([p], lr=1.0, comm=comm, capturable=True, reduction="sum")
    p.grad = torch.full((40,), float(comm.rank + 1))
    o.step()
    assert p.eq(-2).all()
    o.param_groups[0]["lr"] = "x" if comm.rank == 1 else 1.0
    if comm.rank == 1:
        with pytest.raises((TypeError, ValueError, fcc.ArgumentError)):
            o.step()
    else:
        o.step()
        told(comm, "rank 1: program ")
    assert p.eq(-2).all()
    o.param_groups[0]["lr"] = 1.0
    o.step()
    assert p.eq(-5).all()
    comm.barrier()


def test_optimizers(bound_fakes):
    Ranks(bound_fakes, "cuda", 2, optimizers_rank).results()


def real_rank(comm):
    """On GPUs: calls and replays behind work that takes long; a call that one rank refuses, in front of runs that are right."""
    torch.cuda.set_device(comm.device)
    run, ranks = FUSED.compile(comm, bound=True, N=1 << 20), comm.size * (comm.size + 1) // 2
    g, p, m = (run.empty(name).zero_() for name in ("g", "p", "m"))
    g.fill_(comm.rank + 1)
    run(g, p, m, lr=0.0, momentum=0.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(g, p, m, lr=1.0, momentum=0.0)
    for i in range(20):
        torch.cuda._sleep(2_000_000)
        run.set(lr=1.0)
        graph.replay()
        run(g, p, m, lr=1.0, momentum=0.0)
        if i % 4 == 3:
            if comm.rank == 0:
                with pytest.raises(fcc.ArgumentError):
                    run(g, p, m, lr="x", momentum=0.0)
            else:
                run(g, p, m, lr=1.0, momentum=0.0)
            graph.replay()
            torch.cuda.synchronize()
            if comm.rank == 0:
                comm.check(wait=True)
            else:
                told(comm, "rank 0: program ")
    torch.cuda.synchronize()
    assert (p == -45 * ranks).all(), p[:4]


def test_gpus(run, device):
    run(gpus(device), real_rank)
