"""Collate functions of text: Transformers, TRL, sentence-transformers, tokenizers, datasets."""

from __future__ import annotations

import functools
from typing import Any

from lab.loaders.registry import case

WORDS = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(60))]


@functools.cache
def tokenizer() -> Any:
    """A tokenizer that needs no download."""
    import tokenizers
    import transformers

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", cls_token="[CLS]",
        sep_token="[SEP]"
    )  # fmt: skip


def rows(**more: Any) -> list[dict[str, Any]]:
    return [
        {"input_ids": tokenizer()(" ".join(f"w{(n * 7 + k) % 60}" for k in range(4)))["input_ids"], **more}
        for n in range(32)
    ]


def with_collator(name: str, data: Any = None, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    import transformers

    collate = getattr(transformers, name)(tokenizer(), **arguments)
    return rows(labels=[1, 2, 3, 4]) if data is None else data, {"collate_fn": collate}


@case("transformers")
def default_data_collator() -> Any:
    import transformers

    return rows(labels=1), {"collate_fn": transformers.default_data_collator}


@case("transformers")
def default_data_collator_class() -> Any:
    import transformers

    return rows(labels=1), {"collate_fn": transformers.DefaultDataCollator()}


@case("transformers")
def padding() -> Any:
    return with_collator("DataCollatorWithPadding", rows(labels=1))


@case("transformers")
def masked() -> Any:
    return with_collator("DataCollatorForLanguageModeling", rows(), mlm=True)


@case("transformers")
def masked_with_seed() -> Any:
    return with_collator("DataCollatorForLanguageModeling", rows(), mlm=True, seed=7)


@case("transformers")
def causal() -> Any:
    return with_collator("DataCollatorForLanguageModeling", rows(), mlm=False)


@case("transformers")
def sequences() -> Any:
    return with_collator("DataCollatorForSeq2Seq")


@case("transformers")
def token_classes() -> Any:
    return with_collator("DataCollatorForTokenClassification")


@case("transformers")
def permuted() -> Any:
    return with_collator("DataCollatorForPermutationLanguageModeling", rows())


@case("transformers")
def multiple_choice() -> Any:
    data = [{"input_ids": [[5, 6], [7, 8, 9]], "labels": 1} for _ in range(32)]
    return with_collator("DataCollatorForMultipleChoice", data)


@case("transformers")
def flattened() -> Any:
    import transformers

    return rows(labels=[1, 2, 3, 4]), {"collate_fn": transformers.DataCollatorWithFlattening()}


@case("transformers")
def pad_in_a_lambda() -> Any:
    pad = tokenizer().pad
    return rows(), {"collate_fn": lambda found: pad(found, return_tensors="pt")}


@case("transformers")
def tokenize_in_collate() -> Any:
    tokenize = tokenizer()
    return [f"w{n} w3" for n in range(32)], {
        "collate_fn": lambda found: tokenize(found, padding=True, return_tensors="pt")
    }


@case("tokenizers")
def encode_batch() -> Any:
    raw = tokenizer().backend_tokenizer
    return [f"w{n} w3" for n in range(32)], {
        "collate_fn": lambda found: [one.ids for one in raw.encode_batch(found)]
    }


@case("tokenizers")
def dropout_of_pairs() -> Any:
    import tokenizers

    model = tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5)
    raw = tokenizers.Tokenizer(model)
    return ["ab" * 20] * 32, {"collate_fn": lambda found: [raw.encode(one).ids for one in found]}


@case("datasets")
def arrow_rows() -> Any:
    import datasets

    return datasets.Dataset.from_dict({"x": list(range(64)), "y": [[1.0, 2.0]] * 64}).with_format("torch"), {}


@case("datasets")
def arrow_with_a_random_transform() -> Any:
    import datasets
    import torch

    def noisy(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": [one + torch.rand(()) for one in batch["x"]]}

    return datasets.Dataset.from_dict({"x": [1.0] * 64}).with_transform(noisy), {}


@case("trl")
def trl_sft() -> Any:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    return rows(), {"collate_fn": DataCollatorForLanguageModeling(pad_token_id=0)}


@case("trl")
def trl_preference() -> Any:
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    data = [{"prompt_ids": [5, 6], "chosen_ids": [7] * (1 + n % 4), "rejected_ids": [8]} for n in range(32)]
    return data, {"collate_fn": DataCollatorForPreference(pad_token_id=0)}


@case("sentence_transformers")
def sentence_pairs() -> Any:
    from sentence_transformers.data_collator import SentenceTransformerDataCollator

    tokenize = tokenizer()

    def tokens(texts: list[str], **_: Any) -> Any:
        return tokenize(texts, padding=True, return_tensors="pt")

    data = [{"anchor": f"w{n}", "positive": f"w{n} w3", "label": 1.0} for n in range(32)]
    return data, {"collate_fn": SentenceTransformerDataCollator(tokens)}
