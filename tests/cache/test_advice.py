import pytest

from precast.cache.advice import advise
from precast.cache.canonical import Json
from precast.cache.diff import Change, LineChange, Side
from precast.cache.factors import GROUPS, Factor
from precast.cache.masking import seal

ADVICE = [
    ("env", "CC", "gcc 12", "gcc", "Set CC='gcc 12'"),
    ("env", "CC", None, "gcc", "Unset CC"),
    ("env", "API_KEY", "sha256:12345678", None, "Set API_KEY back to the value with the digest sha256:12345678"),
    ("config", "settings.payload", "aoti", "inductor", "Pass --payload aoti"),
    ("config", "settings.max_num_batched_tokens", 8192, 1, "Pass --max-num-batched-tokens 8192"),
    ("config", "settings.compile_sizes", [1, 2], [], "Pass --compile-sizes 1,2"),
    ("config", "settings.compile_sizes", [], [1], "Leave out --compile-sizes"),
    ("config", "settings.splitting_ops", ["a::b", "c::d"], None, "Pass --splitting-op a::b --splitting-op c::d"),
    ("config", "settings.inductor_config.freezing", True, None, "Pass --inductor freezing=true"),
    ("config", "model.name", "a b", "c", "Pass --set name='a b'"),
    ("config", "model.heads", None, 4, "Leave out --set heads, or take it out of config.json"),
    ("config", "model.alibi.factor", None, 4, "Leave out --set alibi, or take it out of config.json"),
    ("config", "model.rope.factor", 2, 4, """Pass --set rope='{"factor": 2, "type": "yarn"}'"""),
    ("config", "model.rope.base", None, 4, """Pass --set rope='{"factor": 2, "type": "yarn"}'"""),
    ("config", "model.window", None, 4, "Pass --set window=null"),
    (
        "config",
        "model.hub.api_key",
        "sha256:12345678",
        None,
        "Pass the value of hub that has the digest sha256:12345678",
    ),
    ("config", "model.set.width", "4", 4, """Pass --set width='"4"'"""),
    ("config", "model.set.heads", None, 4, "Leave out --set heads"),
    ("config", "model.factory", "shop.model:tiny", "shop.model:large", "Name the factory shop.model:tiny"),
    ("config", "model.factory", None, "shop.model:large", "Name the model's config folder"),
    ("config", "signature.x", ["f", [1]], None, 'Give the input `x` back its shape and dtype: ["f", [1]]'),
    ("code", "module:shop", "ab", "cd", "Revert shop/__init__.py (module shop) to the content with the digest ab"),
    ("code", "module:shop.model", "ab", None, "Bring back shop/model.py (module shop.model)"),
    ("code", "data:shop/table.json", "ab", "cd", "Restore the file shop/table.json"),
    ("code", "distribution:tools.version", "1.2", "1.3", "Install tools==1.2"),
    (
        "code",
        "distribution:tools.digest",
        "a",
        "b",
        "Install tools again: its version is the same, its files are others",
    ),
    ("code", "distribution:tools.version", None, "1.3", "Uninstall tools"),
    ("compiler", "torch.version", "2.13.0", "2.14.0", "Install torch==2.13.0"),
    ("compiler", "triton.version", None, "3.6.0", "Uninstall triton"),
    ("compiler", "python", "3.11", "3.12", "Use Python 3.11"),
    ("compiler", "payload", "aoti", "inductor", "Pass --payload aoti"),
    ("compiler", "target.device", "cuda", "cpu", "Pass --target cuda"),
    ("compiler", "target.arch", "sm_90", "sm_80", "Compile for sm_90"),
    (
        "compiler",
        "target.facts.multi_processor_count",
        132,
        114,
        "Compile for a GPU whose multi_processor_count is 132",
    ),
    (
        "compiler",
        "target.facts.warp_size",
        None,
        32,
        "Compile again: the entry does not say for which GPU of its architecture it is",
    ),
    ("compiler", "inductor_config.freezing", None, True, "Leave out --inductor freezing"),
    ("compiler", "pass:fuse", "ab", "cd", "Bring compiler/pass:fuse back to ab"),
    ("graph", "graph", "ab", None, "Bring graph/graph back to ab"),
]


ENTRY = Side(
    "a",
    "",
    (
        Factor("code", "module:shop.model", "ab"),
        Factor("config", "model.name", "a b"),
        Factor("config", "model.rope", {"type": "yarn", "factor": 2}),
        Factor("config", "model.window", None),
        Factor("config", "model.hub", {"api_key": seal("hunter2")}),
        Factor("config", "model.set.width", "4"),
    ),
)


@pytest.mark.parametrize(("group", "name", "old", "new", "line"), ADVICE, ids=[item[4] for item in ADVICE])
def test_each_kind_of_change_has_its_own_advice(group: str, name: str, old: Json, new: Json, line: str) -> None:
    kind = "added" if old is None else "removed" if new is None else "changed"
    assert group in GROUPS
    assert advise([Change(group, name, kind, old, new, "breaking", "")] * 2, ENTRY) == (line,)


@pytest.mark.parametrize(
    ("count", "rest", "numbers"),
    [
        (1, 0, "line 1"),
        (3, 0, "lines 1, 2, 3"),
        (8, 0, "lines 1, 2, 3, 4, 5 and 3 more"),
        (20, 30, "lines 1, 2, 3, 4, 5 and 45 more"),
    ],
)
def test_the_first_changed_lines_are_named_and_the_rest_counted(count: int, rest: int, numbers: str) -> None:
    lines = tuple(LineChange("m", number, number, "a", "b") for number in range(1, count + 1))
    change = Change("code", "module:m", "changed", "ab", "cd", "breaking", "", lines, rest)
    assert advise([change], Side("a", "", ())) == (f"Revert m.py {numbers} (module m)",)
