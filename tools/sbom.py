"""What dpmerge is made of, for those who look for known faults in it: `python -m tools.sbom FILE` writes CycloneDX 1.6 as JSON.

Versions and hashes are those of requirements.txt; licences and the graph are those of what is installed, so all extras must be.
The same lock makes the same bytes: the time is SOURCE_DATE_EPOCH, else that of the last commit.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import LOCK, ROOT, Locked, groups, locked, requirements

NOT_SHIPPED = {"build", "pip", "dev", "lab", "lab-torch"}  # what makes and tests dpmerge, and the laboratory


def licences(name: str) -> Iterator[License]:
    """As the package states them: an SPDX expression, or classifiers, or a line of its own words."""
    try:
        about = distribution(name).metadata
    except PackageNotFoundError:  # needed on other systems, or by torch's build for CUDA
        return
    make = LicenseFactory()
    for expression in about.get_all("License-Expression", []):
        yield make.make_from_string(expression)
        return
    classified = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if text.startswith("License :: ")]
    stated = [
        text for text in about.get_all("License", []) if text != "UNKNOWN" and "\n" not in text
    ]  # else it is the whole text
    for text in classified or stated:
        yield make.make_with_name(text)


def component(package: Locked) -> Component:
    purl = PackageURL("pypi", name=package.name, version=package.version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=content) for content in package.hashes]
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        bom_ref=str(purl),
        purl=purl,
        scope=ComponentScope.REQUIRED if "core" in package.groups else ComponentScope.OPTIONAL,
        licenses=licences(package.name),
        # One reference for all files of a version: pip takes the one for its system, and checks that it is among these.
        external_references=[ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(purl)), hashes=hashes)],
        properties=[Property(name="dpmerge:extra", value=group) for group in sorted(package.groups - NOT_SHIPPED)],
    )


def installed(name: str) -> list[Requirement]:
    """What a package needs here, of its own and for its extras; nothing is known of one that is not installed."""
    try:
        return [Requirement(text) for text in distribution(name).requires or ()]
    except PackageNotFoundError:
        return []


def bom(when: datetime) -> Bom:
    shipped = {package.name: component(package) for package in locked() if package.groups - NOT_SHIPPED}
    direct = [wanted for group, asked in groups().items() if group not in NOT_SHIPPED for wanted in requirements(asked)]
    needs = {name: installed(name) for name in shipped}
    extras: dict[str, set[str]] = {name: {""} for name in shipped}
    for wanted in (*direct, *chain(*needs.values())):
        extras.setdefault(canonicalize_name(wanted.name), {""}).update(wanted.extras)
    version = distribution("dpmerge").version
    # Named by its content, so that the same lock has the same number.
    found = Bom(components=shipped.values(), serial_number=uuid5(NAMESPACE_URL, f"dpmerge {version}\n{LOCK.read_text()}"))
    found.metadata.timestamp = when
    root = Component(
        type=ComponentType.LIBRARY, name="dpmerge", version=version, bom_ref="dpmerge", licenses=licences("dpmerge")
    )
    found.metadata.component = root
    found.register_dependency(root, [shipped[canonicalize_name(wanted.name)] for wanted in direct])
    for name, asked in needs.items():
        here = (w for w in asked if w.marker is None or any(w.marker.evaluate({"extra": extra}) for extra in extras[name]))
        inner = {canonicalize_name(wanted.name) for wanted in here}
        found.register_dependency(shipped[name], [shipped[other] for other in sorted(inner & set(shipped))])
    return found


def main(path: Path) -> None:
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or subprocess.check_output(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    JsonV1Dot6(bom(datetime.fromtimestamp(int(epoch), UTC))).output_to_file(str(path), allow_overwrite=True, indent=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
