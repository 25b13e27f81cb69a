"""A small language model with Transformers' Trainer: tokens dropped in workers, accumulation, warm-up, evaluation.

python examples/integrations/train_transformers_plain.py                    # after a kill it begins anew
samebits verify examples/integrations/train_transformers_plain.py           # prove that it ends with the same bits
"""

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments


class Text(torch.utils.data.Dataset):
    """Made-up text of 32 tokens; in that of training a tenth of the tokens is dropped at random."""

    def __init__(self, rows, train):
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.cumsum(torch.randint(0, 3, (rows, 24), generator=generator), 1) % 32
        self.train = train

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        inputs = torch.where(torch.rand(row.shape) < 0.1, 0, row) if self.train else row
        return {"input_ids": inputs, "labels": row}


def main():
    transformers.set_seed(1)
    sizes = {"vocab_size": 32, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        "runs/transformers",
        num_train_epochs=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        eval_strategy="epoch",
        save_strategy="no",
        dataloader_num_workers=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Text(400, train=True), eval_dataset=Text(80, train=False)
    )
    trainer.train()
    losses = [one["eval_loss"] for one in trainer.state.log_history if "eval_loss" in one]
    print(f"{trainer.state.global_step} steps, loss {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
