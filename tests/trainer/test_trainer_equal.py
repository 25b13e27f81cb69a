"""`Trainer.fit` against the same training written by hand in plain torch: equal bits of weights, averages and losses."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import samebits
from samebits import _digest as digest
from samebits.errors import InvalidArgumentError
from trainer_metric import Correct

CLASSES = {0: 0.5, 2: 3.0}
SCHEDULERS = {
    "steps": lambda opt: lr_scheduler.StepLR(opt, 2, 0.5),
    "cycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.2, total_steps=40),
    "warm": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1), lr_scheduler.CosineAnnealingLR(opt, 5)], [3]
    ),
}


def parts(scheduler=None):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, None if scheduler is None else SCHEDULERS[scheduler](optimizer)


def batches(number=5, weighted=False):
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(number):
        x = torch.randn(6, 4, generator=generator)
        made.append((x, (x.sum(1) > 0).long() + (x[:, 0] > 0)))
    return [(*batch, torch.rand(6, generator=generator)) for batch in made] if weighted else made


def by_hand(
    data, epochs, *, scheduler=None, scheduler_step="epoch", accumulate=1, clip_norm=None, clip_value=None, precision=None,
    ema=None, class_weight=None, gain=1.0,
):  # fmt: skip
    """The training as a user of plain torch writes it."""
    model, optimizer, scheduler = parts(scheduler)
    scaler = torch.amp.GradScaler("cpu") if precision == "fp16" else None
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    average = None if ema is None else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema))
    losses, skipped = [], 0
    for _ in range(epochs):
        total = 0.0
        for first in range(0, len(data), accumulate):
            group = data[first : first + accumulate]
            for x, y, *weight in group:
                with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                    if class_weight is None and not weight:
                        loss = nn.functional.cross_entropy(model(x), y)
                    else:
                        each = nn.functional.cross_entropy(model(x), y, reduction="none")
                        by_class = torch.tensor([0.5, 1.0, 3.0])[y]
                        loss = (each * (weight[0] if weight else by_class)).sum() / len(each)
                    loss = loss * gain
                total += loss.item() * len(x)
                if accumulate > 1:
                    loss = loss / len(group)
                (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            if clip_value is not None:
                nn.utils.clip_grad_value_(model.parameters(), clip_value)
            stepped = True
            if scaler is None:
                optimizer.step()
            else:
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                stepped = scaler.get_scale() >= before
                skipped += not stepped
            if stepped and scheduler is not None and scheduler_step == "step":
                scheduler.step()
            if stepped and average is not None:
                average.update_parameters(model)
            optimizer.zero_grad()
        if scheduler is not None and scheduler_step == "epoch":
            scheduler.step()
        losses.append(total / (6 * len(data)))
    averaged = None if average is None else average.state_dict()
    scale = None if scaler is None else scaler.get_scale()
    return digest.of_value([model.state_dict(), optimizer.state_dict(), averaged, scale]), losses, skipped


def trained(data, epochs, *, scheduler=None, class_weight=None, gain=1.0, loss_fn=None, **options):
    model, optimizer, scheduler = parts(scheduler)
    if loss_fn is None:
        loss_fn = nn.functional.cross_entropy
    if gain != 1.0:
        plain, loss_fn = loss_fn, lambda output, target: plain(output, target) * gain
    trainer = samebits.Trainer(model, loss_fn, optimizer, scheduler=scheduler, **options)
    history = trainer.fit(data, epochs, verbose=0, class_weight=class_weight)
    averaged = None if trainer.ema is None else trainer.ema.state_dict()
    scale = None if trainer.scaler is None else trainer.scaler.get_scale()
    state = digest.of_value([model.state_dict(), optimizer.state_dict(), averaged, scale])
    return state, history.history["loss"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 3},
        {"accumulate": 8},
        {"clip_norm": 0.05},
        {"clip_value": 0.01, "accumulate": 2},
        {"precision": "bf16"},
        {"precision": "bf16", "accumulate": 2, "clip_norm": 0.1, "ema": 0.9},
        {"precision": "fp16", "clip_norm": 0.1, "accumulate": 2},
        {"ema": 0.99, "scheduler": "cycle", "scheduler_step": "step"},
        {"scheduler": "steps"},
        {"scheduler": "warm", "scheduler_step": "step", "accumulate": 2},
        {"class_weight": CLASSES},
        {"class_weight": CLASSES, "precision": "bf16", "accumulate": 3},
    ],
    ids=str,
)
def test_fit_is_the_loop_that_one_would_write(options):
    """Weights, optimizer, average, scale and losses have the bits of a loop written by hand."""
    samebits.set_random_seed(1)
    state, losses, _ = by_hand(batches(), 3, **options)
    assert trained(batches(), 3, **options) == (state, losses)


def test_other_trainings_have_other_bits():
    """Negative control: each of the features changes the weights, so that equal bits above mean something."""
    samebits.set_random_seed(1)
    ways = [
        {},
        {"accumulate": 3},
        {"clip_norm": 0.05},
        {"precision": "bf16"},
        {"scheduler": "steps"},
        {"class_weight": CLASSES},
    ]
    assert len({trained(batches(), 3, **options)[0] for options in ways}) == len(ways)


def test_weights_of_samples_are_the_third_element():
    """With (x, y, weight) the loss is sum(weight * loss) / number of samples; modules and functions of torch alike."""
    samebits.set_random_seed(1)
    expected = by_hand(batches(weighted=True), 2)[:2]
    assert trained(batches(weighted=True), 2) == expected
    assert trained(batches(weighted=True), 2, loss_fn=nn.CrossEntropyLoss()) == expected


def test_a_step_that_overflows_is_skipped():
    """With fp16 a gradient that overflows skips the step, and scheduler and average with it; the scale is halved."""
    samebits.set_random_seed(1)
    options = {"precision": "fp16", "gain": 64.0, "ema": 0.9, "scheduler": "cycle", "scheduler_step": "step"}
    state, losses, skipped = by_hand(batches(), 3, **options)
    assert 0 < skipped < 15
    assert trained(batches(), 3, **options) == (state, losses)


class Endless:
    """Batches that nobody knows the number of."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


def test_a_last_group_of_unknown_size_is_corrected():
    """Where no length tells that the last group will be smaller, its gradient is scaled to its mean before the step."""
    samebits.set_random_seed(1)
    assert trained(Endless(batches(4)), 2, accumulate=2)[0] == by_hand(batches(4), 2, accumulate=2)[0]
    model, optimizer, _ = parts()
    samebits.Trainer(model, nn.functional.cross_entropy, optimizer, accumulate=4).fit(
        Endless(batches(5)), 1, verbose=0
    )
    known, optimizer, _ = parts()
    samebits.Trainer(known, nn.functional.cross_entropy, optimizer, accumulate=4).fit(
        batches(5), 1, verbose=0
    )
    for one, other in zip(model.state_dict().values(), known.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)


def test_validation_leaves_training_alone():
    """With a validation, which draws and changes modes, the trained weights are the same; frozen modules stay in eval mode."""
    samebits.set_random_seed(1)

    def weights(**options):
        model, optimizer, _ = parts()
        freeze = samebits.callbacks.Lambda(on_train_begin=lambda trainer: trainer.model[1].eval())
        trainer = samebits.Trainer(model, nn.functional.cross_entropy, optimizer, callbacks=[freeze], ema=0.5)
        trainer.fit(batches(), 2, verbose=0, **options)
        assert model.training
        assert not model[1].training
        return digest.of_value(model.state_dict())

    assert weights() == weights(validation_data=batches(2))


def test_evaluation_measures_the_average():
    """With ema, validation, evaluate and predict are those of the average; its buffers are the model's."""
    samebits.set_random_seed(1)
    model, optimizer, _ = parts()
    trainer = samebits.Trainer(model, nn.functional.cross_entropy, optimizer, ema=0.9)
    history = trainer.fit(batches(), 1, validation_data=batches(2), verbose=0)
    assert trainer.evaluate(batches(2))["loss"] == history.history["val_loss"][0]
    average = copy.deepcopy(trainer.eval_model).eval()
    assert torch.equal(trainer.predict(batches(2)), torch.cat([average(x) for x, _ in batches(2)]))
    assert not torch.equal(average[0].weight, model[0].weight)
    assert torch.equal(average[1].running_mean, model[1].running_mean)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, input_ids, mask, labels=None):
        logits = self.layer(input_ids * mask)
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_batches_may_be_dicts_and_tuples_of_inputs():
    """Dicts, with the loss outside or inside of the model, tuples and dicts of inputs, and a hook train the same weights."""
    samebits.set_random_seed(1)
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
    dicts = [{"input_ids": x, "mask": mask, "labels": y} for x, y in batches()]

    def own(model, batch):
        output = model(**batch)
        return output["loss"], {"size": output["logits"].numel()}

    def weights(loader, loss_fn=nn.functional.cross_entropy, forward=None):
        model = Pair()
        trainer = samebits.Trainer(model, loss_fn, torch.optim.SGD(model.parameters(), 0.1), forward=forward)
        history = trainer.fit(loader, 2, verbose=0)
        if forward is None:
            assert trainer.predict(loader).shape == (30, 3)
        return digest.of_value(model.state_dict()), history.history["loss"]

    expected = weights(dicts)
    assert weights(dicts, None, own) == expected
    assert weights([((x, mask), y) for x, y in batches()]) == expected
    assert weights([({"input_ids": x, "mask": mask}, y) for x, y in batches()]) == expected


def test_the_model_may_compute_its_loss():
    """With loss_fn=None the loss is the output's, as with models of transformers."""
    samebits.set_random_seed(1)

    class Own(Pair):
        def forward(self, input_ids, labels):
            return super().forward(input_ids, 1.0, labels)

    def weights(model, loss_fn, loader):
        trainer = samebits.Trainer(model, loss_fn, torch.optim.SGD(model.parameters(), 0.1))
        trainer.fit(loader, 2, verbose=0)
        return digest.of_value(model.state_dict())

    dicts = [{"input_ids": x, "labels": y} for x, y in batches()]
    outside = [((x, torch.ones(())), y) for x, y in batches()]
    assert weights(Own(), None, dicts) == weights(Pair(), nn.functional.cross_entropy, outside)
    hooked = samebits.Trainer(
        parts()[0], None, parts()[1], forward=lambda model, batch: model(batch[0]).mean()
    )
    assert hooked.predict(batches()).shape == (30, 3)
    with pytest.raises(InvalidArgumentError, match="has no loss. Pass a loss_fn"):
        weights(parts()[0], None, [(x,) for x, _ in batches()])


def test_metrics_are_functions_or_objects():
    """A function's mean over samples and an object that counts are equal, for training and validation apart."""
    samebits.set_random_seed(1)
    model, optimizer, _ = parts()
    metrics = {"mean": lambda out, y: (out.argmax(1) == y).double().mean(), "count": Correct()}
    trainer = samebits.Trainer(model, nn.functional.cross_entropy, optimizer, metrics=metrics)
    middle = samebits.callbacks.Lambda(on_batch_end=lambda trainer, step, logs: trainer.evaluate(batches(1)))
    trainer.callbacks.append(middle)
    found = trainer.fit(batches(), 3, validation_data=batches(2), verbose=0).history
    assert found["count"] == pytest.approx(found["mean"])
    assert found["val_count"] == pytest.approx(found["val_mean"])
    assert found["count"] != found["val_count"]


class Samples(Correct):
    """How many samples were counted."""

    def compute(self):
        return self.all


def test_an_interrupted_pass_leaves_no_counts():
    """A fit or an evaluation that an exception ended leaves nothing in metric objects for the next one."""
    samebits.set_random_seed(1)
    model, optimizer, _ = parts()
    metric = Samples()
    trainer = samebits.Trainer(model, nn.functional.cross_entropy, optimizer, metrics={"samples": metric})
    for work in (lambda data: trainer.fit(data, 1, verbose=0), trainer.evaluate):
        with pytest.raises(InvalidArgumentError):
            work([*batches(2), (1, 2, 3, 4)])
    assert metric.all == 12
    history = trainer.fit(batches(1), 1, validation_data=batches(3), verbose=0).history
    assert (history["samples"], history["val_samples"]) == ([6], [18])
