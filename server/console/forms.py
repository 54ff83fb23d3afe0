"""Reading what a browser posts: bounded, never written to a disk, and only with the session's token."""

from collections.abc import AsyncGenerator
from urllib.parse import parse_qsl

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

MIB = 1024 * 1024
MAX_FILE_BYTES = 64 * MIB
"""Of a list of sample ids: what the service takes in parts (docs/reference-limits.md)."""
MAX_PASTED_BYTES = 8 * MIB
_MAX_BODY_BYTES = MAX_FILE_BYTES + MAX_PASTED_BYTES + MIB
# What is too long is read to its end and dropped, or the browser would show a broken connection and no sentence.
_MAX_DROPPED_BYTES = 4096 * MIB


class BodyTooLong(MultiPartException):
    """A form whose body is longer than any that the console reads; the parser closes its files on this."""


class _InMemory(MultiPartParser):
    """A parser that keeps a file in memory: ids of samples have no business on the disk of this machine."""

    spool_max_size = _MAX_BODY_BYTES


async def read_form(request: Request) -> FormData:
    """Return the form.

    Raises:
        BodyTooLong: it is longer than a list of samples may be.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind == "multipart/form-data":
        body = _bounded(request, _MAX_BODY_BYTES)
        try:
            return await _InMemory(
                request.headers, body, max_files=1, max_fields=30, max_part_size=MAX_PASTED_BYTES
            ).parse()
        except MultiPartException as exc:
            async for _ in body:
                pass
            raise BodyTooLong(exc.message) from exc
    text = b"".join([chunk async for chunk in _bounded(request, MIB)]).decode(errors="replace")
    return FormData([*parse_qsl(text, keep_blank_values=True)])


def text_of(form: FormData, name: str) -> str:
    """Return a field's text, with a browser's line ends as line feeds."""
    value = form.get(name, "")
    return value.strip().replace("\r\n", "\n") if isinstance(value, str) else ""


def texts_of(form: FormData) -> dict[str, str]:
    """Return what was typed into each field, to be shown again where it is refused."""
    return {name: text_of(form, name) for name in form if name != "csrf"}


async def _bounded(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    said = request.headers.get("content-length", "")
    is_too_long = said.isdigit() and int(said) > limit
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
        is_too_long |= total > limit
        if not is_too_long:
            yield chunk
        elif total > _MAX_DROPPED_BYTES:
            break
    if is_too_long:
        raise BodyTooLong(f"longer than {limit:,} bytes")
