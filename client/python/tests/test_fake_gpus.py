# SPDX-License-Identifier: MIT
import fcc
import fake_gpus
import pytest
import torch
from ranks import Ranks
import test_programs, test_optim


@pytest.fixture(scope="module")
def fakes():
    with fake_gpus.FakeGpus() as daemon:
        yield daemon


def hello_rank(comm):
    assert comm.member.on_gpu
    print(comm, comm.member.launches())
    x = torch.ones(8) * (comm.rank + 1)
    y = fcc.all_reduce(x, comm)
    comm.synchronize()
    assert y.tolist() == [3.0] * 8
    test_programs.adam_rank(comm, "torch")
    test_programs.adam_rank(comm, "daemon")
    test_programs.tensors_rank(comm, "torch")
    test_programs.tensors_rank(comm, "daemon")
    test_programs.epilogue_rank(comm)


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_hello(fakes):
    Ranks(fakes, "cuda", 2, hello_rank).results()
