"""Completion for bash and zsh, made from the arguments themselves: `eval "$(ddpviz --print-completion bash)"`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

_BASH = """\
_ddpviz() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" verb="${{COMP_WORDS[1]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{verbs}"
    else
        case "$verb $before" in
{values}
        esac
        if [ -z "$words" ]; then
            case "$verb" in
{options}
            esac
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _ddpviz ddpviz
"""
_RUNS = {"watch", "export", "compare", "cat"}  # verbs whose arguments are runs
_LIST = "$(ddpviz list 2>/dev/null | awk 'NR>1 {print $1}')"
_DEMOS = "$(ddpviz demo --list 2>/dev/null | awk '$1 ~ /^[a-z0-9]+(-[a-z0-9]+)*$/ && NF > 1 {print $1}')"


def script(shell: str, verbs: Mapping[str, argparse.ArgumentParser]) -> str:
    """What the shell is to evaluate. zsh does it through its own emulation of bash's completion."""
    values, options = [], []
    for verb, parser in verbs.items():
        names = []
        for action in parser._actions:
            names += [name for name in action.option_strings if name.startswith("--")]
            if action.option_strings and action.choices:
                words = " ".join(str(choice) for choice in action.choices)
                values += [f'            "{verb} {name}") words="{words}";;' for name in action.option_strings]
        more = _LIST if verb in _RUNS else _DEMOS if verb == "demo" else ""
        given = f'[ "${{word#-}}" = "$word" ] && words="{more}" || ' if more else '[ "${word#-}" != "$word" ] && '
        options.append(f'                {verb}) {given}words="{" ".join(names)}";;')
    made = _BASH.format(verbs=" ".join([*verbs, "--help", "--version"]), values="\n".join(values),
                        options="\n".join(options))  # fmt: skip
    return made if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{made}"
