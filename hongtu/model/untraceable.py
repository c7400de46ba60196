"""What is said of a forward that cannot be traced."""

from __future__ import annotations

import linecache
import sys

from torch.fx.proxy import TraceError

from hongtu.errors import InputError
from hongtu.model.in_place import OF_NUMPY, ChangingProxy
from hongtu.model.root import OF_EDGES, GivenData, NoField, Root

SAME_WAY = (
    "its way must be the same for every graph: leave out what prints or checks numbers, make what decides in __init__"
)
SHOWN = 150  # characters of a line of code in a message
OF_DATA = ("x", "edge_index", "adj_t", *OF_EDGES)  # fields that a forward may read
_OF_WHOLE = (
    "num_edges", "is_undirected", "is_directed", "has_self_loops", "contains_self_loops", "has_isolated_nodes",
    "is_coalesced", "num_edge_features", "edge_attrs", "keys", "validate",
)  # fmt: skip


def untraceable(error: Exception, root: Root, title: str) -> InputError:
    """What to raise for an error of a forward that was called with what stands for rows and edges."""
    reason = " ".join(str(error).partition("If you want this call")[0].split())[:150] or type(error).__name__
    at = f"; in {line}" if (line := line_of_forward(error)) else ""
    reason += at
    remedy = "what it makes must be made of rows, as torch.ones_like(x[:, :1]): give its layers as a list"
    if OF_NUMPY in reason:
        remedy = "torch's functions take rows, as torch.tanh(h) for numpy.tanh(h), and give gradients"
    elif isinstance(error, TraceError):
        remedy = f"{SAME_WAY}, or give its layers as a list"
    elif isinstance(error, NoField):
        reason, remedy = (
            f"it asks for {str(error)!r}",
            f"there are {', '.join(OF_DATA)}: put what else vertices have into x, and edges into edge_attr",
        )
        if str(error).endswith("_mask"):
            remedy = "return the rows of all vertices: the Trainer takes its loss over the train mask"
        elif str(error) in _OF_WHOLE:
            remedy = "make what depends on the whole graph in __init__"
        elif str(error).endswith("_dict"):
            remedy = "of a HeteroData have it take dictionaries, as forward(self, x_dict, edge_index_dict)"
    elif root.unnamed and not root.edges and isinstance(error, TypeError | LookupError):
        reason = f"its {' and '.join(root.unnamed)} do not say what is rows and what is edges"
        remedy = "name them, as forward(self, x, edge_index)"
    elif not root.asked:
        reason, remedy = "it takes nothing", "have it take rows and edges, as forward(self, x, edge_index)"
    elif (ChangingProxy.__name__ in str(error) and "'size'" not in reason) or "dynamo-optimized" in reason:
        reason = (
            f"it calls what takes no less than tensors, as functions of torch.jit, torch.compile and torch.vmap{at}"
        )
        remedy = (
            "call that in the forward of a torch.nn.Module of its own that takes rows, as self.act(h): it is called as "
            "it is"
        )
    elif GivenData.__name__ in reason:
        reason = f"its one argument {root.asked[0]} is a Data, of {', '.join(OF_DATA)}"
        remedy = "read these, or take rows and edges, as forward(self, x, edge_index)"
    return InputError(f"{title}.forward cannot be traced ({reason}); {remedy}")


def line_of_forward(error: Exception) -> str:
    """The innermost line of the model's own code that an error went through; "" where there is none."""
    libraries = {"torch", "torch_geometric", "hongtu", *sys.stdlib_module_names}
    line, traceback = "", error.__traceback__
    while traceback is not None:
        code, module = traceback.tb_frame.f_code, str(traceback.tb_frame.f_globals.get("__name__"))
        if module.split(".")[0] not in libraries:
            text = linecache.getline(code.co_filename, traceback.tb_lineno).strip()
            line = f"line {traceback.tb_lineno}: {text.rstrip(':')}"
        traceback = traceback.tb_next
    return line[:SHOWN]
