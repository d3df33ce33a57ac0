"""A party's thread: carries out the server's orders until the goodbye."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from vfl.base.errors import plain
from vfl.messages.messages import Kind, Message
from vfl.parties.network.action_log import ActionLog
from vfl.parties.network.party.dialer import Dialer, ReceivedOrder
from vfl.parties.network.training_page import TrainingPage
from vfl.parties.network.transport.security import last_word
from vfl.parties.network.transport.stream import Stream
from vfl.parties.network.wire.session import Goodbye, Save
from vfl.runs.signals import stop_on_signal, tell_manager

Answer = Callable[[Message], Message]
"""Function that carries out an order and returns its answer."""
LISTEN_S = 0.5
"""Seconds between checks whether this process should end."""


@dataclass(eq=False)
class Participation:
    """Carries out what the server orders until it says goodbye."""

    dialer: Dialer
    run_dir: Path
    """The party's folder, for its audit log."""
    begin: Callable[[Message], Answer]
    """Returns the function that answers orders, within the owner's consent, given the server's welcome."""
    console: Console
    on_signal: str = "leaving after this round and its checkpoint (again: at once)"
    """Answer to a first signal, for the owner."""
    light: Callable[[Message], bool] = lambda order: False
    """Returns whether an order takes less than handing it to the party's thread and its answer back."""

    def __post_init__(self) -> None:
        self.audit = ActionLog(self.run_dir)
        self.leaving = False
        self.run = ""
        """Id of the run in the server's welcome; "" before the first one."""
        self.answer: Answer
        self.stream: Stream | None = None
        """The stream on which the server has welcomed this party."""
        self.dialer.inbox.at_once = self._at_once

    def take_part(self, page: TrainingPage, *kept: AbstractContextManager[Any]) -> Goodbye:
        """Dial, and follow orders until the goodbye, which the folder's log notes; show the page meanwhile.

        What is ``kept`` ends before the stream does.
        """
        page.present = self.dialer.present
        with ExitStack() as ending:
            say_end = ending.enter_context(self.audit.noting_end())
            ending.enter_context(page.served(self.dialer.network.metrics, self.console.print))
            for each in (self.dialer, *kept):
                ending.enter_context(each)
            goodbye = self.follow_orders()
            say_end(goodbye.exit_code, goodbye.reason)
            return goodbye

    def follow_orders(self) -> Goodbye:
        """Carry out orders until the goodbye; the first signal asks the server for leave."""
        with stop_on_signal(self._ask_for_leave):
            while True:
                tell_manager()
                event = self.dialer.inbox.get(LISTEN_S)
                if event is None:
                    if self.leaving and self.dialer.stream is None:
                        raise KeyboardInterrupt
                elif event.message.kind in (Kind.WELCOME, Kind.GOODBYE) or event.stream is self.stream:
                    goodbye = self._carry_out(event)
                    if goodbye is not None:
                        return goodbye
                # else of a stream that has ended: nobody waits for the answer
                del event  # or its message stays in memory while the next one comes

    def _at_once(self, order: ReceivedOrder) -> ReceivedOrder | None:
        """Carry out a light order in the dialler's thread; return any other one, and one that failed."""
        if order.stream is not self.stream:
            return order
        try:
            if not self.light(order.message):
                return order
            order.stream.send(self.answer(order.message))
        except Exception as error:
            return replace(order, failed=error)
        return None

    def _carry_out(self, order: ReceivedOrder) -> Goodbye | None:
        message = order.message
        try:
            if order.failed is not None:
                raise order.failed
            match message.kind:
                case Kind.GOODBYE:
                    return Goodbye.of(message)
                case Kind.WELCOME:
                    self._enter(order)
                case _:
                    order.stream.send(self.answer(message))
                    if message.kind is Kind.SAVE:
                        self.audit.note("saved", self.dialer.server, f"round {Save.of(message).round}")
        except (ValueError, OSError) as error:
            self.audit.note("refused", self.dialer.server, plain(str(error)))
            self.dialer.refuse(last_word(error))
            raise

    def _enter(self, welcome: ReceivedOrder) -> None:
        self.answer = self.begin(welcome.message)
        self.run = welcome.message.run
        self.stream = welcome.stream
        self.console.print(f"joined run {self.run}")
        self.audit.note("joined", self.dialer.server, f"run {self.run}")
        if self.leaving:
            self._send_leaving()

    def _ask_for_leave(self, signal_name: str) -> None:
        self.leaving = True
        self.console.print(f"{signal_name}: {self.on_signal}")
        self._send_leaving()

    def _send_leaving(self) -> None:
        if self.stream is not None and self.stream is self.dialer.stream:  # else once the server's welcome is read
            self.stream.send(Message(Kind.LEAVING, run=self.run))
