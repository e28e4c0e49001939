"""Names that options of commands take, for their help; nothing that takes long is loaded for them."""

from rooflinekit.distributed.records import NAMED as STRATEGIES

__all__ = ["STRATEGIES"]
