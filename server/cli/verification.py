"""`flower-unlearn verify-ledger`, `certificate-key`, `verify` and `timestamp`: the proofs of a deletion."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from server.certificate.document import Certificate, decode
from server.certificate.file_checks import (
    Check,
    Outcome,
    check_model,
    check_report,
    check_samples,
    check_signature,
    read_file,
)
from server.certificate.json_ld import as_json_ld
from server.certificate.keys import load_public_key, make_key_pair
from server.certificate.ledger_check import LedgerView, check_ledger
from server.certificate.timestamp import SUFFIX, TimestampAuthority, check_timestamp, stamp
from server.cli.connection import connection_of, refuse_password
from server.ledger import Ledger
from strategies.command_line import say, show_lines
from unlearning.errors import ConfigurationError, InvalidRequest


def certificate_key(
    directory: Annotated[Path, typer.Argument(help="Where the two files go, on the server.")],
) -> None:
    """Make the key pair that signs certificates of deletion."""
    private, public, identity = make_key_pair(directory)
    say(f"{private}: for the run's setting certificate-key; it stays on the server.")
    say(f"{public}: for those who check certificates. Hand it over yourself, not through this server.")
    found = {"private_key": str(private), "public_key": str(public), "key_id": identity}
    show_lines((f"key id: {identity}",), data=found)


def verify(
    ctx: typer.Context,
    certificate: Annotated[Path, typer.Argument(help="The certificate, certificate.json.")],
    public_key: Annotated[
        Path | None, typer.Option(help="The public key of the server's certificates (PEM).")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="The report that it certifies, report.json.")] = None,
    model: Annotated[Path | None, typer.Option(help="The model after the deletion, model.pt.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="The ids of the samples that were to be forgotten, one a line.")
    ] = None,
    subject_key: Annotated[
        Path | None,
        typer.Option(help="The key of sample ids: the server's subject-key, or the client's subject-keys."),
    ] = None,
    ledger: Annotated[
        str, typer.Option(help="The ledger, or a copy of it, by its URL.", callback=refuse_password)
    ] = "",
    service: Annotated[bool, typer.Option("--service", help="Ask the deletion service of --server.")] = False,
    timestamp: Annotated[
        Path | None,
        typer.Option(
            help="When it was there: a timestamp by RFC 3161; default: beside the certificate, with .tsr."
        ),
    ] = None,
    timestamp_authority: Annotated[
        Path | None, typer.Option(help="The certificate of the timestamp's authority (PEM).")
    ] = None,
    json_ld: Annotated[
        Path | None,
        typer.Option(help="Also write what it says as JSON-LD with the terms of DPV, to this file."),
    ] = None,
) -> None:
    """Check a certificate of deletion; exit code 1 where anything is refused."""
    if ledger and service:
        raise ConfigurationError(["--ledger, --service: give one of the two."])
    content = read_file(certificate)
    file = decode(content)
    key = None if public_key is None else load_public_key(public_key)
    for line in _summary(file.certificate):
        say(_printable(line))
    checks = [
        check_signature(file, key),
        check_report(file.certificate, None if report is None else read_file(report)),
        check_model(file.certificate, model),
    ]
    if samples is not None or file.certificate.request.num_samples:
        checks.append(check_samples(file.certificate, samples, subject_key))
    beside = certificate.with_suffix(SUFFIX)
    if timestamp is None and timestamp_authority is not None and beside.exists():
        timestamp = beside
    if timestamp is not None or timestamp_authority is not None or beside.exists():
        checks.append(check_timestamp(content, timestamp, timestamp_authority))
    with _view(ctx, ledger, service) as view:
        checks.append(check_ledger(file.certificate, content, view))
    if json_ld is not None:
        json_ld.write_text(
            json.dumps(as_json_ld(file), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    _conclude(checks)


def timestamp(
    certificate: Annotated[Path, typer.Argument(help="The certificate, certificate.json.")],
    url: Annotated[str, typer.Option(help="The authority's address for RFC 3161 over HTTP.")],
    timestamp_authority: Annotated[
        Path, typer.Option(help="Its certificate (PEM), to check the answer with.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="Where it goes; default: beside the certificate, with .tsr.")
    ] = None,
) -> None:
    """Have an authority sign that a certificate is there now, by RFC 3161; it learns the file's hash only."""
    decode(read_file(certificate))  # so that nothing else is stamped by mistake
    path = stamp(certificate, TimestampAuthority(url=url, certificate=timestamp_authority), output)
    show_lines(
        (f"{path}: keep it with the certificate; `verify --timestamp` checks it.",), data={"path": str(path)}
    )


@contextmanager
def _view(ctx: typer.Context, ledger: str, service: bool) -> Iterator[LedgerView | None]:
    if service:
        with connection_of(ctx).client() as client:
            yield LedgerView.of_service(client)
    elif ledger:
        opened = Ledger.open_existing(ledger)
        try:
            yield LedgerView.of_ledger(opened)
        finally:
            opened.close()
    else:
        yield None


def _summary(certificate: Certificate) -> Iterator[str]:
    asked = certificate.request
    what = {
        "client": f"client {asked.client_id}",
        "sample": f"{asked.num_samples or 0:,} sample(s) of client {asked.client_id}",
        "class": f"class {asked.class_label}",
    }.get(asked.granularity, asked.granularity)
    yield f"Certificate of {asked.id}: deletion of {what} by {certificate.method.title}, {certificate.issued_at}"
    gaps = len(certificate.not_measured)
    yield f"Verdict: {certificate.attacks.verdict}. Not measured: {gaps} thing(s), which it names."
    if certificate.privacy is not None:
        yield f"Privacy: {certificate.privacy.statement}"


def _conclude(checks: list[Check]) -> None:
    lines = [(f"{check.outcome:8}", f"{check.of + ':':<10}", _printable(check.sentence)) for check in checks]
    show_lines(*lines, data=checks)
    refused = [check.of for check in checks if check.outcome is Outcome.REFUSED]
    skipped = [check.of for check in checks if check.outcome is Outcome.SKIPPED]
    if refused:
        say(f"The certificate is REFUSED: {', '.join(refused)}.")
        raise typer.Exit(1)
    rest = f", as far as it was checked (skipped: {', '.join(skipped)})" if skipped else ""
    say(f"The certificate holds{rest}.")


def _printable(line: str) -> str:
    """Return one line; a certificate is text of a stranger until its signature holds, so nothing can fake a line."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)


def verify_ledger(
    ctx: typer.Context,
    kept: Annotated[
        str, typer.Option(metavar="NUMBER:HASH", help="What this command printed earlier, to compare with.")
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Compare with the last line of this file, on another machine; then add today's."
        ),
    ] = None,
) -> None:
    """Check that nothing in the ledger was changed, removed or put in (for operators and officers)."""
    sequence, digest = _parse_kept(kept or _newest(file))
    with connection_of(ctx).client() as service:
        check = service.verify_ledger(sequence)
    line, problem = f"{check.head_sequence}:{check.head_hash}", ""
    if check.problem:
        problem = (
            f"BROKEN: {check.problem} Somebody changed the database past this program. Compare with a backup."
        )
    elif check.hash != digest:
        problem = (
            f"BROKEN: event {sequence} is {'another one than' if check.hash else 'gone, unlike'} when its hash "
            "was kept; somebody rewrote the database, or restored an older one. Compare with a backup."
        )
    said = f"All events hold, up to number {check.head_sequence}, and all rows that they commit to."
    if not check.head_sequence:
        said = "There are no events yet."
    data = {"holds": not problem, "problem": problem, "events": check.head_sequence, "kept": line}
    show_lines((problem or said,), data=data)
    if problem:
        raise typer.Exit(1)
    if not check.head_sequence:
        return
    if file is None:
        say("To notice later that events were cut off, keep this line outside the server:")
        say(f"--kept {line}")
    else:
        with file.open("a", encoding="ascii") as kept_heads:
            kept_heads.write(f"{line}\n")
        say(f"Added to {file}, for the next check: {line}")


def _newest(file: Path | None) -> str:
    if file is None or not file.exists():
        return ""
    try:
        lines = file.read_text(encoding="ascii").split()
    except (OSError, UnicodeError) as exc:
        raise InvalidRequest(f"--file {str(file)!r} cannot be read: {exc}") from exc
    return lines[-1] if lines else ""


def _parse_kept(text: str) -> tuple[int, str]:
    if not text:
        return 0, ""
    sequence, _, digest = text.partition(":")
    if not re.fullmatch("[0-9]{1,18}", sequence) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise InvalidRequest(f"--kept takes NUMBER:HASH as this command prints it, got {text[:80]!r}.")
    return int(sequence), digest
