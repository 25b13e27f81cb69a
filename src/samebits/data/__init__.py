"""Input: batches that are a function of (pipeline, seed, epoch, number)."""

from samebits.data.loader import DataLoader as DataLoader
from samebits.data.pipeline import Pipeline as Pipeline
from samebits.data.selfcheck import check as check
