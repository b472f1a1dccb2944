"""`use`: a section of code whose tensors are symmetric."""

from __future__ import annotations

from types import TracebackType

from symmem import errors
from symmem._c.sites import warn
from symmem._rank.group import Group, Scopes
from symmem._rank.memory import empty_in_scope
from symmem._rank.runtime import ORDINARY
from symmem._torch.factories import factories
from symmem._torch.places import note_layout
from symmem._torch.pytorch import loaded
from symmem._torch.routing import Router


class Scope:
    """A scope of a group on GPUs.

    A group needs only one Scope object, because each thread has its own stack of open scopes.
    Router's `enter` and `leave` are inlined here because a model may enter a scope in every layer.
    """

    __slots__ = ("_capturing", "_group", "_nesting", "_router", "_words")

    def __init__(self, group: Group, router: Router):
        self._group = group
        self._router = router
        self._nesting = router.nesting
        self._capturing = router.capturing
        self._words = group.library.words

    def __enter__(self) -> Group:
        lane = self._router.first
        stack = self._nesting.stack
        if lane is None or stack or self._capturing():
            return self._enter_slowly()
        try:
            lane.token.pop()
        except IndexError:  # Another thread uses the lane.
            return self._enter_slowly()
        try:
            lane.begin()
        except BaseException:
            lane.release()
            raise
        stack.append(lane)
        return self._group

    def _enter_slowly(self) -> Group:
        self._group.runtime.require()
        self._router.enter()
        return self._group

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack = self._nesting.stack
        lane = stack.pop()
        if stack or lane is None or lane is not self._router.first:
            stack.append(lane)
            self._router.leave()
        else:
            lane.end()
            lane.drop()
            lane.token.append(None)
        # After an exception, the other ranks might not reach the end of their scopes.
        if self._words[0] != self._group.seen and kind is None:  # Word.PENDING
            end(self._group)


class ThreadsScope(Scope):
    """A scope on GPUs that applies to all threads."""

    __slots__ = ()

    def __enter__(self) -> Group:
        self._group.runtime.require()
        self._router.enter(all_threads=True)
        return self._group


class HostScope:
    """A scope on the host backend, possibly a disabled one."""

    __slots__ = ("_group", "_pool")

    def __init__(self, group: Group, disabled: bool):
        self._group = group
        self._pool = ORDINARY if disabled else group.pool

    def __enter__(self) -> Group:
        runtime = self._group.runtime
        runtime.require()
        current = runtime.current
        if not current.pools and loaded():
            current.factories = factories(empty_in_scope)
            current.factories.__enter__()
        current.pools.append((runtime, self._pool))
        return self._group

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        group, current = self._group, self._group.runtime.current
        current.pools.pop()
        if not current.pools and current.factories is not None:
            current.factories.__exit__(kind, error, trace)
            current.factories = None
        if kind is None and group.pending() and self._pool != ORDINARY:
            end(group)


class DisabledScope:
    """A disabled scope on GPUs: its tensors are ordinary, even inside another scope."""

    __slots__ = ("_group", "_router")

    def __init__(self, group: Group, router: Router):
        self._group = group
        self._router = router

    def __enter__(self) -> Group:
        self._router.pause()
        return self._group

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._router.unpause()


class SiteScope:
    """Wraps a scope and makes the line that opens it the call site of what happens inside."""

    __slots__ = ("_group", "_inner")

    def __init__(self, group: Group, inner: AnyScope):
        self._group = group
        self._inner = inner

    def __enter__(self) -> Group:
        runtime = self._group.runtime
        runtime.current.sites.append(runtime.set_site())
        try:
            return self._inner.__enter__()
        except BaseException:
            runtime.library.raw.symmem_set_site(runtime.current.sites.pop())
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        runtime = self._group.runtime
        try:
            # DisabledScope scopes are excluded because ranks may enter them independently.
            if kind is None and runtime.cuda is not None and isinstance(self._inner, Scope):
                # The library does not see PyTorch's tensors, so record their addresses after every
                # scope to find the line at which ranks start to differ.
                note_layout(runtime.cuda, runtime.library, self._group.pool)
            self._inner.__exit__(kind, error, trace)
        finally:
            runtime.library.raw.symmem_set_site(runtime.current.sites.pop())


AnyScope = Scope | HostScope | DisabledScope | SiteScope


def scopes_of(group: Group) -> Scopes:
    """Return new scopes of a group."""
    host, router = HostScope(group, False), group.router
    scopes: list[AnyScope] = [host, HostScope(group, True), host]
    if router is not None:
        scopes = [Scope(group, router), DisabledScope(group, router), ThreadsScope(group, router)]
    if group.runtime.callsites:
        scopes = [SiteScope(group, scope) for scope in scopes]
    return Scopes(*scopes)


class NoScope:
    """A scope without effect, for torch.compile, which places allocations itself."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


def end(group: Group) -> None:
    """Register new segments at the end of a scope, or warn if a capture prevents it."""
    runtime = group.runtime
    runtime.require()
    runtime.attachments.wait_idle(group.handle)
    try:
        group.end_scope(runtime.stream())
    except errors.CapturingError:
        _warn_of_growth(group)


def _warn_of_growth(group: Group) -> None:
    """Warn about unregistered memory in a capture, once for each number of pending segments."""
    word = group.library.words[0]
    if group.warned == word:
        return
    group.warned = word
    warn(
        errors.GrowthInCaptureWarning(
            f"the memory of {group!r} had to grow while a CUDA graph was captured. New memory "
            "cannot be registered during a capture, so the captured collectives treat its tensors "
            "as ordinary ones on every rank and use the direct or plain path, not one that needs "
            "windows. To avoid this, call symmem.reserve(bytes, group) before the capture"
        )
    )
