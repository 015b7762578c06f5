# SPDX-License-Identifier: MIT
"""The operators in torch's modes and transformations: inference mode, forward mode, torch.func, vmap, checkpoints, gradients of
gradients. Each time torch's own operators say what is right."""
import sys
import threading
import warnings

import fcc
import pytest
import reference
import torch
from fcc._dispatch import is_forward_mode
from fcc.triton import window
from test_nn import Called
from torch.autograd import forward_ad
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint


def pairs(comm):
    """name: (function by the ranks together, the same by torch alone, inputs). All ranks have the same inputs and results: they use
    different parts of the inputs, or multiply them by (rank + 1), and put the results together."""
    size, rank, random = comm.size, comm.rank, reference.random
    ids, ends = torch.tensor([0, 2, 1, 1, 0, 2], device=comm.device), torch.tensor([0, 3, 6], device=comm.device)
    factors = torch.arange(1.0, size + 1, device=comm.device)
    split = [1, 1] + [0] * (size - 2) if size > 1 else [2]

    def mine(tensor):
        return fcc.sum_gradients(tensor, comm)

    def everywhere(rows, most):
        padded = torch.nn.functional.pad(rows.flatten(1), (0, 0, 0, most - rows.shape[0]))
        return reference.to_all(padded, comm)

    def embedding(tables, weights):
        out = fcc.embedding_all_to_all(mine(tables) * (rank + 1), ids, ends, table_rows=[3], tables_per_rank=[1] * size, batch=2, comm=comm,
                                       sample_weights=mine(weights), batch_split=split)
        return everywhere(out.sum(1), 2)

    def torch_embedding(tables, weights):
        bags = (tables[ids] * weights.unsqueeze(1)).view(2, 3, 4).sum(1) * factors.sum()
        parts = [part.reshape(part.shape[0], 4) for part in bags.split(split)]
        return torch.stack([torch.nn.functional.pad(part, (0, 0, 0, 2 - part.shape[0])).reshape(8) for part in parts])

    def torch_rows(rows):  # what rank d gets from all: row d, times their factors
        return torch.stack([(rows[d] * factors.unsqueeze(1)).reshape(size * rows.shape[1]) for d in range(size)])

    return {
        "gemv_all_reduce": (lambda x, w: fcc.gemv_all_reduce(mine(x) * (rank + 1), mine(w), comm),
                            lambda x, w: factors.sum() * (x @ w.t()), (random(1, 2, 3), random(2, 4, 3))),
        "gemm_all_reduce": (lambda a, b: fcc.gemm_all_reduce(mine(a) * (rank + 1), mine(b), comm),
                            lambda a, b: factors.sum() * (a @ b), (random(1, 2, 3), random(2, 3, 4))),
        "gemm_reduce_scatter": (lambda a, b: everywhere(fcc.gemm_reduce_scatter(mine(a) * (rank + 1), mine(b), comm), 1),
                                lambda a, b: factors.sum() * (a @ b), (random(1, size, 3), random(2, 3, 4))),
        "gemm_all_to_all": (lambda a, b: everywhere(fcc.gemm_all_to_all(mine(a) * (rank + 1), mine(b), comm), size),
                            lambda a, b: torch_rows(a @ b), (random(3, size, 3), random(4, 3, 5))),
        "all_gather_gemm": (lambda a, b: reference.to_all(fcc.all_gather_gemm(mine(a) * (rank + 1), mine(b), comm), comm),
                            lambda a, b: (torch.cat([a * f for f in factors.tolist()]) @ b).reshape(1, size * a.shape[0] * b.shape[1]).expand(size, -1),
                            (random(9, 2, 3), random(10, 3, 4))),
        "embedding_all_to_all": (embedding, torch_embedding, (random(5, 3, 4), random(6, 6))),
        "rows_all_to_all": (lambda x: everywhere(fcc.rows_all_to_all(mine(x) * (rank + 1), [1] * size, [1] * size, comm), size),
                            torch_rows, (random(7, size, 3),)),
        "all_reduce": (lambda x: fcc.all_reduce(mine(x) * (rank + 1), comm, replicated=True), lambda x: factors.sum() * x,
                       (random(8, 2, 3),)),
    }


def cases(comm):
    warnings.simplefilter("ignore")
    for name, (ours, torchs, inputs) in pairs(comm).items():
        yield name, ours, torchs, tuple(tensor.to(comm.device) for tensor in inputs)


def close(got, want):
    got, want = _pytree.tree_leaves(got), _pytree.tree_leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert (a is None) == (b is None)
        if b is not None:
            reference.close(a, b.cpu())


# ---- inference mode ----


def inference_rank(comm):
    """What is first called under inference mode, and so makes memory for results, gives ordinary results and gradients later."""
    for name, ours, torchs, inputs in cases(comm):
        with torch.inference_mode():
            first = [ours(*inputs) for _ in range(3)]
            assert not any(y.requires_grad for y in first)
        del first
        found = []
        for function in (ours, torchs):
            given = [tensor.clone().requires_grad_() for tensor in inputs]
            y = function(*given)
            assert not y.is_inference() and y.requires_grad, name
            (y * y).sum().backward()
            found.append((y, [tensor.grad for tensor in given]))
        close(*found)
        found[0][0].detach().add_(1)  # which torch refuses for inference tensors
        with torch.inference_mode():
            close(ours(*given), found[1][0])
        with torch.no_grad():
            assert not ours(*given).requires_grad
    for inference in (True, False):  # memory for parameters
        with torch.inference_mode(inference):
            made = fcc.nn.RowParallelLinear(4 * comm.size, 3, comm=comm)(torch.ones(2, 4, device=comm.device))
        assert made.shape == (2, 3) and made.requires_grad != inference


def poisoned_rank(comm):
    """An evaluation before the first step of training: the gradients are those without it."""
    warnings.simplefilter("ignore")
    found = []
    for evaluate in (True, False):
        torch.manual_seed(0)
        body, out = torch.nn.Linear(3, 3).to(comm.device), torch.nn.Linear(4, 1).to(comm.device)
        head = fcc.nn.RowParallelLinear(3 * comm.size, 4, bias=False, comm=comm)

        def model(x):
            return body(x).pow(2).mean() + out(torch.nn.functional.silu(head(body(x)))).mean()
        x = torch.ones(1, 3, device=comm.device)
        if evaluate:
            with torch.inference_mode():
                model(x)
        model(x).backward()
        found.append([parameter.grad.cpu() for layer in (body, head, out) for parameter in layer.parameters()])
    for first, second in zip(*found):
        assert torch.equal(first, second) and first.any()


# ---- forward mode, torch.func, vmap ----


def dual_rank(comm):
    """Tensors with tangents, some in the daemon's memory, after calls with the same tensors without."""
    for _name, ours, torchs, inputs in cases(comm):
        inputs = tuple(fcc.to_daemon(tensor, comm) for tensor in inputs)
        directions = tuple(torch.randn(t.shape, generator=torch.Generator().manual_seed(20)).to(comm.device) for t in inputs)
        for which in range(1, 2 ** len(inputs)):
            for gradients in (True, False):
                found = []
                for function in (ours, torchs):
                    with forward_ad.dual_level(), torch.set_grad_enabled(gradients):
                        duals = [forward_ad.make_dual(t, d) if which >> i & 1 else t for i, (t, d) in enumerate(zip(inputs, directions))]
                        found.append(list(forward_ad.unpack_dual(function(*duals))))
                close(*found)
        with forward_ad.dual_level():
            assert forward_ad.unpack_dual(ours(*inputs)).tangent is None
    x, w = fcc.zeros(1, 3, comm=comm), fcc.zeros(2, 3, comm=comm) + 1
    w = fcc.to_daemon(w, comm)
    for _ in range(3):  # the short way of a call, which looks at nothing else
        fcc.gemv_all_reduce(x, w, comm)
    with forward_ad.dual_level():
        y = fcc.gemv_all_reduce(forward_ad.make_dual(x, torch.ones_like(x)), w, comm)
        close(list(forward_ad.unpack_dual(y)), [torch.zeros(1, 2), torch.full((1, 2), 3.0 * comm.size)])


def func_rank(comm):
    func = torch.func
    for _name, ours, torchs, inputs in cases(comm):
        which, found = tuple(range(len(inputs))), []
        for function in (ours, torchs):
            def cubes(*given, function=function):
                return function(*given).pow(3).sum()
            found.append((func.grad(cubes, which)(*inputs), func.hessian(cubes, which)(*inputs),
                          func.jacrev(func.jacrev(cubes, which), which)(*inputs), func.jacrev(func.jacfwd(cubes, which), which)(*inputs),
                          func.jacfwd(func.jacfwd(cubes, which), which)(*inputs), func.jvp(cubes, inputs, inputs),
                          func.jacrev(function, which)(*inputs), func.vjp(function, *inputs)[1](function(*inputs))))
        close(*found)


def inside_rank(comm):
    """Memory of the daemon that is made within a transformation, the first of its size there, and given out again outside."""
    warnings.simplefilter("ignore")
    func = torch.func

    def cubes(x, shape, make):
        held = make(x, shape)
        return fcc.gemv_all_reduce(held, torch.ones(2, shape[1], device=comm.device), comm).pow(3).sum()

    def written(x, shape):
        held = fcc.empty(*shape, comm=comm)
        return held.zero_().copy_(x)
    for number, make in enumerate((written, lambda x, shape: fcc.to_daemon(x, comm), lambda x, shape: x)):
        for again in range(3):
            shape = (2, 17 + number)
            x = reference.random(number, *shape).to(comm.device)

            def ours(x, shape=shape, make=make):
                return cubes(x, shape, make)

            def torchs(x):
                return 2 * (comm.size * x.sum(1)).pow(3).sum()

            def mine(x, ours=ours):
                return ours(fcc.sum_gradients(x, comm))
            close((func.grad(mine)(x), func.jvp(mine, (x,), (x,)), func.jacrev(func.jacfwd(mine))(x)),
                  (func.grad(torchs)(x), func.jvp(torchs, (x,), (x,)), func.jacrev(func.jacfwd(torchs))(x)))
            want = list(func.jvp(torchs, (x,), (x,)))
            with forward_ad.dual_level():
                close(list(forward_ad.unpack_dual(mine(forward_ad.make_dual(x, x)))), want)
            outside = fcc.empty(*shape, comm=comm)
            outside.copy_(x)
            assert torch.equal(outside, x) and not outside.requires_grad and fcc.is_daemon_memory(outside, comm)


def bags_rank(comm):
    """A module that makes tensors of its own in forward()."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    bags = fcc.nn.ShardedEmbeddingBagCollection([5] * comm.size, 4, mode="sum", comm=comm)
    ids = (torch.arange(2 * comm.size * 3, device=comm.device) % 5)
    for given in ((ids.view(1, -1, 3),), (ids, torch.arange(0, ids.shape[0], 3, device=comm.device))):
        def loss(weight, *given):
            return torch.func.functional_call(bags, {"weight": weight}, given).pow(2).sum()
        weight = bags.weight.detach()
        first = torch.func.grad(loss)(weight, *given)
        bags.zero_grad()
        loss(bags.weight, *given).backward()
        close(first, bags.weight.grad)
        several = torch.stack((weight, 2 * weight, -weight))
        close(torch.vmap(loss, (0, *[None] * len(given)))(several, *given), torch.stack([loss(w, *given) for w in several]))
        close(torch.vmap(torch.func.grad(loss), (0, *[None] * len(given)))(several, *given), torch.stack((first, 2 * first, -first)))


def compiled_rank(comm):
    """Forward mode within what torch.compile traces, of a sum whose other part has a tangent anyway; eager calls behind it."""
    func, random = torch.func, reference.random
    for name, ours, torchs, inputs in cases(comm):
        directions = tuple(random(30 + i, *t.shape).to(comm.device) for i, t in enumerate(inputs))
        which = tuple(range(len(inputs)))

        def dual(function, directions=directions):
            def run(*given):
                with forward_ad.dual_level():
                    made = [forward_ad.make_dual(t, d) for t, d in zip(given, directions)]
                    return tuple(forward_ad.unpack_dual(function(*made)))
            return run
        ways = {"jvp": lambda f, d=directions: lambda *given: func.jvp(f, given, d), "dual": dual,
                "jacfwd": lambda f, which=which: func.jacfwd(f, which), "hessian": lambda f, which=which: func.hessian(f, which)}
        for way, transformed in ways.items():
            def summed(*given, function=ours):
                return function(*given).pow(2).sum() + sum(t.sum() for t in given)

            def torch_summed(*given, function=torchs):
                return summed(*given, function=function)
            if name != "gemv_all_reduce" and way in ("jacfwd", "hessian"):  # which are made of the others
                continue
            want = transformed(torch_summed)(*inputs)
            torch._dynamo.reset()
            for backend in ("eager", "aot_eager") if name == "gemv_all_reduce" else ("eager",) if way == "dual" else ("aot_eager",):
                close(torch.compile(transformed(summed), backend=backend)(*inputs), want)
            close(transformed(summed)(*inputs), want)
        close(ours(*inputs), torchs(*inputs))


def vmap_rank(comm):
    for _name, ours, torchs, inputs in cases(comm):
        for which in range(1, 2 ** len(inputs)):
            for at in (0, -1):
                dims = tuple(at if which >> i & 1 else None for i in range(len(inputs)))
                many = tuple(torch.stack([t, 2 * t, t - 1], at) if dim is not None else t for t, dim in zip(inputs, dims))
                close(torch.vmap(ours, dims)(*many), torch.vmap(torchs, dims)(*many))
        many = tuple(torch.stack([t, 2 * t, t - 1]) for t in inputs)
        every = tuple(range(len(inputs)))
        close(*(torch.vmap(torch.func.grad(lambda *given, f=f: f(*given).pow(2).sum(), every))(*many) for f in (ours, torchs)))
        nested = tuple(torch.stack([t, t + 1]) for t in many)
        close(*(torch.vmap(torch.vmap(f))(*nested) for f in (ours, torchs)))
        for which in range(1, 2 ** len(inputs)):  # over nothing
            dims = tuple(0 if which >> i & 1 else None for i in range(len(inputs)))
            found = []
            for function in (ours, torchs):
                many = tuple((t.expand(0, *t.shape) if dim == 0 else t).clone().requires_grad_() for t, dim in zip(inputs, dims))
                y = torch.vmap(function, dims)(*many)
                y.sum().backward()
                found.append((y, [t.grad for t in many]))
            close(*found)
    rows = [2 - r % 3 for r in range(comm.size)]  # each rank's rows of all that is mapped stay together
    a, b = reference.random(1, 3, sum(rows), 4).to(comm.device), reference.random(2, 4, 5).to(comm.device)
    mine = slice(sum(rows[:comm.rank]), sum(rows[:comm.rank + 1]))
    with Called() as called:
        close(torch.vmap(lambda a: fcc.gemm_reduce_scatter(a, b, comm, rows=rows))(a), comm.size * (a @ b)[:, mine])
        close(torch.vmap(lambda a: fcc.all_gather_gemm(a, b, comm, rows=rows), 1)(a[:, mine].movedim(0, 1)), a @ b)
        c, every = torch.vmap(lambda a: torch.ops.fcc.all_gather_gemm(a, b, comm.name, rows=rows, gathered=True))(a[:, mine])
        close((c, every), (a @ b, a))
    assert called.names == ["gemm_reduce_scatter", "all_gather_gemm", "all_gather_gemm"]
    x, w = torch.ones(7, 30, 3, device=comm.device), torch.ones(4, 3, device=comm.device)
    close(torch.vmap(lambda x: fcc.gemv_all_reduce(x, w, comm))(x), 3.0 * comm.size * torch.ones(7, 30, 4))  # more rows than it takes


# ---- gradients of gradients, checkpoints ----


def second_rank(comm):
    for _name, ours, torchs, inputs in cases(comm):
        found = []
        for function in (ours, torchs):
            given = [tensor.clone().requires_grad_() for tensor in inputs]
            y = function(*given)
            slopes = torch.autograd.grad(y.sum(), given, create_graph=True)  # from a gradient that wants none itself
            loss = y.sum() + sum((slope ** 2).sum() for slope in slopes)
            found.append((slopes, torch.autograd.grad(loss, given)))
        close(*found)


def penalty_rank(comm):
    """The gradient penalty of a critic whose layers are spread over the ranks, against one process."""
    warnings.simplefilter("ignore")
    torch.manual_seed(2)
    first, second, last = torch.nn.Linear(3, 8), torch.nn.Linear(8, 4, False), torch.nn.Linear(4, 1)
    whole = torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), last).to(comm.device)
    spread = torch.nn.Sequential(fcc.nn.ColumnParallelLinear.from_linear(first, comm=comm), torch.nn.Tanh(),
                                 fcc.nn.RowParallelLinear.from_linear(second, comm=comm), torch.nn.Tanh(), last)
    found = []
    for critic in (whole, spread):
        x = reference.random(4, 5, 3).to(comm.device).requires_grad_()
        last.zero_grad()
        y = critic(x)
        slope, = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.mean() + (slope.norm(dim=1) - 1).pow(2).mean()).backward()
        found.append([x.grad, last.weight.grad.clone(), critic[0].weight.grad, critic[0].bias.grad, critic[2].weight.grad])
    want, got = found
    mine = spread[0].columns
    close(got, [*want[:2], want[2][mine], want[3][mine], want[4][:, mine]])


def checkpoint_rank(comm):
    for _name, ours, torchs, inputs in cases(comm):
        found = []
        for function in (torchs, lambda *given: checkpoint(ours, *given, use_reentrant=False),
                         lambda *given: checkpoint(ours, *given, use_reentrant=True)):
            given = [tensor.clone().requires_grad_() for tensor in inputs]
            y = function(*given)
            y.pow(2).sum().backward()
            found.append((y, [tensor.grad for tensor in given]))
        close(found[1], found[0])
        close(found[2], found[0])


# ---- what stays out ----


def next_is_right(comm):
    x, w = torch.ones(1, 3, device=comm.device), torch.ones(2, 3, device=comm.device)
    assert fcc.gemv_all_reduce(x, w, comm).tolist() == [[3.0 * comm.size] * 2]
    comm.check(wait=True)


def sizes_rank(comm):
    """vmap over one more on rank 0 than on the others: each operator, and each way that it is mapped."""
    warnings.simplefilter("ignore")
    size, first = comm.size, comm.rank == 0

    def ones(*shape):
        return torch.ones(shape, device=comm.device)
    ids, ends = torch.zeros(2, dtype=torch.int64, device=comm.device), torch.arange(3, device=comm.device)

    def bags(tables, weights):
        return fcc.embedding_all_to_all(tables, ids, ends, table_rows=[3], tables_per_rank=[1] * size, batch=2, comm=comm,
                                        sample_weights=weights)

    def gemv(x, w):
        return fcc.gemv_all_reduce(x, w, comm)

    def gemm(a, b):
        return fcc.gemm_all_to_all(a, b, comm)

    def sums(a, b):
        return fcc.gemm_all_reduce(a, b, comm)

    def scatters(a, b):
        return fcc.gemm_reduce_scatter(a, b, comm)

    def gathers(a, b):
        return fcc.all_gather_gemm(a, b, comm)
    mapped = "size of the mapped dimension"
    for more in (1, 2, 3):
        for less in (0, 1, more - 1):
            n = more if first else less
            if more == less:
                continue
            for function, dims, given, says in (
                    (gemv, (0, 0), (ones(n, 1, 3), ones(n, 2, 3)), f"torch.vmap of gemv_all_reduce: {mapped}: "),
                    (gemv, (None, 0), (ones(1, 3), ones(n, 2, 3)), "gemv_all_reduce: w: shape"),
                    (sums, (0, 0), (ones(n, 2, 3), ones(n, 3, 2)), f"torch.vmap of gemm_all_reduce: {mapped}: "),
                    (gemm, (0, 0), (ones(n, size, 3), ones(n, 3, 2)), f"torch.vmap of gemm_all_to_all: {mapped}: "),
                    (gemm, (0, None), (ones(n, size, 3), ones(3, 2)), f"torch.vmap of gemm_all_to_all: {mapped}: "),
                    (gemm, (None, 0), (ones(size, 3), ones(n, 3, 2)), "gemm_all_to_all: b: shape"),
                    (scatters, (0, 0), (ones(n, size, 3), ones(n, 3, 2)), f"torch.vmap of gemm_reduce_scatter: {mapped}: "),
                    (gathers, (0, 0), (ones(n, size, 3), ones(n, 3, 2)), f"torch.vmap of all_gather_gemm: {mapped}: "),
                    (bags, (0, None), (ones(n, 3, 4), ones(2)), f"torch.vmap of embedding_all_to_all: {mapped}: "),
                    (bags, (None, 0), (ones(3, 4), ones(n, 2)), f"torch.vmap of embedding_all_to_all: {mapped}: "),
                    (lambda x: fcc.rows_all_to_all(x, [1] * size, [1] * size, comm), (0,), (ones(n, size, 3),), "rows_all_to_all: rows: shape"),
                    (lambda x: fcc.all_reduce(x, comm), (0,), (ones(n, 3),), "all_reduce: x: elements")):
                with pytest.raises(fcc.ArgumentError) as e:
                    torch.vmap(function, dims)(*given)
                    comm.synchronize()
                text = str(e.value)
                # on a GPU it is known which operator it was, not for which function
                assert says in text or comm.device.type == "cuda" and " or " in text and ": rank 1 has " in text, (says, text)
                next_is_right(comm)
            if less:  # whole operators of 64 rows, of which rank 0 has more, and what some ranks do by one
                with pytest.raises(fcc.ArgumentError) as e:
                    torch.vmap(lambda x: gemv(x, ones(2, 3)))(ones(n, 64, 3))
                    comm.synchronize()
                assert less == 1 or "gemv_all_reduce: x: rows of all that is mapped: " in str(e.value), str(e.value)
                next_is_right(comm)


def refused_rank(comm):
    """Where memory is to be read as it is, with no derivatives: on one rank, which the others are told, or on all."""
    warnings.simplefilter("ignore")
    x, w = fcc.zeros(2, 8, comm=comm) + 1, fcc.to_daemon(torch.ones(4, 8, device=comm.device), comm)
    x, many = fcc.to_daemon(x, comm), fcc.zeros(3, 2, 8, comm=comm)
    shared, turned = fcc.zeros(3, 2, 8, symmetric=True, comm=comm), fcc.zeros(8, 4, comm=comm)

    def dual(function):
        with forward_ad.dual_level():
            return function(forward_ad.make_dual(x, x))

    def within(function):  # the result is that of the first one
        return torch.func.grad(lambda t: (function(t), t.sum())[1])(x)
    ways = ((within, "torch.func's"), (lambda f: torch.func.jvp(f, (x,), (x,)), "torch.func's"), (lambda f: torch.vmap(f)(many), "torch.vmap's"),
            (dual, "it has a tangent"))
    for prepare, name in ((lambda t: fcc.prepare_gemv_all_reduce(t, w, comm), "gemv_all_reduce: x: "),
                          (lambda t: fcc.prepare_gemv_all_reduce(x, t, comm), "gemv_all_reduce: w: "),
                          (lambda t: fcc.prepare_gemm_all_to_all(t, turned, comm), "gemm_all_to_all: a: ")):
        for way, says in ways:
            for everybody in (True, False):
                mine = everybody or comm.rank == 0
                with pytest.raises(fcc.ArgumentError) as e:
                    if mine:
                        way(prepare)
                    else:
                        prepare(x)
                text = str(e.value)
                assert name in text and says in text and "a prepared operator has no derivatives" in text, text
                assert e.value.rank == (comm.rank if mine else 0)
                next_is_right(comm)
    for make in (lambda t: window.Window(t, comm), lambda t: window.place(t, comm)):
        with pytest.raises(ValueError, match="the tensor is one of torch.vmap's or torch.func's"):
            torch.vmap(make)(shared)
    seen = []
    torch.vmap(lambda t: (seen.append(fcc.is_daemon_memory(t, comm)), t)[1])(many)
    within(lambda t: seen.append(fcc.is_daemon_memory(t, comm)))
    torch.vmap(lambda t: (seen.append(fcc.is_daemon_memory(t, comm)), t)[1])(torch.zeros(3, 2, device=comm.device))
    assert seen == [True, True, False]
    module = torch.nn.Linear(3, 3, device=comm.device)
    with pytest.raises(fcc.ArgumentError, match="to_daemon: a module: torch allows no change"):
        within(lambda t: fcc.to_daemon(module, comm))
    assert fcc.to_daemon(module, comm) is module
    next_is_right(comm)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("function", [inference_rank, poisoned_rank, dual_rank, func_rank, inside_rank, bags_rank, vmap_rank,
                                      second_rank, penalty_rank, checkpoint_rank])
def test_mode(run, size, function):
    run(size, function)


def test_compiled(run):
    run(2, compiled_rank)


@pytest.mark.parametrize("function", [sizes_rank, refused_rank])
def test_stays_out(run, function):
    run(2, function)


def test_looking_for_forward_mode_disturbs_no_other_thread():
    """There is one forward mode for all threads: one that begins it while another looks for it is not told that it is on already."""
    interval, ends, wrong = sys.getswitchinterval(), threading.Event(), []

    def look():
        while not ends.is_set():
            is_forward_mode()

    thread = threading.Thread(target=look)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(20000):
            try:
                with forward_ad.dual_level():
                    assert is_forward_mode()
            except RuntimeError as e:
                wrong.append(e)
    finally:
        ends.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not wrong and not is_forward_mode()
