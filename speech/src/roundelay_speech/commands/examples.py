"""Examples in the help of each command of speech: they are parsed by a test, so that none is out of date."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "prepare": (
        "roundelay prepare demo",
        "roundelay prepare an4 --download",
        "roundelay prepare an4 --download --shards 4",
        "roundelay prepare kaldi --source s5/data --lexicon words.dict --split train=tr --split dev=cv",
        "roundelay prepare recordings --unlabelled --source talks --data data/talks",
    ),
    "inspect": (
        "roundelay inspect data/mine",
        "roundelay inspect s5/data --split train=tr --split dev=cv --lexicon words.dict",
        "roundelay inspect data/mine --alignment exp/mine/alignment --format json",
    ),
    "features": ("roundelay features data/an4 --bins 80", "roundelay features data/an4 --speed 0.9 1.1"),
    "export": (
        "roundelay export kaldi data/an4 --out kaldi/an4",
        "roundelay export onnx exp/an4/dnn --out exported/dnn",
        "roundelay export kaldi models/an4 --out kaldi/an4-model",
        "roundelay export sherpa exp/an4/ctc --out exported/ctc",
    ),
    "align": ("roundelay align an4", "roundelay align kaldi corpus=data/mine align.tied_states=1500"),
    "realign": ("roundelay realign exp/an4/dnn --out exp/an4/realigned",),
    "adapt": (
        "roundelay adapt an4",
        "roundelay adapt an4 adapt.passes=1 decode.order=1",
        "roundelay adapt an4 --corpus data/mine --out exp/mine/adaptation",
    ),
    "import-alignment": (
        "roundelay import-alignment kaldi --ali exp/tri3_ali --corpus data/mine --out exp/mine/alignment",
        "roundelay import-alignment textgrid --grids aligned --corpus data/mine --out exp/mine/alignment",
    ),
    "export-alignment": ("roundelay export-alignment textgrid exp/an4/alignment --corpus data/an4 --out grids",),
    "train": (
        "roundelay train demo --exp exp/demo/one",
        "roundelay train demo --exp exp/demo/four --strategy adpsgd:random-ring --learners 4",
        "roundelay train demo --exp exp/demo/auto --strategy auto --learners 4",
        "roundelay train an4 --exp exp/an4/bmuf --strategy bmuf,period=20 --learners 4 schedule.max_epochs=8",
    ),
    "decode": (
        "roundelay decode exp/demo/four",
        "roundelay decode exp/demo/four --set decode.beam=13 decode.nbest=10 --out exp/demo/wider",
        "roundelay decode exp/demo/four --set decode.order=1 decode.rescore=trigram.arpa.gz --out exp/demo/rescored",
        "roundelay decode exp/demo/four --data talks --out exp/demo/talks",
        "roundelay decode exp/demo/four --scores ctc.scp --set decode.graph=ctc --out exp/demo/ctc",
    ),
    "pack": (
        "roundelay pack exp/demo/four --out models/demo",
        "roundelay pack exp/an4/dnn exp/an4/blstm:0.5 --out models/an4 --decoded exp/an4/together",
        "roundelay pack models/an4 --words names.txt --out models/an4-names",
        "roundelay pack models/an4 --set decode.text=commands.txt decode.order=3 --out models/commands",
    ),
    "finetune": (
        "roundelay finetune models/an4 --data recordings/mine --out models/mine",
        "roundelay finetune models/an4 --data recordings/mine --words names.txt --out models/mine",
    ),
    "evaluate": (
        "roundelay evaluate models/an4 --data data/mine --out results",
        "roundelay evaluate models/an4 --data s5/data/test --source s5 --per-speaker",
        "roundelay evaluate kaldi --folds 5 model.width=256 schedule.max_epochs=6",
    ),
    "transcribe": (
        "roundelay transcribe models/an4 talk.mp3",
        "roundelay transcribe models/an4 talks interview.m4a --format srt --out subtitles",
        "roundelay transcribe models/an4 list.txt --format ctm --out words --speaker folder --ref ref.trn",
        'roundelay transcribe an4 - --format json --nbest 5 --favour "rubout, October"',
        "roundelay transcribe models/an4 talk.wav --stream",
    ),
    "serve": ("roundelay serve models/an4", "roundelay serve models/an4 --port 9000 --max-minutes 10"),
    "score": (
        "roundelay score exp/demo/four --interval --per-speaker",
        "roundelay score exp/demo/four --by gender",
        "roundelay score --ref ref.trn --hyp hyp.trn --ignore-case --table",
        "roundelay score --stm ref.stm --ctm hyp.ctm --glm words.glm",
    ),
    "compare": (
        "roundelay compare demo --strategies ssgd adpsgd:random-ring --learners 1,2,4 --seeds 3",
        "roundelay compare an4 --strategies bmuf,period=10 --runtime sim --no-decode schedule.max_epochs=4",
        "roundelay compare an4 --strategies asgd bmuf strategy.period=5,20 --tune schedule.learning_rate=0.01,0.02",
    ),
    "demo": ("roundelay demo --folder demo",),
}
