import json

import pytest

SCRIPT = """
import torch, samebits
samebits.set_random_seed(0)
{before}
samebits.enable_op_determinism({arguments})
samebits.declare_op("mine::known", deterministic=True)

def define(name):
    return torch.library.custom_op(f"mine::{{name}}", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")

known, unknown = define("known"), define("unknown")
x, model = torch.ones(4), torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
with samebits.Run("run", model=model, opt=opt, ignore=["x"]) as run:
    for step, _ in run.steps([1, 2]):
        known(x), unknown(x)
        x = x.put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
        opt.zero_grad(); model(x).sum().backward(); opt.step()
"""


def recorded(tmp_path, python, before="", arguments=""):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(before=before, arguments=arguments))
    python(
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'samebits', 'run', '--record', 'rec', 'train.py'])\n"
        "sys.exit(done.returncode)\n"
    )
    lines = [json.loads(line) for line in (tmp_path / "rec" / "record.jsonl").read_text().splitlines()]
    return lines[0]["environment"]["op_determinism"], lines[-1]


@pytest.mark.slow
def test_a_record_names_what_ran_without_a_promise(tmp_path, python):
    """An undeclared op and an op that was let through by on_unimplemented='warn' are named in the record's last line."""
    before = "from samebits.determinism import _all_replacements as catalogue; catalogue.REPLACEMENTS = ()"
    _, end = recorded(tmp_path, python, before, "on_unimplemented='warn'")
    notes = "\n".join(end["notes"])
    assert "mine::unknown" in notes and "aten::put_ on CPU" in notes and "mine::known" not in notes
    assert len(end["notes"]) == 2 and end["error"] is None
