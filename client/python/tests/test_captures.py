# SPDX-License-Identifier: MIT
"""Captures into CUDA graphs of streams that are of another GPU than the rank's: the call would run at once, on this rank alone. On the cpu
torch is made to say that such a capture goes on."""
from types import SimpleNamespace

import fcc
import pytest
import torch
import torch.distributed as dist
from fcc import memory
from fcc._communicator import refusals
from fcc.distributed import _device

SAID = "a stream of cuda:0 is being captured into a graph: allowed are those of cuda:1"


@pytest.fixture
def capture(monkeypatch):
    """A stream of GPU 0, the current one, is being captured."""
    for at, name, value in ((torch._C, "_cuda_getDevice", 0), (torch.cuda, "current_device", 0), (torch.cuda, "is_current_stream_capturing", True),
                            (torch._C, "_cuda_getCurrentRawStream", 7)):
        monkeypatch.setattr(at, name, lambda *_, value=value: value, raising=False)


def rank_on(index):
    return SimpleNamespace(rank=1, device=torch.device("cuda", index), _member=SimpleNamespace(on_gpu=True, handle=None, launches=lambda: True))


def test_stream(capture):
    assert memory.stream_of(rank_on(0)) == 7
    with pytest.raises(fcc.CaptureError, match=f"rank 1: {SAID}") as e:
        memory.stream_of(rank_on(1))
    assert "torch.cuda.set_device" in e.value.remedy


def test_refusal(capture, monkeypatch):
    """Nor does the rank launch a refusal: the others, which capture, launch nothing."""
    launched = []
    monkeypatch.setattr(refusals, "library", lambda: SimpleNamespace(refuse_enqueue=lambda *_: launched.append(1)))
    monkeypatch.setattr(refusals, "may_be_launched", lambda op: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    for index, count in ((1, 0), (0, 1)):
        error = fcc.ArgumentError("x: no")
        assert refusals.refuse(rank_on(index), "all_reduce", error) is error
        assert len(launched) == count


def test_group(capture):
    """No communicator is made, and no operator called."""
    group = _device.Device("group", "cuda", pytest.fail)
    with pytest.raises(dist.DistBackendError, match=f"all_reduce: {SAID}"):
        group.submit("all_reduce", pytest.fail, [SimpleNamespace(device=torch.device("cuda", 1))], (), False)
    group.close()


def elsewhere_rank(comm):
    size, other = comm.size, (comm.device.index + 1) % torch.cuda.device_count()
    x, w, graph = torch.ones(4, device=comm.device), torch.ones(8, 4, device=comm.device), torch.cuda.CUDAGraph()
    here, weight = fcc.to_daemon(x[None], comm), fcc.to_daemon(w, comm)
    step = fcc.prepare_gemv_all_reduce(here, weight, comm)
    calls = (lambda: fcc.all_reduce(x, comm), lambda: fcc.all_reduce_many([x, x], comm), lambda: fcc.gemv_all_reduce(x[None], w, comm), step)
    for _ in range(3):  # from the second on gemv_all_reduce is like an earlier call
        assert [call()[0].flatten()[0].item() for call in calls] == [size, size, 4 * size, 4 * size]
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(other)):
        for call in calls:
            with pytest.raises(fcc.CaptureError, match=f"a stream of cuda:{other} is being captured"):
                call()
    comm.synchronize()
    assert [call()[0].flatten()[0].item() for call in calls] == [size, size, 4 * size, 4 * size]
    comm.synchronize()


def test_elsewhere(run, device):
    if device != "cuda" or torch.cuda.device_count() < 2:
        pytest.skip("needs 2 NVIDIA GPUs")
    run(2, elsewhere_rank)
