"""What is installed: the list of packages, the files of the wheel, and the one direction of imports."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_PACKAGED = ("tests", "bench", "docs", "build", "dist")


def modules(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts]


def imported(path: Path) -> set[str]:
    """Absolute names of everything that a module imports, at any depth of its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_the_packages_listed_are_the_folders_there_are():
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    folders = [path for path in ROOT.iterdir() if path.name[0] != "." and path.name not in NOT_PACKAGED]
    found = {
        "agentworld." + ".".join(path.parent.relative_to(ROOT).parts)
        for folder in folders
        for path in folder.rglob("__init__.py")
    }
    assert found == listed


def test_no_module_is_outside_a_package():
    for folder in PROJECT["tool"]["setuptools"]["package-dir"].values():
        for path in modules(folder):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} lacks __init__.py and misses in the wheel"


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("data", ("agentworld.train", "agentworld.rewards", "agentworld.slurm", "torch")),
        ("rewards", ("agentworld.train", "agentworld.slurm", "torch")),
        ("slurm", ("agentworld.train", "agentworld.data", "agentworld.rewards", "torch")),
    ],
)
def test_imports_run_one_way(folder, forbidden):
    for path in modules(folder):
        for name in imported(path):
            assert not any(name == root or name.startswith(f"{root}.") for root in forbidden), f"{path} imports {name}"


def test_modules_are_imported_by_their_installed_name():
    """`import data.x` beside `agentworld.data.x` would give two classes of the same name."""
    for folder in (*PROJECT["tool"]["setuptools"]["package-dir"].values(), "tests"):
        for path in modules(folder):
            roots = {name.partition(".")[0] for name in imported(path)}
            assert not roots & {"train", "data", "rewards", "recipes", "slurm"}, path


def test_no_module_hides_one_of_the_standard_library():
    for folder in PROJECT["tool"]["setuptools"]["package-dir"].values():
        assert not {path.stem for path in modules(folder)} & set(sys.stdlib_module_names) - {"__init__"}


def test_the_wheel_holds_every_module_and_data_file(tmp_path):
    code = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    source = tmp_path / "source"  # a copy: setuptools writes build/ beside the sources
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", *PROJECT["tool"]["setuptools"]["package-dir"].values()):
        if (ROOT / name).exists():
            subprocess.run(["cp", "-r", str(ROOT / name), str(source / name)], check=True)
    built = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    wheel = next(tmp_path.glob("*.whl"))
    held = set(zipfile.ZipFile(wheel).namelist())
    for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items():
        for path in (ROOT / folder).rglob("*"):
            if (
                path.suffix in (".py", ".yaml", ".txt", ".jinja", ".json", ".sh", ".sbatch")
                and "__pycache__" not in path.parts
            ):
                expected = f"{name.replace('.', '/')}/{path.relative_to(ROOT / folder)}"
                assert expected in held, f"{expected} is not in the wheel"
    assert not any(name.startswith(("data/", "train/", "slurm/", "tests/")) for name in held)


def test_the_constraints_pin_every_dependency_within_its_range():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pins = {canonicalize_name(name): pinned for name, _, pinned in (line.partition("==") for line in lines)}
    assert all("+" not in pinned and "/" not in pinned for pinned in pins.values())  # no local build, no local path
    for text in (*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]):
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), text


def test_recipes_and_build_files_name_no_machine():
    for path in (
        *(ROOT / "recipes").rglob("*.yaml"),
        ROOT / "Makefile",
        ROOT / ".ci" / "run",
        ROOT / "constraints.txt",
    ):
        text = path.read_text()
        assert "file://" not in text and "/home/" not in text and "index-url" not in text, path
