"""``foveate completion``: tab completion for a shell."""

from __future__ import annotations

import argparse

from foveate_cli.arguments import Commands, Parser, add_command

DESCRIPTION = """\
Print what a shell needs to complete commands, options, methods, recipes and models of foveate with the tab key."""
EPILOG = """\
examples:
  foveate completion bash
  foveate completion fish

To set it up:
  bash  add to ~/.bashrc:                 eval "$(foveate completion bash)"
  zsh   add to ~/.zshrc, after compinit:  eval "$(foveate completion zsh)"
  fish  add to ~/.config/fish/config.fish: foveate completion fish | source"""

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ARGCOMPLETE"
"""Set by the shell when it wants candidates instead of a command."""


def add_parser(commands: Commands) -> None:
    text = "set up tab completion in bash, zsh or fish"
    parser = add_command(commands, "completion", "foveate_cli.completion:run", text, DESCRIPTION, EPILOG)
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")


def run(args: argparse.Namespace) -> int:
    import argcomplete

    print(argcomplete.shellcode(["foveate"], shell=args.shell))
    return 0


def complete(parser: Parser) -> None:
    """Answer the shell with candidates for the word at the cursor, and exit."""
    import argcomplete

    Parser.completing = True
    argcomplete.autocomplete(parser, always_complete_options=False)
