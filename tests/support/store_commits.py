"""Commits that a test makes itself, without a run."""


def write_commit(store, step, state, on_tensors_written=None, **facts):
    """Makes `state` durable as the commit of `step` in an open `CommitStore`; returns its manifest."""
    return store.write(store.prepare(state, step=step, **facts), on_tensors_written)
