"""Every public function crossed with every state that a network can be in: it works, or one sentence says what does."""

import copy
from functools import cache

import pytest
import torch
from tests.helpers.marks import slow
from tests.helpers.states import ACTIONS, IMAGES, REFUSED, STATES

import splinenets as sn


@cache
def network(state):
    torch.manual_seed(0)
    torch._dynamo.reset()
    return STATES[state]()


# tracing takes seconds; tests/test_compile.py and tests/test_frameworks.py have more of it
SLOW_STATES = ("deployed bf16", "deployed twice", "copied")
TRACED = {"compile": ("trained", "collapsed"), "torch.export": ("trained", "deployed int8")}
SEEN_COMPILED = ("call", "learn", "steer")


def takes_long(state, action):
    if state == "compiled":
        return action not in SEEN_COMPILED
    return state in SLOW_STATES or state not in TRACED.get(action, STATES)


CASES = [slow(s, a) if takes_long(s, a) else (s, a) for s in STATES for a in ACTIONS]


@pytest.mark.parametrize(("state", "action"), CASES)
def test_every_function_in_every_state(state, action):
    if state == "compiled" and action in ("compile", "torch.export", "copy", "save and load"):
        pytest.skip("of the network itself, which is another row")
    torch._dynamo.reset()
    net = network(state) if state == "compiled" else copy.deepcopy(network(state))
    complaint = REFUSED.get((action, state))
    if complaint is not None:
        with pytest.raises((ValueError, RuntimeError), match=complaint) as raised:
            ACTIONS[action](net)
        assert len(str(raised.value).splitlines()) == 1
        return
    result = ACTIONS[action](net)
    assert result is None or bool(result.isfinite().all())


def test_what_a_deployed_network_costs():
    """Less than what is trained, the same work, and fewer bytes in fewer bits."""
    whole, small = sn.cost(network("trained"), IMAGES[:1]), sn.cost(network("deployed"), IMAGES[:1])
    assert whole.macs == small.macs
    assert small.trained < whole.trained
    sizes = [sn.cost(network(s), IMAGES[:1]).bytes_read for s in ("deployed", "deployed bf16", "deployed int8")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
