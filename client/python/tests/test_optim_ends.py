# SPDX-License-Identifier: MIT
"""fcc.optim: what it refuses, on all ranks, and what a step survives: ranks that differ, gradients that only some have, no memory, hostile arguments."""
import copy
import pickle

import fcc
import pytest
import torch
from ranks import Ranks
from test_optim import parameters, gradient


def hostile_rank(comm):
    """Errors are in words, on all ranks; no rank waits for another one then, and the step changes nothing."""
    torch.set_default_device(comm.device)
    wrong, P = comm.rank == 1, lambda *shape: torch.nn.Parameter(torch.ones(shape))  # noqa: E731
    for name in ("Adam", "AdamW", "SGD", "LAMB"):
        make = getattr(fcc.optim, name)

        def after_a_step(change, reason):
            p, others = P(3), P(2)
            o = make([{"params": [p]}, {"params": [others]}], lr=0.1, comm=comm)
            for t in range(2):
                p.grad, others.grad = torch.ones(3), torch.ones(2)
                if t == 1:
                    change(o, p)
                    before = others.tolist(), p.tolist()
                    with pytest.raises(fcc.ArgumentError, match=reason):
                        o.step()
                    assert (others.tolist(), p.tolist()) == before
                else:
                    o.step()

        def given(what, *values):
            what.data, what.grad = values[0], None
        after_a_step(lambda o, p: given(p, torch.ones(5)) if wrong else None, rf"rank 1: {name}: params: torch.float32, \[5\]: it was torch.float32, \[3\]|the ranks' param_groups differ")
        after_a_step(lambda o, p: given(p, p.detach().half()) if wrong else None, rf"rank 1: {name}: params: torch.float16, \[3\]: it was torch.float32")
        after_a_step(lambda o, p: o.param_groups[1].update(lr="a"), rf"{name}: param_groups: ValueError: .*: allowed are numbers")
        after_a_step(lambda o, p: o.param_groups[1].update(lr="a" if wrong else 0.1), f"{name}: the ranks' param_groups differ")
        p = P(3)
        o = make([p], lr=0.1, comm=comm)
        p.grad = torch.ones(3)
        o.step()
        saved = o.state_dict()
        for key, bad, reason in (("step", "x", "step: 'x': allowed are whole numbers"), ("step", float("nan"), "step: nan"), ("step", 1.5, "step: 1.5"),
                                 ("exp_avg", torch.ones(4), r"exp_avg: shape \[4\]: allowed is a tensor of the parameter's shape, \[3\]"), ("exp_avg", 3, "exp_avg: int 3")):
            if key in saved["state"][0]:
                other = copy.deepcopy(saved)
                other["state"][0][key] = bad
                with pytest.raises(fcc.ArgumentError, match=f"{name}: load_state_dict: parameter 0: {reason}"):
                    make([P(3)], comm=comm).load_state_dict(other)
        for bad in 3, {}, {"state": {}}:
            with pytest.raises(fcc.ArgumentError, match=f"{name}: load_state_dict: .*: allowed is what an optimizer's state_dict"):
                o.load_state_dict(bad)
        if "step" in saved["state"][0]:
            saved["state"][0]["step"] = torch.tensor(1.0 + comm.rank)
            o.load_state_dict(saved)
            with pytest.raises(fcc.ArgumentError, match=f"{name}: the ranks' param_groups differ: .* steps on all ranks"):
                o.step()
        for take in copy.deepcopy, pickle.dumps:
            with pytest.raises(TypeError, match="its state_dict.. can"):
                take(o)


def test_hostile(run_there):
    run_there(2, hostile_rank)


def short_rank(comm):
    """A rank without the memory for its state tells the others, and can go on with less."""
    torch.set_default_device(comm.device)
    few = torch.nn.Parameter(torch.ones(4))
    o, big = fcc.optim.SGD([few], lr=1, momentum=0.9, comm=comm), torch.nn.Parameter(torch.ones(1 << 10))
    o.add_param_group({"params": [big]})
    empty = fcc.CompiledProgram.empty
    fcc.CompiledProgram.empty = lambda run, name: _full() if comm.rank == 1 and name == "m" and run.elements("g") > 100 else empty(run, name)
    few.grad, big.grad = torch.ones(4), torch.ones(1 << 10)
    with pytest.raises(fcc.OutOfMemoryError, match="rank 1: .*no more"):
        o.step()
    fcc.CompiledProgram.empty = empty
    o.step()
    assert few.tolist() == [0.0] * 4 and (big == 0).all()


def _full():
    raise fcc.OutOfMemoryError("rank 1: no more", code=12)


def test_a_rank_without_memory(run_there):
    run_there(2, short_rank)


def differ_rank(comm):
    """Ranks that have other parameters would make one model of slices of several."""
    torch.set_default_device(comm.device)
    torch.manual_seed(comm.rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3))
    torch.nn.init.ones_(model[0].weight)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = fcc.optim.AdamW(model.parameters(), comm=comm)
    model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(fcc.ArgumentError, match=r"AdamW: params: number 1, \[3, 3\]: the ranks have other values.*manual_seed"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
    for p in model.parameters():
        p.data.copy_(fcc.broadcast(p.data, comm))
    optimizer.step()
    spread = fcc.nn.RowParallelLinear(4, 2, comm=comm)
    spread(torch.ones(1, 2)).sum().backward()
    with pytest.raises(fcc.ArgumentError, match="SGD: params: number 0, .*spread over the ranks"):
        fcc.optim.SGD(spread.parameters(), comm=comm).step()
    more = [torch.nn.Parameter(torch.ones(1)) for _ in range(1 + comm.rank)]
    with pytest.raises(fcc.ArgumentError, match="SGD: params: rank 1 has 2, rank 0 has 1 "):
        fcc.optim.SGD(more, comm=comm).step()


def test_parameters_that_differ(run_there):
    run_there(2, differ_rank)


def some_rank(comm):
    """A gradient that only one rank has counts as 0 on the other."""
    torch.set_default_device(comm.device)
    p = torch.nn.Parameter(torch.ones(5))
    optimizer = fcc.optim.SGD([p], lr=1, comm=comm)
    if comm.rank == 1:
        p.grad = torch.ones(5)
    optimizer.step()
    return p.tolist()


def test_some_ranks_have_gradients(run_there):
    assert run_there(2, some_rank) == [[0.5] * 5] * 2


def wrong_rank(comm):
    torch.set_default_device(comm.device)
    for make, reason in ((lambda: fcc.optim.Adam([], comm=comm), "empty parameter list"), (lambda: fcc.optim.Adam(parameters(), lr=-1, comm=comm), "lr: -1: allowed"),
                         (lambda: fcc.optim.Adam(parameters(), betas=(1, 0), comm=comm), "betas"), (lambda: fcc.optim.SGD(parameters(), nesterov=True, comm=comm), "nesterov"),
                         (lambda: fcc.optim.AdamW(parameters(), reduction="max", comm=comm), "reduction: 'max'"),
                         (lambda: fcc.optim.LAMB(parameters(), eps=-1, comm=comm), "LAMB: eps: -1: allowed: 0 and more"),
                         (lambda: fcc.optim.LAMB(parameters(), betas=0.9, comm=comm), "LAMB: betas: 0.9: allowed: two numbers"),
                         (lambda: fcc.optim.Adam(parameters(), betas="ab", comm=comm), "Adam: betas: 'ab': allowed: two numbers"),
                         (lambda: fcc.optim.Adam(parameters(), lr="a", comm=comm), "Adam: lr: 'a': allowed: 0 and more"),
                         (lambda: fcc.optim.AdamW(parameters(), weight_decay=None, comm=comm), "AdamW: weight_decay: None: allowed: 0 and more"),
                         (lambda: fcc.optim.SGD(parameters(), lr=float("nan"), comm=comm), "SGD: lr: nan: allowed: 0 and more"),
                         (lambda: fcc.optim.SGD(parameters(), momentum=-1, comm=comm), "SGD: momentum: -1: allowed: 0 and more"),
                         (lambda: fcc.optim.SGD(parameters(), dampening="a", comm=comm), "SGD: dampening: 'a': allowed: a number")):
        with pytest.raises(ValueError, match=reason):
            make()
    with pytest.raises(fcc.ArgumentError, match="use_with: model: Linear: allowed is a torch.nn.parallel.DistributedDataParallel .*Leave the call out"):
        fcc.optim.use_with(torch.nn.Linear(2, 2))
    p = torch.nn.Parameter(torch.ones(4))
    optimizer = fcc.optim.Adam([p], lr=0.1 * (comm.rank + 1), comm=comm)
    p.grad = torch.ones(4)
    with pytest.raises(fcc.ArgumentError, match="Adam: the ranks' param_groups differ"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    double = torch.nn.Parameter(torch.ones(4, dtype=torch.float64 if comm.rank == 1 else torch.float32))
    with pytest.raises(fcc.ArgumentError, match="rank 1: .*params: torch.float64"):
        fcc.optim.Adam([double], comm=comm).step()
    assert p.tolist() == [1.0] * 4
    optimizer.step()
    assert torch.allclose(p, torch.full((4,), 0.9))


def test_wrong(run_there):
    run_there(2, wrong_rank)
