"""The ``workload`` block: what is trained on."""

from __future__ import annotations

from typing import Literal

from openrecipes.layouts.block import MOST_ROW_TOKENS, Block, field

Precision = Literal["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]


class Build(Block):
    """How the rows were made from the data set."""

    name: str | None = field(
        "Name of the rows.", example="nemotron3nano-tulu3-fixed8192-v1", default=None
    )
    tokenizer: str | None = field(
        "Tokenizer and chat template with revision and hashes.",
        example="Nemotron-3-Nano-30B-A3B (revision bf77c317)",
        default=None,
    )
    loss_mask: str | None = field("Loss mask type.", example="qwen3_5", default=None)
    rows: int | None = field("Rows in the file.", unit="rows", example=6400, default=None, ge=1)
    row_tokens: int | None = field(
        "Length of each row.", unit="tokens", example=8192, default=None, ge=1
    )
    padding_tokens: int | None = field(
        "Padding in all rows together.", unit="tokens", example=0, default=None, ge=0
    )
    seed: int | None = field("Seed of the order.", unit="1", example=42, default=None, ge=0)
    packing: str | None = field(
        "How conversations became rows.",
        example="conversations in a seeded order, joined and cut into rows of 8,192 tokens",
        default=None,
    )
    supervised_token_ratio: float | None = field(
        "Supervised tokens / all tokens, a fraction.",
        unit="1",
        example=0.665,
        default=None,
        ge=0,
        le=1,
    )
    parquet_sha256: str | None = field(
        "sha256 of the parquet file.", example="7c0d4c1b" * 8, default=None
    )
    parquet_bytes: int | None = field(
        "Size of the parquet file.", unit="bytes", example=85528499, default=None, ge=1
    )
    identical_to: str | None = field(
        "Other rows with the same content.",
        example="nemotron3nano-tulu3-fixed8192-v1, byte for byte",
        default=None,
    )
    builder: str | None = field(
        "The program that made the rows.",
        example="openrecipes rows build --loss-mask qwen3_5",
        default=None,
    )


class Dataset(Block):
    """Where the rows come from."""

    name: str | None = field("Name of the data set.", example="Tulu 3 SFT mixture", default=None)
    source: str | None = field(
        "Hub id, address or path.", example="allenai/tulu-3-sft-mixture", default=None
    )
    revision: str | None = field(
        "Revision of the source.",
        example="b14afda60f1bbebe55d5d2fa1e4df5042f97f8be",
        default=None,
    )
    license: str | None = field("Licence of the source.", example="ODC-By 1.0", default=None)
    rows_sha256: str | None = field(
        "sha256 over the rows' tokens and masks.", example="8fc04d3c" * 8, default=None
    )
    build: Build | None = field(
        "How the rows were made.", example={"rows": 6400, "row_tokens": 8192}, default=None
    )


class Workload(Block):
    """What is trained on: the part of a recipe that a faster layout must not change."""

    row_tokens: int = field(
        "Length of a packed row.", unit="tokens", example=8192, ge=1, le=MOST_ROW_TOKENS
    )
    rows: str | None = field("What the rows hold.", example="SFT conversations", default=None)
    global_batch: int = field("Rows in one optimizer step.", unit="rows", example=128, ge=1)
    precision: Precision = field("Number format of the computation.", example="bf16")
    dataset: Dataset | None = field(
        "The data.", example={"name": "Tulu 3 SFT mixture"}, default=None
    )
