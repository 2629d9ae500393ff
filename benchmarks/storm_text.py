"""The character model of benchmarks/storm_torchft.py, trained through `roundelay.attach`; for `roundelay storm`:

roundelay storm --script benchmarks/storm_text.py --out DIR --every 15 -- --text FILE --strategy adpsgd --steps 2400
"""

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

import numpy as np
import torch
from two_hosts_tasks import TextTask

import roundelay


def main() -> None:
    """Take steps until as many minibatches are drawn, whoever draws them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, metavar="FILE", help="the text, perhaps compressed by gzip")
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--steps", type=int, default=2400, help="minibatches of all learners together")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = TextTask(Path(options.text))
    network = task.network()
    optimizer = task.optimizer(network.parameters())
    with roundelay.attach(network, optimizer, options.strategy) as session:
        for number in session.sampler(options.steps, batch_size=1):
            inputs, targets = task.minibatch(np.random.default_rng([17, *number]))
            optimizer.zero_grad()
            torch.autograd.backward(task.loss(network(*inputs), targets))
            optimizer.step()


if __name__ == "__main__":
    main()
