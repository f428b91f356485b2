"""The tidy tables as Parquet files, which pandas and polars open. Needs the extra `ddpviz[parquet]` (pyarrow).

The columns are those of the CSV tables, with types: what was not measured is null, NaN is NaN.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from ddpviz.export import tidy
from ddpviz.timeline import model as m

_AT_ONCE = 1 << 16  # rows in memory as Python objects
_FLAGS = {"no_sync_forward", "no_sync_backward", "sampled", "sent"}
_TEXTS = {"sync", "sync_across_ranks", "gradients", "gradients_across_ranks", "replicas", "optimizer", "file"}
_REALS = {"local_norm", "norm", "loss", "sum_before", "sum_after"}


def write(tl: m.Timeline, name: str, to: Path | IO[bytes]) -> None:
    """One of the tables (`tidy.tables`) as a Parquet file. Raises OSError."""
    header, rows = tidy.tables(tl)[name]
    schema = pa.schema([(column, _type(column)) for column in header])
    with pq.ParquetWriter(to, schema, compression="zstd") as out:
        while block := list(islice(rows, _AT_ONCE)):
            columns = zip(schema, zip(*block, strict=True), strict=True)
            out.write_batch(pa.record_batch([_array(field, values) for field, values in columns], schema=schema))


def _type(column: str) -> pa.DataType:
    if column in _FLAGS:
        return pa.bool_()
    if column in _TEXTS:
        return pa.string()
    return pa.float64() if column in _REALS else pa.int64()


def _array(field: pa.Field, values: tuple[object, ...]) -> pa.Array:
    if field.type == pa.bool_():
        values = tuple(map(bool, values))
    return pa.array(values, field.type)
