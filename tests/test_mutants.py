"""The list of mutants fits the source, and a run of them remembers, chooses and reports."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import mutation
from tests.mutants import EXTRAS, MUTANTS, Mutant
from tests.mutation import ROOT, Fate, Killed, Run, Trial, applies, chosen, digest, report


def test_every_mutant_applies_to_the_source() -> None:
    """Its code stands in the file exactly once; the change changes something, and Python parses it."""
    wrong = [(one.promise, one.file) for one in MUTANTS if not applies(one)]
    assert wrong == [], "adapt them: their code is not exactly once in the file"
    assert [one.promise for one in MUTANTS if one.broken == one.code] == []
    for one in MUTANTS:
        if one.file.endswith(".py"):
            text = _text(ROOT / "src" / "fairlead" / one.file)
            broken = text.replace(one.code, one.broken) + EXTRAS.get(one.file, "")
            ast.parse(broken, f"{one.file}, where is broken: {one.promise}")


def test_every_mutant_names_tests_that_exist() -> None:
    assert [(one.promise, one.tests) for one in MUTANTS if not _exist(one.tests)] == []


def _exist(tests: str) -> bool:
    path, _, name = tests.partition("::")
    if not (ROOT / path).exists():
        return False
    return not name or f"def {name.partition('[')[0]}(" in _text(ROOT / path)


_text = cache(Path.read_text)


def test_no_two_mutants_break_the_same_promise() -> None:
    """They are remembered by it."""
    assert len({mutant.promise for mutant in MUTANTS}) == len(MUTANTS)


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small project: one file, and a test that looks at one of its two promises."""
    (tmp_path / "src" / "fairlead").mkdir(parents=True)
    (tmp_path / "src" / "fairlead" / "answer.py").write_text("ANSWER = 42\nSIZE = 3\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_answer.py").write_text(
        "import os, pathlib\n"
        "def test_answer():\n"
        "    path = pathlib.Path(os.environ['PYTHONPATH'], 'fairlead', 'answer.py')\n"
        "    assert 'ANSWER = 42' in path.read_text()\n"
    )
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    return tmp_path


CHECKED = Mutant("the answer is 42", "answer.py", "= 42", "= 41", "tests/test_answer.py")
UNCHECKED = Mutant("the size is 3", "answer.py", "= 3", "= 4", "tests/test_answer.py")
GONE = Mutant("the name is Bob", "answer.py", "Bob", "Rob", "tests/test_answer.py")
LOST = Mutant("nothing is lost", "answer.py", "= 42", "= 41", "tests/test_nowhere.py")


def test_each_mutant_gets_the_fate_it_deserves(
    sandbox: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = Killed(sandbox / "state.json")
    trials = Run(killed, minutes=5, jobs=2).trials([CHECKED, UNCHECKED, GONE, LOST])
    fates = [trial.fate for trial in trials]
    assert fates == [Fate.KILLED, Fate.SURVIVED, Fate.UNFIT, Fate.FAILED]
    assert report(trials, known=0, left=0) == 1
    told = capsys.readouterr().out
    assert "4 of 4" in told
    assert "killed  the answer is 42, by test_answer\n" in told
    assert "SURVIVED: the size is 3" in told
    assert "DOES NOT APPLY: the name is Bob" in told
    assert "test_nowhere.py" in told
    remembered = Killed(sandbox / "state.json")
    assert CHECKED in remembered
    assert not [one for one in (UNCHECKED, GONE, LOST) if one in remembered]


def test_a_killed_mutant_is_tried_again_when_its_file_or_its_tests_change(sandbox: Path) -> None:
    for path in ("src/fairlead/answer.py", "tests/test_answer.py"):
        killed = Killed(sandbox / "state.json")
        killed.note(Trial(CHECKED, Fate.KILLED))
        assert CHECKED in Killed(sandbox / "state.json")
        (sandbox / path).write_text((sandbox / path).read_text() + "# more\n")
        assert CHECKED not in Killed(sandbox / "state.json")
    assert digest(CHECKED) != digest(CHECKED._replace(broken="= 40"))


def test_a_survivor_is_no_longer_remembered_as_killed(sandbox: Path) -> None:
    killed = Killed(sandbox / "state.json")
    killed.note(Trial(CHECKED, Fate.KILLED))
    killed.note(Trial(CHECKED, Fate.SURVIVED))
    assert CHECKED not in Killed(sandbox / "state.json")


def test_a_run_out_of_time_says_that_some_are_left(
    sandbox: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Run(Killed(sandbox / "state.json"), minutes=-1, jobs=2).trials([CHECKED])
    assert trials == []
    assert report(trials, known=2, left=1) == mutation.LEFT_OVER
    assert "2 more were killed before; 1 are left: run it again" in capsys.readouterr().out


def test_slices_add_up_and_options_choose() -> None:
    everything = {"files": [], "only": "", "since": ""}
    slices = [chosen(MUTANTS, **everything, part=f"{number}/4") for number in (1, 2, 3, 4)]
    assert sorted(mutant for each in slices for mutant in each) == sorted(MUTANTS)
    redis = chosen(MUTANTS, files=["stores/redis"], only="", since="", part="1/1")
    assert redis
    assert all(mutant.file.startswith("stores/redis") for mutant in redis)
    [one] = chosen(MUTANTS, files=[], only="durable means SYNCED", since="", part="1/1")
    assert one.file == "stores/sqlite/connection.py"
    with pytest.raises(SystemExit, match="write 1/4"):
        chosen(MUTANTS, **everything, part="5/4")


def test_files_touched_since_a_commit_are_asked_of_git(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = {"src/fairlead/core/selection.py", "tests/core/test_outcome.py"}
    monkeypatch.setattr(mutation, "_touched", lambda commit: touched)
    found = chosen(MUTANTS, files=[], only="", since="HEAD", part="1/1")
    assert {mutant.file for mutant in found} == {"core/selection.py", "core/outcome.py"}
    with pytest.raises(SystemExit, match="git does not know"):
        monkeypatch.undo()
        chosen(MUTANTS, files=[], only="", since="no-such-commit", part="1/1")
