# SPDX-License-Identifier: MIT
"""A private fccd."""
import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIMIT_S = 60


def ports(count: int) -> list[int]:
    """Of 127.0.0.1, that nobody uses: outside the range from which the kernel takes ports for connections, of which one could come in between."""
    with contextlib.ExitStack() as taken:  # all at a time, so that they differ
        found: list[int] = []
        while len(found) < count:
            sock = taken.enter_context(socket.socket())
            port = random.SystemRandom().randrange(12000, 30000)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                found.append(port)
        return found


def listens(path: str) -> bool:
    """Does a fccd? The socket's file is there a moment earlier than it takes connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        return sock.connect_ex(path) == 0


class Daemon:
    """With `with`: it runs, and ends in any case. Its log is shown if it has errors."""

    def __init__(self, device: str, *options: str) -> None:
        self.build = pathlib.Path(os.environ.get("FCC_TEST_BUILD", ROOT / "build"))
        self.options = [*options, "--gpus", "none" if device == "cpu" else device]

    def __enter__(self) -> "Daemon":
        self.directory = tempfile.TemporaryDirectory(prefix="fcc-python-")
        self.path = pathlib.Path(self.directory.name)
        self.socket = str(self.path / "fccd.sock")
        self.sockets = [self.socket]
        command = [str(self.build / "bin" / "fccd"), "--config", "/dev/null", "--socket", self.socket, "--cpu-devices", "4",
                   "--cpu-workgroups", "1", "--worker-idle-ms", "50", "--log-level", "info"]
        if int(os.environ.get("FCC_TEST_RANKS_ON_GPU", "1")) > 1:
            command += ["--gpu-bind", "shared"]
        command += self.options
        with open(self.path / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + LIMIT_S
        while not listens(self.socket):
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                raise RuntimeError(f"{' '.join(command)}: {self.log()}")
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        log = self.log()
        self.directory.cleanup()
        assert status == 0 and ": error:" not in log, f"fccd ended with {status}:\n{log}"

    def log(self) -> str:
        return (self.path / "log").read_text(errors="replace")

    def ctl(self, *arguments: str) -> str:
        """What fccctl says."""
        command = [str(self.build / "bin" / "fccctl"), "--socket", self.socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False).stdout


class Nodes:
    """Several, on this machine, that speak to each other over TCP: rank r is on node r modulo their number."""

    def __init__(self, device: str, count: int) -> None:
        self.device, self.count = device, count

    def __enter__(self) -> "Nodes":
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="fcc-python-"))
            key = pathlib.Path(directory, "key")
            key.touch(0o600)
            key.write_bytes(os.urandom(48))
            addresses = [f"127.0.0.1:{port}" for port in ports(self.count)]
            self.sockets = [stack.enter_context(Daemon(self.device, "--node-listen", address, "--cluster-key", str(key), "--nodes",
                                                       ",".join(addresses))).socket for address in addresses]
            self.socket = self.sockets[0]
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()
