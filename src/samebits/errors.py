"""One exception class per mistake. A message names what was called, where, and the cure."""


class SamebitsError(Exception):
    """Base of every error that samebits raises on purpose."""


class InvalidArgumentError(SamebitsError, ValueError):
    """An argument is outside what the call takes."""


class InvalidCallError(InvalidArgumentError, TypeError):
    """A call does not fit the function: an argument is missing, has no name, or is unknown."""


class UnseededError(SamebitsError, RuntimeError):
    """A random number was drawn, and no seed is set."""


class UnimplementedError(SamebitsError, NotImplementedError):
    """No deterministic implementation exists; the message names what to use instead."""


class ConflictError(SamebitsError, RuntimeError):
    """A flag, an environment variable or a way of training contradicts op determinism."""


class RankDependentError(SamebitsError, RuntimeError):
    """The Python code of a training step differs on other ranks; the message names the first difference."""


class ReplicaDriftError(SamebitsError, RuntimeError):
    """A value claimed equal on several ranks differs in bits; the message names it, ranks and step."""


class RoundingMethodError(SamebitsError, RuntimeError):
    """The stochastic rounding methods of a graph are missing, not wanted, or older than the graph."""


class UnsavableStateError(SamebitsError, TypeError):
    """A value in a state_dict is neither plain nor a tensor, so it cannot be saved without pickle."""


class IncompleteStateError(SamebitsError, RuntimeError):
    """Something that changes from step to step is in no commit: a resumed run would have another value."""


class ResumeMismatchError(SamebitsError, RuntimeError):
    """A value that no commit holds is another one after a resume, and the program reads it."""


class CommitError(SamebitsError, RuntimeError):
    """A commit could not be written; earlier commits are untouched."""


class CorruptCommitError(SamebitsError, RuntimeError):
    """A commit on disk is incomplete, or its bytes do not have the digests of its manifest."""


class NewerCommitError(CorruptCommitError):
    """A commit on disk is complete, and of a schema that this samebits does not know."""


class RunDirectoryError(SamebitsError, RuntimeError):
    """A run directory cannot be used: not writable, in use by a live process, or not a run directory."""


class RemoteStorageError(SamebitsError, RuntimeError):
    """A remote storage did not answer, or refused."""


class WeightsFileError(SamebitsError, RuntimeError):
    """A file of weights is damaged, of no known kind, or cannot be read without executing it."""


class WeightsMismatchError(SamebitsError, RuntimeError):
    """Weights do not fit a module: names or shapes differ."""


class RunMismatchError(SamebitsError, RuntimeError):
    """A run directory was made with other objects, shapes, hyperparameters, seed, or environment."""


class RanksError(SamebitsError, RuntimeError):
    """The processes of one run have come apart: one has ended, or they are at different steps."""


class PipelineMismatchError(SamebitsError, RuntimeError):
    """A saved position belongs to another input pipeline; the message names what differs."""


class PipelineError(SamebitsError, RuntimeError):
    """A stage of a pipeline failed; the message names stage, element and cause."""


class PipelineTimeoutError(PipelineError, TimeoutError):
    """A worker did not have a result within the `timeout` of its pipeline."""


class PipelineDifferenceError(SamebitsError, RuntimeError):
    """A pipeline that was read in two ways gave different elements."""


class EmptyDatasetError(SamebitsError, ValueError):
    """A dataset or an epoch has nothing in it."""


class DuplicateNameError(SamebitsError, ValueError):
    """Two loops or two objects of one run have the same name."""


class NonFiniteLossError(SamebitsError, FloatingPointError):
    """The loss became NaN or infinite."""


class ReplayMismatchError(SamebitsError, RuntimeError):
    """A step that was computed twice had other bits the second time (`Run(replay_check=)`)."""


class RecordError(SamebitsError, RuntimeError):
    """A record cannot be written or read."""


class VerifyError(SamebitsError, RuntimeError):
    """`samebits verify` could not run the script: it is missing, it raised, or it trains nothing."""


class UnimplementedWarning(UserWarning):
    """An op without a deterministic implementation ran (`on_unimplemented="warn"`)."""


class ConflictWarning(UserWarning):
    """A setting that contradicts op determinism was found and ignored."""


class UndeclaredOpWarning(UserWarning):
    """A custom op or kernel ran whose determinism is not declared."""


class UnreviewedOpWarning(UserWarning):
    """An overload of torch ran that is not in the op table of this samebits."""


class IncompleteStateWarning(UserWarning):
    """A value that flows only into a print, a log or a file is in no commit: a resumed run prints others."""


class UnseededWarning(UserWarning):
    """Random numbers came from a source that does not follow the seed, or before the seed was set."""
