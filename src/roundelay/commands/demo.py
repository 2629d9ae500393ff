"""The demo: two learners, one slowed down, under a strategy that waits and under one that does not."""

from pathlib import Path

SLOWED = "1:3x"
STRATEGIES = ("ssgd", "adpsgd:random-ring")


def demo_steps(folder: Path) -> list[list[str]]:
    """Command lines of the demo, in order; all they write is in `folder`."""
    paths = [f"corpus={folder / 'data'}", f"alignment={folder / 'alignment'}"]
    runs = {strategy.split(":")[0] + "-slowed": strategy for strategy in STRATEGIES}
    folders = [str(folder / name) for name in runs]
    how = ["--learners", "2", "--straggler", SLOWED]
    return [
        ["prepare", "demo", "--data", str(folder / "data")],
        ["align", "demo", *paths],
        *(
            ["train", "demo", *paths, "--exp", str(folder / name), "--strategy", strategy, *how]
            for name, strategy in runs.items()
        ),
        ["decode", *folders],
        ["report", *folders, "--audio", "--out", str(folder / "report.html")],
    ]
