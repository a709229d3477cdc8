"""Code of one's own: modules that declare parts, from installed packages and from the command line.

Two ways lead in: `--plugin FILE.py` behind any command, and the entry points (group `atrium.base.plugins`) of
installed packages. YAML, run folders and checkpoints never name code, so that what was copied from elsewhere
does not run. A plugin is imported before the settings are declared, which then know its classes.
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

from atrium.base.errors import AtriumError, ConfigError, PluginError
from atrium.base.recorded import read_object

GROUP = "atrium.base.plugins"
FLAG = "--plugin"
_SETTINGS = "atrium.config.schema"
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plugin that is loaded.

    `name` is its file's or its distribution's; `sha256` the digest of the file, or of the distribution's
    modules. Of a file, `path` and `source` are kept; of a distribution its `version`.
    """

    name: str
    sha256: str
    version: str | None = None
    path: Path | None = None
    source: bytes = b""

    def __str__(self) -> str:
        return f"{self.name}{f' {self.version}' if self.version else ''} ({self.sha256[:_DIGITS]})"

    def as_record(self) -> dict[str, str | None]:
        """What a record names it by."""
        return {"name": self.name, "version": self.version, "sha256": self.sha256}


_loaded: dict[str, Plugin] = {}
_installed_folders: list[str] = []


def loaded() -> tuple[Plugin, ...]:
    """The plugins of this process."""
    return tuple(_loaded.values())


def records() -> list[dict[str, str | None]]:
    """The plugins of this process as a record names them."""
    return [plugin.as_record() for plugin in loaded()]


def flags() -> list[str]:
    """What a command line needs for a process with the same plugins; installed ones load by themselves."""
    return [word for plugin in loaded() if plugin.path for word in (FLAG, str(plugin.path))]


def load(files: Sequence[str] = ()) -> None:
    """Import the installed plugins and these files; what is loaded already stays as it is.

    Raises `ConfigError` for a file that is missing, lies in a run folder, has the name of another, or fails,
    and `RuntimeError` where the settings of this process were declared without it.
    """
    for distribution, modules in sorted(_installed().items()):
        if distribution not in _loaded:
            _loaded[distribution] = _load_installed(distribution, modules)
    for file in files:
        path = _checked(file)
        source = path.read_bytes()
        digest = hashlib.sha256(source).hexdigest()
        known = _loaded.get(path.name)
        if known is None:
            plugin = Plugin(name=path.name, sha256=digest, path=path, source=source)
            _run(plugin, f"{FLAG} {file}")
            _loaded[path.name] = plugin
        elif (known.path, known.sha256) != (path, digest):
            raise ConfigError(f"{FLAG} {file}: another {path.name} is loaded already; rename one of them")


def note_changes(provenance_file: Path) -> list[str]:
    """Print how the plugins of this process differ from those of a run, and return it; see `changes`."""
    recorded, _ = read_object(provenance_file)
    lines = changes(recorded.get("plugins"))
    for line in lines:
        sys.stderr.write(f"note: {line}\n")
    return lines


def changes(recorded: object) -> list[str]:
    """How the plugins of this process differ from those that a record names, a line each.

    Raises `ConfigError` where one that is named is not loaded.
    """
    named = {str(one["name"]): one for one in _mappings(recorded)}
    for name, one in named.items():
        if name not in _loaded:
            how = f"{FLAG} {name}" if name.endswith(".py") else "its package, installed"
            raise ConfigError(
                f"plugin {name} (sha256 {one.get('sha256')}) is part of what is recorded and is not loaded; "
                f"give it again: {how}"
            )
    lines = []
    for plugin in loaded():
        before = named.get(plugin.name)
        if before is None:
            lines.append(f"plugin {plugin} is loaded and was not there before")
        elif before.get("sha256") != plugin.sha256:
            was = str(before.get("sha256"))[:_DIGITS]
            lines.append(f"plugin {plugin} is not the one that is recorded, whose sha256 begins with {was}")
    return lines


def _mappings(recorded: object) -> Iterator[Mapping[str, object]]:
    for one in recorded if isinstance(recorded, list) else []:
        if isinstance(one, Mapping) and isinstance(one.get("name"), str):
            yield one


def _checked(file: str) -> Path:
    path = Path(file).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"{FLAG} {file}: there is no such Python file")
    for folder in path.parents:
        if (folder / "status.json").is_file():
            raise ConfigError(
                f"{FLAG} {file}: lies in the run folder {folder}, and what lies there is never executed; "
                "give the file that it is a copy of"
            )
    return path


def _run(plugin: Plugin, said: str) -> None:
    """Execute the very bytes that the digest is of."""
    assert plugin.path is not None
    _check_in_time(plugin.name)
    name = f"atrium_plugin_{plugin.path.stem}"
    spec = util.spec_from_file_location(name, plugin.path)
    assert spec is not None
    sys.modules[name] = module = util.module_from_spec(spec)  # where pydantic looks up annotations
    try:
        code = compile(plugin.source, str(plugin.path), "exec")
        exec(code, module.__dict__)  # noqa: S102 - importing the file would read it once more
    except (Exception, SystemExit) as error:
        raise _failed(said, error, str(plugin.path)) from error


def _installed() -> dict[str, list[str]]:
    """The modules that installed distributions name as plugins, by distribution."""
    from importlib import metadata  # only where a command runs: `atrium --help` answers without it

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
            f"the plugin {name} is loaded after {_SETTINGS}, which would not know it; call "
            "atrium.base.plugins.load before anything that reads settings"
        )


@contextmanager
def explained() -> Iterator[None]:
    """Re-raise an error that a plugin's code raised as a `PluginError` that names file, line and function."""
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
            f"{type(error).__name__}: {error}; correct the plugin"
        ) from error


def _is_plugins(file: str) -> bool:
    own = [str(plugin.path) for plugin in loaded() if plugin.path] + _installed_folders
    return any(file == one or file.startswith(f"{one}{os.sep}") for one in own)


def _failed(said: str, error: BaseException, path: str) -> ConfigError:
    """What went wrong, and the line of the plugin where it did."""
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == path else None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if line is None and frames:
        line = frames[-1].lineno
    where = f", line {line}" if line else ""
    is_moved = isinstance(error, ImportError) and str(error.name).startswith("atrium.")
    remedy = "; docs/extending.md names the modules of this version" if is_moved else ""
    return ConfigError(f"{said}{where}: {type(error).__name__}: {error}{remedy}")
