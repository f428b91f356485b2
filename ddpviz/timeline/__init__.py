"""What the ranks did, aligned: `fold.Fold` builds it from a trace, `model.Timeline` is what everything else reads."""
