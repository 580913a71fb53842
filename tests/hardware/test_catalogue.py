"""The catalogue: its figures, dated prices, and the users' own files."""

import os
from datetime import date
from pathlib import Path

import pytest

from openrecipes.errors import InputError
from openrecipes.hardware.catalogue import VARIABLE, catalogue, gpu, price


def test_the_six_gpus_and_the_cpu_are_known() -> None:
    assert set(catalogue().gpus) == {"A100", "H100", "H200", "B200", "GB200", "GB300", "CPU"}


def test_every_figure_names_its_source() -> None:
    for entry in catalogue().gpus.values():
        given = entry.model_dump(exclude={"name", "aliases", "sources"}, exclude_defaults=True)
        assert set(given) == set(entry.sources), entry.name


def test_peaks_are_dense() -> None:
    for name in ("H100", "H200"):
        entry = gpu(name)
        assert entry is not None and entry.peak("bf16") == 989e12


def test_usable_memory_lies_below_what_the_driver_shows() -> None:
    for entry in catalogue().gpus.values():
        if entry.name == "CPU":
            continue
        assert entry.usable_bytes is not None and entry.smi_mib is not None
        assert 0.95 < entry.usable_bytes / (entry.smi_mib * 2**20) < 1


def test_usable_memory_of_an_h200() -> None:
    h200 = gpu("H200")
    assert h200 is not None and h200.usable_bytes == int(139.8 * 2**30)


def test_a_cpu_is_known_without_peak_memory_or_price() -> None:
    cpu = gpu("CPU")
    assert cpu is not None
    assert (cpu.peak("bf16"), cpu.usable_bytes, cpu.label_gb) == (None, None, None)


def test_the_precision_decides_the_peak() -> None:
    b200, a100 = gpu("B200"), gpu("A100")
    assert b200 is not None and a100 is not None
    assert b200.peak("mxfp8") == b200.peak("fp8") == 4500e12
    assert b200.peak("nvfp4") == 9000e12
    assert a100.peak("fp8") is None and a100.peak("nonsense") is None


@pytest.mark.parametrize("name", ["h200", "NVIDIA H200", " nvidia  h200 "])
def test_the_drivers_name_is_understood(name: str) -> None:
    found = gpu(name)
    assert found is not None and found.name == "H200"


def test_an_unknown_gpu_is_none() -> None:
    assert gpu("H9000") is None


def test_the_price_of_the_measured_day() -> None:
    found = price("AWS p5en.48xlarge", date(2026, 10, 15))
    assert found is not None
    assert found.usd_per_gpu_hour == pytest.approx(7.912)
    assert price("p5en.48xlarge", date(2026, 10, 15)) == found


def test_a_later_price_does_not_change_an_earlier_day() -> None:
    before, after = (price("AWS p5.48xlarge", date(2025, m, 1)) for m in (5, 6))
    assert before is not None and before.usd_per_gpu_hour == pytest.approx(12.29)
    assert after is not None and after.usd_per_gpu_hour == pytest.approx(6.88)


def test_what_is_not_known_has_no_price() -> None:
    assert price("AWS p5en.48xlarge", date(2020, 1, 1)) is None
    assert price("AWS p6e-gb200.36xlarge", date(2026, 1, 1)) is None
    assert price("nobody's machine", date(2026, 1, 1)) is None


def test_every_instance_has_a_known_gpu() -> None:
    for instance in catalogue().instances.values():
        assert instance.gpu in catalogue().gpus


def test_users_add_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("[gpus.X1]\nlabel_gb = 10\npeaks = { bf16 = 1e12 }\n[gpus.H200]\nlabel_gb = 1\n")
    two.write_text(
        '[instances."Home box"]\ngpu = "X1"\ngpus = 2\n'
        'prices = [{ usd_per_hour = 3.0, from = 2026-01-01, source = "the bill" }]\n'
    )
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(one), str(two)]))
    mine, h200, h100 = gpu("X1"), gpu("H200"), gpu("H100")
    assert mine is not None and mine.peak("bf16") == 1e12
    assert h200 is not None and h200.label_gb == 1 and h200.peaks == {}
    assert h100 is not None
    home = price("Home box", date(2026, 2, 1))
    assert home is not None and home.usd_per_gpu_hour == 1.5


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[gpus.X]\npeak = 1\n", "gpus.X.peak"),
        ("[gpus.X]\nlabel_gb = -1\n", "gpus.X.label_gb"),
        ("[gpus.X]\nlabel_gb = nan\n", "gpus.X.label_gb"),
        ("[gpus.X]\nlabel_gb = 'many'\n", "gpus.X.label_gb"),
        ("[gpus.X.peaks]\nbf16 = 5e-324\n", "gpus.X.peaks.bf16"),
        ("[gpus.X.peaks]\nbf16 = inf\n", "gpus.X.peaks.bf16"),
        (
            "[instances.X]\ngpu = 'H200'\ngpus = 8\n[[instances.X.prices]]\nusd_per_hour = nan\n"
            "from = 2026-01-01\nsource = 'x'\n",
            "instances.X.prices.0.usd_per_hour",
        ),
        ("[gpus]\nX = 1\n", "gpus.X"),
        ("gpus = 1\n", "gpus"),
        ("[gpu.X]\n", "gpu"),
        ("[instances.X]\ngpu = 'H200'\ngpus = 0\n", "instances.X.gpus"),
        ("[[broken\n", None),
    ],
)
def test_a_wrong_file_is_told(
    text: str, field: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    monkeypatch.setenv(VARIABLE, str(own))
    with pytest.raises(InputError) as caught:
        catalogue()
    assert (caught.value.file, caught.value.field) == (str(own), field)


def test_a_missing_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent.toml"))
    with pytest.raises(InputError, match="no such file"):
        catalogue()
