"""The schemas of docs/reference/schemas describe what the commands really write as JSON: all of it, and nothing else."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
import typer

import samebits
from samebits.cli import main
from samebits.cli._app import app
from samebits.determinism import _environment

ROOT = Path(__file__).parents[2]
SCHEMAS = {
    file.name.partition(".")[0]: json.loads(file.read_text())
    for file in sorted((ROOT / "docs/reference/schemas").glob("*.schema.json"))
}
STEPS = ROOT / "examples/replica/broken.py"

PLAIN = """
import os, signal, sys
import torch
torch.manual_seed(3)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    if sys.argv[1:] == ["killed"] and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1:] == ["seeded"] and step == 2:
        torch.manual_seed(4)
    loss = (model(torch.randn(8, 6)) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
UNSEEDED = PLAIN.replace("torch.manual_seed(3)", "torch.manual_seed(os.getpid())")
RESUMED = """
import torch
import samebits
samebits.set_random_seed(3)
samebits.enable_op_determinism()
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(40, 6)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
loader = samebits.data.DataLoader(data, batch_size=8, shuffle=True)
with samebits.Run("run", model=model, optimizer=optimizer) as run:
    for step, (a, b) in run.steps(loader, epochs=3):
        loss = (model(a) - b).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def validator(name, rules=None):
    made = jsonschema.Draft202012Validator(SCHEMAS[name])
    return made if rules is None else made.evolve(schema=rules)


def rules_for(name, rules, value):
    """What a schema says of this value: behind a reference, and of alternatives the one that it meets."""
    while "properties" not in rules and {"$ref", "anyOf"} & rules.keys():
        if "$ref" in rules:
            rules = SCHEMAS[name]["$defs"][rules["$ref"].removeprefix("#/$defs/")]
        else:
            rules = next(one for one in rules["anyOf"] if validator(name, one).is_valid(value))
    return rules


def objects(name, value, rules=None):
    """Each object in a value, with what the schema says of it."""
    rules = rules_for(name, SCHEMAS[name] if rules is None else rules, value)
    if isinstance(value, dict):
        yield value, rules
        for key, inner in value.items():
            yield from objects(
                name, inner, rules.get("properties", {}).get(key) or rules["additionalProperties"]
            )
    elif isinstance(value, list):
        for inner in value:
            yield from objects(name, inner, rules["items"])


def undescribed(name, content):
    """The keys of a real result that the schema does not describe."""
    return [
        key
        for value, rules in objects(name, content)
        for key in value
        if "description" not in (rules.get("properties", {}).get(key) or rules["additionalProperties"])
    ]


def unnoticed(name, content):
    """Changes of a result that the schema does not notice: a key less, a key more, a value of a wrong type."""
    content, found = copy.deepcopy(content), []
    for value, rules in list(objects(name, content)):
        if "properties" not in rules:
            continue
        before = dict(value)
        spoiled = [{**before, "of_nobody": 1}, *({**before, key: {"wrong": ["type"]}} for key in before)]
        spoiled += [{k: v for k, v in before.items() if k != key} for key in rules["required"]]
        for wrong in spoiled:
            value.clear()
            value.update(wrong)
            found += [wrong] * validator(name).is_valid(content)
        value.clear()
        value.update(before)
    assert validator(name).is_valid(content)
    return found


def check(name, content):
    """Checks a real result: it is valid, all of it is described, and no change of it goes unnoticed."""
    validator(name).validate(content)
    assert undescribed(name, content) == []
    assert unnoticed(name, content) == []


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs a command here with --json; gives the exit code and the content."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(name, *args):
        monkeypatch.setattr(sys, "argv", ["samebits", name, "--json", "out.json", *map(str, args)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return code, json.loads((tmp_path / "out.json").read_text())

    return call


@pytest.fixture
def verify(tmp_path):
    """Runs `samebits verify --json` on a source; gives the exit code and the content."""

    def call(source, *options):
        (tmp_path / "train.py").write_text(source)
        command = [sys.executable, "-m", "samebits", "verify", "--json", "out.json", *options, "train.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        file = tmp_path / "out.json"
        assert file.exists() or done.returncode == 2, done.stderr
        return done.returncode, json.loads(file.read_text()) if file.exists() else None

    return call


def test_each_command_with_json_has_a_schema(root):
    """Each has a file, which the page of formats links; it is a valid schema (negative control: one that is none)."""
    commands = typer.main.get_command(app).commands
    with_json = {name for name, one in commands.items() if "json_file" in {p.name for p in one.params}}
    assert with_json == SCHEMAS.keys()
    page = (root / "docs/reference/files.md").read_text()
    for name, schema in SCHEMAS.items():
        assert f"](schemas/{name}.schema.json)" in page
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["title"] == f"samebits {name} --json FILE" and schema["description"].endswith(".")
    with pytest.raises(jsonschema.SchemaError):
        jsonschema.Draft202012Validator.check_schema({"type": "text"})


def parts(rules):
    """All schemas in a schema, each with True if it is that of a key."""
    yield rules, False
    for key in ("properties", "$defs"):
        for inner in rules.get(key, {}).values():
            for number, (one, is_key) in enumerate(parts(inner)):
                yield one, is_key or (number == 0 and key == "properties")
    for inner in (
        *rules.get("anyOf", ()),
        *(rules[key] for key in ("items", "additionalProperties") if rules.get(key)),
    ):
        yield from parts(inner)


def faults(schema):
    """The keys without a sentence, and the objects that a new key could enter unseen."""
    found = [
        rules for rules, is_key in parts(schema) if is_key and not rules.get("description", "").endswith(".")
    ]
    return found + [
        rules for rules, _ in parts(schema)
        if "properties" in rules
        and (rules.get("additionalProperties") is not False or not {*rules["required"]} <= rules["properties"].keys())
    ]  # fmt: skip


def test_each_key_of_a_schema_has_a_description():
    """In a sentence; and our objects are closed (negative control: a key without, and an open object, are found)."""
    for schema in SCHEMAS.values():
        assert faults(schema) == []
        wrong = copy.deepcopy(schema)
        of_keys = next(rules for rules, _ in parts(wrong) if "properties" in rules)
        next(iter(of_keys["properties"].values()))["description"] = ""
        del of_keys["additionalProperties"]
        assert len(faults(wrong)) == 2


def test_what_two_schemas_share_is_the_same():
    """A definition that stands in two files, so that each can be used alone, is the same in both."""
    shared = {}
    for schema in SCHEMAS.values():
        for name, rules in schema.get("$defs", {}).items():
            assert shared.setdefault(name, rules) == rules, name
    assert shared.keys() >= {"difference", "environment"}


def test_env(command):
    """The environment is valid with the switch off, and on; a GPU's flags are described, too."""
    check("env", command("env")[1])
    samebits.enable_op_determinism(across="threads", on_unimplemented="warn")
    content = command("env")[1]
    assert content["op_determinism"]["across"] == "threads"
    check("env", content)
    content["flags"] |= _environment._cuda_precisions()
    check("env", {**content, "gpus": ["a GPU"], "cuda": {"runtime": "13.0", "cudnn": 91002}})


@pytest.mark.slow
def test_ops(command):
    """One op, the filtered rows and the whole table are valid; the words of the table are those of the schema."""
    check("ops", command("ops", "torch.svd")[1])
    refused = command("ops", "--machine", "refused", "fft_*")[1]
    assert refused["ops"] == []
    validator("ops").validate(refused)
    content = command("ops", "--all")[1]
    validator("ops").validate(content)
    assert len(content["ops"]) > 2000
    for key in ("machine", "raises", "device", "threads", "evidence"):
        words = SCHEMAS["ops"]["properties"]["ops"]["items"]["properties"][key]["enum"]
        assert {entry[key] for entry in content["ops"]} == {*words}


def test_commits(command, tmp_path):
    """Whole, valid, pruned and damaged commits of a real run; what cannot be read of one is null."""
    samebits.set_random_seed(1)
    model = torch.nn.Linear(3, 1)
    with samebits.Run("run", model=model, save="explicit", keep=5, keep_best=1) as run:
        for step, _ in run.steps([1, 2, 3, 4]):
            with torch.no_grad():
                model.weight.add_(1)
            if step.number == 1:
                run.best(1.5)
            run.commit()
    for args in ([], ["--verify"]):
        code, content = command("commits", *args, "run")
        assert code == 0 and {one["value"] for one in content["commits"]} == {1.5, None}
        check("commits", content)
    folders = sorted((tmp_path / "run/commits").iterdir())
    (folders[1] / "manifest.json").unlink()
    (folders[2] / "tensors.safetensors").write_bytes(b"")
    code, content = command("commits", "run")
    assert code == 1 and {one["status"] for one in content["commits"]} == {"whole", "damaged"}
    check("commits", content)
    content = command("commits", "--prune", "--keep", "1", "run")[1]
    assert content["deleted"]
    check("commits", content)


def recorded(folder, *runs):
    """Records runs of PLAIN at the same time: the folder of each, and the argument of the script."""
    (folder / "train.py").write_text(PLAIN)
    run = [sys.executable, "-m", "samebits", "run", "--record"]
    started = [subprocess.Popen([*run, name, "train.py", *args], cwd=folder) for name, *args in runs]
    return [one.wait() for one in started]


@pytest.mark.slow
def test_diff(command, tmp_path):
    """A run that differs is named with its step; a record is equal to itself."""
    assert recorded(tmp_path, ["a"], ["b", "seeded"]) == [0, 0]
    code, content = command("diff", "a", "b")
    assert code == content["exit"] == 1 and content["difference"]["step"] == 2
    check("diff", content)
    code, content = command("diff", "a", "a")
    assert code == content["exit"] == 0 and content["difference"] is None
    check("diff", content)


@pytest.mark.slow
def test_diff_of_equal_and_killed_runs(command, tmp_path):
    """Two runs of one program are equal, step by step; one that was killed is compared as far as it came: exit 2."""
    assert recorded(tmp_path, ["a"], ["b"], ["c", "killed"]) == [0, 0, -9]
    for other, exit_code in (("b", 0), ("c", 2)):
        code, content = command("diff", "a", other)
        assert code == content["exit"] == exit_code and bool(content["unfinished"]) == (exit_code == 2)
        check("diff", content)


@pytest.mark.slow
def test_replica(command):
    """A step that keeps its state equal, one that does not, and one that hangs."""
    code, content = command("replica", f"{STEPS}:reduced", "--world-size", 2)
    assert code == 0
    check("replica", content)
    code, content = command("replica", f"{STEPS}:forgotten", "--world-size", 2)
    assert code == 1 and content["explanations"]
    check("replica", content)
    hangs = """
import torch, torch.distributed as dist, torch.distributed._functional_collectives as fc
def hangs():
    step = lambda x, go: torch.cond(go, lambda x: fc.all_reduce(x, "sum", dist.group.WORLD) + 0, lambda x: x * 2, (x,))
    return step, (torch.ones(3), torch.tensor(True))
"""
    Path("own_hangs.py").write_text(hangs)
    code, content = command("replica", "own_hangs:hangs", "--world-size", 2)
    assert code == 1 and content["findings"]
    check("replica", content)


@pytest.mark.slow
def test_verify_of_a_script_that_repeats(verify):
    """REPRODUCED, whose number of steps is not known without a Run; a change of the content is noticed."""
    code, content = verify(PLAIN, "--run", "--steps", "2", "--checks", "run-again")
    assert code == content["exit"] == 0 and content["verdict"].startswith("REPRODUCED: ")
    assert content["planned_steps"] is None and content["environment"]
    check("verify", content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "options", "exit_code", "verdict"),
    [
        (RESUMED, ["--checks", "run-again,kill-mid-epoch"], 0, "VERIFIED"),
        (RESUMED, ["--checks", "run-again,kill,threads", "--within", "0.1"], 0, "REPRODUCED"),
        (RESUMED.replace(", optimizer=optimizer", ""), ["--checks", "run-again,kill"], 1, "NOT REPRODUCIBLE"),
        (UNSEEDED, ["--checks", "run-again,busy,kill"], 1, "NOT REPRODUCIBLE"),
        (PLAIN, ["--checks", "run-again,kill", "--require", "kill"], 2, "NOT VERIFIED"),
        (PLAIN, ["--checks", "kill"], 2, "NOT VERIFIED"),
    ],
)
def test_verify_of_each_verdict(verify, source, options, exit_code, verdict):
    """Killed and resumed, left out for time, state that is forgotten, no seed, a proof that is required and missing."""
    code, content = verify(source, *options)
    assert code == content["exit"] == exit_code and content["verdict"].startswith(f"{verdict}: ")
    check("verify", content)


@pytest.mark.slow
def test_verify_that_cannot_start_writes_no_json(verify):
    """A script that raises, and one that trains nothing: exit 2 and no file (a file would be of an older call)."""
    assert verify("raise ValueError(1)", "--checks", "run-again") == (2, None)
    assert verify("print(1)", "--checks", "run-again") == (2, None)
