"""Pictures of kept numbers, drawn again: which, and where; what is damaged is one line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dpmerge_lab import redraw
from dpmerge_lab.experiments.results import Options

RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Of two experiments and of all audits."""
    for name in ("knob/knob.json", "composition/composition.json", "audit/summary.json"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(RESULTS / name, tmp_path / name)
    return tmp_path


def drawn(folder: Path) -> list[str]:
    paths = list(folder.rglob("*.png"))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    return sorted(path.name for path in paths)


def test_the_command_draws_what_is_asked_for(kept: Path) -> None:
    redraw.main([str(kept), "--only", "knob", "--soundness", str(kept / "soundness.png")])
    assert drawn(kept) == ["knob-table.png", "soundness.png"]
    redraw.main([str(kept), "--only", "knob", "--only", "composition"])
    assert drawn(kept) == [
        *(f"composition-{one}.png" for one in ("epsilon", "models", "two")),
        "knob-table.png",
        "soundness.png",
    ]


def test_the_command_draws_heatmaps_and_nothing_else(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (document,) = dict(redraw.pictures(kept, ["knob"])).values()

    def heatmaps(folder: Path, options: Options) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        assert not options.quick
        yield folder / "knob" / "heatmap.png", document

    monkeypatch.setattr(redraw, "heatmaps", heatmaps)
    redraw.main([str(kept), "--heatmaps"])
    assert drawn(kept) == ["heatmap.png"]


def test_heatmaps_are_not_of_single_experiments(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        redraw.main([str(kept), "--heatmaps", "--only", "knob"])
    assert stopped.value.code == 2 and "not allowed with argument" in capsys.readouterr().err
    assert drawn(kept) == []


def test_heatmaps_are_those_that_are_kept() -> None:
    found = dict(redraw.heatmaps(RESULTS, Options(quick=True, jobs=1)))
    assert {*found} == {*RESULTS.rglob("*-heatmap*.png")}
    assert [document["adjacency"] for document in found.values()] == ["add-remove", *["replace-one"] * 3]
    assert len({tuple(document["reach"]) for document in list(found.values())[1:]}) == 1


@pytest.mark.parametrize("name", ["knob/knob.json", "audit/summary.json"])
def test_damaged_numbers_are_one_line(name: str, kept: Path) -> None:
    (kept / name).write_text((kept / name).read_text()[:50])
    with pytest.raises(SystemExit, match=f"^error: {kept / name}: cannot be read") as stopped:
        redraw.main([str(kept), "--only", "knob", "--soundness", str(kept / "soundness.png")])
    assert "\n" not in str(stopped.value.code)
