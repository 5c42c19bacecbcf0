"""Tab completion: names are read from files and equal the registries'; real shells get them; torch is not loaded."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import foveate as fv
from foveate.adapters.survey import PLAIN
from foveate.drawing import picture
from foveate.methods.registry import all_methods
from foveate.tables import table
from foveate.tasks import task_names
from foveate.training.config import TrainConfig
from foveate.training.recipe import recipe_names
from foveate_cli import names
from foveate_cli.completion import SHELLS
from foveate_cli.main import build_parser, main

ROOT = Path(__file__).resolve().parents[2]
BREAKS = " \t\n\"'><=;|&(:"
"""Characters at which bash divides words."""


def environment() -> dict[str, str]:
    scripts = sysconfig.get_path("scripts")
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}


def candidates(line: str) -> list[str]:
    """What the program answers when bash asks about ``line`` with the cursor at its end."""
    asks = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_COMP_WORDBREAKS": BREAKS,
    }
    run = [shutil.which("bash") or "sh", "-c", f'"{sys.executable}" -X importtime -m foveate_cli.main 8>&1 1>/dev/null']
    done = subprocess.run(run, env={**environment(), **asks}, capture_output=True, text=True, check=False)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "foveate_cli.names" in imported
    assert not {"torch", "timm", "foveate"} & imported, "a key press must not wait for torch"
    return [word.strip() for word in done.stdout.split("\v") if word.strip()]


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("foveate comp", {"compare", "completion"}),
        ("foveate compare --max", {"--max-broken"}),
        ("foveate compare --methods ToMe W", {"Ward"}),
        ("foveate cost deit --method EViT:f", {"fuse="}),
        ("foveate train evit-f", {"evit-finetune"}),
        ("foveate train deit --set optimizer.l", {"optimizer.lr=", "optimizer.layer_decay="}),
        ("foveate export x --to op", {"openvino"}),
        ("foveate compare deit_small_p", {"deit_small_patch16_224"}),
    ],
)
def test_candidates(line: str, some: set[str]) -> None:
    found = candidates(line)
    assert some <= set(found)
    last = line.split(" ")[-1].rpartition(":")[2]
    assert all(word.startswith(last) for word in found)


def test_names_equal_the_registries() -> None:
    assert names.methods() == sorted(fv.list_methods())
    assert names.recipes() == recipe_names()
    assert names.tables() == sorted(table.all())
    assert names.pictures() == sorted(picture.all())
    assert names.tasks() == task_names()
    config = TrainConfig().as_dict()
    every = {f"{section}.{name}=" for section, values in config.items() if isinstance(values, dict) for name in values}
    assert set(names.settings()) == every


@pytest.mark.parametrize("name", fv.list_methods())
def test_options_of_methods(name: str) -> None:
    options = [field.name for field in dataclasses.fields(all_methods()[name])]
    assert names.methods(f"{name}:") == [f"{name}:{option}=" for option in options]
    assert names.methods(f"{name}:a=1,") == [f"{name}:a=1,{option}=" for option in options]


def test_models_are_those_of_timm() -> None:
    import timm

    found = set(names.models("no-such-folder/"))
    assert found <= {*timm.list_models(), *names.MODEL_PREFIXES}
    assert {"deit_small_patch16_224", "vit_small_patch16_dinov3", "clustr_small"} <= found
    assert set(names.TIMM_MODULES) <= set(PLAIN)


def test_paths_keep_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("photos", "runs", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "labels.csv").touch()
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    kinds = set(names.DATA_PREFIXES)
    assert set(names.data("")) - kinds == {"photos/", "runs/", "labels.csv"}
    assert set(names.data("ph")) - kinds == {"photos/"}
    assert set(names.data(f"{tmp_path}/l")) - kinds == {f"{tmp_path}/labels.csv"}
    assert set(names.data("nowhere/x")) == kinds


def test_every_argument_that_takes_a_name_is_completed() -> None:
    (commands,) = [action for action in build_parser()._actions if action.nargs == "A..."]
    for name, parser in commands.choices.items():
        for action in parser._actions:
            if action.metavar in ("MODEL", "SOURCE", "RECIPE") or action.dest in ("methods", "task"):
                assert hasattr(action, "completer"), f"foveate {name} {action.dest}"


def in_shell(shell: str, script: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-c", script], env=environment(), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_bash_completes() -> None:
    asked = "COMP_LINE='foveate compare --method EV'; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_WORDS=(foveate)"
    answered = '_python_argcomplete foveate; printf "%s\\n" "${COMPREPLY[@]}"'
    assert in_shell("bash", f'eval "$(foveate completion bash)"; {asked}; {answered}').strip() == "EViT"


def test_fish_completes() -> None:
    script = "foveate completion fish | source; complete -C 'foveate train evit-f'"
    assert in_shell("fish", script).strip() == "evit-finetune"


def test_zsh_takes_it() -> None:
    script = 'autoload -Uz compinit; compinit -u -D; eval "$(foveate completion zsh)"; echo ${_comps[foveate]}'
    assert in_shell("zsh", script).strip() == "_python_argcomplete"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_without_torch(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "foveate" in capsys.readouterr().out


def test_an_unknown_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "choose from" in capsys.readouterr().err
