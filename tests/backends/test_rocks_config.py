"""rocksdict's own file: what kvemb has it say, and nothing else."""

from __future__ import annotations

import pytest

from kvemb.backends.rocks_config import NAME, check_config
from kvemb.errors import Corruption


@pytest.mark.parametrize("text", ['{"raw_mode":true,"prefix_extractors":{}}', None])
def test_what_kvemb_writes_is_accepted_and_so_is_no_file(tmp_path, text):
    if text is not None:
        (tmp_path / NAME).write_text(text)
    check_config(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "7", "[", "[" * 4000, '{"raw_mode":1,"prefix_extractors":{}}', "\xff"),
        *('{"raw_mode":false,"prefix_extractors":{}}', '{"raw_mode":true,"prefix_extractors":{"a":1}}'),
    ],
)
def test_all_else_is_named_as_damage(tmp_path, text):
    (tmp_path / NAME).write_text(text, encoding="latin-1")
    with pytest.raises(Corruption, match=rf"{NAME} is damaged: .*; restore"):
        check_config(tmp_path)
