# SPDX-License-Identifier: MIT
"""The machine: its GPUs, the multi-process service (MPS), and a private fccd. Nothing here changes a GPU's settings."""
import ctypes
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# Multicast memory stays unused: a program that gets it wrong can put the host's GPUs out of service.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
GPU_FIELDS = ("index", "name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem")
DEFAULT_MPS_PIPE = "/tmp/nvidia-mps"
LIMIT_S = 20  # for any of the programs here to do what it is asked
PR_SET_PDEATHSIG = 1


class Failure(Exception):
    pass


def forbid_multicast():
    """Set the variables for this process and its children; Failure if someone wants it otherwise."""
    for key, value in NO_MULTICAST.items():
        if os.environ.setdefault(key, value) != value:
            raise Failure(f"{key} is \"{os.environ[key]}\"; allowed is {value} or nothing: this program runs without NVLink "
                          "multicast")


def gpus():
    """What nvidia-smi says of each GPU; none if it is not there or finds none."""
    if not shutil.which("nvidia-smi"):
        return []
    done = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        return []
    return [dict(zip(GPU_FIELDS, map(str.strip, line.split(",")))) for line in done.stdout.splitlines() if line.strip()]


def clocks_text(found):
    """'SM 1980 of 1980 MHz, memory 3201 of 3201 MHz' for each different one"""
    texts = [f"SM {g['clocks.sm']} of {g['clocks.max.sm']} MHz, memory {g['clocks.mem']} of {g['clocks.max.mem']} MHz"
             for g in found]
    return "; ".join(dict.fromkeys(texts))


def what_is_missing():
    """Why nothing can be measured here, or None."""
    if not gpus():
        return "no GPU"
    if importlib.util.find_spec("torch") is None:
        return f"no torch for {sys.executable}"
    return None


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


# ---- MPS ----

def mps_control_pid(pipe):
    """Of the control daemon that serves this directory, or None."""
    try:
        pid = int((pathlib.Path(pipe) / "nvidia-cuda-mps-control.pid").read_text(encoding="ascii"))
        process = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    ended = process.rpartition(")")[2].split()[0] == "Z"
    return pid if "(nvidia-cuda-mps" in process and not ended else None


def mps_state():
    """Of an MPS that is there without us."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_MPS_PIPE)
    return f"yes, it ran already ({pipe})" if mps_control_pid(pipe) else "no"


class Mps:
    """A control daemon of our own, for this process and those that it starts. With `with`: it ends in any case."""

    def __init__(self):
        self.directory = None

    def __enter__(self):
        if not shutil.which("nvidia-cuda-mps-control"):
            raise Failure("--mps: there is no nvidia-cuda-mps-control")
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="compare-mps-"))
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(self.directory / "pipe")
        os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(self.directory / "log")
        for name in ("pipe", "log"):
            (self.directory / name).mkdir()
        try:
            with open(self.directory / "start", "wb") as out:  # not a pipe: what stays would hold it open
                done = subprocess.run(["nvidia-cuda-mps-control", "-d"], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                      timeout=LIMIT_S, check=False)
            if done.returncode:
                said = (self.directory / "start").read_text(encoding="utf-8", errors="replace").strip()
                raise Failure(f"--mps: nvidia-cuda-mps-control -d: exit status {done.returncode}: {said}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        pid = mps_control_pid(pipe)
        if pid:
            try:
                subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", capture_output=True, timeout=LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                pass
            until = time.monotonic() + LIMIT_S
            while mps_control_pid(pipe) == pid and time.monotonic() < until:
                time.sleep(0.05)
            if mps_control_pid(pipe) == pid:
                os.kill(pid, signal.SIGTERM)
        for key in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            os.environ.pop(key, None)
        shutil.rmtree(self.directory, ignore_errors=True)


# ---- fccd ----

class Daemon:
    """A private fccd in a directory of its own; settings from the environment (FCCD_KEY) count. With `with`: it ends in any
    case."""

    def __init__(self, build, memory_mb):
        self.binary, self.fccctl = build / "bin" / "fccd", build / "bin" / "fccctl"
        self.client_path = build / "lib" / "libfccclient.so"
        self.memory_mb = memory_mb
        self.process = self.directory = None

    def missing(self):
        """What is not built, or None."""
        for path in (self.binary, self.fccctl, self.client_path):
            if not path.exists():
                return f"{path}: not there; `make` builds it"
        return None

    def version(self):
        return subprocess.run([str(self.binary), "--version"], capture_output=True, text=True, timeout=LIMIT_S,
                              check=False).stdout.strip()

    @property
    def socket(self):
        return self.directory / "fccd.sock"

    def __enter__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="compare-fccd-"))
        env = dict(os.environ)
        env.setdefault("FCCD_LOG_LEVEL", "warning")
        env.setdefault("FCCD_MEMORY_PER_USER_MB", str(self.memory_mb))
        env.setdefault("FCCD_WORKER_IDLE_MS", "600000")  # its GPU contexts stay between shapes
        with open(self.directory / "log", "wb") as log:
            self.process = subprocess.Popen([str(self.binary), "--config", "/dev/null", "--socket", str(self.socket)], env=env,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
                                            preexec_fn=end_with_parent)
        try:
            self.wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_until_up(self):
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise Failure(f"{self.binary} ended with status {self.process.returncode}:\n{self.log()}")
            done = subprocess.run([str(self.fccctl), "--socket", str(self.socket), "status"], capture_output=True,
                                  timeout=LIMIT_S, check=False)
            if done.returncode == 0:
                return
            time.sleep(0.05)
        raise Failure(f"{self.binary} took no connections in {LIMIT_S} s:\n{self.log()}")

    def log(self):
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace").strip()

    def devices(self):
        """What fccctl says of the node's devices."""
        done = subprocess.run([str(self.fccctl), "--socket", str(self.socket), "devices"], capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        return (done.stdout + done.stderr).strip()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
