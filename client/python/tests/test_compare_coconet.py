# SPDX-License-Identifier: MIT
"""What tests/bench/compare_gpu --rows coconet compares: torch's sequences compute what the programs do, fcc.optim's step is looked at, and a rank's course is what it should be; gloo is in
NCCL's place, and nothing is compiled."""
import contextlib
import sys
from types import SimpleNamespace
from unittest.mock import patch

import fcc
import torch
import torch.distributed as dist
from daemon import ROOT

SIZE, N = 2, 1 << 10
PROGRAMS = ROOT / "client" / "programs"
OF = (16, 1, 64, 8)  # a small model


@contextlib.contextmanager
def bench(comm, store):
    """(the bench's modules, what a rank of it has)"""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from gpu.coconet import model, rows, sequences
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
    with torch.no_grad(), patch.object(dist, "_coalescing_manager", lambda **_: contextlib.nullcontext()):  # gloo has none
        yield SimpleNamespace(model=model, rows=rows, sequences=sequences), SimpleNamespace(torch=torch, device=comm.device, ranks=comm.size, rank=comm.rank, seed=5)
    dist.destroy_process_group()


def plain(torch_, function):
    del torch_
    return function


def by_program(comm, file, of, sums):
    """p and w of fccd's program, of which `of` has the tensors before the step, whole, and sums the gradients of this rank."""
    run = fcc.Program.read(PROGRAMS / file).compile(comm, N=N)
    own = slice(N // comm.size * comm.rank, N // comm.size * (comm.rank + 1))
    tensors = {"g": run.empty("g").copy_(sums), "p": run.empty("p"), **{name: run.empty(name).copy_(getattr(of, name)[own]) for name in ("w", "m", "v")}}
    decay = {"decay": 0.01} if "lamb" in file else {}
    run(**tensors, lr=1.0, beta1=0.9, beta2=0.999, epsilon=1e-8, step=3, scale=0.5, **decay)
    return tensors["p"], tensors["w"], own


def optimisers(comm, store):
    found = {}
    with bench(comm, store) as (b, at):
        for name, file in ((b.rows.ADAM, "adam_mixed.fcc"), (b.rows.SHARDED, "adam_mixed.fcc"), (b.rows.LAMB, "lamb_mixed.fcc")):
            whole = b.sequences.Optimiser(at, b.rows.ADAM, {"N": N}, plain)  # the same tensors, whole
            p, w, own = by_program(comm, file, whole, whole.g)
            sequence = b.sequences.Optimiser(at, name, {"N": N}, plain)
            before = sequence.w.clone()
            sequence.run()
            got = sequence.w if sequence.sharded else sequence.w[own]
            found[name] = ((got - w).abs().max().item(), (sequence.p.float() - p.float()).abs().max().item(), (sequence.w - before).abs().mean().item())
    return found


def test_optimisers_do_what_programs_do(run, on_cpu, tmp_path):
    for found in run(SIZE, optimisers, str(tmp_path / "store")):
        assert len(found) == 3
        for name, (w, p, moved) in found.items():
            assert w < 1e-5 and p < 2e-2 and moved > 1e-2, (name, w, p, moved)


def layers(comm, store):
    """Of each element: whether it is the residual, or what is expected without dropout; and how many are dropped."""
    with bench(comm, store) as (b, at):
        found = []
        for name, sizes in ((b.rows.EPILOGUE, {"M": 32, "H": 16}), (b.rows.LAYER, {"M": 32, "H": 16, "K": 24})):
            layer = b.sequences.Layer(at, name, sizes, plain)
            mine = (layer.factors[0] @ layer.factors[1] if layer.factors else layer.s).clone()
            dist.all_reduce(mine)
            layer.run()
            kept = ((mine + layer.bias) / 0.9 + layer.residual).float()
            dropped = layer.y == layer.residual
            found.append((bool((dropped | ((layer.y.float() - kept).abs() < 0.05 * (1 + kept.abs()))).all()), dropped.float().mean().item()))
        product = b.sequences.Layer(at, b.rows.PRODUCT, sizes, plain)
        product.run()
        return [*found, torch.equal(product.s, product.factors[0] @ product.factors[1])]


def test_layers_do_what_programs_do(run, on_cpu, tmp_path):
    for *found, product in run(SIZE, layers, str(tmp_path / "store")):
        assert product
        assert all(right and 0.03 < dropped < 0.2 for right, dropped in found), found


def models(comm, store):
    """How far the lists' parameters are from where a step takes them, and how many of fcc.optim's are wrong; then of parameters of which one is."""
    with bench(comm, store) as (b, at):
        of, far, wrong = b.model.shapes(*OF), [], []
        for name, long in ((b.rows.FLAT, 0.1 / 0.271 / (0.001 / (1 - 0.999**3))**0.5), (b.rows.EACH, 1.0)):
            sequence = b.model.MAKERS[name](at, of, plain)
            before = [p.clone() for p in sequence.p]
            sequence.run()
            signs = [sum(gradients).sign() for gradients in zip(*(b.model.gradients_of(at, r, of) for r in range(comm.size)))]
            far.append(max((q.float() - long * s - p.float()).abs().max().item() for p, q, s in zip(sequence.p, before, signs)))
        for in_place in (False, True):
            parameters, optimiser = b.model.optimiser_make(fcc, comm, at, of, in_place, False)
            optimiser.step()
            wrong.append(b.model.wrong_count(at, of, parameters))
        parameters[3][0] += 1
        return far, wrong, b.model.wrong_count(at, of, parameters), len(b.model.shapes())


def test_models(run, on_cpu, tmp_path):
    for far, wrong, changed, tensors in run(SIZE, models, str(tmp_path / "store")):
        assert max(far) < 0.05 and wrong == [0, 0] and changed == 1 and tensors == 148


def course(comm, store):
    """A rank without a GPU: what it captures is run, and takes a millisecond."""
    resets = []
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 1.0)
    with bench(comm, store) as (b, at), contextlib.ExitStack() as stack:
        for name in ("synchronize", "empty_cache", "stream"):
            stack.enter_context(patch.object(torch.cuda, name, lambda *_: contextlib.nullcontext()))
        stack.enter_context(patch.object(torch.cuda, "Event", lambda **_: event))
        stack.enter_context(patch.object(torch, "compile", lambda function, **_: function))
        rank = SimpleNamespace(at=at, torch=torch, stream=SimpleNamespace(synchronize=lambda: None),
                               captured=lambda work, calls, copies: SimpleNamespace(replay=lambda: work(0), reset=lambda: resets.append(1)))
        found = [b.sequences.measure(rank, b.rows.ADAM, {"N": N}, 60), b.sequences.measure(rank, b.rows.LAYER, {"M": 4, "H": 8, "K": 16}, 60)]
        with patch.object(b.model, "shapes", lambda: [(8, 4), (4,)]):
            found += [b.model.measure(rank, name, 60) for name in b.model.MAKERS]
    return found, len(resets)


def test_course(run, on_cpu, tmp_path):
    for found, resets in run(SIZE, course, str(tmp_path / "store")):
        assert found == [[1000.0] * 20] * 4 and resets == 4
