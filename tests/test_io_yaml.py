"""Numbers and plain data in YAML and JSON: read, written, refused in one line."""

from __future__ import annotations

import re

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cojax.errors import InputError
from cojax.io import json_text
from cojax.io import yaml as text

numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(numbers)
def test_a_number_reads_back_bit_for_bit_under_yaml_1_1_and_1_2(x):
    word = f"a: {text.number(x)}\n"
    for value in (text.parse(word, "F")["a"], yaml.safe_load(word)["a"]):
        assert isinstance(value, float)
        assert np.float64(value).tobytes() == np.float64(x).tobytes()


@pytest.mark.parametrize("word", ["1e-8", "1.0e8", "1E+3", ".5", "-2.", "+1e-300"])
def test_numbers_of_yaml_1_2_are_numbers(word):
    assert text.parse(f"a: {word}", "F")["a"] == float(word)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | numbers | st.text("ab: #'\"\\n-é", max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_plain_data_reads_back(value):
    content = {"value": value, "rows": [[1.0, value], [2.0]]}
    assert text.parse(text.dump(content), "F") == content


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("a: !!python/object/apply:os.system [ls]", "line 1: expected plain data, got the tag"),
        ("a: !mine 3", "got the tag"),
        ("a: !!timestamp 2020-01-01", "got the tag"),
        ("a: &x [1]\nb: *x", "line 1: expected plain data, got an alias"),
        ("a: &a [*a]", "recursive"),
        ("a: [1,", "cut short"),
        ("a: 1\na: 2", "line 2: expected plain data, got the field 'a' twice"),
        ("1: 2", "not a word"),
        ("- 1", "expected a mapping of fields, got a list"),
        ("", "got nothing"),
        ("a: \x00", "expected YAML"),
        ("[" * 20_000, "expected YAML"),
        ("a: !!int x", "under the tag"),
        ("a: " + "9" * 5000, "line 1"),
    ],
)
def test_what_is_not_plain_yaml_gives_one_line(bad, said):
    with pytest.raises(InputError) as error:
        text.parse(bad, "F")
    assert str(error.value).startswith("F: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_every_number_reads_back():
    numbers = [np.inf, -np.inf, -0.0, 5e-324, 1e308, 10**400, -(2**63), 0.1, 1e-8]
    read = text.parse(text.dump({"numbers": numbers}), "x")["numbers"]
    assert [repr(number) for number in read] == [repr(number) for number in numbers]
    assert np.isnan(text.parse(text.dump({"x": np.nan}), "x")["x"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is the file cut short?"),
        (b'{"a": [1, 2', "is the file cut short?"),
        (b"[1]", "expected a mapping, got a list"),
        (b"\xff\xfe", "expected UTF-8 text"),
        (b"[" * 100_000, "expected JSON, got: RecursionError"),
        (None, "expected a file, got a folder"),
    ],
)
def test_unusable_json_is_one_line(content, words, tmp_path):
    file = tmp_path / "x.json"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        json_text.load(file, dict)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
