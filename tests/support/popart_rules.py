"""PopART's own rules, one bool per value, on captured graphs: the negative control of what is said of its weak points.

The complete list of its overrides of `fwdPropagateIsReplicaEqual`, where a captured step has such an op. JAX's check_vma
gives the same answers for cond, while and callbacks: it does not look at predicates, trip counts and what an op computes.
"""

import operator

from torch.fx import Node
from torch.utils import _pytree as pytree

from samebits.replica._analysis.op_schemas import signature


def by_popart(step, equal=(), remote=()):
    """Of each output, whether PopART calls it equal on all ranks.

    `equal`: the inputs that are; `remote`: those that stand for remote buffers, which PopART knows by descriptor only.
    """
    places = [name for name, kind in step.kinds.items() if kind not in {"generator", "constant"}]
    nodes = [node for node in step.module.graph.nodes if node.op == "placeholder"]
    buffers = {node for node, name in zip(nodes, places, strict=True) if name in remote}
    return propagate(step, step.module, [name in equal for name in places], buffers)


def propagate(step, module, given, buffers=()):
    """One pass over one graph, in the order of its ops."""
    held, given, buffers = {}, iter(given), set(buffers)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            held[node] = next(given)
        elif node.op == "get_attr":
            held[node] = True  # a Const
        elif node.op == "output":
            return [held.get(leaf, True) for leaf in pytree.tree_leaves(node.args[0])]
        else:
            held[node] = rule(step, module, node, held, buffers)
            targets = set(written(node))
            buffers |= {node} if targets & buffers else set()  # it returns the buffer that it stored to
            held.update(dict.fromkeys(targets - buffers, held[node]))


def rule(step, module, node, held, buffers):
    """IfOp: both branches, whatever the condition. LoopOp: its body, once. Reductions: by group. Default: all inputs."""
    bodies = [getattr(module, str(one.target)) for one in node.all_input_nodes if one.op == "get_attr"]
    if str(node.target) == "cond":
        operands = [held.get(one, True) for one in node.args[3]]  # a number is equal
        branches = [propagate(step, body, operands) for body in bodies]
        return [all(pair) for pair in zip(*branches, strict=True)]
    if str(node.target) == "while_loop":
        operands = [held.get(one, True) for one in (*node.args[2], *node.args[3])]
        return propagate(step, bodies[1], operands)
    if node.target is operator.getitem and isinstance(held[node.args[0]], list):
        return held[node.args[0]][node.args[1]]
    if "all_reduce" in str(node.target) and len(step.groups[node][0]) == step.world_size:
        return True
    return all(held[one] for one in node.all_input_nodes if one not in buffers)


def written(node):
    """The operands that an op writes to."""
    if not hasattr(node.target, "_schema"):
        return []
    names = signature(node.target).written
    given = [node.args[signature(node.target).position[name]] for name in names]
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Node)]
