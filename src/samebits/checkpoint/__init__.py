"""Checkpoints without pickle: state, manifests with digests, atomic durable commits; exchange with other programs."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.checkpoint._codec import decode as decode
    from samebits.checkpoint._codec import encode as encode
    from samebits.checkpoint._exchange.export import export as export
    from samebits.checkpoint._exchange.export import export_dcp as export_dcp
    from samebits.checkpoint._exchange.export import export_safetensors as export_safetensors
    from samebits.checkpoint._exchange.export import export_torch as export_torch
    from samebits.checkpoint._exchange.export import load_commit as load_commit
    from samebits.checkpoint._exchange.export import load_weights as load_weights
    from samebits.checkpoint._listing import Listed as Listed
    from samebits.checkpoint._listing import list_commits as list_commits
    from samebits.checkpoint._listing import prune as prune
    from samebits.checkpoint._local_store import CommitStore as CommitStore
    from samebits.checkpoint._manifest import Manifest as Manifest
    from samebits.checkpoint._open_store import store_for as store_for
    from samebits.checkpoint._remote.remote_store import RemoteStore as RemoteStore

__all__ = [
    "CommitStore",
    "Listed",
    "Manifest",
    "RemoteStore",
    "decode",
    "encode",
    "export",
    "export_dcp",
    "export_safetensors",
    "export_torch",
    "list_commits",
    "load_commit",
    "load_weights",
    "prune",
    "store_for",
]

__getattr__, __dir__ = attach(
    __name__,
    names={
        "CommitStore": "samebits.checkpoint._local_store",
        "Listed": "samebits.checkpoint._listing",
        "Manifest": "samebits.checkpoint._manifest",
        "RemoteStore": "samebits.checkpoint._remote.remote_store",
        "decode": "samebits.checkpoint._codec",
        "encode": "samebits.checkpoint._codec",
        "export": "samebits.checkpoint._exchange.export",
        "export_dcp": "samebits.checkpoint._exchange.export",
        "export_safetensors": "samebits.checkpoint._exchange.export",
        "export_torch": "samebits.checkpoint._exchange.export",
        "list_commits": "samebits.checkpoint._listing",
        "load_commit": "samebits.checkpoint._exchange.export",
        "load_weights": "samebits.checkpoint._exchange.export",
        "prune": "samebits.checkpoint._listing",
        "store_for": "samebits.checkpoint._open_store",
    },
)
