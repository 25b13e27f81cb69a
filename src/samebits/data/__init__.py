"""Pipelines and loaders: batches that are a function of (pipeline, seed, epoch, number).

Read `_pipeline.py` first. Doors: here and in pyproject.toml. Imports: `determinism` and below.
"""

from samebits.data._check import check as check
from samebits.data._loader import DataLoader as DataLoader
from samebits.data._pipeline import Pipeline as Pipeline
