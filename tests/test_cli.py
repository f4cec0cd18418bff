"""The command line as a user meets it: names, JSON, exit codes, one line for every mistake, start-up time."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dpmerge import example_portfolio
from dpmerge.cli import app, main
from tests.test_records import RECORD

PORTFOLIO = str(example_portfolio())
WEIGHTS = "mnist-c1-s0.5=0.025,mnist-c2-s0.5=0.025,mnist-c1-s2=0.95"


def in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dpmerge", *arguments], capture_output=True, text=True, check=False)


def dpmerge(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which starts no interpreter."""
    with (
        patch.object(sys, "argv", ["dpmerge", *arguments]),
        redirect_stdout(StringIO()) as out,
        redirect_stderr(StringIO()) as error,
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return subprocess.CompletedProcess(arguments, ended.value.code or 0, out.getvalue(), error.getvalue())  # type: ignore[arg-type]


def ok(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def portfolio(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / name).mkdir()
        record = {**RECORD, "mechanism": {**RECORD["mechanism"], "run": name, "noise_multiplier": 1.0 if name == "a" else 2.0}}
        (tmp_path / name / "record.json").write_text(json.dumps(record))
    return tmp_path


@pytest.mark.parametrize("rule", ["selection", "combination", "joint"])
def test_account_json_has_the_documented_fields(rule: str) -> None:
    found = ok("account", PORTFOLIO, "--rule", rule, "--weights", WEIGHTS, "--delta", "1e-5", "--json")
    assert {"rule", "weights", "epsilon", "delta", "adjacency", "by", "theorem", "assumptions", "standing"} <= set(found)
    assert found["rule"] == rule
    assert found["delta"] == 1e-5
    assert found["weights"] == {"mnist-c1-s0.5": 0.025, "mnist-c1-s2": 0.95, "mnist-c2-s0.5": 0.025}
    back = ok("account", PORTFOLIO, "--rule", rule, "--weights", WEIGHTS, "--epsilon", str(found["epsilon"]), "--json")
    assert back["delta"] == pytest.approx(1e-5, rel=0.02)


def test_account_by_and_conversion(portfolio: Path) -> None:
    def epsilon(*extra: str) -> float:
        return float(
            ok("account", str(portfolio), "--rule", "joint", "--weights", "a=0.5,b=0.5", "--delta", "1e-5", "--json", *extra)[
                "epsilon"
            ]
        )

    assert epsilon() == epsilon("--by", "pld") < epsilon("--by", "rdp") < epsilon("--by", "rdp", "--conversion", "paper")


def test_assume_smoothness_zero_says_conditional() -> None:
    found = ok(
        "account",
        PORTFOLIO,
        "--rule",
        "combination",
        "--weights",
        WEIGHTS,
        "--delta",
        "1e-5",
        "--assume-smoothness",
        "0",
        "--json",
    )
    assert found["standing"] == "conditional"
    assert found["epsilon"] == pytest.approx(0.2193, rel=2e-3)
    text = dpmerge(
        "account", PORTFOLIO, "--rule", "combination", "--weights", WEIGHTS, "--delta", "1e-5", "--assume-smoothness", "0"
    )
    assert "conditional: linear combination by the papers' formula" in text.stdout
    assert "do not depend on the state" in text.stdout


def test_infinite_epsilon_is_valid_json(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    record = {**RECORD, "mechanism": {"kind": "non-private"}}
    (tmp_path / "open" / "record.json").write_text(json.dumps(record))
    result = CliRunner().invoke(
        app, ["account", str(tmp_path), "--rule", "joint", "--weights", "open=1", "--delta", "1e-5", "--json"]
    )
    assert '"epsilon": 1e999' in result.stdout
    assert json.loads(result.stdout)["epsilon"] == math.inf
    plain = dpmerge("account", str(tmp_path), "--rule", "joint", "--weights", "open=1", "--delta", "1e-5")
    assert plain.stdout.startswith("no finite ε at δ = 1e-05")


def test_a_frontier_prints_infinities_as_every_command_does(tmp_path: Path) -> None:
    for name, mechanism in {"open": {"kind": "non-private"}, "private": RECORD["mechanism"]}.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "record.json").write_text(json.dumps({**RECORD, "mechanism": mechanism}))
    command = ["frontier", str(tmp_path / "runs"), "--delta", "1e-5", "--epsilons", "1,2", "--points", "1", "--jobs", "1"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out"), "--json"], catch_exceptions=False)
    printed, written = json.loads(result.stdout), json.loads((tmp_path / "out" / "frontier.json").read_text())
    assert "1e999" in result.stdout
    assert printed["models"][0]["epsilon"] == {"pld": math.inf, "rdp": math.inf}
    assert written["models"][0]["epsilon"] == {"pld": None, "rdp": None}


def test_profile_side_by_side() -> None:
    found = ok("account", PORTFOLIO, "--alone", "--json")
    models = {entry["model"]: entry for entry in found["models"]}
    assert models["mnist-c1-s0.5"]["pld"] == pytest.approx(6.458, rel=2e-3)
    assert models["mnist-c1-s2"]["pld"] == pytest.approx(0.2043, rel=2e-3)
    for entry in models.values():
        assert entry["pld"] < entry["rdp"] < entry["rdp_paper"]
        assert entry["gdp"] is None
    assert "mnist-c2-s0.5" in dpmerge("account", PORTFOLIO, "--alone").stdout


def test_compare_is_one_table() -> None:
    found = ok("compare", PORTFOLIO, "--weights", WEIGHTS, "--delta", "1e-5", "--json")
    epsilon = {row["label"]: row["epsilon"] for row in found["rows"]}
    assert list(epsilon) == [
        "random selection",
        "linear combination (proved)",
        "linear combination (last iterate only)",
        "linear combination (papers' formula)",
        "joint release",
        "optimal composition",
        "advanced composition",
        "basic composition",
    ]
    assert (
        epsilon["linear combination (papers' formula)"]
        < epsilon["linear combination (proved)"]
        < epsilon["random selection"]
        < epsilon["joint release"]
    )
    assert epsilon["linear combination (last iterate only)"] <= epsilon["linear combination (proved)"]
    lunch = found["no_free_lunch"]
    assert lunch["model"] in ("mnist-c1-s0.5", "mnist-c2-s0.5")
    assert 0.9 < lunch["threshold"] < 1
    text = dpmerge("compare", PORTFOLIO, "--weights", WEIGHTS, "--delta", "1e-5").stdout
    assert "no free lunch" in text
    for label in epsilon:
        assert label in text
    assert "conditional" in text


def test_schema_is_json_schema_of_the_record() -> None:
    schema = ok("tools", "schema")
    assert {"schema", "dataset", "data_fingerprint", "adjacency", "source", "mechanism"} == set(schema["properties"])
    assert schema["additionalProperties"] is False
    assert ok("tools", "schema", "--json") == schema


BASE = ["account", PORTFOLIO, "--rule", "joint", "--weights", WEIGHTS]


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        ([*BASE], "one of the two is needed: a delta"),
        ([*BASE, "--delta", "1e-5", "--epsilon", "1"], "either a delta"),
        ([*BASE, "--delta", "0"], "between 0 and 1"),
        ([*BASE, "--delta", "nan"], "between 0 and 1"),
        ([*BASE, "--epsilon", "-1"], "not negative"),
        (["account", PORTFOLIO, "--rule", "joint", "--weights", "mnist-c1-s2=0.9", "--delta", "1e-5"], "sum to 0.9"),
        (["account", PORTFOLIO, "--rule", "joint", "--weights", "nobody=1", "--delta", "1e-5"], "no model named 'nobody'"),
        (["account", "nowhere", "--rule", "joint", "--weights", "a=1", "--delta", "1e-5"], "nowhere: no such folder"),
        ([*BASE, "--delta", "1e-5", "--by", "gdp"], "gdp does not apply"),
        ([*BASE, "--delta", "1e-5", "--assume-smoothness", "0"], "only linear combination uses it"),
        (
            [
                "account",
                PORTFOLIO,
                "--rule",
                "combination",
                "--weights",
                WEIGHTS,
                "--delta",
                "1e-5",
                "--assume-smoothness",
                "-1",
            ],
            "not negative",
        ),
        ([*BASE, "--delta", "1e-5", "--shuffle-rate", "0.1"], "needs --treat-shuffle-as-poisson"),
        ([*BASE, "--delta", "1e-5", "--treat-shuffle-as-poisson", "--shuffle-rate", "2"], "must lie in"),
        (["account", "nowhere", "--alone"], "no such folder"),
        (["account", PORTFOLIO, "--alone", "--delta", "2"], "between 0 and 1"),
        (["compare", PORTFOLIO, "--weights", "x", "--delta", "1e-5"], "cannot read the weight"),
    ],
)
def test_every_mistake_is_one_line_and_exit_code_two(arguments: list[str], complaint: str) -> None:
    result = dpmerge(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_unknown_options_and_rules_do_not_end_in_a_traceback() -> None:
    for arguments in ([*BASE[:2], "--rule", "slerp", "--weights", WEIGHTS, "--delta", "1e-5"], ["frobnicate"], ["account"]):
        result = dpmerge(*arguments)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


def test_broken_record_names_file_and_field(portfolio: Path) -> None:
    path = portfolio / "b" / "record.json"
    path.write_text(path.read_text().replace('"clip": 1.0', '"clip": NaN'))
    result = dpmerge("account", str(portfolio), "--alone")
    assert result.returncode == 2
    assert "b/record.json: field mechanism.clip" in result.stderr
    assert result.stderr.count("\n") == 1


def test_shuffle_flag(portfolio: Path) -> None:
    path = portfolio / "b" / "record.json"
    record = json.loads(path.read_text())
    record["mechanism"]["sampling"] = {"scheme": "shuffle"}
    path.write_text(json.dumps(record))
    arguments = ["account", str(portfolio), "--rule", "selection", "--weights", "a=0.5,b=0.5", "--delta", "1e-5"]
    refused = dpmerge(*arguments)
    assert refused.returncode == 2
    assert "trained on shuffled batches" in refused.stderr and "--treat-shuffle-as-poisson" in refused.stderr
    assert ok(*arguments, "--json", "--treat-shuffle-as-poisson")["standing"] == "conditional"
    rated = ok(*arguments, "--json", "--treat-shuffle-as-poisson", "--shuffle-rate", "0.0043")
    assert rated["standing"] == "conditional"
    assert rated["epsilon"] < 10
    profile = ok("account", str(portfolio), "--alone", "--json")
    assert "shuffled batches" in profile["models"][1]["refused"]


def _starts_within(limit: float, *arguments: str) -> bool:
    """Whether one of three starts takes less than so many processor seconds: wall time would measure how busy the suite is."""
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert in_a_process(*arguments).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < limit:
            return True
    return False


def test_start_up_is_fast() -> None:
    """Limits of the design, 0.4 s for --help and 1.5 s for account on three records, on a machine 1.7 times as slow.

    `make bench` measures wall time.
    """
    assert _starts_within(0.7, "--help")
    assert _starts_within(2.5, *BASE, "--delta", "1e-5")
    combination = [*BASE[:2], "--rule", "combination", *BASE[4:], "--delta", "1e-5"]
    assert _starts_within(2.5, *combination)


VERBS = "account compare plan frontier merge verify ledger train record run explore report audit tools help"
HEADINGS = (
    *("Account", "Plan", "Release", "Train and record", "Checkpoints of one run", "Page and report", "Laboratory"),
    "Tools",
)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the verb it is under."""
    root: Any = get_command(app)
    for verb in root.list_commands(None):
        made = root.get_command(None, verb)
        yield from (
            ((f"{verb} {name}", one) for name, one in made.commands.items()) if hasattr(made, "commands") else [(verb, made)]
        )


def test_fifteen_verbs_under_headings() -> None:
    root: Any = get_command(app)
    assert sorted(root.list_commands(None)) == sorted(VERBS.split())
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    shown = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert shown == ["Options", *HEADINGS]
    assert "dpmerge reproduce" in text.rstrip().splitlines()[-1]
    for verb in root.list_commands(None):
        assert root.commands[verb].help == root.get_command(None, verb).get_short_help_str(80)


@pytest.mark.parametrize("arguments", [[], ["ledger"], ["record"], ["run"], ["tools"]])
def test_summaries_are_whole_at_80_columns(arguments: list[str]) -> None:
    text = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80"}).stdout
    assert "..." not in text.partition("\n")[2]


def test_every_command_prints_json() -> None:
    for name, command in commands():
        assert any("--json" in parameter.opts for parameter in command.params), name


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from dpmerge.cli import main; sys.argv = ['dpmerge', '--help']\ntry: main()\nfinally: print(*sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"numpy", "pydantic", "scipy", "rich", "dpmerge_lab"}.isdisjoint(result.stdout.split())


def test_accounting_loads_neither_planning_nor_releases() -> None:
    script = "import sys; from dpmerge.cli import accounting; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"dpmerge.planning", "dpmerge.release", "scipy.optimize", "scipy.stats", "sqlalchemy", "matplotlib", "torch"}
    assert heavy.isdisjoint(result.stdout.split())


def test_the_laboratory_is_named_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("user_code", "cli.commands", "audit.game"):
        monkeypatch.setattr(f"dpmerge.{place}.added", lambda group: {})
    for arguments in (["reproduce", "mnist", "--quick"], ["audit", "gaussian-mean"]):
        monkeypatch.setattr(sys, "argv", ["dpmerge", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err
        assert ended.value.code == 2 and told.count("\n") == 1 and "laboratory" in told
    assert "laboratory" in CliRunner().invoke(app, ["audit"]).stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["account", PORTFOLIO, "--alone", "--by", "rdp"], "--by has no meaning with --alone"),
        (["account", PORTFOLIO, "--alone", "--rule", "joint"], "--rule has no meaning with --alone"),
        (["account", "--tuning", "poisson", "--weights", "a=1"], "--weights has no meaning with --tuning"),
        (["account", PORTFOLIO, "--trials", "3"], "--trials has no meaning without --tuning"),
        (["account", PORTFOLIO, "--delta", "1e-5"], "--rule and --weights"),
        (["account", "--alone"], "give a portfolio"),
        (["frontier", PORTFOLIO, "--simplex", "--delta", "1e-5", "--points", "3"], "--points has no meaning with --simplex"),
    ],
)
def test_an_option_without_a_meaning_is_refused(arguments: list[str], complaint: str) -> None:
    assert complaint in str(CliRunner().invoke(app, arguments).exception)


def test_an_error_that_names_an_argument_names_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dpmerge", *BASE, "--delta", "0.5"])
    with pytest.raises(SystemExit):
        main()
    assert "(on the command line: --any-delta)" in capsys.readouterr().err


def test_rules_of_a_plan_are_the_librarys() -> None:
    from dpmerge import planning
    from dpmerge.cli.planning import PlanRule

    assert set(PlanRule) == set(planning.RULES)


def test_version() -> None:
    from dpmerge import __version__

    assert in_a_process("--version").stdout.strip() == __version__
