"""Checkpoints without pickle: a codec for state, manifests with digests, atomic durable commits."""

from samebits.checkpoint.codec import decode, encode
from samebits.checkpoint.manifest import Manifest
from samebits.checkpoint.store import CommitStore

__all__ = ["CommitStore", "Manifest", "decode", "encode"]
