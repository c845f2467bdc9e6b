"""`penstock instance start`: one start, with all that a start may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected, json_object
from penstock.cli.options import (
    NOT_COMPLETED,
    FileOption,
    FlowKeyOption,
    JsonOption,
    PriorityOption,
    VariablesArgument,
    instance_line,
    print_json,
)
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from msgspec import Struct

    from penstock.client import Instance

R = TypeVar("R", bound="Struct")

InstanceKeyOption = Annotated[
    str | None,
    typer.Option(
        help="A key that is unique among the definition's open instances. A second start returns the first instance."
    ),
]
KeepOption = Annotated[
    bool, typer.Option("--keep-instance-key", help="No other instance may have the key after this one's end, either.")
]
RepeatOption = Annotated[
    str | None, typer.Option(help="The idempotency key: a repeated call gets the first answer again.")
]
StartAtOption = Annotated[
    str | None,
    typer.Option("--start-at", "--at", help="When it begins. The instance exists at once.", metavar="RFC3339"),
]
DelayOption = Annotated[str | None, typer.Option(help="How much later it begins.", metavar="ISO8601")]
DedupeOption = Annotated[
    str | None, typer.Option(help='Start once in a window: `{"key": "k", "window": "PT1H"}`.', metavar="JSON")
]
ThrottleOption = Annotated[
    str | None,
    typer.Option(
        help='Start at most so many in a period: `{"key": "k", "limit": 9, "period": "PT1M"}`.', metavar="JSON"
    ),
]
DebounceOption = Annotated[
    str | None, typer.Option(help='Start only the last of several: `{"key": "k", "wait": "PT30S"}`.', metavar="JSON")
]
WaitSecondsOption = Annotated[
    float | None,
    typer.Option(help="Wait until it has ended, at most this many seconds.", min=0, max=60, metavar="SECONDS"),
]


def start(
    definition: Annotated[str, typer.Argument(help="The definition's id.")],
    variables: VariablesArgument = None,
    file: FileOption = None,
    version: Annotated[int | None, typer.Option(help="[default: the latest]", min=1)] = None,
    business_key: Annotated[str | None, typer.Option(help="The business key, by which people find it.")] = None,
    instance_key: InstanceKeyOption = None,
    keep_instance_key: KeepOption = False,
    idempotency_key: RepeatOption = None,
    priority: PriorityOption = None,
    flow_key: FlowKeyOption = None,
    start_at: StartAtOption = None,
    delay: DelayOption = None,
    dedupe: DedupeOption = None,
    throttle: ThrottleOption = None,
    debounce: DebounceOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended, however long, as `watch` does.")
    ] = False,
    wait_seconds: WaitSecondsOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start an instance and print its id; with `--wait` or `--wait-seconds` how it stands then.

    Exit code 0; of one that is waited for 0 when it completed, else 1.
    """
    from penstock.wire.start import Debounce, Dedupe, Throttle

    given = json_object(variables, file)
    with connected(url, token_file) as client:
        made = client.start_instance(
            definition,
            given,
            version=version,
            business_key=business_key,
            instance_key=instance_key,
            keep_instance_key=keep_instance_key,
            idempotency_key=idempotency_key,
            priority=priority,
            flow_key=flow_key,
            start_at=start_at,
            delay=delay,
            dedupe=_rule(Dedupe, dedupe, "--dedupe"),
            throttle=_rule(Throttle, throttle, "--throttle"),
            debounce=_rule(Debounce, debounce, "--debounce"),
            wait_s=wait_seconds or 0.0,
        )
        _print_where_it_was(made)
        if wait:
            echo(made.id, err=True)
            made = client.wait_until_ended(made.id)
    waited = wait or bool(wait_seconds)
    if as_json:
        print_json(made)
    else:
        echo(instance_line(made) if waited else made.id)
    if waited and made.status != "COMPLETED":
        raise typer.Exit(NOT_COMPLETED)


def _print_where_it_was(made: Instance) -> None:
    """On standard error: what is printed for programs is the same, and so is the exit code."""
    if made.deduplicated:
        echo(f"{made.id} was there before, {made.status}: nothing else was started", err=True)


def _rule(kind: type[R], text: str | None, option: str) -> R | None:
    import msgspec

    if text is None:
        return None
    try:
        rule = msgspec.json.decode(text, type=kind)
        unknown = msgspec.json.decode(text, type=dict[str, object]).keys() - set(kind.__struct_encode_fields__)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{option}: {error}") from None
    if unknown:  # over REST it would be ignored
        raise typer.BadParameter(f"{option}: there is no {', '.join(sorted(unknown))}")
    return rule
