# SPDX-License-Identifier: MIT
"""A private fccd."""
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIMIT_S = 60


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
        while not self.listens():
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

    def listens(self) -> bool:
        """The socket's file is there a moment earlier than it takes connections."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            return sock.connect_ex(self.socket) == 0

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
            with contextlib.ExitStack() as taken:  # all at a time, so that they differ
                socks = [taken.enter_context(socket.socket()) for _ in range(self.count)]
                for sock in socks:
                    sock.bind(("127.0.0.1", 0))
                addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in socks]
            self.sockets = [stack.enter_context(Daemon(self.device, "--node-listen", address, "--cluster-key", str(key), "--nodes",
                                                       ",".join(addresses))).socket for address in addresses]
            self.socket = self.sockets[0]
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()
