"""Take the picture in docs/explorer.md: the page on the portfolio of `make demo`, at ε = 2, once nothing changes any more.

python -m tools.page.picture
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from PIL import Image

from tests.browser import a_browser, serving, visiting

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "build" / "demo"
PLACE = ROOT / "docs" / "images" / "explorer.png"
_READY = """() => document.getElementById('aloud').dataset.exact?.startsWith('2 ')
  && document.getElementById('frontier-note').textContent.endsWith('the eye.')
  && !document.querySelector('#after .quiet')"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        shutil.copytree(DEMO / "portfolio", home / "runs")
        shutil.copy(DEMO / "ledger.db", home / "ledger.db")
        with serving(home, ledger=str(home / "ledger.db"), delta=1e-4) as server:
            for chromium in a_browser():
                with visiting(server, chromium, viewport=(1280, 1700)) as visit:
                    visit.page.goto(server.url)
                    visit.page.wait_for_function("() => document.getElementById('verdict').dataset.target", timeout=100_000)
                    visit.page.fill("#epsilon-box", "2")
                    visit.page.wait_for_function(_READY, timeout=200_000)
                    visit.page.screenshot(path=PLACE)
    with Image.open(PLACE) as picture:
        picture.quantize(256).save(PLACE, optimize=True)


if __name__ == "__main__":
    main()
