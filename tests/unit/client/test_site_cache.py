"""The data that a site's process has loaded, over the messages of a session."""

from pathlib import Path

from client.memory import DirectoryMemory
from client.site_work import SiteCache, SiteLoader
from strategies import built_in
from unlearning.pseudonyms import SubjectKeys, keyed_id, reveal
from unlearning.requests import NOTHING, Forget

CONFIG = {"dataset": "digits", "model": "logistic", "num-clients": 3}


def test_a_sample_to_leave_out_is_found_by_a_key_that_came_after_the_data_was_loaded(tmp_path: Path) -> None:
    """The first request for a sample of a site comes while its session goes on, and its key with it."""
    cache, memory = SiteCache(SiteLoader(built_in.SOURCE, built_in.load_site)), DirectoryMemory(tmp_path)
    settings, node = built_in.SOURCE.read(CONFIG), {"partition-id": 0, "num-partitions": 3}
    loaded = cache.load(settings, node, memory, NOTHING)
    sample, key = str(loaded.train.ids[0]), SubjectKeys(bytes(32)).of("0")
    memory.add_tombstones(NOTHING, key)
    withheld = Forget(sample_ids=frozenset({keyed_id(key, sample)}))
    found = cache.load(settings, node, memory, NOTHING)
    assert reveal(withheld, found.names).sample_ids == {sample}
    assert cache.load(settings, node, memory, NOTHING) is found
