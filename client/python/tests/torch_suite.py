#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tests of torch.distributed that PyTorch's wheel carries (torch.testing._internal.distributed.distributed_test), on the backend fcc.

    FCC_TEST_BUILD=build PYTHONPATH=client/python python client/python/tests/torch_suite.py [--size N] [--as-gloo] [NAME...]

Starts a private fccd, runs the tests (or those whose names contain a NAME) on the cpu, and says which failed and why others were skipped.
--as-gloo: "gloo" is fcc, so that tests run which PyTorch has for gloo alone. A rank is forked from a process that has imported torch.
"""
import argparse
import collections
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
import unittest

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--as-gloo", action="store_true")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    directory = tempfile.TemporaryDirectory(prefix="fcc-torch-")
    os.environ.update(BACKEND="gloo" if asked.as_gloo else "fcc", WORLD_SIZE=str(asked.size), TEMP_DIR=f"{directory.name}/ranks",
                      INIT_METHOD="env://", OMP_NUM_THREADS="1", FCCD_JOB="torch-suite",
                      PYTHONPATH=os.pathsep.join([str(pathlib.Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]))
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")
os.environ.setdefault("BACKEND", "fcc")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

import fcc.distributed  # noqa: E402, F401

common_distributed.DistTestCases.backend_feature["ddp"].add("fcc")
common_distributed.DistTestCases.skip_collective["sendrecv anysource"].add("fcc")
if os.environ["BACKEND"] == "gloo":
    common_distributed.DistTestCases.skip_collective["sendrecv anysource"].add("gloo")
    dist.Backend._plugins["GLOO"] = dist.Backend._plugins["FCC"]

from torch.testing._internal.distributed import distributed_test  # noqa: E402


def fresh_directory(init_method=None):
    """The ranks' directory has the same name for all tests: their parent, from which they have their environment, has been started once."""
    shutil.rmtree(os.environ["TEMP_DIR"], ignore_errors=True)
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(os.environ["TEMP_DIR"], name))


# torch's profiler has events of the operations that pass through C++, to a backend.
for supported in (distributed_test.PROFILING_SUPPORTED_BACKENDS, distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
    supported.clear()
distributed_test.initialize_temp_directories = fresh_directory
distributed_test.cleanup_temp_dir = lambda: None


class TestFcc(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self):
        self._start_processes(torch.multiprocessing.get_context("forkserver").Process)


class Result(unittest.TextTestResult):
    """Counts, with the reasons of skips."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.passed = 0

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test):
        self.passed += 1
        super().addSuccess(test)

    def summary(self):
        failed = [str(test).split()[0] for test, _ in (*self.failures, *self.errors)]
        reasons = collections.Counter(re.sub(r"\s+", " ", reason) for _, reason in self.skipped)
        lines = [f"{self.testsRun} tests: {self.passed} passed, {len(failed)} failed, {len(self.skipped)} skipped",
                 *(f"  failed: {name}" for name in failed), *(f"  skipped: {count}: {reason}" for reason, count in reasons.most_common())]
        return "\n".join(lines)


def main():
    from daemon import Daemon
    suite = unittest.TestSuite()
    for test in unittest.defaultTestLoader.loadTestsFromTestCase(TestFcc):
        if not asked.names or any(name in test._testMethodName for name in asked.names):
            suite.addTest(test)
    with Daemon("cpu") as daemon:
        os.environ["FCCD_SOCKET"] = daemon.socket
        torch.multiprocessing.get_context("forkserver").set_forkserver_preload(["torch_suite"])
        result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    print(result.summary())
    return not result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main())
