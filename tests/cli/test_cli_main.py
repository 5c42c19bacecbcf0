"""The frame around the commands: help, errors, exit codes, listings, and the installed script."""

import argparse
import dataclasses
import io
import json
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from PIL import Image

import foveate as fv
from foveate import drawing
from foveate.cli import output
from foveate.methods.options import method_text, parse
from foveate.methods.registry import all_methods
from foveate.schedules_text import parse_keep
from foveate.tables import Row, Table, table
from foveate_cli import cost as cost_command
from foveate_cli import main as entry
from foveate_cli.arguments import image_size
from foveate_cli.main import COMMANDS, build_parser, main


def wrong(capsys, *argv):
    """The one line of an error; everything else about it is checked here."""
    code = main(argv)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("foveate: ")
    assert err.count("\n") == 1
    return err


ERRORS = {
    "cost": "the following arguments are required: MODEL",
    "cost deit_smal_patch16_224": "Did you mean deit_small_patch16_224",
    "cost deit_small_patch16_224.nonsense": "Invalid pretrained tag (nonsense)",
    "cost qqqqqqqqqqq": "There is no timm model 'qqqqqqqqqqq', and no folder of that name.",
    "cost runs/missing/best": "The folder runs/missing/best does not exist.",
    "eval ./missing --data scenes:": "The folder ./missing does not exist.",
    "cost torchvision:vit_b_61": "Did you mean vit_b_16",
    "cost torchvision:vit_b_32 --image-size 224x320": "square images",
    "cost resnet18": "foveate does not support timm.models.resnet.ResNet",
    "cost resnet18 --image-size 64": "resnet18 cannot be built with these options",
    "cost test_vit --method nothing --remove 3": "There is no method 'nothing'. Known: ATC, ATS, ClusterAttention",
    "cost test_vit --method evit:colour=red --remove 3": "EViT has no option 'colour'",
    "cost test_vit --method evit:fuse=maybe --remove 3": "EViT.fuse must be true or false; got 'maybe'",
    "cost test_vit --method evit": "EViT needs a schedule: --budget",
    "cost test_vit --remove 3": "needs --method",
    "cost test_vit --exact-last-block": "needs --method",
    "cost test_vit --method tome --remove 3 --blocks 1": "needs a keep rate or a budget",
    "cost test_vit --method tome --remove 3 --budget 0.5": "not allowed with argument --remove",
    "cost test_vit --method tome --remove many": "argument --remove: write a whole number of tokens, or",
    "cost test_vit --method tome --keep 3:a": "write 3:100,6:50 (block:count) or one count per block; got '3:a'",
    "cost test_vit --method tome --keep 3:60,50": "write 3:100,6:50",
    "cost test_vit --method tome --keep 3:60,3:50": "a block is named twice",
    "cost test_vit --method tome --keep 3:1:1": "write 3:100,6:50",
    "cost test_vit --method topk --keep 60": "Keep lists 1 counts but the model has 6 blocks",
    "cost test_vit --method topk --keep-rate 70": "For 70 % write 0.7",
    "cost test_vit --method topk --keep-rate 0.7 --blocks 1,x": "write block numbers as 3,6,9; got '1,x'",
    "cost test_vit --method topk --keep-rate 0.7 --blocks 3,9": "the model has 6 blocks (0..5)",
    "cost test_vit --method topk --budget 0.0001": "cannot be met by TopK",
    "cost test_vit2 --method topk --remove 3 --exact-last-block": "exact_last_block needs a head",
    "cost test_vit --image-size 160x160x160x160": "write 224, 224x320",
    "cost test_vit --image-size 0": "write 224, 224x320",
    "cost test_vit --jso": "unrecognized arguments: --jso",
    "cots test_vit": "invalid choice: 'cots'",
    "methods nothing": "There is no method 'nothing'. Known: ATC, ATS, ClusterAttention",
    "tables nothing": "There is no table 'nothing'. Known:",
    "show nothing": "There is no picture 'nothing'. Known:",
}


@pytest.mark.parametrize("line", ERRORS)
def test_wrong_input_is_one_clear_line(capsys, line):
    assert ERRORS[line] in wrong(capsys, *line.split())


def test_a_directory_that_foveate_did_not_write(capsys, tmp_path):
    assert f"write hf:{tmp_path}" in wrong(capsys, "cost", str(tmp_path))


def test_transformers_missing_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install foveate[hf]" in wrong(capsys, "cost", "hf:anything")


def test_a_checkpoint_that_is_not_there(capsys, tmp_path):
    pytest.importorskip("transformers")
    assert "nowhere" in wrong(capsys, "cost", f"hf:{tmp_path / 'nowhere'}")


def test_traceback_on_request(capsys):
    assert main(["--traceback", "cost", "qqqqqqqqqqq"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_not_reported_as_wrong_input_nor_as_a_result(monkeypatch, capsys):
    def fails(args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(entry, "_work", lambda name: fails)
    assert main(["methods"]) == entry.BUG == 70
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert (
        error.splitlines()[-1] == "foveate: this is a bug, please report it with the lines above: RuntimeError: a bug"
    )


@pytest.mark.parametrize(
    ("shell", "code", "words"),
    [
        ("--version >&-", 2, "foveate: Standard output is closed. To print nothing, redirect it to /dev/null.\n"),
        ("methods >&-", 2, "foveate: Standard output is closed. To print nothing, redirect it to /dev/null.\n"),
        ("--version >/dev/full", 2, "foveate: [Errno 28] No space left on device\n"),
        ("qqq 2>&-", 2, ""),
        ("--version | true", 141, ""),
    ],
)
def test_output_that_goes_nowhere_is_one_line(shell, code, words):
    command = f"set -o pipefail; {shlex.quote(sys.executable)} -m foveate_cli.main {shell}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (code, words, "")


def test_alone_it_prints_help(capsys):
    assert main([]) == 0
    assert "usage: foveate" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"foveate {fv.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_command_has_help_with_examples_that_parse(capsys, command):
    module = command.__name__.rpartition(".")[2]
    name = {"evaluate": "eval"}.get(module, module)  # a module called eval would hide Python's own
    assert main([name, "--help"]) == 0
    assert command.EPILOG.splitlines()[-1] in capsys.readouterr().out
    examples = [line.strip().partition("  ")[0] for line in command.EPILOG.splitlines() if "  foveate " in line]
    assert examples
    for example in examples:
        work = build_parser().parse_args(shlex.split(example)[1:]).work
        assert callable(entry._work(work))
        assert work.endswith(f".{module}:run")


def test_the_examples_of_cost_run(capsys):
    examples = [line for line in cost_command.EPILOG.splitlines() if "  foveate cost deit" in line]
    assert len(examples) == 3
    for example in examples:
        assert main(shlex.split(example)[1:]) == 0
    assert "EViT:fuse=false" in capsys.readouterr().out


def test_cost_documents_its_keys(capsys):
    assert main(["cost", "test_vit", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for key in (*document, *document["rows"][0]):
        assert key in cost_command.EPILOG


def test_interrupted(capsys, monkeypatch):
    def interrupt(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("foveate.cli.methods.run", interrupt)
    assert main(["methods"]) == 130
    assert capsys.readouterr().err == "foveate: interrupted\n"


@pytest.mark.parametrize("argv", [["methods"], ["methods", "--json"]])
def test_a_closed_pipe_is_no_error(monkeypatch, capsys, argv):
    class ClosedPipe(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", ClosedPipe())
        assert main(argv) == 141
    assert capsys.readouterr().err == ""


def test_methods_lists_every_method_and_option(capsys):
    assert main(["methods"]) == 0
    text = capsys.readouterr().out
    assert main(["methods", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(entries) == list(all_methods())
    for name, cls in all_methods().items():
        assert f"{name}  {entries[name]['description']}" in text
        fields = [field.name for field in dataclasses.fields(cls)]
        assert [option["name"] for option in entries[name]["options"]] == fields
        assert all(option["description"] for option in entries[name]["options"]), f"{name} has an undocumented option"
        assert all(f"    {field}=" in text for field in fields)


def test_methods_by_name(capsys):
    assert main(["methods", "tome"]) == 0
    out = capsys.readouterr().out
    assert "proportional_attention=true  [true|false]" in out
    assert "Add log(size) to attention logits" in out
    assert "EViT" not in out


@pytest.mark.parametrize(
    "text", ["EViT", "EViT:fuse=false,proportional_attention=true", "RandomSelect:seed=3", "FreeSlice:site=kv", "ToMe"]
)
def test_methods_are_written_as_they_are_read(text):
    assert method_text(parse(text)) == text


def test_counts_and_sizes():
    assert parse_keep("3:100, 6:50") == fv.Keep({3: 100, 6: 50})
    assert parse_keep("9,8,7") == fv.Keep([9, 8, 7])
    assert image_size("224") == (None, 224, 224)
    assert image_size("224X320") == (None, 224, 320)
    assert image_size("4x224x320") == (4, 224, 320)


@pytest.mark.parametrize("width", [10, 40, 80, 200])
def test_no_terminal_is_too_narrow_for_a_number(capsys, monkeypatch, width):
    monkeypatch.setattr(output, "console", lambda: output.PipeAwareConsole(width=width))
    output.print_table(
        "Title", ("name", "one\nnumber", "two of them"), [["a long name of many words", "123456789.5", "7"]], ("name",)
    )
    out = capsys.readouterr().out
    assert "123456789.5" in out
    assert "two of them" in out


def test_tables_without_any(capsys, monkeypatch):
    monkeypatch.setattr("foveate.cli.tables.all_tables", dict)
    assert main(["tables"]) == 0
    assert capsys.readouterr().out == "No tables yet.\n"
    assert main(["tables", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["tables", "--all"]) == 0


def test_a_table_is_added_by_one_function(capsys, monkeypatch):
    table.all()  # imported first, or what registers itself now would be lost with the stand-in
    monkeypatch.setattr(table, "by_name", {})
    verdict = True

    @table("sums")
    def sums() -> Table:
        """Sums, as printed."""
        rows = (Row(("one and one", 2.0, 2.0001), verdict), Row(("nothing printed", None, 3)))
        return Table("Sums", ("what", "printed", "counted"), rows, note="To four digits.")

    assert main(["tables"]) == 0
    assert "Sums, as printed." in capsys.readouterr().out
    assert main(["tables", "sums"]) == 0
    out = capsys.readouterr().out
    assert "one and one" in out
    assert "To four digits." in out
    verdict = False
    assert main(["tables", "sums"]) == 1
    assert "NO" in capsys.readouterr().out
    assert main(["tables", "--all", "--json"]) == 1
    (document,) = [entry for entry in json.loads(capsys.readouterr().out) if entry["name"] == "sums"]
    assert document["holds"] is False
    assert document["rows"][1] == {"cells": ["nothing printed", None, 3], "holds": None}
    with pytest.raises(ValueError, match="A table named 'sums' is already registered"):
        table("sums")(sums)


def test_a_table_whose_rows_do_not_fit_is_refused():
    with pytest.raises(ValueError, match="2 columns"):
        Table("t", ("a", "b"), (Row((1,)),))


def test_pictures_without_any(capsys, monkeypatch):
    monkeypatch.setattr("foveate.cli.show.all_pictures", dict)
    assert main(["show"]) == 0
    assert capsys.readouterr().out == "No pictures yet.\n"


def test_a_picture_is_added_by_one_function(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(drawing.picture, "by_name", {})
    drawn = []

    @drawing.picture("square")
    def square(model, images, *, name, blocks):
        """One square."""
        drawn.append((type(model.foveate.method).__name__, list(images), blocks))
        return Image.new("RGB", (4, 4))

    assert main(["show"]) == 0
    assert "One square." in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (4, 4)).save("a.png")
    arguments = ["test_vit", "a.png", "--method", "tome", "--remove", "3", "--at", "0", "-1"]
    assert main(["show", "square", *arguments, "--out", str(tmp_path / "o.png")]) == 0
    assert drawn == [("ToMe", [Path("a.png")], [0, -1])]
    assert Image.open(tmp_path / "o.png").size == (4, 4)
    assert "needs a model" in (capsys.readouterr(), wrong(capsys, "show", "square"))[1]
    assert "needs an image" in wrong(capsys, "show", "square", "test_vit")
    assert "one --method at a time" in wrong(capsys, "show", "square", *arguments, "--method", "topk")
    assert "Use .png" in wrong(capsys, "show", "square", *arguments, "--out", str(tmp_path / "o.txt"))
    assert "does not exist" in wrong(capsys, "show", "square", *arguments, "--out", str(tmp_path / "none" / "o.png"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "o.png"]


def test_help_version_and_typing_errors_load_no_model_library():
    script = (
        "import sys; from foveate_cli.main import main\n"
        "lines = ('--help', '--version', 'cost', 'compare --help', 'nonsense', 'completion bash')\n"
        "for line in lines: main(line.split())\n"
        "print(sorted({'torch', 'timm', 'foveate', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_one_name_has_one_meaning_and_one_default_in_every_command():
    same = ("--batch-size", "--workers", "--seed", "--device", "--max-broken", "--json", "--limit")
    found = {}
    for name, parser in build_parser()._subparsers._group_actions[0].choices.items():
        if name == "train":  # whose defaults are the recipe's
            continue
        for action in parser._actions:
            for option in set(action.option_strings) & set(same):
                # speed measures several; predict and embed take what fits into memory; recover trains
                if option != "--batch-size" or name not in ("speed", "predict", "embed", "recover"):
                    found.setdefault(option, set()).add((action.default, str(action.type), action.nargs))
    assert set(found) == set(same)
    assert all(len(meanings) == 1 for meanings in found.values()), found


def test_methods_and_shares_can_be_written_in_every_usual_way(capsys):
    lines = (
        "--method tome --method topk --budget 0.6",
        "--methods ToMe TopK --budget 60%",
        "--method To-Me --methods top_k --budget .6",
    )
    documents = []
    for line in lines:
        assert main(["cost", "test_vit", "--json", *line.split()]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1] == documents[2]


def test_the_installed_script():
    script = Path(sysconfig.get_path("scripts")) / "foveate"
    if not script.exists():
        pytest.skip("foveate is not installed as a script here")
    command = [str(script), "cost", "test_vit", "--method", "tome", "--remove", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ToMe" in done.stdout
    assert "\x1b" not in done.stdout
