"""States whose tensors are sharded over ranks, made from whole ones; run directories to commit them to."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from samebits.checkpoint._commit_parts import RanksReader, write_parts
from samebits.checkpoint._store import CommitStore
from samebits.distributed._gloo_messages import GlooGroup

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {"shards": 8}}


def wholes(step=0):
    """Tensors by name: more rows than ranks, fewer, one, none; blocks that one, two and three ranks share."""
    return {
        "large": torch.arange(1301 * 7.0).reshape(1301, 7) + step,
        "wide": torch.arange(3 * 5000.0).reshape(3, 5000) - step,
        "row": torch.full((1, 9), step / 3),
        "bias": torch.arange(40) + step,
        "short": (torch.arange(5000.0) + step).bfloat16(),
        "none": torch.empty(0, 4),
    }


def plain(step=0):
    """The rest of a state: equal on all ranks."""
    return {"step": step, "count": torch.tensor(step), "table": torch.arange(100.0) * step, "empty": torch.empty(3, 0),
            "turned": torch.arange(6.0).reshape(2, 3).t() + step, "array": torch.arange(5).numpy() + step}  # fmt: skip


def whole_state(step=0):
    return {"objects": {"model": wholes(step)}, **plain(step)}


def sharded(whole):
    """A DTensor with the rows that `torch.chunk` gives this rank."""
    rows = whole.chunk(dist.get_world_size()) if len(whole) else ()
    mine = rows[dist.get_rank()] if dist.get_rank() < len(rows) else whole[:0]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return DTensor.from_local(
        mine.clone(), mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


def sharded_state(step=0):
    return {"objects": {"model": {name: sharded(one) for name, one in wholes(step).items()}}, **plain(step)}


def commit(run_dir, *steps, ahead=0):
    """Commits the states of these steps, or of so many later, on all ranks."""
    store, group = CommitStore(run_dir, keep=len(steps)), GlooGroup()
    with store if dist.get_rank() == 0 else contextlib.nullcontext():
        for step in steps:
            state = sharded_state(step + ahead)
            write_parts(group, store, state, step=step, on_tensors_written=lambda: None, **FACTS)
    group.close()


def read(run_dir, group=None, layouts=None):
    """(the manifest, the state of this rank with whole tensors gathered, the bytes of tensors that it has read)."""
    store, group = CommitStore(run_dir), group or GlooGroup()
    live = {f"objects.model.{name}": sharded(one) for name, one in wholes().items()}
    reader = RanksReader(group, store, layouts or (lambda names: live), lambda manifest, state: None)

    def find():
        store.open()
        try:
            reader.check_seen()
            return store.newest(read=reader.read)
        finally:
            store.close()

    found = reader.open(find)
    if found is None:
        return None
    manifest, state = found
    return manifest, state, reader.bytes_read


def gathered(state):
    """A state in which each DTensor is whole again; all ranks call it."""
    model = {name: one.full_tensor() for name, one in state["objects"]["model"].items()}
    return {**state, "objects": {"model": model}}
