"""A host in a process of its own, with learner 1 of two: says where it listens, and goes on until it is killed."""

import signal
import sys

from support.two_hosts import Host


def main(parameters: int) -> None:
    host = Host(1, [0, 1], "adpsgd", parameters)
    print(host.listener.address[1], flush=True)
    signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]))
