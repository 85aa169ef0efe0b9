"""Where the parts of an audit are worked on: a Ray cluster. What is done with them is in `passes`.

A worker that dies is no matter: a part is a function of the files alone, and Ray calls it again
elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ..data import BadInput
from .passes import Work


def on_ray(work: Work, parts: list[tuple[int, int]]) -> Iterator[Any]:
    """The parts' results, in order, by a Ray Data pipeline.

    On the cluster that this process is connected to, or that RAY_ADDRESS names; else on one of
    this machine's own, which ends with the process.
    """
    try:
        import ray
    except ImportError as error:
        raise BadInput("--ray (ray=True) needs ray: pip install 'ytilde[ray]'") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        logging.getLogger("ray.data").setLevel("ERROR")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    shared = ray.put(work)  # the table and the readings: once a machine, not once a part

    def judge(part: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"result": ray.get(shared)(part["first"], part["stop"])}
        except BadInput as error:  # as it is, not inside what Ray makes of an error
            return {"result": error}

    items = [{"first": first, "stop": stop} for first, stop in parts]
    pipeline = ray.data.from_items(items, override_num_blocks=len(items)).map(judge)
    for row in pipeline.iter_rows():
        if isinstance(row["result"], BadInput):
            raise row["result"]
        yield row["result"]
