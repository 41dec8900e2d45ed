"""Estimates of ops that the library has no vertex for: transforms, factorisations, distances, searches.

Each is modelled as a program of simpler steps: R rounds, each a chain of vector operations on n elements of the busiest
tile, preceded by an exchange of the data that this tile needs from others. The number of rounds and the chain are those
of the textbook algorithm (named at each rule); whether a device would run that algorithm is not published. Confidence:
estimated. Profiles show these ops as the family "estimated". Symbols: matrices are [..., m, n]; N is the length of a
transform or of a sorted row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import Operand, OpView, OpWork, costs


@dataclass(frozen=True)
class Rounds:
    """`count` rounds on `elements` each, with the chain `ops` of vector operations.

    Before a round, the busiest tile receives `all` elements that it works on, or those of a row and of a column of a
    square piece.
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
        "estimated",
        step.times(count),
        temporary_bytes=(n + heard) * element.bytes,
        outputs_on_busiest_tile=device.spread(outputs, element),
        repeats=count,
    )


def _matrices(op: OpView) -> tuple[Operand, int]:
    """Return the matrices [..., m, n] that an op works on, the largest operand, and the shorter of m and n."""
    matrices = max((o for o in op.operands() if len(o.shape) > 1), key=lambda o: o.elements)
    return matrices, min(matrices.shape[-2:])


# Rounds for each column of a matrix, every round an update of rank one with the multiplier's division (Golub and Van
# Loan, Matrix Computations, chapters 3 to 5): elimination takes one; solving with it takes one forward, one back.
_ELIMINATIONS = {
    **dict.fromkeys(("_linalg_det", "_linalg_slogdet", "linalg_lu", "linalg_lu_factor_ex", "linalg_cholesky_ex"), 1),
    **dict.fromkeys(("linalg_solve_triangular", "triangular_solve"), 1),
    **dict.fromkeys(("linalg_lu_solve", "cholesky_solve", "linalg_householder_product"), 2),
    **dict.fromkeys(("_linalg_solve_ex", "linalg_inv_ex"), 3),
    "linalg_qr": 4,
}


def _elimination(op: OpView) -> Rounds:
    matrices, columns = _matrices(op)
    return Rounds(_ELIMINATIONS[op.kind] * columns, matrices.elements, ("divide", "add", "add"), "row and column")


def _transform(op: OpView) -> Rounds:
    """A Fourier transform: log2(N) rounds for each dimension; a complex element is two numbers.

    A butterfly takes ten additions and multiplications on four numbers (Cooley and Tukey 1965).
    """
    longest = max((op.needed(0).tensor, op.output()), key=lambda tensor: tensor.elements)
    rounds = sum(math.ceil(math.log2(max(2, longest.shape[dim]))) for dim in op.argument(1))
    return Rounds(rounds, 2 * longest.elements, ("add", "add", "add"))


def _distances(op: OpView) -> Rounds:
    """The distances of rows from rows: every feature of every pair, twice for a gradient."""
    backward = op.kind.endswith("backward")
    features = op.needed(int(backward)).shape[-1]
    pairs = op.needed(0).elements if backward else op.output().elements
    return Rounds(1, pairs * features, ("add", "square", "add") * (1 + backward), "row and column")


def _search(op: OpView) -> Rounds:
    """Looking up values in sorted rows by bisection: log2(N) rounds."""
    row = op.needed(0 if op.kind == "searchsorted" else 1).shape[-1:] or (1,)
    return Rounds(math.ceil(math.log2(row[0] + 1)), op.output().elements, ("plain", "compare"))


def _trilinear(op: OpView) -> Rounds:
    """A sum over products of three tensors: every product of their joint shape, once.

    Arguments 3 to 5 are the dimensions of the joint shape that each operand lacks.
    """
    shapes = []
    for position in range(3):
        shape = list(op.needed(position).shape)
        for dim in sorted(op.argument(3 + position)):
            shape.insert(dim, 1)
        shapes.append(shape)
    terms = math.prod(max(sizes) for sizes in zip(*shapes))
    return Rounds(1, max(1, terms), ("add", "add", "add"), "row and column")


def _margins(op: OpView) -> Rounds:
    """The margins of every class with every target of a row [..., C]: C^2 comparisons a row."""
    source = op.needed(int(op.kind.endswith("backward")))
    return Rounds(1, source.elements * source.shape[-1], ("add", "maximum", "add"), "row and column")


def _draws(op: OpView) -> Rounds:
    """Drawing by weight: running sums (log2(N) rounds of the table), then a search for each draw."""
    source = op.needed(0)
    return Rounds(2 * math.ceil(math.log2(source.shape[-1] + 1)), source.elements, ("random", "add"))


def _of_matrices(op: OpView) -> Rounds:
    matrices, columns = _matrices(op)
    if op.kind == "linalg_matrix_exp":
        # Scaling and squaring: some ten products of matrices, each n updates of rank one (chapter 9.3 there).
        return Rounds(10 * columns, matrices.elements, ("add", "add"), "row and column")
    # Jacobi's method: about ten sweeps, each n - 1 rounds that rotate all pairs of columns (chapter 8.5 there).
    return Rounds(10 * max(1, columns - 1), 2 * matrices.elements, ("add", "add", "add"))


_ROUNDS: Mapping[str, Callable[[OpView], Rounds]] = {
    " ".join(_ELIMINATIONS): _elimination,
    "_linalg_svd _linalg_eigh linalg_eig linalg_eigvals linalg_pinv linalg_matrix_exp": _of_matrices,
    "_fft_r2c _fft_c2c _fft_c2r": _transform,
    "_cdist_forward _cdist_backward _pdist_forward _pdist_backward": _distances,
    "searchsorted bucketize isin": _search,
    "_trilinear": _trilinear,
    "multilabel_margin_loss_forward multilabel_margin_loss_backward": _margins,
    "multinomial": _draws,
    # Rows scaled down to a length: their norms, then a product.
    "renorm": lambda op: Rounds(2, op.output().elements, ("square", "add"), "row and column"),
    # A grid of points transformed by small matrices: a product and a sum for each coordinate of each point.
    "affine_grid_generator": lambda op: Rounds(
        1, op.output().elements, ("add",) * 2 * op.output().shape[-1], "row and column"
    ),
    # Counting elements by bin: where each belongs, and a scattered addition.
    "histc": lambda op: Rounds(1, op.needed(0).elements, ("divide", "plain", "plain")),
}


def _cost(rounds_of: Callable[[OpView], Rounds], op: OpView) -> OpWork:
    outputs = op.outputs[0].elements if op.outputs[0] is not None else 1
    return op.takes(estimated(op.device, rounds_of(op), op.element, outputs))


for _kinds, _rounds_of in _ROUNDS.items():
    costs(_kinds)(partial(_cost, _rounds_of))
