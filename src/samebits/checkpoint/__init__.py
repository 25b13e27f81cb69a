"""Checkpoints without pickle: state, manifests with digests, atomic durable commits; exchange with other programs."""

from samebits.checkpoint.codec import decode, encode
from samebits.checkpoint.exchange import (
    export,
    export_dcp,
    export_safetensors,
    export_torch,
    load_commit,
    load_weights,
)
from samebits.checkpoint.listing import Listed, list_commits, prune
from samebits.checkpoint.manifest import Manifest
from samebits.checkpoint.place import store_for
from samebits.checkpoint.remote import RemoteStore
from samebits.checkpoint.store import CommitStore

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
