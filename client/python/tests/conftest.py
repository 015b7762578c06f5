# SPDX-License-Identifier: MIT
"""FCC_TEST_DEVICE=cuda runs the same tests on GPUs; FCC_TEST_BUILD says where `make` built."""
import os

import pytest
import torch
from daemon import ROOT, Daemon
from fake_gpus import FakeGpus

os.environ.setdefault("FCC_LIBRARY", str(os.path.join(os.environ.get("FCC_TEST_BUILD", ROOT / "build"), "lib", "libfccclient.so.0")))
for key in ("FCCD_SOCKET", "FCC_RANK", "FCC_SIZE", "FCC_HEAP_BYTES"):
    os.environ.pop(key, None)
os.environ["FCCD_JOB"] = "python-tests"

from ranks import Group, Ranks  # noqa: E402


@pytest.fixture(scope="session")
def device():
    return os.environ.get("FCC_TEST_DEVICE", "cpu")


@pytest.fixture(scope="session")
def daemon(device):
    with Daemon(device) as running:
        yield running


@pytest.fixture
def start(daemon, device):
    """start(size, function, *arguments, **options of fcc.init): the Ranks."""
    def begin(size, function, *arguments, **options):
        return Ranks(daemon, device, size, function, *arguments, **options)
    return begin


@pytest.fixture
def run(start):
    """The same, and the ranks' results."""
    def begin(size, function, *arguments, **options):
        return start(size, function, *arguments, **options).results()
    return begin


@pytest.fixture
def run_by_worker(device):
    """As run, with ranks whose operators the worker launches, also on GPUs: there they share one."""
    if device != "cpu" and torch.cuda.device_count() > 1:
        pytest.skip("each rank would have a GPU, and launch its operators itself")
    with Daemon(device, "--gpu-bind", "own") as daemon:
        yield lambda size, function, *arguments, **options: Ranks(daemon, device, size, function, *arguments, **options).results()


@pytest.fixture(scope="session")
def fakes(device):
    """A daemon on GPUs that are none, and so are its ranks' (fake_gpus.py)."""
    if device != "cpu":
        pytest.skip("there are GPUs")
    with FakeGpus() as running:
        yield running


@pytest.fixture(scope="session")
def bound_fakes(device):
    """The same, with a compiler, so that ranks can bind programs."""
    if device != "cpu":
        pytest.skip("there are GPUs")
    with FakeGpus(compiles=True) as running:
        yield running


@pytest.fixture(params=["device", "fakes"])
def run_there(request, device):
    """As run, on the device, and on fake GPUs, which compute steps of programs and collectives, and no products."""
    daemon = request.getfixturevalue("fakes" if request.param == "fakes" else "daemon")
    kind = "cuda" if request.param == "fakes" else device
    return lambda size, function, *arguments, **options: Ranks(daemon, kind, size, function, *arguments, **options).results()


@pytest.fixture
def group(daemon, device):
    """group(size, function, *arguments): the results of ranks that torch.distributed has joined by the backend fcc. On GPUs their tensors are
    there, if they do not say otherwise."""
    def begin(size, function, *arguments, **options):
        return Group(daemon, size, function, *arguments, device=device, **options).results()
    return begin


@pytest.fixture
def on_cpu(device):
    """For tests of what there is on the cpu only."""
    if device != "cpu":
        pytest.skip("of the cpu")
