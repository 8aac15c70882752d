"""Write the generated pages, the plots, and the numbers of all other pages.

`pages()` gives them as text, so that a test can tell whether they are fresh.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, get_args

import docs_claims
import docs_listening
import docs_numbers
import docs_plots
import docs_reference
import typer.main

from nightingale.cli.commands import app
from nightingale.cli.setting_flags import setting_flags
from nightingale.server.settings import ServerSettings
from nightingale.server.settings_reload import RELOADED
from nightingale_lab.bench.report import cluster_tables, conversion_table, markdown, reliability_tables
from nightingale_lab.bench.store import read_lines

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "src" / "nightingale_lab" / "bench" / "programs"
WIDTH = 100


def command_pages(command: Any, path: str, parent: Any = None) -> list[str]:
    """The help of a command and of everything below it."""
    verb = path.rsplit(" ", 1)[-1]
    settings = {**command.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    context = command.make_context(verb, [], parent, resilient_parsing=True, **settings)
    text = "\n".join(line.rstrip() for line in context.command.get_help(context).splitlines())
    found = [f"### `{path}`\n\n```text\n{text}\n```\n"]
    for name, below in getattr(command, "commands", {}).items():
        found += command_pages(below, f"{path} {name}", context)
    return found


def settings_table() -> str:
    """Every setting of the server, from the class itself."""
    lines = ["| key | variable | flag | default | meaning |", "|---|---|---|---|---|"]
    flags = setting_flags()
    for name, field in ServerSettings.model_fields.items():
        default = field.default
        shown = "" if default in (None, "", {}, []) else json.dumps(default)
        about = get_args(flags[name].annotation)[1] if name in flags else None
        flag = "" if about is None else (about.names or (f"--{name}",))[-1]
        cells = [name, f"NIGHTINGALE_{name.upper()}", flag, shown]
        spelled = [f"`{cell}`" if cell else "" for cell in cells]
        lines.append(f"| {' | '.join([*spelled, field.description or ''])} |")
    return "\n".join(lines)


def reload_text() -> str:
    """Return the text about SIGHUP, with the names of the settings that it changes."""
    return f"""SIGHUP (`systemctl reload`, `kill -HUP`) reads the files again: `.env`, `nightingale.toml`, the file of
plain keys and the key file. It changes {", ".join(f"`{name}`" for name in RELOADED)}, and
what is in the key file. If anything is invalid, the server logs an error and keeps all of its settings. Other settings
need a restart; the log names those that have changed. Flags and variables of a running process cannot change. The key
file is also read again without a signal when it changes."""


def constant(script: str, name: str) -> Any:
    """A literal of a benchmark, without importing it."""
    for node in ast.parse((PROGRAMS / script).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(to, "id", "") == name for to in node.targets):
            return ast.literal_eval(node.value)
    raise LookupError(f"no {name} in {PROGRAMS / script}")


def performance(results: Path = ROOT / "benchmarks" / "results") -> str:
    """tools/performance.md, each {{name}} in it replaced by the table of that name."""
    names = ("bench", "verify", "cpu", "gpu_engine", "engine", "server", "cluster", "fleet")
    lines = {name: read_lines(results, name) for name in names}
    tables = {
        "claims": docs_claims.claims(),
        "gpu": markdown.gpu(lines["gpu_engine"]),
        "gpu_engine": markdown.gpu_engine(lines["gpu_engine"]),
        "cpu": markdown.cpu(lines["cpu"], constant("cpu.py", "GOALS")),
        "cpu_quality": markdown.cpu_quality(lines["cpu"]),
        "bench": markdown.bench(lines["bench"], lines["verify"]),
        "concurrency": markdown.concurrency(lines["bench"]),
        "engine": markdown.engine(lines["engine"]),
        "server": markdown.server(lines["server"]),
        "cluster": cluster_tables.cluster(lines["cluster"]),
        "fleet": cluster_tables.fleet(lines["fleet"]),
    }
    return filled("performance.md", tables)


def reliability(results: Path = ROOT / "benchmarks" / "results") -> str:
    """tools/reliability.md, each {{name}} in it replaced by the table of that name."""
    names = ("soak", "overload", "processes", "memory", "faults", "fuzz")
    tables = {name: getattr(reliability_tables, name)(read_lines(results, name)) for name in names}
    return filled("reliability.md", tables)


def renewed(page: str, tables: dict[str, str]) -> str:
    """A page of docs/ that is written by hand, with the text between `<!-- NAME -->` and `<!-- -->` renewed."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name, table in tables.items():
        text, found = re.subn(
            rf"(^<!-- {name} -->\n).*?(?=^<!-- -->$)",
            "\\1" + table.replace("\\", "\\\\") + "\n",
            text,
            flags=re.DOTALL | re.MULTILINE,
        )
        if found != 1:
            raise LookupError(f"docs/{page} has {found} places for {name}")
    return text


def conversion(results: Path = ROOT / "benchmarks" / "results") -> str:
    """The page with the table of how well speech is converted."""
    table = conversion_table.conversion(read_lines(results, conversion_table.KIND))
    return renewed("conversion.md", {"conversion": table})


def filled(page: str, tables: dict[str, str]) -> str:
    """A template of this folder, each {{name}} in it replaced by the table of that name."""
    template = (ROOT / "tools" / page).read_text(encoding="utf-8")
    return re.sub(
        r"^\{\{(\w+)\}\}$",
        lambda found: f"<!-- {found[1]} -->\n{tables[found[1]]}\n<!-- -->",
        template,
        flags=re.MULTILINE,
    )


def pages() -> dict[str, str]:
    """Path in the repository -> text."""
    document = docs_reference.openapi_document()
    made = {
        "docs/api.md": docs_reference.api_page(),
        "docs/cli.md": renewed(
            "cli.md",
            {
                "errors": docs_reference.errors_table(),
                "commands": "\n".join(command_pages(typer.main.get_command(app), "nightingale")),
            },
        ),
        "docs/conversion.md": conversion(),
        "docs/openapi.json": json.dumps(document, indent=1) + "\n",
        "docs/openapi.md": docs_reference.openapi_page(document),
        "docs/performance.md": performance(),
        "docs/reliability.md": reliability(),
        "docs/running.md": renewed("running.md", {"settings": settings_table(), "reload": reload_text()}),
        "docs/wren.md": renewed("wren.md", {"samples": docs_listening.samples()}),
        **docs_plots.pictures(),
    }
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        path = page.relative_to(ROOT).as_posix()
        text = made.get(path) or page.read_text(encoding="utf-8")
        if docs_numbers.MARK.search(text):
            made[path] = docs_numbers.filled(text)
    return made


if __name__ == "__main__":
    for path, text in pages().items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(f"wrote {path}")
