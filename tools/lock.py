"""The versions that `make` installs, each with the hashes of every file published for it.

    python tools/lock.py make               write constraints.txt, keeping the pins that are there, and requirements.txt
    python tools/lock.py pick core plots    print the part of requirements.txt that the core and these extras need
    python tools/lock.py oldest core        print the oldest versions that pyproject.toml allows the core, or extras

`pick` needs nothing but Python: it runs before anything is installed.
"""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urldefrag, urljoin

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PINS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.txt"
HEAD = """\
# Made by `make lock`: the versions of constraints.txt, with the hashes of all files published for each; for torch also those of
# CPU builds, which are published apart. Above a package stands what needs it: the core, or extras (see `tools/lock.py pick`).
# `cuda` is what torch's build for CUDA needs, which is pip's choice on Linux where it finds no CPU build; `cpu` is torch alone.
"""
# Where the lock holds: a dependency that a marker asks for in one of these is in it.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS = (
    {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix"},
    {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "aarch64", "os_name": "posix"},
    {"platform_system": "Darwin", "sys_platform": "darwin", "platform_machine": "arm64", "os_name": "posix"},
    {"platform_system": "Windows", "sys_platform": "win32", "platform_machine": "AMD64", "os_name": "nt"},
)


@dataclass(frozen=True)
class Locked:
    """One package of requirements.txt."""

    name: str
    version: str
    hashes: tuple[str, ...]
    groups: frozenset[str]
    marker: str = ""  # where it is needed, if not everywhere

    def __str__(self) -> str:
        return " \\\n    --hash=sha256:".join((f"{self.name}=={self.version}{self.marker}", *self.hashes))


def locked() -> list[Locked]:
    """What requirements.txt says."""
    found = []
    for block in LOCK.read_text().split("\n\n")[1:]:
        groups, pin, *hashes = block.rstrip("\n").replace(" \\\n    --hash=sha256:", "\n").split("\n")
        name, version, marker = re.fullmatch(r"(.+)==([^ ]+)( ; .+)?", pin).groups("")  # type: ignore[union-attr]
        found.append(Locked(name, version, tuple(hashes), frozenset(groups.removeprefix("# ").split()), marker))
    return found


def groups() -> dict[str, list[str]]:
    """What the core and each extra ask for, as the two pyproject.toml say; `lab` and `lab-torch` are the laboratory's."""
    import tomllib

    tool, lab = (tomllib.loads((ROOT / place / "pyproject.toml").read_text()) for place in ("", "lab"))
    asked = {"core": tool["project"]["dependencies"], "pip": ["pip"]}
    asked["build"] = [*tool["build-system"]["requires"], "editables"]  # hatchling asks for it when it installs a checkout
    asked |= tool["project"]["optional-dependencies"] | {"lab": lab["project"]["dependencies"]}
    return asked | {f"lab-{name}": wanted for name, wanted in lab["project"]["optional-dependencies"].items()}


def requirements(asked: Iterable[str]) -> Iterator[Requirement]:
    """The packages of others that these requirements ask for; dpmerge[plots] stands for what `plots` asks for."""
    from packaging.requirements import Requirement

    for text in asked:
        wanted = Requirement(text)
        if wanted.name == "dpmerge":
            for extra in wanted.extras:
                yield from requirements(groups()[extra])
        else:
            yield wanted


def closure(asked: Iterable[str], metadata: dict[str, list[str]]) -> tuple[set[tuple[str, str]], set[str]]:
    """All packages that these need, each with the systems where; and what is asked of packages without metadata."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: set[tuple[str, str]] = set()
    unknown: set[str] = set()
    for system, python in itertools.product(SYSTEMS, PYTHONS):
        environment = {**system, "python_version": python, "python_full_version": f"{python}.0"}

        def needed(wanted: Requirement, extras: tuple[str, ...], here: dict[str, str] = environment) -> bool:
            return wanted.marker is None or any(wanted.marker.evaluate({**here, "extra": extra}) for extra in extras)

        todo = [wanted for wanted in requirements(asked) if needed(wanted, ("",))]
        seen = set()
        while todo:
            wanted = todo.pop()
            name, extras = canonicalize_name(wanted.name), ("", *sorted(wanted.extras))
            if (name, extras) in seen:
                continue
            seen.add((name, extras))
            found.add((name, system["sys_platform"]))
            if name not in metadata:
                wanted.marker = None
                unknown.add(str(wanted))
            todo += [inner for inner in map(Requirement, metadata.get(name, [])) if needed(inner, extras)]
    return found, unknown


def published(name: str) -> dict[str, tuple[str, str]]:
    """The files of a package in the index that pip is set to: address and SHA-256 by file name; without those withdrawn."""
    from pip._internal.models.index import PyPI

    index = os.environ.get("PIP_INDEX_URL") or PyPI.simple_url  # so that no host is named here
    address = f"{index.rstrip('/')}/{name}/"
    with urllib.request.urlopen(address, timeout=60) as answer:
        links = re.findall(r"<a\s([^>]*)>\s*([^<]+?)\s*</a>", answer.read().decode())
    files = {}
    for attributes, label in links:
        link = re.search(r'href="([^"]+)"', attributes)
        if link and "data-yanked" not in attributes:
            url, fragment = urldefrag(html.unescape(link[1]))
            files[html.unescape(label)] = (urljoin(address, url), fragment.removeprefix("sha256="))
    return files


def version_of(file: str) -> Version | None:
    from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
    from packaging.version import InvalidVersion

    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):  # an installer for Windows, or a name of old
        return None


def resolved(wanted: Iterable[str], *options: str) -> dict[str, tuple[str, str, list[str]]]:
    """What pip would install beside what is pinned: version, SHA-256 of the file, and requirements, by name."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-build-isolation"]
    command += ["--use-feature=fast-deps", "--report", "-", "--constraint", str(PINS), *options, *wanted]
    answer = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for item in json.loads(answer)["install"]:
        about = item["metadata"]
        if "archive_info" in item["download_info"]:  # else the project itself
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            name = re.sub(r"[-_.]+", "-", about["name"]).lower()
            found[name] = (about["version"].partition("+")[0], digest, about.get("requires_dist", []))
    return found


def write_pins(pins: dict[str, str]) -> None:
    head = PINS.read_text().partition("\n")[0]
    PINS.write_text("\n".join([head, *(f"{name}=={version}" for name, version in sorted(pins.items())), ""]))


def make() -> None:
    """Keep what constraints.txt pins, add what it lacks, forget what nothing needs."""
    from packaging.version import Version

    asked = groups()
    # The laboratory's need of dpmerge itself is met by the folder before it.
    known = resolved([".[dev]", "./lab[torch]", *asked["build"], "pip"])
    # The build of torch that is published for Linux needs more than a CPU build, which is what pip takes where it finds one.
    builds = ((file, link) for file, link in published("torch").items() if file.startswith(f"torch-{known['torch'][0]}-cp311"))
    url, digest = next(link for file, link in builds if file.endswith("linux_2_28_x86_64.whl"))
    asked["cuda"] = resolved([f"torch @ {url}#sha256={digest}"], "--no-deps")["torch"][2]
    while True:
        metadata = {name: needs for name, (_, _, needs) in known.items()}
        closures = {group: closure(wanted, metadata) for group, wanted in asked.items()}
        unknown = set().union(*(missing for _, missing in closures.values()))
        if not unknown:
            break
        pins = dict(line.split("==") for line in PINS.read_text().splitlines()[1:]) | {name: known[name][0] for name in known}
        write_pins(pins)
        known |= resolved(sorted(unknown))
    before = {(package.name, package.version): package.hashes for package in locked()} if LOCK.exists() else {}
    systems = {system["sys_platform"] for system in SYSTEMS}
    closures["cpu"] = ({("torch", system) for system in systems}, set())

    def one(name: str) -> Locked:
        version, digest, _ = known[name]
        hashes = {digest, *(sha for file, (_, sha) in published(name).items() if version_of(file) == Version(version))}
        hashes |= set(before.get((name, version), ()))  # a CPU build of torch that another machine found
        where = {group: {system for package, system in found if package == name} for group, (found, _) in closures.items()}
        groups = frozenset({"core"} if where["core"] == systems else {group for group in where if where[group]})
        somewhere = set().union(*where.values())
        marker = (
            "" if somewhere == systems else " ; " + " or ".join(f'sys_platform == "{system}"' for system in sorted(somewhere))
        )
        return Locked(name, version, tuple(sorted(hashes)), groups, marker)

    with ThreadPoolExecutor(8) as pool:
        packages = list(pool.map(one, sorted({name for found, _ in closures.values() for name, _ in found})))
    write_pins({package.name: package.version for package in packages})
    LOCK.write_text(HEAD + "".join(f"\n# {' '.join(sorted(package.groups))}\n{package}\n" for package in packages))


def pick(*extras: str) -> None:
    packages = locked()
    if unknown := set(extras) - set().union(*(package.groups for package in packages)):
        raise SystemExit(
            f"requirements.txt has nothing for {', '.join(sorted(unknown))}; add it to pyproject.toml, and `make lock`"
        )
    print(*(package for package in packages if package.groups & set(extras)), sep="\n")


def oldest(*extras: str) -> None:
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    tags = set(sys_tags())
    for wanted in requirements(text for group in extras for text in groups()[group]):
        wheels = (file for file in published(wanted.name) if file.endswith(".whl") and version_of(file) is not None)
        versions = {parse_wheel_filename(file)[1] for file in wheels if parse_wheel_filename(file)[3] & tags}
        wanted.specifier &= f"=={min(wanted.specifier.filter(versions))}"
        print(wanted)


if __name__ == "__main__":
    {"make": make, "pick": pick, "oldest": oldest}[sys.argv[1]](*sys.argv[2:])
