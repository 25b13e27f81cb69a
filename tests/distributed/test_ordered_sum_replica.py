"""The replica analysis knows a step by shards without flags: the ordered sum is equal on all ranks, a shard's values vary."""

import pytest
import torch
import torch.distributed as dist

from samebits import replica
from samebits.distributed._ordered_sum import _buckets


def step(weight, x, gathers=True):
    """One round of W shards: slices to their owners, added in order, gathered (`OrderedSum`)."""
    ranks = dist.get_world_size()
    (bucket,) = _buckets([("weight", torch.nn.Parameter(torch.ones(8)))], ranks)
    gradient = (x * weight.detach()).sum(0)
    received = torch.empty_like(gradient)
    dist.all_to_all_single(received.view(torch.uint8), gradient.view(torch.uint8))
    bucket.add(received.view(ranks, bucket.piece))
    whole = torch.empty_like(gradient)
    if gathers:
        dist.all_gather_into_tensor(whole.view(torch.uint8), bucket.total.view(torch.uint8))
    else:
        whole.copy_(bucket.total.repeat(ranks))
    weight.sub_(whole)
    return {"gradient": gradient}


def analyzed(*args):
    captured = replica.capture(step, torch.ones(8), torch.randn(3, 8), *args, world_size=4)
    return replica.analyze(captured, {"x": replica.PerReplica()})


@pytest.mark.filterwarnings("ignore:.*all_gather_single:FutureWarning")
def test_the_ordered_sum_is_equal_on_all_ranks():
    """The weight stays equal, a shard's own gradient varies (control: without the gather the weight varies)."""
    report = analyzed()
    report.expect_equal("weight")
    report.expect_varying("output.gradient")
    with pytest.raises(AssertionError, match="weight"):
        analyzed(False).expect_equal("weight")
