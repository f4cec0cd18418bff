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

from dpmerge.bounded_yaml import parse_yaml
from dpmerge.errors import CertificateError
from dpmerge.files import read_regular
from dpmerge.release.bounds import MOST_BYTES
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
# What follows these may not be shown, or not be HTML.
_RAW = re.compile(
    r"<(script|style|textarea|title|xmp|iframe|noembed|noframes|noscript|plaintext|template|svg|math|select|object)\b|<\?|<!(?!--)",
    re.IGNORECASE,
)
# Elements that change how what they hold is shown, or whether.
_OPENS = re.compile(
    r"<(details|div|span|section|article|aside|nav|header|footer|figure|video|audio|canvas|dialog|pre|table|center|font|blockquote"
    r"|ul|ol|dl|form|fieldset|main|a|b|i|u|s|em|strong|strike|del|ins|small|big|sup|sub|mark|code|kbd|tt|button|label"
    r"|bdo|bdi|li|dt|dd|h[7-9]|abbr|acronym|address|cite|dfn|q|samp|var|time|ruby|rp|rt|picture|map|menu|dir|search|summary"
    r"|figcaption|hgroup|legend|nobr|marquee|output|progress|meter|data|slot|listing)\b",
    re.IGNORECASE,
)
# Where a tag begins, and a whole one, or an address: quotes are where HTML takes them for such, and closed in their line, since
# after a blank one or the end of a list Markdown shows a quote as text.
_BEGINS = re.compile(r"</?[a-z]", re.IGNORECASE)
_ENDS = re.compile(
    r"""</?[a-z][a-z0-9-]*(\s+[a-z_:][\w.:-]*(\s*=\s*("[^"\n]*"|'[^'\n]*'|[^\s"'=<>`]+))?)*\s*/?>|<[^\s<>"']+>""", re.IGNORECASE
)
# Blocks in which CommonMark reads all up to a blank line as HTML. Only at the margin: nothing around can end them sooner.
_BLOCK = re.compile(
    r"</?(p|div|center|details|summary|table|thead|tbody|tr|td|th|h[1-6]|ul|ol|li|dl|dt|dd|figure|figcaption|section|article"
    r"|aside|nav|header|footer|main|blockquote)(\s|/?>|$)",
    re.IGNORECASE,
)
# A line that may be in parts something else than Markdown and HTML: code, a formula, what an image or a link keeps as text.
_MIXED = re.compile(r"""[`\\$]|!\[|\]\[|\]\((?![^)<"'(]*\))""")
_TAG = re.compile(r"""<(?P<closes>/?)(?P<name>[a-z][^\s/>]*)(?:"[^"]*"|'[^']*'|[^>"'])*""", re.IGNORECASE)


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
            text = read_regular(path, MOST_BYTES).decode("utf-8")
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
            stated = None if found is None else parse_yaml(found["yaml"])
        except ValueError as fault:
            raise CertificateError(f"its header, between the lines ---, is not YAML: {fault}") from None
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
        raise CertificateError(
            f"its certified section is inside {inside}, where a reader may not see it: close that in a line of HTML alone, or "
            "move the text to below the section"
        )
    return section


def _hides(before: str) -> str | None:
    """What the text before the section leaves open: a comment, a block of code, an element of HTML.

    What opens is counted wherever it stands, and what closes only where it certainly is HTML: rather too much is refused.
    """
    if _open_block(before) or _open_block(_COMMENT.sub("", before)):
        return "a block of code"
    if before.rfind("<!--") > before.rfind("-->"):
        return "a comment"
    if (raw := _RAW.search(before)) is not None:
        return f"{raw[0]}…"
    text = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), before)
    paired = _paired(text)
    marks = [(found.start(), found[1].lower(), 1) for found in _OPENS.finditer(before) if found.start() not in paired]
    marks += [mark for mark in _closed(text) & _closed(_only_html(text)) if mark[0] not in paired]
    depth: dict[str, int] = {}
    for _, name, change in sorted(marks):
        depth[name] = max(depth.get(name, 0) + change, 0)
    if still := [f"<{name}>" for name, count in depth.items() if count]:
        return still[0]
    if any(_ENDS.match(before, found.start()) is None for found in _BEGINS.finditer(before)):
        return "a tag that does not end"  # all up to the next quote may belong to it
    return "a formula" if before.count("$$") % 2 else None


def _closed(text: str) -> set[tuple[int, str, int]]:
    """Where elements are closed, and which."""
    return {(found.start(), found["name"].lower(), -1) for found in _TAG.finditer(text) if _closes(found)}


def _closes(tag: re.Match[str]) -> bool:
    """Whether an end tag ends in its line: a > at the beginning of the next one is a quotation to Markdown."""
    return bool(tag["closes"]) and "\n" not in tag[0] and tag.string[tag.end() : tag.end() + 1] == ">"


def _paired(text: str) -> set[int]:
    """Where elements are opened and closed again in one line that is wholly HTML or wholly not: either way none stays open."""
    found: set[int] = set()
    start = 0
    for line in text.split("\n"):
        opened: dict[str, list[int]] = {}
        for tag in () if _MIXED.search(line) else _TAG.finditer(line):
            name, place = tag["name"].lower(), start + tag.start()
            if not tag["closes"]:
                opened.setdefault(name, []).append(place)
            elif opened.get(name) and _closes(tag):
                found |= {opened[name].pop(), place}
        start += len(line) + 1
    return found


def _only_html(text: str) -> str:
    """The text with blanks for lines in which a tag may be code, or stand for itself.

    Lines of HTML begin at the margin after a blank one, or follow one: code, and what a link keeps as text, may go over lines.
    """
    fence, block, follows = "", False, True
    kept: list[str] = []
    for line in text.split("\n"):
        fence = _fence_after(line, fence)
        block = not fence and bool(line.strip()) and (block or _BLOCK.match(line) is not None)
        begins = line.startswith("<") or (bool(kept) and kept[-1].strip() != "" and line.lstrip().startswith("<"))
        html = not fence and (not re.search(r"[`\\]", line) if block else follows and begins and not _MIXED.search(line))
        kept.append(line if html else " " * len(line))
        follows = html or not line.strip()
    return "\n".join(kept)


def _open_block(text: str) -> bool:
    """Whether a block of code may be open at the end. One that began indented may be an item's of a list, and end with it."""
    fence, indented = "", False
    for line in text.split("\n"):
        if fence and indented and line[:1].strip():
            return True  # then the next fence would begin a block, not end this one
        before, fence = fence, _fence_after(line, fence)
        if not before:
            indented = line.startswith(" ")
    return bool(fence)


def _fence_after(line: str, fence: str) -> str:
    """The mark that ends the block of code that is open after this line, if `fence` ended the one before it."""
    found = _FENCE.match(line)
    if found is None:
        return fence
    if not fence:
        return "" if found[1][0] == "`" and "`" in found[2] else found[1]
    return "" if found[1].startswith(fence) and not found[2].strip() else fence


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
