# SPDX-License-Identifier: MIT
"""fcc.optim against torch.optim: the same gradients, reduced before, give the same parameters; state goes from one to the other."""
import copy
import io

import fcc
import pytest
import torch

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
