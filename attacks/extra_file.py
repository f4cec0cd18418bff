"""Something is added to the released folder: code that loaders run, other weights, a link, a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import forge, release, stopped, verified
from dpmerge.files import sha256


def attack(folder: Path) -> str:
    """Plainly; then by a forger who certifies the file, and one who certifies a configuration that loads code."""
    out = release(folder)
    (out / "modeling_linear.py").write_text("print('run by whoever trusts remote code')")
    (out / "link").symlink_to(folder / "runs")
    (out / "more").mkdir()
    stopped(verified(out), "modeling_linear.py is not part of what was certified, and a loader may take it")
    found = verified(out, "--strict")
    for name in ("modeling_linear.py", "link/", "more/"):
        stopped(found, f"{name} is not part of what was certified")
    (out / "modeling_linear.py").unlink()
    listed = verified(out)
    assert listed.code == 0, listed.text
    assert "not certified: more/" in listed.text
    (out / "modeling_linear.py").write_text("print('again')")
    (out / "link").unlink()
    (out / "more").rmdir()

    def certify(*names: str) -> Any:
        return lambda content: content["outputs"].update({name: sha256((out / name).read_bytes()) for name in names})

    forge(out, certify("modeling_linear.py"))
    stopped(verified(out, "--portfolio", folder / "runs"), "modeling_linear.py is not a file of this merge")
    (out / "modeling_linear.py").unlink()
    forge(out, lambda content: content["outputs"].pop("modeling_linear.py"))
    assert verified(out).code == 0
    (out / "config.json").write_text('{"model_type": "linear", "auto_map": {"AutoModel": "elsewhere--code.Model"}}')
    forge(out, certify("config.json"))
    stopped(verified(out, "--portfolio", folder / "runs"), "config.json is not what the merge keeps")
    return "what is not certified is named, and breaks what a loader could take; what a forger certifies no merge writes"
