"""MODEL on the command line: what it names, told without importing the model or torch, and how it becomes a spec.

    path/to/file.py:factory     a function in a file that returns a ModelSpec
    package.module:factory      the same in an importable module
    path/to/folder              a Hugging Face model folder with a config.json
    hf:org/name[@revision]      the same on the Hugging Face hub

An identity holds names and contents, never a path: the same model in another folder is the same request.
"""

import difflib
import importlib
import importlib.util
import inspect
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precast.aot.code import IMPORTED_DIGEST
from precast.aot.spec import Json, ModelSpec
from precast.cache.factors import Factor
from precast.cache.layers import hub_folder
from precast.cache.lookup import MissReason
from precast.cache.manifest import Manifest
from precast.cache.masking import sealed_value
from precast.cache.sources import hash_source
from precast.errors import ConfigKeyError, FactoryError, PrecastError, StoreAccessError, UnknownModelError

__all__ = ["NO_CONFIG_FACTOR", "ModelReference", "SpecReference", "parse_reference", "reference_of_hint"]

_FORMS = "forms: file.py:factory, package.module:factory, a folder with config.json, hf:org/name[@revision]"
_FAMILIES = "precast.families"

# Keys of a config.json that say nothing about what is computed.
NO_CONFIG_FACTOR: Mapping[str, str] = MappingProxyType(
    {
        "_name_or_path": "where the config came from (W5)",
        "transformers_version": "which library wrote the file; the installed one counts where it took part",
    }
)


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A model that was named, before anything of it is imported.

    Attributes:
        kind: `file`, `module`, `folder` or `hub`.
        text: How it was named, without a path: what a manifest may hold.
        module: Module that holds the factory, or the family's.
        factory: Name of the function.
        folder: Folder of the file or of the config; never part of a key.
        config: Content of config.json for folders and the hub.
    """

    kind: str
    text: str
    module: str
    factory: str
    folder: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def quick(self) -> bool:
        """Tell whether the factors known before the import distinguish the model, so that a lookup needs no trace."""
        return True

    @property
    def identity(self) -> str:
        """Return nothing: its factors tell the model apart."""
        return ""

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the modules whose import registers what pieces call."""
        return (self.module,)

    @property
    def import_path(self) -> tuple[str, ...]:
        """Return the folders to put first on the module search path when the model is imported."""
        return (str(self.folder),) if self.kind == "file" and self.folder else ()

    @property
    def data_path(self) -> tuple[str, ...]:
        """Return the folders in which the model's sources and data files are looked for again."""
        return (str(self.folder),) if self.folder else ()

    @property
    def hint(self) -> dict[str, Json]:
        """Return how the model was named on this machine; for the request's record only, never for an entry."""
        return {"reference": self.text, "folder": str(self.folder) if self.folder else ""}

    def factors(self, overrides: Mapping[str, Json]) -> tuple[Factor, ...]:
        """Return what distinguishes the model before it is imported: names and contents only.

        Every key of a config counts, known to the family or not, as `overrides` leave it (S2); but for those of
        `NO_CONFIG_FACTOR`.
        """
        if self.kind in ("folder", "hub"):
            config = {**self.config, **overrides}
            return tuple(_config_factor(f"model.{k}", v) for k, v in config.items() if k not in NO_CONFIG_FACTOR)
        named = Factor("config", "model.factory", f"{self.module}:{self.factory}")
        return (named, *(_config_factor(f"model.set.{k}", v) for k, v in overrides.items()))

    def unfit(self, manifest: Manifest) -> Iterable[MissReason]:  # noqa: ARG002 - as InstanceReference
        """Say nothing against an entry that the factors name."""
        return ()

    def spec(self, overrides: Mapping[str, Json]) -> ModelSpec:
        """Import the factory and call it.

        Args:
            overrides: Values for the factory's keywords, or for keys of config.json.

        Raises:
            UnknownModelError: The module or the function does not exist.
            ConfigKeyError: An override that the factory does not take.
            FactoryError: The module or the factory raised, or returned no ModelSpec.
        """
        function = self._function()
        if self.kind in ("folder", "hub"):
            made = _call(function, self.text, dict(self.config), overrides, folder=self.folder)
        else:
            _check_keywords(function, overrides, self.text)
            made = _call(function, self.text, **overrides)
        if not isinstance(made, ModelSpec):
            raise FactoryError(
                f"`{self.text}` returned a {type(made).__name__}", "a factory returns a precast.ModelSpec", "return one"
            )
        return made

    def _function(self) -> Callable[..., Any]:
        module = _import_file(self.folder, self.module) if self.kind == "file" else _import(self.module, self.text)
        function = getattr(module, self.factory, None)
        if callable(function):
            return function  # type: ignore[no-any-return]
        names = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        near = difflib.get_close_matches(self.factory, names, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"functions there: {', '.join(sorted(names)) or 'none'}"
        raise UnknownModelError(f"`{self.module}` has no function `{self.factory}`", "", hint)


@dataclass(frozen=True, slots=True)
class SpecReference:
    """A spec that a caller made. Nothing outside it tells two of them apart, so a lookup always needs the trace."""

    made: ModelSpec

    @property
    def text(self) -> str:
        """Return what people call it."""
        return self.made.name

    @property
    def module(self) -> str:
        """Return the module of its build function."""
        return str(getattr(self.made.build, "__module__", None) or "")

    @property
    def quick(self) -> bool:
        """Tell that the spec may hold anything in its functions' closures."""
        return False

    @property
    def identity(self) -> str:
        """Return nothing: a spec cannot be told apart without a trace."""
        return ""

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the modules whose import registers what pieces call."""
        return (self.module,)

    @property
    def import_path(self) -> tuple[str, ...]:
        """Return no folder: the spec's modules are imported already."""
        return ()

    @property
    def data_path(self) -> tuple[str, ...]:
        """Return no folder."""
        return ()

    @property
    def hint(self) -> dict[str, Json]:
        """Return nothing: a spec cannot be named."""
        return {}

    def factors(self, overrides: Mapping[str, Json]) -> tuple[Factor, ...]:  # noqa: ARG002 - as ModelReference
        """Return nothing: the spec's own config counts once it is traced."""
        return ()

    def unfit(self, manifest: Manifest) -> Iterable[MissReason]:  # noqa: ARG002 - as InstanceReference
        """Say nothing: the key was made of a trace."""
        return ()

    def spec(self, overrides: Mapping[str, Json]) -> ModelSpec:
        """Return the spec.

        Raises:
            ConfigKeyError: Overrides were given, and there is no factory to take them.
        """
        if overrides:
            raise ConfigKeyError(
                f"`{self.text}` takes no config key", "it is a spec, not a factory", "call the factory"
            )
        return self.made


def parse_reference(text: str) -> ModelReference:
    """Tell what MODEL names.

    Args:
        text: One of the four forms.

    Raises:
        UnknownModelError: It names nothing, or the folder's architecture has no family.
    """
    if text.startswith("hf:"):
        return _hub(text)
    left, colon, factory = text.rpartition(":")
    if colon and left.endswith(".py"):
        return _file(Path(left), factory)
    if Path(text).is_dir():
        return _folder(Path(text), Path(text).resolve().name)
    if colon and factory.isidentifier() and all(p.isidentifier() for p in left.split(".")):
        return ModelReference("module", text, left, factory)
    hint = f"add `:FACTORY`, the function that returns a ModelSpec: {text}:FACTORY" if text.endswith(".py") else _FORMS
    raise UnknownModelError(f"MODEL `{text}` names nothing", "there is no such folder, file or module", hint)


def reference_of_hint(hint: Mapping[str, Json], fallback: str = "") -> str:
    """Return MODEL as it would be written on this machine now, from how it was named when it was compiled here.

    Args:
        hint: What `ModelReference.hint` gave, as the request's record holds it; empty where nothing is remembered.
        fallback: The model's reference where the hint names none.

    Returns:
        The text for `parse_reference`; empty where nothing names the model.
    """
    name, folder = str(hint.get("reference") or fallback), str(hint.get("folder") or "")
    if not (name and folder):
        return name
    return str(Path(folder) / name) if ".py:" in name else folder


def _config_factor(name: str, value: Json) -> Factor:
    """Make a factor of a config value; of a secret, a factor of its digest."""
    return Factor("config", name, sealed_value(name, value))


def _file(path: Path, factory: str) -> ModelReference:
    if not path.is_file():
        raise UnknownModelError(f"there is no file `{path}`", f"MODEL was `{path}:{factory}`", _FORMS)
    if not path.stem.isidentifier():
        raise UnknownModelError(
            f"`{path.name}` cannot be imported", "its name is no Python identifier", "rename the file"
        )
    return ModelReference("file", f"{path.name}:{factory}", path.stem, factory, path.resolve().parent)


def _folder(folder: Path, name: str, kind: str = "folder", text: str = "") -> ModelReference:
    file = folder / "config.json"
    if not file.is_file():
        raise UnknownModelError(f"the folder `{folder}` holds no config.json", "", _FORMS)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UnknownModelError(f"`{file}` cannot be read", str(error), "it must be a Hugging Face config") from error
    if not isinstance(config, dict):
        raise UnknownModelError(f"`{file}` is no config", "it holds no JSON object", "it must be a Hugging Face config")
    module, factory = _family(config, name)
    return ModelReference(kind, text or name, module, factory, folder.resolve(), config)


def _hub(text: str) -> ModelReference:
    if hub_folder(os.environ)[0] is None:
        raise StoreAccessError(
            f"the config of `{text}` has no place to be kept",
            f"HOME is not set and uid {os.getuid()} has no entry in the passwd database",
            "set HF_HOME to a writable folder, or give a local folder",
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = text.removeprefix("hf:").partition("@")
    try:
        with _quiet("huggingface_hub"):
            file = hf_hub_download(name, "config.json", revision=revision or None)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnknownModelError(
            f"the config of `{text}` cannot be had", why, "check the name and the network, or give a local folder"
        ) from error
    return _folder(Path(file).parent, name, "hub", text)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keep a library's warnings off stderr: what matters of them becomes our error."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _family(config: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Find the entry point that makes specs of the config's architecture."""
    known = {e.name: e.value for e in entry_points(group=_FAMILIES)}
    for architecture in config.get("architectures") or ():
        if architecture in known:
            module, _, factory = known[architecture].partition(":")
            return module, factory
    raise UnknownModelError(
        f"no family makes specs of `{name}`",
        f"its architectures are {config.get('architectures')}; known: {', '.join(sorted(known)) or 'none'}",
        "write a factory that returns a ModelSpec and give file.py:factory",
    )


def _import(name: str, text: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UnknownModelError(f"there is no module `{error.name}`", f"MODEL was `{text}`", _FORMS) from error
        raise _raised(text, error) from error
    except Exception as error:
        raise _raised(text, error) from error


def _import_file(folder: Path | None, stem: str) -> Any:
    path = (folder or Path()) / f"{stem}.py"
    loaded = sys.modules.get(stem)
    if loaded is not None:
        if Path(getattr(loaded, "__file__", None) or "").resolve() == path.resolve():
            return loaded
        raise UnknownModelError(f"the module name `{stem}` is taken", "another module has it", "rename the file")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # so that the file's siblings import as they do when it is run
    spec = importlib.util.spec_from_file_location(stem, path)
    if spec is None or spec.loader is None:
        raise UnknownModelError(f"`{path.name}` cannot be imported", "", _FORMS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[stem]
        raise _raised(path.name, error) from error
    vars(module)[IMPORTED_DIGEST] = hash_source(path)
    return module


def _check_keywords(function: Callable[..., Any], overrides: Mapping[str, Json], text: str) -> None:
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = sorted(set(overrides) - set(parameters))
    if unknown:
        near = difflib.get_close_matches(unknown[0], parameters, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"it takes: {', '.join(parameters) or 'nothing'}"
        raise ConfigKeyError(f"`{text}` has no config key `{unknown[0]}`", "given by --set", hint)


def _call(function: Callable[..., Any], text: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except PrecastError:
        raise
    except Exception as error:
        raise _raised(text, error) from error


def _raised(text: str, error: Exception) -> FactoryError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return FactoryError(f"`{text}` raised{where}", f"{type(error).__name__}: {error}", "fix the model's factory")
