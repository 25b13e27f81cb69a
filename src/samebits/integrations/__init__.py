"""Adapters that make training in another library resumable to the same bits, with one line in the program.

Each is a module of its own, which imports its library: `samebits.integrations.lightning`,
`transformers`, `keras`, `ignite` and `stable_baselines3`.

Read `_adapter.py` first. Doors: here and in pyproject.toml. Imports: `audit` and below.
"""
