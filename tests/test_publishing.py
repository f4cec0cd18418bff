"""A release on a hub: the card with its certified section, files that hubs and people add, and caches of links."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import save_file

from attacks.victim import forge
from dpmerge import merge, verify
from dpmerge.errors import CertificateError, CheckpointError
from dpmerge.files import canonical, sha256
from dpmerge.records import Portfolio
from dpmerge.release import CardTemplate, Certificate, Ledger, Released, certified_section, model_card, release
from dpmerge.release.readme import BEGIN, END, PLACE, header_of
from dpmerge.release.uncovered import loaded
from tests import builders
from tests.checkpoint_builders import adapter
from tests.release_builders import DELTA, WEIGHTS, certificate, chosen, dpmerge, runs, tensors
from tests.test_tensors_lora import factors


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Released:
    folder = tmp_path_factory.mktemp("published")
    portfolio = runs(folder)
    return release(portfolio, chosen(portfolio, "joint"), folder / "out")


@pytest.fixture
def out(original: Released, tmp_path: Path) -> Path:
    """A copy of the release, to be changed."""
    return Path(shutil.copytree(original.folder, tmp_path / "copy"))


# --- files beside ---------------------------------------------------------------------------------------------------------


def test_a_hub_round_trip_holds(out: Path, original: Released) -> None:
    (out / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    (out / ".gitignore").write_text("*.tmp\n")
    for place in (".git/objects/pack", ".cache/huggingface/download"):
        (out / place).mkdir(parents=True)
    (out / ".git/objects/pack/x.bin").write_bytes(b"x")
    (out / ".cache/huggingface/download/model.safetensors.metadata").write_text("x")
    (out / "LICENSE").write_text("MIT")
    (out / "picture.png").write_bytes(b"x")
    (out / "eval_results.json").write_text("{}")
    card = (out / "README.md").read_text()
    (out / "README.md").write_text(card.replace("---\n", "---\nlicense: mit\n", 1) + "\n# More\n\nIt is (0.01, 0)-DP.\n")
    verdict = verify(out, portfolio=Portfolio(original.folder.parent / "runs"))
    assert verdict.code == 0 and not verdict.warnings
    assert verdict.uncovered == [
        ".cache/",
        ".git/",
        ".gitattributes",
        ".gitignore",
        "LICENSE",
        "eval_results.json",
        "picture.png",
    ]
    assert "the certified section of README.md says what is certified; the text around it is not certified" in verdict.holds
    strict = verify(out, strict=True)
    assert strict.code == 1 and "LICENSE is not part of what was certified" in strict.broken
    shown = dpmerge("verify", out)
    assert shown.exit_code == 0 and "not certified: .git/\n" in shown.stdout
    assert json.loads(dpmerge("verify", out, "--json").stdout)["uncovered"] == verdict.uncovered
    assert dpmerge("verify", out, "--strict").exit_code == 1


LOADED = [
    "pytorch_model.bin",
    "model.fp16.safetensors",
    "MODEL-2.SafeTensors",
    "model.safetensors.index.json",
    "adapter_config.json",
    "adapter_model.bin",
    "modeling_linear.py",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "modules.json",
    "model_index.json",
    "quantize_config.json",
    "flax_model.msgpack",
    "tf_model.h5",
    "model.gguf",
    "training_args.bin",
    "dict.txt",
    ".hidden.safetensors",
    "shard-00001-model-00001-of-00001.safetensors",
    "prophetnet.tokenizer",
]


@pytest.mark.parametrize("name", LOADED)
def test_what_a_loader_could_take_breaks_the_release(name: str, out: Path) -> None:
    (out / name).write_text("{}")
    verdict = verify(out)
    assert [text for text in verdict.broken if text.startswith(f"{name} is not part of what was certified, and a loader")]
    assert verdict.code == 1


@pytest.mark.parametrize("name", ["additional_chat_templates", "custom_generate"])
def test_folders_that_transformers_looks_into_break_the_release(name: str, out: Path) -> None:
    (out / name).mkdir()
    assert verify(out).broken == [f"{name}/ is not part of what was certified, and Transformers loads from it"]


def test_weights_in_a_sub_folder_are_a_warning_and_many_files_are_not_walked(out: Path) -> None:
    (out / "original" / "deep").mkdir(parents=True)
    (out / "original" / "deep" / "consolidated.00.pth").write_bytes(b"x")
    (out / "assets").mkdir()
    for number in range(1100):
        (out / "assets" / f"{number}.png").touch()
    verdict = verify(out)
    assert verdict.code == 0 and verdict.uncovered == ["assets/", "original/"]
    assert verdict.warnings == [
        "assets/ is not certified: whoever loads one of more than 1000 files there loads something else than what is",
        "original/ is not certified: whoever loads original/deep/consolidated.00.pth loads something else than what is",
    ]


def test_names_of_files_cannot_pass_for_lines_of_a_verdict(out: Path) -> None:
    (out / "x\nholds: everything\x1b[2K").write_text("x")
    shown = dpmerge("verify", out)
    assert shown.exit_code == 0 and "\nholds: everything" not in shown.stdout and "\x1b" not in shown.stdout


def test_everything_that_transformers_loads_by_name_counts_as_loaded() -> None:
    utils = pytest.importorskip("transformers.utils")
    hub, base = pytest.importorskip("transformers.utils.hub"), pytest.importorskip("transformers.tokenization_utils_base")
    found = {
        value
        for module in (utils, hub, base)
        for name, value in vars(module).items()
        if isinstance(value, str) and name.isupper() and name.endswith(("_NAME", "_FILE")) and "." in value
    }
    assert {"model.safetensors", "pytorch_model.bin", "tokenizer.json", "chat_template.jinja"} <= found
    assert [name for name in sorted(found) if loaded(name) is None] == []


def test_a_cache_of_links_holds_also_against_the_portfolio(out: Path, original: Released, tmp_path: Path) -> None:
    """As huggingface_hub keeps snapshots: every file is a link to a blob that is named by its digest."""
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "abc", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in out.iterdir():
        path.rename(blobs / sha256(path.name.encode()))
        (snapshot / path.name).symlink_to(Path("../../blobs") / sha256(path.name.encode()))
    assert verify(snapshot, portfolio=Portfolio(original.folder.parent / "runs")).code == 0
    (tmp_path / "elsewhere").mkdir()
    (blobs / sha256(b"model.safetensors")).rename(tmp_path / "elsewhere" / "model")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere" / "model")
    found = verify(snapshot, portfolio=Portfolio(original.folder.parent / "runs"))
    assert found.code == 1 and "link out of the model's folder" in found.broken[0]


def test_line_ends_that_git_converted_are_named_for_what_they_are(out: Path) -> None:
    card = (out / "README.md").read_bytes()
    (out / "README.md").write_bytes(card.replace(b"\n", b"\r\n"))
    assert verify(out).code == 0  # the same words
    text = b'{\n "model_type": "linear"\n}\n'
    forge(out, lambda content: content["outputs"].update({"config.json": sha256(text)}))
    (out / "config.json").write_bytes(text)
    assert verify(out).code == 0
    (out / "config.json").write_bytes(text.replace(b"\n", b"\r\n"))
    [fault] = verify(out).broken
    assert fault.startswith("config.json was changed") and "only its line ends were converted" in fault
    (out / "config.json").write_bytes(text)
    (out / "certificate.json").write_bytes((out / "certificate.json").read_bytes().replace(b"\n", b"\r\n"))
    [fault] = verify(out).broken
    assert fault.startswith("certificate.json was edited") and "only its line ends were converted" in fault


def test_pointers_of_git_lfs_are_named_for_what_they_are(original: Released, out: Path, tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    (out / "model.safetensors").write_text(pointer)
    assert "a pointer of Git LFS in the file's place; git lfs pull" in verify(out).broken[0]
    shutil.copytree(original.folder.parent / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "a" / "model.safetensors").write_text(pointer)
    damaged = Portfolio(tmp_path / "runs")
    with pytest.raises(CheckpointError, match=r"model 'a', file model.safetensors: is a pointer of Git LFS"):
        release(damaged, chosen(damaged, "joint"), tmp_path / "merged")


# --- the card -------------------------------------------------------------------------------------------------------------


def test_the_card_is_what_hubs_read(original: Released) -> None:
    card = (original.folder / "README.md").read_text()
    header = yaml.safe_load(card.split("---\n")[1])
    assert header == {"datasets": [builders.DATASET], "tags": ["differential-privacy", "dpmerge"]}
    assert certified_section(card) == model_card(original.certificate)
    assert original.certificate.card == sha256(model_card(original.certificate).encode())
    assert "README.md" not in original.certificate.outputs


def test_huggingface_hub_reads_the_header(original: Released, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    template = tmp_path / "card.md"
    template.write_text(f'---\nlicense: mit\nlanguage: "no"\n---\n# Mine\n\n{PLACE}\n')
    made = CardTemplate.load(template).page("# Section\n", {"license": "other", "base_model": "org/base", "tags": ["dpmerge"]})
    data = hub.ModelCard(made).data
    assert (data.license, data.language, data.base_model, data.tags) == ("mit", "no", "org/base", ["dpmerge"])
    data = hub.ModelCard.load(original.folder / "README.md").data
    assert data.tags == ["differential-privacy", "dpmerge"] and data.datasets == [builders.DATASET]


def test_the_header_says_only_what_the_files_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = {"datasets": ["d"], "tags": ["differential-privacy", "dpmerge"]}
    plain = tmp_path / "plain"
    plain.mkdir()
    assert header_of(plain, "d") == common
    assert "datasets" not in header_of(plain, "patients of 2024, ward 3")
    (plain / "config.json").write_text(json.dumps({"architectures": ["X"], "_name_or_path": "/home/someone/private"}))
    assert header_of(plain, "d") == {"library_name": "transformers", **common}
    lora = adapter(tmp_path / "lora", factors(0), base_model_name_or_path="org/base")
    assert header_of(lora, "d") == {"library_name": "peft", "base_model": "org/base", **common}
    (tmp_path / "outputs" / "base").mkdir(parents=True)
    for local in ("/home/someone/base", "./base", "../base", "C:\\base", "~/base", "outputs/base", "a/b/c", "", None, 3):
        adapter(tmp_path / "lora", factors(0), base_model_name_or_path=local)
        assert "base_model" not in header_of(lora, "d"), local
    (lora / "adapter_config.json").write_text("not json")
    assert header_of(lora, "d") == common


def section_of(out: Path) -> str:
    return certified_section((out / "README.md").read_text())


def marked(section: str) -> str:
    return f"{BEGIN}\n{section}{END}\n"


SECTION = "# Privacy\n\nforged\n"
ATTACKS: dict[str, tuple[Any, str]] = {
    "edited": (lambda real: marked(real.replace("private", "Private", 1)), "does not say what is certified"),
    "removed": (lambda real: "# A model\n", "one certified section"),
    "unmarked": (lambda real: real, "one certified section"),
    "forged before": (lambda real: marked(SECTION) + marked(real), "one certified section"),
    "forged after": (lambda real: marked(real) + marked(SECTION), "one certified section"),
    "nested": (lambda real: f"{BEGIN}\n{SECTION}{marked(real)}{END}\n", "one certified section"),
    "reversed": (lambda real: f"{END}\n{real}{BEGIN}\n", "wrong order"),
    "another spelling": (lambda real: "<!--DPMERGE:certified begin-->\n" + marked(real), "one certified section"),
    "indented": (lambda real: "    " + marked(real), "one certified section"),
    "words added": (lambda real: marked(real + "It is (0, 0)-DP.\n"), "does not say what is certified"),
    "in a block of code": (lambda real: "```\n" + marked(real) + "```\n", "inside a block of code"),
    "in code after a list": (lambda real: "- x\n  ```\ny\n  ```\n" + marked(real), "inside a block of code"),
    "in tildes": (lambda real: "~~~text\n```\n" + marked(real) + "~~~\n", "inside a block of code"),
    "in code that a comment shows": (lambda real: "<!--\n```\n-->\n```\n" + marked(real) + "```\n", "inside a block of code"),
    "in a comment": (lambda real: "<!-- \n" + marked(real), "inside a comment"),
    "in details": (lambda real: "<details><summary>x</summary>\n\n" + marked(real) + "</details>\n", "inside <details>"),
    "in a hidden part": (lambda real: "<div\n hidden>\n\n" + marked(real) + "\n</div>\n", "inside <div>"),
    "closed in a comment": (lambda real: "<div hidden>\n<!-- </div> -->\n\n" + marked(real), "inside <div>"),
    "closed in code": (lambda real: "<div hidden>\n\n```\n</div>\n```\n\n" + marked(real), "inside <div>"),
    "closed in an attribute": (lambda real: '<div title="</div>" hidden>\n\n' + marked(real), "inside <div>"),
    "closed before": (lambda real: "</div><DIV hidden>\n\n" + marked(real), "inside <div>"),
    "closed in an attribute of another": (
        lambda real: '<div hidden>\n<a title="</div>">x</a>\n\n' + marked(real),
        "inside <div>",
    ),
    "closed in lines of an attribute": (lambda real: '<div hidden>\nx <a title="\n</div>">\n</a>\n\n' + marked(real), "<div>"),
    "closed as text": (lambda real: "<div hidden>\n\n\\</div>\n\n" + marked(real), "inside <div>"),
    "closed in words of code": (lambda real: "<div hidden>\n\nUse `</div>`\n<br>`</div>`\n\n" + marked(real), "inside <div>"),
    "closed in an indented block": (lambda real: "<div hidden>\n\n    </div>\n\n" + marked(real), "inside <div>"),
    "closed in a script": (lambda real: "<div hidden>\n<script>\n</div>\n</script>\n\n" + marked(real), "inside <script"),
    "closed in an instruction": (lambda real: "<div hidden>\n<? </div>\n\n" + marked(real), "inside <?"),
    "closed in a link's title": (lambda real: '<b hidden> [x](y "</b>")\n\n' + marked(real), "inside <b>"),
    "closed in a link's address": (lambda real: "<b hidden> [x](y</b>)\n\n" + marked(real), "inside <b>"),
    "closed in a link's label": (lambda real: "<b hidden> [x][</b>]\n\n[</b>]: y\n\n" + marked(real), "inside <b>"),
    "closed in an image's description": (lambda real: "<b hidden> ![</b>](y)\n\n" + marked(real), "inside <b>"),
    "closed in a formula": (lambda real: "<b hidden> $</b>$\n\n" + marked(real), "inside <b>"),
    "closed in words of code in its line": (lambda real: "x <b hidden> `</b>`\n\n" + marked(real), "inside <b>"),
    "closed in a comment in its line": (lambda real: "x <b hidden> <!-- </b> -->\n\n" + marked(real), "inside <b>"),
    "closed in an attribute in its line": (lambda real: "x <b hidden> <i a='</b>'></i>\n\n" + marked(real), "inside <b>"),
    "closed after a list": (lambda real: "- a\n  <div hidden>\nb [x](</div>)\n\n" + marked(real), "inside <div>"),
    "closed by a quotation": (lambda real: "x <b hidden></b\n> y\n\n" + marked(real), "inside <b>"),
    "closed by a quotation at the margin": (lambda real: "<b hidden>\n</b\n> y\n\n" + marked(real), "inside <b>"),
    "closed in an address of the next line": (lambda real: "<b hidden> [x](\n</b>)\n\n" + marked(real), "inside <b>"),
    "closed in code over lines": (lambda real: "<b hidden>\n\nUse `x\n</b>\ny`\n\n" + marked(real), "inside <b>"),
    "closed in code of a list": (lambda real: "<b hidden>\n\n- ```\n\n  </b>\n\n" + marked(real), "inside <b>"),
    "closed first": (lambda real: "x </b><b hidden>\n\n" + marked(real), "inside <b>"),
    "struck out": (lambda real: "<del>\n\n" + marked(real), "inside <del>"),
    "odd attributes": (lambda real: "<div a<b hidden>\n\n" + marked(real), "inside <div>"),
    "in an attribute": (lambda real: '<p title="\n\n' + marked(real) + '\n<p x=">\n\n(0.1, 1e-9)', "a tag that does not end"),
    "in an attribute that only Markdown closes": (lambda real: '<p a="\n\n">\n\n' + marked(real), "a tag that does not end"),
    "in an attribute in a quotation": (lambda real: '> <p a="\n">\n\n' + marked(real), "a tag that does not end"),
    "in a later attribute": (lambda real: '<p a=x"> <p title=" >\n\n' + marked(real), "a tag that does not end"),
    "in an attribute of an end": (lambda real: "<p>\n</p title='\n\n" + marked(real), "a tag that does not end"),
    "from right to left": (lambda real: '<bdo dir="rtl">\n\n' + marked(real), "inside <bdo>"),
    "in an item from right to left": (lambda real: '<li dir="rtl">\n\n' + marked(real), "inside <li>"),
    "in a formula": (lambda real: "$$\n\n" + marked(real) + "$$\n", "inside a formula"),
    "in the header": (lambda real: "---\nx: |\n" + marked(real) + "---\n", "inside the header"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_section_that_a_reader_could_miss_or_mistake_is_refused(name: str, out: Path) -> None:
    make, because = ATTACKS[name]
    (out / "README.md").write_text(make(section_of(out)))
    verdict = verify(out)
    assert verdict.code == 1 and len(verdict.broken) == 1
    assert because in verdict.broken[0]


@pytest.mark.parametrize(
    "around",
    [
        "<div align='center'><img src='x.png'></div>\n\n# Mine\n\n```python\nprint('<!-- -->')\n```\n\n{}\n<details>more",
        "# Mine\n<!-- a comment -->\n{}",
        "---\nlicense: mit\n---\n{}",
        "\ufeff\r\n---\r\nlicense: mit\r\n---\r\n{}",
        "It is (0.0001, 0)-DP, says somebody.\n{}",
        "[x](<https://x.org/a?b=c>) <https://x.org> <me@x.org>, $$x$$, 1 < 2 <br/> <img src='a>b' width=10\n alt='x'>\n\n{}",
        "<details>\n<summary>x</summary>\n\n| a < b | `List<int>` |\n\n</details>\n\n<p align='center'>\n<br>\n</p>\n{}",
        "1. first:\n   ```sh\n   pip install x\n   ```\n\n2. then\n\n{}",
        "Long text with <b>bold</b> words, H<sub>2</sub>O, a <a href='x'>link</a>.\n\n- <kbd>a</kbd>\n\n{}",
        "<div align='center'>\n    <a href='x'>\n        <img src='y'>\n    </a>\n</div>\n\n{}",
        "```text\n<s>[INST] Why? [/INST] So.</s>\n```\n\n| <b>x</b> | [<i>y</i>](z) |\n|---|---|\n\n{}",
        '<a href="x"><img src="y" alt="1 > 0"></a>\n\nSee <https://example.org>.\n\n{}',
    ],
)
def test_text_around_the_section_may_be_anything_else(around: str, out: Path) -> None:
    (out / "README.md").write_bytes(around.replace("{}", marked(section_of(out))).encode())
    assert verify(out).code == 0


@pytest.mark.parametrize("instead", [Path.mkdir, os.mkfifo, lambda path: path.write_bytes(b"\xff\xfe"), lambda path: None])
def test_a_card_that_cannot_be_read_does_not_hold(instead: Any, out: Path) -> None:
    (out / "README.md").unlink()
    instead(out / "README.md")
    assert verify(out).code == 1


def as_before(out: Path, content: dict[str, Any]) -> None:
    """The release as it was before cards had a section, and releases a record: the hash of the card is among the outputs."""
    del content["card"]
    del content["outputs"]["record.json"]
    (out / "record.json").unlink()
    plain = {key: value for key, value in content.items() if key not in ("sha256", "signature")}
    section = model_card(Certificate.parse((out / "certificate.json").read_bytes(), ""))
    plain["outputs"]["README.md"] = sha256(section.encode())
    (out / "README.md").write_text(section)
    whole = {**plain, "sha256": sha256(canonical(plain)), "signature": None}
    (out / "certificate.json").write_bytes(canonical(whole, indent=1) + b"\n")


def test_older_releases_hold_as_before_and_bind_the_whole_card(out: Path, original: Released) -> None:
    as_before(out, certificate(out))
    assert verify(out, portfolio=Portfolio(original.folder.parent / "runs"), strict=True).code == 0
    (out / "README.md").write_text((out / "README.md").read_text() + "\nmore\n")
    assert verify(out).broken == [
        "README.md was changed: it does not have the hash certified",
        "README.md does not say what is certified",
    ]


# --- templates ------------------------------------------------------------------------------------------------------------


def test_a_template_is_the_text_around_the_section(tmp_path: Path) -> None:
    portfolio, template = runs(tmp_path), tmp_path / "card.md"
    template.write_bytes(
        f"---\nlicense: mit\ntags: [mine]  # stays as it is\n---\r\n# My model\n\nBefore.\n\n{PLACE}\n\nAfter.".encode()
    )
    made = dpmerge(
        "merge", tmp_path / "runs", "--rule", "joint", "--weights", "a=0.25,b=0.75", "--delta", str(DELTA),
        "--out", tmp_path / "out", "--card-template", template,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\ntags: [mine]  # stays as it is\ndatasets:\n- ")
    assert card.index("Before.") < card.index(BEGIN) < card.index(END) < card.index("After.")
    assert verify(tmp_path / "out", portfolio=portfolio, strict=True).code == 0
    again = merge(portfolio, WEIGHTS, out=tmp_path / "again", rule="joint", delta=DELTA, card_template=template)
    assert "# My model" in (again.folder / "README.md").read_text()
    plain = dpmerge_plan(portfolio).best.release(tmp_path / "planned", card_template=template)
    assert "# My model" in (plain.folder / "README.md").read_text()


def dpmerge_plan(portfolio: Portfolio) -> Any:
    import dpmerge as library

    return library.plan(portfolio, epsilon=50, delta=DELTA, rules=("selection",))


@pytest.mark.parametrize(
    "text, because",
    [
        ("# No place\n", "one line"),
        (f"{PLACE}\n\n{PLACE}\n", "one line"),
        (f"in a line: {PLACE}\n", "one line"),
        (f"{BEGIN}\nforged\n{END}\n{PLACE}\n", "one line"),
        (f"---\nlicense: [mit\n---\n{PLACE}\n", "is not YAML"),
        (f"---\n- a list\n---\n{PLACE}\n", "is not a list of `name: value`"),
        (f"---\nx: |\n{PLACE}\n---\n", "certified section|is not YAML"),
        (f"```\n{PLACE}\n```\n", "inside a block of code"),
        (f"<details>\n{PLACE}\n</details>\n", "inside <details>"),
    ],
)
def test_templates_that_no_card_can_be_made_of_are_refused_before_any_charge(text: str, because: str, tmp_path: Path) -> None:
    portfolio, template = runs(tmp_path), tmp_path / "card.md"
    template.write_text(text)
    ledger = Ledger.create(tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50, delta=DELTA)
    with pytest.raises(CertificateError, match=because):
        merge(
            portfolio,
            WEIGHTS,
            out=tmp_path / "out",
            rule="joint",
            delta=DELTA,
            ledger=tmp_path / "l.db",
            card_template=template,
        )
    assert [entry.kind for entry in ledger.history() if entry.kind == "release"] == []
    assert not (tmp_path / "out").exists()


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="cannot be read as the template"):
        CardTemplate.load(tmp_path / "nowhere.md")


@pytest.mark.parametrize("local", ["/home/someone/base", "../base", "C:\\base", "runs/2024/base"])
def test_paths_of_the_machine_do_not_go_out(local: str, tmp_path: Path) -> None:
    for name in "ab":
        adapter(tmp_path / "runs" / name, factors(0), base_model_name_or_path=local)
        (tmp_path / "runs" / name / "config.json").write_text(json.dumps({"_name_or_path": local, "hidden_size": 4}))
        record = builders.dp_sgd(name, sigma=4.0).record.model_dump_json(by_alias=True)
        (tmp_path / "runs" / name / "record.json").write_text(record)
    portfolio = Portfolio(tmp_path / "runs")
    for rule in ("joint", "selection"):
        made = release(portfolio, chosen(portfolio, rule), tmp_path / rule)
        for path in made.folder.iterdir():
            assert json.dumps(local).strip('"').encode() not in path.read_bytes(), path.name
        assert json.loads((made.folder / "config.json").read_text()) == {"hidden_size": 4}
        assert len([note for note in made.notes if "named a path of your machine" in note]) == 1
        assert [note for note in made.notes if note.startswith("config.json goes out without _name_or_path: ")]
        assert verify(made.folder, portfolio=portfolio, strict=True).code == 0


def test_a_configuration_cannot_lead_to_other_weights(out: Path, tmp_path: Path) -> None:
    """Transformers loads the file that `transformers_weights` names, from a sub-folder too."""
    portfolio = runs(tmp_path)
    for model in portfolio.models:
        assert model.folder is not None
        (model.folder / "config.json").write_text('{"transformers_weights": "sub/model.safetensors", "hidden_size": 4}')
    made = release(portfolio, chosen(portfolio, "joint"), tmp_path / "made")
    assert json.loads((made.folder / "config.json").read_text()) == {"hidden_size": 4}
    assert "config.json has no transformers_weights: the tensors have other names here" in made.notes
    assert verify(made.folder, portfolio=portfolio, strict=True).code == 0
    config = b'{"transformers_weights": "sub/model.safetensors", "auto_map": {"AutoModel": "x--code.Model"}}'
    (out / "config.json").write_bytes(config)
    forge(out, lambda content: content["outputs"].update({"config.json": sha256(config)}))
    verdict = verify(out)
    assert verdict.broken == ["config.json makes Transformers load 'sub/model.safetensors', which is not certified"]
    assert verdict.warnings == ["config.json names code that is not certified (auto_map); it runs if it is trusted"]


def test_older_releases_with_such_a_path_hold_against_their_portfolio(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    config = b'{"_name_or_path": "/home/someone/base"}'
    for model in portfolio.models:
        assert model.folder is not None
        (model.folder / "config.json").write_bytes(config)
    out = release(portfolio, chosen(portfolio, "joint"), tmp_path / "out").folder
    assert config != (out / "config.json").read_bytes()
    (out / "config.json").write_bytes(config)
    content = certificate(out)
    content["outputs"]["config.json"] = sha256(config)
    as_before(out, content)
    assert verify(out, portfolio=portfolio, strict=True).code == 0


def test_transformers_and_peft_look_for_nothing_that_would_not_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file that they look for in a folder, and that a release need not have, breaks it."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = transformers.BertConfig(
        vocab_size=7, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4, num_labels=2
    )
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    model = transformers.BertForSequenceClassification(settings)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    here, seen = {path.name for path in folder.iterdir()}, set[str]()

    def watched(function: Any) -> Any:
        def called(path: Any, *rest: Any, **more: Any) -> Any:
            if isinstance(path, str | Path) and str(path).startswith(f"{folder}/"):
                seen.update(Path(path).relative_to(folder).parts[:1])
            return function(path, *rest, **more)

        return called

    for module, name in ((os.path, "isfile"), (os.path, "exists"), (os.path, "isdir"), (os, "stat"), (os, "listdir")):
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    transformers.AutoModelForSequenceClassification.from_pretrained(str(folder), trust_remote_code=True)
    transformers.AutoTokenizer.from_pretrained(str(folder))
    with pytest.raises(ValueError, match="adapter_config"):
        peft.PeftModel.from_pretrained(model, str(folder))
    assert {"adapter_config.json", "chat_template.jinja", "special_tokens_map.json"} <= seen
    assert {name for name in seen - here if loaded(name) is None} <= {"additional_chat_templates", "custom_generate"}


def test_transformers_and_peft_load_nothing_else(tmp_path: Path) -> None:
    """What makes the files above matter: with an adapter beside it, Transformers loads another model from the same folder."""
    find = pytest.importorskip("transformers.utils.peft_utils").find_adapter_config_file
    save_file(tensors(0), tmp_path / "model.safetensors")
    assert find(str(tmp_path)) is None
    (tmp_path / "adapter_config.json").write_text("{}")
    assert find(str(tmp_path)) is not None and loaded("adapter_config.json") is not None
