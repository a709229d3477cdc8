"""Answers of servers, put together to the completions of requests."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from types import SimpleNamespace

from atrium.base.records import Completion
from atrium.engines.engine import Generation
from atrium.engines.server.dealing import Sample


class Answers:
    """The requests that are being answered; `complete` makes completions of one request's answers.

    Answers and errors are put in by any thread, and completions are taken by one.
    """

    def __init__(self, complete: Callable[[Sequence[SimpleNamespace]], Sequence[Completion]]) -> None:
        self._complete = complete
        self._found: queue.SimpleQueue[tuple[Sample, SimpleNamespace] | BaseException] = queue.SimpleQueue()
        self._num_samples: dict[int, int] = {}
        self._parts: dict[int, dict[int, SimpleNamespace]] = {}

    def expect(self, index: int, num_samples: int) -> None:
        """Expect the answers of a request, at least one."""
        self._num_samples[index] = num_samples

    def put(self, sample: Sample, answer: SimpleNamespace) -> None:
        """Take one answer."""
        self._found.put((sample, answer))

    def fail(self, error: BaseException) -> None:
        """Let `next` raise an error."""
        self._found.put(error)

    @property
    def num_left(self) -> int:
        """Number of requests that are not answered yet."""
        return len(self._num_samples)

    def next(self) -> Generation:
        """Wait for the next request whose answers are all there."""
        while True:
            found = self._found.get()
            if isinstance(found, BaseException):
                raise found
            sample, answer = found
            index, number = sample.place
            parts = self._parts.setdefault(index, {})
            parts[number] = answer
            if len(parts) == self._num_samples[index]:
                del self._parts[index], self._num_samples[index]
                answers = [parts[place] for place in range(len(parts))]
                return Generation(request_index=index, completions=tuple(self._complete(answers)))
