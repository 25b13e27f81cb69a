"""Transforms and datasets of images: torchvision, timm, albumentations, kornia, MONAI, torchio and others."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from lab.loaders.registry import Mapped, case, image_tensors, images


def v2(*names_and_arguments: Any) -> tuple[Any, dict[str, Any]]:
    from torchvision.transforms import v2 as transforms

    made = [getattr(transforms, name)(**arguments) for name, arguments in names_and_arguments]
    return Mapped(image_tensors(), transforms.Compose(made)), {}


@case("torchvision")
def crop_flip_normalize() -> Any:
    return v2(
        ("RandomResizedCrop", {"size": 24}), ("RandomHorizontalFlip", {}),
        ("ToDtype", {"dtype": torch.float32, "scale": True}), ("Normalize", {"mean": [0.5], "std": [0.2]})
    )  # fmt: skip


@case("torchvision")
def color_jitter() -> Any:
    return v2(("ColorJitter", {"brightness": 0.3, "hue": 0.1}))


@case("torchvision")
def rand_augment() -> Any:
    return v2(("RandAugment", {}))


@case("torchvision")
def trivial_augment() -> Any:
    return v2(("TrivialAugmentWide", {}))


@case("torchvision")
def auto_augment() -> Any:
    return v2(("AutoAugment", {}))


@case("torchvision")
def aug_mix() -> Any:
    return v2(("AugMix", {}))


@case("torchvision")
def blur() -> Any:
    return v2(("GaussianBlur", {"kernel_size": 3}))


@case("torchvision")
def elastic() -> Any:
    return v2(("ElasticTransform", {}))


@case("torchvision")
def erasing() -> Any:
    return v2(("RandomErasing", {"p": 0.5}))


def mixed(name: str) -> tuple[Any, dict[str, Any]]:
    from torchvision.transforms import v2 as transforms

    mix = getattr(transforms, name)(num_classes=10)
    data = [(one.float(), number % 10) for number, one in enumerate(image_tensors())]
    return data, {"collate_fn": lambda found: mix(*torch.utils.data.default_collate(found))}


@case("torchvision")
def mix_up() -> Any:
    return mixed("MixUp")


@case("torchvision")
def cut_mix() -> Any:
    return mixed("CutMix")


@case("torchvision")
def old_transforms() -> Any:
    from torchvision import datasets, transforms

    steps = [transforms.RandomCrop(24, padding=2), transforms.RandomRotation(10), transforms.ToTensor()]
    return datasets.FakeData(32, (3, 32, 32), transform=transforms.Compose(steps)), {}


@case("timm")
def timm_train() -> Any:
    from PIL import Image
    from timm.data import create_transform

    made = create_transform(32, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.3)
    return Mapped([Image.fromarray(one) for one in images()], made), {}


@case("timm")
def timm_mixup() -> Any:
    from timm.data import FastCollateMixup

    data = [(one.numpy(), number % 10) for number, one in enumerate(image_tensors())]
    return data, {"collate_fn": FastCollateMixup(mixup_alpha=0.8, num_classes=10)}


def albumented(make: Any) -> tuple[Any, dict[str, Any]]:
    import albumentations

    whole = albumentations.Compose(make(albumentations))
    return Mapped(images(), lambda one: whole(image=one)["image"]), {}


@case("albumentations")
def albumentations_usual() -> Any:
    return albumented(lambda a: [a.HorizontalFlip(), a.RandomBrightnessContrast(), a.Affine(rotate=(-9, 9))])


@case("albumentations")
def albumentations_one_of() -> Any:
    return albumented(lambda a: [a.OneOf([a.GaussNoise(), a.MotionBlur(), a.MedianBlur()], p=0.8)])


@case("albumentations")
def albumentations_dropout() -> Any:
    return albumented(lambda a: [a.CoarseDropout(), a.GridDistortion(), a.ElasticTransform()])


@case("albumentations")
def albumentations_seeded() -> Any:
    import albumentations

    whole = albumentations.Compose([albumentations.RandomCrop(16, 16)], seed=3)
    return Mapped(images(), lambda one: whole(image=one)["image"]), {}


def volumes() -> list[dict[str, np.ndarray]]:
    return [{"image": np.random.default_rng(n).random((1, 12, 12, 12), np.float32)} for n in range(8)]


@case("monai")
def monai_dataset() -> Any:
    from monai import data, transforms

    steps = [transforms.RandFlipd(["image"], prob=0.5), transforms.RandGaussianNoised(["image"], prob=0.5)]
    return data.Dataset(volumes(), transforms.Compose(steps)), {"collate_fn": data.list_data_collate}


@case("monai")
def monai_cache() -> Any:
    from monai import data, transforms

    steps = [transforms.EnsureTyped(["image"]), transforms.RandAffined(["image"], prob=0.9, rotate_range=0.2)]
    return data.CacheDataset(volumes(), transforms.Compose(steps), progress=False), {}


@case("monai")
def monai_crops() -> Any:
    from monai import data, transforms

    steps = [transforms.RandSpatialCropSamplesd(["image"], roi_size=6, num_samples=2, random_size=False)]
    return data.Dataset(volumes(), transforms.Compose(steps)), {"collate_fn": data.list_data_collate}


@case("kornia")
def kornia_in_collate() -> Any:
    from kornia import augmentation

    made = augmentation.AugmentationSequential(augmentation.RandomHorizontalFlip(), data_keys=["input"])
    data = [one.float() / 255 for one in image_tensors()]
    return data, {"collate_fn": lambda found: made(torch.stack(found))}


@case("kornia")
def kornia_in_dataset() -> Any:
    from kornia import augmentation

    made = torch.nn.Sequential(augmentation.ColorJitter(0.1, 0.1), augmentation.RandomAffine(10.0))
    return Mapped([one.float() / 255 for one in image_tensors()], lambda one: made(one[None])[0]), {}


@case("torchio")
def torchio_subjects() -> Any:
    import torchio

    subjects = [
        torchio.Subject(image=torchio.ScalarImage(tensor=torch.from_numpy(one["image"]))) for one in volumes()
    ]
    whole = torchio.Compose([torchio.RandomFlip(), torchio.RandomNoise()])
    data = torchio.SubjectsDataset(subjects, transform=whole)
    return Mapped(data, lambda one: one["image"][torchio.DATA]), {}


@case("segmentation_models_pytorch")
def segmentation_preprocessing() -> Any:
    from segmentation_models_pytorch.encoders._preprocessing import preprocess_input

    return Mapped(images(), functools.partial(preprocess_input, mean=[0.5] * 3, std=[0.2] * 3)), {}


@case("ultralytics")
def ultralytics_classify() -> Any:
    from PIL import Image
    from ultralytics.data.augment import classify_augmentations

    made = classify_augmentations(size=32)
    return Mapped([Image.fromarray(one) for one in images()], made), {}
