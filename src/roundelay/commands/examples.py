"""Examples in the help of each command: they are parsed by a test, so that none is out of date."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "help": ("roundelay help train",),
    "completion": ("roundelay completion bash > ~/.local/share/bash-completion/completions/roundelay",),
}

FIRST_STEPS = """\
First steps:
  roundelay demo                      make a small corpus, train on it, report
  roundelay doctor                    see whether this host can do that

Your recordings, in Kaldi data directories train, dev and test, and a dictionary:
  roundelay inspect DIR               oddities, and their remedies
  roundelay prepare kaldi --source DIR --lexicon FILE
  roundelay align kaldi               a label for every frame
  roundelay train kaldi --exp EXP     or --strategy adpsgd --learners 4
  roundelay decode EXP                word error rates of dev and test
  roundelay report EXP --audio        a page to look at and to listen to
  roundelay pack EXP --out MODEL      one folder with all that recognition needs
  roundelay transcribe MODEL FILE     words of any recording

Your own PyTorch script (docs/attach.md):
  roundelay launch -n 4 SCRIPT        start it on four learners

Names to choose from: roundelay list. All commands: roundelay help. One: roundelay help COMMAND.
"""
