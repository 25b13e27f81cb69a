"""`--json FILE` and `--json -`, which every command shares."""

import json

import pytest

from samebits.cli import _json_output
from samebits.errors import InvalidArgumentError


def test_a_missing_folder_is_refused_before_anything_is_done(tmp_path):
    """The error has the option, the value and the folder; a right one, `-` and no option pass (control)."""
    file = str(tmp_path / "none" / "out.json")
    with pytest.raises(InvalidArgumentError, match=f"--json {file}: there is no folder {tmp_path / 'none'}"):
        _json_output.check_json_file(file)
    for right in (str(tmp_path / "out.json"), "-", None):
        _json_output.check_json_file(right)


def test_a_file_and_standard_output_get_the_same_text(tmp_path, capsys):
    """Both hold the content as JSON with one line's end; without the option nothing is written (control)."""
    content = {"schema": "test/1", "values": [1, 2]}
    _json_output.write_json(str(tmp_path / "out.json"), content)
    assert capsys.readouterr().out == ""
    _json_output.write_json("-", json.dumps(content, indent=2))
    printed = capsys.readouterr().out
    assert json.loads(printed) == content
    assert printed == (tmp_path / "out.json").read_text() and printed.endswith("}\n")
    _json_output.write_json(None, content)
    assert capsys.readouterr().out == ""


def test_what_is_printed_beside_json_goes_to_standard_error(capsys):
    """With `-` a print in the block is on standard error; with a file it is where it always was (control)."""
    for option, streams in (("-", ("", "row\n")), ("out.json", ("row\n", ""))):
        with _json_output.output_kept_for(option):
            print("row")
        assert tuple(capsys.readouterr()) == streams
