"""A program of Transformers, as its documentation has it: `python transformers_program.py plain|resumable FOLDER`.

Random tokens in workers, dropout, accumulation, a cosine schedule, evaluation, early stopping, synthetic text.
"""

import logging
import os
import sys
import warnings

import torch
import transformers
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from killed_programs import tick
from samebits._digest import of_value

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)


class Text(torch.utils.data.Dataset):
    """Synthetic text; in that of training tokens are dropped at random."""

    def __init__(self, rows, noisy):
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.cumsum(torch.randint(0, 3, (rows, 16), generator=generator), 1) % 32
        self.noisy = noisy

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        inputs = torch.where(torch.rand(row.shape) < 0.1, 0, row) if self.noisy else row
        return {"input_ids": inputs, "labels": row}


class Tick(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            tick()


def main(kind, folder):
    transformers.set_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    accumulate = int(os.environ.get("ACCUMULATE", "2"))
    arguments = TrainingArguments(
        f"{folder}/trainer", num_train_epochs=5, per_device_train_batch_size=8, gradient_accumulation_steps=accumulate,
        max_steps=int(os.environ.get("MAX_STEPS", "-1")), learning_rate=3e-3, warmup_steps=6, lr_scheduler_type="cosine",
        eval_strategy="steps", eval_steps=8, save_strategy="steps", save_steps=8, load_best_model_at_end=True, seed=1,
        use_cpu=True, report_to=[], dataloader_num_workers=int(os.environ.get("WORKERS", "2")), disable_tqdm=True,
        logging_steps=5, save_total_limit=3, ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,
    )  # fmt: skip
    callbacks = [Tick(), EarlyStoppingCallback(3, 0.001)]
    data = {
        "train_dataset": Text(150, noisy=True),
        "eval_dataset": Text(40, noisy=False),
        "callbacks": callbacks,
    }
    if kind == "resumable":
        from samebits.integrations.transformers import Trainer

        trainer = Trainer(model, arguments, **data, run_options={"save": 3})
        result = trainer.train()
    else:
        trainer = transformers.Trainer(model, arguments, **data)
        folders = os.path.isdir(arguments.output_dir)
        result = trainer.train(
            resume_from_checkpoint=get_last_checkpoint(arguments.output_dir) if folders else None
        )
    log = [{name: value for name, value in one.items() if "runtime" not in name and "second" not in name}
           for one in trainer.state.log_history]  # fmt: skip
    values = of_value(
        [trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.lr_scheduler.state_dict()]
    )
    if trainer.is_world_process_zero():
        print("FINAL", values, trainer.state.global_step, result.training_loss, log, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
