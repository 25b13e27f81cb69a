"""Programs of users across machines: some of `python -m lab.programs`, which runs all of them."""

import pytest
import torch

from lab.programs.run import PROGRAMS, Outcome, elsewhere, here, outcomes

pytestmark = pytest.mark.slow
NAMES = (
    *(
        "mixup_with_beta",
        "quantization_aware",
        "autocast_bfloat16",
        "encoder_with_padding",
        "sparse_embedding",
    ),
    *("llama_block", "state_space_layer", "gpt", "gamma_posterior", "private_gradients", "complex_network"),
)


def test_programs_have_the_same_bits_over_threads_and_machines():
    """Each of them runs, with one digest at 1 and 3 threads and on a CPU with AVX2."""
    assert [one for one in outcomes(NAMES, "machines", (1, 3)) if not one.equal] == []
    assert len(PROGRAMS) >= 60


def test_torchs_own_kernels_would_be_seen():
    """Negative control: without the switch some of the programs have other digests on the other CPU."""
    ours, theirs = here(("gpt", "llama_block"), "off", (2,)), elsewhere(("gpt", "llama_block"), "off")
    assert any(one.digests[0] != theirs[one.name] for one in ours)


def test_a_refusal_names_the_op_and_is_not_equal():
    """Negative control: a program that calls eigh says which op refused."""
    PROGRAMS["eigh"] = lambda: torch.linalg.eigh(torch.eye(3))
    try:
        (one,) = here(("eigh",), "machines", (1,))
    finally:
        del PROGRAMS["eigh"]
    assert one == Outcome("eigh", ("",), "aten::_linalg_eigh") and not one.equal
