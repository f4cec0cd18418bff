"""requirements.txt and constraints.txt say what pyproject.toml needs, and the bill of materials says what they say."""

from __future__ import annotations

import json
import re
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import LOCK, PINS, closure, groups, locked, pick, requirements

PACKAGES = {package.name: package for package in locked()}
# What locked packages need, by those that are installed in the locked version.
HERE = {
    package.name: found.requires or []
    for found in distributions()
    if (package := PACKAGES.get(canonicalize_name(found.name))) and package.version == found.version.partition("+")[0]
}


@pytest.mark.parametrize("group", groups())
def test_the_lock_has_what_an_extra_asks_for(group: str) -> None:
    asked = list(requirements(groups()[group]))
    for wanted in asked:
        package = PACKAGES[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(package.version, prereleases=True), (wanted, package.version)
    needed, unknown = closure(groups()[group], HERE)
    assert {canonicalize_name(Requirement(text).name) for text in unknown} <= set(PACKAGES)
    for name, system in needed:
        assert PACKAGES[name].groups & {"core", "cuda", group}, (name, group)  # whichever torch is here
        assert not PACKAGES[name].marker or system in PACKAGES[name].marker, (name, system)


def test_pins_and_hashes_are_of_the_same_versions() -> None:
    assert PINS.read_text().splitlines()[1:] == [f"{package.name}=={package.version}" for package in PACKAGES.values()]
    assert list(PACKAGES) == sorted(PACKAGES)
    for package in PACKAGES.values():
        assert package.hashes and all(re.fullmatch("[0-9a-f]{64}", found) for found in package.hashes), package.name
    assert "://" not in LOCK.read_text()  # a hash says which file; where it comes from is the reader's choice


def test_packages_that_are_locked_need_nothing_else_in_other_versions() -> None:
    for name, needs in HERE.items():
        for wanted in map(Requirement, needs):
            package = PACKAGES.get(canonicalize_name(wanted.name))
            if package is not None and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
                assert wanted.specifier.contains(package.version, prereleases=True), (name, wanted)


def test_a_part_is_picked(capsys: pytest.CaptureFixture[str]) -> None:
    pick("core", "explorer")
    picked = re.findall(r"^([\w-]+)==", capsys.readouterr().out, re.MULTILINE)
    assert {"numpy", "fastapi", "pydantic-core"} <= set(picked) and not {"torch", "pytest", "matplotlib"} & set(picked)
    pick("pip")
    assert re.fullmatch(r"pip==[\d.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", capsys.readouterr().out)
    with pytest.raises(SystemExit, match="nothing for explorers"):
        pick("explorers")


def test_the_bill_of_materials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    from tools.sbom import main

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name in "ab":
        main(tmp_path / name)
    text = (tmp_path / "a").read_text()
    assert text == (tmp_path / "b").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    assert found["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    components = {one["name"]: one for one in found["components"]}
    assert "pytest" not in components and components["torch"]["scope"] == "optional"
    numpy = components["numpy"]
    assert (numpy["purl"], numpy["scope"]) == (f"pkg:pypi/numpy@{PACKAGES['numpy'].version}", "required")
    assert {one["content"] for one in numpy["externalReferences"][0]["hashes"]} == set(PACKAGES["numpy"].hashes)
    assert numpy["licenses"] and components["pyyaml"]["licenses"] == [{"license": {"name": "MIT License"}}]
    graph = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    assert numpy["purl"] in graph["dpmerge"] and numpy["purl"] in graph[components["scipy"]["purl"]]
    assert components["psycopg-binary"]["purl"] in graph[components["psycopg"]["purl"]]
    assert found["metadata"]["component"]["version"] == distribution("dpmerge").version
