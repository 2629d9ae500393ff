"""An image classifier in plain PyTorch, trained by several learners. Lines for Roundelay are marked with `# <-`.

    roundelay launch -n 2 examples/classifier.py --strategy adpsgd
    torchrun --nproc-per-node 2 examples/classifier.py --strategy bsp          # with --device cuda: on GPUs
    roundelay launch -n 2 examples/classifier.py --save out/digits             # the same command again goes on
    roundelay launch -n 2 examples/classifier.py --record out/record && roundelay replay out/record
    roundelay scaling examples/classifier.py --strategies adpsgd --rates 0.02,0.04 --wider 0 --seeds 1 -- \
        --strategy {strategy} --lr {rate} --seed {seed}                        # how much sooner two are than one

The images are digits drawn here: three by five dots, shifted about, under noise.
"""

import argparse
import signal
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

import roundelay  # <-

DIGITS = (
    "111101101101111",
    "010110010010111",
    "111001111100111",
    "111001111001111",
    "101101111001001",
    "111100111001111",
    "111100111101111",
    "111001001001001",
    "111101111101111",
    "111101111001111",
)


def digits(count: int, seed: int) -> TensorDataset:
    """`count` images (1, 8, 8) and which digit each shows."""
    generator = torch.Generator().manual_seed(seed)
    glyphs = torch.tensor([[float(dot) for dot in row] for row in DIGITS]).view(10, 5, 3)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randn(count, 1, 8, 8, generator=generator) * 0.3
    down, right = torch.randint(4, (count,), generator=generator), torch.randint(4, (count,), generator=generator)
    for image, label, y, x in zip(images, labels.tolist(), down.tolist(), right.tolist(), strict=True):
        image[0, y : y + 5, x : x + 3] += glyphs[label]
    return TensorDataset(images, labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


@torch.no_grad()
def evaluate(model: nn.Module, data: DataLoader[tuple[Tensor, ...]], device: torch.device) -> tuple[float, float]:
    """(mean cross-entropy, accuracy)."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for batch in data:
        images, labels = (some.to(device) for some in batch)
        scores = model(images)
        loss += float(nn.functional.cross_entropy(scores, labels, reduction="sum"))
        right += int((scores.argmax(1) == labels).sum())
        count += len(labels)
    model.train()
    return loss / count, right / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--device", default="cpu", help="cuda: learners share the GPUs out")
    parser.add_argument("--save", metavar="DIR", help="save there after each epoch, and go on from there")
    parser.add_argument("--record", metavar="DIR", help="record the session there, for `roundelay replay DIR`")
    options = parser.parse_args()

    train, test = digits(options.examples, seed=1), DataLoader(digits(1000, seed=2), batch_size=500)
    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            parser.error("--device cuda: torch sees no GPU here")
        device = torch.device("cuda", roundelay.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.manual_seed(options.seed)  # else every learner takes rank 0's weights, and says so
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    folders = {"resume": options.save, "record": options.record}
    session = roundelay.attach(model, optimizer, options.strategy, seed=options.seed, **folders)  # <-
    if session.resumed is not None:
        scheduler.load_state_dict(session.resumed["scheduler"])
    # An epoch is shared out. All examples as often as there are learners: each takes as many steps as one alone would.
    shared = ConcatDataset([train] * session.learners)  # <-
    sampler = session.sampler(shared, batch_size=32, seed=options.seed)  # <- not DistributedSampler
    batches = DataLoader(shared, batch_sampler=sampler)
    with session:
        for epoch in range(sampler.epoch, options.epochs):
            for images, labels in batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()  # the session's, from attach to close
                if session.stopping:  # SIGTERM, as before a preemption: all leave the loop, save, and meet in the end
                    break
            else:
                scheduler.step()
            if options.save is not None:
                session.save(options.save, {"scheduler": scheduler.state_dict()})
            with session.consensus():  # <-
                loss_there, accuracy = evaluate(model, test, device)
            session.report(loss_there)  # <- for `roundelay scaling`
            print(f"learner {session.rank} epoch {epoch} loss {loss_there:.4f} accuracy {accuracy:.3f}", flush=True)
            if session.stopping:
                break
    if session.stopping:
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
