"""Sound, graphs, streams, and torch's own datasets and collate functions."""

from __future__ import annotations

import io
import tarfile
import tempfile
from typing import Any

import numpy as np
import torch

from lab.loaders.registry import Mapped, case, waves


@case("audiomentations")
def audio_usual() -> Any:
    import audiomentations as audio

    steps = [audio.AddGaussianNoise(p=0.5), audio.Gain(p=0.5), audio.Shift(p=0.5)]
    whole = audio.Compose(steps)
    return Mapped(waves(), lambda one: whole(one, sample_rate=8000)), {}


@case("audiomentations")
def audio_one_of() -> Any:
    import audiomentations as audio

    whole = audio.OneOf([audio.PolarityInversion(p=1.0), audio.Normalize(p=1.0), audio.TimeMask(p=1.0)])
    return Mapped(waves(), lambda one: whole(one, sample_rate=8000)), {}


@case("webdataset")
def tar_files() -> Any:
    import webdataset

    path = f"{tempfile.mkdtemp()}/a.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(8):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    return webdataset.WebDataset(path, shardshuffle=False).decode().to_tuple("txt"), {"shuffle": False}


def graphs() -> list[Any]:
    from torch_geometric.data import Data

    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    return [Data(x=torch.full((4, 2), float(n)), edge_index=edges) for n in range(32)]


@case("torch_geometric")
def graph_batches() -> Any:
    from torch_geometric.loader.dataloader import Collater

    return graphs(), {"collate_fn": Collater(graphs())}


@case("torch_geometric")
def graph_from_data_list() -> Any:
    from torch_geometric.data import Batch

    return graphs(), {"collate_fn": Batch.from_data_list}


@case("torch_geometric")
def graph_transforms() -> Any:
    from torch_geometric import transforms
    from torch_geometric.data import Batch

    whole = transforms.Compose(
        [transforms.RandomNodeSplit(num_val=1, num_test=1), transforms.NormalizeFeatures()]
    )
    return Mapped(graphs(), lambda one: whole(one.clone())), {"collate_fn": Batch.from_data_list}


@case("torch")
def tensors() -> Any:
    return torch.utils.data.TensorDataset(torch.arange(64.0), torch.arange(64)), {}


@case("torch")
def padded_sequences() -> Any:
    data = [torch.arange(1 + n % 5) for n in range(32)]
    return data, {"collate_fn": lambda found: torch.nn.utils.rnn.pad_sequence(found, batch_first=True)}


@case("torch")
def random_parts() -> Any:
    whole = torch.utils.data.ConcatDataset([torch.utils.data.TensorDataset(torch.arange(32.0))] * 2)
    return torch.utils.data.random_split(whole, [40, 24], torch.Generator().manual_seed(1))[0], {}


@case("torch")
def stacked() -> Any:
    return torch.utils.data.StackDataset(a=torch.arange(32.0), b=torch.arange(32)), {}


@case("torch")
def noise_of_numpy() -> Any:
    return Mapped(waves(), lambda one: one + np.random.normal(size=one.shape)), {}


@case("torch")
def weighted_sampler() -> Any:
    sampler = torch.utils.data.WeightedRandomSampler(torch.ones(64), 64)
    return torch.utils.data.TensorDataset(torch.arange(64.0)), {"sampler": sampler, "shuffle": False}
