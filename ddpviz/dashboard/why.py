"""Why things happen, for a beginner: the second sentence that a teacher adds to the narration. Words only."""

from __future__ import annotations

from ddpviz.language import N_

# Kinds of moments that are told even to those who want quiet: the steps, and what is wrong.
QUIET = frozenset(
    {"start", "mixed", "partial", "unfinished", "step", "step synced", "step local", "step stale", "step mixed"}
)
WHY = {
    "start": N_(
        "Each rank is a Python process of its own, with its own copy of the model; they meet in a process group "
        "before they can exchange anything."
    ),
    "wrapped": N_(
        "DDP trains one model in many copies (replicas): each rank sees other data, and the gradients are "
        "averaged over all ranks (all-reduce), so that every optimizer step is the same everywhere."
    ),
    "running": N_("Backward goes through the model from its end to its beginning, so the last layers are ready first."),
    "moving": N_(
        "DDP does not wait for the whole backward: parameters are gathered in buckets, and a bucket is sent as "
        "soon as its last gradient is there."
    ),
    "local": N_(
        "Gradients add up in .grad until they are cleared, so there is no need to average each of them: "
        "averaging the sum once, before the step, gives the same and costs less."
    ),
    "synced": N_(
        "The all-reduce sums over the ranks and divides by their number: from here on every rank holds the same "
        "gradient, as if one GPU had seen all the batches."
    ),
    "partial": N_("What was not averaged differs from rank to rank, and a step with it lets the replicas part."),
    "mixed": N_("An all-reduce needs every rank: the others wait, or average with something else."),
    "unfinished": N_("The others may wait in their all-reduce for what this rank no longer sends."),
    "alone": N_("With one rank DDP averages over one: nothing has to be sent."),
    "step": N_("The optimizer changes the parameters by the gradients that are in .grad at this moment."),
    "step synced": N_(
        "All ranks started from equal parameters and used equal gradients, so they end with equal parameters: "
        "nobody has to send the model."
    ),
    "step local": N_(
        "Each rank moved in its own direction; PyTorch raises no error, and later averaging of gradients does "
        "not bring the parameters together again."
    ),
    "step stale": N_(
        "The all-reduce averages what is in .grad when it runs; what is added later stays on its own rank, so "
        "the synchronised micro-step has to be the last before the step."
    ),
    "step mixed": N_("Only what was averaged is the same on all ranks; the rest lets the replicas part."),
}
