# SPDX-License-Identifier: MIT
"""Under torchrun, and the README's lines as they stand there."""
import os
import re
import subprocess
import sys

from daemon import ROOT

LIMIT_S = 300


def torchrun(daemon, path, device, count, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count), str(path), *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "FCCD_JOB"}
    environment |= {"FCCD_SOCKET": daemon.socket, "OMP_NUM_THREADS": "1", "FCC_TEST_DEVICE": device}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=path.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_torchrun(daemon, device, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import fcc, os, torch\n"
                       "with fcc.init(device=os.environ['FCC_TEST_DEVICE']) as comm:\n"
                       "    said = fcc.environment()\n"
                       "    total = fcc.all_reduce(torch.tensor([comm.rank + 1.0], device=comm.device))\n"
                       "    print(f'{said.launcher} {said.rank} of {said.size}: {total.item()}\\n', end='', flush=True)\n")
    assert sorted(torchrun(daemon, program, device, 2).splitlines()) == ["torchrun 0 of 2: 3.0", "torchrun 1 of 2: 3.0"]


def test_readme(daemon, tmp_path):
    section = (ROOT / "README.md").read_text().split("## From PyTorch")[1].split("\n## ")[0]
    program = tmp_path / "gemv.py"
    program.write_text(re.search(r"```python\n(.*?)```", section, re.S).group(1))
    said = torchrun(daemon, program, "cpu", 2)
    assert said.count("True") == 4 and "False" not in said, said  # two processes print, so lines may mix
