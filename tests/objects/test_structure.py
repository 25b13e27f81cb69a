"""How modules are built and what the process is set to, compared."""

import torch

from samebits._objects import structure


def test_an_environment_variable_is_named_without_its_value(monkeypatch):
    """A changed variable is told by its name alone, since it may be a secret; of a setting the values are told."""
    monkeypatch.setenv("TOKEN", "first secret")
    before = structure.of_process()
    monkeypatch.setenv("TOKEN", "second secret")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)
    told = structure.differences(before, structure.of_process())
    assert told["os.environ['TOKEN']"] == "has another value now"
    assert "was" in told["torch.backends.cudnn.benchmark"]
    assert "secret" not in str(told)
