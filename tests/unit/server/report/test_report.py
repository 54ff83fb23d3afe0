"""The report of a deletion: what it says, what it must not say, and how it is written."""

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from server.report import canonical_json, write_report
from server.report.html_page import render_page
from server.report.plots import BLUE, GREEN, ORANGE, PURPLE
from server.report.report_data import (
    ExchangeCost,
    FederationSummary,
    FormulaCost,
    RecoveryPhase,
    ReportData,
    ReportedRequest,
    ReportEvent,
    UnlearningPhase,
)
from server.report.words import FIGURE_NAMES, describe_measurements, duration, gaps, moment, share, size
from unlearning.outcomes import Guarantee
from unlearning.runtime.json_codec import from_plain
from unlearning.verification.difference.holders import Deletion, Layer, TargetSends, reveals
from unlearning.verification.figures import AttackFigure, Estimate, Measurement, SetMeasure
from unlearning.verification.optional_attacks import ATTACKS_ON_DEMAND
from unlearning.verification.standard_attacks import ATTACKS

VOID = {"meta", "br", "link", "img", "hr", "input"}


def measurement(stage, number, test, forgotten, yeom, confidence, power=0.7, notes=()) -> Measurement:
    return Measurement(
        stage=stage,
        round=number,
        test=SetMeasure(360, 0.5, test),
        retained=SetMeasure(1150, 0.25, 0.96),
        forgotten=SetMeasure(287, 0.75, forgotten),
        attacks={"yeom": yeom, "confidence": confidence, "confidence_balanced_accuracy": power},
        figures={
            "yeom": AttackFigure(
                called=Estimate(yeom, yeom - 0.01, yeom + 0.02),
                auc=Estimate(0.5 + yeom / 2, 0.48 + yeom / 2, 0.53 + yeom / 2),
                tpr_reason="not measured: fewer than 100 examples that were never trained on",
                num_forgotten=287,
                num_test=90,
            ),
            "modified-entropy": AttackFigure(
                auc=Estimate(0.6, 0.55, 0.65),
                tpr=Estimate(0.032, 0.011, 0.064),
                num_forgotten=287,
                num_test=360,
            ),
        },
        not_measured=tuple(notes),
    )


FULL = ReportData(
    request=ReportedRequest(
        id="request-7",
        target="client hospital-3",
        granularity="client",
        client_id="hospital-3",
        method="puf-special",
        method_title="PUF-Special",
        method_source="a paper",
        parameters={"unlearning_rate": 2.0},
        submitted_by="operator",
        created_at="2025-11-21T10:15:02+00:00",
    ),
    federation=FederationSummary(
        name="hospitals", task="digits", clients_known=("a", "hospital-3"), clients_retained=("a",)
    ),
    model_hash_before="b" * 64,
    model_hash_after_unlearning="c" * 64,
    model_hash_after="d" * 64,
    unlearning=UnlearningPhase(
        rounds=1, participants=("hospital-3",), seconds=8.4, bytes_sent=2_600_000, bytes_received=1_300_000
    ),
    recovery=RecoveryPhase(
        rounds=2,
        stop_reason="the target was reached",
        target_score=0.9,
        seconds=64.2,
        bytes_sent=31_200_000,
        bytes_received=15_600_000,
    ),
    formulas=(
        FormulaCost(
            phase="unlearning",
            formula_bytes=2_600_000,
            measured_bytes=3_900_000,
            ratio=1.5,
            explanation="1,300,000 bytes for each message",
            formula_flops=3.1e9,
            storage_bytes=1_300_000,
        ),
    ),
    measuring=ExchangeCost(seconds=22.0, bytes_sent=13_000_000, bytes_received=130_000),
    measurements=(
        measurement("before", 12, 0.912, 0.971, 0.613, 0.654),
        measurement("unlearned", 13, 0.621, 0.182, 0.031, 0.121),
        measurement("recovery", 14, 0.811, 0.402, 0.071, 0.301),
        measurement("recovery", 15, 0.905, 0.712, 0.124, 0.432),
    ),
    events=(ReportEvent(time="2025-11-21T10:15:04+00:00", move="received → scheduled", reason="due"),),
    reveals=reveals(
        Deletion(
            sends=TargetSends.FORGOTTEN,
            layer=Layer.WHOLE,
            after_unlearning=Estimate(0.81, 0.7, 0.9),
            at_end=Estimate(0.612, 0.57, 0.655),
        )
    ),
    software={"torch": "2.15"},
    seeds={"federation": 0},
    written_at="2025-11-21T10:17:24+00:00",
)

BARE = ReportData(
    request=ReportedRequest(
        id="8",
        target="2 samples of client 3",
        granularity="sample",
        method="puf-special",
        submitted_by="",
        created_at="",
    ),
    federation=FederationSummary(name="f"),
    unlearning=UnlearningPhase(rounds=1),
    recovery=RecoveryPhase(rounds=0),
)


class Page(HTMLParser):
    """Collects a page's text, tags and addresses, and checks that tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.addresses, self.ids = "", [], [], []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name.split(":")[-1] in {"href", "src", "action"}]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not self._open or self._open[-1] != "style":
            self.text += data


@cache
def page_of_one_of_two(full: bool) -> str:
    return render_page(FULL if full else BARE)


def page_of(data: ReportData) -> str:
    """The page, drawn once of those that many tests read."""
    return page_of_one_of_two(data is FULL) if data is FULL or data is BARE else render_page(data)


def words_of(data: ReportData) -> str:
    return re.sub(r"\s+", " ", Page(page_of(data)).text)


def test_the_json_is_canonical(tmp_path):
    """Sorted keys, real characters instead of escapes, one newline at the end; equal data, equal bytes."""
    path, _ = write_report(tmp_path, FULL)
    text = path.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=2, ensure_ascii=False) + "\n"
    assert "received → scheduled" in text
    assert text == canonical_json(replace(FULL))


def test_the_json_holds_every_measurement():
    """A reader gets back exactly what was measured."""
    value = json.loads(canonical_json(FULL))
    assert tuple(from_plain(Measurement, item) for item in value["measurements"]) == FULL.measurements
    assert value["schema_version"] == 1


def test_a_number_that_is_not_finite_becomes_null():
    """JSON has no infinity; the report stays readable for any parser."""
    exploded = replace(FULL, recovery=replace(FULL.recovery, target_score=float("inf")))
    assert json.loads(canonical_json(exploded))["recovery"]["target_score"] is None


def test_every_field_of_the_json_is_documented(request):
    """docs/reference-report.md names each key, so that the schema cannot drift away from it."""

    def keys(value):
        for name, item in value.items():
            yield name
            inner = item if isinstance(item, list) else [item]
            for part in inner:
                if isinstance(part, dict) and name not in {"parameters", "software", "seeds", "attacks"}:
                    yield from keys(part)

    documentation = (request.config.rootpath / "docs" / "reference-report.md").read_text(encoding="utf-8")
    undocumented = {key for key in keys(json.loads(canonical_json(FULL))) if f"`{key}`" not in documentation}
    assert undocumented == set()


def test_the_page_says_what_the_deletion_reveals():
    """Each holder with the figure of the model that it saw last, and what is arithmetic."""
    page = render_page(FULL)
    section = page[page.index("What the deletion reveals") :]
    assert "Measured: AUC 0.612 (0.570 to 0.655)" in section
    assert section.count("Measured: AUC 0.810 (0.700 to 0.900)") == 2
    assert "Of one record: its features and class, in closed form" in section
    assert "What the deletion reveals" not in render_page(BARE)


def test_writing_again_gives_the_same_bytes(tmp_path):
    """A report repeated after a crash is the same report, plots included."""
    first, second = (write_report(tmp_path / name, FULL) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_report_replaces_an_older_one_and_leaves_nothing_else(tmp_path):
    """No temporary file stays behind."""
    write_report(tmp_path, BARE)
    write_report(tmp_path, FULL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    assert json.loads((tmp_path / "report.json").read_text())["request"]["id"] == "request-7"


def test_a_write_that_fails_leaves_the_older_report_whole(tmp_path, monkeypatch):
    """A full disk at the last moment loses neither file nor leaves half of one."""
    write_report(tmp_path, BARE)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr("unlearning.runtime.durable_files.os.fsync", full_disk)
    with pytest.raises(OSError):  # noqa: PT011  the only one here
        write_report(tmp_path, FULL)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_page_needs_nothing_from_outside():
    """No script, no address but places in the page itself, and a policy that forbids the rest."""
    page = Page(page_of(FULL))
    assert not {"script", "link", "img", "iframe", "form"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    assert "default-src 'none'" in page_of(FULL)


def test_every_colour_but_those_of_series_is_set_for_light_and_dark():
    """Text, lines and grounds of the page and of its plots are variables; in print they are light."""
    page = render_page(FULL)
    style, _, body = page.partition("</style>")
    light, dark, rest = re.fullmatch(
        r"(?s).*?:root \{(.*?)\}\s*@media screen and \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\} \}(.*)",
        style,
    ).groups()
    assert re.findall(r"--[\w-]+", light) == re.findall(r"--[\w-]+", dark)
    assert re.findall(r"#[0-9a-fA-F]{3,6}\b", rest) == []
    series = {colour.casefold() for colour in (BLUE, ORANGE, GREEN, PURPLE)}
    drawn = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{3,6})', body))
    assert drawn <= series
    assert drawn


def test_no_two_parts_of_the_page_share_an_id():
    """Two plots in one page: a clip path of one must not cut another."""
    ids = Page(page_of(FULL)).ids
    assert len(ids) == len(set(ids)) > 0


EVIL = "<script>alert('x')</script>\"&'"


def test_what_a_user_wrote_is_shown_and_never_run():
    """Every text that comes from outside is escaped, in the text, in attributes and in the plots."""
    evil = replace(
        FULL,
        request=replace(
            FULL.request,
            id=EVIL,
            target=EVIL,
            client_id=EVIL,
            method=EVIL,
            method_title=EVIL,
            parameters={EVIL: EVIL},
            submitted_by=EVIL,
            created_at=EVIL,
            served_with=(EVIL,),
        ),
        federation=FederationSummary(
            name=EVIL, task=EVIL, score_name=EVIL, clients_known=(EVIL,), clients_retained=(EVIL,)
        ),
        model_hash_before=EVIL,
        recovery=replace(FULL.recovery, stop_reason=EVIL),
        events=(ReportEvent(time=EVIL, move=EVIL, reason=EVIL),),
        stop_rule=EVIL,
        exclusions_note=EVIL,
        not_measured=(EVIL,),
        software={EVIL: EVIL},
        measurements=tuple(replace(item, not_measured=(EVIL,)) for item in FULL.measurements),
    )
    text = render_page(evil)
    assert "<script" not in text.lower()
    assert EVIL in Page(text).text


@pytest.mark.parametrize(
    "sentence",
    [
        # The summary gives each attack its share now and before, with the final model's numbers first.
        "Test 1 (loss attack) recognises 12.4 % of the forgotten records as training data, 61.3 % before",
        "Test 2 (confidence attack) recognises 43.2 % of the forgotten records as training data, 65.4 % before",
        "accuracy on test data is 90.5 %, 91.2 % before",
        # The table has three columns: before, after unlearning, after the last of the recovery rounds.
        "Accuracy, forgotten data 97.1 %18.2 %71.2 %",
        "forgotten records recognised 61.3 %3.1 %12.4 %",
        # Each attack has its share, AUC and true positives with their bounds, of the first model and the final one.
        "Loss (Yeom) before 61.3 % (60.3 to 63.3)",
        "Loss (Yeom) after 12.4 % (11.4 to 14.4) – 0.562 (0.542 to 0.592) not measured: fewer than",
        "Modified entropy, one threshold per class after – – 0.600 (0.550 to 0.650) 3.2 % (1.1 to 6.4)",
        # The formula stands beside the measured bytes, with the ratio and why the two differ.
        "Unlearning 2.6 MB 3.9 MB 1.500 3.1e+09 1,300,000 bytes for each message",
    ],
)
def test_the_page_says(sentence):
    """What was measured, in words and in tables."""
    assert sentence in words_of(FULL)


@pytest.mark.parametrize("data", [FULL, BARE], ids=["full", "bare"])
def test_the_page_never_promises_that_data_are_forgotten(data):
    """The verdict is what attacks say; no sentence claims success."""
    text = words_of(data).lower()
    for promise in ("successfully", "has been forgotten", "is forgotten", "was forgotten", "were forgotten",
                    "no longer contains", "guarantee", "certified"):  # fmt: skip
        assert promise not in text
    assert "does not prove" in text


def test_the_page_opens_with_what_may_be_told_and_then_with_what_is_not_claimed():
    """Both come before any figure; the outcome has the number of records that were named."""
    text = words_of(BARE)
    told = text.index("We could not show that the model knows less about the records")
    assert (
        told
        < text.index("What is not claimed")
        < text.index("What was done")
        < text.index("Before and after")
    )
    five = replace(BARE, request=replace(BARE.request, num_samples=5))
    assert "knows less about these 5 records than before. They are not used any more." in words_of(five)


def test_a_share_of_few_records_is_said_as_a_number_of_them():
    """All five before and after; the interval says what five can tell."""
    figure = AttackFigure(called=Estimate(1.0, 0.57, 1.0), num_forgotten=5)
    before, after = (
        replace(measurement(stage, 1, 0.9, 0.9, 1.0, 0.5), figures={"yeom": figure})
        for stage in ("before", "recovery")
    )
    said = " ".join(describe_measurements(replace(FULL, measurements=(before, after))))
    assert (
        "Test 1 (loss attack) still recognises 5 of 5 forgotten records as training data, as it did before."
        in said
    )
    assert "With so few records (5) the true share may lie between 57 and 100" in said


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "reduced"),
        ({"is_exact": True}, "retrained"),
        ({"is_exact": True, "guarantee": Guarantee(1.0, 1e-5)}, "guaranteed"),
    ],
)
def test_the_outcome_is_what_is_proven_else_what_the_method_is_else_what_tests_say(changes, outcome):
    """The JSON has it; the page says the guarantee with its figures."""
    data = replace(FULL, **changes)
    assert json.loads(canonical_json(data))["outcome"] == outcome
    assert ("(ε = 1, δ = 1e-05)" in render_page(data)) == (outcome == "guaranteed")


@pytest.mark.parametrize(("power", "weak"), [(0.52, True), (0.7, False)])
def test_an_attack_without_power_is_called_weak(power, weak):
    """A low share from an attack that guesses must not reassure."""
    last = measurement("recovery", 15, 0.9, 0.7, 0.1, 0.1, power=power)
    sentences = " ".join(describe_measurements(replace(FULL, measurements=(FULL.measurements[0], last))))
    assert ("a coin toss here (right in 52 of 100 cases). Ignore its result." in sentences) == weak
    assert ("43.2" in words_of(replace(FULL, measurements=(FULL.measurements[0], last)))) is False


def test_every_attack_has_a_name_on_the_page():
    """A seventh attack would otherwise be measured and not shown."""
    assert set(FIGURE_NAMES) == {*ATTACKS, *ATTACKS_ON_DEMAND}


def test_the_verdict_compares_the_first_model_with_the_last():
    """Yeom's AUC fell from 0.81 to 0.56, both intervals apart; without that fall nothing is shown."""
    assert "Verdict: reduced." in words_of(FULL)
    same = replace(FULL, measurements=(FULL.measurements[0], replace(FULL.measurements[0], stage="recovery")))
    assert "Verdict: not shown." in words_of(same)
    value = json.loads(canonical_json(FULL))["attacks"]
    assert value["verdict"] == "reduced"
    assert value["before"]["yeom"]["called"]["value"] == 0.613
    assert value["after"]["yeom"]["called"]["value"] == 0.124
    assert json.loads(canonical_json(BARE))["attacks"]["verdict"] == "not shown"


def test_missing_numbers_are_called_missing():
    """Nothing measured: no zero, no plot, and each of the three stages is named as missing."""
    text = words_of(BARE)
    assert "closed formulas" not in text
    assert "nothing is known of the effect" in text
    assert "0.0 %" not in text
    assert "svg" not in Page(page_of(BARE)).tags
    assert [line.split(":")[0] for line in gaps(BARE)] == [
        "the model before the deletion",
        "the model right after unlearning",
        "the model after recovery",
    ]


@pytest.mark.parametrize("name", ["test", "retained", "forgotten"])
def test_a_page_can_lack_any_one_set(name):
    """A client offline or no test set leaves the other numbers standing."""
    lacking = replace(
        FULL, measurements=tuple(replace(item, **{name: None, "attacks": {}}) for item in FULL.measurements)
    )
    text = words_of(lacking)
    assert re.search(rf"Accuracy, {name} data ?not measured ?not measured ?not measured", text)
    assert "could not be run on the final model" in text


def test_without_recovery_the_unlearned_model_is_the_final_one():
    """The summary speaks of the model that was left behind."""
    short = replace(FULL, measurements=FULL.measurements[:2], recovery=RecoveryPhase(rounds=0))
    assert "recognises 3.1 % of the forgotten records as training data, 61.3 % before" in words_of(short)
    assert "the model after recovery: there was no recovery round" in gaps(short)


def test_the_title_and_a_model_that_needed_no_repair_are_said_in_the_readers_words():
    """Records and not samples; a share with the count behind it."""
    asked = replace(FULL.request, target="1,005 samples of client hospital-3")
    short = replace(
        FULL,
        request=asked,
        measurements=FULL.measurements[:2],
        recovery=RecoveryPhase(rounds=0, target_score=0.5),
    )
    said = render_page(short)
    assert said.count("Deletion report: 1,005 records of client hospital-3") == 2
    after = short.final()
    assert after is not None
    score = after.score("test")
    assert (
        f"is {100 * score:.1f}\u202f% ({round(100 * score)} of 100), and 50.0\u202f% (50 of 100) is required"
        in said
    )


def test_a_gap_at_every_stage_is_said_once():
    """Four stages with one gap are one line; a gap at one stage names it."""
    notes = [("everywhere",)] * 3 + [("everywhere", "here only")]
    data = replace(
        FULL,
        measurements=tuple(
            replace(item, not_measured=note) for item, note in zip(FULL.measurements, notes, strict=True)
        ),
    )
    assert gaps(data) == ["everywhere (at every stage)", "here only (after round 15)"]


def test_a_model_that_did_not_change_is_said_loudly():
    """Equal fingerprints before and after mean that nothing was unlearned."""
    same = replace(FULL, model_hash_after_unlearning=FULL.model_hash_before)
    assert "left the model as it was" in words_of(same)
    assert "left the model as it was" not in words_of(FULL)


def test_many_recovery_rounds_still_make_a_page():
    """Thirty rounds, one of them without retained data."""
    rounds = [measurement("recovery", 13 + k, 0.9, 0.6, 0.1, 0.2) for k in range(1, 31)]
    rounds[4] = replace(rounds[4], retained=None)
    data = replace(FULL, measurements=(*FULL.measurements[:2], *rounds))
    assert "after recovery43" in Page(page_of(data)).text.replace("\n", "")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (share(0.1249), "12.5 %"),
        (share(None), "not measured"),
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(45_200_000), "45.2 MB"),
        (size(None), "unknown"),
        (duration(8.44), "8.4 s"),
        (duration(185), "3 min 5 s"),
        (duration(7800), "2 h 10 min"),
        (duration(None), "unknown"),
        (moment("2025-11-21T10:15:02+00:00"), "21 November 2025, 10:15:02 UTC"),
        (moment("soon"), "soon"),
        (moment(""), "unknown"),
    ],
)
def test_numbers_are_written_for_people(shown, expected):
    """Units, a percent sign, and words where there is no number."""
    assert shown.replace("\u202f", " ") == expected
