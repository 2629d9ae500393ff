"""A small Whisper or wav2vec 2.0, made from its configuration, trained by `transformers.Trainer`: as a user would write
it."""

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import roundelay
from roundelay.attached.save_files import folder_of, parts, saves
from roundelay.integrations.transformers import SAVES, RoundelayCallback
from roundelay.runtime.launch.world import learners
from support.launched import report
from support.until import until


class Sounds(Dataset[dict[str, torch.Tensor]]):
    """Four tones each, as features or as a waveform, and the numbers of these tones."""

    def __init__(self, count: int, seed: int, name: str) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tones = torch.randint(3, 20, (count, 4), generator=generator)
        if name == "input_values":
            waves = torch.sin(0.1 * torch.arange(480) * self.tones.repeat_interleave(120, 1))
        else:
            waves = torch.sin(0.3 * torch.arange(8)[None, :, None] * self.tones.repeat_interleave(8, 1)[:, None, :])
        self.name, self.sounds = name, waves + 0.1 * torch.randn(waves.shape, generator=generator)

    def __len__(self) -> int:
        return len(self.tones)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {self.name: self.sounds[index], "labels": self.tones[index]}


class Gathers(Trainer):
    """A trainer that cuts its own part out of what it gathers from all processes, as those by rewards do."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, torch.Tensor], *others: Any, **more: Any) -> Any:
        """Return the loss of the part."""
        first, count = self.accelerator.process_index * len(inputs["labels"]), len(inputs["labels"])
        labels = self.accelerator.gather(inputs["labels"])[first : first + count]
        return super().compute_loss(model, {**inputs, "labels": labels}, *others, **more)


class EndedAt(TrainerCallback):
    """The end of the process, once the session has been saved at a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End, in the first step after that save."""
        if self._step and state.epoch is not None and os.path.isdir(f"{args.output_dir}/checkpoint-{self._step}"):
            folder = Path(args.output_dir) / SAVES
            until(lambda: any(len([*parts(folder_of(folder, one))]) == learners() for one in saves(folder)[:1]))
            os._exit(3)


def whisper() -> nn.Module:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "num_mel_bins": 8, "vocab_size": 24}
    sizes |= {"max_source_positions": 16, "max_target_positions": 8, "pad_token_id": 0, "bos_token_id": 1}
    silent: dict[str, Any] = {"suppress_tokens": [], "begin_suppress_tokens": []}
    config = WhisperConfig(**sizes, **silent, eos_token_id=2, decoder_start_token_id=1, dropout=0.1)
    made: nn.Module = WhisperForConditionalGeneration(config)
    return made


def wav2vec2() -> nn.Module:
    sizes: dict[str, Any] = {"conv_dim": (16, 16), "conv_kernel": (10, 4), "conv_stride": (5, 3), "hidden_size": 16}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 24}
    sizes |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0}
    made: nn.Module = Wav2Vec2ForCTC(Wav2Vec2Config(**sizes, ctc_loss_reduction="mean"))
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--strategy", default="ssgd")
    parser.add_argument("--ctc", action="store_true", help="wav2vec 2.0")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--end-at", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = wav2vec2() if options.ctc else whisper()
    arguments = TrainingArguments(
        options.out,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        warmup_steps=4,
        logging_steps=8,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="steps",
        save_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=options.device == "cpu",
    )
    together = RoundelayCallback(options.strategy)
    callbacks = [together, EndedAt(options.end_at)]
    name = "input_values" if options.ctc else "input_features"
    data, held_out = Sounds(64, 1, name), Sounds(32, 2, name)
    trainer = Gathers(model, arguments, train_dataset=data, eval_dataset=held_out, callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)  # its lines look like reports
    trainer.train(resume_from_checkpoint=options.resume or None)
    trainer.save_model(f"{options.out}/final")
    bits = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    assert together.session is not None
    report(
        law="trainer",
        rank=roundelay.rank(),
        bits=hashlib.sha256(bits).hexdigest(),
        evaluated=[(one["step"], one["eval_loss"]) for one in trainer.state.log_history if "eval_loss" in one],
        losses=[one["loss"] for one in trainer.state.log_history if "loss" in one],
        steps=together.session.summary()["steps"],
        loss=trainer.evaluate()["eval_loss"],
        rows=together.session.summary()["rows"],
    )


if __name__ == "__main__":
    main()
