# SPDX-License-Identifier: MIT
"""The package's examples as users start them, on the GPUs and the fccd of this run: what they say that a step takes in a CUDA graph, with
fccd and with NCCL. They check their results themselves. LIMIT_S ends one that hangs."""
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys

from .collectives import FCCD, NCCL
from .machine import end_with_parent
from .ranks import PartFailed

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIMIT_S, END_S = 180, 20
TEXT = ROOT / "README.md"  # what dlrm.py reads, on any machine
DLRM = re.compile(r"a forward step in a CUDA graph takes ([0-9.]+) us, with torch.distributed \(nccl\) ([0-9.]+) us")
LLAMA = {way: re.compile(rf"bfloat16, {name} of [0-9]+ ranks: ([0-9.]+) tokens/s") for way, name in ((FCCD, "fccd"), (NCCL, "nccl"))}


def dlrm_times(said):
    """{way: us}"""
    found = DLRM.search(said)
    return dict(zip((FCCD, NCCL), map(float, found.groups()))) if found else {}


def llama_times(said):
    """Of a token, with its share of what stands between two replays."""
    found = {way: pattern.search(said) for way, pattern in LLAMA.items()}
    return {way: 1e6 / float(match.group(1)) for way, match in found.items() if match}


# program: (its arguments, modules that it needs, what finds the times)
PROGRAMS = {"dlrm": (("--graphs", "--steps", "1", "--text", str(TEXT)), (), dlrm_times),
            "llama": (("--like", "8b-16-layers"), ("transformers",), llama_times)}


def missing(program):
    """What it needs and what is not installed, or None."""
    found = [name for name in PROGRAMS[program][1] if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(found)}" if found else None


def times(program, settings, limit_s):
    """{way: us} as rank 0 prints it. PartFailed with the last of what was said, if the example fails, as where a result is wrong."""
    arguments, _, times_in = PROGRAMS[program]
    path = ROOT / "client" / "python" / "examples" / f"{program}.py"
    modules = os.pathsep.join(filter(None, (str(ROOT / "client" / "python"), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"FCCD_SOCKET": str(settings.socket), "FCC_LIBRARY": str(settings.client_path), "PYTHONPATH": modules,
                                "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(settings.ranks), str(path),
               "--device", "cuda", *arguments]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, process_group=0, preexec_fn=end_with_parent) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            said = f"not finished in {limit_s:.0f} s: {end(process)}"
    found = times_in(said)
    if process.returncode or set(found) != {FCCD, NCCL}:
        raise PartFailed(f"exit status {process.returncode}: {' '.join(said.split())[-600:]}")
    return found


def end(process):
    """Returns what it has said. torchrun ends its ranks when it is asked to."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=END_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]
