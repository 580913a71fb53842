"""docs/hardware.md says what the catalogue says."""

from pathlib import Path

from openrecipes.hardware.catalogue import catalogue

DOCS = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text(encoding="utf-8")


def test_every_gpu_of_the_table_is_the_catalogues() -> None:
    for gpu in catalogue().gpus.values():
        if gpu.name == "CPU":
            continue
        row = next(line for line in DOCS.splitlines() if line.startswith(f"| {gpu.name} |"))
        assert gpu.label_gb and gpu.smi_mib and gpu.usable_gib
        assert f"| {gpu.label_gb:g} GB | {gpu.smi_mib:,.0f} MiB | {gpu.usable_gib:.2f} GiB |" in row
        peaks = [gpu.peak(precision) for precision in ("bf16", "fp8", "fp4")]
        cells = [cell.strip() for cell in row.strip("|").split("|")][4:7]
        assert cells == ["" if peak is None else f"{peak / 1e12:,.0f}" for peak in peaks]


def test_every_instance_and_price_is_listed() -> None:
    for instance in catalogue().instances.values():
        row = next(line for line in DOCS.splitlines() if line.startswith(f"| {instance.name} |"))
        assert f"{instance.gpus} {instance.gpu}" in row
        for price in instance.prices:
            assert f"{price.usd_per_hour:g} from {price.from_}" in row or (
                f"{price.usd_per_hour} from {price.from_}" in row
            )
