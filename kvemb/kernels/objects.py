"""Python's objects, as kernels that hold the GIL need them: items of a list, and the bytes of str and bytes objects.

CPython's own functions read them. Objects are addresses, as id() returns them, int64; references are borrowed. No
exception is left behind.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvemb.kernels.compiling import intrinsic

_WORD = ir.IntType(64)
_TEXT = types.Tuple((types.int64, types.int64))  # type: ignore[no-untyped-call]
_once: Any = cgutils.alloca_once  # in the function's first block: not for each object


@intrinsic
def list_item(typingctx: Any, values: Any, at: Any) -> Any:
    """Return an item of a list object, 0 if the list is shorter."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        python = context.get_python_api(builder)
        item = python.list_getitem(builder.inttoptr(args[0], python.pyobj), args[1])
        with builder.if_then(builder.icmp_unsigned("==", item, item.type(None)), likely=False):
            python.err_clear()
        return builder.ptrtoint(item, _WORD)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def text_of(typingctx: Any, value: Any) -> Any:
    """Return the address and the number of the bytes of a str object in UTF-8.

    The address is 0 if the object is none, or if UTF-8 lacks it. Unless a str is ASCII, CPython makes its UTF-8 in
    the first call and keeps it as long as the str.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        python = context.get_python_api(builder)
        found, text, nbytes = python.string_as_string_and_size(builder.inttoptr(args[0], python.pyobj))
        with builder.if_then(builder.not_(found), likely=False):
            python.err_clear()
        return context.make_tuple(builder, signature.return_type, [builder.ptrtoint(text, _WORD), nbytes])

    return _TEXT(types.int64), codegen


@intrinsic
def bytes_of(typingctx: Any, value: Any) -> Any:
    """Return the address and the number of the bytes of a bytes object. The address is 0 if the object is none."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        python = context.get_python_api(builder)
        text, nbytes = _once(builder, python.cstring), _once(builder, python.py_ssize_t)
        builder.store(python.cstring(None), text)
        found = python.bytes_as_string_and_size(builder.inttoptr(args[0], python.pyobj), text, nbytes)
        with builder.if_then(builder.not_(found), likely=False):
            python.err_clear()
        return context.make_tuple(
            builder, signature.return_type, [builder.ptrtoint(builder.load(text), _WORD), builder.load(nbytes)]
        )

    return _TEXT(types.int64), codegen
