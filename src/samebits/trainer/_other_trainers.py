"""Calls of `Trainer` in the way of Lightning, transformers or Keras: the error has the lines to type."""

from __future__ import annotations

from samebits._inspect.user_call import WrongCall

_PARTS = ("model", "loss_fn", "optimizer")
_EPOCHS = ("epochs", "max_epochs", "num_train_epochs")
_PLACES = {
    **dict.fromkeys(_EPOCHS, "the number of epochs goes to fit(epochs=...)"),
    **dict.fromkeys(
        ("max_steps", "limit_train_batches"), "the length of an epoch goes to fit(steps_per_epoch=...)"
    ),
    "args": "there are no TrainingArguments; epochs and folder go to fit(epochs=..., run_dir=...)",
    **dict.fromkeys(("train_dataset", "train_dataloaders"), "the batches go to fit(loader)"),
    **dict.fromkeys(
        ("eval_dataset", "val_dataloaders", "validation_data"), "it goes to fit(validation_data=loader)"
    ),
    "data_collator": "it is samebits.data.DataLoader(collate_fn=...)",
    **dict.fromkeys(("loss", "criterion", "compute_loss_func"), "it is loss_fn"),
    "optimizers": "they are optimizer and scheduler",
    "compute_metrics": "it is metrics={name: function}",
    **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps"), "it is accumulate"),
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm"), "it is clip_norm"),
    **dict.fromkeys(("accelerator", "devices", "gpus"), "it is device"),
    **dict.fromkeys(("fp16", "bf16"), 'it is precision="bf16" or "fp16"'),
    **dict.fromkeys(("default_root_dir", "output_dir", "run_dir"), "it goes to fit(run_dir=...)"),
    **dict.fromkeys(("enable_progress_bar", "verbose"), "it goes to fit(verbose=...)"),
    "deterministic": "call samebits.enable_op_determinism() first",
    "seed": "call samebits.set_random_seed(seed) first",
}
"""Arguments of other trainers, and where each belongs here."""


def explain(call: WrongCall) -> str:
    """Returns the message for a call that does not fit the signature."""
    named = (f"{name}=..." for name in call.named)
    given = ", ".join([*(f"<{type(arg).__name__}>" for arg in call.args), *named])
    missing = [part for part in _PARTS[len(call.args) :] if part not in call.named]
    problems = [f"without {', '.join(missing)}"] if missing else []
    problems += [f"{name}: {_PLACES.get(name, 'there is no such argument')}" for name in call.unknown]
    if len(call.args) > len(_PARTS):
        problems.append("each argument after optimizer needs its name, as scheduler=scheduler")
    problems = problems or ["an argument is given twice"]
    epochs = next((call.named[name] for name in _EPOCHS if name in call.unknown), "...")
    return (
        f"samebits.Trainer({given}): {'; '.join(problems)}. Type\n"
        f"    trainer = samebits.Trainer(model, loss_fn, optimizer)\n"
        f"    trainer.fit(loader, epochs={epochs if isinstance(epochs, int) else '...'})"
    )
