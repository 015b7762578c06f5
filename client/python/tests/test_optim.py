# SPDX-License-Identifier: MIT
"""fcc.optim against torch.optim: the same gradients, reduced before, give the same parameters; state goes from one to the other."""
import copy
import io
import pickle

import fcc
import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

SHAPES = [(17, 5), (3,), (1,), (64, 33), (0, 4), (250,)]
WAYS = [("Adam", {}), ("Adam", {"decoupled_weight_decay": True, "weight_decay": 0.1}), ("Adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}), ("AdamW", {"lr": 1e-2, "betas": (0.8, 0.95)}),
        ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True})]


def parameters(dtype=torch.float32, shapes=SHAPES):
    torch.manual_seed(5)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]


def gradient(p, i, rank, step):
    return torch.randn(p.shape, generator=torch.Generator("cpu").manual_seed(1000 * step + 10 * i + rank), device="cpu").to(p.device)


def step_both(comm, ours, theirs, optimizers, t, skip=()):
    for i, (p, q) in enumerate(zip(ours, theirs)):
        if i in skip:
            p.grad = q.grad = None
            continue
        p.grad = gradient(p, i, comm.rank, t).to(p.dtype)
        q.grad = (sum(gradient(p, i, r, t).to(p.dtype).float() for r in range(comm.size)) / comm.size).to(q.dtype)
    for optimizer in optimizers:
        optimizer.step()


def same(ours, theirs, tolerance=2e-6):
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p.detach().float(), q.detach().float(), atol=tolerance, rtol=tolerance, equal_nan=True)


def steps_rank(comm, name, options):
    torch.set_default_device(comm.device)
    ours, theirs = parameters(), parameters()
    mine, torchs = getattr(fcc.optim, name)(ours, **options, comm=comm), getattr(torch.optim, name)(theirs, **options)
    for t in range(1, 6):
        step_both(comm, ours, theirs, (mine, torchs), t)
    same(ours, theirs)
    found, want = mine.state_dict(), torchs.state_dict()
    assert found["param_groups"][0]["params"] == want["param_groups"][0]["params"]
    for i, state in want["state"].items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.numel():
                torch.testing.assert_close(found["state"][i][key].float().cpu(), value.float().cpu(), atol=1e-5, rtol=1e-5)  # "step" may be on either
    # each loads the other's, and goes on
    other, again = getattr(torch.optim, name)(theirs, **options), getattr(fcc.optim, name)(ours, **options, comm=comm)
    other.load_state_dict(copy.deepcopy(found))
    again.load_state_dict(copy.deepcopy(want))
    for t in range(6, 9):
        step_both(comm, ours, theirs, (again, other), t)
    same(ours, theirs)
    return [p.tolist() for p in ours]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name,options", WAYS)
def test_steps(run_there, size, name, options):
    results = run_there(size, steps_rank, name, options)
    assert all(other == results[0] for other in results)


class Lamb64:
    """LAMB in float64, of gradients that are reduced."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0, bias_correction=True, maximize=False):
        self.params, self.master, self.t = params, [p.detach().double() for p in params], [0] * len(params)
        self.m, self.v = [torch.zeros_like(x) for x in self.master], [torch.zeros_like(x) for x in self.master]
        self.lr, self.betas, self.eps, self.decay, self.corrects, self.sign = lr, betas, eps, weight_decay, bias_correction, -1 if maximize else 1

    def step(self):
        b1, b2 = self.betas
        for i, p in enumerate(self.params):
            if p.grad is None:
                continue
            self.t[i] += 1
            g, x = self.sign * p.grad.double(), self.master[i]
            self.m[i], self.v[i] = b1 * self.m[i] + (1 - b1) * g, b2 * self.v[i] + (1 - b2) * g * g
            c1, c2 = (1 - b1**self.t[i], 1 - b2**self.t[i]) if self.corrects else (1, 1)
            u = self.m[i] / c1 / ((self.v[i] / c2).sqrt() + self.eps) + self.decay * x
            wide, long = x.norm(), u.norm()
            x -= self.lr * torch.where(wide > 0, torch.where(long > 0, wide / long, torch.ones(())), torch.ones(())) * u
            p.data.copy_(x)


def lamb_rank(comm, options):
    torch.set_default_device(comm.device)
    ours, theirs = parameters(), parameters()
    for p in ours[2], theirs[2]:
        p.data.zero_()  # a norm of 0
    mine, want = fcc.optim.LAMB(ours, **options, comm=comm), Lamb64(theirs, **options)
    for t in range(1, 5):
        step_both(comm, ours, theirs, (mine, want), t, skip=(1,) if t == 2 else ())
    same(ours, theirs)
    saved = mine.state_dict()
    assert set(saved["state"][0]) == {"step", "exp_avg", "exp_avg_sq"} and saved["state"][1]["step"] == 3
    for i in range(len(ours)):
        torch.testing.assert_close(saved["state"][i]["exp_avg"].double(), want.m[i], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(saved["state"][i]["exp_avg_sq"].double(), want.v[i], atol=1e-6, rtol=1e-5)
    # through a file, into a new one; and Adam's state, of torch, is taken
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    again = fcc.optim.LAMB(ours, **options, comm=comm)
    again.load_state_dict(torch.load(file))
    adam = torch.optim.Adam(theirs)
    adam.load_state_dict({"state": copy.deepcopy(saved["state"]), "param_groups": adam.state_dict()["param_groups"]})
    other = fcc.optim.LAMB([torch.nn.Parameter(p.detach().clone()) for p in ours], comm=comm)
    other.load_state_dict({"state": adam.state_dict()["state"], "param_groups": other.state_dict()["param_groups"]})
    assert torch.equal(other.state_dict()["state"][3]["exp_avg"], saved["state"][3]["exp_avg"])
    step_both(comm, ours, theirs, (again, want), 5)
    ours.append(torch.nn.Parameter(torch.full((9, 9), 2.0)))  # added
    theirs.append(torch.nn.Parameter(torch.full((9, 9), 2.0)))
    again.add_param_group({"params": [ours[-1]]})
    want.params, want.master = theirs, [*want.master, theirs[-1].detach().double()]
    want.m, want.v, want.t = [*want.m, torch.zeros(9, 9).double()], [*want.v, torch.zeros(9, 9).double()], [*want.t, 0]
    ours[3].data = ours[3].data.clone()  # moved
    step_both(comm, ours, theirs, (again, want), 6)
    same(ours, theirs)
    for k, bad in ((3, [float("nan")]), (0, [float("inf")]), (3, [float("nan"), float("-inf")])):  # what one tensor's gradient has, the others do not see
        for i, (p, q) in enumerate(zip(ours, theirs)):
            p.grad = torch.ones_like(p)
            q.grad = torch.ones_like(q)
            if i == k:
                p.grad.view(-1)[:len(bad)] = q.grad.view(-1)[:len(bad)] = torch.tensor(bad)
        again.step()
        want.step()
        same(ours, theirs)
        assert ours[k].isnan().any() and not any(p.isnan().any() for i, p in enumerate(ours) if i not in (0, 3))
    return [p.tolist() for i, p in enumerate(ours) if i not in (0, 3)]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"lr": 0.1, "weight_decay": 0.2, "betas": (0.8, 0.95), "maximize": True}, {"lr": 0.02, "bias_correction": False, "eps": 1e-3}])
def test_lamb(run_there, size, options):
    results = run_there(size, lamb_rank, options)
    assert all(other == results[0] for other in results)


def lamb_many_rank(comm):
    """More parameters than a table has tensors."""
    torch.set_default_device(comm.device)
    ours, theirs = parameters(shapes=[(i % 4,) for i in range(1300)]), parameters(shapes=[(i % 4,) for i in range(1300)])
    mine, want = fcc.optim.LAMB(ours, lr=0.1, comm=comm), Lamb64(theirs, lr=0.1)
    for t in range(1, 3):
        step_both(comm, ours, theirs, (mine, want), t)
    same(ours, theirs)
    assert len(mine.state_dict()["state"]) == 1300


def test_lamb_of_many(run_there):
    run_there(2, lamb_many_rank)


def mixed_rank(comm, dtype, name):
    """16 bits: as torch's with a master copy in float32 whose gradients are the sums, rounded."""
    torch.set_default_device(comm.device)
    ours = parameters(dtype)
    theirs = [torch.nn.Parameter(p.detach().float()) for p in parameters(dtype)]
    mine, torchs = getattr(fcc.optim, name)(ours, lr=1e-2, comm=comm), getattr(torch.optim, name, Lamb64)(theirs, lr=1e-2)
    for t in range(1, 5):
        for i, (p, q) in enumerate(zip(ours, theirs)):
            p.grad = gradient(p, i, comm.rank, t).to(dtype)
            q.grad = sum(gradient(p, i, r, t).to(dtype).float() for r in range(comm.size)).to(dtype).float() / comm.size
        mine.step()
        torchs.step()
    same(ours, [q.detach().to(dtype) for q in theirs], 1e-2)
    state = mine.state_dict()["state"]
    assert all(state[i]["master"].dtype == torch.float32 for i in state)
    same([state[i]["master"] for i in state], theirs, 1e-5)
    with torch.no_grad():
        ours[0].fill_(3)  # a parameter that is changed in place is the new master
    ours[0].grad = torch.zeros_like(ours[0])
    mine.step()
    assert (ours[0].float() - 3).abs().max() < 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Adam", "LAMB", "SGD"])
def test_mixed(run_there, dtype, name):
    run_there(2, mixed_rank, dtype, name)


def changes_rank(comm):
    """Parameters that are skipped, added, moved; groups with numbers of their own; NaN and infinities; closures; schedulers."""
    torch.set_default_device(comm.device)
    ours, theirs = parameters(), parameters()
    groups = [lambda p: {"params": p[:3]}, lambda p: {"params": p[3:5], "lr": 1e-2, "weight_decay": 0.5}]
    mine = fcc.optim.Adam([g(ours) for g in groups], comm=comm, grads_in_place=True)
    torchs = torch.optim.Adam([g(theirs) for g in groups])
    both = mine, torchs
    step_both(comm, ours, theirs, both, 1, skip=(5,))
    step_both(comm, ours, theirs, both, 2, skip=(1, 3, 5))  # the others have two steps behind them
    step_both(comm, ours, theirs, both, 3, skip=(5,))
    for optimizer, p in zip(both, (ours, theirs)):
        optimizer.add_param_group({"params": [p[5]], "lr": 0.1})
    step_both(comm, ours, theirs, both, 4)
    same(ours, theirs)
    ours[3].data = ours[3].data.clone()  # another address
    with torch.no_grad():
        for p in ours[0], theirs[0]:
            p.mul_(2)
    for s in [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in both]:
        s.step()
    step_both(comm, ours, theirs, both, 5)
    same(ours, theirs)
    for p in ours, theirs:
        p[0].grad[0, 0], p[0].grad[1, 1], p[3].grad[2, 2] = float("nan"), float("inf"), float("-inf")
    assert mine.step(lambda: 7) == 7
    torchs.step()
    same(ours, theirs)
    mine.zero_grad(set_to_none=False)
    address = ours[0].grad.data_ptr()
    (ours[0] * 2).sum().backward()
    assert ours[0].grad.data_ptr() == address and torch.equal(ours[0].grad, torch.full(SHAPES[0], 2.0))
    mine.zero_grad()
    assert all(p.grad is None for p in ours)
    mine.step()  # nothing has a gradient: nothing happens
    same(ours, theirs)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_changes(run_there, size):
    run_there(size, changes_rank)


def groups_rank(comm):
    """Groups that == takes for the same, or cannot compare: as many parameters, of one shape and of others, whose numbers change later."""
    torch.set_default_device(comm.device)
    make = lambda: [torch.nn.Parameter(torch.ones(shape)) for shape in ((1,), (1,), (4, 2), (4, 2), (3,))]  # noqa: E731
    ours, theirs = make(), make()
    both = fcc.optim.SGD([{"params": [p]} for p in ours], lr=0.1, comm=comm), torch.optim.SGD([{"params": [p]} for p in theirs], lr=0.1)
    for t in range(1, 4):
        step_both(comm, ours, theirs, both, t)
        for optimizer in both:
            optimizer.param_groups[t]["lr"] = 0.1 * t
            optimizer.param_groups[t]["weight_decay"] = 0.5
    same(ours, theirs)


def own_memory_rank(comm):
    """Parameters and gradients are given each other's memory, or their own in another order."""
    torch.set_default_device(comm.device)
    ours, theirs = parameters(shapes=[(5, 5), (5, 5), (3,)]), parameters(shapes=[(5, 5), (5, 5), (3,)])
    mine, torchs = fcc.optim.AdamW(ours, lr=0.1, comm=comm, grads_in_place=True), torch.optim.AdamW(theirs, lr=0.1)
    step_both(comm, ours, theirs, (mine, torchs), 1)
    for a, b, _ in (ours, theirs):
        a.data, b.data = b.data.t(), a.data
    step_both(comm, ours, theirs, (mine, torchs), 2)
    same(ours, theirs)
    for a, b, _ in (ours, theirs):
        a.data = a.data.t()
    step_both(comm, ours, theirs, (mine, torchs), 3)
    same(ours, theirs)
    for a, b, _ in (ours, theirs):
        a.grad, b.grad = b.grad, a.grad.t()
    mine.step()
    torchs.step()
    same(ours, theirs)


def test_own_memory(run_there):
    run_there(2, own_memory_rank)


def no_gradient_rank(comm):
    """zero_grad(set_to_none=False) makes no gradients: what had none is skipped, as torch skips it."""
    torch.set_default_device(comm.device)
    ours, theirs = parameters(), parameters()
    mine, torchs = fcc.optim.AdamW(ours, lr=0.1, comm=comm, grads_in_place=True), torch.optim.AdamW(theirs, lr=0.1)
    step_both(comm, ours, theirs, (mine, torchs), 1)
    for t in (2, 3):
        step_both(comm, ours, theirs, (mine, torchs), t, skip=(1, 3))
        for optimizer in (mine, torchs):
            optimizer.zero_grad(set_to_none=False)
        assert [p.grad is None for p in ours] == [p.grad is None for p in theirs]
        mine.step()
        torchs.step()
        same(ours, theirs)


def test_no_gradient(run_there):
    run_there(2, no_gradient_rank)


def test_groups_that_are_alike(run_there):
    run_there(2, groups_rank)


def ways_rank(comm):
    """Options that make another program, changed between steps, as torch takes them."""
    torch.set_default_device(comm.device)
    ours, theirs = parameters(), parameters()
    both = fcc.optim.SGD(ours, lr=0.1, comm=comm), torch.optim.SGD(theirs, lr=0.1)
    for t, changes in enumerate(({}, {"momentum": 0.9}, {}, {"nesterov": True}, {"momentum": 0.5}, {"nesterov": False, "momentum": 0}), 1):
        for optimizer in both:
            optimizer.param_groups[0].update(changes)
        step_both(comm, ours, theirs, both, t)
        same(ours, theirs)
    for optimizer, p in zip(both, (ours, theirs)):  # other groups, with other numbers, and a parameter less
        first = optimizer.param_groups[0]
        optimizer.param_groups = [{**first, "params": p[:2]}, {**first, "params": p[2:5], "lr": 0.01}]
    step_both(comm, ours, theirs, both, 7)
    for optimizer in both:
        optimizer.param_groups = [{**group, "lr": 0.5} for group in optimizer.param_groups]
    step_both(comm, ours, theirs, both, 8)
    same(ours, theirs)
    mine = fcc.optim.Adam(ours, lr=0.1, amsgrad=True, comm=comm)
    for t in range(1, 4):
        mine.param_groups[0]["amsgrad"] = t != 2
        step_both(comm, ours, ours, (mine,), t)
        assert ("max_exp_avg_sq" in mine.state_dict()["state"][0]) == (t != 2)


def test_options_that_change(run_there):
    run_there(2, ways_rank)


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


def ddp_member(device="cpu"):
    torch.manual_seed(0)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3))  # noqa: E731
    ours, theirs = make(), make()
    theirs.load_state_dict(ours.state_dict())
    with fcc.init(device=device) as comm:
        assert device == "cpu" or comm.device.index == torch.cuda.current_device()
        ours, theirs = (torch.nn.parallel.DistributedDataParallel(m) for m in (ours, theirs))
        fcc.optim.use_with(ours)
        mine, torchs = fcc.optim.AdamW(ours.parameters(), 1e-2, comm=comm), torch.optim.AdamW(theirs.parameters(), 1e-2)
        for t in range(5):
            x = torch.randn(8, 20, generator=torch.Generator("cpu").manual_seed(10 * t + dist.get_rank()), device="cpu").to(device)
            for model, optimizer in (ours, mine), (theirs, torchs):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        same(ours.parameters(), theirs.parameters(), 1e-5)


def test_ddp_with_gloo(daemon, on_cpu, monkeypatch):
    from ranks import Group
    Group(daemon, 2, joined_member, backend="gloo").results()


def test_ddp_with_fcc(group, device):
    group(2, joined_member, device)


def joined_member(device="cpu"):
    """The communicator's id comes by the group."""
    identity = [fcc.unique_id() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(identity)
    init_of, fcc.init = fcc.init, lambda **options: init_of(rank=dist.get_rank(), size=dist.get_world_size(), id=identity[0], **options)
    ddp_member(device)


def compiled_rank(comm):
    """In what torch.compile has compiled, as outside."""
    torch.set_default_device(comm.device)
    p = torch.nn.Parameter(torch.ones(3))
    o = fcc.optim.SGD([p], lr=1, comm=comm)

    @torch.compile(backend="eager")
    def train():
        o.zero_grad()
        (p * 2).sum().backward()
        o.step()
        return p.detach() + 1
    for t in range(1, 4):
        assert train().tolist() == [2.0 - 2 * t] * 3


@pytest.mark.filterwarnings("ignore")
def test_compiled(run_there):
    run_there(2, compiled_rank)


def saved_rank(comm):
    """Autograd refuses what it has saved of parameters before a step, as with torch.optim; and the master stays what it is."""
    torch.set_default_device(comm.device)
    for dtype in torch.float32, torch.bfloat16:
        p = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        o = fcc.optim.SGD([p], lr=1e-3, comm=comm)
        for t in range(4):  # too little for bfloat16, one by one
            p.grad = torch.ones(3, dtype=dtype)
            o.step()
        torch.testing.assert_close(o.state_dict()["state"][0]["master"] if dtype == torch.bfloat16 else p.detach(), torch.full((3,), 1 - 4e-3))
        loss = (p * p).sum()
        o.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_saved(run_there):
    run_there(2, saved_rank)


def scaled_rank(comm):
    """torch.amp.GradScaler: gradients stay scaled, and an infinity of one rank lets all leave the step out."""
    torch.set_default_device(comm.device)
    p = torch.nn.Parameter(torch.ones(5))
    optimizer = fcc.optim.SGD([p], lr=1, comm=comm)
    scaler = torch.amp.GradScaler(comm.device.type, init_scale=4.0, growth_interval=100)
    for factor, want in ((1.0, 0.0), (float("inf") if comm.rank == 0 else 1.0, 0.0), (0.5, -0.5)):
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update(4.0)
        assert p.tolist() == [want] * 5
    return p.tolist()


def test_scaled(run_there):
    run_there(2, scaled_rank)


def earlier_rank(comm):
    """The error of an earlier call on a stream, which only one rank has not raised yet, keeps all from the step."""
    torch.set_default_device(comm.device)
    p = torch.nn.Parameter(torch.ones(5))
    optimizer = fcc.optim.SGD([p], lr=1, comm=comm)
    p.grad = torch.ones(5)
    if comm.rank == 1:  # as if it had not
        optimizer._earlier = lambda: fcc.ArgumentError("all_reduce: x: it was wrong").of_earlier()
    with pytest.raises(fcc.ArgumentError, match="it was wrong" if comm.rank == 1 else "SGD: another rank has the error of an earlier call"):
        optimizer.step()
    if comm.rank == 1:
        optimizer._earlier = lambda: None
    assert p.tolist() == [1.0] * 5
    optimizer.step()
    assert p.tolist() == [0.0] * 5


def test_earlier_errors(run_there):
    run_there(2, earlier_rank)


def captured_rank(comm):
    """A step on a stream that is being captured says so, and waits for nobody."""
    p = torch.nn.Parameter(torch.ones(5))
    optimizer = fcc.optim.SGD([p], lr=1, comm=comm)
    torch.cuda.is_current_stream_capturing = lambda: True
    with pytest.raises(fcc.CaptureError, match=f"rank {comm.rank}: SGD: the stream is being captured into a graph: not allowed"):
        optimizer.step()


def test_captured(fakes):
    Ranks(fakes, "cuda", 2, captured_rank).results()
