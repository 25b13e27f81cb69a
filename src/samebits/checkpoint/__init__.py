"""Checkpoints without pickle: state, manifests with digests, atomic durable commits; exchange with other programs."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.checkpoint.codec import decode as decode
    from samebits.checkpoint.codec import encode as encode
    from samebits.checkpoint.exchange import export as export
    from samebits.checkpoint.exchange import export_dcp as export_dcp
    from samebits.checkpoint.exchange import export_safetensors as export_safetensors
    from samebits.checkpoint.exchange import export_torch as export_torch
    from samebits.checkpoint.exchange import load_commit as load_commit
    from samebits.checkpoint.exchange import load_weights as load_weights
    from samebits.checkpoint.listing import Listed as Listed
    from samebits.checkpoint.listing import list_commits as list_commits
    from samebits.checkpoint.listing import prune as prune
    from samebits.checkpoint.manifest import Manifest as Manifest
    from samebits.checkpoint.place import store_for as store_for
    from samebits.checkpoint.remote import RemoteStore as RemoteStore
    from samebits.checkpoint.store import CommitStore as CommitStore

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
        "CommitStore": "samebits.checkpoint.store",
        "Listed": "samebits.checkpoint.listing",
        "Manifest": "samebits.checkpoint.manifest",
        "RemoteStore": "samebits.checkpoint.remote",
        "decode": "samebits.checkpoint.codec",
        "encode": "samebits.checkpoint.codec",
        "export": "samebits.checkpoint.exchange",
        "export_dcp": "samebits.checkpoint.exchange",
        "export_safetensors": "samebits.checkpoint.exchange",
        "export_torch": "samebits.checkpoint.exchange",
        "list_commits": "samebits.checkpoint.listing",
        "load_commit": "samebits.checkpoint.exchange",
        "load_weights": "samebits.checkpoint.exchange",
        "prune": "samebits.checkpoint.listing",
        "store_for": "samebits.checkpoint.place",
    },
)
