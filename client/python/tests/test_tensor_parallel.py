# SPDX-License-Identifier: MIT
"""Layers that are spread over the ranks between layers that all have alike: they train as one process does."""
import copy
import io
import pickle
import warnings

import fcc
import pytest
import reference
import torch
from torch import nn

STEPS = 20


def whole_model(bias):
    torch.manual_seed(4)
    return nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 11, bias), nn.Linear(11, 10, bias), nn.Linear(10, 3)])


def forward(layers, x):
    before, up, down, after = layers
    hidden = torch.tanh(before(x))
    return after(hidden + down(nn.functional.gelu(up(hidden))))  # as a transformer has it


def train_rank(comm, rows, bias, optimizer):
    """Losses and parameters of 20 steps, against one process."""
    warnings.simplefilter("ignore")
    one = whole_model(bias).to(comm.device)
    spread = copy.deepcopy(one)
    spread[1] = fcc.nn.ColumnParallelLinear.from_linear(one[1], comm=comm)
    spread[2] = fcc.nn.RowParallelLinear.from_linear(one[2], comm=comm)
    assert spread[1].columns == spread[2].columns
    x, target = reference.random(5, rows, 6).to(comm.device), reference.random(6, rows, 3).to(comm.device)
    losses = []
    for layers in (one, spread):
        steps = optimizer(layers.parameters())
        losses.append([])
        for _ in range(STEPS):
            steps.zero_grad()
            loss = nn.functional.mse_loss(forward(layers, x), target)
            loss.backward()
            steps.step()
            losses[-1].append(loss.detach())
    assert losses[0][-1] < 0.9 * losses[0][0]
    reference.close(torch.stack(losses[1]), torch.stack(losses[0]).cpu())
    mine = spread[1].columns
    wanted = dict(one.named_parameters())
    for name, parameter in spread.named_parameters():
        want = wanted[name].detach().cpu()
        want = want[mine] if name.startswith("1.") else want[:, mine] if name == "2.weight" else want
        reference.close(parameter, want)
    for name, parameter in spread.named_parameters():  # what all have alike is the same to the bit
        if not name.startswith("1.") and name != "2.weight":
            everywhere = reference.to_all(parameter.detach(), comm)
            assert all(torch.equal(everywhere[0], row) for row in everywhere), name


def docstring_rank(comm):
    """The MLP of fcc.nn's docstring behind a layer that all have alike."""
    warnings.simplefilter("ignore")
    found = []
    for spread in (False, True):
        torch.manual_seed(0)
        before = nn.Linear(8, 8).to(comm.device)
        torch.manual_seed(1)
        up = fcc.nn.ColumnParallelLinear(8, 16, comm=comm) if spread else nn.Linear(8, 16, device=comm.device)
        torch.manual_seed(2)
        down = fcc.nn.RowParallelLinear(16, 4, comm=comm) if spread else nn.Linear(16, 4, device=comm.device)
        nn.init.zeros_(down.bias)
        x = reference.random(3, 2, 3, 8).to(comm.device).requires_grad_()
        y = nn.Sequential(before, up, nn.GELU(), down)(x)
        y.pow(2).sum().backward()
        mine = up.columns if spread else slice(None)
        found.append((y, x.grad, before.weight.grad, before.bias.grad, down.bias.grad, up.weight.grad, up.bias.grad, down.weight.grad))
    want = [*found[0][:5], found[0][5][mine], found[0][6][mine], found[0][7][:, mine]]
    for a, b in zip(found[1], want):
        reference.close(a, b.cpu())


def parameters_rank(comm):
    """How they are drawn, kept, loaded and copied."""
    warnings.simplefilter("ignore")
    torch.manual_seed(7)
    layer = fcc.nn.ColumnParallelLinear(6, 10, comm=comm)
    torch.manual_seed(7)
    whole = nn.Linear(6, 10, device=comm.device)
    mine = layer.columns
    assert torch.equal(layer.weight, whole.weight[mine]) and torch.equal(layer.bias, whole.bias[mine])
    assert all(fcc.is_daemon_memory(parameter, comm) for parameter in layer.parameters())
    other = fcc.nn.ColumnParallelLinear(6, 10, comm=comm)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    nn.ModuleDict({"up": other}).load_state_dict({f"up.{key}": value + 1 for key, value in whole.state_dict().items()})
    assert torch.equal(other.weight, whole.weight[mine] + 1) and torch.equal(other.bias, whole.bias[mine] + 1)
    with pytest.raises(RuntimeError, match="size mismatch"):
        other.load_state_dict(nn.Linear(6, 11).state_dict())
    narrow = fcc.nn.ColumnParallelLinear(6, 1, comm=comm)  # most ranks have nothing of it
    x = torch.ones(2, 6, device=comm.device, requires_grad=True)
    narrow(x).sum().backward()
    assert narrow(x).shape == (2, int(comm.rank == 0)) and x.grad.any()
    for wrong in (lambda: fcc.nn.ColumnParallelLinear(0, 4, comm=comm), lambda: fcc.nn.ColumnParallelLinear(4, -1, comm=comm)):
        with pytest.raises(fcc.ArgumentError, match="ColumnParallelLinear: (in|out)_features"):
            wrong()
    with pytest.raises(fcc.ArgumentError, match="float64"):
        layer(x.double())

    # copies of all modules, by copy.deepcopy(), pickle and torch.save(), work as the first ones do
    for module, inputs in ((layer, (x,)), (fcc.nn.RowParallelLinear(4 * comm.size, 3, comm=comm), (torch.ones(2, 4, device=comm.device),)),
                           (fcc.nn.ExpertParallelLinear(4, 8, bias=True, comm=comm), (torch.ones(comm.size, 4, device=comm.device),)),
                           (fcc.nn.ShardedEmbeddingBagCollection([3] * comm.size, 8, comm=comm),
                            (torch.zeros(1, comm.size, 2, dtype=torch.long, device=comm.device),))):
        kept = io.BytesIO()
        torch.save(module, kept)
        kept.seek(0)
        want = module(*inputs)
        want.pow(2).sum().backward()
        for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(kept, weights_only=False)):
            made.zero_grad()
            got = made(*inputs)
            got.pow(2).sum().backward()
            assert torch.equal(got, want)
            for parameter, first in zip(made.parameters(), module.parameters()):
                assert torch.equal(parameter.grad, first.grad) and parameter.data_ptr() != first.data_ptr()
            with torch.no_grad():  # they share nothing
                for parameter in made.parameters():
                    parameter.add_(1)
            assert torch.equal(module(*inputs), want)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("rows,bias,optimizer", [(5, True, sgd), (70, True, sgd), (5, False, adam)])
def test_trains_as_one_process(run, size, rows, bias, optimizer):
    run(size, train_rank, rows, bias, optimizer)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("function", [docstring_rank, parameters_rank])
def test_module(run, size, function):
    run(size, function)


def norm_rank(comm, rows, dtype):
    """row_parallel_norm() is the same with derivatives, by torch's functions, and without, as an epilogue: on the cpu one operator."""
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    layer = fcc.nn.RowParallelLinear(64, 96, comm=comm, dtype=dtype)
    with torch.no_grad():
        layer.bias.copy_(reference.random(2, 96))
    x = reference.random(3, 2, rows, 64, dtype=dtype)[..., layer.columns].to(comm.device)
    residual, weight = (reference.random(seed, *shape, dtype=dtype).to(comm.device) for seed, shape in ((4, (2, rows, 96)), (5, (96,))))
    with torch.no_grad():
        fused = fcc.nn.row_parallel_norm(layer, x, residual, weight, 1e-5)
    apart = fcc.nn.row_parallel_norm(layer, x, residual, weight, 1e-5)
    assert apart[0].requires_grad and not fused[0].requires_grad
    for one, other in zip(fused, apart):
        assert one.shape == other.shape == residual.shape and one.dtype == dtype
        reference.close(one, other.cpu(), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 32, 50])
def test_norm(run, rows, dtype):
    run(2, norm_rank, rows, dtype)
