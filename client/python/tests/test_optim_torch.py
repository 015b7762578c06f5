# SPDX-License-Identifier: MIT
"""fcc.optim beside other parts of torch: DistributedDataParallel, torch.compile, checkpoints, GradScaler, CUDA graphs."""
import fcc
import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from test_optim import parameters, same


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
