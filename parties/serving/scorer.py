"""Scores by key: keys are gathered into batches, parties are asked for their rows' embeddings, the head scores them.

All of it is done in one event loop, that of HTTP and of the parties' streams: handing a request to a thread and back
takes longer than a small model's score. Only a head too large for that computes in a thread. A party that is away, slow
or lost holds up nobody: for that batch it is away. Every batch is of one version of the model.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch's own signatures are partly untyped.

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vfl.base.errors import Diverged, PeerLost, one_line
from vfl.config import ConfigError, ExperimentConfig
from vfl.core.embeddings import MOST_TESTED, decode_finite
from vfl.core.link import read
from vfl.core.row_by_row import is_light
from vfl.messages.keys import key_bytes, keys_part, read_found, read_keys, read_presence
from vfl.messages.messages import Kind, Message, MessageError
from vfl.parties.network.server.connection import RemoteLink
from vfl.parties.network.server.hub import Hub
from vfl.parties.serving.fetched_rows import RecentRows
from vfl.parties.serving.observed_outcomes import Outcomes
from vfl.parties.serving.request_queue import Key, KeyOutcome, ReasonsAsked, Request, RequestQueue, Score, Scored
from vfl.parties.serving.served_reasons import ColumnsDisclosed, Explainer, ScoredBatch, ServedReasons
from vfl.parties.serving.served_version import KeyRows, Row, Served, load_version, wait_for_replies
from vfl.runs.run_folder import read_run_id, read_secret
from vfl.runs.runtime import start_runtime
from vfl.runs.signals import tell_manager

MOST_CACHED = 100_000
"""Embeddings that are kept, of all parties."""
RELOAD_S = 10.0
"""Seconds for which requests wait while parties restore a new version."""


@dataclass
class Counters:
    """Counts so far."""

    rows: Counter[tuple[str, KeyOutcome]] = field(default_factory=Counter[tuple[str, KeyOutcome]])
    """Keys by party and outcome."""
    batches: int = 0
    reasons: Counter[tuple[str, ColumnsDisclosed]] = field(default_factory=Counter[tuple[str, ColumnsDisclosed]])
    """Keys that were explained by party and what it disclosed of its columns."""


@dataclass(eq=False)
class Scorer:
    """Scores keys with the parties that are connected to a hub, while ``run`` does."""

    run_dir: Path
    config: ExperimentConfig
    hub: Hub
    log: Callable[[str], None]

    def __post_init__(self) -> None:
        self.settings = self.config.serving
        self.runtime = start_runtime(self.config)
        self._run_id = read_run_id(self.run_dir)
        self.secret = read_secret(self.settings.key_secret)
        self.version = load_version(self.run_dir, self.config, self.runtime)
        self.counters = Counters()
        self.outcomes = None if self.settings.outcomes is None else Outcomes(self.settings.outcomes, self.log)
        self._names = self.config.parties
        self._parties: dict[str, Served] = {}
        self._session = 0
        self.queue = RequestQueue()
        self._reloading = False
        self._cache = RecentRows[tuple[str, bytes], Row](self.settings.cache_s, MOST_CACHED)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._explainer = Explainer(self._parties, self._lose, self.settings.timeout_ms / 1000)

    async def run(self) -> None:
        """Score what is asked for until ``stop``, in the loop in which the hub listens and requests come."""
        self._loop = asyncio.get_running_loop()
        while True:
            tell_manager()
            requests = await self.queue.take()
            if self._reloading:
                await self._reload()
            self._attach()
            if requests:
                await self._answer(requests)
            elif self.queue.stopping:
                break
        if self.outcomes is not None:
            self.outcomes.close()

    def stop(self) -> None:
        """Let ``run`` end once it has scored what waits."""
        self.queue.wake(stop=True)

    def submit(self, keys: Sequence[Key], reasons: ReasonsAsked | None = None) -> asyncio.Future[Scored]:
        """Return the future scores of keys, in their order, with their reasons if asked. Raises QueueFull."""
        return self.queue.put(keys, reasons)

    def reload(self) -> None:
        """Take the run's last checkpoint before the next batch, if it is another one; also from a signal's handler."""
        self._reloading = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.queue.wake)

    def ready(self) -> dict[str, bool]:
        """Return whether each party can be asked; one that is lost cannot, and is forgotten before the next batch."""
        parties = dict(self._parties)
        return {name: name in parties and parties[name].answers for name in self._names}

    @property
    def waiting(self) -> int:
        """Return the number of waiting keys."""
        return self.queue.waiting

    @property
    def cached(self) -> int:
        """Return the number of cached embeddings."""
        return len(self._cache)

    async def _reload(self) -> None:
        self._reloading = False
        try:
            if (now := read_run_id(self.run_dir)) != self._run_id:
                raise ConfigError(f"{self.run_dir} is of run {now} now, the parties serve {self._run_id}; start anew")
            version = await asyncio.to_thread(load_version, self.run_dir, self.config, self.runtime)
        except Exception as error:  # whatever is in the folder, the old version keeps answering
            self.log(f"the new version cannot be used, the old one stays: {error}")
            return
        if version.digest == self.version.digest:
            self.log(f"version {version.digest[:12]} is served already, there is no newer checkpoint")
            return
        answering = {name for name, there in self.ready().items() if there}
        self.version = version
        self._cache.clear()
        self._parties.clear()  # each begins a new session at the new version
        self._attach()
        # Requests wait meanwhile: a party that restores its model would count as away.
        restoring = [served.ready for name, served in self._parties.items() if name in answering]
        await wait_for_replies(restoring, time.monotonic() + RELOAD_S)
        self.log(f"serving version {version.digest[:12]}")

    def _attach(self) -> None:
        """Let parties that have come restore the version's model; forget those that are gone."""
        joined = self.hub.joined()
        for name in [name for name, served in self._parties.items() if joined.get(name) is not served.link.connection]:
            del self._parties[name]
            if name not in joined:
                self.log(f"{name} is away")
        for name in [each for each in joined if each not in self._parties]:
            self._session += 1
            try:
                link = RemoteLink(joined[name], self._session)
                self._parties[name] = Served(link, link.load(self.version.references[name]))
            except PeerLost as lost:
                self._lose(name, lost)

    def _lose(self, name: str, lost: PeerLost) -> None:
        self._parties.pop(name, None)
        self.hub.note_offence(lost)
        self.log(str(lost))

    async def _answer(self, requests: Sequence[Request]) -> None:
        keys = list(dict.fromkeys(key for request in requests for key in request.keys))
        explained = [request for request in requests if request.reasons is not None]
        try:
            scores, batch = await self._score(keys, {key for request in explained for key in request.keys})
        except Exception as error:
            for request in requests:
                if not request.future.done():
                    request.future.set_exception(error)
            return
        self.queue.note_answered(requests)
        for request in requests:
            if request.reasons is None:
                self._give(request, scores)
        if explained:
            reasons = await self._explain(explained, batch)
            for request in explained:
                self._give(request, scores, reasons)

    def _give(self, request: Request, scores: Mapping[Key, Score], reasons: ServedReasons | None = None) -> None:
        mine, asked = tuple(scores[key] for key in request.keys), request.reasons
        told = None
        if asked is not None:
            told = tuple(None if reasons is None else reasons.told(key, asked) for key in request.keys)
        if not request.future.done():  # else its client is gone
            request.future.set_result(Scored(self.version.digest, mine, told))

    async def _explain(self, requests: Sequence[Request], batch: ScoredBatch | None) -> ServedReasons | None:
        """Return the reasons of the keys that have a score; None if they cannot be computed."""
        if batch is None:
            return None
        wanted = [(key, request.reasons.of) for request in requests if request.reasons for key in request.keys]
        try:
            reasons = await self._explainer.explain(batch, wanted)
        except Exception as error:  # a score without its reasons is better than none
            self.log(f"reasons could not be computed: {one_line(error)}")
            return None
        self.counters.reasons.update(reasons.outcomes())
        return reasons

    async def _score(self, keys: Sequence[Key], fresh: Collection[Key]) -> tuple[dict[Key, Score], ScoredBatch | None]:
        """Return the scores of keys, and what they are computed from, if any has one.

        Rows of ``fresh`` keys are not taken from the cache: their owners explain the rows that they have now.
        """
        found = await self._ask_all(keys, fresh)
        outcomes: dict[Key, dict[str, KeyOutcome]] = {
            key: {name: found[name].outcome(key) for name in self._names} for key in keys
        }
        self.counters.batches += 1
        self.counters.rows.update(chain.from_iterable(map(dict.items, outcomes.values())))
        refusing = self.settings.when_absent == "refuse"
        scored = [
            key
            for key in keys
            if (there := {"row", "cached"} & set(outcomes[key].values()))
            and not (refusing and set(outcomes[key].values()) - there)
        ]
        compute = partial(self._outputs, scored, found)
        light = is_light(self.version.macs, len(scored))
        batch = None if not scored else compute() if light else await asyncio.to_thread(compute)
        values = dict(zip(scored, [] if batch is None else self._values(batch), strict=True))
        if self.outcomes is not None and values:
            self.outcomes.keep(self.version.digest, [*values.items()])
        return {key: Score(key, values.get(key), outcomes[key]) for key in keys}, batch

    def _values(self, batch: ScoredBatch) -> list[tuple[float, ...]]:
        predictions_NC = self.version.task.predictions(batch.outputs_NC).cpu()
        if self.version.drift is not None:
            self.version.drift.add(*self.version.task.as_columns(predictions_NC))
        digits = 9 if self.version.task.names else 15  # as in a table of predictions
        return [tuple(float(f"{value:.{digits}g}") for value in row) for row in predictions_NC.double().tolist()]

    def _outputs(self, keys: Sequence[Key], found: Mapping[str, KeyRows]) -> ScoredBatch:
        joint, embeddings = self.version.joint, dict[str, Tensor]()
        for party in joint.parties:
            missing_D, of_party = self.version.instead[party.name], found[party.name]
            rows = [missing_D if (row_D := of_party.row(key)) is None else row_D for key in keys]
            embeddings[party.name] = torch.stack(rows)
        return ScoredBatch(self.version, keys, found, embeddings, joint.outputs(embeddings))

    async def _ask_all(self, keys: Sequence[Key], fresh: Collection[Key] = ()) -> dict[str, KeyRows]:
        """Ask all parties at once; return the answers that came in time, by party.

        Only owners with their own keys are asked later: as soon as the label owner has given these.
        """
        until_s = time.monotonic() + self.settings.timeout_ms / 1000
        own = {key: key_bytes(key, self.secret) for key in keys}
        foreign = self.version.foreign
        found = {name: self._ask(name, own, fresh) for name in self._names if name not in foreign}
        if foreign:
            leader = found[self.version.leader]
            await self._take_some({self.version.leader: leader}, until_s)
            named = {
                other: {key: leader.rows[own[key]][1][place] for key in keys if own[key] in leader.rows}
                for place, other in enumerate(foreign)
            }
            found |= {name: self._ask(name, keys, fresh) for name, keys in named.items()}
            # Without a row at the label owner nobody knows whom to ask for.
            unnamed: dict[Key, KeyOutcome] = {key: "none" if leader.outcome(key) == "none" else "away" for key in keys}
            for other in foreign:
                found[other].unnamed = unnamed
        await self._take_some(found, until_s)
        return found

    async def _take_some(self, asked: Mapping[str, KeyRows], until_s: float) -> None:
        await wait_for_replies((each.reply for each in asked.values() if each.reply is not None), until_s)
        for name, each in asked.items():
            if each.reply is not None and each.reply.done():
                self._take(name, each, each.reply)
                each.reply = None

    def _ask(self, name: str, keys: Mapping[Key, bytes], fresh: Collection[Key]) -> KeyRows:
        """Ask a party for the embeddings that are not cached, if it can be asked."""
        found, served = KeyRows(keys), self._parties.get(name)
        found.asked = [*dict.fromkeys(keys.values())]
        if self.settings.cache_s:
            old = [key for whose, key in keys.items() if whose not in fresh]
            found.rows = {key: row for key in old if (row := self._cache.get((name, key))) is not None}
            found.of = dict.fromkeys(found.rows, "cached")
            found.asked = [key for key in found.asked if key not in found.rows]
        if found.asked and served is not None:
            try:
                if served.usable:
                    found.reply = served.send(Message(Kind.LOOK_UP, parts=(keys_part(found.asked),)))
            except PeerLost as lost:
                self._lose(name, lost)
        return found

    def _take(self, name: str, found: KeyRows, reply: "Future[Message]") -> None:
        """Take a party's answer; it is lost by one that is wrong, and counts as away."""

        try:
            answer = read(self._parties[name].link, reply, partial(self._parse, name, found.asked))
        except PeerLost as lost:
            self._lose(name, lost)
            return
        if answer is None:
            found.of.update(dict.fromkeys(found.asked, "declined"))
            return
        came, away = answer
        for key in found.asked:
            found.of[key] = "row" if key in came else "away" if key in away else "none"
            if key in came:
                found.rows[key] = came[key]
                self._cache.put((name, key), came[key])

    def _parse(
        self, name: str, keys: Sequence[bytes], reply: Message
    ) -> tuple[dict[bytes, Row], Collection[bytes]] | None:
        """Return the rows of the keys that a party has, and the keys that it leaves open; None where it declines.

        Raises MessageError and Diverged for an answer that is none.
        """
        if (away := read_found(reply, keys)) is None:
            return None
        _, presence, frame, payload = (part.payload for part in reply.parts)  # one of each, as was checked
        there = read_presence(presence, len(keys))
        present = [key for key, here in zip(keys, there, strict=True) if here]
        if not present:
            return {}, away
        (receiver,) = (party.receiver for party in self.version.joint.parties if party.name == name)
        shape = len(present), receiver.width
        embedding_nD = decode_finite(frame, shape, self.config.wire.values, receiver.what)
        if np.abs(embedding_nD.numpy()).max() > MOST_TESTED:
            raise Diverged(f"{receiver.what} has values beyond {MOST_TESTED:g}")
        others = len(self.version.foreign) if name == self.version.leader else 0
        foreign = read_keys(payload) if len(payload) else []
        if len(foreign) != others * len(present):
            raise MessageError(f"{len(foreign)} keys of other owners came for {len(present)} rows and {others} owners")
        by_row = zip(*(foreign[place * len(present) :][: len(present)] for place in range(others)), strict=True)
        names = list(by_row) if others else [()] * len(present)
        return dict(zip(present, zip(embedding_nD.clone().unbind(), names, strict=True), strict=True)), away
