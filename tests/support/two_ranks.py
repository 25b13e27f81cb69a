"""Runs a program in two processes, as torchrun does, in one process group, so that a kill ends both."""

import os
import signal
import socket
import subprocess
import sys


def main(command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]
    signal.signal(signal.SIGTERM, lambda number, _: [rank.send_signal(number) for rank in ranks])
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
