"""How the arguments of a step or workflow become JSON and come back: an object by parameter name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Never, NoReturn, cast, get_type_hints

import msgspec

from penstock.durable.codec import Decoder, decode, decode_kept
from penstock.durable.kept import SCALARS, refused_type

_by_name = Decoder(dict[str, msgspec.Raw])
_ANYTHING = (object, NoReturn, Never)
"""Annotations that say nothing of a value."""


class Parameters:
    """Of one function. Types are looked up when they are first needed, so that a module's later names count."""

    def __init__(self, function: Callable[..., Any], *, skipped: int = 0) -> None:
        """``skipped``: so many of the first parameters are none of the caller's."""
        self._function = function
        whole = inspect.signature(function)
        self.signature = whole.replace(parameters=list(whole.parameters.values())[skipped:])
        self._hints: dict[str, Any] | None = None
        self._decoder_of: dict[str, tuple[inspect.Parameter, Decoder]] | None = None
        self._decode_result: Decoder | None = None
        for parameter in self.signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"{function.__qualname__} takes *{parameter.name}: arguments are stored by name")
        kinds = {parameter.kind for parameter in self.signature.parameters.values()}
        self._positional = None if inspect.Parameter.KEYWORD_ONLY in kinds else tuple(self.signature.parameters)
        with suppress(NameError):  # a name that its module has later
            self._hints = self._read_hints()

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """By name. Raises TypeError as the call itself would."""
        if self._positional is not None and not kwargs and len(args) == len(self._positional):
            return dict(zip(self._positional, args, strict=True))
        return dict(self.signature.bind(*args, **kwargs).arguments)

    def arguments(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """What `function` is called with, from JSON. Raises `ValueError` with the field and the reason."""
        raw = _by_name(text)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        by_name = False  # after a parameter that was left to its default, all others go by name
        for name, (parameter, decoder) in self._decoders().items():
            if name not in raw:
                by_name = True
                continue
            try:
                value = decoder(raw[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if parameter.kind is parameter.KEYWORD_ONLY or by_name:
                named[name] = value
            else:
                positional.append(value)
        return positional, named

    def _decoders(self) -> dict[str, tuple[inspect.Parameter, Decoder]]:
        if self._decoder_of is None:
            hints = self.hints()
            self._decoder_of = {
                name: (parameter, Decoder(hints.get(name, Any)))
                for name, parameter in self.signature.parameters.items()
            }
        return self._decoder_of

    def result(self, text: str) -> Any:
        """What the function gave, from JSON. Raises `ValueError` with the field and the reason."""
        if self._decode_result is None:
            self._decode_result = Decoder(self.result_type())
        return self._decode_result(text)

    def check_kept(self, given: dict[str, Any], text: str) -> None:
        """The function will get what was ``given``, by parameter name, from its JSON. Raises `ValueError` with the
        parameter and the reason."""
        hints = self.hints()
        others = [
            name for name, value in given.items() if type(value) not in SCALARS or hints.get(name) is not type(value)
        ]
        if not others:
            return
        raw = decode(text, dict[str, msgspec.Raw])
        for name in others:
            try:
                decode_kept(bytes(raw[name]).decode(), hints.get(name, Any), given[name])
            except ValueError as error:
                raise type(error)(f"{name}: {error}") from None

    def result_type(self) -> Any:
        """What the function says that it gives; anything when it does not say."""
        return self.hints().get("return", Any)

    def hints(self) -> dict[str, Any]:
        if self._hints is None:
            try:
                self._hints = self._read_hints()
            except NameError as error:
                name = self._function.__qualname__
                raise TypeError(f"{name}: its annotations can't be read at run time: {error}") from None
        return self._hints

    def _read_hints(self) -> dict[str, Any]:
        """Raises NameError, and TypeError for a type of which no value can be kept. A parameter with a default may have
        any type: its value is checked when one is given."""
        hints = {name: Any if hint in _ANYTHING else hint for name, hint in get_type_hints(self._function).items()}
        parameters = self.signature.parameters
        for name, hint in hints.items():
            is_result = name == "return"
            if not is_result and (name not in parameters or parameters[name].default is not inspect.Parameter.empty):
                continue
            if (why := refused_type(hint)) is not None:
                what = "its result" if is_result else f"its parameter {name}"
                raise TypeError(
                    f"{self._function.__qualname__}: {what} is annotated as a type that can't be kept: {why}"
                )
        return hints


def where_of(function: Callable[..., Any]) -> str:
    """Return ``shop.py:17``, where a function begins; empty for one that is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def plain_function(given: Callable[..., Any], decorator: str) -> tuple[Callable[..., Any], bool]:
    """Return the function under ``@staticmethod``, and whether it was under one. A class method raises TypeError."""
    is_method = isinstance(given, (staticmethod, classmethod))
    if not is_method and not (inspect.isroutine(given) and isinstance(getattr(given, "__name__", None), str)):
        raise TypeError(
            f"@{decorator} is for functions, not for {_kind(given)}: write a def that calls it, with a name and"
            " annotated parameters, as a journal keeps these"
        )
    if isinstance(given, classmethod):
        raise TypeError(_no_method(inspect.unwrap(cast(Any, given)), "a class method", "the class", decorator))
    if isinstance(given, staticmethod):
        return given.__func__, True
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise TypeError(
            f"{given.__qualname__} ({where_of(given)}) has a yield: @{decorator} needs one result, as a list"
        )
    parameters = list(inspect.signature(given).parameters)
    owner = getattr(given, "__qualname__", "").rpartition(".")[0]
    if (
        owner and not owner.endswith("<locals>") and parameters[:1] == ["cls"]
    ):  # @classmethod is above, and stays unseen
        raise TypeError(_no_method(given, "a class method", "the class", decorator))
    return given, False


def name_of(given: Any, decorator: str) -> str:
    """Return the name of what is decorated. Raises TypeError for what is no function."""
    return plain_function(given, decorator)[0].__name__


def _kind(given: Any) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"an object of {type(given).__name__}"


def refuse_method(function: Callable[..., Any], owner: type, decorator: str) -> None:
    """Raise TypeError if ``owner`` is the class whose body defines the function."""
    if function.__qualname__ == f"{owner.__qualname__}.{function.__name__}":
        raise TypeError(_no_method(function, "an instance method", "the instance", decorator))


def _no_method(function: Callable[..., Any], kind: str, first: str, decorator: str) -> str:
    return (
        f"{function.__qualname__} ({where_of(function)}) is {kind}, and @{decorator} stores all arguments, but it can't"
        f" store {first}. Write @staticmethod above @{decorator}, or a function outside of the class, and pass what it"
        " needs"
    )
