"""Checkpoints without pickle: a codec for state, manifests with digests, atomic durable commits."""

from samebits.checkpoint.codec import decode, encode
from samebits.checkpoint.manifest import Manifest
from samebits.checkpoint.place import store_for
from samebits.checkpoint.remote import RemoteStore
from samebits.checkpoint.store import CommitStore

__all__ = ["CommitStore", "Manifest", "RemoteStore", "decode", "encode", "store_for"]
