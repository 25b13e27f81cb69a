"""Input: batches that are a function of (pipeline, seed, epoch, number)."""

from samebits.data.loader import DataLoader as DataLoader
