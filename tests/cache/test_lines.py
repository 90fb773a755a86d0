from hypothesis import given
from hypothesis import strategies as st

from precast.cache.lines import LineChange, line_changes, unified_patch
from precast.cache.masking import mask_source, source_lines

texts = st.lists(st.sampled_from(["a", "b", "c", "", "d"]), max_size=12).map("\n".join)


@given(texts, texts)
def test_swapped_texts_give_the_mirrored_changes(a: str, b: str) -> None:
    assert line_changes("m", b, a) == tuple(change.mirrored() for change in line_changes("m", a, b))


@given(texts, texts)
def test_the_changes_turn_one_text_into_the_other(a: str, b: str) -> None:
    lines_a, lines_b = source_lines(a), source_lines(b)
    changes = line_changes("m", a, b)
    gone = {change.line_a for change in changes} - {None}
    come = {change.line_b for change in changes} - {None}
    kept_a = [line for number, line in enumerate(lines_a, 1) if number not in gone]
    kept_b = [line for number, line in enumerate(lines_b, 1) if number not in come]
    assert kept_a == kept_b
    for change in changes:
        assert change.a == (lines_a[change.line_a - 1] if change.line_a else None)
        assert change.b == (lines_b[change.line_b - 1] if change.line_b else None)


def test_equal_texts_have_no_changes() -> None:
    assert line_changes("m", "a\nb\n", "a\nb\n") == ()


def test_one_changed_line_has_its_own_number_in_each_file() -> None:
    assert line_changes("m", "x\na\nb\n", "y\nz\nx\na\nc\n") == (
        LineChange("m", None, 1, None, "y"),
        LineChange("m", None, 2, None, "z"),
        LineChange("m", 3, 5, "b", "c"),
    )


def test_lines_are_counted_as_editors_do() -> None:
    (change,) = line_changes("m", "a\x0cb\u2028c\r\nold\r\n", "a\x0cb\u2028c\r\nnew\r\n")
    assert (change.line_a, change.line_b) == (2, 2)


def test_large_texts_are_compared_in_time() -> None:
    a = "\n".join(f"x_{number} = {number % 7}" for number in range(6000))
    changes = line_changes("m", a, a.replace("x_3000 = ", "x_3000 = 1 + "))
    assert [change.line_a for change in changes] == [3001]


def test_secrets_are_masked_in_changes_and_patches() -> None:
    old, new = 'TOKEN = "plain-old"\n', 'TOKEN = "plain-new"\n'
    shown = str(line_changes("m", old, new)) + "\n".join(unified_patch("m", old, new, "a", "b"))
    assert "plain" not in shown
    assert shown.count("sha256:") == 4


def test_a_stored_text_that_is_masked_differs_from_the_present_one_only_where_it_changed() -> None:
    now = 'def f(draft_tokens: int = 0, mode: str = "none"):\n    key = "hunter2"\n    return 1\n'
    stored = "\n".join(mask_source(now))
    assert line_changes("m", stored, now) == ()
    changed = now.replace("return 1", "return 2")
    assert [(line.line_a, line.a, line.b) for line in line_changes("m", stored, changed)] == [
        (3, "    return 1", "    return 2")
    ]
    assert [line.line_a for line in line_changes("m", stored, now.replace("hunter2", "hunter3"))] == [2]
