"""Command lines, called in this process."""

import contextlib
import io

import pytest

from splinenets.cli import main


def call(*arguments):
    """Exit code, standard output and error of a command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    return stopped.value.code or 0, out.getvalue(), err.getvalue()


def refused(words, complaint, **places):
    """One sentence says what was wrong; places such as {run} are filled in."""
    code, _, err = call(*(word.format(**places) for word in words))
    assert code == 2
    assert complaint in err
    assert "Traceback" not in err
