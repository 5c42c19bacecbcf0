"""What is published: wheel and source archive build, hold every file, and work outside of this folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import foveate

ROOT = Path(__file__).resolve().parent.parent
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
LEFT_OUT = (".git", ".venv", "tests", "results", "benchmarks", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")


def run(*command: str, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *command], cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both archives, built from a copy, so that nothing is left beside the sources."""
    copy = tmp_path_factory.mktemp("package") / "foveate"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    run("-c", BUILD, cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the unpacked wheel, as ``pip install --target`` leaves it."""
    target = tmp_path_factory.mktemp("site")
    (wheel,) = dist.glob("*.whl")
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--target", str(target))
    run("-m", "pip", "install", *options, str(wheel), cwd=target)
    return target


def test_the_wheel_holds_every_file_of_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    kinds = ("*.py", "*.toml", "*.html", "*.css", "*.js", "*.csv", "*.safetensors", "py.typed")
    files = [path for kind in kinds for path in (ROOT / "src").rglob(kind)]
    missing = [path.relative_to(ROOT / "src").as_posix() for path in files]
    assert sorted(set(missing) - names) == []
    assert not [name for name in names if name.startswith("tests")]


def test_the_source_archive_holds_what_the_readme_names(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "docs/compare.md"} <= names


def test_metadata_is_whole_and_of_one_version(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    text = archive.read(name).decode()
    version = foveate.__version__
    assert f"\nVersion: {version}\n" in text
    assert "License-Expression: Apache-2.0" in text
    for label in ("Homepage", "Documentation", "Source", "Issues", "Changelog"):
        assert f"Project-URL: {label}, https://" in text
    assert text.count("\nClassifier: ") > 8
    assert re.search(rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert f"## [{version}] - 20" in (ROOT / "CHANGELOG.md").read_text()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in declared["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in text


def test_the_command_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    where = run("-c", "import foveate; print(foveate.__file__)", cwd=tmp_path, PYTHONPATH=str(installed))
    assert Path(where.strip()).is_relative_to(installed)
    assert (installed / "bin" / "foveate").is_file()
    assert "usage: foveate compare" in run(
        "-m", "foveate_cli.main", "compare", "--help", cwd=tmp_path, PYTHONPATH=str(installed)
    )


def test_a_tiny_comparison_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    options = "--methods ToMe --budgets 0.5 --limit 8 --batch-size 4 --seconds 0.05 --workers 0 --out report"
    run("-m", "foveate", "compare", *options.split(), cwd=tmp_path, PYTHONPATH=str(installed))
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert results["complete"]
    assert "<title>" in (tmp_path / "report" / "index.html").read_text("utf-8")


def test_the_changelog_keeps_its_form() -> None:
    """Keep a Changelog: versions newest first, each with a date, and only the named kinds of change."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds
    versions = [tuple(map(int, re.findall(r"\d+", title.partition("]")[0]))) for title in titles[1:]]
    assert versions == sorted(versions, reverse=True)
