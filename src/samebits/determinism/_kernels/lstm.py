"""LSTM layers of oneDNN run on one thread: their weight gradients depend on the thread count.

Torch's CPU uses oneDNN for float32 LSTM layers only; GRU and RNN are made of matrix products. oneDNN's layer takes
the steps of a sequence one after the other and gains next to nothing from a second thread (measured: 0.85x to 1x).
"""

from __future__ import annotations

from samebits._native.torch_threads import on_single_thread
from samebits.determinism._replacement import replacements

REPLACEMENTS = replacements(
    ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    on_single_thread,
    "oneDNN's LSTM sums weight gradients by the number of threads, and its products block by it: run on one thread",
    only_threads=True,
    serial=True,
)
