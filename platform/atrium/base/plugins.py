"""Plugins: user-written Python modules that add parts to Atrium, such as rewards or graders.

A plugin is a file (`--plugin FILE.py` after any command), or an installed package with entry points in the
group `atrium.base.plugins`. Code is never loaded from YAML files, run directories or checkpoints. Plugins are
imported before the settings classes are declared, so that the settings include the plugins' classes.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from atrium.base.errors import AtriumError, ConfigError, PluginError, reason_of
from atrium.base.recorded import read_object

GROUP = "atrium.base.plugins"
FLAG = "--plugin"
_SETTINGS = "atrium.config.schema"
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A loaded plugin.

    `name` is the name of the file or installed package, and `sha256` the digest of the file or of the
    package's modules. Only a file has `path` and `source`, and only a package has `version`.
    """

    name: str
    sha256: str
    version: str | None = None
    path: Path | None = None
    source: bytes = b""

    def __str__(self) -> str:
        return f"{self.name}{f' {self.version}' if self.version else ''} ({self.sha256[:_DIGITS]})"

    def as_record(self) -> dict[str, str | None]:
        """Return the name, version and digest for a run's provenance."""
        return {"name": self.name, "version": self.version, "sha256": self.sha256}


_loaded: dict[str, Plugin] = {}
_installed_folders: list[str] = []


def loaded() -> tuple[Plugin, ...]:
    """Return the plugins that this process has loaded."""
    return tuple(_loaded.values())


def records() -> list[dict[str, str | None]]:
    """Return the names, versions and digests of the loaded plugins for a run's provenance."""
    return [plugin.as_record() for plugin in loaded()]


def flags() -> list[str]:
    """Return the command-line flags with which another process loads the same plugins.

    Installed packages need no flags, because they are loaded automatically.
    """
    return [word for plugin in loaded() if plugin.path for word in (FLAG, str(plugin.path))]


def load(files: Sequence[str] = ()) -> None:
    """Import the installed plugins and the given files, except for those that are already loaded.

    Raises `ConfigError` if a file is missing or unreadable, does not end in `.py`, is in a run directory, has
    the name of another plugin, or has changed since it was loaded, and if any plugin raises an error. Raises
    `RuntimeError` if a plugin must be imported after this process has declared the settings classes.
    """
    for distribution, modules in sorted(_installed().items()):
        if distribution not in _loaded:
            _loaded[distribution] = _load_installed(distribution, modules)
    for file in files:
        try:
            path = _checked(file)
            source = path.read_bytes()
        except OSError as error:
            text = (
                f"{FLAG} {file}: the file cannot be read ({reason_of(error)}); check its path and permissions"
            )
            raise ConfigError(text) from error
        digest = hashlib.sha256(source).hexdigest()
        known = _loaded.get(path.name)
        if known is None:
            plugin = Plugin(name=path.name, sha256=digest, path=path, source=source)
            _run(plugin, f"{FLAG} {file}")
            _loaded[path.name] = plugin
        elif (known.path, known.sha256) != (path, digest):
            raise ConfigError(
                f"{FLAG} {file}: another plugin with the name {path.name} is already loaded; rename one "
                "of the files"
            )


def note_changes(provenance_file: Path) -> list[str]:
    """Compare the loaded plugins with those in a run's provenance file; print and return the differences.

    The returned lines and the raised errors are those of `changes`.
    """
    recorded, _ = read_object(provenance_file)
    lines = changes(recorded.get("plugins"))
    for line in lines:
        sys.stderr.write(f"note: {line}\n")
    return lines


def changes(recorded: object) -> list[str]:
    """Return a line for each loaded plugin that is not in `recorded` or is recorded with another digest.

    `recorded` is the list that `records` returned when the run was recorded. Raises `ConfigError` if a
    recorded plugin is not loaded.
    """
    named = {str(one["name"]): one for one in _mappings(recorded)}
    for name, one in named.items():
        if name not in _loaded:
            how = f"load it with {FLAG} {name}" if name.endswith(".py") else "install its package"
            raise ConfigError(f"plugin {name} (sha256 {one.get('sha256')}) is recorded but not loaded; {how}")
    lines = []
    for plugin in loaded():
        before = named.get(plugin.name)
        if before is None:
            lines.append(f"plugin {plugin} is loaded but not in the record")
        elif before.get("sha256") != plugin.sha256:
            was = str(before.get("sha256"))[:_DIGITS]
            lines.append(f"plugin {plugin} differs from the recorded one, whose sha256 begins with {was}")
    return lines


def _mappings(recorded: object) -> Iterator[Mapping[str, object]]:
    for one in recorded if isinstance(recorded, list) else []:
        if isinstance(one, Mapping) and isinstance(one.get("name"), str):
            yield one


def _checked(file: str) -> Path:
    path = Path(file).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"{FLAG} {file}: there is no such Python file; give the path of a .py file")
    for folder in path.parents:
        if (folder / "status.json").is_file():
            raise ConfigError(
                f"{FLAG} {file}: files in a run directory ({folder}) cannot be executed; give the original "
                "file"
            )
    return path


def _run(plugin: Plugin, said: str) -> None:
    """Execute `plugin.source`, whose digest is recorded, rather than reading the file again.

    `said` is the text by which error messages refer to the plugin.
    """
    assert plugin.path is not None
    _check_in_time(plugin.name)
    name = f"atrium_plugin_{plugin.path.stem}"
    spec = util.spec_from_file_location(name, plugin.path)
    assert spec is not None
    sys.modules[name] = module = util.module_from_spec(spec)  # pydantic looks up annotations here
    try:
        code = compile(plugin.source, str(plugin.path), "exec")
        exec(code, module.__dict__)  # noqa: S102 - importing the file would read it once more
    except (Exception, SystemExit) as error:
        raise _failed(said, error, str(plugin.path)) from error


def _installed() -> dict[str, list[str]]:
    """Return the modules that installed packages declare as plugins, keyed by package name."""
    from importlib import metadata  # only when a command runs: `atrium --help` works without it

    found: dict[str, list[str]] = {}
    for point in metadata.entry_points(group=GROUP):
        found.setdefault(point.dist.name if point.dist else point.name, []).append(point.module)
    return found


def _load_installed(name: str, modules: Sequence[str]) -> Plugin:
    from importlib import metadata

    _check_in_time(name)
    digest = hashlib.sha256()
    for wanted in sorted(modules):
        try:
            module = importlib.import_module(wanted)
            top = importlib.import_module(wanted.partition(".")[0])
        except (Exception, SystemExit) as error:
            raise _failed(f"the installed plugin {name}", error, "") from error
        folders = [Path(folder) for folder in getattr(top, "__path__", [])]
        files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
        files = files or [Path(str(module.__file__))]
        for file in files:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        _installed_folders.extend(map(str, folders or files))
    return Plugin(name=name, sha256=digest.hexdigest(), version=metadata.version(name))


def _check_in_time(name: str) -> None:
    if _SETTINGS in sys.modules:
        raise RuntimeError(
            f"the plugin {name} must be loaded before {_SETTINGS}, which reads the known kinds; call "
            "atrium.base.plugins.load before importing anything that reads settings"
        )


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error raised by a plugin's code into a `PluginError` that names file, line and function.

    An `AtriumError`, an out-of-memory error, and an error without a plugin's code in its traceback are raised
    unchanged.
    """
    try:
        yield
    except AtriumError:
        raise
    except Exception as error:
        walked = traceback.walk_tb(error.__traceback__)
        frames = [(frame.f_code, line) for frame, line in walked if _is_plugins(frame.f_code.co_filename)]
        if not frames or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise
        code, line = frames[-1]
        raise PluginError(
            f"{code.co_filename}, line {line}, in {code.co_qualname.partition('.<locals>')[0]}: "
            f"{type(error).__name__}: {error}; fix the plugin"
        ) from error


def _is_plugins(file: str) -> bool:
    own = [str(plugin.path) for plugin in loaded() if plugin.path] + _installed_folders
    return any(file == one or file.startswith(f"{one}{os.sep}") for one in own)


def _failed(said: str, error: BaseException, path: str) -> ConfigError:
    """Return the error for a plugin that could not be imported, with the cause and the line.

    `said` is the text by which the message refers to the plugin, such as its command-line flag. `path` is the
    plugin's file, or an empty string for an installed package.
    """
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == path else None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if line is None and frames:
        line = frames[-1].lineno
    where = f", line {line}" if line else ""
    is_moved = isinstance(error, ImportError) and str(error.name).startswith("atrium.")
    remedy = "; docs/extending.md lists the modules of this version" if is_moved else ""
    return ConfigError(f"{said}{where}: {type(error).__name__}: {error}{remedy}")
