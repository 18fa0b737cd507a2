"""Streams into tables by name: what the JVM asks for each micro-batch, answered by the driver instead of two processes of Spark's."""

from __future__ import annotations

import base64
import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final
from uuid import uuid4

import tiltyard as ty
from tiltyard.spark.source_options import Options
from tiltyard.spark.stream.stream_writing import TiltyardStreamWriter

_KEPT: Final = 64
_VERSIONS: Final = 100
"""Versions after which tasks are planned anew: whoever discards their files looks at all versions since."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The tasks that executors have, what tells them from others, and who planned them."""

    name: str
    tasks: Any
    writer: TiltyardStreamWriter


_plans: Final[OrderedDict[str, _Plan]] = OrderedDict()
_lock: Final = Lock()


def plan_stream(request: Mapping[str, Any]) -> str:
    """The name of the plan by which tasks write the next micro-batch: another one where the table, as it is now, needs other tasks."""
    key = _key(request)
    with _lock:
        known = _plans.get(key)
    writer = _writer(request, None if known is None else known.writer.lake)
    tasks = (replace(writer.task, token="", version=writer.task.version // _VERSIONS), writer.columns, writer.names)
    with _lock:
        name = known.name if known is not None and known.tasks == tasks else uuid4().hex
        _plans[key] = _Plan(name, tasks, writer)
        _plans.move_to_end(key)
        while len(_plans) > _KEPT:
            _plans.popitem(last=False)
    return name


def commit_stream(request: Mapping[str, Any]) -> bool:
    """Commits what the tasks of a micro-batch wrote, or finds that it is in."""
    with _lock:
        known = _plans.get(_key(request))
    writer = _writer(request) if known is None else known.writer
    # Spark reads them so as well: tasks of this query made them, a moment ago.
    messages = [pickle.loads(base64.b64decode(message)) for message in request["messages"]]
    writer.commit(messages, int(request["batch"]))
    return True


def _key(request: Mapping[str, Any]) -> str:
    return json.dumps([request["query"], request["options"], request["schema"], request["overwrite"]], sort_keys=True)


def _writer(request: Mapping[str, Any], lake: ty.Lake | None = None) -> TiltyardStreamWriter:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(request["schema"]))
    return TiltyardStreamWriter(Options(request["options"]), schema, bool(request["overwrite"]), lake)
