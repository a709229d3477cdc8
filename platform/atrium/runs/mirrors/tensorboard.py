"""A run as TensorBoard event files in the run directory: `tensorboard --logdir runs` shows them.

An event file can only be appended to, by the process that created it. A delivery by another process therefore
writes the files again from the first step, which takes seconds; no value is in the files twice.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from atrium.base.errors import install_command
from atrium.base.nested import flattened_text
from atrium.runs.mirrors.delivery import Delivered, MirrorError
from atrium.runs.mirrors.description import RunDescription
from atrium.runs.mirrors.rows import Row
from atrium.runs.status import RunState


class TensorBoardDestination:
    """The event files of one run; implements `Destination`."""

    def __init__(self, run: RunDescription) -> None:
        self._run = run
        self.target = "tensorboard"  # name of the subfolder of the run directory
        self._folder = run.folder / self.target
        self._writer: Any = None

    def open(self, delivered: Delivered) -> Delivered:
        """Delete existing files and start new ones; return an empty record, so that all rows are sent again.

        Raises `MirrorError` if TensorBoard is not installed.
        """
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MirrorError(
                f"TensorBoard is not installed; run {install_command('tensorboard')}, or `pip install "
                "tensorboard`"
            ) from error
        shutil.rmtree(self._folder, ignore_errors=True)
        self._writer = EventFileWriter(str(self._folder))
        self._write_texts()
        return Delivered(target=self.target, where=f"tensorboard --logdir {self._folder.parent.parent}")

    def send(self, rows: Sequence[Row]) -> None:
        """Write each row's metrics as scalars, tagged with their names."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            self._writer.add_event(Event(wall_time=row.time, step=row.step, summary=Summary(value=values)))
        self._writer.flush()

    def finish(self, state: RunState, ended: float, findings: str) -> None:
        """Do nothing: TensorBoard has no field for a final state, and needs no copies of the run's files."""

    def close(self) -> None:
        """Close the event file. Harmless when called twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write_texts(self) -> None:
        """Write settings and tags for TensorBoard's text view."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        described = {"settings": flattened_text(self._run.config), "tags": self._run.tags}
        values = [
            Summary.Value(
                tag=name,
                metadata=create_summary_metadata(display_name=name, description=""),
                tensor=TensorProto(dtype="DT_STRING", string_val=[_as_markdown(content).encode()]),
            )
            for name, content in described.items()
        ]
        event = Event(wall_time=self._run.started, step=0, summary=Summary(value=values))
        self._writer.add_event(event)


def _as_markdown(content: Mapping[str, str]) -> str:
    return f"```\n{json.dumps(dict(content), indent=1)}\n```"
