"""Commands print whatever the encoding, and say in one line where they cannot."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import warnings

import pytest
from click.testing import CliRunner

from cojax.cli import main, said
from cojax.commands import output
from cojax.errors import UncertifiedWarning
from cojax.report.printing import SHOWN, print_rows

NAME = "arm-n2-p0.80-s7"
QUICK, FAMILY = "double-integrator", "DoubleIntegrator"  # where any system will do
SMALL = ["evaluate", "--fixture", QUICK, "--trials", "4", "--steps", "3"]


@pytest.mark.parametrize(
    ("words", "encoding", "written"),
    [
        ("≤ 4.5e-07", "ascii", "<= 4.5e-07"),
        ("gap: Σ γᵏ A*", "cp1252", "gap: Sigma gamma^k A*"),
        ("γᵀ λ⁻¹ x₁₂ ± 2²", "ascii", "gamma^T lambda^-1 x_12 +/- 2^2"),
        ("± 2² × 3…", "cp1252", "± 2² × 3…"),
        ("2 × CPU", "cp437", "2 x CPU"),
        ("données/Ω", "ascii", r"donn\xe9es/Omega"),
        ("données/日", "latin-1", r"données/\u65e5"),
        ("a file \udcff", "utf-8", r"a file \udcff"),
        ("γ ≤ 日", "utf-8", "γ ≤ 日"),
    ],
)
def test_stand_ins_can_be_read(words, encoding, written):
    assert output.encodable(words, encoding) == written


COMMANDS = [
    ["--help"],
    ["train", "--help"],
    ["list"],
    ["show", NAME],
    ["validate", QUICK],
    SMALL,
    ["oracle", NAME, "--states", "states.json"],
    ["render", QUICK, "--steps", "3", "--out", "é.png"],
    ["generate", FAMILY, "--num", "1", "--out", "λ"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("charset", ["ascii", "cp1252"])
def test_every_command_prints_in_every_encoding(arguments, charset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "states.json").write_text("[[0, 0, 0, 0]]", "utf-8")
    result = CliRunner(charset=charset).invoke(main, arguments)
    assert result.exit_code == 0, result.exception
    assert result.output_bytes.decode(charset).strip()


def test_an_ascii_locale_decides_nothing_that_is_read_or_written(tmp_path):
    """Warnings of Python, made errors here, tell of every text without an encoding."""
    code = f"""
import sys, warnings
warnings.filterwarnings("error", category=EncodingWarning, module="cojax")
from cojax.cli import main
small = {SMALL!r}
for arguments in ([*small, "--out", "a"], ["compare", "a", "a"], ["show", {NAME!r}],
                  ["generate", {FAMILY!r}, "--num", "1", "--out", "made"]):
    try:
        main(arguments, prog_name="cojax")
    except SystemExit as ended:
        assert not ended.code, arguments
"""
    names = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "warn_default_encoding", "-c", code]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env={**os.environ, **names})
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    printed = done.stdout.decode("ascii")
    assert "Sigma gamma^k A*" in printed
    assert "lambda" in printed


def test_a_refused_comparison_keeps_its_status_in_every_encoding(tmp_path):
    for root, folder in enumerate(("données", "λ")):
        result = CliRunner().invoke(
            main, [*SMALL, "--root", str(root), "--out", str(tmp_path / folder)]
        )
        assert result.exit_code == 0, result.output
    both = [str(tmp_path / "données"), str(tmp_path / "λ")]
    result = CliRunner(charset="ascii").invoke(main, ["compare", *both])
    assert result.exit_code == 1
    assert "lambda cannot be compared" in result.stderr
    same = CliRunner(charset="ascii").invoke(main, ["compare", both[1], both[1]])
    assert (same.exit_code, same.exception) == (0, None)


class Full(io.StringIO):
    """A stream without room, or without a reader."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def flush(self) -> None:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (errno.ENOSPC, 2, "cojax: standard output: No space left on device\n"),
        (errno.EPIPE, 141, ""),
    ],
)
@pytest.mark.parametrize("command", ["list", "--help"])
def test_where_nothing_more_can_be_printed(number, status, line, command, monkeypatch):
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stdout", Full(number))
    monkeypatch.setattr(sys, "stderr", errors)
    with pytest.raises(SystemExit) as ended:
        main([command], prog_name="cojax")
    assert ended.value.code == status
    assert errors.getvalue() == line


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_progress_that_nobody_can_read_stops_no_work(number, monkeypatch, tmp_path):
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr(sys, "stderr", Full(number))
    arguments = ["generate", FAMILY, "--num", "1", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(arguments, prog_name="cojax")
    assert ended.value.code == 0
    assert "1 fixtures generated" in printed.getvalue()


def test_streams_are_put_back_and_may_be_missing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as ended:
        main(["list"], prog_name="cojax")
    assert ended.value.code == 0
    assert (sys.stdout, sys.stderr) == (None, None)


def test_closed_streams_are_no_place_for_files(tmp_path):
    code = (
        "import os; [os.close(n) for n in (0, 1, 2)]; from cojax.commands import output\n"
        f"with output.any_text(): file = open({str(tmp_path / 'file')!r}, 'w', encoding='utf-8')\n"
        "file.write(str(file.fileno())); file.close()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert int((tmp_path / "file").read_text("utf-8")) > 2


def test_a_pipe_that_is_closed_ends_quietly():
    command = f"{sys.executable} -m cojax list | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True)
    assert done.returncode in (0, 141)  # 0 where all of it was in the pipe before head left
    assert done.stdout.startswith(b"id ")
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


def test_an_interrupt_is_status_130_without_a_traceback(monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("cojax.fixtures.load_fixture", interrupt)
    result = CliRunner().invoke(main, ["evaluate", "--fixture", NAME])
    assert result.exit_code == 130
    assert "Aborted" not in result.output


def test_what_the_machine_refuses_is_one_line(monkeypatch, tmp_path):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    out = tmp_path / "a.png"
    result = CliRunner().invoke(main, ["show", QUICK, "--plot", str(out)])
    assert result.exit_code == 2
    assert result.stderr == f"cojax: {out}: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_figures_are_printed_though_the_disk_is_full(monkeypatch, tmp_path):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cojax.evaluation.provenance.write", full)
    result = CliRunner().invoke(main, [*SMALL, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "paired trials" in result.stdout
    assert result.stderr == "cojax: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_is_no_text_is_refused_before_any_work(tmp_path):
    out = str(tmp_path / "donn\udcc3\udca9es")  # as an ASCII locale sees a UTF-8 name
    result = CliRunner().invoke(main, [*SMALL, "--out", out])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("a name this locale cannot write; set PYTHONUTF8=1\n")
    os.mkdir(out)
    result = CliRunner().invoke(main, ["compare", out, out])
    assert result.exit_code == 2
    assert "cannot write" in result.stderr


def test_names_that_a_locale_cannot_write_and_errors_of_our_own():
    error = UnicodeEncodeError("ascii", "données", 4, 5, "ordinal not in range")
    assert said(error) == r"'donn\xe9es': a name this locale cannot write; set PYTHONUTF8=1"
    assert said(ValueError("a fault")) is None
    assert said(OSError("of no number")) is None


def test_a_narrow_terminal_loses_no_figure(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    cell = {"mean": 0.173, "low": 0.0968, "high": 0.328}
    row = {"fixture": NAME, "policy": "zero", "num_trials": 4, "failures": 0}
    print_rows([row | dict.fromkeys(SHOWN, cell)])
    printed = capsys.readouterr().out
    assert all(printed.count(word) == 3 for word in ("0.173", "[0.0968", "0.328]"))


def test_warnings_of_ours_are_one_line():
    before = warnings.formatwarning
    with output.warnings_in_one_line():
        said = warnings.formatwarning("x: no certificate", UncertifiedWarning, "file.py", 3)
        assert said == "cojax: warning: x: no certificate\n"
        assert "file.py:3: UserWarning: y" in warnings.formatwarning("y", UserWarning, "file.py", 3)
    assert warnings.formatwarning is before
