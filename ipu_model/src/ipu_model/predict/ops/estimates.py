"""Estimates of ops that the library has no vertex for: transforms, factorisations, distances, searches.

Each is modelled as a program of simpler steps: R rounds, each a chain of vector operations on n elements of the busiest
tile, preceded by an exchange of the data that this tile needs from others. The number of rounds and the chain are those
of the textbook algorithm (named at each rule); whether a device would run that algorithm is not published. Confidence:
estimated. Profiles show these ops as the family "estimated". Symbols: matrices are [..., m, n]; N is the length of a
transform or of a sorted row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import Operand, OpView, OpWork, Rule

FAMILY = "estimated"


@dataclass(frozen=True)
class Rounds:
    """`count` rounds on `elements` each, with the chain `ops` of vector operations.

    `received` is how many elements the busiest tile gets before a round, from how many it works on: all of them,
    or those of a row and of a column of a square piece.
    """

    count: int
    elements: int
    ops: tuple[str, ...]
    received: str = "all"


def estimated(device: Device, rounds: Rounds, element: Element, outputs: int) -> Work:
    """Return the work of `rounds` that leave `outputs` elements, laid out evenly."""
    n = device.spread(max(1, rounds.elements), element)
    heard = n if rounds.received == "all" else min(n, 2 * math.ceil(math.sqrt(n)))
    step = Cycles(compute=vertices.elementwise(device, n, element, rounds.ops, vertices.BINARY))
    step += device.exchange(heard * element.bytes)
    count = max(1, rounds.count)
    return Work(
        FAMILY, step.times(count), temporary_bytes=(n + heard) * element.bytes,
        outputs_on_busiest_tile=device.spread(outputs, element), repeats=count,
    )  # fmt: skip


# Rounds for each column of a matrix, every round an update of rank one with the multiplier's division (Golub and Van
# Loan, Matrix Computations, chapters 3 to 5): elimination takes one; solving with it takes one forward, one back.
_ELIMINATIONS = {
    "_linalg_det": 1, "_linalg_slogdet": 1, "linalg_lu": 1, "linalg_lu_factor_ex": 1, "linalg_cholesky_ex": 1,
    "linalg_solve_triangular": 1, "triangular_solve": 1, "linalg_lu_solve": 2, "cholesky_solve": 2,
    "_linalg_solve_ex": 3, "linalg_inv_ex": 3, "linalg_householder_product": 2, "linalg_qr": 4,
}  # fmt: skip
_ELIMINATION = ("divide", "add", "add")

# Jacobi's method: about ten sweeps, each n - 1 rounds that rotate all pairs of columns (chapter 8.5 there).
_ROTATIONS = ("_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_eigvals", "linalg_pinv")
_SWEEPS = 10
_ROTATION = ("add", "add", "add")

# Scaling and squaring: some ten products of matrices, each n updates of rank one (chapter 9.3 there).
_EXPONENTIAL_PRODUCTS = 10

# A butterfly takes ten additions and multiplications on four numbers (Cooley and Tukey 1965).
_BUTTERFLY = ("add", "add", "add")
_TRANSFORMS = ("_fft_r2c", "_fft_c2c", "_fft_c2r")

_DISTANCES = ("_cdist_forward", "_cdist_backward", "_pdist_forward", "_pdist_backward")
_SEARCHES = {"searchsorted": (0, 1), "bucketize": (1, 0), "isin": (1, 0)}


def _estimate(op: OpView, rounds: Rounds) -> OpWork:
    first = op.outputs[0]
    return op.takes(estimated(op.device, rounds, op.element, first.elements if first is not None else 1))


def _matrices(op: OpView) -> tuple[Operand, int]:
    """Return the matrices [..., m, n] that an op works on, the largest operand, and the shorter of m and n."""
    matrices = max((o for o in op.operands() if len(o.shape) > 1), key=lambda o: o.elements)
    return matrices, min(matrices.shape[-2:])


def cost_elimination(op: OpView) -> OpWork:
    """Cost a factorisation or solution by elimination."""
    matrices, columns = _matrices(op)
    return _estimate(op, Rounds(_ELIMINATIONS[op.kind] * columns, matrices.elements, _ELIMINATION, "row and column"))


def cost_rotations(op: OpView) -> OpWork:
    """Cost singular values or eigenvalues by Jacobi's rotations."""
    matrices, columns = _matrices(op)
    return _estimate(op, Rounds(_SWEEPS * max(1, columns - 1), 2 * matrices.elements, _ROTATION))


def cost_exponential(op: OpView) -> OpWork:
    """Cost the exponential of square matrices."""
    matrices, columns = _matrices(op)
    return _estimate(op, Rounds(_EXPONENTIAL_PRODUCTS * columns, matrices.elements, ("add", "add"), "row and column"))


def cost_transform(op: OpView) -> OpWork:
    """Cost a Fourier transform: log2(N) rounds for each dimension; a complex element is two numbers."""
    longest = max((op.needed(0).tensor, op.output()), key=lambda tensor: tensor.elements)
    rounds = sum(math.ceil(math.log2(max(2, longest.shape[dim]))) for dim in op.argument(1))
    return _estimate(op, Rounds(rounds, 2 * longest.elements, _BUTTERFLY))


def cost_distances(op: OpView) -> OpWork:
    """Cost the distances of rows from rows: every feature of every pair, twice for a gradient."""
    rows = op.needed(1 if op.kind.endswith("backward") else 0)
    pairs = _pairs(op)
    chain = ("add", "square", "add") * (2 if op.kind.endswith("backward") else 1)
    return _estimate(op, Rounds(1, pairs * rows.shape[-1], chain, "row and column"))


def _pairs(op: OpView) -> int:
    """Return how many distances there are: the result, or the incoming gradient."""
    return op.needed(0).elements if op.kind.endswith("backward") else op.output().elements


def cost_search(op: OpView) -> OpWork:
    """Cost looking up values in sorted rows by bisection: log2(N) rounds."""
    table, _ = _SEARCHES[op.kind]
    row = op.needed(table).shape[-1:] or (1,)
    return _estimate(op, Rounds(math.ceil(math.log2(row[0] + 1)), op.output().elements, ("plain", "compare")))


def cost_trilinear(op: OpView) -> OpWork:
    """Cost a sum over products of three tensors: every product of their joint shape, once."""
    terms = max(1, math.prod(_joint_shape(op)))
    return _estimate(op, Rounds(1, terms, ("add", "add", "add"), "row and column"))


def _joint_shape(op: OpView) -> list[int]:
    """Return the shape that the three operands have with the dimensions that each lacks (arguments 3 to 5)."""
    shapes = []
    for position in range(3):
        shape = list(op.needed(position).shape)
        for dim in sorted(op.argument(3 + position)):
            shape.insert(dim, 1)
        shapes.append(shape)
    return [max(sizes) for sizes in zip(*shapes)]


def cost_renorm(op: OpView) -> OpWork:
    """Cost rows scaled down to a length: their norms, then a product."""
    return _estimate(op, Rounds(2, op.output().elements, ("square", "add"), "row and column"))


def cost_margins(op: OpView) -> OpWork:
    """Cost the margins of every class with every target of a row [..., C]: C^2 comparisons a row."""
    source = op.needed(int(op.kind.endswith("backward")))
    return _estimate(op, Rounds(1, source.elements * source.shape[-1], ("add", "maximum", "add"), "row and column"))


def cost_grid(op: OpView) -> OpWork:
    """Cost a grid of points transformed by small matrices: a product and a sum for each coordinate of each point."""
    return _estimate(op, Rounds(1, op.output().elements, ("add",) * 2 * op.output().shape[-1], "row and column"))


def cost_histogram(op: OpView) -> OpWork:
    """Cost counting elements by bin: where each belongs, and a scattered addition."""
    return _estimate(op, Rounds(1, op.needed(0).elements, ("divide", "plain", "plain")))


def cost_draws(op: OpView) -> OpWork:
    """Cost drawing by weight: running sums (log2(N) rounds of the table), then a search for each draw."""
    source = op.needed(0)
    return _estimate(op, Rounds(2 * math.ceil(math.log2(source.shape[-1] + 1)), source.elements, ("random", "add")))


RULES = (
    Rule(tuple(_ELIMINATIONS), cost_elimination),
    Rule(_ROTATIONS, cost_rotations),
    Rule(_TRANSFORMS, cost_transform),
    Rule(_DISTANCES, cost_distances),
    Rule(tuple(_SEARCHES), cost_search),
    Rule(("linalg_matrix_exp",), cost_exponential),
    Rule(("_trilinear",), cost_trilinear),
    Rule(("renorm",), cost_renorm),
    Rule(("multilabel_margin_loss_forward", "multilabel_margin_loss_backward"), cost_margins),
    Rule(("affine_grid_generator",), cost_grid),
    Rule(("histc",), cost_histogram),
    Rule(("multinomial",), cost_draws),
)
