import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.cache.canonical import sha256
from precast.cache.environment import environment_factors, ignored_variables, variable_factor
from precast.cache.factors import Factor
from precast.cache.masking import is_secret, is_secret_variable, mask_source, public_value, seal, source_lines

SECRET = "hunter2-very-secret"
SHOWN = f"sha256:{sha256(SECRET.encode())[:8]}"
NAMES = ("HF_TOKEN", "my_secret", "DB_PASSWORD", "API_KEY", "AWS_CREDENTIALS", "BASIC_AUTH")


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_variable_gets_into_a_factor_as_a_full_digest_only(name: str) -> None:
    factor = variable_factor(name, {name: SECRET})
    assert factor == Factor("env", name, f"sha256:{sha256(SECRET.encode())}")
    assert public_value("env", name, factor.value) == SHOWN
    assert public_value("env", name, SECRET) == SHOWN


def test_a_secret_that_the_register_counts_is_sealed_too() -> None:
    name = "TORCHINDUCTOR_API_TOKEN"
    (factor,) = environment_factors({name: SECRET})
    assert SECRET not in str(factor)


def test_a_variable_that_is_not_set_has_no_digest() -> None:
    assert variable_factor("API_KEY", {}).value is None
    assert public_value("env", "API_KEY", None) is None


def test_a_secret_in_another_folder_is_the_same_secret() -> None:
    values = {variable_factor("KEY_FILE", {"KEY_FILE": f"{folder}/key.pem"}).value for folder in ("/a", "/b/c")}
    assert values == {seal("key.pem")}


@pytest.mark.parametrize("name", ["SHOP_MODE", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_COMPILE_DISABLE", "CC"])
def test_other_variables_stay_readable(name: str) -> None:
    assert not is_secret_variable(name)
    assert variable_factor(name, {name: "x"}).value == "x"


@given(st.text())
def test_sealing_twice_changes_nothing(text: str) -> None:
    assert seal(seal(text)) == seal(text)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("model.hf_token", "x", True),
        ("model.apiKey", "x", True),
        ("model.db.password", 1234, True),
        ("model.num_key_value_heads", 8, False),
        ("settings.max_num_batched_tokens", 8192, False),
        ("model.tokenizer", "llama", False),
        ("model.author", "me", False),
        ("model.use_secret_sauce", True, False),
    ],
)
def test_in_a_config_only_texts_under_secret_words_are_secrets(name: str, value: str | int, secret: bool) -> None:
    assert is_secret(name, value) is secret
    assert (public_value("config", name, value) != value) is secret


def test_secrets_deep_in_a_mapping_are_masked() -> None:
    shown = public_value("config", "model.hub", {"config": {"hf_token": SECRET, "layers": 4}})
    assert shown == {"config": {"hf_token": SHOWN, "layers": 4}}


SOURCES = [
    'TOKEN = "{}"',
    "api_key: str = '{}'",
    'os.environ["HF_TOKEN"] = "{}"',
    'connect(user="me", password="{}")',
    'settings = {{"auth": "{}", "layers": 4}}',
    'def load(path, *, secret="{}"): ...',
    'SECRET = (\n    "{}"\n    "more"\n)',
    'CREDENTIALS = """\n{}\n"""',
    '# TOKEN = "{}"',
    'TOKEN = "{}" +',
    'password = f"{}{{name}}"',
    'self.key = b"{}"',
]


@pytest.mark.parametrize("template", SOURCES)
def test_a_literal_assigned_to_a_secret_name_is_masked_and_lines_keep_their_numbers(template: str) -> None:
    text = f"first = 1\n{template.format(SECRET)}\nlast = 2"
    lines = mask_source(text)
    assert SECRET not in "\n".join(lines)
    assert "sha256:" in "\n".join(lines)
    assert len(lines) == len(source_lines(text))
    assert (lines[0], lines[-1]) == ("first = 1", "last = 2")


@pytest.mark.parametrize("template", SOURCES)
def test_a_masked_text_is_masked_no_further(template: str) -> None:
    once = mask_source(f"first = 1\n{template.format(SECRET)}\nlast = 2")
    assert mask_source("\n".join(once)) == once


def test_another_secret_gives_another_line() -> None:
    assert mask_source('TOKEN = "a"') != mask_source('TOKEN = "b"')


CODE = """class Attention:
    def forward(self, key, value):
        key_states = self.k_proj(key)
        heads = num_key_value_heads = 8
        tokenizer = "llama"
        return key_states, {"mode": "fast"}, key == "x"
"""


def test_code_without_secrets_is_left_as_it_is() -> None:
    assert mask_source(CODE) == CODE.split("\n")


@given(st.text(st.sampled_from("TOKENkey=:\"'#()[]{},.\n\r \\f0"), max_size=60))
def test_any_text_keeps_its_number_of_lines(text: str) -> None:
    assert len(mask_source(text)) == len(re.split(r"\r\n|\r|\n", text))


def test_the_variables_that_are_left_out_on_purpose_are_named() -> None:
    environ = {"HOME": "/a", "XDG_CACHE_HOME": "/c", "TMPDIR": "/t", "MASTER_PORT": "1", "RANK": "0", "SHOP_MODE": "x"}
    environ |= {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "PYTHONHASHSEED": "3", "CUDA_VISIBLE_DEVICES": "0"}
    assert ignored_variables(environ) == (
        "CUDA_VISIBLE_DEVICES",
        "HOME",
        "MASTER_PORT",
        "PYTHONHASHSEED",
        "RANK",
        "TMPDIR",
        "XDG_CACHE_HOME",
    )
