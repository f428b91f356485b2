"""The second way to see an all-reduce: a communication hook that changes no bit of the training.

Used on request (`DDPVIZ_OBSERVE=comm-hook`) and to check the first way. It names each bucket and its parameters
exactly. It does not see: the map of used parameters, buffers, `python_reducer`, C++ built-in hooks registered before
it, any hook registered before ddpviz was attached, and what a user's hook really sends. While it stands in, an error of
the all-reduce reaches the script with a line of PyTorch's about a callback around it.

What torch's reducer does and this hook repeats (reducer.cpp, compared bit by bit in the tests):
- without a hook it multiplies by 1/N while copying a gradient into its bucket, but divides by N where the gradient
  already is a view of the bucket, and where it is sparse; with a hook it does neither.
- N is the group's size, except under `join(divide_by_initial_world_size=False)`: the ranks still active.
- a hook can be registered only once, by whomever: ours goes in as late as possible and makes way for the user's.

Imports torch; private names through `torch_private`. Nothing hangs on the module, nothing here holds it or its reducer.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ddpviz.probe import torch_private
from ddpviz.probe.guard import fault


class Observer(Protocol):
    """Told about each bucket, on the thread that launches it and on the one that completes it."""

    def launched(self, module: int, bucket: int, tensor: Tensor, divided: bool, parameters: Sequence[Tensor]) -> Any:
        """A bucket goes out. `tensor` is flat and holds this rank's gradients, already divided by the number of ranks
        if `divided`; may be a sparse gradient. Take numbers, keep nothing. The value is handed to `finished`."""

    def finished(self, token: Any, result: Tensor | None, error: bool) -> None:
        """It came back: what the reducer will put into the gradients, or None where that is not a tensor."""


class Watch:
    """One module's reducer. `kind`: "waiting" before any hook, "own", "user" (wrapped), or "unseen"."""

    def __init__(self, reducer: Any, observer: Observer) -> None:
        self.key: int | None = None
        self.kind = "waiting"
        self.observer: Observer | None = observer
        self._reducer = weakref.ref(reducer)
        self._views = False
        self._ranks = 1
        self._parameters: list[weakref.ref[Tensor]] = []
        self._storage: dict[int, int] = {}  # by parameter id: where its gradient lay when it was last added to
        self._joined: tuple[Any, bool] | None = None
        self._user: tuple[Any, Callable[..., Any]] | None = None

    def bind(self, key: int, ddp: Any) -> None:
        """Name the module: at its construction, or later."""
        self.key = key
        self._views = bool(getattr(ddp, "gradient_as_bucket_view", False))
        self._ranks = ddp.process_group.size()
        parameters = [p for p in ddp._module_parameters if p.requires_grad]
        self._parameters = [weakref.ref(p) for p in parameters]
        if self.kind != "waiting":
            return
        if torch_private.comm_hook_name(ddp) or getattr(ddp, "_use_python_reducer", False):
            self.kind = "unseen"
        elif any(p.is_complex() for p in parameters):
            self.kind = "unseen"  # complex numbers times a real scalar round otherwise in a flat real bucket

    def before_backward(self) -> None:
        """Call at every outermost engine call: the first one puts our hook in, if nobody's is there."""
        reducer = self._reducer()
        if self.kind != "waiting" or self.key is None or reducer is None or self.observer is None:
            return
        if self._views:
            self._follow_gradients()
        try:
            torch_private.register_comm_hook(reducer, self, _own_hook)
            self.kind = "own"
        except RuntimeError as error:
            self.kind = "unseen"
            fault("commhook.register", error)

    def _follow_gradients(self) -> None:
        """Note where each gradient lies right before the reducer looks at it: a view of its bucket, or its own."""
        storage = self._storage

        def note(p: Tensor) -> None:
            try:
                if p.grad is not None and p.grad.layout is torch.strided:
                    storage[id(p)] = p.grad.untyped_storage().data_ptr()
            except Exception as error:
                fault("commhook.note", error)

        for ref in self._parameters:
            p = ref()
            if p is not None:
                note(p)
                p.register_post_accumulate_grad_hook(note)

    def divisor(self) -> int:
        """What the reducer would divide by."""
        if self._joined is None or self._joined[1]:
            return self._ranks
        work = self._joined[0]
        work.wait()
        return int(work.get_future().value()[0].item())

    def scale(self, bucket: Any) -> None:
        """Turn the bucket's gradients into this rank's share of the mean, with the reducer's own arithmetic."""
        buffer, n = bucket.buffer(), self.divisor()
        with torch.no_grad():
            if buffer.layout is not torch.strided:
                buffer.div_(n)
                return
            if not self._views:
                buffer.mul_(1.0 / n)
                return
            home = buffer.untyped_storage().data_ptr()
            parameters = bucket.parameters()
            viewed = [self._storage.get(id(p)) == home for p in parameters]
            if not any(viewed):
                buffer.mul_(1.0 / n)
            elif all(viewed):
                buffer.div_(n)
            else:
                for gradient, is_view in zip(bucket.gradients(), viewed, strict=True):
                    if is_view:
                        gradient.div_(n)
                    else:
                        gradient.mul_(1.0 / n)
            for p in parameters:
                if p.grad is not None:
                    self._storage[id(p)] = home  # from here on it is a view

    def all_reduce(self, bucket: Any) -> Any:
        """The reducer's own all-reduce of a bucket; a future of the averaged tensor."""
        return torch_private.run_all_reduce(self._reducer(), bucket).then(_first)

    def launched(self, bucket: Any, divided: bool) -> Any:
        observer = self.observer
        if observer is None or self.key is None:
            return None
        try:
            return observer.launched(self.key, bucket.index(), bucket.buffer(), divided, bucket.parameters())
        except Exception as error:
            fault("commhook.launched", error)
            return None

    def follow(self, future: Any, token: Any) -> None:
        """Tell the observer when the future is done. The future itself stays as it is."""
        observer = self.observer
        if observer is None:
            return

        def done(completed: Any) -> None:
            try:
                value, failed = None, False
                try:
                    value = completed.value()
                except Exception:
                    failed = True
                if isinstance(value, (list, tuple)) and len(value) == 1:
                    value = value[0]
                observer.finished(token, value if isinstance(value, Tensor) else None, failed)
            except Exception as error:
                fault("commhook.finished", error)

        try:
            future.add_done_callback(done)
        except Exception as error:
            fault("commhook.follow", error)

    def joined(self, work: Any, static: bool) -> None:
        self._joined = (work, static)

    def take_user_hook(self, state: Any, hook: Callable[..., Any]) -> bool:
        """The user registers a hook while ours is in: from now on ours calls it. False if they had done so before."""
        if self.kind != "own" or self._user is not None:
            return False
        self._user = (state, hook)
        self.kind = "user"
        return True

    def run(self, bucket: Any) -> Any:
        if self._user is not None:
            state, hook = self._user
            token = self.launched(bucket, False)
            future = hook(state, bucket)
        else:
            self.scale(bucket)
            token = self.launched(bucket, True)
            future = self.all_reduce(bucket)
        self.follow(future, token)
        return future


def _own_hook(watch: Watch, bucket: Any) -> Any:
    return watch.run(bucket)


def _first(future: Any) -> Tensor:
    value = future.value()
    return value[0] if isinstance(value, (list, tuple)) else value  # type: ignore[no-any-return]


def _builtin(watch: Watch, compress: bool) -> Callable[..., Any]:
    """The C++ built-in hooks, for a user who registers one after ours is in. default_comm_hooks.cpp is the source."""

    def all_reduce(state: Any, bucket: Any) -> Any:
        if not compress:
            bucket.buffer().div_(watch._ranks)
            return watch.all_reduce(bucket)
        buffer = bucket.buffer()
        bucket.set_buffer(buffer.to(torch.float16).div_(watch._ranks))
        return torch_private.run_all_reduce(watch._reducer(), bucket).then(lambda f: buffer.copy_(_first(f)))

    return all_reduce


class CommHooks:
    """The watches of one process, and the three functions of torch through which hooks and `join` reach a reducer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._watches: weakref.WeakKeyDictionary[Any, Watch] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """See hooks that are registered from now on. Stays for the life of the process, as a hook in a reducer does."""
        torch_private.replace_hook_registration(self._registering, self._registering_builtin, self._joining)

    def watch(self, key: int, ddp: Any) -> Watch:
        """Watch a module: at its construction, or later."""
        watch = self._of(ddp.reducer)
        watch.bind(key, ddp)
        return watch

    def stop(self) -> None:
        """Tell the observer nothing more. Our hook cannot leave a reducer: it goes on with the right arithmetic."""
        for watch in list(self._watches.values()):
            watch.observer = None

    def _of(self, reducer: Any) -> Watch:
        """The reducer's watch; a new one where a hook is registered inside DDP's constructor, before `watch`."""
        watch = self._watches.get(reducer)
        if watch is None:
            watch = self._watches[reducer] = Watch(reducer, self._observer)
        return watch

    def _registering(self, original: Callable[..., Any], reducer: Any, state: Any, hook: Callable[..., Any]) -> Any:
        watch = self._of(reducer)
        if watch.take_user_hook(state, hook):
            return None
        if watch.kind != "waiting":
            return original(reducer, state, hook)  # torch's own refusal

        @functools.wraps(hook)
        def watched(state: Any, bucket: Any) -> Any:
            token = watch.launched(bucket, False)
            future = hook(state, bucket)
            watch.follow(future, token)
            return future

        result = original(reducer, state, watched)
        watch.kind = "user"
        return result

    def _registering_builtin(self, original: Callable[..., Any], reducer: Any, kind: Any) -> Any:
        watch = self._of(reducer)
        if watch.take_user_hook(None, _builtin(watch, "FP16" in str(kind))):
            return None
        result = original(reducer, kind)
        watch.kind = "unseen"
        return result

    def _joining(self, reducer: Any, work: Any, static: bool) -> None:
        try:
            self._of(reducer).joined(work, static)
        except Exception as error:
            fault("commhook.joining", error)
