"""What every command runs in: shared options applied, configuration merged, progress ready to show."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import typer

from precast.cli.compile_flags import CompileFlags
from precast.cli.config import KNOWN, Config, load_config
from precast.cli.github import Github, GithubChoice
from precast.cli.options import ProgressChoice, Shared
from precast.cli.output import Format, Output
from precast.cli.store_flags import StoreFlags
from precast.cli.terminal import ColorChoice
from precast.errors import UsageError

if TYPE_CHECKING:
    from precast.aot.progress import Progress
    from precast.aot.settings import Settings
    from precast.cache.options import StoreOptions
    from precast.cache.root import RootChoice
    from precast.cache.store import Store

__all__ = ["Invocation", "Session", "open_session"]

_LOGGER = "precast"
_STORE_KEYS = ("remote", "lock_timeout")


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the process gives to a command before any option is read."""

    out: Output
    environ: Mapping[str, str]
    cwd: Path | None
    interactive: bool


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with.

    Attributes:
        out: The one sink.
        config: The merged configuration.
        environ: The environment.
        flags: The shared options as given.
        interactive: Whether a person can be asked.
    """

    out: Output
    config: Config
    environ: Mapping[str, str]
    flags: Shared
    interactive: bool

    def root(self) -> "RootChoice":
        """Find the folder of the store and where that choice came from."""
        from precast.cache.root import resolve_root

        configured = self.config.values["cache_dir"]
        from_file = str(configured.value) if configured.origin in ("project", "user") else None
        return resolve_root(self.flags.cache_dir, self.environ, from_file)

    @property
    def read_only(self) -> bool:
        """Whether nothing at all may be written to the store.

        Raises:
            ConfigValueError: If the environment says neither yes nor no.
        """
        from precast.cache.options import is_on

        name = "PRECAST_READ_ONLY"
        return self.flags.read_only or is_on(self.environ.get(name, ""), name)

    def store(self) -> "Store":
        """Open the store to look at it: where that is allowed and possible, its index is brought up to date.

        Raises:
            ConfigValueError: If the environment holds a value that is not allowed.
            StoreAccessError: If nothing names a root.
        """
        from precast.cache.store import Store

        return Store(self.root().path, read_only=self.read_only)

    def store_options(self, flags: StoreFlags | None = None) -> "StoreOptions":
        """Say how the store is opened: flags, then environment, then files.

        Whom to trust no file may say: a checkout could bring one along.

        Raises:
            ConfigValueError: If a value is not allowed.
        """
        from precast.cache.options import RemoteOptions, StoreOptions

        given = flags or StoreFlags()
        found = StoreOptions.from_environ(self._with_files(given))
        remote = None if given.offline else found.remote
        if remote is not None:
            remote = RemoteOptions(
                remote.url, given.remote_read_only or remote.read_only, given.remote_required or remote.required
            )
        return StoreOptions(
            read_only=self.flags.read_only or found.read_only,
            lock_timeout_s=found.lock_timeout_s if given.lock_timeout is None else given.lock_timeout,
            trust_root=given.trust_root or found.trust_root,
            remote=remote,
            required_signatures=tuple(given.require_signature or found.required_signatures),
        )

    def _with_files(self, given: StoreFlags) -> dict[str, str]:
        """Return the environment, with what the files say where it says nothing."""
        environ = dict(self.environ)
        if given.remote:
            environ["PRECAST_REMOTE"] = given.remote
        for known in KNOWN:
            if known.key in _STORE_KEYS and not environ.get(known.variable):
                environ[known.variable] = self.config.get(known.key)
        return environ

    def settings(self, flags: CompileFlags) -> "Settings":
        """Resolve the compile settings from flags, environment and files, for a command that looks at one target.

        Raises:
            ConfigValueError: If a value is not allowed.
            UsageError: If flags name several targets.
        """
        from precast.aot.target_list import one_of_several

        found = self.settings_by_target(flags)
        if len(found) > 1 and flags.target:
            raise UsageError("several targets are named", "this command looks at one", "Give one --target")
        return one_of_several(found, self.environ)

    def settings_by_target(self, flags: CompileFlags) -> "tuple[Settings, ...]":
        """Resolve the compile settings from flags, environment and files, once for each target that they name.

        Raises:
            ConfigValueError: If a value is not allowed.
        """
        from precast.aot.target_list import settings_by_target

        return settings_by_target(flags.settings(), self.environ, self.config.settings)

    def require_consent(self, command: str, *, yes: bool) -> None:
        """Refuse to change anything where nobody can be asked and `--yes` was not given.

        Raises:
            UsageError: If so, even where there is nothing to change, so that scripts fail early.
        """
        if not (yes or self.interactive):
            raise UsageError(
                f"precast {command} needs --yes here",
                "there is no terminal to ask on",
                "Add --yes, or look first with --dry-run",
            )

    def ask(self, question: str, *, yes: bool) -> None:
        """Ask the person at the terminal, unless `--yes` answered already.

        Raises:
            typer.Abort: If the answer is no.
        """
        if not yes:
            self.out.stdout.flush()
            typer.confirm(question, abort=True, err=True)

    @contextmanager
    def working(self) -> "Iterator[Progress]":
        """Show long work while the block runs, and keep what it prints out of the answer."""
        from precast.cli.progress import shown_progress
        from precast.cli.streams import stdout_kept_clean

        choice = ProgressChoice(self.config.get("progress"))
        stack = ExitStack()
        shown = shown_progress(
            ProgressChoice.NONE if self.out.quiet else choice,
            self.out.stderr,
            self.out.progress_line,
            color=self.out.colors_remarks,
            environ=self.environ,
            events=stack.enter_context(_opened("--events", self.flags.events)) if self.flags.events else None,
            warn=self.out.warn,
        )
        with stack, stdout_kept_clean(self.out.stdout), shown as progress:
            yield progress


@contextmanager
def open_session(invocation: Invocation, schema: str, flags: Shared) -> Iterator[Session]:
    """Apply the shared options and merge the configuration.

    Args:
        invocation: What the process gives.
        schema: Name and version of the shape of the command's `data`.
        flags: The shared options as given.

    Raises:
        UsageError: If options contradict each other or a configuration file is wrong.
    """
    out = invocation.out
    out.schema = schema
    given = {
        "cache_dir": flags.cache_dir,
        "format": _format(flags),
        "color": flags.color,
        "config": flags.config,
        "github": flags.github,
        "log_file": flags.log_file,
        "progress": flags.progress,
    }
    config = load_config(given, invocation.environ, invocation.cwd)
    out.adopt(Format(config.get("format")), ColorChoice(config.get("color")), invocation.environ, quiet=flags.quiet)
    out.github = Github(GithubChoice(config.get("github")), invocation.environ)
    with _logging(out, flags.verbose, config.get("log_file")):
        yield Session(out, config, invocation.environ, flags, invocation.interactive)


def _format(flags: Shared) -> str | None:
    if flags.json and flags.format not in (None, Format.JSON):
        raise UsageError(f"--json and --format {flags.format} contradict each other", hint="Give one of them")
    if flags.json:
        return Format.JSON
    return flags.format or (Format.QUIET if flags.quiet else None)


def _opened(option: str, name: str, mode: str = "w") -> TextIO:
    """Open a file that an option names, for writing.

    Raises:
        UsageError: If it cannot be written.
    """
    try:
        return cast("TextIO", Path(name).expanduser().open(mode, encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{option} {name} cannot be written", error.strerror or "", path=name) from error


@contextmanager
def _logging(out: Output, verbose: int, log_file: str) -> Iterator[None]:
    """Send our own log to stderr, and everything down to debug to a file when one is wanted."""
    logger = logging.getLogger(_LOGGER)
    shown = logging.StreamHandler(out.stderr)
    shown.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
    shown.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    handlers = [shown]
    with ExitStack() as stack:
        if log_file:
            file = logging.StreamHandler(stack.enter_context(_opened("--log-file", log_file, "a")))
            file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            handlers.append(file)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(min(shown.level, logging.DEBUG if log_file else shown.level))
        for handler in handlers:
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        yield
