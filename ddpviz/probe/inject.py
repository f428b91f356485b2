"""Installs the probe: every patch goes on here and can be taken off again. Called once a process, right after torch.

Nothing is written until the process turns out to be a rank (see `session.open`).
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddpviz.probe import collectives, engine, exits, forwards, guard, session, sources, steps, torch_private
from ddpviz.probe.session import Session
from ddpviz.trace import records as r

_MARK = (
    "DDPVIZ_RANK_PID"  # set where a rank writes, so that a Python it starts with its environment does not pose as it
)


class Patches:
    """What was replaced, so that it can be put back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self.extra: list[Callable[[], Any]] = []  # what else is to be taken off: handles, hooks of groups

    def __call__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`; does nothing if there is no such name."""
        original = getattr(owner, name, None)
        if original is None:
            return
        replacement = make(original)
        setattr(owner, name, replacement)
        self._undo.append((owner, name, original, replacement))

    def undo(self) -> None:
        """Put everything back that nobody else has replaced since."""
        for owner, name, original, replacement in reversed(self._undo):
            if getattr(owner, name, None) is replacement:
                setattr(owner, name, original)
        self._undo.clear()
        for take_off in self.extra:
            take_off()
        self.extra.clear()

    def codes(self) -> list[Any]:
        return [f.__code__ for _, _, _, f in self._undo if hasattr(f, "__code__")]


_patches: Patches | None = None


def install(state: Session) -> None:
    """Put the probe's patches on (once a process)."""
    global _patches
    if _patches is not None or not dist.is_available():
        return
    patches = _patches = Patches()
    engine.wrap_engine(state, patches)
    forwards.wrap_ddp(state, patches)
    collectives.wrap_group_functions(state, patches)
    steps.wrap_gradient_functions(state, patches)
    patches.extra += [handle.remove for handle in steps.hook_steps(state)]
    patches.extra.append(functools.partial(collectives.release, state))
    exits.watch_exits(state, patches)
    _wrap_init(state, patches)
    sources.install(state, patches)
    _mind_dynamo(patches)
    if dist.is_initialized() and state.writer is not None:
        collectives.find_groups(state)


def uninstall() -> None:
    """Take every patch and hook off again; a later `install` puts them back on."""
    global _patches
    patches, _patches = _patches, None
    if patches is not None:
        patches.undo()


def _wrap_init(state: Session, patches: Patches) -> None:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            state.open()
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                guard.guarded(engine.refused)(state, "init_process_group", error, state.sites.here(2), [])
                raise
            tell_rank(state)
            return result

        return init_process_group

    for owner in (dist, dist.distributed_c10d):
        patches(owner, "init_process_group", make)


@guard.guarded
def tell_rank(state: Session) -> None:
    """Say which rank this is, as the process group knows it."""
    if state.writer is None or not dist.is_initialized():
        return
    state.rank = dist.get_rank()
    state.writer.share(dist.get_world_size())
    os.environ[_MARK] = str(os.getpid())
    local = os.environ.get("LOCAL_RANK", "")
    backend = str(dist.get_backend())
    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() and "nccl" in backend else "cpu"
    state.emit(
        r.RankIs(
            rank=state.rank,
            world_size=dist.get_world_size(),
            local_rank=int(local) if local.isdigit() else state.rank,
            backend=backend,
            at=time.monotonic_ns(),
            device=device,
        )
    )
    collectives.find_groups(state)


def _mind_dynamo(patches: Patches) -> None:
    """When dynamo is imported, have it run our wrappers as it runs torch's own: untraced, no graph break."""
    if "torch._dynamo.eval_frame" in sys.modules:
        torch_private.skip_in_dynamo(patches.codes(), guard.codes(), guard.around)
        return

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name == "torch._dynamo.eval_frame":
                import importlib.machinery

                sys.meta_path.remove(self)
                spec = importlib.machinery.PathFinder.find_spec(name, path, target)
                loader = getattr(spec, "loader", None)
                if loader is not None:
                    original = loader.exec_module

                    def exec_module(module: Any) -> None:
                        original(module)
                        guard.guarded(torch_private.skip_in_dynamo)(patches.codes(), guard.codes(), guard.around)

                    loader.exec_module = exec_module
                return spec
            return None

    sys.meta_path.insert(0, Finder())


def install_from_environment() -> None:
    """What `sitecustomize` calls: read the environment that `ddpviz run` set, and install."""
    folder = os.environ.get("DDPVIZ_RUN_DIR")
    if not folder:
        return
    redirected = os.environ.get("DDPVIZ_REDIRECT") == "1"
    if redirected:
        from ddpviz.probe import redirect

        redirect.install()
    state = session.start(
        Path(folder), budget_of(os.environ.get("DDPVIZ_BUDGET")), os.environ.get("DDPVIZ_OBSERVE") or None, redirected
    )
    install(state)
    names = os.environ.get("DDPVIZ_CONTROL")
    if names is not None and _patches is not None:  # a job that takes live orders; no other pays for them
        from ddpviz.probe import control

        control.install(state, _patches, Path(folder), names)
    if os.environ.get("RANK", "").isdigit() and _MARK not in os.environ and multiprocessing.parent_process() is None:
        os.environ[_MARK] = str(os.getpid())
        state.open()


def budget_of(text: str | None) -> float | None:
    """Percent from `DDPVIZ_BUDGET`: a number, or `full` for None. Anything else is the default of 2."""
    if text == "full":
        return None
    try:
        return float(text) if text else 2.0
    except ValueError:
        return 2.0
