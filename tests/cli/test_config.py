"""Configuration is merged in one order, and every value says where it came from."""

from pathlib import Path

import pytest

from precast.cli.config import KNOWN, load_config
from precast.cli.config_files import project_file, user_file
from precast.errors import ConfigKeyError, ConfigValueError


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A project folder and an environment with a user file that sets everything lowest."""
    _write(tmp_path / "xdg/precast/config.toml", 'format = "tsv"\ncolor = "never"\nprogress = "none"\n')
    (tmp_path / "project/deep").mkdir(parents=True)
    return tmp_path / "project", {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}


def test_flag_goes_before_environment_before_project_before_user_before_default(
    places: tuple[Path, dict[str, str]],
) -> None:
    project, environ = places
    _write(project / "precast.toml", 'format = "quiet"\ncolor = "always"\n')
    config = load_config({"format": "json"}, {**environ, "PRECAST_FORMAT": "human"}, project / "deep")
    assert (config.values["format"].value, config.values["format"].origin) == ("json", "flag")
    config = load_config({}, {**environ, "PRECAST_FORMAT": "human"}, project / "deep")
    found = {key: (value.value, value.origin) for key, value in config.values.items()}
    assert found == {
        "cache_dir": ("", "default"),
        "format": ("human", "environment"),
        "color": ("always", "project"),
        "github": ("auto", "default"),
        "progress": ("none", "user"),
        "remote": ("", "default"),
        "lock_timeout": ("", "default"),
        "log_file": ("", "default"),
    }
    assert config.values["color"].source == str(project / "precast.toml")
    assert config.values["format"].source == "PRECAST_FORMAT"


def test_the_nearest_parent_with_a_configuration_wins(places: tuple[Path, dict[str, str]]) -> None:
    project, environ = places
    _write(project / "precast.toml", 'color = "always"\n')
    _write(project / "deep/pyproject.toml", '[project]\nname = "other"\n')
    assert load_config({}, environ, project / "deep").get("color") == "always"
    _write(project / "deep/pyproject.toml", '[tool.precast]\ncolor = "auto"\n')
    assert load_config({}, environ, project / "deep").get("color") == "auto"


def test_our_own_file_goes_before_pyproject_in_one_folder(tmp_path: Path) -> None:
    _write(tmp_path / "pyproject.toml", '[tool.precast]\ncolor = "auto"\n')
    own = _write(tmp_path / "precast.toml", 'color = "never"\n')
    found = project_file(tmp_path)
    assert found is not None
    assert found.path == own


def test_a_broken_pyproject_that_is_not_ours_does_no_harm(tmp_path: Path) -> None:
    _write(tmp_path / "a/pyproject.toml", "[broken")
    assert project_file(tmp_path / "a") is None


def test_a_broken_file_of_ours_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "precast.toml", "cache_dir =")
    with pytest.raises(ConfigValueError) as caught:
        project_file(tmp_path)
    assert caught.value.path == str(path)


def test_the_user_file_is_found_below_home_without_xdg(tmp_path: Path) -> None:
    _write(tmp_path / ".config/precast/config.toml", 'color = "never"\n')
    assert user_file({"HOME": str(tmp_path)}) is not None
    assert user_file({}) is None


def test_an_explicit_file_stands_in_for_the_project_file(places: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    project, environ = places
    _write(project / "precast.toml", 'color = "always"\n')
    other = _write(tmp_path / "other.toml", 'log_file = "run.log"\n')
    by_flag = load_config({"config": str(other)}, environ, project)
    by_variable = load_config({}, {**environ, "PRECAST_CONFIG": str(other)}, project)
    assert by_flag.get("color") == by_variable.get("color") == "never"
    assert by_flag.get("log_file") == str(tmp_path / "run.log")


def test_an_explicit_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigValueError, match=r"Cannot read .*absent.toml"):
        load_config({"config": str(tmp_path / "absent.toml")}, {}, tmp_path)


def test_a_relative_folder_belongs_to_the_file_that_names_it(tmp_path: Path) -> None:
    _write(tmp_path / "precast.toml", 'cache_dir = "store"\n')
    (tmp_path / "sub").mkdir()
    assert load_config({}, {}, tmp_path / "sub").get("cache_dir") == str(tmp_path / "store")


def test_all_unknown_keys_are_named_at_once_with_suggestions(tmp_path: Path) -> None:
    _write(tmp_path / "precast.toml", 'cahce_dir = "x"\nzzz = 1\n[settings]\npaylod = "aoti"\n')
    with pytest.raises(ConfigKeyError) as caught:
        load_config({}, {}, tmp_path)
    assert caught.value.why == (
        "cahce_dir, did you mean cache_dir?; zzz; settings.paylod, did you mean settings.payload?"
    )


@pytest.mark.parametrize("text", ['format = "xml"', "format = 3", "settings = 3"])
def test_a_value_that_is_not_allowed_names_its_file(tmp_path: Path, text: str) -> None:
    path = _write(tmp_path / "precast.toml", text)
    with pytest.raises(ConfigValueError) as caught:
        load_config({}, {}, tmp_path)
    assert str(path) in f"{caught.value.what} {caught.value.why}"


def test_settings_of_the_project_go_before_those_of_the_user(places: tuple[Path, dict[str, str]]) -> None:
    project, environ = places
    user = _write(Path(environ["XDG_CONFIG_HOME"]) / "precast/config.toml", '[settings]\njobs = 1\npayload = "aoti"\n')
    own = _write(project / "precast.toml", "[settings]\njobs = 2\n")
    config = load_config({}, environ, project)
    assert config.settings == {"jobs": 2, "payload": "aoti"}
    assert config.sources == {"jobs": str(own), "payload": str(user)}


def test_without_a_working_folder_there_is_no_project_file() -> None:
    assert load_config({}, {}, None).files == ()


def test_every_known_value_has_a_default_that_it_allows() -> None:
    assert all(known.default in known.choices for known in KNOWN if known.choices)
