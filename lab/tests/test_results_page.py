"""docs/results.md: every section names the files its numbers are from, and the numbers are those of the files."""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpmerge.profiles import run_profile
from dpmerge.records import Model
from dpmerge.rules import Joint
from dpmerge.rules.compare import no_free_lunch_threshold, papers_no_free_lunch_threshold
from dpmerge.training import Recipe
from dpmerge_lab.experiments.aggregation import METHODS, ON_TOP, TRAINED
from dpmerge_lab.experiments.aggregation_cifar10 import BESIDE_BEST, OTHER_RUNS
from dpmerge_lab.experiments.aggregation_cifar10_pictures import PAPER, PLAIN
from dpmerge_lab.experiments.aggregation_mnist_pictures import COLUMNS, tuned_for
from dpmerge_lab.experiments.aggregation_scores import CHOSEN
from dpmerge_lab.experiments.aggregation_settings import IN_SMALL, LONG_IN_SMALL
from dpmerge_lab.experiments.aggregation_tuning import ALONE, TUNING, WAYS, WITH_INFERENCE
from dpmerge_lab.experiments.catalogue import EXPERIMENTS
from dpmerge_lab.experiments.cifar10 import SHOWN, repeated
from dpmerge_lab.experiments.cifar10_from_scratch import EVEN_DRAW
from dpmerge_lab.experiments.cifar10_settings import MERGES, PRETRAININGS, RUNS as SETTINGS
from dpmerge_lab.experiments.cifar10_starts import BEST_AVERAGE, FROM_AVERAGE, PRIVATE_STEPS, TUNED
from dpmerge_lab.experiments.coverage import SEPARATIONS
from dpmerge_lab.experiments.coverage_pictures import EVERY, FAST, MEAN, ONE, PREDICTION, RUNS, SHORT, SLOW, SOLUTION
from dpmerge_lab.experiments.last_iterate import portfolio_file, portfolio_of
from dpmerge_lab.experiments.merge_pictures import named
from dpmerge_lab.experiments.results import with_error
from dpmerge_lab.experiments.tail_averaging_pictures import RATIO
from dpmerge_lab.experiments.uncertainty import ABOVE, ANSWERED, APART, LAST, RUNS as ALL_RUNS, TOP, ratio
from dpmerge_lab.training.shift import first_share

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "lab" / "results"
TEXT = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}
BRIEF = TEXT.split("**In short**")[1].split("\n\n")[1]
OVERVIEW = "The papers, figure by figure"
CASES = {"ε = 8": "eps8", "ε = 1": "eps1", "PDS, ε = 8": "shifting-eps8", "PDS, ε = 1": "shifting-eps1"}
JOINT = "joint release"
PROVED, FORMULA = "linear combination, proved", "linear combination, papers' formula"
TUNED_BY_K = ("UTA inf", "OPA", "OMV")
AVERAGE, DRAW = "test accuracy of the average", "expected test accuracy of a draw"


def kept(name: str, folder: str = "") -> Any:
    return json.loads((RESULTS / (folder or name) / f"{name}.json").read_text(encoding="utf-8"))


def numbers(name: str, folder: str = "") -> Any:
    return kept(name, folder)["numbers"]


def said(section: str, *texts: str) -> None:
    """As in the text, wherever its lines are broken."""
    whole = " ".join(SECTIONS[section].split())
    for text in texts:
        assert text in whole, f"{section}: {text}"


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def in_percent(of: Any) -> str:
    return with_error({**of, "mean": 100 * of["mean"], "std": 100 * of["std"]}, 2)


def span(values: Any, digits: int) -> str:
    """From the smallest to the largest."""
    low, high = min(values), max(values)
    return f"{low:.{digits}f} to {high:.{digits}f}"


def up(value: float, digits: int) -> str:
    """Of what is said to be at most so much."""
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"


def down(value: float, digits: int) -> str:
    """Of what is said to be at least so much."""
    return f"{math.floor(value * 10**digits) / 10**digits:.{digits}f}"


# --- the page -----------------------------------------------------------------------------------------------------------------


def counts(value: Any) -> Iterator[int]:
    """Every number of runs that is told."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key == "runs" and isinstance(one, int):
            yield one
        yield from counts(one)


def test_what_is_said_in_short_is_said_in_the_sections_too() -> None:
    """Every number is in the section that the sentence links to."""
    bullets = re.split(r"^- ", BRIEF, flags=re.MULTILINE)[1:]
    assert len(bullets) >= 8
    for bullet in bullets:
        *linked, rest = re.split(r"\(\[[\w-]+\]\(#([\w-]+)\)\)", " ".join(bullet.split()))
        assert rest == ".", bullet  # nothing is said without a link
        for text, section in zip(linked[::2], linked[1::2], strict=True):
            whole = " ".join(SECTIONS[f"`{section}`"].split())
            for number in re.findall(r"\d+(?:\.\d+)?", text):
                assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", whole), (section, number)


def test_what_is_said_in_short_is_in_the_files() -> None:
    mnist, twin = numbers("mnist"), numbers("mnist-full-batch")["Poisson twin"]["averages"]
    alone = [one["epsilon by PLD"] for one in mnist["alone"].values()]
    least = min(row["random selection"] for row in mnist["averages"])
    in_brief(
        f"with ε = {alone[0]:.3f}, {alone[1]:.3f} and {alone[2]:.3f}, a weight of 0.1 on one of the first costs {least:.3f}"
    )
    (row,) = (row for row in twin if row["weights"]["σ=0.5"] == 0.13)
    in_brief(f"ε = {row[PROVED]:.3f}, where a draw has {row['random selection']:.3f} and joint release {row[JOINT]:.3f}")
    assert all(row[PROVED] > row["random selection"] for row in twin if 0.5 <= row["weights"]["σ=0.5"] < 1)
    full = [row for name in ("warm-up and decay", "constant rate") for row in numbers("mnist-full-batch")[name]["averages"]]
    assert all(row[PROVED] < row["random selection"] for row in full)
    networks = [row[PROVED] for group in ("scratch-a", "scratch-b") for row in numbers("cifar10")[group]["averages"]]
    in_brief(f"on CIFAR-10 ε = {span(networks, 1)}")
    behind = {}
    for name in ("heads", "heads-text"):
        of = {way: one["mean"] for way, one in numbers(name)["accuracy"].items()}
        anew = zip(of["trained anew, composition"], of["trained anew, last iterate only"], strict=True)
        best, average = [max(pair) for pair in anew], of["average of 8, noise at release"]
        behind[name] = max(100 * (a - b) for a, b in zip(best, average, strict=True))
        perturbed = of["output perturbation (Wu et al. 2017)"]
        assert all(a > b for a, b in zip(perturbed[1:], best[1:], strict=True))
    images, text = (up(behind[name], 1) for name in ("heads", "heads-text"))
    in_brief(f"at most {images} points below models trained anew on features of images", f"{text} on text")
    large, small = numbers("aggregation-cifar10")["eps1"], numbers("aggregation-cifar10-small")["eps8-long"]
    gains = [100 * large["gain over no aggregation"][method]["mean"] for method in METHODS[3:]]
    in_brief(f"gains {span(gains, 1)} points at ε = 1")
    shifting = numbers("aggregation-cifar10-small")["shifting-eps8-long"]
    one, other, shifted = (beside(of, ON_TOP[1]) for of in (large, small, shifting))
    in_brief(
        f"at ε = 1, {one} points of four runs",
        f"in small at ε = 8, with the paper's number of steps, it adds {other} points, under shift {shifted}",
    )


def in_brief(*texts: str) -> None:
    for text in texts:
        assert text in " ".join(BRIEF.split()), text


def test_every_experiment_has_a_section_and_every_section_names_its_files_and_seeds() -> None:
    named = [name for heading in SECTIONS for name in re.findall(r"`([\w-]+)`", heading)]
    assert sorted(named) == sorted(EXPERIMENTS)
    for heading, text in SECTIONS.items():
        if heading == OVERVIEW:
            continue
        (about,) = (" ".join(part.split()) for part in text.split("\n\n") if "Kept: " in part)
        files = re.findall(r"\]\(\.\./(lab/results/[\w/.-]+\.json)\)", about)
        assert files and all((ROOT / file).is_file() for file in files), heading
        told = {int(one) for one in re.findall(r"\b(\d+) (?:seeds|repetitions|repeats|runs|with)\b", about)}
        told |= {1} if re.search(r"\bone (?:run|fit|body)\b", about) else set()
        assert told or "no seeds" in about, heading
        contents = [json.loads((ROOT / file).read_text(encoding="utf-8")) for file in files]
        found = {count for content in contents for count in counts(content.get("numbers", {}))}
        groups = {runs // size for runs in told for size in (5, 10, 20, 50)} if "coverage" in heading else set()
        assert found <= told | groups, (heading, found)  # intervals from runs need several of them each


def test_the_overview_has_every_figure_and_table_and_links_every_section_on_a_paper() -> None:
    lines = [line for line in SECTIONS[OVERVIEW].splitlines() if line.startswith("| ")][1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == 4 for row in rows)
    for paper, figures, tables in (("Merging v1", 8, 0), ("Merging v2", 4, 0), ("Scraps", 7, 11)):
        shown = " ".join(row[0].replace("Tables", "Table") for row in rows if row[0].startswith(paper))
        for kind, most in (("Fig.", figures), ("Table", tables)):
            groups = re.findall(rf"{re.escape(kind)} ([\d, ]+)", shown)
            listed = {int(one) for group in groups for one in re.findall(r"\d+", group)}
            assert listed == {*range(1, most + 1)}, (paper, kind)
    for row in rows:
        assert re.search(r"\*\*(yes|no|partly)\*\*|^—$|^as v1|^see Table 3$|^nothing is concluded\b", row[3]), row
        assert "not reproduced" not in row[2] or "[" in row[2] or row[3] == "—", row
    linked = {target for row in rows for target in re.findall(r"\(#([\w-]+)\)", row[2])}
    about = {heading: text.split("\n", 3)[2] for heading, text in SECTIONS.items() if heading != OVERVIEW}
    anchors = {heading.replace("`", "").replace(" ", "-"): text for heading, text in about.items()}
    assert linked == {anchor for anchor, text in anchors.items() if not text.startswith("Not in the papers.")}


def test_pictures_exist_and_none_is_left_over() -> None:
    shown = {ROOT / "docs" / place for place in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", TEXT)}
    assert {path.resolve() for path in shown} == {path.resolve() for path in RESULTS.rglob("*.png")}


# --- what each section says ---------------------------------------------------------------------------------------------------


def test_mean_estimation() -> None:
    found = numbers("mean-estimation")
    alone = list(found["alone"].values())
    below = max(found["comparisons"][f"largest PLD ε / RDP ε of {rule}"] for rule in ("selection", "combination"))
    order = found["comparisons"]["first order at which exact selection has the smaller Rényi divergence"]
    said("`mean-estimation`", f"PLD's ε is at most {up(below, 2)} of RDP's", f"ε = {found['joint release']['pld']:.2f}")
    said("`mean-estimation`", *(f"{one['pld']:.3g} against {one['rdp']:.3g}" for one in alone), f"about order {order:.0f}")
    said(OVERVIEW, f"PLD at most {up(below, 2)} of RDP", f"up to order {order:.1f}")
    largest = found["comparisons"]["largest exact selection ε / combination ε at equal error"]
    said("`mean-estimation`", f"differ by at most {up(100 * (largest - 1), 4)} %")
    pairs = zip(found["selection"]["weight"], found["selection"]["exact"], of_equal_error(found), strict=True)
    wins = [drawn < averaged for weight, drawn, averaged in pairs if 0 < weight < 1]
    said("`mean-estimation`", f"RS beats LC of equal error at {sum(wins)} of {len(wins)} inner weights")
    said(OVERVIEW, f"RS wins at {sum(wins)} of {len(wins)} weights")
    errors = {
        rule: min(error for error, epsilon in zip(found[rule]["error"], found[rule]["pld"], strict=True) if epsilon <= 2)
        for rule in ("selection", "combination")
    }
    said("`mean-estimation`", f"at ε ≤ 2 RS has error {errors['selection']:.4f}, LC {errors['combination']:.4f}")


def of_equal_error(found: Any) -> list[float]:
    epsilons: list[float] = found["combination of the same error as selection"]["pld"]
    return epsilons


def test_mnist() -> None:
    found = numbers("mnist")
    models = list(found["alone"].values())
    scores = ", ".join(with_error(one["test accuracy"]) for one in models)
    epsilons = ", ".join(f"{one['epsilon by PLD']:.3f}" for one in models)
    converted = "epsilon by RDP, papers' conversion"
    papers = ", ".join(f"{one[converted]:.2f}" for one in models)
    said("`mnist`", scores, f"ε = {epsilons}; RDP with the papers' conversion {papers}")
    (row,) = (row for row in found["averages"] if list(row["weights"].values()) == [0.1, 0.1, 0.8])
    joint, drawn = row["joint release"], row["random selection"]
    said("`mnist`", f"gives {row[PROVED]:.3f}, joint release {joint:.3f}, RS {drawn:.3f}, the formula {row[FORMULA]:.3f}")
    (row,) = (row for row in found["averages"] if list(row["weights"].values()) == [0.0, 0.1, 0.9])
    drawn = row["random selection"]
    said("`mnist`", f"(0, 0.1, 0.9) has {drawn:.3f}, where the formula has {row[FORMULA]:.3f}")
    said(OVERVIEW, f"a weight of 0.1 on a less private model costs {drawn:.2f};")
    (row,) = (row for row in found["averages"] if list(row["weights"].values()) == [0.0, 0.6, 0.4])
    score = with_error(row[AVERAGE])
    said("`mnist`", f"(0, 0.6, 0.4) scores {score} at a claimed {row[FORMULA]:.2f}, proved {row[PROVED]:.2f}")
    best = max(row[AVERAGE]["mean"] for row in found["averages"])
    said("`mnist`", f"the best average has {best:.4f}")
    assert best < max(one["test accuracy"]["mean"] for one in models)


def test_full_batches() -> None:
    found = numbers("mnist-full-batch")
    for name in ("warm-up and decay", "constant rate"):
        for row in found[name]["averages"]:
            share, of = next(iter(row["weights"].values())), row[AVERAGE]
            cells = [f"{row[key]:#.3g}" for key in (PROVED, FORMULA, "random selection", "joint release")]
            line = f"| {share:g} | {' | '.join(cells)} | {with_error(of, 3)} |"
            assert (line in TEXT) == (share in (0.1, 0.5)), line
    twin = found["Poisson twin"]
    (row,) = (row for row in twin["averages"] if next(iter(row["weights"].values())) == 0.13)
    inputs = [f"{one['epsilon by PLD']:.3f} ({with_error(one['test accuracy'])})" for one in twin["alone"].values()]
    said("`mnist-full-batch`", f"inputs at ε = {' and '.join(inputs)}", f"**proved ε = {row[PROVED]:.3f}**")
    said("`mnist-full-batch`", f"accuracy {with_error(row[AVERAGE])} (a draw: {with_error(row[DRAW])})")
    drawn, joint = row["random selection"], row["joint release"]
    said("`mnist-full-batch`", f"RS with these weights has {drawn:.3f} and joint release {joint:.3f}")
    least = min(twin["alone"].values(), key=lambda one: one["epsilon by PLD"])
    gained = 100 * (row[AVERAGE]["mean"] - least["test accuracy"]["mean"])
    said("`mnist-full-batch`", f"{gained:.1f} points for an ε five times as large")
    assert 4.5 < row[PROVED] / least["epsilon by PLD"] < 5.5


def test_replace_one() -> None:
    found, section = numbers("mnist-replace-one"), "`mnist-replace-one`"
    hidden = "linear combination, proved if nothing else is published"
    lines = set()
    for row in (row for of in found.values() for row in of["averages"]):
        epsilons = [row[key] for key in (PROVED, hidden, FORMULA, "random selection", "joint release")]
        cells = [up(epsilon, 3 if epsilon >= 0.1 else 4) for epsilon in epsilons]
        weights = ", ".join(f"{weight:g}" for weight in row["weights"].values())
        lines.add(" | ".join([f"({weights})", *cells, with_error(row[AVERAGE]), with_error(row[DRAW])]))
    shown = [line.split("|", 2)[2].strip(" |") for line in SECTIONS[section].splitlines() if re.match(r"\|[^|]*\| \(", line)]
    assert len(shown) == 7 and lines.issuperset(shown)
    least = min(row["random selection"] for row in found["as the paper"]["averages"])
    said(section, f"(0, 0.1, 0.9) has {up(least, 3)}")
    said(OVERVIEW, f"(a weight of 0.1 on a less private model: {up(least, 3)} of 0.939)")
    decay, constant = (found[name]["averages"] for name in ("never clipped", "never clipped, constant rate"))
    pairs = [(one[PROVED] / other[PROVED], one["weights"].values()) for one, other in zip(constant, decay, strict=True)]
    more = [(ratio, weights) for ratio, weights in pairs if ratio > 1]
    assert len(more) == 7 and max(list(weights)[-1] for _, weights in more) == 0.2
    said(section, f"at seven of the {len(pairs)}", f"it costs up to {100 * max(more)[0] - 100:.1f} % more")
    assert all(one[AVERAGE]["mean"] > other[AVERAGE]["mean"] for one, other in zip(constant, decay, strict=True))
    binding = found["as the paper"]["averages"]
    least = min(row[PROVED] / row["joint release"] for row in binding)
    said(section, f"LC costs at least {down(least, 3)} of joint release")
    gains = [100 - 100 * min(row[hidden] / row[PROVED] for row in rows) for rows in (binding, decay, constant)]
    assert gains[0] == 0
    said(section, f"gains nothing where clipping binds, at most {up(gains[1], 1)} % with decay and {up(gains[2], 1)} %")
    cheaper = [sum(row[PROVED] < row["random selection"] for row in rows) for rows in (decay, constant)]
    said(
        section, f"of {len(pairs)} averages on the grid {cheaper[0]} cost less than RS with these weights, with a constant rate"
    )
    said(section, f"with a constant rate {cheaper[1]}.")
    kinds = ("linear combination, PLD", "random selection, PLD", "linear combination (papers' formula), PLD")
    curves = {one["label"]: one for one in found["never clipped"]["frontier"]["curves"]}
    best = [max(y for x, y in zip(curves[kind]["x"], curves[kind]["y"], strict=True) if x <= 0.3) for kind in kinds]
    said(section, "With decay it does too, nearer to RS: at ε ≤ 0.3 {:.4f}, {:.4f} and {:.4f}.".format(*best))
    assert best[1] < best[0] < (best[1] + best[2]) / 2


def test_tail_averaging() -> None:
    rows, section = numbers("tail-averaging")["rows"], "`tail-averaging`"
    last, half = "last iterate", "mean of the last half"
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for name, private in (("absolute", True), ("logistic", True), ("worst case", True), ("worst case", False)):
        some = [row[RATIO].values() for row in rows if (row["loss"], row["private"]) == (name, private)]
        assert [of["ratio"] for ratios in some for of in ratios] == [
            row["ways"][last][key]["mean"] / row["ways"][half][key]["mean"]
            for row in rows
            if (row["loss"], row["private"]) == (name, private)
            for key in row[RATIO]
        ]
        pairs = [[(of["ratio"], of["standard error"]) for of in ratios] for ratios in some]
        told = "{:.2f} ± {:.3f} ({:.2f} ± {:.3f})" if private else "{0:.2f} ({2:.2f})"
        cells = [told.format(*plain, *best) for plain, best in pairs]
        head = name if private else f"{name}, no noise"
        assert f"\n| {head} | {' | '.join(cells)} |\n" in SECTIONS[section], name
        found[name, private] = [(plain[0], best[0]) for plain, best in pairs]
    plain, best = zip(*found["absolute", True], strict=True)
    assert list(plain) == sorted(plain)
    said(section, f"{', '.join(f'{one:.2f}' for one in plain)} at the bound's learning rate", f"{max(best):.2f} at most")
    said(OVERVIEW, f"{plain[0]:.2f} to {plain[-1]:.2f} with privacy (each at its best rate {min(best):.2f} to {max(best):.2f},")
    apart = [abs(one - 1) for one, _ in found["worst case", True]]
    said(section, f"within {math.ceil(100 * max(apart))} %, and within {math.ceil(100 * max(apart[2:]))} % from T = 512 on")
    steps = [two - one for (one, _), (two, _) in itertools.pairwise(found["worst case", False])]
    said(section, "each factor 4 in T adds 0.45")
    assert all(0.42 < step < 0.47 for step in steps)
    drawn = [row["ways"][way]["its bound"] / row["ways"][way]["excess risk"]["mean"] for row in rows for way in (last, half)]
    assert 1e4 <= max(drawn) < 2.5e4
    said(section, f"measured risks are {min(drawn):.1f} to 2·10⁴ times smaller")
    assert all(one["excess risk"]["mean"] < row["L‖C‖√p/(nρ)"] for row in rows for one in row["ways"].values())


def test_coverage() -> None:
    """Of the least squares solution at 95 %, from ten checkpoints or runs."""
    found, section = numbers("coverage"), "`coverage`"
    mean, runs = "mean of the checkpoints", "mean of independent runs"
    first, around_last, far = [], [], []
    for name, of in found.items():
        for direction in ("slowest direction", "fastest direction", "a prediction"):
            rows = [row for row in of["rows"] if (row["direction"], row["k"]) == (direction, 10)]
            held = [row.get(mean, row.get(runs))["0.95"]["least squares solution"] for row in rows]
            cells = [f"{one['share']:.3f} ± {one['error']:.3f}" for one in held]
            first.append(held[0]["share"])
            if name != "diabetes":  # without a penalty no separation is far enough
                far.append(held[3]["share"])
            around_last.append(rows[0]["last checkpoint"]["0.95"]["least squares solution"]["share"])
            shown = f" | {' | '.join(cells)} |" in SECTIONS[section]
            told = {"diabetes": "diabetes, ε = 4", "synthetic": "synthetic, ε = 1"}.get(name, name)
            head = f"| {told}{', ε = 4' if 'penalty' in name else ''}, {direction.partition(' ')[0]} |"
            assert shown == (head in SECTIONS[section]), head
            biases = [
                (row["mean S / variance of the mean"], row["the same, exact"]) for row in rows if "the same, exact" in row
            ]
            agree = all(abs(one / exact - 1) < 0.06 for one, exact in biases)
            assert agree == ((name, direction) != ("diabetes", "slowest direction")), (name, direction)
    spans = [f"{100 * min(some):.0f} to {100 * max(some):.0f} %" for some in (first, around_last)]
    said(section, f"intervals at 95 % hold {spans[0]} around their mean, and {spans[1]} around the last of them")
    said(OVERVIEW, f"{spans[0]} around their mean and {spans[1]} around the last of them")
    said(OVERVIEW, f"intervals at 95 % hold {span(far, 3)} where checkpoints are far apart in the theorem's time")
    short = {name: [width_of(of, direction) for direction in (SLOW, FAST, PREDICTION)] for name, of in found.items()}
    bare = short.pop("diabetes")
    spans = [f"{down(min(some), 1)} to {up(max(some), 1)}" for some in ([one for of in short.values() for one in of], bare)]
    said(section, f"widths {spans[0]} times as large, of diabetes without a penalty {spans[1]} times")
    said(OVERVIEW, f"{spans[0]} times too small, of diabetes without a penalty up to {up(max(bare), 1)};")
    outside = {name: of["share of values outside [-1, 1]"] for name, of in found.items()}
    slow, fast, _ = outside.pop("diabetes").values()
    shares = f"{100 * slow:.0f} % of the slowest direction and {100 * fast:.0f} % of the fastest are not"
    said(section, f"all but 0.2 % (diabetes without penalty: {shares})")
    assert max(max(of.values()) for of in outside.values()) <= 0.002


def width_of(of: Any, direction: str) -> float:
    """Of intervals from ten independent runs, beside that from the last ten checkpoints."""
    rows = [row for row in of["rows"] if (row["direction"], row["k"]) == (direction, 10)]
    (runs,) = (row[RUNS] for row in rows if RUNS in row)
    return float(runs["0.95"]["mean width"] / rows[0][MEAN]["0.95"]["mean width"])


def test_coverage_for_one_price() -> None:
    """Checkpoints of one run after its burn-in, and as many runs of that length as cost as much."""
    section, shown = "`coverage`", 0
    # Ratios of widths where the burn-in is twice the separation, five times, or shorter; and what intervals hold in the former.
    twice, five, less, held = list[float](), list[float](), list[float](), list[float]()
    for (name, of), direction, burn_in in itertools.product(
        numbers("coverage").items(), (SLOW, FAST, PREDICTION), (20, 40, 100)
    ):
        rows = [row for row in of[ONE] if (row["direction"], row["burn-in"]) == (direction, burn_in)]
        assert [row["count"] for row in rows] == [10, *(1 + 9 * burn_in // apart for apart in SEPARATIONS)]
        short, near, far = rows[0][SHORT]["0.95"], *(row[EVERY]["0.95"] for row in rows[-2:])
        cells = [f"{one[SOLUTION]['share']:.3f}, {one['mean width']:.3f}" for one in (short, near, far)]
        told = {"synthetic": "synthetic, ε = 1", "diabetes, penalty 0.1": "diabetes, penalty 0.1, ε = 4"}.get(name, name)
        if direction == SLOW:
            shown += f"| {told} | {burn_in} | {' | '.join(cells)} |" in SECTIONS[section]
        for apart, one in ((20, near), (50, far)):
            if name != "diabetes":  # without a penalty no run is long enough
                ratio = one["mean width"] / short["mean width"]
                twice += [1 / ratio] * (burn_in == 2 * apart)
                five += [1 / ratio] * (burn_in == 5 * apart)
                held += [one[SOLUTION]["share"]] * (burn_in >= 2 * apart)
                less += [ratio] * (burn_in < apart)
    assert shown == 7
    for place in (section, OVERVIEW):
        said(place, f"{span(twice, 1)} times as tight", f"{span(less, 1)} times as wide")
    said(OVERVIEW, f"as tight at t₁ = 2γ, {span(five, 1)} at 5γ, where they hold {span(held, 2)} (diabetes without")


def test_checkpoints() -> None:
    section = "`checkpoints` and `cifar10-checkpoints`"
    found = numbers("checkpoints")["mnist"]
    told = []
    for name, models in found.items():
        second, even = models["alone"]["epoch 2"], models["random selection"][1]
        assert even["epsilon by PLD"] > second["epsilon by PLD"], name
        assert even["expected test accuracy"]["mean"] < second["test accuracy"]["mean"], name  # nobody should draw so
        drawn = f"{even['epsilon by PLD']:.3f} and {with_error(even['expected test accuracy'])}"
        told.append((drawn, f"{second['epsilon by PLD']:.3f} and {with_error(second['test accuracy'])}"))
    models = found["C=1 σ=0.5"]
    scores = ", ".join(with_error(one["test accuracy"]) for one in models["alone"].values())
    epsilons = ", ".join(f"{one['epsilon by PLD']:.3f}" for one in models["alone"].values())
    said(section, f"ε = {epsilons}, accuracy {scores}", f"it has ε = {told[0][0]}")
    said(section, f"C = 2 ({told[1][0]} against {told[1][1]})", f"σ = 2 ({told[2][0]} against {told[2][1]})")
    curve = next(one for one in models["frontier"]["curves"] if one["label"] == "random selection, PLD")
    epsilon, score, weights = curve["x"][8], curve["y"][8], curve["weights"][8]
    first = models["alone"]["epoch 1"]
    assert weights[2] == 0 and first["epsilon by PLD"] < epsilon < models["alone"]["epoch 2"]["epsilon by PLD"]
    above = 100 * (score - first["test accuracy"]["mean"])
    said(section, f"at ε = {epsilon:.3f} {score:.4f}, {above:.1f} points above the first")


@pytest.mark.parametrize(("name", "settings"), [("cifar10-small", 18), ("cifar10", 17)])
def test_checkpoints_of_every_setting(name: str, settings: int) -> None:
    section, found = f"`{name}`", numbers(name)["checkpoints"]
    assert len(found) == settings
    ladders = {tuple(one["epsilon by PLD"] for one in of["alone"].values()) for of in found.values()}
    evens = {of["random selection"][1]["epsilon by PLD"] for of in found.values()}
    (high, low), (above, below) = sorted(ladders, reverse=True), sorted(evens, reverse=True)
    said(section, "ε = {:.2f}, {:.2f} and {:.2f}".format(*high), "(with the larger σ {:.2f}, {:.2f} and {:.2f})".format(*low))
    said(section, f"has ε = {above:.2f} ({below:.2f}), {above - high[1]:.2f} ({below - low[1]:.2f}) more than the second")
    scores = [[one["test accuracy"]["mean"] for one in of["alone"].values()] for of in found.values()]
    steps = [100 * (later - earlier) for of in scores for earlier, later in itertools.pairwise(of)]
    assert min(steps) > 0
    said(section, f"by {span(steps, 2)} points. A draw of two neighbours lies between them.")
    gains = [of[EVEN_DRAW] for of in found.values()]
    least, most = (100 * by(one["mean"] for one in gains) for by in (min, max))
    fewer = f"less in {sum(one['mean'] < 0 for one in gains)} of {len(gains)} settings"
    said(section, f"scores −{-least:.2f} to {most:.2f} points more: {fewer}")
    if all(one["runs"] > 1 for one in gains):
        error = 100 * math.hypot(*(one["std"] / math.sqrt(one["runs"]) for one in gains)) / len(gains)
    else:
        error = 100 * statistics.stdev(one["mean"] for one in gains) / math.sqrt(len(gains))
        said(section, "(± over settings)")
        said(OVERVIEW, fewer)
    told = f"−{-100 * statistics.mean(one['mean'] for one in gains):.2f} ± {error:.2f}"
    said(section, f"{told} on average")
    said(OVERVIEW, f"([{name}](#{name}): {told} points")


def test_cifar10_says_whether_merges_are_of_use() -> None:
    """Not where the most private model is as good as the best."""
    section, below, behind = "`cifar10`", {}, {}
    for group in ("scratch-a", "scratch-b"):
        of = numbers("cifar10")[group]
        models = [one["test accuracy"] | {"epsilon": one["epsilon by PLD"]} for one in of["alone"].values()]
        assert {one["runs"] for one in models} == {2}
        best, private = max(models, key=lambda one: one["mean"]), min(models, key=lambda one: one["epsilon"])
        behind[group] = 100 * (best["mean"] - private["mean"]), 100 * math.hypot(best["std"], private["std"]) / 2**0.5
        scores = [one["mean"] for one in models]
        lost = []
        for row in of["averages"]:
            own = [score for score, weight in zip(scores, row["weights"], strict=True) if weight]
            lost.append((min(own) - row["test accuracy"], row["test accuracy"] - max(own)))
        below[group] = [one for one, _ in lost if one > 0]
        assert group == "scratch-b" or all(above <= 0 for _, above in lost)
    assert behind["scratch-b"][0] == 0
    said(section, f"In `scratch-b` it is the best itself ({with_error(private)}, ε = {private['epsilon']:.2f})")
    said(section, "in `scratch-a` {:.2f} ± {:.2f} points below it".format(*behind["scratch-a"]))
    first, second = below["scratch-a"], below["scratch-b"]
    said(section, f"63 averages {63 - len(first)} lie between their inputs; eight, ", f"{up(max(first), 4)} below both")
    assert len(first) == 8
    said(section, f"and {len(second)} lie below all their inputs, by up to {up(max(second), 4)}")
    said(OVERVIEW, f"or up to {100 * max(first):.1f} points below (two runs each)")
    averages = [row["test accuracy"] for row in of["averages"]]
    said(section, f"averages of `scratch-b` score {span(averages, 4)}")
    top = max(of["averages"], key=lambda row: row["test accuracy"])
    above = top["test accuracy"] - best["mean"]
    said(section, f"The best average of `scratch-b` is {above:.4f} above its best model, picked from {len(averages)}")
    said(section, f"at a proved ε of {top[PROVED]:.2f}")
    lost_to_draws = []
    for repetition in "12":
        score = {tuple(one["weights"]): one["accuracy"] for one in kept(f"{repetition}/scratch-b", "cifar10")["points"]}
        alone = [score[corner] for corner in SHOWN[:3]]
        drawn = {point: sum(w * a for w, a in zip(point, alone, strict=True)) for point in score if max(point) < 1}
        lost_to_draws.append(100 * statistics.mean(drawn[point] - score[point] for point in drawn))
    said(section, "{:.2f} and {:.2f} points on average over the 63 in the two runs".format(*lost_to_draws))


def told_grid(section: str, found: Any) -> list[float]:
    """How much better models of the smaller ε are, in points, where both are there. The section has the table."""
    scores = {name: one["test accuracy"] for name, one in found.items()}
    more = []
    for bound, epsilon in ((10, "7.78"), (9, "6.93")):
        for rate in ("0.01", "0.02", "0.04"):
            row = [scores.get(f"eps{bound}-lr{rate}-c{clip}") for clip in (1, 2, 4)]
            told = ["–" if one is None else f"{one['mean']:.4f}" if one["runs"] == 1 else with_error(one) for one in row]
            said(section, f"| {epsilon} | {rate} | {' | '.join(told)} |")
            assert found[f"eps{bound}-lr{rate}-c1"]["epsilon"] == pytest.approx(float(epsilon), abs=0.005)
            others = [scores[f"eps10-lr{rate}-c{clip}"] for clip in (1, 2, 4)]
            if bound == 9:
                more += [100 * (a["mean"] - b["mean"]) for a, b in zip(row, others, strict=True) if a is not None]
    return more


def test_the_grid_of_resnets() -> None:
    found, section = numbers("cifar10")["settings"], "`cifar10`"
    scores = {name: one["test accuracy"] for name, one in found.items()}
    assert len(scores) == 17 and sorted(one["runs"] for one in scores.values()) == [1] * 11 + [2] * 6
    more = told_grid(section, found)
    products: dict[float, list[float]] = defaultdict(list)
    for name, one in scores.items():
        products[round(SETTINGS[name].learning_rate * SETTINGS[name].clip, 2)].append(one["mean"])
    spans = [f"{product:g} {span(products[product], 3)}" for product in (0.02, 0.04, 0.08)]
    told = f"0.01 gives {span(products[0.01], 3)}, {', '.join(spans)}"
    said(section, f"{told}, and 0.16, in one run, {products[0.16][0]:.3f}")
    merged = max(scores[name]["mean"] for group in ("scratch-a", "scratch-b") for name in MERGES[group])
    assert round(100 * (products[0.16][0] - merged)) == 9
    said(section, f"in {sum(one > 0 for one in more)} of eight settings, by {span(more, 2)} points".replace("-", "−"))
    for number, text in (("1", "({} s a run)"), ("2", "({} s)")):
        runs = [kept(path.stem, f"cifar10/{number}") for path in (RESULTS / "cifar10" / number).glob("eps*.json")]
        said(section, text.format(span([run["training_seconds"] for run in runs], 0)))


def test_aggregation_on_cifar10() -> None:
    found = numbers("aggregation-cifar10")
    columns = [METHODS[0], *(name for method in METHODS[1:3] for name in (method, f"{method} + inf")), *METHODS[3:]]

    def shown(of: Any) -> str:
        return "–" if of is None else percent(of["mean"]) if of["runs"] == 1 else in_percent(of)

    for label, case in CASES.items():
        plain, ema, uta, *others = (f"{value:.2f}" for value in PAPER[case])
        assert f"| {label}, paper | {' | '.join([plain, '', ema, '', uta, *others])} |".replace("|  |", "| |") in TEXT
        assert f"| {label}, here | {' | '.join(shown(found[case]['test accuracy'].get(one)) for one in columns)} |" in TEXT
        tried = found[case]["test accuracy by parameter"]["EMA inf"]
        assert tried["0.99"] == tried["0.999"] == tried["0.9999"] != tried["0.95"], "the warm-up"
    spreads = {case: [spread_over_k(found[case], kind) for kind in TUNED_BY_K] for case in PAPER}
    few = [max(spreads[case][:2]) for case in ("eps1", "eps8")]
    said(OVERVIEW, f"from 5 on UTA_inf and OPA differ by {few[0]:.2f} points at ε = 1 and {few[1]:.2f} at ε = 8")
    said(OVERVIEW, f"Under shift k decides up to {max(spreads['shifting-eps1'] + spreads['shifting-eps8']):.1f} points")
    less = {
        case: [value - PAPER[case][0] - 100 * found[case]["gain over no aggregation"][one]["mean"] for one, value in pairs]
        for case, pairs in ((case, list(zip(METHODS[3:], PAPER[case][3:], strict=True))) for case in PAPER)
    }
    said("`aggregation-cifar10`", f"each within {up(max(map(abs, less['eps1'])), 1)} points of the paper's")
    assert min(less["shifting-eps1"]) > 3 and max(map(abs, less["shifting-eps8"])) < 2
    none = {case: PAPER[case][0] - 100 * found[case]["test accuracy"][METHODS[0]]["mean"] for case in PAPER}
    behind = [f"{none[case]:.1f}" for case in ("eps1", "shifting-eps1", "eps8", "shifting-eps8")]
    said("`aggregation-cifar10`", f"Levels without aggregation are {behind[0]} and, under shift, {behind[1]} points below")
    said("`aggregation-cifar10`", f"at ε = 1, and {behind[2]} and {behind[3]} at ε = 8")
    best = [
        max(PAPER[case][3:]) - 100 * max(found[case]["test accuracy"][one]["mean"] for one in METHODS[3:])
        for case in ("eps1", "shifting-eps1")
    ]
    said("`aggregation-cifar10`", f"With the best inference aggregation they are {best[0]:.1f} and {best[1]:.1f} points below")
    ema, uta = ON_TOP
    words = {(case, one): beside(found[case], one) for case in ("eps1", "shifting-eps1") for one in ON_TOP}
    said(
        "`aggregation-cifar10`",
        f"gains {words['eps1', uta]} points at ε = 1 (four runs) and {words['shifting-eps1', uta]} under shift (five)",
    )
    said(
        "`aggregation-cifar10`", f"EMA_tr {words['eps1', ema]}, and {words['shifting-eps1', ema]} under shift (four runs each)"
    )
    said(OVERVIEW, f"({words['eps1', uta]} points, under shift {words['shifting-eps1', uta]})")
    alone = [
        f"{100 * of['mean']:.1f} ± {100 * of['standard error']:.1f}"
        for of in (found[case]["gain over no aggregation"][one] for one in METHODS[1:3] for case in ("eps1", "shifting-eps1"))
    ]
    said(
        "`aggregation-cifar10`",
        "gains {} points, as inference aggregations do, but {} under shift; UTA_tr {} and {}.".format(*alone),
    )
    gained = {case: [found[case]["gain over no aggregation"][one] for one in METHODS[3:]] for case in PAPER}
    errors = {case: [one["ratio"] for one in of] for case, of in gained.items()}
    first, shifting = ([100 * one["mean"] for one in gained[case]] for case in ("eps1", "shifting-eps1"))
    said("`aggregation-cifar10`", f"at ε = 1 by {span(first, 1)} points", f"{span(errors['eps1'], 1)} standard errors")
    said(
        "`aggregation-cifar10`", f"At ε = 1 **no**: by {span(shifting, 1)} ({span(errors['shifting-eps1'], 1)} standard errors)"
    )
    assert all(less < more for less, more in zip(shifting, first, strict=True))
    chosen_there = found["shifting-eps1"]["chosen on the validation half"]
    assert all(set(chosen_there[one]) == {40.0, 50.0} for one in TUNED_BY_K) and set(chosen_there["EMA inf"]) == {0.99}
    chosen = found["eps1"]["chosen on the validation half"]
    said("`aggregation-cifar10`", "chose {:g} to {:g}, for OMV {:g} to {:g};".format(*chosen_between(chosen)))
    assert not any(one in found[case]["test accuracy"] for one in ON_TOP for case in ("eps8", "shifting-eps8"))
    seconds = [run["seconds"] for run in (kept(f"eps1-{number}", "aggregation-cifar10") for number in range(1, 6))]
    said("`aggregation-cifar10`", f"568 steps ({min(seconds):.0f} to {max(seconds):.0f} s)")
    moving, tails, last = "EMA, decay 0.95", ("UTA, last 20", "OPA, last 20", "OMV, last 20"), "last iterate"

    def gains(case: str, series: str) -> list[float]:
        over = found[case]["test accuracy over the steps"]
        return [100 * (a - b) for a, b in zip(over[series]["mean"], over[last]["mean"], strict=True)]

    above = {case: (sum(one > 0 for one in gains(case, moving)), len(gains(case, moving))) for case in PAPER}
    assert above["shifting-eps1"] == (11, 11)
    small = numbers("aggregation-cifar10-small")
    over = {case: of["test accuracy over the steps"] for case, of in small.items()}
    first_look = [100 * (of["mean"][0] - over["eps1"][last]["mean"][0]) for of in over["eps1"].values()][1:]
    said(OVERVIEW, f"({max(first_look):.1f} to {min(first_look):.1f} points)".replace("-", "−"))
    better = [a > b for a, b in zip(*(over["shifting-eps1"][one]["mean"] for one in (moving, last)), strict=True)]
    assert (sum(better), len(better)) == (8, 11)
    said(OVERVIEW, "at all eleven looks at ε = 1, in small at eight, and at ε = 8 at {} of {}".format(*above["shifting-eps8"]))
    lost = [min(of) for of in zip(*(gains("shifting-eps1", one) for one in tails), strict=True)]
    assert sum(one < 0 for one in lost) == 5
    said(OVERVIEW, f"lose up to {-min(lost):.1f} points at five of eleven")
    there = found["shifting-eps1"]
    late = {one: [100 * mean for mean in there["test accuracy over the steps"][one]["mean"]][5:] for one in (last, moving)}
    assert there["steps"][5] == 240 and there["steps"][9] == 400
    said("`aggregation-cifar10`", f"it swings between {min(late[last]):.0f} % and {max(late[last]):.0f} % from step 240 on")
    said("`aggregation-cifar10`", f"stays between {min(late[moving]):.0f} % and {max(late[moving]):.0f} %")
    said("`aggregation-cifar10`", f"at step 400, {late[last][4]:.1f} % against {late[moving][4]:.1f} %")

    def jumps(case: str, series: str) -> float:
        """How much the differences between looks vary in the second half of a run, on average over the runs."""
        jumping: list[float] = []
        for path in (RESULTS / "aggregation-cifar10").glob(f"{case}-[0-9].json"):
            looks = json.loads(path.read_text(encoding="utf-8"))["history"]
            late = [100 * one[series]["test"] for one in looks if 2 * one["step"] > looks[-1]["step"]]
            jumping.append(statistics.stdev(b - a for a, b in itertools.pairwise(late)))
        return statistics.mean(jumping)

    smooth = [jumps("eps1", one) for one in (moving, *tails)] + [jumps("eps8", moving)]
    rough = [jumps(case, last) for case in ("eps1", "eps8")]
    said(OVERVIEW, f"vary by {span(smooth, 1)} points where those of the last iterate vary by {span(rough, 1)});")
    shifted, still = [jumps("shifting-eps1", one) for one in (moving, *tails)], jumps("shifting-eps1", last)
    eight = [jumps("shifting-eps8", one) for one in (moving, last)]
    said(
        OVERVIEW,
        f"{span(shifted, 1)} points instead of {still:.1f} at ε = 1, {eight[0]:.1f} instead of {eight[1]:.1f} at ε = 8",
    )
    decays = {case: found[case]["test accuracy by parameter"]["EMA inf"] for case in ("eps1", "eps8")}
    more = [
        100 * (decays[case][at]["mean"] - decays[case]["0.9999"]["mean"]) for case, at in (("eps1", "0.95"), ("eps8", "0.99"))
    ]
    said("`aggregation-cifar10`", f"at the paper's own it is {more[0]:.1f} at ε = 1 (there 0.56) and none at ε = 8")
    assert more[1] == 0
    tuned = {case: found[case]["test accuracy"] for case in PAPER}
    pays = {case: 100 * (of["EMA inf"]["mean"] - of["EMA baseline"]["mean"]) for case, of in tuned.items()}
    said(OVERVIEW, f"the chosen decay gains {pays['eps1']:.1f} and {pays['eps8']:.1f} points; in small")
    over_baseline = f"The chosen decay is {pays['eps1']:.1f} points (ε = 1) and {pays['eps8']:.1f} (ε = 8) above 0.9999"
    said("`aggregation-cifar10`", f"{over_baseline}, none and {pays['shifting-eps8']:.1f} under shift")
    assert pays["shifting-eps1"] == 0
    votes = {int(k): 100 * one["mean"] for k, one in found["eps1"]["test accuracy by parameter"]["OMV"].items()}
    assert max(votes, key=lambda k: votes[k]) == 20
    said(OVERVIEW, f"below 20 it loses up to {votes[20] - min(votes.values()):.1f} points")
    said("`aggregation-cifar10`", f"OMV gains with k up to 20, from {votes[3]:.1f} to {votes[20]:.1f}.")
    scores = [
        [100 * one["mean"] for one in found["eps1"]["test accuracy by parameter"][kind].values()] for kind in TUNED_BY_K[:2]
    ]
    said("`aggregation-cifar10`", f"score {span(scores[0], 1)} by UTA_inf and {span(scores[1], 1)} by OPA")
    used = [one for case in decays for one in found[case]["chosen on the validation half"]["EMA inf"]]
    said("`aggregation-cifar10`", f"Chosen were {min(used):g} to {max(used):g}, where the paper has")
    ends = [100 * one for one in found["shifting-eps8"]["test accuracy over the steps"][last]["mean"][-2:]]
    whole = f"a batch is {100 * first_share(800 - 1, 50):.0f} % even, an extreme; only it and the opposite one were looked at"
    said("`aggregation-cifar10`", f"{whole} ({ends[1]:.1f} % and, 25 steps before, {ends[0]:.1f} %)")


def chosen_between(chosen: Any) -> list[float]:
    """The least and the most k, of averages and of the vote."""
    averages, votes = [*chosen["UTA inf"], *chosen["OPA"]], chosen["OMV"]
    return [min(averages), max(averages), min(votes), max(votes)]


def spread_over_k(of: Any, kind: str) -> float:
    """How much accuracy varies with k, from 5 on, in points."""
    scores = [100 * one["mean"] for k, one in of["test accuracy by parameter"][kind].items() if int(k) >= 5]
    return float(max(scores) - min(scores))


IN_SMALL_COLUMNS = [METHODS[0], *(name for pair in zip(TRAINED, ON_TOP, strict=True) for name in pair), *METHODS[3:], CHOSEN]


def beside(of: Any, method: str) -> str:
    """What it gains over the best inference aggregation of the same plain runs."""
    return in_points(of[BESIDE_BEST][method])


def test_runs_as_long_as_the_papers_in_small() -> None:
    found, section = numbers("aggregation-cifar10-small"), "`aggregation-cifar10-small`"
    still, shifted = (found[f"{case}-long"] for case in ("eps8", "shifting-eps8"))
    for label, of in (("ε = 8, 3,068 steps", still), ("PDS, ε = 8, 2,480 steps", shifted)):
        assert {one["runs"] for one in of["test accuracy"].values()} == {5}
        said(section, f"| {label} | {' | '.join(in_percent(of['test accuracy'][one]) for one in IN_SMALL_COLUMNS)} |")
    assert (LONG_IN_SMALL["eps8-long"].steps, LONG_IN_SMALL["shifting-eps8-long"].steps) == (3068, 2480)
    ema, uta = ON_TOP
    said(section, f"UTA_tr {beside(still, uta)} without shift and {beside(shifted, uta)} under it")
    said(section, f"(EMA_tr {beside(still, ema)} and {beside(shifted, ema)})")
    told = []
    for of in (still, shifted):
        gains = [of["gain over no aggregation"][one] for one in METHODS[3:]]
        told.append(
            f"{span([100 * one['mean'] for one in gains], 2)} points ({span([one['ratio'] for one in gains], 1)} standard"
        )
    said(section, f"inference aggregations gain {told[0]} errors), under shift {told[1]} errors)")
    higher = [
        100 * (long["test accuracy"][CHOSEN]["mean"] - found[case]["test accuracy"][CHOSEN]["mean"])
        for case, long in (("eps8", still), ("shifting-eps8", shifted))
    ]
    said(section, "The best inference aggregation is {:.2f} and {:.2f} points higher than after 800 steps".format(*higher))
    said(section, f"where a batch is {100 * first_share(2480 - 1, 50):.0f} % even")
    papers = [PAPER[case][2] - max(PAPER[case][3:]) for case in ("eps8", "shifting-eps8")]
    said(
        section,
        "The paper's UTA_tr gains as much without shift ({:.2f}), and under shift {:.2f}, where ours loses".format(*papers),
    )
    said(OVERVIEW, f"with the paper's steps {beside(still, uta)} and {beside(shifted, uta)}")


def test_aggregation_on_cifar10_in_small() -> None:
    found, section, columns = numbers("aggregation-cifar10-small"), "`aggregation-cifar10-small`", IN_SMALL_COLUMNS
    for label, case in CASES.items():
        of = found[case]
        said(section, f"| {label} | {' | '.join(in_percent(of['test accuracy'][one]) for one in columns)} |")
        if OTHER_RUNS in of:
            others = of[OTHER_RUNS]["test accuracy"]
            cells = [in_percent(others[one]) if one in others else "–" for one in columns]
            called = {"eps8": "ε = 8, rate 8", "shifting-eps1": "PDS, ε = 1, k = 2, τ = 200"}[case]
            said(section, f"| {called} | {' | '.join(cells)} |")
        rates, used = of["learning rates"], IN_SMALL[case].learning_rate
        for method, name in ((METHODS[0], "none"), (CHOSEN, "best")):
            cells = [f"{float(rate):g}: {in_percent(at['test accuracy'][method])}" for rate, at in rates.items()]
            said(section, f"| {label}, {name} | {' | '.join(cells)} |")
        best = max(rates, key=lambda rate: rates[rate]["on the validation half"][CHOSEN]["mean"])
        assert float(best) == used, "the rate of the table is the best for inference aggregations"
        assert best not in (next(iter(rates)), list(rates)[-1]), "and not at an edge"

    def gained(case: str) -> list[tuple[float, float]]:
        of = [found[case]["gain over no aggregation"][one] for one in METHODS[3:]]
        return [(100 * one["mean"], one["ratio"]) for one in of]

    for case, text in (
        ("shifting-eps1", "by {} points at ε = 1 ({} standard errors)"),
        ("shifting-eps8", "and {} at ε = 8 ({})"),
        ("eps8", "without shift at ε = 8 too, by {} ({})"),
        ("eps1", "all means are above, by {} points, but of five runs only OMV's clearly ({})"),
    ):
        said(section, text.format(span([a for a, _ in gained(case)], 2), span([b for _, b in gained(case)], 1)))

    one, shifted, eight, eight_shifted = (found[case] for case in ("eps1", "shifting-eps1", "eps8", "shifting-eps8"))
    ema, uta = ON_TOP
    rates = [eight, eight[OTHER_RUNS]]
    gains = [[beside(of, method) for of in rates] for method in (uta, ema)]
    said(section, "yes**, by {} points, and by {} at twice the learning rate (EMA_tr {} and {})".format(*gains[0], *gains[1]))
    said(section, f"**At ε = 1 no**: {beside(one, uta)} points, and under shift {beside(shifted, uta)}")
    said(section, f"(EMA_tr {beside(one, ema)} and {beside(shifted, ema)})")
    said(section, f"**nor at ε = 8 under shift**, {beside(eight_shifted, uta)} ({beside(eight_shifted, ema)})")
    said(section, f"under shift five fresh runs with k = 2 and τ = 200 gain {beside(shifted[OTHER_RUNS], uta)}.")
    said(OVERVIEW, f"({beside(one, uta)} points, under shift {beside(shifted, uta)})")
    said(OVERVIEW, f"by {beside(eight, uta)} points, **no** under shift ({beside(eight_shifted, uta)})")
    papers = [PAPER[case][2] - max(PAPER[case][3:]) for case in ("eps1", "shifting-eps1", "eps8", "shifting-eps8")]
    said(section, "gains {:.2f} and {:.2f} at ε = 1, {:.2f} and {:.2f} at ε = 8".format(*papers))
    prices = []
    for label, case in (("ε = 1", "eps1"), ("PDS, ε = 1", "shifting-eps1")):
        tuning, cells = found[case][TUNING]["UTA tr"], []
        for best in (tuning["best"][way] for way in WAYS):
            stars = {name: "*" * (name in best["at an edge of the grid"]) for name in ("parameter", "start")}
            cells.append(f"{best['parameter']:g}{stars['parameter']}, {best['start']}{stars['start']}")
        said(section, f"| {label} | {' | '.join(cells)} |")
        prices.append(tuning["price"])
        (alone,) = (row[ALONE]["test"] for row in tuning["grid"] if (row["parameter"], row["start"]) == (50, 400))
    assert {price["trials"] for price in prices} == {36}
    costs = [up(price["epsilon of all trials together"], 2) for price in prices]
    said(section, f"The 36 trials cost ε = {costs[0]} together, under shift {costs[1]}")
    said(section, f"has {percent(alone)} in its two trials, where the best inference aggregations of the same plain runs have")
    said(section, f"of the same plain runs have {percent(tuning[PLAIN]['mean'])}.")
    alone = [found["shifting-eps1"]["gain over no aggregation"][name] for name in TRAINED]
    told = [f"{100 * of['mean']:.2f} ± {100 * of['standard error']:.2f}" for of in alone]
    said(section, f"hardly anything at ε = 1: {' and '.join(told)}")

    tuned = [100 * (of["EMA inf"]["mean"] - of["EMA baseline"]["mean"]) for of in (o["test accuracy"] for o in (one, eight))]
    decays = "{:.2f} and {:.2f}".format(*tuned).replace("-", "−")
    spreads = {case: [spread_over_k(found[case], kind) for kind in TUNED_BY_K] for case in found}
    still, moved = (spreads["eps1"] + spreads["eps8"], spreads["shifting-eps1"] + spreads["shifting-eps8"])
    said(section, f"gains {decays} points over 0.9999", f"vary by {span(still, 2)} points. Under shift by {span(moved, 2)}.")
    said(OVERVIEW, f"in small **no**: {decays}.", f"in small all three differ by {max(still):.2f} at most")

    def scored(case: str, rate: str, method: str) -> float:
        return 100 * float(found[case]["learning rates"][rate]["test accuracy"][method]["mean"])

    added = [
        f"{scored('eps1', rate, CHOSEN) - scored('eps1', rate, METHODS[0]):.2f}" for rate in found["eps1"]["learning rates"]
    ]
    said(section, f"inference aggregations add {', '.join(added[:3])} and {added[3]} points at rates 0.5, 1, 2 and 4")
    above = {}
    for case in CASES.values():
        of = found[case]["learning rates"]
        own = {
            name: max(of, key=lambda rate: of[rate]["on the validation half"][name]["mean"]) for name in (METHODS[0], CHOSEN)
        }
        above[case] = scored(case, own[CHOSEN], CHOSEN) - scored(case, own[METHODS[0]], METHODS[0])
    said(
        section,
        f"the best aggregate is {above['eps1']:.2f} points above the last iterate at ε = 1 and {above['eps8']:.2f} at ε = 8",
    )
    phases = [f"{100 * first_share(IN_SMALL[case].steps - 1, 50):.0f} %" for case in ("shifting-eps1", "shifting-eps8")]
    said(section, f"no rate replaces averaging where runs end ({' and '.join(phases)} even): {above['shifting-eps1']:.2f} and ")
    said(section, f"{above['shifting-eps8']:.2f} points are left")
    of = found["shifting-eps1"]
    series = [of["test accuracy over the steps"][name]["mean"] for name in ("last iterate", "EMA, decay 0.95")]
    more = {step: 100 * (last - average) for step, last, average in zip(of["steps"], *series, strict=True)}
    assert {round(first_share(step - 1, 50), 2) for step in (40, 240, 440)} == {0.56}
    scored_more = f"{more[40]:.2f}, {more[240]:.2f} and {more[440]:.2f} points more than the moving average at ε = 1"
    whole = f"batches are 56 % even, the last iterate scores {scored_more}"
    said(section, f"{whole}; at step 400, at an extreme, {-more[400]:.2f} less")


def test_aggregation_on_mnist() -> None:
    found, section = numbers("aggregation-mnist"), "`aggregation-mnist`"
    for label, case in CASES.items():
        assert f"| {label} | {' | '.join(in_percent(found[case]['test accuracy'][one]) for one in COLUMNS)} |" in TEXT
        for method in TRAINED:
            cells = []
            for way in WAYS:
                best = found[case]["tuning of training on aggregates"][method]["best"][way]
                stars = {name: "*" * (name in best["at an edge of the grid"]) for name in ("parameter", "start")}
                scores = found[case]["inference aggregation on top"][tuned_for(method, way)]["test accuracy"]
                cells.append(f"{best['parameter']:g}{stars['parameter']}, {best['start']}{stars['start']}")
                cells += [in_percent(scores["No Agg"]), in_percent(scores[CHOSEN])]
            assert f"| {label}, {method.replace(' ', '_')} | {' | '.join(cells)} |" in TEXT
    for case, text in (
        ("eps8", "by {} points at ε = 8 ({} standard errors)"),
        ("eps1", "{} at ε = 1 ({}), and under shift"),
        ("shifting-eps8", "under shift {} ({})"),
        ("shifting-eps1", "and {} ({})"),
    ):
        gains = found[case]["gain over no aggregation"].values()
        points, ratios = [100 * one["mean"] for one in gains], [one["ratio"] for one in gains]
        said(section, text.format(span(points, 1), span(ratios, 1)))
        assert found["outside two standard errors"][case] == list(COLUMNS[1:])
    beside = [found[case]["gain over the best inference aggregation of plain runs"] for case in CASES.values()]
    for top in ON_TOP:
        cells = [f"{100 * of[top]['mean']:.2f} ± {100 * of[top]['standard error']:.2f}".replace("-", "−") for of in beside]
        said(section, f"{', '.join(cells[:3])} and {cells[3]}")
    said(
        OVERVIEW, f"{span([100 * of['UTA tr + inf']['mean'] for of in beside], 1)} points above the best inference aggregation"
    )
    clear_of_ema = []
    for case in CASES.values():
        accuracy = found[case]["test accuracy"]
        assert max(accuracy, key=lambda column: accuracy[column]["mean"]) == "UTA tr + inf", "best in all four cases"
        clear_of_ema.append(_above(accuracy["UTA tr + inf"], accuracy["EMA tr + inf"]))
    assert [mean > 2 * error for mean, error in clear_of_ema] == [False, False, False, True]
    on_top = {case: found[case]["inference aggregation on top"] for case in CASES.values()}
    own = "gain over its own last checkpoint"
    added = [on_top[case][tuned_for("UTA tr", WITH_INFERENCE)][own][CHOSEN] for case in ("shifting-eps8", "shifting-eps1")]
    told = [f"{100 * one['mean']:.2f} ± {100 * one['standard error']:.2f}" for one in added]
    changed = max(
        abs(one["mean"]) for of in on_top.values() for method in TRAINED for one in of[tuned_for(method, ALONE)][own].values()
    )
    said(section, f"adds {told[0]} and {told[1]} points, where p was chosen alone at most {100 * changed:.2f}")
    levels: list[str] = []
    above: list[str] = []
    for case in CASES.values():
        rates = {rate: of["test accuracy"][CHOSEN] for rate, of in found[case]["learning rates"].items()}
        best = max(rates, key=lambda rate: rates[rate]["mean"])
        mean, error = _above(found[case]["test accuracy"]["UTA tr + inf"], rates[best])
        levels.append(f"{percent(rates[best]['mean'])} at{' rate' * (not levels)} {best}")
        above.append(f"{mean:.2f} ± {error:.2f}".replace("-", "−"))
        assert mean < 2 * error, "no better than plain runs at a smaller rate"
    said(section, f"have {levels[0]}, {levels[1]}, under shift {levels[2]} and {levels[3]}")
    said(section, f"UTA_tr + inf is {', '.join(above[:3])} and {above[3]} points above")
    for case in ("shifting-eps8", "shifting-eps1"):
        last = found[case]["test accuracy over the steps"]["No Agg"]["mean"]
        phases: dict[int, list[float]] = {}
        for step, one in zip(found[case]["steps"], last, strict=True):
            phases.setdefault(step % 50, []).append(one)
        means = {phase: sum(values) / len(values) for phase, values in phases.items()}
        assert len(means) == 5 and min(means, key=means.__getitem__) == 0, "the worst phase"
    said(section, f"the last batch is {100 * first_share(400 - 1, 50):.0f} % even")
    said(section, f"it has {100 * last[-1]:.1f} there and {100 * last[-2]:.1f} ten steps before")
    rates = {rate: of["test accuracy"] for rate, of in found["eps1"]["learning rates"].items()}
    last = rates["8"]["No Agg"]["mean"]
    apart = max(abs(rates["8"][method]["mean"] - last) for method in METHODS[3:])
    assert last > max(one["mean"] for one in found["eps1"]["test accuracy"].values())
    said(section, f"scores {percent(last)} at rate 8", f"within {100 * apart:.2f} points of it")
    eight = found["eps8"]["learning rates"]["16"]["test accuracy"]
    assert eight["No Agg"]["mean"] > max(found["eps8"]["test accuracy"][method]["mean"] for method in METHODS[3:])
    said(
        section, f"at ε = 8 it scores {percent(eight['No Agg']['mean'])} at rate 16, more than any inference aggregation at 32"
    )
    said(section, f"and the best of those at 16 has {percent(eight[CHOSEN]['mean'])}")
    rates = {rate: of["test accuracy"] for rate, of in found["shifting-eps1"]["learning rates"].items()}
    last = max(of["No Agg"]["mean"] for of in rates.values())
    reached = max(of[method]["mean"] for of in rates.values() for method in METHODS[3:])
    said(section, f"reaches {percent(last)} at most at ε = 1, aggregates {percent(reached)}")
    for method, text in (
        ("EMA tr", "{} trials for EMA_tr cost ε = {:.2f} together instead of 1, and {:.1f} instead of 8"),
        ("UTA tr", "the {} for UTA_tr {:.2f} and {:.1f}"),
    ):
        prices = [found[case]["tuning of training on aggregates"][method]["price"] for case in ("eps1", "eps8")]
        said(section, text.format(prices[0]["trials"], *(one["epsilon of all trials together"] for one in prices)))


def _above(first: Any, second: Any) -> tuple[float, float]:
    """The difference of two means in points, and its standard error."""
    error = math.sqrt(first["std"] ** 2 / first["runs"] + second["std"] ** 2 / second["runs"])
    return 100 * (first["mean"] - second["mean"]), 100 * error


def test_composition_and_tuning() -> None:
    found = numbers("composition")["comparisons"]
    least = found["smallest advanced ε / joint ε, both by RDP (M1 Prop. 7.1)"]
    many = [
        next(row for row in numbers("composition")[f"over N, {kind}"] if row["models"] == 64)
        for kind in ("DP-SGD, rate 256/60000, 705 steps", "Gaussian mechanisms")
    ]
    said(
        "`composition`",
        "joint PLD {joint, PLD:.1f}, joint RDP {joint, RDP:.1f}; of pairs by PLD optimal composition {optimal, PLD:.0f}, "
        "advanced {advanced, PLD:.0f}; of pairs by RDP, as the proposition has it, advanced {advanced, RDP:,.0f}.".format(
            **many[0]
        ),
        "{joint, PLD:.1f}, {joint, RDP:.1f}, {optimal, PLD:.0f}, {advanced, PLD:.0f}, {advanced, RDP:.0f}.".format(**many[1]),
    )
    fails = found["cases of several models where optimal composition of PLD's pairs is below joint RDP"]
    cases = found["cases of several models"]
    told = f"fails in {fails} cases of {cases}, all of two models with ε ≤ 1 each"
    said("`composition`", f"a factor of at least {down(least, 2)}", told)
    said(OVERVIEW, f"a factor of at least {down(least, 2)}", f"two models of ε ≤ 1, {fails} cases of {cases}. With the tight")
    assert found["the same with the tight conversion"] == 0 and found["most models of them"] == 2
    assert found["largest ε of each of them"] <= 1
    ratio = found["smallest optimal ε by PLD / joint ε by RDP, several models"]
    said("`composition`", f"has down to {down(ratio, 2)} of joint RDP. With the tight conversion it fails in none")
    optimal = found["smallest optimal ε / joint ε, both by PLD, several models"]
    said("`composition`", f"(a factor of {down(optimal, 2)} or more)")
    drawn_once = found["largest selection ε / joint ε, both by PLD, several models"]
    said("`composition`", f"at most {up(drawn_once, 2)} of joint release")
    rows = numbers("tuning-cost")["the paper's numbers"]
    low = [down(row["Poisson, at least"]["rdp"], 2) for row in rows[:2]]
    high = [up(row["Poisson, at most"]["rdp"], 2) for row in rows[:2]]
    drawn = [row["geometric, at most"]["rdp"] for row in rows[:2]]
    own = [row["Poisson, at least, by its own outcome"]["rdp"] for row in rows]
    cells = [down(one, 2 if one < 10 else 1) for one in own]
    said("`tuning-cost`", f"and at least {', '.join(cells[:3])} and {cells[3]} where the score is the run's own outcome")
    said("`tuning-cost`", f"at least {low[0]} and {low[1]}", f"(at most {high[0]}, {high[1]}, ")
    said(OVERVIEW, f"at least {low[0]} and {low[1]}", f"{drawn[0]:.2f} and {drawn[1]:.2f}")


def test_quadratic() -> None:
    found = numbers("quadratic")
    best, second = found["best, exact"], found["best, exact"]["separation 2"]
    said("`quadratic`", f"burn-in {best['burn-in']}, separation {best['separation']}, RMSE {best['rmse']:.4f}")
    said("`quadratic`", f"separation 2 has {second['rmse']:.4f} at {second['burn-in']}")
    compared = ("separation 1 at burn-in 64, exact", "the paper's best (burn-in 64, separation 2), exact")
    here = [found[name]["rmse"] for name in compared]
    share = found["share of comparisons in which separation 2 beats 1 at burn-in 64"]
    trials = kept("quadratic")["configuration"]["comparisons of separations"]
    error = (share * (1 - share) / trials) ** 0.5
    said("`quadratic`", f"{here[0]:.4f} against {here[1]:.4f}", f"in {trials} simulated comparisons")
    said("`quadratic`", f"separation 2 won only {100 * share:.1f} % ± {100 * error:.1f} %")
    found_best = [(one["separation"], one["burn-in"]) for one in found["best, simulated"]]
    assert [one[0] for one in found_best].count(2) == 3 and found_best.count((2, 64)) == 2 and len(found_best) == 5
    said("`quadratic`", "separation 2 was the best in 3 of our 5 simulations, in two of them at burn-in 64")
    bias = {(row["separation"], row["burn-in"]): row["exact"]["bias"] for row in found["rows"]}
    said(OVERVIEW, f"separation 1: {bias[1, 32]:.3f} at 32, −{-bias[1, 56]:.3f} at 56")
    said(OVERVIEW, f"(−{-bias[1, 96]:.3f} at 96), only separation lowers (to −{-bias[16, 96]:.3f} at 16)")
    said(OVERVIEW, f"at burn-in 32 it grows with separation, to {bias[16, 32]:.3f}")


@pytest.mark.parametrize("name", ["uncertainty-mnist", "uncertainty-cifar10"])
def test_uncertainty(name: str) -> None:
    found, section = numbers(name), f"`{name}`"
    errors: dict[str, list[float]] = {LAST: [], APART: []}
    for epsilon, of in found.items():
        cells = []
        for way in (LAST, APART):
            ratios = [ratio(row, way) for row in of["rows"]]
            cells.append(", ".join(f"{one:.2f}" for one, _ in ratios))
            errors[way] += [error for _, error in ratios]
        few, many = (of["rows"][index]["epsilon of N runs together"] for index in (0, -1))
        cells.append(f"{up(few, 2)}, {up(many, 1)}")
        assert f"| {epsilon.removeprefix('ε = ')} | {' | '.join(cells)} |" in SECTIONS[section]
    said(section, f"at most {up(max(errors[LAST]), 2)} (last N) and {up(max(errors[APART]), 2)} (second half)")
    largest = [ratio(row, LAST)[0] for of in found.values() for row in of["rows"]]
    said(OVERVIEW, f"the factor is {span(largest, 1)}")


def answered(name: str, share: str) -> dict[str, list[float]]:
    """Accuracy by each way, for all ε."""
    of = [one[ANSWERED] for one in numbers(name).values()]
    return {way: [one[way][share]["mean"] for one in of] for way in of[0]}


def test_abstaining_on_mnist() -> None:
    section, by_pair = "`uncertainty-mnist`", defaultdict[tuple[str, str], list[float]](list)
    for name, of in numbers("uncertainty-mnist").items():
        for share in ("0.5", "0.9"):
            cells = [in_points(one[share]) for one in of[ABOVE].values()]
            head = f"{name.removeprefix('ε = ')}, {100 * float(share):.0f} %"
            assert f"| {head} | {' | '.join(cells)} |" in SECTIONS[section], head
            for pair, one in of[ABOVE].items():
                by_pair[pair, share].append(100 * one[share]["mean"])
    moving = [1 / ratio(row, APART)[0] for row in numbers("uncertainty-mnist")["ε = 1, η = 0.1"]["rows"]]
    said(section, f"they are {span(moving, 1)} times those of independent runs")
    slow = {key: points.pop() for key, points in by_pair.items()}
    own = [f"{way} − {TOP[way]}" for way in (ALL_RUNS, LAST, APART)]
    worse = [span([-points for points in by_pair[pair, "0.9"]], 2) for pair in own]
    said(section, f"worse by {worse[0]} points (20 runs), {worse[1]} (last 20 checkpoints) and {worse[2]} (second half)")
    assert all(slow[pair, "0.9"] < min(by_pair[pair, "0.9"]) for pair in own)
    few = [of[ABOVE] for name, of in numbers("uncertainty-mnist").items() if "η" not in name]
    better = {pair: [100 * of[pair][share]["mean"] for of in few for share in ("0.5", "0.6", "0.7", "0.8")] for pair in own}
    said(section, f"those of 20 runs are better by {span(better[own[0]], 2)} at η = 0.5")
    assert max(points for pair in own[1:] for points in better[pair]) < 0.02
    *won, level = by_pair[f"{ALL_RUNS} − {TOP[LAST]}", "0.9"]
    said(section, f"by {span(won, 2)} points with 90 % answered; at ε = 8 not (−{-level:.2f}")
    every = [
        {way: 100 * of[ANSWERED][way]["1"]["mean"] for way in (ALL_RUNS, LAST)} for of in numbers("uncertainty-mnist").values()
    ]
    many, one_run = (span([found[way] for found in every[:-1]], 2) for way in (ALL_RUNS, LAST))
    said(section, f"(all answered, {many} % against {one_run} %)")


def in_points(of: Any) -> str:
    """A difference with its standard error, as `gain` gives it or over repetitions."""
    error = of["standard error"] if "standard error" in of else of["std"] / of["runs"] ** 0.5
    return re.sub("^-(?!0.00 )", "−", f"{100 * of['mean']:.2f} ± {100 * error:.2f}").lstrip("-")


def test_abstaining_on_cifar10() -> None:
    section, name = "`uncertainty-cifar10`", "uncertainty-cifar10"
    apart = [ratio(row, APART)[0] for of in numbers(name).values() for row in of["rows"]]
    said(section, f"it is {span(apart, 1)}, with hardly any dependence on N")
    nine, five = answered(name, "0.9"), answered(name, "0.5")
    top, runs, checkpoints = TOP[LAST], ALL_RUNS, "checkpoints"
    for of in (nine, five):
        of[checkpoints] = of[LAST] + of[APART]
    said(section, f"has {span(nine[top], 3)}, widths from 20 runs {span(nine[runs], 3)}")
    said(section, f"widths from checkpoints {span(nine[checkpoints], 3)}")
    said(section, f"{span(five[top], 3)} against {span(five[runs], 3)} and {span(five[checkpoints], 3)}")
    everything = answered(name, "1")
    said(section, f"answering everything ({span(everything[LAST] + everything[APART], 3)})")
    accuracies = [f"{of['test accuracy']['mean']:.3f}" for of in numbers(name).values()]
    said(section, f"Accuracy {', '.join(accuracies)} at ε = 0.5, 1, 2, 8")


def test_cifar10_from_one_start_and_from_three() -> None:
    found, section = {group: numbers("cifar10-small")[group] for group in ("scratch-b", "apart")}, "`cifar10-small`"
    told = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in SECTIONS[section].splitlines() if line[:3] == "| ("
    ]
    assert len(told) == 7 and [cells[0] for cells in told] == [named(point) for point in SHOWN]
    repetitions = {group: repeated(RESULTS / "cifar10-small", group, list(of["alone"])) for group, of in found.items()}
    for weights, *cells in told:
        point, expected = [float(one) for one in weights[1:-1].split(",")], []
        for group in ("scratch-b", "apart"):
            if max(point) == 1:
                model = list(found[group]["alone"].values())[point.index(1)]
                expected += [with_error(model["test accuracy"]), ""]
            else:
                (row,) = [one for one in found[group]["averages"] if one["weights"] == pytest.approx(point, abs=1e-9)]
                (again,) = [one for one in repetitions[group] if [*one["weights"].values()] == pytest.approx(point, abs=1e-9)]
                score, drawn = again["test accuracy of the average"], again["expected test accuracy of a draw"]
                assert (score["mean"], drawn["mean"]) == pytest.approx(
                    (row["test accuracy"], row["expected test accuracy of a draw"])
                )
                assert with_error(score) == f"{row['test accuracy']:.4f} ± {row['standard error']:.4f}"
                expected += [with_error(score), with_error(drawn)]
        assert cells == expected, weights
    behind: dict[str, list[tuple[float, float]]] = {}
    for group in found:
        rows = found[group]["averages"]
        behind[group] = [
            (max(row["weights"]), 100 * (row["expected test accuracy of a draw"] - row["test accuracy"])) for row in rows
        ]
    assert all(points > 0 for _, points in behind["apart"])
    of = {
        share: [points for largest, points in behind["apart"] if largest == pytest.approx(share)] for share in (0.9, 0.5, 0.4)
    }
    said(section, f"all {len(behind['apart'])} averages score below a draw with the same weights, by {span(of[0.9], 2)} points")
    said(section, f"{span(of[0.5], 1)} where the largest is 0.5, {span(of[0.4], 1)} where it is 0.4")
    said(OVERVIEW, "with no weight above 0.5 they lose 3 to 8 points against a draw")
    assert (round(min(of[0.5] + of[0.4])), round(max(of[0.5] + of[0.4]))) == (3, 8)
    above = [-points for _, points in behind["scratch-b"] if points <= 0]
    said(section, f"{len(above)} of {len(behind['scratch-b'])} averages score above the draw, by up to {max(above):.2f} points")
    best = max(found["scratch-b"]["averages"], key=lambda row: row["test accuracy"])
    alone = max((one["test accuracy"] for one in found["scratch-b"]["alone"].values()), key=lambda one: one["mean"])
    said(section, f"{best['test accuracy']:.4f} ± {best['standard error']:.4f} and the best model alone {with_error(alone)}")


def test_the_whole_grid_in_small() -> None:
    found, section = numbers("cifar10-small")["settings"], "`cifar10-small`"
    scores = {name: one["test accuracy"] for name, one in found.items()}
    assert len(scores) == 18 and {one["runs"] for one in scores.values()} == {3}
    more = told_grid(section, found)
    assert sorted(scores, key=lambda name: scores[name]["mean"])[-2:] == ["eps10-lr0.04-c4", "eps9-lr0.04-c4"]
    assert round(100 * (scores["eps9-lr0.04-c4"]["mean"] - scores["eps9-lr0.02-c2"]["mean"])) == 4
    errors = [
        100 * math.hypot(scores[f"eps9-{name}"]["std"], scores[f"eps10-{name}"]["std"]) / 3**0.5
        for name in (f"lr{rate}-c{clip}" for rate in ("0.01", "0.02", "0.04") for clip in (1, 2, 4))
    ]
    told = f"in {sum(one > 0 for one in more)} of nine settings, by {span(more, 2)} points".replace("-", "−")
    said(section, f"{told} (standard errors {span(errors, 2)})")


def test_averages_beside_joint_release() -> None:
    convex = numbers("mnist-full-batch")
    unclipped = [numbers("mnist-replace-one")[name] for name in ("never clipped", "never clipped, constant rate")]
    never_clipped = [*(of for name, of in convex.items() if name != "length of training"), *unclipped]
    others = [numbers("mnist"), numbers("mnist-replace-one")["as the paper"]]
    others += [numbers("cifar10")[group] for group in ("scratch-a", "scratch-b")]
    tuned = [numbers("cifar10-pretrained", "cifar10")[group] for group in TUNED[:4]]
    drawn = [row["random selection"] / row[JOINT] for of in (*never_clipped, *others, *tuned) for row in of["averages"]]
    said(OVERVIEW, f"RS **yes**: {down(min(drawn), 3)} to {up(max(drawn), 3)} of it")
    least = min(row[PROVED] / row[JOINT] for of in (*others, *tuned) for row in of["averages"])
    said(OVERVIEW, f"{down(least, 3)} of it or more; **yes** where clipping provably never binds, down to a thirtieth")
    assert round(1 / min(row[PROVED] / row[JOINT] for of in never_clipped for row in of["averages"])) == 30
    apart = [
        100 * (row["test accuracy"] - row["expected test accuracy of a draw"]) for of in tuned[:3] for row in of["averages"]
    ]
    said(OVERVIEW, f"all {len(apart)} averages within {up(max(map(abs, apart)), 2)} points of a draw")


def test_cifar10_pretrained() -> None:
    found, section = numbers("cifar10-pretrained", "cifar10"), "`cifar10-pretrained`"
    above = []
    for label, group in {"images as they are": "", "moved and mirrored": "-views", "its moving average": "-views-ema"}.items():
        of = found[f"pretrained{group}"]
        alone = [one["test accuracy"]["mean"] for one in of["alone"].values()]
        best = max(row["test accuracy"] for row in of["averages"])
        said(section, f"| {label} | {' | '.join(f'{one:.4f}' for one in [*alone, best])} | 17.29, 8.78 |")
        proved = [row[PROVED] for row in of["averages"]]
        said(OVERVIEW, f"proved LC costs {span(proved, 1)}")
        above.append(f"{1e4 * (best - max(alone)):.0f}")
    said(section, f"the best average is {above[0]}, {above[1]} and {above[2]} images of 10,000 above the best input")
    gains = [
        100 * (average["test accuracy"]["mean"] - last["test accuracy"]["mean"])
        for average, last in zip(
            found["pretrained-views-ema"]["alone"].values(), found["pretrained-views"]["alone"].values(), strict=True
        )
    ]
    said(section, f"{span(gains, 1)} points are left in each of four settings")
    public = kept("pretraining-views", "cifar10/1")["history"][-1]
    average, last = public["moving average"]["accuracy"], public["accuracy"]
    said(section, f"whose average is {100 * (average - last):.1f} points better ({average:.4f} against {last:.4f})")
    said(OVERVIEW, f"{span(gains, 1)} points in all four settings")
    full = found["full-batch"]
    for (rate, sigma), one in zip(((0.1, 10), (0.2, 10), (0.1, 15)), full["alone"].values(), strict=True):
        epsilon = math.ceil(100 * one["epsilon by PLD"]) / 100
        said(section, f"| {rate}, {sigma} | {epsilon:.2f} | {one['test accuracy']['mean']:.4f} |")
    best = max(one["test accuracy"]["mean"] for one in full["alone"].values())
    top = max(row["test accuracy"] for row in full["averages"])
    said(section, f"with full batches it is {1e4 * (best - top):.0f} below")
    behind = [row["expected test accuracy of a draw"] - row["test accuracy"] for row in full["averages"]]
    said(section, f"Of {len(behind)} averages {sum(one > 0 for one in behind)} score below a draw")
    said(section, f"by at most {max(behind):.4f}")
    said(section, f"they cost {span([row[PROVED] for row in full['averages']], 2)}")
    formula = [(row["linear combination, papers' formula"], row) for row in full["averages"]]
    fewer = [row["weights"][2] for epsilon, row in formula if epsilon < row["random selection"]]
    said(section, f"The formula says {span([epsilon for epsilon, _ in formula], 2)}, less than RS for {len(fewer)} of them")
    said(section, f"which have {min(fewer):g} or more of the most private model")


def test_cifar10_pretrained_in_small() -> None:
    found, section = numbers("cifar10-pretrained-small"), "`cifar10-pretrained-small`"

    def means(names: Iterable[str], of: Any) -> list[float]:
        return [100 * abs(of[name]["mean"]) for name in names]

    starts = {"images as they are": TUNED[0], "moved and mirrored": TUNED[1], "its moving average": TUNED[2]}
    public = dict(zip(starts, PRETRAININGS, strict=True))
    for label, group in starts.items():
        scores = [found["public networks"][public[label]], *(one["test accuracy"] for one in found[group]["alone"].values())]
        said(section, f"| {label} | {' | '.join(map(with_error, scores))} | {in_points(found[BEST_AVERAGE][group])} |")
    for name, other in zip(*(MERGES[group] for group in TUNED[3:]), strict=True):
        run, one = SETTINGS[name], found["full-batch"]["alone"][name]
        cells = [up(one["epsilon by PLD"], 2), with_error(one["test accuracy"]), in_points(found[PRIVATE_STEPS][name])]
        cells += [with_error(found["full-batch-ema"]["alone"][other]["test accuracy"]), in_points(found[PRIVATE_STEPS][other])]
        said(section, f"| {run.learning_rate:g}, {run.noise_multiplier:g} | {' | '.join(cells)} |")
    levels = [one["mean"] for one in found["public networks"].values()]
    alone = [one["test accuracy"]["mean"] for one in numbers("cifar10-small")["settings"].values()]
    said(section, f"Yes: {span(levels, 3)} before any private step; from scratch these networks have {span(alone, 3)} at")
    gains = [means(MERGES[group], found[PRIVATE_STEPS]) for group in TUNED]
    said(section, f"they gain {span(gains[0], 2)} and {span(gains[1], 2)} points, full batches {span(gains[3], 2)}.")
    ratios = []
    for group in (TUNED[2], TUNED[4]):
        lost = [found[PRIVATE_STEPS][name] for name in MERGES[group]]
        ratios.append(span([-of["mean"] / (of["std"] / of["runs"] ** 0.5) for of in lost], 1))
    said(section, f"private steps *lose* {span(gains[2], 2)} points ({ratios[0]} standard errors)")
    said(section, f"full batches {span(gains[4], 2)} ({ratios[1]})")
    average = in_points(found[FROM_AVERAGE]["pretraining-views-ema"])
    said(section, f"the public moving average is {average} points above its last iterate")
    in_brief(f"that gained {average} points")
    private = [one["test accuracy"]["mean"] for group in TUNED for one in found[group]["alone"].values()]
    assert max(private) < levels[2]  # no private model is as good
    left = [found[FROM_AVERAGE][name] for name in MERGES[TUNED[2]]]
    told = span([100 * of["mean"] for of in left], 2)
    errors = [100 * of["std"] / of["runs"] ** 0.5 for of in left]
    said(section, f"{told} points in all four settings (standard errors {span(errors, 2)})")
    full = [100 * found[FROM_AVERAGE][name]["mean"] for name in MERGES[TUNED[4]]]
    said(section, f"with full batches {span(full, 2)}")
    said(OVERVIEW, f"in small {average}, and {told}.", f"in small neither ({in_points(found[BEST_AVERAGE][TUNED[3]])} points)")
    best = max((found[BEST_AVERAGE][group] for group in TUNED[:3]), key=lambda of: float(of["mean"]))
    said(OVERVIEW, f"the best of {best['averages']} averages is {in_points(best)} points above the best input at most")
    assert f"is {100 * best['mean']:.2f} points above the best input at most" in SECTIONS[section]
    above = any(found[BEST_AVERAGE][group]["mean"] > 0 for group in TUNED[3:])
    assert ("with full batches the best of 63 is not above it" in " ".join(SECTIONS[section].split())) is (not above)
    rows = [row for group in TUNED for row in found[group]["averages"]]
    apart = [100 * abs(row["test accuracy"] - row["expected test accuracy of a draw"]) for row in rows]
    said(section, f"within {max(apart):.2f} points of a draw with the same weights, at all {len(rows)} weights")
    runs = [
        [json.loads(path.read_text()) for path in one.glob("*.json")]
        for one in (RESULTS / "cifar10-pretrained-small").iterdir()
        if one.is_dir()
    ]
    assert len(runs) == 10
    # The moving average and the iterates are of one training.
    minutes = [
        sum(one.get("training_seconds", 0) for one in of if "moving average" not in one.get("kept", "")) / 60 for of in runs
    ]
    said(section, f"{math.floor(min(minutes) + 0.5)} to {math.ceil(max(minutes))} minutes of training for a repetition")


def test_audits() -> None:
    rows = {row["scenario"]: row for row in kept("summary", "audit")["rows"]}
    drawn, averaged = rows["selection"], rows["formula-convex"]
    # As everywhere: claims are rounded up, and what was measured down.
    said(OVERVIEW, f"reaches ε = {down(drawn['measured'], 2)} of {drawn['proved']:.2f}")
    said(OVERVIEW, f"claimed ε = {up(averaged['claimed'], 3)}, measured at least {down(averaged['measured'], 3)}")


# --- what follows from records and recipes ------------------------------------------------------------------------------------


def test_the_knob_by_composition() -> None:
    portfolio = portfolio_of(portfolio_file("knob.yaml"), 1437)
    delta = kept("knob")["configuration"]["delta"]
    shares = (dict.fromkeys(portfolio.names[:1], 1.0), dict.fromkeys(portfolio.names, 1 / len(portfolio.names)))
    alone, together = (Joint(portfolio.weights(weights)).guarantee(delta=delta).epsilon for weights in shares)
    said("`knob`", f"composition ε = {up(alone, 3)} each, {up(together, 3)} together")
    for row in numbers("knob").values():
        assert f" | {row['noise multiplier of training anew']:.3f} |" in SECTIONS["`knob`"]


def test_the_noise_of_heads_and_of_the_body() -> None:
    held = kept("heads")["configuration"]
    recipe = held["recipe"]
    one_step = recipe["learning_rate"] * recipe["clip"] * recipe["noise_multiplier"] / (recipe["rate"] * held["examples"])
    said("`heads`", f"The noise of training ({one_step * recipe['steps'] ** 0.5:.4f} in a parameter of one model)")
    text = (ROOT / "lab" / "dpmerge_lab" / "experiments" / "body_training.py").read_text(encoding="utf-8")
    (noise,) = re.findall(
        r"^RECIPE = LabRecipe\(steps=500, .*noise_multiplier=([\d.]+), rate=4096 / 50_000\)$", text, re.MULTILINE
    )
    body = Recipe(steps=500, learning_rate=2.0, clip=1.0, noise_multiplier=float(noise), rate=4096 / 50_000)
    record = body.record(500, 50_000, dataset="cifar10", run="body", noise="0" * 64, sampler="1" * 64)
    epsilon = run_profile(Model("body", record)).profile.epsilon(1e-5)
    assert epsilon == pytest.approx(numbers("forks")["body alone"], rel=1e-9)
    said("`forks`", f"σ = {noise}, ε = {up(epsilon, 3)} by composition")


def test_no_free_lunch() -> None:
    """v1's threshold, and a merger above it that is private: its outputs' total variation is below δ′."""
    threshold, spread = papers_no_free_lunch_threshold(0.01, 0.1, 1.0, 0.0), 0.19
    said(OVERVIEW, f"it says {threshold:.3f}, and a merger with {spread} is (ε′, δ′)-DP")
    assert spread > threshold and spread * math.expm1(1) / (math.e + 1) < 0.1
    assert no_free_lunch_threshold(0.01, 0.1, 1.0, 0.0) > spread
