"""Two exchanges in one copy no model: not where their messages are joined, and not where their answers are divided."""

import tracemalloc

import numpy as np
from flwr.app import RecordDict
from flwr.supercore.task_identity import TaskIdentity

from strategies.exchange import Exchange
from strategies.joint_exchange import MEASURED, JointMessages, join_answers
from strategies.messages import (
    ARRAYS,
    CONFIG,
    MEASURE,
    TRAIN,
    VECTOR,
    compose,
    json_record,
    model_record,
    told_values,
    vector_of,
)

MODEL = np.arange(2**20, dtype=np.float32)
ASKED = {"forget": {}, "samples": 5}


def joint(of_work: np.ndarray, of_measurement: np.ndarray) -> JointMessages:
    """One client is asked for both."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    return JointMessages(
        work={"0": compose(1, TRAIN, 3, {}, model_record(of_work))},
        measurement={"0": compose(1, MEASURE, 3, ASKED, model_record(of_measurement))},
    )


def test_neither_side_copies_the_model_or_the_answer() -> None:
    """An answer's numbers may lie in a file, of each of many clients; bytes of Flower's would lie in memory."""
    trained = MODEL + 1
    tracemalloc.start()
    try:
        both = joint(MODEL, MODEL)
        assert both.is_possible
        told = {"num_examples": 4}
        answer = join_answers(
            RecordDict({ARRAYS: model_record(trained), CONFIG: json_record(told)}),
            RecordDict({ARRAYS: model_record(np.zeros(3)), CONFIG: json_record({"seen": 1})}),
            seconds=0.5,
        )
        message = both.messages["0"]
        message.content = answer
        values = told_values(answer)
        work, measured = both.separate(Exchange(messages={"0": message}, values={"0": values}))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert MEASURED in values
    assert not work.failures
    assert not measured.failures
    assert np.shares_memory(vector_of(work.replies["0"][ARRAYS]), trained)
    assert len(vector_of(measured.replies["0"][ARRAYS])) == 3
    assert most < MODEL.nbytes / 4


def test_two_exchanges_are_one_only_where_the_model_is_the_same_to_the_bit() -> None:
    """Also of two arrays of the same bits, and of a number that is none."""
    odd, other = MODEL.copy(), MODEL.copy()
    odd[-1], other[-1] = np.nan, 1.0
    assert joint(odd, odd.copy()).is_possible
    assert not joint(MODEL, other).is_possible
    assert not joint(MODEL, MODEL.astype(np.float64)).is_possible
    assert not joint(MODEL, MODEL[:-1]).is_possible
    assert VECTOR in joint(MODEL, MODEL).work["0"].content[ARRAYS]
