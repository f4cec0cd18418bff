"""README.md as hubs read it: a YAML header, the user's own text, and between two marks the section that is certified.

Only the section is bound by the certificate. What stands around it is the user's, may be edited, and is certified by nobody.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpmerge.errors import CertificateError
from dpmerge.tensors import ADAPTER_CONFIG, is_hub_id

BEGIN, END = "<!-- dpmerge:certified begin -->", "<!-- dpmerge:certified end -->"
PLACE = "<!-- dpmerge:certified -->"
TAGS = ["differential-privacy", "dpmerge"]
_MARK = re.compile(r"<!--+\s*dpmerge:certified", re.IGNORECASE)
_HEADER = re.compile(
    r"\A\s*---[^\S\n]*\n(?P<yaml>.*?)(?:(?<=\n)|\n)---[^\S\n]*(?:\n|\Z)", re.DOTALL
)  # as huggingface_hub finds it
_COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
# Elements in which text is not shown, or can be hidden by an attribute.
_ELEMENT = re.compile(
    r"""<(?P<closes>/?)(?P<name>details|div|span|section|article|aside|template|script|style|textarea|title|noscript|iframe|select
    |svg|math|object|video|audio|canvas|dialog|pre|xmp|plaintext|noframes|noembed|table|center|font|blockquote|ul|ol|dl|form|main)
    \b(?:"[^"]*"|'[^']*'|[^>"'])*>""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True)
class CardTemplate:
    """The text around the certified section, which replaces the line `<!-- dpmerge:certified -->`.

    It may have a YAML header of its own: what that states stands, and what it does not is filled in.
    """

    text: str = f"{PLACE}\n"

    @classmethod
    def load(cls, path: Path) -> CardTemplate:
        """Read and check a template, before anything is charged or written."""
        try:
            text = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise CertificateError(f"{path}: cannot be read as the template of a model card: {fault}") from None
        made = cls(_with_newlines(text))
        lines = made.text.split("\n")
        if lines.count(PLACE) != 1 or len(_MARK.findall(made.text)) != 1:
            raise CertificateError(
                f"{path}: a template of a model card has one line {PLACE}, where the certified section goes, and no other marks"
            )
        try:
            certified_section(made.page("section\n", {}))
        except CertificateError as fault:
            raise CertificateError(f"{path}: {fault}") from None
        return made

    @property
    def header(self) -> dict[str, Any]:
        found = _HEADER.match(self.text)
        try:
            stated = None if found is None else yaml.safe_load(found["yaml"])
        except yaml.YAMLError as fault:
            raise CertificateError(f"its header, between the lines ---, is not YAML: {' '.join(str(fault).split())}") from None
        if stated is not None and not (isinstance(stated, dict) and all(isinstance(key, str) for key in stated)):
            raise CertificateError("its header, between the lines ---, is not a list of `name: value`")
        return stated or {}

    def page(self, section: str, header: Mapping[str, Any]) -> str:
        """The whole README.md. The user's header stays as it is written, and what it does not state is added below it."""
        stated = self.header
        added = {name: value for name, value in header.items() if name not in stated}
        filled = yaml.safe_dump(added, sort_keys=False, allow_unicode=True) if added else ""
        found = _HEADER.match(self.text)
        own, body = ("", self.text) if found is None else (found["yaml"], self.text[found.end() :])
        above = f"{own.rstrip()}\n{filled}".lstrip("\n")
        return f"---\n{above}---\n\n{body.lstrip()}".replace(PLACE, f"{BEGIN}\n{section}{END}", 1)


def header_of(folder: Path, dataset: str) -> dict[str, Any]:
    """What the files of a release say of themselves, by the names that hubs use. Nothing is guessed: no license, no task."""
    config, adapter = _object(folder / "config.json"), _object(folder / ADAPTER_CONFIG)
    library = "peft" if adapter else "transformers" if {"architectures", "transformers_version"} & config.keys() else None
    base = adapter.get("base_model_name_or_path")  # of config.json nothing is taken: a training may write anything there
    found = {
        "library_name": library,
        "base_model": base if isinstance(base, str) and _is_public(base) else None,
        "datasets": [dataset] if is_hub_id(dataset) else None,
        "tags": TAGS,
    }
    return {name: value for name, value in found.items() if value is not None}


def certified_section(text: str) -> str:
    """What stands between the marks; refused where a reader of the page could take something else for it."""
    text = _with_newlines(text)
    lines = text.split("\n")
    if lines.count(BEGIN) != 1 or lines.count(END) != 1 or len(_MARK.findall(text)) != 2:
        raise CertificateError(
            f"it must have one certified section, from the line {BEGIN} to the line {END}, and no other marks"
        )
    before, _, rest = text.partition(f"{BEGIN}\n")
    section, found, _ = rest.partition(END)
    if not found:
        raise CertificateError("the marks of its certified section are in the wrong order")
    header = _HEADER.match(text)
    inside = "the header" if header is not None and header.end() > len(before) else _hides(before)
    if inside is not None:
        raise CertificateError(f"its certified section is inside {inside}, which a reader may not see: close that before it")
    return section


def _hides(before: str) -> str | None:
    """What is left open by the text before the section: a comment, a block of code, an element of HTML.

    What opens is counted wherever it stands, and what closes only outside comments and code: rather too much is refused.
    """
    text, open_block = _without_code(before)
    if open_block or _without_code(_COMMENT.sub("", before))[1]:
        return "a block of code"
    text = _COMMENT.sub(lambda comment: comment[0].replace("</", "<x"), text)
    if text.rfind("<!--") > text.rfind("-->"):
        return "a comment"
    depth: dict[str, int] = {}
    for element in _ELEMENT.finditer(text):
        name = element["name"].lower()
        depth[name] = max(depth.get(name, 0) - 1, 0) if element["closes"] else depth.get(name, 0) + 1
    return next((f"<{name}>" for name, count in depth.items() if count), None)


def _without_code(text: str) -> tuple[str, bool]:
    """The text in whose blocks of code nothing closes an element, and whether the last block is still open."""
    fence, kept = "", []
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is not None and not fence and not (found[1][0] == "`" and "`" in found[2]):
            fence = found[1]
        elif found is not None and fence and found[1].startswith(fence) and not found[2].strip():
            fence = ""
        kept.append(line.replace("</", "<x") if fence else line)
    return "\n".join(kept), bool(fence)


def _is_public(name: str) -> bool:
    """Whether this is the name of a model on a hub, and no path of this machine."""
    return is_hub_id(name) and not Path(name).exists()


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _with_newlines(text: str) -> str:
    """Git and editors turn line ends into those of their system: the words are the same."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
