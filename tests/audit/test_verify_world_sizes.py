"""`samebits verify --world-sizes`: a script with shards is equal at each number of ranks, and what follows the rank is blamed."""

import json
import subprocess
import sys

import pytest

import samebits
from samebits.errors import InvalidArgumentError
from samebits.testing import run_and_kill

SHARDS = """
import os, torch, torch.distributed as dist, samebits
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank = int(os.environ.get("RANK", 0))
samebits.set_random_seed(1)
x = torch.randn(48, 5, generator=torch.Generator().manual_seed(1))
loader = samebits.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=12, shuffle=True)
net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.2), torch.nn.Linear(7, 1))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
with samebits.Run("runs/x", net=net, optimizer=optimizer) as run:
    for step, shards in run.steps(loader, epochs=2, shards=6):
        losses = []
        for (x,) in shards:
            loss = net(x).square().mean() / step.shards
            loss.backward()
            losses.append(loss.detach())
        # HERE
        optimizer.step()
        optimizer.zero_grad()
        run.state.loss = shards.sum(losses)
if dist.is_initialized():
    dist.destroy_process_group()
"""
SHARDED = SHARDS.replace(
    'if "RANK" in os.environ:\n    dist.init_process_group("gloo")\n',
    "from torch.distributed.fsdp import fully_shard\n"
    'alone = {} if "RANK" in os.environ else {"rank": 0, "world_size": 1, "store": dist.HashStore()}\n'
    'dist.init_process_group("gloo", **alone)\n',
).replace("optimizer = ", "fully_shard(net[0]); fully_shard(net)\noptimizer = ")
"""The same script with FSDP2."""
BROKEN = {
    "a draw keyed by rank": (
        "loss = net(x",
        ("loss = net(x)", "loss = net(x * torch.rand(5, generator=torch.Generator().manual_seed(rank)))"),
        "step 0",
        "model",
    ),
    "a local mean in run.state": (
        None,
        ("shards.sum(losses)", "float(sum(losses))"),
        "run_state.loss",
        "shards.sum",
    ),
    "a collective of its own": (
        "all_reduce",
        ("# HERE", "[dist.is_initialized() and dist.all_reduce(p.grad) for p in net.parameters()]"),
        "step 0",
        "model",
    ),
    "a number of the rank": (
        "scale = ",
        ("net = torch", "scale = 1 + 0.1 * rank\nnet = torch"),
        ("loss.backward", "loss = loss * scale; loss.backward"),
        "step 0",
    ),
    "a learning rate by the number of ranks": (
        "['lr'] =",
        ("# HERE", "optimizer.param_groups[0]['lr'] = 0.01 * (1 + ('RANK' in os.environ))"),
        "step 0",
    ),
}
"""The line that the search names (None: not known), the texts that break the script, texts of the output."""


def verify(folder, source, *options):
    """(exit status, output, JSON) of `samebits verify` of a script."""
    (folder / "train.py").write_text(source)
    words = ["verify", "--seed", "7", "--checks", "world-sizes", "--json", "out.json", *options, "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "samebits", *words], cwd=folder, capture_output=True, text=True, timeout=850
    )
    out = folder / "out.json"
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else None


@pytest.mark.slow
def test_shards_are_equal_at_each_number_of_ranks(tmp_path):
    """Rows for 2 and 3 processes, and one killed as 3 and resumed as 2."""
    status, output, report = verify(tmp_path, SHARDS, "--world-sizes", "1,2,3")
    assert status == 0, output
    rows = {row["check"]: row["equal"] for row in report["rows"]}
    assert rows == dict.fromkeys(
        ["run again", "2 processes", "3 processes", "killed with 3 processes, resumed with 2 processes"], True
    )
    assert "as 2 and 3 processes, killed with 3 and resumed with 2" in report["verdict"]
    assert report["options"]["world_sizes"] == [1, 2, 3]


@pytest.mark.slow
def test_fsdp2_is_equal_at_each_number_of_ranks(tmp_path):
    """Weights that no rank has whole: rows for 2 processes and for a resume as 1, and the table says FSDP2."""
    status, output, report = verify(tmp_path, SHARDED, "--world-sizes", "1,2")
    assert status == 0, output
    assert {row["check"]: row["equal"] for row in report["rows"]} == dict.fromkeys(
        ["run again", "2 processes", "killed with 2 processes, resumed with 1 process"], True
    )
    assert "world size, FSDP2" in output


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_what_follows_the_rank_is_blamed(name, tmp_path):
    """The first step and component, or the error that names the value; exit 1. The line is found shard by shard."""
    line, *rest = BROKEN[name]
    text = SHARDS
    for old, new in (one for one in rest if isinstance(one, tuple)):
        assert old in text
        text = text.replace(old, new)
    status, output, report = verify(tmp_path, text, "--world-sizes", "1,2")
    assert status == 1, output
    assert all(one in " ".join(output.split()) for one in rest if isinstance(one, str)), output
    found = report["first_op"]
    if line is None:  # a rank may raise before the step is recorded
        return
    assert found["cause"]["text"].startswith("the number of processes"), found
    assert line in text.splitlines()[int(found["line"].rpartition(":")[2]) - 1], found


@pytest.mark.parametrize("sizes", ["1", "1,1", "0,2", "two,3"])
def test_world_sizes_are_different_whole_numbers(sizes, tmp_path):
    """The message has a value to type, and nothing is started."""
    status, output, _ = verify(tmp_path, SHARDS, "--world-sizes", sizes)
    assert status == 2 and "1,2,3" in output


def test_world_sizes_go_without_nproc_per_node(tmp_path):
    """The message has the option to type."""
    status, output, _ = verify(tmp_path, SHARDS, "--world-sizes", "1,2", "--nproc-per-node", "2")
    assert status == 2 and "--world-sizes 2,3" in output


@pytest.mark.slow
def test_a_program_is_killed_with_some_ranks_and_resumed_with_others(tmp_path):
    """4, 2 and 3 processes, two kills: the digest is that of the run with 4 that nobody killed."""
    (tmp_path / "train.py").write_text(SHARDS)
    result = run_and_kill(tmp_path / "train.py", at=["body", "commit"], world_sizes=(4, 2, 3), seed=3)
    assert result.equal and result.exit_codes == (-9, -9, 0), result


def test_bad_world_sizes_are_refused():
    """`run_and_kill` names the argument."""
    with pytest.raises(InvalidArgumentError, match="world_sizes"):
        samebits.testing.run_and_kill("train.py", world_sizes=(0, 2))
