"""What holds for the repository as a whole: who may import whom, scripts that explain themselves, links that lead."""

import ast
import functools
import re
import runpy
import signal
import sys
import tomllib
from collections.abc import Iterator, Set
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vfl
from vfl.horizontal.components import ALGORITHMS

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for top in ("models", "vfl", "parties", "scripts") for path in (ROOT / top).rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").glob("[!_]*.py"))
LABORATORY = ROOT / "scripts" / "lab"
DOORS = (ROOT / "scripts" / "benchmark.py", ROOT / "scripts" / "same_bits.py")
"""The commands that use the laboratory where it is: in a checkout."""
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
INSTALLED = {"models": "vfl.models", "parties": "vfl.parties", "scripts": "vfl.commands"}
"""Names by which the folders beside ``vfl/`` are installed, as links in it."""
FLOORS = (
    {"vfl.models"},
    {"vfl.base"},
    {"vfl.config"},
    {"vfl.console", "vfl.settings", "vfl.messages"},
    {"vfl.runs"},
    {"vfl.data", "vfl.compression"},
    {"vfl.sweeps"},
    {"vfl.reports"},
    {"vfl.core", "vfl.horizontal"},
    {"vfl.predict"},
    {"vfl.audit", "vfl.comparison", "vfl.plan"},
    {"vfl.api"},
    {"vfl.parties.network"},
    {"vfl.parties.launch"},
    {"vfl.parties.matching", "vfl.parties.uses"},
    {"vfl.parties.serving"},
    {"vfl.commands"},
    {"vfl.__main__"},
)
"""The rooms, the lowest first: a room imports those below, and none beside it."""
REGISTRY = ROOT / "vfl" / "config" / "components.py"
"""The only file that may name modules of higher rooms: the components that settings choose by name."""
MODULE = re.compile(r"(vfl(?:\.\w+)+)\.?(?::\w+)?")
"""A module of ours as text, "vfl.room.module:name", or the beginning of one that is made up."""


@functools.cache
def parsed(path: Path) -> list[ast.AST]:
    """Everything in a file, read once for all tests."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def imported(path: Path) -> list[str]:
    """Dotted names of all modules that a file imports anywhere, relative ones made absolute."""
    package = dotted(path).split(".") if path.stem == "__init__" else dotted(path).split(".")[:-1]
    found = list[str]()
    for node in parsed(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found


@functools.cache
def named(path: Path) -> list[str]:
    """Dotted names of our modules that stand in a file as text, from which ``import_module`` may import them."""
    texts = [node.value for node in parsed(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [match[1] for text in texts if (match := MODULE.fullmatch(text))]


def dotted(path: Path) -> str:
    """Name by which a module is imported."""
    top, *below = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([INSTALLED.get(top, top), *below]).removesuffix(".__init__")


def needs(path: Path, names: Set[str]) -> Iterator[str]:
    """Those of our modules that importing a file imports before it: also the packages that these lie in."""
    own = dotted(path)
    for node in parsed(path):
        if isinstance(node, ast.ImportFrom) and node.col_offset == 0:
            module = node.module or ""
            found = {module, *(f"{module}.{alias.name}" for alias in node.names)}
            parts = module.split(".")
            found |= {".".join(parts[:count]) for count in range(1, len(parts))}
            yield from (name for name in found & names if name != own and not own.startswith(f"{name}."))


@pytest.mark.release
def test_every_module_can_be_imported_first():
    names = {dotted(path) for path in SOURCES}
    order = TopologicalSorter({dotted(path): set(needs(path, names)) for path in SOURCES}).static_order()
    assert set(order) == names  # CycleError, with the modules of a cycle, where there is no order


def test_no_modules_import_each_other_in_a_circle():
    """Neither inside a function nor for types alone: to understand a module, those that it imports are enough."""
    names = {dotted(path) for path in SOURCES}
    graph = {dotted(path): set(imported(path)) & names - {dotted(path)} for path in SOURCES}
    below = {name: {each for each in found if not has_part_in(each, found)} for name, found in graph.items()}
    assert set(TopologicalSorter(below).static_order()) == names  # CycleError names the modules of a circle


def has_part_in(name: str, found: Set[str]) -> bool:
    """Return whether a name is only the package of others: ``from vfl import api`` needs no more than ``api``."""
    return any(each.startswith(f"{name}.") for each in found)


def test_models_import_torch_and_the_standard_library_only():
    known = sys.stdlib_module_names | {"torch"}
    plain = [path for path in SOURCES if {ROOT / "models", ROOT / "vfl" / "horizontal" / "models"} & set(path.parents)]
    strange = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in plain
        for name in imported(path)
        if name.split(".")[0] not in known and not name.startswith(("vfl.models", "vfl.horizontal.models"))
    ]
    assert len(plain) > 8
    assert strange == []


def room(name: str) -> str:
    """Return the room of one of our modules."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["vfl", "parties"] else 2])


def test_a_room_imports_only_rooms_below_it():
    """So what both modes share, ``runs`` above all, knows nothing of one, and training nothing of processes.

    A module's name as text counts as an import, wherever it stands.
    """
    floor = {each: number for number, rooms in enumerate(FLOORS) for each in rooms}
    facades = {"vfl", "vfl.parties"}  # names at their first use; a package of rooms
    inside = [path for path in SOURCES if LABORATORY not in path.parents and dotted(path) not in facades]
    assert {room(dotted(path)) for path in inside} == floor.keys()
    wrong = [
        f"{dotted(path)} imports {name}"
        for path in inside
        for name in [*imported(path), *(named(path) if path != REGISTRY else ())]
        if room(name) in floor and room(name) != room(dotted(path)) and not name.startswith("scripts.lab")
        if floor[room(name)] >= floor[room(dotted(path))]
    ]
    assert wrong == []


def test_only_horizontal_learning_reads_its_settings():
    readers = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if not {"horizontal", "config", "lab"} & set(path.parts)
        for node in parsed(path)
        if isinstance(node, ast.Attribute) and node.attr == "horizontal"
    }
    assert readers == set()


def test_no_room_takes_a_public_name():
    """Once such a room is imported, ``vfl.NAME`` would be the room."""
    rooms = {dotted(path).split(".")[1] for path in SOURCES if dotted(path) != "vfl"}
    assert rooms & set(vfl.__all__) == set()


def test_nothing_imports_the_tests_and_only_two_commands_the_laboratory():
    found = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        for name in imported(path)
        if name.split(".")[0] == "tests" or (name.startswith("scripts.") and LABORATORY not in path.parents)
    }
    assert found == {str(door.relative_to(ROOT)) for door in DOORS}


def test_a_name_of_a_folder_beside_the_package_is_never_imported():
    """A user's own models.py, parties.py or configs/ would be taken in its place."""
    assert [
        (str(path.relative_to(ROOT)), name)
        for path in SOURCES
        for name in imported(path)
        if name.split(".")[0] in {"models", "parties", "configs", "lvfl"}
    ] == []


def test_no_function_is_longer_than_a_screen_and_no_file_than_one_can_hold():
    long: list[str] = []
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]:
        if len(path.read_text(encoding="utf-8").splitlines()) > 500:
            long.append(f"{path.relative_to(ROOT)} has more than 500 lines")
    for path in SOURCES:
        for node in parsed(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= 60:
                    long.append(f"{path.relative_to(ROOT)}: {node.name} has more than 60 lines")
    assert long == []


def test_no_room_asks_for_the_mode():
    assert [
        str(path)
        for path in SOURCES
        if ".mode == " in path.read_text() and {"runs", "sweeps", "reports"} & set(path.parts)
    ] == []


def test_an_algorithm_is_named_in_its_own_files_its_registry_and_the_studies_alone():
    """But for the one that a horizontal experiment has unless it names another."""
    own = {module.split(":")[0].split(".")[-1] for module in ALGORITHMS.built_in.values()} | {"components"}
    found = {
        (str(path.relative_to(ROOT)), node.value)
        for path in SOURCES
        if path.stem not in own and not {"studies", "scripts"} & set(path.relative_to(ROOT).parts)
        for node in parsed(path)
        if isinstance(node, ast.Constant) and node.value in ALGORITHMS.built_in
    }
    assert found == {("vfl/horizontal/config.py", "fedavg")}


def test_only_the_configuration_knows_yaml():
    readers = {str(path.relative_to(ROOT)) for path in SOURCES if "yaml" in imported(path)}
    assert readers == {"vfl/config/files.py"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_explains_itself(script: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert end.value.code in (0, None)
    said = capsys.readouterr()
    assert said.out.startswith("usage: ")
    assert script.name in said.out
    assert said.err == ""


def test_every_yaml_of_the_documents_is_yaml():
    blocks = [
        (path.name, block)
        for path in DOCUMENTS
        for block in re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    ]
    assert len(blocks) > 10
    assert [name for name, block in blocks if not isinstance(yaml.safe_load(block), dict)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path):
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r"(?:src|href)=[\"']([^\"']+)", text)
    local = [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


def test_a_class_name_has_one_meaning():
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        if LABORATORY not in path.parents:
            for node in parsed(path):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_every_version_of_python_that_is_claimed_is_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = [match[1] for each in project["classifiers"] if (match := re.search(r"Python :: (3\.\d+)$", each))]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["everything"]["strategy"]["matrix"]["python"] == claimed
    assert project["requires-python"] == f">={claimed[0]}"


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(each) for each in [*project["dependencies"], *(each for extra in extras for each in extra)]]


def test_every_package_that_is_imported_is_declared():
    declared, providers = {canonicalize_name(each.name) for each in requirements()}, packages_distributions()
    tops = {name.partition(".")[0] for path in SOURCES for name in imported(path)}
    tops -= {"vfl", "scripts"} | sys.stdlib_module_names
    found = {top: {canonicalize_name(each) for each in providers.get(top, ())} for top in tops}
    assert [top for top, names in found.items() if names and not names & declared] == []


WEAK = {
    "cryptography": "46.0.6",  # CVE-2026-39892
    "fastapi": "0.109.0",  # CVE-2024-24762
    "jinja2": "3.1.5",  # CVE-2025-27516
    "onnx": "1.20.1",  # CVE-2026-28500
    "pillow": "12.1.1",  # CVE-2026-40192
    "starlette": "0.49.0",  # CVE-2025-62727
}
"""The newest version of a package with a known weakness."""


@pytest.mark.parametrize("package", WEAK)
def test_no_version_with_a_known_weakness_satisfies_what_is_required(package: str):
    required = [each for each in requirements() if canonicalize_name(each.name) == package]
    assert required
    assert not any(each.specifier.contains(WEAK[package]) for each in required)


def test_a_unit_for_systemd_runs_as_a_user_of_its_own_with_no_rights_to_spare():
    _before, _, unit = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8").partition("[Service]")
    lines = dict(re.findall(r"^(\w+)=(.*)$", unit.partition("```")[0], re.MULTILINE))
    assert lines["User"] not in ("", "root")
    assert lines["CapabilityBoundingSet"] == ""
    assert lines["ProtectSystem"] == "strict"
    closed = [
        "NoNewPrivileges",
        "PrivateTmp",
        "PrivateDevices",
        "ProtectHome",
        "ProtectKernelModules",
        "RestrictNamespaces",
    ]
    assert {lines[each] for each in closed} == {"yes"}
    assert lines["SystemCallFilter"] == "@system-service"


def prose(markdown: str) -> list[str]:
    """Return the paragraphs and items of a page, as a reader counts words: no code, tables, headings, pictures."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!\[[^]]*\]\([^)]*\)|^#.*$|^\|.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return [each for part in re.split(r"\n\s*\n|\n(?=- |\d+\. )", text) if (each := " ".join(part.split()))]


def test_readme_is_read_in_minutes_and_begins_with_a_command():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert len(text.partition("```")[0].split()) < 120
    assert [each for each in prose(text) if len(each.split()) > 60] == []
    sentences = [each for part in prose(text) for each in re.split(r"(?<=[.:;])\s+", part)]
    assert sum(len(each.split()) for each in sentences) / len(sentences) <= 20


@pytest.mark.parametrize(("page", "words"), [("guide.md", 80)])
def test_no_paragraph_of_a_page_for_users_is_long(page: str, words: int):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [f"{len(each.split())}: {each[:60]}" for each in prose(text) if len(each.split()) > words] == []
