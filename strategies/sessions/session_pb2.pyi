from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("hello", "header", "chunk", "end")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    header: Header
    chunk: Chunk
    end: End
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., header: _Optional[_Union[Header, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("session_id", "token", "connection", "protocol_version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    token: str
    connection: int
    protocol_version: int
    def __init__(self, session_id: _Optional[str] = ..., token: _Optional[str] = ..., connection: _Optional[int] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("exchange", "json_bytes", "arrays")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    JSON_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    exchange: int
    json_bytes: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArrayHeader]
    def __init__(self, exchange: _Optional[int] = ..., json_bytes: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArrayHeader, _Mapping]]] = ...) -> None: ...

class ArrayHeader(_message.Message):
    __slots__ = ("name", "dtype", "shape", "fingerprint", "is_known")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    fingerprint: str
    is_known: bool
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., fingerprint: _Optional[str] = ..., is_known: _Optional[bool] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
