"""Two tables and a text corpus: shapes, fixed test sets, and files that are not what they must be."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.tasks import data_directory
from unlearning.errors import DataError
from unlearning.tasks import TaskSettings, load_server_test, load_site
from unlearning.tasks.tabular import NUM_WORDS, TOPICS, read_breast_cancer, read_covertype, read_reuters


def test_the_embedded_table_is_standardised_and_keeps_a_fifth_for_the_server() -> None:
    """569 tumours in all; no id is in both parts, and either part has both classes in the whole's share."""
    settings = TaskSettings(dataset="breast-cancer", model="mlp", num_clients=1)
    train, test = load_site(settings, 0).train, load_server_test(settings)
    assert test is not None
    assert (len(train), len(test)) == (454, 115)
    assert not {*train.ids.tolist()} & {*test.ids.tolist()}
    assert train.targets.float().mean().item() == pytest.approx(0.627, abs=0.01)
    both = np.concatenate([read_breast_cancer(train=part).inputs for part in (True, False)])
    assert both.mean(axis=0) == pytest.approx(0, abs=1e-6)
    assert both.std(axis=0) == pytest.approx(1, abs=1e-6)


def places(directory: Path, last: str = "7") -> Path:
    rows = [
        [*range(10 * number, 10 * number + 10), *[number % 2] * 44, 1 + number % 6] for number in range(12)
    ]
    lines = "".join(",".join(map(str, row)) + "\n" for row in rows)
    (directory / "covtype.data.gz").write_bytes(
        gzip.compress(lines.encode() + f"{'0,' * 54}{last}\n".encode())
    )
    return directory


def test_covertype_is_read_packed_as_it_comes(tmp_path: Path) -> None:
    """Ten standardised measurements, 44 yes or no; classes 1 to 7 are 0 to 6, the first of each is a test example."""
    train, test = (read_covertype(places(tmp_path), train=part) for part in (True, False))
    assert (train.inputs.shape, test.inputs.shape) == ((6, 54), (7, 54))
    assert sorted(test.targets.tolist()) == [0, 1, 2, 3, 4, 5, 6]
    assert {*np.unique(train.inputs[:, 10:])} == {0, 1}
    both = np.concatenate([train.inputs, test.inputs])
    assert both[:, :10].std(axis=0) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("content", [None, "8", "x"])
def test_a_missing_or_wrong_table_is_refused(tmp_path: Path, content: str | None) -> None:
    """Not there, a class that there is not, no number."""
    with pytest.raises(DataError, match=r"covtype\.data"):
        read_covertype(tmp_path if content is None else places(tmp_path, content), train=True)


def test_stories_are_counts_of_hashed_words_of_length_one(tmp_path: Path) -> None:
    """The order of words does not matter; a topic that is not one of the eight is refused."""
    folder = tmp_path / "reuters-r8"
    folder.mkdir()
    head = "Category\tText\nd\tstring\nclass\t\n\n"
    (folder / "reuters-r8-train.tab").write_text(f"{head}earn\tnet profit rose\ntrade\trose profit net\n")
    found = read_reuters(tmp_path, train=True)
    assert found.inputs.shape == (2, NUM_WORDS)
    assert found.inputs[0].tolist() == found.inputs[1].tolist()
    assert sorted(found.inputs[0])[-3:] == pytest.approx([3**-0.5] * 3)
    assert [TOPICS[label] for label in found.targets] == ["earn", "trade"]
    (folder / "reuters-r8-test.tab").write_text(f"{head}sport\tnine wins\n")
    with pytest.raises(DataError, match=r"reuters-r8-test\.tab"):
        read_reuters(tmp_path, train=False)


def test_the_whole_corpus_is_in_its_usual_split() -> None:
    """5,485 and 2,189 stories, where the files are."""
    directory = data_directory("reuters-r8")
    assert [len(read_reuters(directory, train=part)) for part in (True, False)] == [5_485, 2_189]
