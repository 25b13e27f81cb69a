"""A program in torchtitan's manner reads a commit by `DCPReader`: torchtitan itself is not installed here."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

import fsdp2_programs as programs
import samebits
import shard_programs
from samebits import _digest as digest
from samebits.checkpoint import DCPReader, load_commit

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


def train(run_dir):
    """Commits an epoch of a Transformer that is sharded by FSDP2 over all ranks."""
    samebits.set_random_seed(1)
    program = programs.PROGRAMS["Transformer"](True)
    with samebits.Run(run_dir, **program.objects()) as run:
        for step, own in run.steps(shard_programs.loader(), epochs=1, shards=shard_programs.SHARDS):
            for batch in own:
                program.backward(0, *batch, 1 / step.shards)
            program.update(0)


class ModelWrapper(Stateful):
    """That of torchtitan/components/checkpoint.py."""

    def __init__(self, *parts):
        self.model = parts
        self.cache_state_dict = self._get_state_dict()

    def _get_state_dict(self):
        return {name: value for part in map(get_model_state_dict, self.model) for name, value in part.items()}

    def state_dict(self):
        return self.cache_state_dict

    def load_state_dict(self, state_dict):
        options = StateDictOptions(strict=False)
        list(
            map(
                functools.partial(set_model_state_dict, model_state_dict=state_dict, options=options),
                self.model,
            )
        )
        self.cache_state_dict = self._get_state_dict()


class CheckpointManager:
    """The loading half of torchtitan's: the model's names lie flat beside the other states."""

    def __init__(self, states, reader):
        self.states, self.reader = states, reader

    def flattened(self):
        found = {name: one for name, one in self.states.items() if name != "model"}
        found.update(self.states["model"].state_dict())
        return found

    def load(self):
        state = self.flattened()
        dcp.load(state, storage_reader=self.reader)
        self.states["model"].load_state_dict(state)


def on_meta():
    with torch.device("meta"):
        return programs.PROGRAMS["Transformer"].layers(None)


def read(run_dir):
    """The digests of the whole weights before and after a load, in a mesh of all ranks; the error for a name that is not there."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    net = on_meta()
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    net.to_empty(device="cpu")
    with torch.no_grad():
        for value in net.parameters():
            value.fill_(0.5)
    found = [digest_of(net)]
    reader = DCPReader(run_dir, object="net")
    CheckpointManager({"model": ModelWrapper(net)}, reader).load()
    found.append(digest_of(net))
    columns = DTensor.from_local(
        torch.zeros(11, 16 // dist.get_world_size()), mesh, [Shard(1)]
    )  # as tensor parallelism has them
    dcp.load({"tokens.weight": columns}, storage_reader=reader)
    assert torch.equal(columns.full_tensor(), net.tokens.weight.full_tensor())
    net.more = nn.Linear(2, 2)
    try:
        CheckpointManager({"model": ModelWrapper(net)}, reader).load()
    except dcp.api.CheckpointException as error:
        found.append(str(error))
    return found


def digest_of(net):
    whole = {name: one.full_tensor() for name, one in net.state_dict().items()}
    return digest.of_value(dict(sorted(whole.items())))


def test_a_program_in_torchtitans_manner_reads_a_commit(ranks, tmp_path):
    """Written by 3 ranks and read by 2 and 4 into a model from the meta device: the commit's bits; before (control) others; a name that is missing is an error."""
    ranks(3, train, tmp_path / "run")
    saved = load_commit(tmp_path / "run")["objects"]["net"]
    expected = digest.of_value(dict(sorted(saved.items())))
    for size in (2, 4):
        for before, after, missing in ranks(size, read, tmp_path / "run")[0]:
            assert (before == expected, after == expected) == (False, True)
            assert "Missing key in checkpoint state_dict: more." in missing
