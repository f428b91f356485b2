"""The two ways to see an all-reduce put in by hand, without the rest of the probe: what `job.py --watch` uses."""

import torch

from ddpviz.probe import commhook, dispatched, guard


class CommHook:
    """The comm hook alone, with an observer that reads what it is shown."""

    def __init__(self):
        self.hooks = commhook.CommHooks(self)
        self.hooks.install()
        self.watches = []
        self.seen = 0
        engine = torch.autograd.graph._engine_run_backward

        def run(*args, **kwargs):
            for watch in self.watches:
                watch.before_backward()
            return engine(*args, **kwargs)

        torch.autograd._engine_run_backward = run
        torch.autograd.graph._engine_run_backward = run

    def __call__(self, ddp):
        self.watches = [w for w in self.watches if w._reducer() is not None]
        self.watches.append(self.hooks.watch(len(self.watches), ddp))

    def late(self, ddp):
        pass

    def launched(self, module, bucket, tensor, divided, parameters):
        self.seen += 1
        return float(tensor.detach().double().norm() if not tensor.is_sparse else 0.0)

    def finished(self, token, result, error):
        self.seen += isinstance(token, float) and not error and isinstance(result, torch.Tensor)


class Collectives:
    """The kernels in front of c10d's operators alone."""

    def __init__(self):
        self.seen = 0
        self.kept = dispatched.install(self)

    def __call__(self, ddp):
        pass

    def late(self, ddp):
        pass

    def before(self, group, args):
        self.seen += sum(t.numel() for t in args.input_tensors)

    def after(self, group, args):
        if args.work is not None:
            args.work.get_future().add_done_callback(lambda future: None)


class Attach:
    """`ddpviz.attach` as a user writes it, right after the module is built."""

    def __call__(self, ddp):
        import ddpviz

        ddpviz.attach(ddp)

    def late(self, ddp):
        pass


class AttachLate(Attach):
    """... and after a few passes."""

    def __call__(self, ddp):
        pass

    def late(self, ddp):
        super().__call__(ddp)


class Divides(CommHook):
    """Sabotage: divides where the reducer multiplies."""

    def __call__(self, ddp):
        commhook.Watch.scale = lambda watch, bucket: bucket.buffer().div_(watch.divisor())
        super().__call__(ddp)


class Multiplies(CommHook):
    """Sabotage: multiplies where the reducer divides, and forgets that ranks leave a join."""

    def __call__(self, ddp):
        commhook.Watch.scale = lambda watch, bucket: bucket.buffer().mul_(1.0 / watch._ranks)
        super().__call__(ddp)


class Draws(CommHook):
    """Sabotage: draws one random number."""

    def launched(self, module, bucket, tensor, divided, parameters):
        torch.rand(())
        return super().launched(module, bucket, tensor, divided, parameters)


class KeepsAGradient(CommHook):
    """Sabotage: keeps a gradient, so that its memory outlives zero_grad."""

    kept = None

    def launched(self, module, bucket, tensor, divided, parameters):
        self.kept = parameters[0].grad
        return super().launched(module, bucket, tensor, divided, parameters)


WATCHERS = {
    "comm-hook": CommHook,
    "collectives": Collectives,
    "attach": Attach,
    "attach-late": AttachLate,
    "divides": Divides,
    "multiplies": Multiplies,
    "draws": Draws,
    "keeps-a-gradient": KeepsAGradient,
}
FAULTS = guard.FAULTS
