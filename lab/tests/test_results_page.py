"""docs/results.md: every section names the files its numbers are from, and the numbers are those of the files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpmerge_lab.experiments.aggregation import METHODS
from dpmerge_lab.experiments.aggregation_cifar10 import PAPER
from dpmerge_lab.experiments.aggregation_scores import CHOSEN
from dpmerge_lab.experiments.catalogue import EXPERIMENTS
from dpmerge_lab.experiments.results import with_error
from dpmerge_lab.experiments.uncertainty_mnist import APART, LAST, ratio

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "lab" / "results"
TEXT = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}
OVERVIEW = "The papers, figure by figure"
CASES = {"ε = 8": "eps8", "ε = 1": "eps1", "PDS, ε = 8": "shifting-eps8", "PDS, ε = 1": "shifting-eps1"}
PROVED, FORMULA = "linear combination, proved", "linear combination, papers' formula"
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


# --- the page -----------------------------------------------------------------------------------------------------------------


def counts(value: Any) -> Iterator[int]:
    """Every number of runs that is told."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key == "runs" and isinstance(one, int):
            yield one
        yield from counts(one)


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
        assert re.search(r"\*\*(yes|no|partly)\*\*|^—$|^as v1|^see Table 3$|^nothing is concluded$", row[3]), row
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
    said("`mean-estimation`", f"PLD's ε is at most {below:.2f} of RDP's", f"ε = {found['joint release']['pld']:.2f}")
    said("`mean-estimation`", *(f"{one['pld']:.3g} against {one['rdp']:.3g}" for one in alone), f"about order {order:.0f}")
    said(OVERVIEW, f"PLD at most {below:.2f} of RDP", f"up to order {order:.1f}")
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
        cells = [_up(row[key]) for key in (PROVED, hidden, FORMULA, "random selection", "joint release")]
        weights = ", ".join(f"{weight:g}" for weight in row["weights"].values())
        lines.add(" | ".join([f"({weights})", *cells, with_error(row[AVERAGE]), with_error(row[DRAW])]))
    shown = [line.split("|", 2)[2].strip(" |") for line in SECTIONS[section].splitlines() if re.match(r"\|[^|]*\| \(", line)]
    assert len(shown) == 7 and lines.issuperset(shown)
    decay, constant = (found[name]["averages"] for name in ("never clipped", "never clipped, constant rate"))
    pairs = [(one[PROVED] / other[PROVED], one["weights"].values()) for one, other in zip(constant, decay, strict=True)]
    more = [(ratio, weights) for ratio, weights in pairs if ratio > 1]
    assert len(more) == 7 and max(list(weights)[-1] for _, weights in more) == 0.2
    said(section, f"at seven of the {len(pairs)}", f"it costs up to {100 * max(more)[0] - 100:.1f} % more")
    assert all(one[AVERAGE]["mean"] > other[AVERAGE]["mean"] for one, other in zip(constant, decay, strict=True))
    binding = found["as the paper"]["averages"]
    least = min(row[PROVED] / row["joint release"] for row in binding)
    said(section, f"LC costs at least {least:.3f} of joint release")
    cheaper = [sum(row[PROVED] < row["random selection"] for row in rows) for rows in (decay, constant)]
    said(
        section, f"of {len(pairs)} averages on the grid {cheaper[0]} cost less than RS with these weights, with a constant rate"
    )
    said(section, f"with a constant rate {cheaper[1]}.")


def _up(value: float) -> str:
    """Rounded up, as every ε there."""
    digits = 3 if value >= 0.1 else 4
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"


def test_tail_averaging() -> None:
    rows, section = numbers("tail-averaging")["rows"], "`tail-averaging`"
    last, half = "last iterate", "mean of the last half"
    for name, private in (("absolute", True), ("logistic", True), ("worst case", True), ("worst case", False)):
        some = [row["ways"] for row in rows if (row["loss"], row["private"]) == (name, private)]
        cells = [_ratio(ways, "excess risk") + f" ({_ratio(ways, 'excess risk at the best')})" for ways in some]
        assert f" | {' | '.join(cells)} |" in SECTIONS[section], name
    drawn = [row["ways"][way]["its bound"] / row["ways"][way]["excess risk"]["mean"] for row in rows for way in (last, half)]
    assert 1e4 <= max(drawn) < 2.5e4
    said(section, f"measured risks are {min(drawn):.1f} to 2·10⁴ times smaller")
    assert all(one["excess risk"]["mean"] < row["L‖C‖√p/(nρ)"] for row in rows for one in row["ways"].values())


def _ratio(ways: Any, at: str) -> str:
    return f"{ways['last iterate'][at]['mean'] / ways['mean of the last half'][at]['mean']:.2f}"


def test_coverage() -> None:
    """Of the least squares solution at 95 %, from ten checkpoints or runs."""
    found, section = numbers("coverage"), "`coverage`"
    mean, runs = "mean of the checkpoints", "mean of independent runs"
    first = []
    for name, of in found.items():
        for direction in ("slowest direction", "fastest direction", "a prediction"):
            rows = [row for row in of["rows"] if (row["direction"], row["k"]) == (direction, 10)]
            held = [row.get(mean, row.get(runs))["0.95"]["least squares solution"] for row in rows]
            cells = [f"{one['share']:.3f} ± {one['error']:.3f}" for one in held]
            first.append(held[0]["share"])
            shown = f" | {' | '.join(cells)} |" in SECTIONS[section]
            told = {"diabetes": "diabetes, ε = 4", "synthetic": "synthetic, ε = 1"}.get(name, name)
            head = f"| {told}{', ε = 4' if 'penalty' in name else ''}, {direction.partition(' ')[0]} |"
            assert shown == (head in SECTIONS[section]), head
            biases = [
                (row["mean S / variance of the mean"], row["the same, exact"]) for row in rows if "the same, exact" in row
            ]
            agree = all(abs(one / exact - 1) < 0.06 for one, exact in biases)
            assert agree == ((name, direction) != ("diabetes", "slowest direction")), (name, direction)
    said(section, f"intervals at 95 % hold {100 * min(first):.0f} to {100 * max(first):.0f} %")
    outside = {name: of["share of values outside [-1, 1]"] for name, of in found.items()}
    slow, fast, _ = outside.pop("diabetes").values()
    shares = f"{100 * slow:.0f} % of the slowest direction and {100 * fast:.0f} % of the fastest are not"
    said(section, f"all but 0.2 % (diabetes without penalty: {shares})")
    assert max(max(of.values()) for of in outside.values()) <= 0.002


def test_checkpoints() -> None:
    models = numbers("checkpoints")["mnist"]["C=1 σ=0.5"]
    scores = ", ".join(with_error(one["test accuracy"]) for one in models["alone"].values())
    epsilons = ", ".join(f"{one['epsilon by PLD']:.3f}" for one in models["alone"].values())
    even = models["random selection"][1]
    section = "`checkpoints` and `cifar10-checkpoints`"
    said(section, f"ε = {epsilons}, accuracy {scores}")
    said(section, f"the even draw has ε = {even['epsilon by PLD']:.3f} and {with_error(even['expected test accuracy'])}")


def test_cifar10_says_whether_merges_are_of_use() -> None:
    """Not where the most private model is also the best."""
    useless = []
    for group in ("scratch-a", "scratch-b"):
        of = numbers("cifar10")[group]
        models = of["alone"].values()
        best = max(models, key=lambda one: one["test accuracy"]["mean"])
        useless.append(best["epsilon by PLD"] == min(one["epsilon by PLD"] for one in models))
    assert ("the most private model is also the best" in " ".join(SECTIONS["`cifar10`"].split())) == all(useless)
    top = max(of["averages"], key=lambda row: row["test accuracy"])
    above = top["test accuracy"] - best["test accuracy"]["mean"]
    said("`cifar10`", f"The best average of `scratch-b` is {above:.4f} above it, picked from {len(of['averages'])}")
    said("`cifar10`", f"at a proved ε of {top[PROVED]:.2f}")


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
    for case, as_much in {"eps1": True, "shifting-eps8": True, "eps8": False, "shifting-eps1": False}.items():
        gains = [100 * found[case]["gain over no aggregation"][one]["mean"] for one in METHODS[3:]]
        assert (max(gains) > min(PAPER[case][3:]) - PAPER[case][0]) == as_much, case
    said(OVERVIEW, "gain as much as the paper's at ε = 1, and under shift at ε = 8; less at ε = 8, and under shift at ε = 1")
    none = {case: PAPER[case][0] - 100 * found[case]["test accuracy"][METHODS[0]]["mean"] for case in PAPER}
    behind = [f"{none[case]:.1f}" for case in ("eps1", "shifting-eps1", "eps8", "shifting-eps8")]
    said("`aggregation-cifar10`", f"Levels without aggregation are {behind[0]} and, under shift, {behind[1]} points below")
    said("`aggregation-cifar10`", f"at ε = 1, and {behind[2]} and {behind[3]} at ε = 8")
    best = [
        max(PAPER[case][3:]) - 100 * max(found[case]["test accuracy"][one]["mean"] for one in METHODS[3:])
        for case in ("eps1", "shifting-eps1")
    ]
    said("`aggregation-cifar10`", f"With the best inference aggregation they are {best[0]:.1f} and {best[1]:.1f} points below")
    beside = {case: found[case]["gain over the best inference aggregation of the same plain runs"] for case in PAPER}
    told = {
        (case, one): f"{100 * of['mean']:.2f}" + (f" ± {100 * of['standard error']:.2f}" if of["standard error"] else "")
        for case, those in beside.items()
        for one, of in those.items()
    }
    words = {key: text.replace("-", "−") for key, text in told.items()}
    uta, ema = "UTA tr + inf", "EMA tr + inf"
    said("`aggregation-cifar10`", f"gains {words['eps1', uta]} points at ε = 1 and {words['shifting-eps1', uta]} under shift")
    said("`aggregation-cifar10`", f"EMA_tr {words['eps1', ema]}, and {words['shifting-eps1', ema]} in one run under shift")
    gained = {case: [found[case]["gain over no aggregation"][one] for one in METHODS[3:]] for case in PAPER}
    errors = {case: [one["ratio"] for one in of] for case, of in gained.items()}
    first, shifting = ([100 * one["mean"] for one in gained[case]] for case in ("eps1", "shifting-eps1"))
    said("`aggregation-cifar10`", f"at ε = 1 by {span(first, 1)} points", f"{span(errors['eps1'], 1)} standard errors")
    said("`aggregation-cifar10`", f"At ε = 1 by {span(shifting, 1)} only ({span(errors['shifting-eps1'], 1)} standard errors)")


def test_aggregation_on_mnist() -> None:
    found = numbers("aggregation-mnist")
    for label, case in CASES.items():
        assert f"| {label} | {' | '.join(in_percent(found[case]['test accuracy'][one]) for one in METHODS)} |" in TEXT
        for name, method in (("plain", "No Agg"), ("EMA_tr", "EMA tr"), ("UTA_tr", "UTA tr")):
            scores = found[case]["inference aggregation on top"][method]["test accuracy"]
            assert list(scores)[-1] == CHOSEN
            assert f"| {label}, {name} | {' | '.join(map(in_percent, scores.values()))} |" in TEXT
    section = "`aggregation-mnist`"
    for case, text in (
        ("eps1", "At ε = 1 all seven do, by {} points, {} standard errors"),
        ("shifting-eps8", "{} points at ε = 8 ({})"),
        ("shifting-eps1", "{} at ε = 1 ({})"),
    ):
        gains = found[case]["gain over no aggregation"].values()
        points, ratios = [100 * one["mean"] for one in gains], [one["ratio"] for one in gains]
        said(section, text.format(span(points, 1), span(ratios, 1)))
    points = [100 * one["mean"] for one in found["eps8"]["gain over no aggregation"].values()]
    said(section, f"At ε = 8 without shift {span(points, 1)} points, none of them outside two")
    assert found["outside two standard errors"]["eps8"] == []
    spread = found["eps8"]["test accuracy"]["No Agg"]["std"]
    said(section, f"plain runs spread by {100 * spread:.1f} points (standard deviation)")
    on_top = {case: found[case]["inference aggregation on top"] for case in CASES.values()}
    for method in ("UTA tr", "EMA tr"):
        gains = [of[method]["gain over the same of plain runs"][CHOSEN] for of in on_top.values()]
        cells = [f"{100 * one['mean']:.2f} ± {100 * one['standard error']:.2f}".replace("-", "−") for one in gains]
        said(section, f"{', '.join(cells[:3])} and {cells[3]}")
    best = [max(of, key=lambda method: of[method]["test accuracy"][CHOSEN]["mean"]) for of in on_top.values()]
    assert best.count("UTA tr") == 1 and best[0] == "UTA tr", "best in one case of four (ε = 8)"
    trained = [of[method]["gain over its own last checkpoint"] for of in on_top.values() for method in ("EMA tr", "UTA tr")]
    changed = max(abs(one["mean"]) for gains in trained for one in gains.values())
    said(section, f"changes at most {100 * changed:.2f} points")
    rates = {rate: of["test accuracy"] for rate, of in found["eps1"]["learning rates"].items()}
    last = rates["8"]["No Agg"]["mean"]
    apart = max(abs(rates["8"][method]["mean"] - last) for method in METHODS[3:])
    assert last > max(one["mean"] for one in found["eps1"]["test accuracy"].values())
    said(section, f"scores {percent(last)} at rate 8", f"within {100 * apart:.2f} points of it")
    rates = {rate: of["test accuracy"] for rate, of in found["shifting-eps1"]["learning rates"].items()}
    last = max(of["No Agg"]["mean"] for of in rates.values())
    reached = max(of[method]["mean"] for of in rates.values() for method in METHODS[3:])
    said(section, f"reaches {percent(last)} at most at ε = 1, aggregates {percent(reached)}")
    prices = [found[case]["tuning of training on aggregates"]["EMA tr"]["price"] for case in ("eps1", "eps8")]
    together = [one["epsilon of all trials together"] for one in prices]
    said(section, f"cost ε = {together[0]:.2f} together instead of 1, and {together[1]:.1f} instead of 8")


def test_composition_and_tuning() -> None:
    found = numbers("composition")["comparisons"]
    least = found["smallest advanced ε / joint ε, both by RDP (M1 Prop. 7.1)"]
    fails = found["cases of several models where optimal composition of PLD's pairs is below joint RDP"]
    cases = found["cases of several models"]
    said("`composition`", f"a factor of at least {least:.1f}", f"fails in {fails} case of {cases}")
    said(OVERVIEW, f"a factor of at least {least:.1f}", f"all but {fails} case of {cases}")
    rows = numbers("tuning-cost")["the paper's numbers"]
    low = [math.floor(row["Poisson, at least"]["rdp"] * 100) / 100 for row in rows[:2]]
    high = [math.ceil(row["Poisson, at most"]["rdp"] * 100) / 100 for row in rows[:2]]
    drawn = [row["geometric, at most"]["rdp"] for row in rows[:2]]
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
    bias = {row["separation"]: row["exact"]["bias"] for row in found["rows"] if row["burn-in"] == 64}
    said(OVERVIEW, f"from −{-bias[1]:.3f} at separation 1 to −{-bias[16]:.3f} at 16")


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
        assert f"| {epsilon.removeprefix('ε = ')} | {' | '.join(cells)} |" in SECTIONS[section]
    said(section, f"at most {max(errors[LAST]):.2f} (last N) and {max(errors[APART]):.2f} (second half)")
    largest = [ratio(row, LAST)[0] for of in found.values() for row in of["rows"]]
    said(OVERVIEW, f"the factor is {span(largest, 1)}")


def answered(name: str, share: str) -> dict[str, list[float]]:
    """Accuracy by each way, for all ε."""
    of = [one["accuracy where answered, N = 20"] for one in numbers(name).values()]
    return {way: [one[way][share] for one in of] for way in of[0]}


def test_abstaining_on_mnist() -> None:
    section, of = "`uncertainty-mnist`", answered("uncertainty-mnist", "0.9")
    better = [100 * (runs - score) for runs, score in zip(of["independent runs"], of["top score"], strict=True)]
    at = {way: span(found, 3) for way, found in of.items()}
    said(section, f"by {span(better, 1)} points", f"{at['independent runs']} (20 runs) against {at['top score']}")
    said(section, f"{at[LAST]} (last 20) and {at[APART]} (second half)")


def test_abstaining_on_cifar10() -> None:
    section, name = "`uncertainty-cifar10`", "uncertainty-cifar10"
    apart = [ratio(row, APART)[0] for of in numbers(name).values() for row in of["rows"]]
    said(section, f"it is {span(apart, 1)}, with hardly any dependence on N")
    nine, five = answered(name, "0.9"), answered(name, "0.5")
    top, runs, checkpoints = "top score", "independent runs", "checkpoints"
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
    found, section = numbers("cifar10-small"), "`cifar10-small`"
    told = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in SECTIONS[section].splitlines() if line[:3] == "| ("
    ]
    assert len(told) == 7
    for weights, *cells in told:
        point, expected = [float(one) for one in weights[1:-1].split(",")], []
        for group in ("scratch-b", "apart"):
            if max(point) == 1:
                model = list(found[group]["alone"].values())[point.index(1)]
                expected += [with_error(model["test accuracy"]), ""]
            else:
                (row,) = [one for one in found[group]["averages"] if one["weights"] == pytest.approx(point, abs=1e-9)]
                score = f"{row['test accuracy']:.4f} ± {row['standard error']:.4f}"
                expected += [score, f"{row['expected test accuracy of a draw']:.4f}"]
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


def test_cifar10_pretrained() -> None:
    found, section = numbers("cifar10-pretrained", "cifar10"), "`cifar10-pretrained`"
    above = []
    for label, group in {"images as they are": "", "moved and mirrored": "-views", "its moving average": "-views-ema"}.items():
        of = found[f"pretrained{group}"]
        alone = [one["test accuracy"]["mean"] for one in of["alone"].values()]
        best = max(row["test accuracy"] for row in of["averages"])
        said(section, f"| {label} | {' | '.join(f'{one:.4f}' for one in [*alone, best])} | 17.29, 8.78 |")
        above.append(f"{1e4 * (best - max(alone)):.0f}")
    said(section, f"the best average is {above[0]}, {above[1]} and {above[2]} images of 10,000 above the best input")
    gains = [
        100 * (average["test accuracy"]["mean"] - last["test accuracy"]["mean"])
        for average, last in zip(
            found["pretrained-views-ema"]["alone"].values(), found["pretrained-views"]["alone"].values(), strict=True
        )
    ]
    said(section, f"{span(gains, 1)} points in each of four settings")
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


def test_audits() -> None:
    rows = {row["scenario"]: row for row in kept("summary", "audit")["rows"]}
    drawn, averaged = rows["selection"], rows["formula-convex"]
    # As everywhere: claims are rounded up, and what was measured down.
    said(OVERVIEW, f"reaches ε = {math.floor(100 * drawn['measured']) / 100:.2f} of {drawn['proved']:.2f}")
    claimed, measured = math.ceil(1000 * averaged["claimed"]) / 1000, math.floor(1000 * averaged["measured"]) / 1000
    said(OVERVIEW, f"claimed ε = {claimed:.3f}, measured at least {measured:.3f}")
