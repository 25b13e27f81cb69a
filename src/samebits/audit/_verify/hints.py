"""The cure for a difference: one sentence for the component that differs first."""

from __future__ import annotations

import re

from samebits.audit._diff.first_difference import Difference
from samebits.audit._verify.check_plan import Check

_ALWAYS = {
    "initial": "Call samebits.set_random_seed(seed) before the model is built",
    "locals": "Keep what lives from one step to the next in the run (`run.state.NAME = ...`), or give the object to "
    "it (`samebits.Run(..., name=object)` or `run.add`)",
    "generators": "Something draws random numbers that were not seeded: call samebits.set_random_seed(seed) first, or "
    "let `--run` set the seeds of a script as it is",
    "batch": "The batch must not depend on the clock, the order of a set or of os.listdir, a generator that was not "
    "seeded, or on what another element left in its worker, such as a memo of a draw",
    "optimizer": "The optimizer's settings must not depend on the clock, the order of a set, or a random number that "
    "was not seeded",
    "loss": "The computation must not depend on the clock, the order of a set, or a random number that was not seeded; "
    "`--run` shows whether samebits.enable_op_determinism() fixes it",
}
_KILLED = {
    "optimizer": "Give the optimizer, and whatever sets its learning rate, to samebits.Run, so that a restart restores "
    "them",
    "batch": "Take batches from `run.steps(samebits.data.DataLoader(...))` and keep no position of your own in the data",
    "model": "Give every module that changes to samebits.Run, so that a restart restores it",
    "buffers": "Give every module that changes to samebits.Run, so that a restart restores it",
    "memory": "A restart does not restore it: keep the value in `run.state`, or give the object to samebits.Run; what is changed "
    "in the middle of the training, set in every step, or before the loop",
    "loss": "Something that the loss depends on is not in the run: give the object to samebits.Run, or keep the value "
    "in `run.state`",
    "generators": "A generator of your own is state: give it to the run (`run.add`), or draw from the global ones",
}
_WORKERS = {
    "batch": "Keep no counters or caches on the dataset object: each loader worker has its own copy. Transforms that draw from "
    "generators of their own (MONAI's, albumentations') are equal in samebits.data.DataLoader, and not in torch's",
}
_FROM_RANK_0 = (
    "Every rank must make the same update: no draw, number or buffer of its own may go into the parameters "
    "(draw from a key: `samebits.random.uniform(samebits.random.fold_in(key, step.number), ...)`), and every module that "
    "trains must be called through DistributedDataParallel"
)
_REPLICAS = {
    "model": _FROM_RANK_0,
    "optimizer": _FROM_RANK_0,
    "buffers": "Set the buffer alike on all ranks. DistributedDataParallel overwrites buffers with those of rank 0 only in a "
    "forward, only of the module that it was given, and not with broadcast_buffers=False",
}

_IN_A_LOADER = re.compile(r"(dataset|sampler|batch_sampler|collate_fn|worker_init_fn)\b")
_ATTRIBUTE = re.compile(
    r"(?!self\.)([A-Za-z_]\w*)\.(?!keys\(\)|dataset\b|sampler\b|batch_sampler\b|collate_fn\b)"
)
"""A local object's attribute, such as `sched.last_epoch`; not a mapping's keys, not the contents of a loader."""


def cure_of(check: Check, difference: Difference | None) -> str:
    """Returns the cure that the first component to differ suggests for this kind of check; empty when none does."""
    if difference is None:
        return ""
    special = {"kill": _KILLED, "workers": _WORKERS, "replicas": _REPLICAS}.get(check.group, {})
    component = (
        "initial"
        if difference.place == "start" and difference.component in {"model", "buffers"}
        else difference.component
    )
    cure = _cure_by_name(check, difference) or special.get(component) or _ALWAYS.get(component)
    return f"{cure}." if cure else ""


def _cure_by_name(check: Check, difference: Difference) -> str:
    """Returns the cure that the name of the first leaf to differ suggests: a callback, or an object that a restart did
    not restore.
    """
    path = difference.paths[0] if difference.paths else ""
    if path.startswith("callbacks["):
        return "Return it from the callback's state_dict and take it back in load_state_dict"
    if difference.component == "generators" and _IN_A_LOADER.match(path):
        return "Seed it where it is made, such as `numpy.random.default_rng(seed)`, or give the data to a samebits.data.DataLoader"
    attribute = _ATTRIBUTE.match(path)
    if check.group == "kill" and difference.component == "locals" and attribute:
        name = attribute[1]
        return f"Hand it to the run: samebits.Run(..., {name}={name})"
    return ""
