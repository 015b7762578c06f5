# SPDX-License-Identifier: MIT
"""When a daemon that a benchmark has started takes connections."""
import socket
import time


def await_listening(daemon, path, limit_s=10):
    """daemon: a subprocess.Popen. The socket's file is there a moment before anybody listens, so a connection is tried. RuntimeError: it has ended, or does
    not listen within the limit."""
    until = time.monotonic() + limit_s
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as tried:
            try:
                return tried.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                pass
        if daemon.poll() is not None:
            raise RuntimeError(f"{' '.join(map(str, daemon.args))}: it has ended with {daemon.returncode}")
        if time.monotonic() > until:
            raise RuntimeError(f"{' '.join(map(str, daemon.args))}: it does not listen within {limit_s} s")
        time.sleep(0.01)
