"""What is refused, by which class of error and in which words: one line for each mistake.

`<a | b>` stands for a mistake with each of the values, and `$1` in the message for the value of the first such place;
` ... ` is between parts of a message.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, in_training, inference, on_device, quiet, training
from torch import Tensor, nn

import popart
import poptorch
from ipu_model.custom_ops import register
from poptorch import MultiConv, OverlapMode, _impl, _logging, _optimizer_attributes, _utils
from poptorch.options import backend

X, IMAGE = torch.arange(24.0).reshape(6, 4), torch.linspace(-1, 1, 25).reshape(1, 1, 5, 5)
ROWS, START = torch.arange(72.0).reshape(2, 6, 6), torch.tensor([0], dtype=torch.int32)
DATA, CLASS = torch.linspace(-1, 1, 24).reshape(8, 3), torch.arange(8) % 4
INNER = poptorch.CPU(lambda x: x, "inner")


def validate(key: str, value: Any) -> None:
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options._Popart.set(key, value)  # nothing is checked when it is set
    poptorch.poptorch_core._validateOptions(options.toDict())


def grouped(parameter: Tensor, kind: Any, shards: Any, mode: Any) -> None:
    executor = inference(Module(lambda m: m.weight, weight=nn.Parameter(parameter)), quiet().replicationFactor(4))
    executor.weight.replicaGrouping(kind, shards, mode)


def custom_op(**given: Any) -> Any:
    cube = {"inputs": [X], "name": "Cube", "domain": "test.ops", "domain_version": 1, "example_outputs": [X]}
    return poptorch.custom_op(**{**cube, **given})


def runs(function: Any = torch.relu, **settings: Any) -> poptorch.PoplarExecutor:
    class Runs(nn.Module):
        def forward(self, input: Tensor) -> Any:
            return function(input)

    return inference(Runs(), quiet(**settings))


def in_block(x: Tensor) -> Tensor:
    with poptorch.Block("c"):
        return x + 1


POINTS = torch.rand(20, 3)
SLICE, NEAR = {"tensor": ROWS, "dim": 1, "start": START, "size": 2, "step": 1}, {"x": POINTS, "y": POINTS}
NAN, INF = float("nan"), float("inf")
CYCLE: list[Any] = [X]
CYCLE.append(CYCLE)
DEEP = functools.reduce(lambda inner, _: [inner], range(5000), X)
P, Q = ([nn.Parameter(torch.ones(2))] for _ in range(2))
NAMES = {
    **vars(poptorch), **vars(poptorch.optim), **globals(), "popart": popart, "_impl": _impl, "_utils": _utils,
    "_logging": _logging, "engine_options": backend.read_engine_options, "read": _optimizer_attributes.read_spec,
    "Mode": poptorch.MatMulSerializationMode, "Loop": poptorch.OverlapMode, "OPS": torch.ops.poptorch,
    "PER_GROUP": poptorch.VariableRetrievalMode.OnePerGroup, "settings": poptorch.TensorLocationSettings(),
    "MARKS": poptorch.optim.SGD(P, 0.1).variable_attrs, "core": poptorch.poptorch_core, "ONE": torch.ones(1, 3),
    "LENGTHS": torch.tensor([5, 3]), "SCORES": torch.zeros(5, 2, 3), "ROW": [0] * 20,
    "F64": torch.float64, "BF16": torch.bfloat16, "I32": torch.int32, "twice": lambda t: (t, t), "same": lambda t: t,
    "SimpleNamespace": SimpleNamespace,
}  # fmt: skip

CALLS = """
# Annotations
recomputationCheckpoint(<3 | X, None | [X, 'a'] | [[X]] | {'x': X}>) -> ValueError: inputs must be tensors
<nop | ipu_print_tensor>(<1 | [X] | None>) -> Error: poptorch.$1 must take a torch.tensor argument
set_available_memory(<1 | [X] | None>, 0.3) -> Error: poptorch.set_available_memory must take a torch.tensor argument
serializedMatMul(X, X, mode=<'reducing_dim' | None>, factor=2) -> AssertionError: mode takes a
serializedMatMul(X, X, Mode.ReducingDim, <2.0 | '2'>) -> AssertionError: factor takes a
serializedMatMul(X, X, Mode.ReducingDim, 2, 1) -> AssertionError: keep_precision takes a
identity_loss(X, <'average' | 'Sum' | '' | None>) -> AssertionError: Unsupported reduction type! ... 'mean' or 'none'
identity_loss([X], 'sum') -> AssertionError: identity_loss takes a torch.Tensor
<OPS.push_name_scope | NameScope>(<1 | None | ['a']>) -> AssertionError: must be a string; got $2
MultiConv().availableMemoryProportions(<1 | [] | [0.1, 1] | '0.1'>) -> AssertionError: Invalid available memory
MultiConv().partialsTypes(<'half' | torch.int32 | [torch.half, None] | []>) -> ValueError: Invalid partials types
MultiConv().planType(<'parallel' | 0>) -> AssertionError: Invalid plan type!
MultiConv().availableMemoryProportions(<NAN | INF | -0.1 | 1.5 | [0.1, NAN]>) -> AssertionError: from 0 to 1
MultiConv().perConvReservedTiles(<1.0 | -1>) -> AssertionError: reserved tiles
MultiConv().cycleBackOff(<1 | NAN | INF | -0.1>) -> AssertionError: cycle back-off
BlockFunction(<5 | abs | ['a'] | 1.5>) -> AssertionError: takes a name, as in @poptorch.BlockFunction('name'); got
BlockFunction(<'a' | None, 1>)(<5 | None | 'b'>) -> AssertionError: decorates a function or method; got $2
MultiConv().enableConvDithering(<1 | [True, 0]>) -> ValueError: must be bool or list of bools
set_overlap_for_<input | output>(X, <'no_overlap' | 0 | None>) -> AssertionError: takes a poptorch.OverlapMode
BeginBlock(<None | 3 | 'layer'>) -> Error: not an instance of torch.nn.Module or function
BeginBlock(BeginBlock(nn.Linear(1, 1))) -> Error: already been assigned to a block ... removeBlocks
removeBlocks(abs) -> AssertionError: removeBlocks takes a torch.nn.Module
ipu_print_tensor(X, float_format='hex') -> KeyError: auto, fixed, scientific, none
ipu_print_tensor(X, <summarise_threshold | edge_items | max_line_width | digits>=<-1 | '3'>) -> Error: $1 must be

# Functions of tensors
for_loop(2, same, <(X,) | X>) -> ValueError: is not list
for_loop(2, same, [X, 3]) -> ValueError: index 1 is not torch.tensor
for_loop(2, lambda t: <None | 3 | True | 1.5 | {0: t}>, [X]) -> Error: A body must return a tensor, or a list or tuple
cond(X.sum() == 0, lambda t: <None | 3>, [X], lambda t: None, [X]) -> Error: A body must return ... returned None
for_loop(2, lambda t: <[None] | (t, 3)>, [X]) -> ValueError: is not torch.tensor
cond(X.sum() == 0, same, <(X,), same, [X] | [X], same, X>) -> ValueError: is not list
cond(X.sum() == 0, same, [X], same, ['a']) -> ValueError: index 0 is not torch.tensor
dynamic_slice(**{**SLICE, '<tensor | dim | start | size | step>': <None | 1.5>}) -> Error: dynamic_slice: $1 must be
dynamic_slice(**{**SLICE, '<start>': <X[0, :1] | LENGTHS>}) -> Error: poptorch.dynamic_slice: $1 must be
dynamic_slice(ROWS, 3, START, 2, 1) -> Error: poptorch.dynamic_slice:  ... dimension 3
dynamic_update(ROWS, X, 1, START, 2) -> Error: same dimensionality
dynamic_update(ROWS, ROWS.int(), 1, START, 2) -> Error: same dtype
dynamic_update(ROWS, torch.ones(2, 3, 6), 1, START, 2) -> Error: src must have the shape
fps(<[[1.0]] | torch.tensor(1.0)>, [0, 20]) -> Error: poptorch.fps: src
fps(POINTS, <LENGTHS | [0, 20.0] | [0] | [0, 21] | [-1, 5] | [5, 2]>) -> Error: poptorch.fps: ptr
fps(POINTS, [0, 20], <'0.5' | 0.0 | 1.5 | True>) -> Error: poptorch.fps: ratio
fps(POINTS, [0, 20], random_start=1) -> Error: poptorch.fps: random_start
nearest(**{**NEAR, '<x | y | batch_x | batch_y>': <3 | [0.5] * 20>}) -> Error: poptorch.nearest: $1
nearest(torch.rand(2, 3, 3), POINTS) -> ValueError: x must have 1 or 2 dimensions
nearest(POINTS, X) -> ValueError: same number of features
nearest(POINTS, POINTS, [0] * 19) -> ValueError: batch_x must have 20 entries, not 19
nearest(POINTS, POINTS, None, torch.zeros(14)) -> ValueError: batch_y must have 20 entries, not [14]
nearest(POINTS, POINTS, [1] + [0] * 19) -> ValueError: batch_x must be sorted
nearest(POINTS, POINTS, ROW, [0] * 19 + [1]) -> ValueError: same batch elements
nearest(POINTS, POINTS[:0]) -> ValueError: y has no rows
ctc_beam_search_decoder(<[0.0] | X | SCORES.int()>, LENGTHS) -> Error: poptorch.ctc_beam_search_decoder: probs
ctc_beam_search_decoder(SCORES, <[5, 3] | START | LENGTHS.float()>) -> Error: ctc_beam_search_decoder: lengths
ctc_beam_search_decoder(SCORES, LENGTHS, <blank | beam_width>=<0.5 | '9' | -1>) -> Error: ctc_beam_search_decoder ... $1
ctc_beam_search_decoder(SCORES, LENGTHS, top_paths=<0.5 | '9' | -1>) -> Error: ctc_beam_search_decoder ... top_paths
ctc_beam_search_decoder(SCORES, LENGTHS, <blank=3 | top_paths=0 | top_paths=101>) -> Error: ctc_beam_search_decoder:

# Operations of the program's own
custom_op(inputs=<X | [1]>) -> Error: poptorch.custom_op: inputs must be
custom_op(<name | domain | domain_version>=<None | 1.5>) -> Error: poptorch.custom_op: $1 must be
custom_op(example_outputs=<[] | [1]>) -> Error: poptorch.custom_op: example_outputs must be
custom_op(attributes={1: 2}) -> ValueError: keys must be strings
custom_op(attributes={'a': None}) -> ValueError: unsupported type
custom_op(attributes={'a': []}) -> ValueError: 'a' is an empty list, whose type is unknown
custom_op(attributes={'a': <[1, 2.0] | [True, 2]>}) -> ValueError: must all be the same
custom_op(attributes=<{'é': 1} | {'a': 'é'} | {'a': ['b', 'é']}>) -> ValueError: contains non-ASCII characters
custom_op(attributes={'a': 2**63}) -> ValueError: does not fit in 64 bits
custom_op(attributes={'a': 1e39}) -> Error: 1e+39 is too high for a Popart float attribute
custom_op(attributes={'a': [1.0, -4.5e38]}) -> Error: -4.5e+38 is too low for a Popart float attribute
register(1, 'd', 1, same) -> Error: custom op
register('n', <None, 1, same | 'd', '1', same | 'd', 1, None | 'd', 1, same, 3>) -> Error: custom op
CPU(1, 'op') -> Error: poptorch.CPU: layer_to_call must be
CPU(abs, 2) -> Error: poptorch.CPU: ID must be
registerCustomArgParser(int, <_utils.ICustomArgParser | 'parser' | X>) -> Error: must inherit from ICustomArgParser
_utils.ICustomArgParser() -> TypeError: abstract

# Stages and phases
Stage(<1 | 'A', None | ['A']>) -> AssertionError: supposed to be strings
Stage('A').ipu(<'0' | 1.0 | None>) -> AssertionError: must be an int
<Pipelined | Sharded>Execution(<'A', 'A' | ['A', 'A']>) -> AssertionError: associated with more than one stage
<Pipelined | Sharded>Execution(Stage('A', 'B'), ['C', 'B']) -> AssertionError: associated with more than one stage
<Pipelined | Sharded>Execution(<[1, 2] | [Stage('A')]>) -> AssertionError: supposed to be strings
<Pipelined | Sharded>Execution(<3 | None>) -> TypeError: got
<Pipelined | Sharded>Execution(<'A' | AutoStage.SameAsIpu>, AutoStage.SameAsIpu) -> TypeError: AutoStage
PipelinedExecution(['A', 'B'], 'C').stage('Z') -> AssertionError: Unknown block 'Z' ... 'A', 'B', 'C'
PipelinedExecution(AutoStage.<SameAsIpu | AutoIncrement>).stage('A') -> AssertionError: Unknown block 'A' ... none
PipelinedExecution('A', 'B').place('C', 0) -> AssertionError: Unknown Block 'C' ... 'A', 'B' ... useAutoId
PipelinedExecution('A', 'B').place(<None | ''>, 0) -> AssertionError: Unknown Block '0' ... 'A', 'B'
<PipelinedExecution( | SerialPhasedExecution('A' | ParallelPhasedExecution('A'>).place('A', None) -> AssertionError: IPU
PipelinedExecution().place(5, 0) -> AssertionError: supposed to be strings
PipelinedExecution().place('A', <'1' | 1.5>) -> AssertionError: must be an int
PipelinedExecution(<Stage('A').ipu(-1)).place('A', None | ).place('A', -1>) -> Error: Block 'A' is placed on IPU -1
Phase(<'A', Stage('B') | 1 | Phase('A')>) -> AssertionError: must either be block IDs
Phase(Stage('A'), Stage('B')).ipus(2) -> AssertionError: 2 stages but you provided 1
<Serial | Parallel>PhasedExecution(<AutoStage.SameAsIpu | *()>) -> AssertionError: no AutoStage for PhasedExecution
<Serial | Parallel>PhasedExecution(('A', 'B')) -> AssertionError: several arguments
<Serial | Parallel>PhasedExecution([Phase('A'), Phase('B')]) -> AssertionError: must either be block IDs
<Serial | Parallel>PhasedExecution('A', ['B', 'A']) -> AssertionError: associated with more than one stage
<Serial | Parallel>PhasedExecution(3) -> AssertionError: A phase is
<Serial | Parallel>PhasedExecution('A').phase(-1) -> AssertionError: start at 0; got -1
<Serial | Parallel>PhasedExecution('A').phase('0') -> AssertionError: an int; got '0'
<Serial | Parallel>PhasedExecution('A', 'B').phase(2) -> IndexError: index
<Serial | Parallel>PhasedExecution('A', 'B').stage('C') -> AssertionError: Unknown block 'C'
<Serial | Parallel>PhasedExecution('A', 'B').place('C', 0) -> AssertionError: Unknown Block 'C' ... 'A', 'B'
<Serial | Parallel>PhasedExecution('A').useSeparateBackwardPhase(1) -> AssertionError: takes a bool; got 1
ParallelPhasedExecution('A', 'B').place(<'A', 1 | 'B', 0 | 'B', 2>) -> Error: even phases on even IPUs and odd
SerialPhasedExecution('A').setTensorsLiveness(1) -> AssertionError: takes a Liveness; got 1
ParallelPhasedExecution('A').sendTensorsOffChipAfterFwd(1) -> AssertionError: takes a bool; got 1

# Optimisers
SGD(P) -> TypeError: lr
SGD(P, 0.1, velocity_accum_type=<F64 | BF16 | I32>) -> AssertionError: must be either
<SGD | Adam | AdamW | RMSprop | LAMB>(P, 0.1, accum_type=<F64 | BF16 | I32>) -> AssertionError: must be either
<Adam | AdamW | RMSprop | LAMB>(P, <first | second>_order_momentum_accum_type=F64) -> AssertionError: must be either
SGD(P, '0.1') -> AssertionError: Expected a number for lr
SGD(P, 1, <momentum | loss_scaling | velocity_scaling | max_grad_norm>=<'1' | X>) -> AssertionError: a number for $1
<AdamW | LAMB>(P, <eps | weight_decay>=<'0.1' | X | [0.1]>) -> AssertionError: Expected a number for $2
RMSprop(P, <alpha | loss_scaling | momentum>=<'0.1' | X | [0.1]>) -> AssertionError: Expected a number for $1
<Adam(P, max_grad_norm | LAMB(P, max_weight_norm>='0.1') -> AssertionError: Expected a number for max_
<Adam | AdamW | LAMB>(P, betas=<0.9 | [0.9, 0.9] | (0.9,) | (0.9,) * 3>) -> AssertionError: two numbers for betas
<Adam | AdamW | LAMB>(P, betas=(0.9, 'a')) -> AssertionError: Expected a number for betas[1]
<Adam | AdamW | LAMB>(P, betas=(0.9, 1.0)) -> ValueError: Invalid beta parameter at index 1
<SGD | Adam | AdamW | RMSprop | LAMB>(P, lr=-0.1) -> ValueError: Invalid
<SGD | Adam | AdamW | RMSprop | LAMB>(P, 0.1, weight_decay=-0.1) -> ValueError: Invalid
<SGD | Adam | AdamW | RMSprop | LAMB>(P, <NAN | INF | -INF>) -> ValueError: Invalid lr: ... ; it must be finite
<SGD | Adam | AdamW | RMSprop | LAMB>(P, 0.1, loss_scaling=<NAN | INF | -1.0>) -> ValueError: Invalid loss_scaling
<SGD | Adam | AdamW | RMSprop | LAMB>(P, 0.1, weight_decay=<NAN | INF>) -> ValueError: Invalid weight_decay
<Adam | AdamW | RMSprop | LAMB>(P, 0.1, eps=<NAN | INF>) -> ValueError: Invalid ep
SGD(P, 0.1, <momentum | dampening | velocity_scaling>=<NAN | INF>) -> ValueError: Invalid $1: ... ; it must be finite
SGD(P, 0.1, velocity_scaling=-1.0) -> ValueError: Invalid velocity_scaling: -1.0; it must not be negative
<SGD | Adam | AdamW>(P, 0.1, max_grad_norm=<-2.0 | -INF>) -> ValueError: Invalid max_grad_norm: ... it must not be
LAMB(P, max_weight_norm=<-1 | -INF>) -> ValueError: Invalid max_weight_norm: ... it must not be negative
<Adam | AdamW | LAMB>(P, betas=(NAN, 0.9)) -> ValueError: Invalid betas[0]: nan
<Adam | AdamW | RMSprop | LAMB>(P, eps=-0.1) -> ValueError: Invalid epsilon value
SGD(P, 0.1, nesterov=True) -> ValueError: Nesterov momentum requires a momentum and zero dampening
Adam(P, bias_correction=True) -> TypeError: bias_correction
MARKS.markAs<Constant | Variable>('<alpha | accum_type | x>') -> AssertionError: Unknown attribute '$2'
MARKS.markAs<Constant | Variable>('velocity_scaling') -> AssertionError: this optimizer has dampening, diff
read(torch.optim.<Adagrad | Adadelta | LBFGS>(P)) -> AssertionError: Unsupported optimizer type
read(<optim | torch.optim>.<Adam | AdamW>(P, amsgrad=True)) -> ValueError: Only non-amsgrad
read(<optim | torch.optim>.<Adam | AdamW>([{'params': P, 'amsgrad': True}])) -> ValueError: Only non-amsgrad
read(<RMSprop | torch.optim.RMSprop>([{'params': P, 'centered': True}, {'params': Q}])) -> AssertionError: 'centered'
read(torch.optim.Adam([{'params': P, 'decoupled_weight_decay': True}, {'params': Q}])) -> ValueError: same decoupled
read(torch.optim.SGD(P, lr=torch.tensor(0.1))) -> AssertionError: Expected a number for lr ... Use float(lr)

# Settings of the backend and of the log
validate('noSuch', True) -> Error: Unknown bool option noSuch
validate('noSuch', 1.0) -> Error: Unknown floating point option noSuch
validate('noSuch', <1 | popart.RecomputationType.Pipeline>) -> Error: Unknown uint64 option noSuch
validate('noSuch', 'x') -> Error: Unknown string option noSuch
validate('noSuch', <['x'] | {'x'} | ('x',)>) -> Error: Unknown set / vector option noSuch
validate('noSuch', {'x': 'y'}) -> Error: Unknown map option noSuch
validate(<5 | None>, 5) -> Error: Unknown uint64 option $1 ... No backend option has this name
validate((1, 2), 'x') -> Error: Unknown string option (1, 2)
validate('<outlineThreshold | automaticLossScalingSettings.binEdgeLocation>', <NAN | INF>) -> Error: must be finite
validate('noSuch', None) -> Error: Unknown value type NoneType for option noSuch
validate('noSuch', X) -> Error: Unknown value type Tensor for option noSuch
validate('outlineThreshold', 10) -> Error: Unknown uint64 option outlineThreshold ... takes a float
validate('autoRecomputation', True) -> Error: Unknown bool option autoRecomputation ... takes an int
validate('autoRecompute', 3) -> Error: Did you mean autoRecomputation
validate('autoRecomputation', 5) -> Error: out of range ... 4 (RecomputeAll)
validate('patterns_level', 4) -> Error: out of range
validate('hardwareInstrumentations', [2]) -> Error: out of range
validate('swapLimitScheduler', <-1 | 2**64>) -> Error: out of range
validate('customCodelets', [1.0]) -> Error: Unknown value type float in option customCodelets
validate('engineOptions', {'a': 1.0}) -> Error: Unknown value type float in option engineOptions
validate('patterns', {'PadSum': False}) -> Error: patterns_level
engine_options({'autoReport.all': <'yes' | 1 | None | ['true']>}) -> Error: autoReport.all must be "true" or "false"
engine_options({'<autoReport.al | autoreport.all | AutoReport.all | autoReport_all>': 'true'}) -> Error: autoReport.all
engine_options({'autoReport.dir': '.'}) -> Error: Unrecognised engine option ... Did you mean autoReport.directory?
engine_options({'<debug.allowOutofMemory | allowOutOfMemory>': 'true'}) -> Error: '$1'. Did ... debug.allowOutOfMemory
engine_options({'autoReport.outputExecutionProfiles': 'true'}) -> Error: Did you mean autoReport.outputExecutionProfile?
engine_options({'opt.maxCompilationThread': '4'}) -> Error: Did you mean opt.maxCompilationThreads?
engine_options({'autoReport.directory': <None | 5 | '' | 'a\\0b' | ['folder']>}) -> Error: must name a folder
SharingStrategy('Carrier pigeon') -> ValueError: Carrier pigeon
_logging.setLogLevel(<5 | 7 | -1>) -> ValueError: Invalid log level integer
_logging.setLogLevel('LOUD') -> ValueError: Unknown log level: LOUD ... DEBUG, ERR, INFO, OFF, TRACE, WARN
_logging.setPopartLogLevel(<1 | 'LOUD' | None>) -> ValueError: Level must be one of
core._throwTestError(8) -> ValueError: 8

# Names
popart.<Builder | InferenceSession | DeviceManager>.x -> AttributeError: is not available ... poptorch.trainingModel
popart.RecomputeType -> AttributeError: Did you mean popart.RecomputationType?
popart.TensorLocation(0, 0, 0, 0, 0) -> TypeError: takes (storage, replicatedTensorSharding) or
popart.TensorLocation(0, <storage | shardingDomain>=1) -> TypeError: takes (storage, replicatedTensorSharding) or
core.startDispatch() -> Error: poptorch_core.startDispatch is not supported
OPS.no_such_op(X) -> AttributeError: no attribute 'no_such_op'
OPS.start_for_loop([X]) -> Error: start_for_loop is not supported ... Use poptorch.for_loop
OPS.begin_ipu_block('a', -1, 0) -> Error: must be an int, 0 or more; got 'a'
OPS.begin_ipu_block(0, -1, -1) -> Error: ipu_id must be an int, 0 or more; got -1
OPS.identity_loss(X, 3) -> Error: 0 (sum), 1 (mean) or 2 (none); got 3
OPS.internal_cast(X, 'INT') -> Error: the type must be one of FLOAT
OPS.set_attribute(1, 'key', 'value') -> AssertionError: must be strings; got 1
_impl.internal_cast(X, torch.int32) -> ValueError: Expecting torch.float or torch.half
accessAttributes(<'2.0' | 3>) -> ValueError: attribute_id_str
getIpuTensorId(X) -> Error: not on the IPU

# Executors
grouped(torch.ones(()), CommGroupType.NoGrouping, 0, PER_GROUP) -> Error: Scalars cannot be passed
grouped(X[:2], CommGroupType.Consecutive, <0 | 3 | 8>, PER_GROUP) -> Error: 4 replicas do not divide into groups of $1
grouped(X[:3], CommGroupType.Orthogonal, 2, PER_GROUP) -> Error: 3, but 4 replicas in groups of 2 are 2
grouped(X[:1], <1, 2, PER_GROUP | CommGroupType.All, 2, 0>) -> AssertionError:
grouped(X[:1], CommGroupType.All, '2', PER_GROUP) -> AssertionError:
runs(deviceIterations=2)(torch.ones(7, 3)) -> AssertionError: Invalid batch dimension
runs()(torch.empty(0, 2, 5)) -> Error: Zero-sized tensors are unsupported (Got shape [0, 2, 5])
runs()(torch.nested.nested_tensor([X, X[:2]]<, layout=torch.jagged | >)) -> Error: a nested tensor ... to_padded_tensor
runs()(<CYCLE | {'a': CYCLE} | (X, CYCLE) | DEEP>) -> Error: contains itself, or is nested too deeply
runs(lambda x: CYCLE)(ONE) -> Error: contains itself, or is nested too deeply
load('<a | a/b>\\0c') -> Error: cannot contain a null byte
runs()(torch.eye(2).to_sparse()) -> Error: Unsupported input type: a tensor of layout ... to_dense()
runs()(X.to(<torch.complex64 | torch.float8_e4m3fn>)) -> Error: Unsupported input type $1
runs()(X.to('meta')) -> Error: Inputs must be on the CPU, but a tensor is on meta
runs(<deviceIterations | replicationFactor>=0)(ONE) -> Error: poptorch.Options().$1 must be at least 1, not 0
runs(deviceIterations=3, outputMode=(OutputMode.EveryN, 2))(torch.ones(3, 3)) -> Error: Return period must be ... (3)
runs(deviceIterations=2, outputMode=(OutputMode.EveryN, 4))(X[:2, :3]) -> Error: Return period must be ... (2)
runs()(ONE, <ONE, ONE | unknown=ONE | input=ONE>) -> AssertionError:
runs()._debugGetPopartIR() -> AssertionError: must be compiled
runs().getAnchoredTensor('x') -> AssertionError:
runs(useOfflineIpuTarget=2)(ONE) -> AssertionError: run a model on an offline device
runs(enableExecutableCaching='<folder\\0 | \\0>')(ONE) -> AssertionError: cannot be created: embedded null byte
runs(enableExecutableCaching='/dev/null')(ONE) -> AssertionError:
PoplarExecutor(nn.Linear(3, 3), quiet(), False, '3.4', optim.SGD(P, 0.1)) -> AssertionError: no optimizer
ipuHardwareVersion() -> AssertionError:
DataLoader({}, [ONE]) -> AssertionError:
DataLoader(quiet(), [ONE], <drop_last | shuffle>=<'x' | 2 | [1]>) -> AssertionError: $1 is True or False; got $2
DataLoader(quiet(), [ONE], <batch_size | num_workers>=<'2' | 1.5 | NAN>) -> AssertionError: $1 is a whole number; got
DataLoader(quiet(), [ONE], mode=DataLoaderMode.Async, async_options=<[1] | 'a' | 3>) -> AssertionError: dict
DataLoader(quiet(), X, 4, mode=DataLoaderMode.AsyncRebatched, rebatched_worker_size=<'a' | 1.5>) -> AssertionError:
AsynchronousDataAccessor([X], rebatched_size=<1 | 0 | -3 | 'a' | 2.5>) -> AssertionError: rebatched_size ... ; got $1.
AsynchronousDataAccessor([X], buffer_size=<0 | 'a' | 2.5 | None | 10**12>) -> AssertionError: buffer_size ... ; got
AsynchronousDataAccessor([X], miss_sleep_time_in_ms=<-0.1 | 'a' | NAN>) -> AssertionError: ; got
inference(nn.Sequential(nn.LazyLinear(3)))(X) -> Error: '0.weight' is not initialised: call forward
runs(in_block, setExecutionStrategy=PipelinedExecution('a', 'b'))(ONE) -> AssertionError: Unknown Block 'c' ... 'a', 'b'
"""

# With `o`, the options, which keep what they store.
OPTIONS = """
Options(4) -> TypeError: positional argument
o.<deviceIterations>(<2.0 | '4'>) -> AssertionError: Unexpected type ... for option device_iterations
o.set(<device_iterations | log_dir | anchored_tensors | input_cgt>=<2.5 | None>) -> AssertionError: for option $1
o.set(device_iterations=3, <input_cgt | log_dir>=1) -> AssertionError: Unexpected type <class 'int'> for option $1
o.autoRoundNumIPUs(1) -> AssertionError: Unexpected type ... for option auto_round_num_ipus
o.logDir(None) -> AssertionError: Unexpected type ... for option log_dir
o.set(deviceIteration=4) -> AssertionError: Invalid option deviceIteration.  ... device_iter
setattr(o, 'deviceIterations', 4) -> AssertionError: Invalid option deviceIterations.  ... a method
setattr(o, '_foo', 1) -> AttributeError: Invalid private attribute _foo
setattr(o, '<Training | Precision | TensorLocations | Distributed | Jit | _Popart | _backend>', o) -> AttributeError: $1
setattr(o.Distributed, 'processId', 3) -> AttributeError: processId
o.<random_seed | no_such_key | _private> -> AttributeError: Invalid attribute $1.
o('<random_seed | no_such_key | _private>') -> AttributeError: Invalid attribute $1.
o.device_iteration -> AttributeError: Did you mean device_iterations
o.createOrSet(log_dir=3) -> AssertionError: Unexpected type <class 'int'> for option log_dir
o.toDict() -> AssertionError: An output mode must be picked
o.outputMode(<2 | 'All'>) -> AssertionError: must be a poptorch.OutputMode
o.outputMode(OutputMode.EveryN, <None | 0 | -1 | '2' | *()>) -> AssertionError: must have output_return_period
o.anchorTensor(1, 'w') -> AssertionError: short name of an anchor must be a string; got 1
o.anchorTensor('a', 2) -> AssertionError: tensor to anchor must be a string; got 2
o.anchorTensor('a', 'w', 2) -> AssertionError: must be a poptorch.OutputMode
o.anchorTensor('a', 'w', OutputMode.EveryN, 0) -> AssertionError: must have output_return_period
o.<connectionType | syncPattern>(0) -> AssertionError: $1 takes a poptorch. ... ; got 0
o.useOfflineIpuTarget(<'x' | None | 2.0>) -> AssertionError: useOfflineIpuTarget takes an int; got $1
o.randomSeed(<-1 | 10**30 | 2**64>) -> AssertionError: The random seed must be from 0 to 2**64 - 1
o.setAvailableMemoryProportion(<0.5 | None | [0.5] | 'IPU0'>) -> AssertionError: to be in a dictionary ... Got $1
o.useIpuId('3') -> AssertionError: useIpuId takes an int; got '3'
o.randomSeed(4.0) -> AssertionError: random seed must be an int; got 4.0
o.setExecutionStrategy(<'Pipelined' | PipelinedExecution>) -> AssertionError: takes a PipelinedExecution, Sharded
o.setAvailableMemoryProportion({<'ipu0' | 0>: 0.5}) -> AssertionError: Invalid key:
o.setAvailableMemoryProportion({'IPUx': 0.5}) -> ValueError: invalid literal
o.inputReplicaGrouping('1', CommGroupType.All) -> AssertionError: input_group_size takes an int
o.inputReplicaGrouping(1, 1) -> AssertionError: must be a poptorch.CommGroupType; got 1
o.inputReplicaGrouping(1, CommGroupType.All) -> ValueError: cannot be All
o.inputReplicaGrouping(8, CommGroupType.Consecutive) -> ValueError: cannot be larger than repl
o.inputReplicaGrouping(0, CommGroupType.Consecutive) -> ValueError: must be a factor of repl
o.Training.accumulationAndReplicationReductionType(<1 | 'Mean' | None | ReductionType.NoReduction>) -> ValueError: Sum
o.Training.setMeanAccumulationAndReplicationReductionStrategy(1) -> AssertionError: Unexpected type <class 'int'>
o.Precision.setPartialsType(<F64 | BF16 | I32 | 'half' | float | []>) -> ValueError: torch.float32 or torch.float16
o.Precision.enableFloatingPointExceptions(1) -> AssertionError: takes a bool; got 1
o.Precision.runningStatisticsAlwaysFloat(1) -> ValueError: takes a bool; got 1
o.Precision.autocastEnabled(1) -> ValueError: takes a bool; got 1
o.TensorLocations.numIOTiles(<0 | 30 | 33 | 194 | -32>) -> AssertionError: even number between 32 and 192
o.TensorLocations.numIOTiles(32.0) -> AssertionError: numIOTiles takes an int
o.TensorLocations.setOptimizerLocation({'onChip': 0}) -> AssertionError: location_optimizer takes a poptorch.Ten
o.Distributed.configureProcessId('5', 2) -> AssertionError: Unexpected type <class 'str'>
o.Jit.traceModel(True) -> ValueError: no longer supported
o._Popart.setPatterns({'PadSum': 1}) -> AssertionError: a bool; got
o._Popart.setPatterns({3: True}) -> AssertionError: names must be strings
o._Popart.setPatterns(['PadSum']) -> AssertionError: must be a dict
o._Popart.setPatterns({'PadSum': True}, 'all') -> AssertionError: level must be an int
settings.useOnChipStorage(1) -> AssertionError: useOnChipStorage takes a bool or None; got 1
settings.use<ReplicatedTensorSharding | IOTilesToLoad | IOTilesToStore>(<1 | None>) -> AssertionError: $1 takes a bool
settings.minElementsFor<OffChip | ReplicatedTensorSharding>(<2.0 | '8'>) -> AssertionError: $1 takes an int; got $2
settings.minElementsFor<OffChip | ReplicatedTensorSharding>(-1) -> AssertionError: $1 must not be negative
settings.useOnChipStorage(True).update({'onChip': 1}) -> AssertionError: keys in common: onChip
o.from_json('{"__init__.__globals__.clear": []}') -> AttributeError: Options as JSON:
o.from_json('{"_Popart._set": []}') -> AttributeError: Options as JSON:
o.from_json('{"<_Popart.options.clear | device_iterations.bit_length | log_dir>": []}') -> TypeError: Options as JSON:
o.from_json('{"deviceIterations": ' + '[' * 1_000_000) -> ValueError: nested too deeply
o.from_json('{"outputMode": ["OutputMode.EveryN", 2]}') -> AssertionError: must be a poptorch.OutputMode
o.from_json('{') -> JSONDecodeError:
o.from_json('{"<noSuch | Training.noSuch>": 1}') -> AttributeError: noSuch
o.from_json('{"deviceIterations": "4"}') -> AssertionError: Unexpected type
o.from_json('[1]') -> ValueError: Options as JSON are an object
"""

# In a forward for inference, with `m`, the model, and its inputs `x`, `image`, `rows` and `at`.
TRACED = """
product(x, Mode.<InputChannels | ReducingDim | OutputChannels>, <7 | 0 | -1>) -> Error: not divide the dimension of $1
within(MultiConv(), lambda: x.relu()) -> Error: Unexpected end_multi_conv
within(MultiConv(), lambda: within(MultiConv(), lambda: m.conv_a(image))) -> Error: Nested poptorch.MultiConv
within(THREE, lambda: m.conv_a(image) + m.conv_b(image)) -> Error: 3 values of avail ... for 2 convolutions
for_loop(2, lambda t: for_loop(2, same, [t])[0], [x]) -> Error: inside another poptorch.for_loop()
for_loop(2, lambda t: t + outer[0].add_(1), [x]) -> Error: poptorch.for_loop(): the body changes a tensor from outside
for_loop(2, twice, [x]) -> Error: takes 1 tensors and returned 2
for_loop(2, lambda t: t.<reshape(4, 6) | half()>, [x]) -> Error: must match it
for_loop(<2.0 | '2' | None | -1>, same, [x]) -> Error: count must be an int
cond(x.sum() == 0, lambda: outer.add_(1), [], lambda: outer, []) -> Error: cond(): the body changes a tensor
cond(x.sum() == 0, torch.sum, [x], torch.sum, [x]) -> Error: no dimension
cond(x.sum() == 0, twice, [x], same, [x]) -> Error: then_body returned 2 tensors, else_body 1
cond(x.sum() == 0, lambda t: t<[:1] | .half()>, [x], same, [x]) -> Error: same type and number of elements
cond(<True | x[0, :1] | x[0, :2] == 0>, same, [x], same, [x]) -> Error: a bool tensor of one element
dynamic_slice(rows, 1, at, 0, 1) -> Error: of a slice must be different
dynamic_slice(rows, 1, at, -2, 1) -> Error: slice of a tensor with the end less than the start
dynamic_slice(rows, 1, at, 2, <0 | -1>) -> Error: step of a slice must be at least 1
dynamic_slice(rows, 1, at, 4, 1) -> Error: must be a factor of the slicing dimension
dynamic_update(rows, rows, 1, at, 0) -> Error: must be different
dynamic_update(rows, rows, 1, at, -1) -> Error: slice of a tensor with the end less than the start
custom(lambda t: t[:, :2], x) -> Error: return torch.float32 [6, 4] as its result 0; it returned torch.float32 [6, 2]
custom(twice, x) -> Error: custom op test.mistakes.Wrong must return 1 tensors; it returned 2
x * <x[0, 0].item() | float(x[0, 0]) | x.tolist()[0][0] | torch.rand(3).sum().item()> -> Error: branches on data
[x for _ in range(x[0, 0].int())] -> Error: branches on data
<x.bool() - x.bool() | True - x.bool() | x.bool().sub_(x.bool())> -> RuntimeError: Subtraction, the `-`
x + <x | m.linear.weight>.data_ptr() -> Error: data_ptr(): a tensor on the IPU has no address
x.<numpy | __array__>() -> Error: Illegal move to CPU
x.<cpu() | to('cpu') | to(device='cpu')> -> Error: Illegal move to CPU ... Instead, return this output as an IPU tensor
<x.to(torch.device('cpu')) | x.to(X) | m.linear.weight.to(X.device, torch.float16)> -> Error: Illegal move to CPU
x.<cuda() | to('cuda') | to(torch.device('cuda:1')) | to(0) | to(device='cuda')> -> Error: 'cuda' ... Leave out .cuda()
x + <torch.zeros(4, device='cuda') | torch.FloatTensor([3] * 4).cuda()> -> Error: 'cuda' ... device=x.device
nn.Linear(4, 4).cuda()(x) -> Error: on the device 'cuda' ... Leave out .cuda() ... device=x.device
x + <torch.LongTensor([1]) | torch.FloatTensor([1]) | torch.Tensor([1])> -> Error: Expected an IPU tensor but got
x + <torch.arange(4.0, device='cpu') | torch.full((4,), 3.0, device=X.device).exp()> -> Error: got tensor(device=cpu
x.sum() + torch.ones(1_000_000, 1_000_000) -> Error: out of memory
x + <torch.from_numpy(X.numpy()) | X | X * 2> -> Error: got tensor(device=cpu ... torch.tensor(...) ... torch.nn.Mod
custom(lambda t: [None], x) -> Error: custom op test.mistakes.Wrong must return a tensor or a list of tensors
CPU(lambda t: INNER(t), 'outer')(x) -> Error: 'inner' is called inside the op 'outer'
CPU(lambda t: <None | 1.0 | [] | [1.0]>, 'op')(x) -> Error: must return a tensor or a sequence of tensors
INNER(x, 2) -> Error: argument 1 of the op 'inner' must be a tensor
x + INNER(torch.LongTensor([1])) -> Error: all its operands are tensors that forward made on the host
fickle(torch.zeros(5, 4), x) -> Error: the op 'fickle' ... return torch.float32 [6, 4] ... returned torch.float32 [5, 4]
fickle(x.int(), x) -> Error: it returned torch.int32
fickle(twice(torch.zeros(6, 4)), x) -> Error: must return 1 tensors; it returned 2
fickle(None, x) -> Error: must return a tensor or a list of tensors
x.masked_select(x > 0) -> Error: shape of a result depends on data ... 'model', line 1 of ... torch.where
<(x, x.nonzero()) | torch.where(x)[0] | torch.argwhere(x)> -> Error: depends on data ... 'model', line 1 of ... keep a
x[torch.zeros(6, 4).bool().logical_or_(x > 0)] -> Error: depends on data ... topk ... A mask made of constants is fine
x.unique() -> Error: shape of a result depends on data ... 'model', line 1 of ... on the host, in the data set
x[0].repeat_interleave(x[0].int()) -> Error: depends on data ... 'model', line 1 of ... an index that is a buffer
(x, torch.bincount(x[0].int())) -> Error: depends on data ... 'model', line 1 of ... the number of values as minlength=
nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3])(x, x[:, 0].argsort()) -> Error: [aten::nonzero] ... depends on data
F.gaussian_nll_loss(x, x + 1, x.abs()) -> Error: branches on data ... 'model', line 1 of ... torch.where
SimpleNamespace(x=x) -> Error: object of type SimpleNamespace ... registerCustomArgParser
torch.distributions.Normal(x, 1.0) -> Error: an object of type Normal
x + torch.randn(4, generator=torch.Generator()) -> Error: torch.Generator ... randomSeed
nn.utils.rnn.pack_padded_sequence(rows, torch.tensor([4, 3]), True, False) -> Error: Packed ... ignore_index, or a mask
set_overlap_for_<in | out>put(x, Loop.Overlap<Accumulation | DeviceIteration>Loop) -> Error: with poptorch.P ... Sharded
"""

# In a forward for training, as its loss.
TRAINED = """
for_loop(2, same, [x])[0] -> Error: poptorch.for_loop() is only supported in inf
cond(x.sum() == 0, same, [x], same, [x])[0] -> Error: poptorch.cond() is only supported in inf
dynamic_slice(x, 1, START, 4, 1) -> Error: poptorch.dynamic_slice() is only supported in inf
dynamic_update(x, x, 1, START, 4) -> Error: poptorch.dynamic_update() is only supported in inf
m.linear.weight.<requires_grad_(False) | detach_()>.sum() + x -> Error: switches the gradient of 'linear.weight' off
m.linear.requires_grad_(False) and x -> Error: switches the gradient of 'linear.weight' off ... before trainingModel
setattr(m.linear.bias, 'requires_grad', False) or x -> Error: switches the gradient of 'linear.bias' off
INNER(x) -> Error: poptorch.CPU is only supported in inf ... use torch functions
custom(lambda t: t + 1, x, lambda inputs, outputs, gradients, attributes: []) -> Error: a gradient for each of 1 inputs
"""

# In a forward for inference with shards and IO tiles, `into` and `out` mark transfers in one of two modes.
OVERLAPPED = """
<into(x + 1) | into(m.linear.weight) | into(torch.zeros(2))> -> Error: not a tensor input to the model
<x * 2 + into(x) | into(x) + x | (into(x) * 2, x)> -> Error: must be the only op applied to an input
into(x) + set_overlap_for_input(x, OverlapMode.NoOverlap) -> Error: must be the only op applied to an input
<out(m.linear(x)) * 2 | (out(x * 2), m.linear(x))[1]> -> Error: not a tensor output to the model
x + len(out([torch.Tensor()])) -> Error: not a tensor output to the model
twice(out(m.linear(x))) -> Error: returned twice
"""

# Training of two pipelined blocks; afterwards the model is as it was, and the corrected program trains it.
TRAINING = """
trains(wrong=pipelined(accumulation=0)) -> Error: Training.gradientAccumulation must be at least 1, not 0
trains(wrong=pipelined(accumulation=2)) -> Error: gradientAccumulation must be greater than ... ShardedExecution
trains(wrong=pipelined('front', 'rear')) -> AssertionError: Unknown Block 'back' ... lists 'front', 'rear'
trains(inputs=(DATA[:7], CLASS[:7])) -> AssertionError: Invalid batch dimension ... Nearest multiples: 4 and 8
trains(lambda out, y: (F.cross_entropy(out, y), F.l1_loss(out, out * 0))) -> Error: Multiple independent ... identity
trains(lambda out, y: out) -> Error: Couldn't find a loss ... poptorch.identity_loss
trains(lambda out, y: F.cross_entropy(out, y) + F.l1_loss(out, out * 0)) -> Error: Multiple independent ... identity
trains(lambda out, y: (F.cross_entropy(out, y), F.l1_loss(out.detach(), out * 0))) -> Error: Multiple independent
trains(lambda out, y: F.cross_entropy(out, y, weight=torch.ones(4))) -> Error: class weights ... identity_loss
trains(inputs=(DATA.cfloat(), CLASS)) -> Error: Unsupported input ... complex64 ... imaginary parts
trains(lambda out, y: F.cross_entropy(out if out.sum() else -out, y)) -> Error: branches on data ... torch.where
trains(lambda out, y: F.cross_entropy(out[y > 1], y[y > 1])) -> Error: shape of a result depends on data ... mask
trains(inputs=(DATA,)) -> Error: Mandatory parameter y missing ... forward takes (x:
trains(lambda out, y: F.cross_entropy(in_back(out), y)) -> Error: No active Block ... entering the last block again
trains(wrong=pipelined(replicationFactor=128), inputs=(MANY, MANY[:, 0].long())) -> Error: (256) ... fewer replicas
trains(wrong=pipelined().useOfflineIpuTarget()) -> AssertionError: run a model on an offline device ... compile
"""


def mistakes(table: str) -> Iterator[tuple[str, type[Exception], list[str]]]:
    for line in table.splitlines():
        if line and not line.startswith("#"):
            call, _, message = line.partition(" -> ")
            error, _, words = message.partition(":")
            parts = [part.split(" | ") for part in re.split(r"<([^<>]*)>", call)]
            parts[::2] = [[" | ".join(part)] for part in parts[::2]]
            kind = {"Error": poptorch.Error, "JSONDecodeError": json.JSONDecodeError}.get(error)
            for choice in itertools.product(*parts):
                said = words.strip()
                for number, value in enumerate(choice[1::2], start=1):
                    said = said.replace(f"${number}", value)
                yield "".join(choice), kind or getattr(builtins, error), said.split(" ... ")


def every(table: str) -> pytest.MarkDecorator:
    rows = list(mistakes(table))
    return pytest.mark.parametrize(("call", "error", "words"), rows, ids=[row[0] for row in rows])


def refuses(call: Any, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as refusal:
        call()
    assert [text for text in words if text not in str(refusal.value)] == []


@every(CALLS)
def test_calls(call: str, error: type[Exception], words: list[str]) -> None:
    refuses(lambda: eval(call, NAMES), error, words)


@every(OPTIONS)
def test_options_stay_as_they_are(call: str, error: type[Exception], words: list[str]) -> None:
    o = poptorch.Options()
    before = repr(o), dict(vars(o))
    refuses(lambda: eval(call, {**NAMES, "o": o}), error, words)
    assert (repr(o), dict(vars(o))) == before


def said(table: str) -> dict[str, str]:
    texts = {}
    for call, *_ in mistakes(table):
        try:
            texts[call] = f"no error: {eval(call, {**NAMES, 'o': poptorch.Options()})}"
        except Exception as error:
            texts[call] = re.sub("0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")
    return texts


def test_optimised_python_tells_the_same() -> None:
    """`python -O` leaves assert statements out."""
    done = subprocess.run([sys.executable, "-O", __file__], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == said(CALLS + OPTIONS)


def product(x: Tensor, mode: Any, factor: int) -> Tensor:
    return poptorch.serializedMatMul(x, torch.ones(4, 10), mode, factor)


def within(context: Any, body: Any) -> Any:
    with context:
        return body()


def custom(function: Any, x: Tensor, backward: Any = None) -> Tensor:
    register("Wrong", "test.mistakes", 1, function, backward)
    return poptorch.custom_op([x], "Wrong", "test.mistakes", 1, [x])[0]


def fickle(later: Any, x: Tensor) -> Any:
    results = iter([torch.zeros(6, 4), later])
    return poptorch.CPU(lambda x: next(results), "fickle")(x)


NAMES |= globals() | {"THREE": MultiConv().availableMemoryProportions([0.1, 0.2, 0.3])}


def of_everything(m: Any, x: Tensor) -> Any:
    y = within(MultiConv(), lambda: m.conv_a(x))
    return poptorch.CPU(lambda t: t, "op")(poptorch.for_loop(2, lambda t: t + 1, [y])[0])


@every(TRACED)
def test_while_tracing_and_the_next_compilation_is_clean(call: str, error: type[Exception], words: list[str]) -> None:
    def forward(m: Any, x: Tensor, image: Tensor, rows: Tensor, at: Tensor) -> Any:
        return eval(call, {**NAMES, **locals(), "outer": m.linear.weight + 0})

    refuses(lambda: on_device(forward)(X, IMAGE, ROWS, START), error, words)
    clean = on_device(of_everything)
    torch.testing.assert_close(clean(IMAGE), clean.model.conv_a(IMAGE) + 2)
    assert not poptorch.isRunningOnIpu()


@every(TRAINED)
def test_in_a_training_model(call: str, error: type[Exception], words: list[str]) -> None:
    def forward(m: Any, x: Tensor) -> Any:
        return poptorch.identity_loss(eval(call, {**NAMES, "m": m, "x": m.linear(x)}), "sum")

    refuses(lambda: in_training(forward)(X), error, words)


def sharded(io_tiles: int = 32) -> poptorch.Options:
    options = quiet().setExecutionStrategy(poptorch.ShardedExecution())
    if io_tiles:
        options.TensorLocations.numIOTiles(io_tiles)
    return options


@pytest.mark.parametrize("mode", [OverlapMode.NoOverlap, OverlapMode.OverlapDeviceIterationLoop])
@every(OVERLAPPED)
def test_marks_of_transfers(call: str, error: type[Exception], words: list[str], mode: OverlapMode) -> None:
    def forward(m: Any, x: Tensor) -> Any:
        marks = {
            "into": lambda t: poptorch.set_overlap_for_input(t, mode),
            "out": lambda t: poptorch.set_overlap_for_output(t, mode),
        }
        return eval(call, {**NAMES, **marks, "m": m, "x": x})

    refuses(lambda: on_device(forward, sharded())(X), error, words)


@pytest.mark.parametrize("function", [poptorch.set_overlap_for_input, poptorch.set_overlap_for_output])
def test_options_of_a_program_with_overlap(function: Any) -> None:
    def forward(m: Any, x: Tensor) -> Any:
        y = x if function is poptorch.set_overlap_for_input else m.linear(x)
        return function(y, OverlapMode.OverlapAccumulationLoop)

    refuses(lambda: on_device(forward, sharded(0))(X), poptorch.Error, ["No IO tiles allocated", "numIOTiles(32)"])
    for output in (poptorch.OutputMode.Final, poptorch.OutputMode.EveryN):
        words = [f"Unsupported output mode {output.name}", "OutputMode.All"]
        refuses(lambda o=output: on_device(forward, sharded().outputMode(o, 1))(X), poptorch.Error, words)
    assert on_device(forward, sharded().outputMode(poptorch.OutputMode.Sum))(X).shape == (6, 4)


class TwoBlocks(Module):
    """Two layers `a` and `b`; the function makes outputs and losses of their result and the labels."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        h = within(poptorch.Block("front"), lambda: torch.relu(self.a(x)))
        return within(poptorch.Block("back"), lambda: self.function(self.b(h), y))


def in_back(out: Tensor) -> Tensor:
    with poptorch.Block("back"):
        return out * 2


def pipelined(*stages: str, accumulation: int = 4, **others: Any) -> poptorch.Options:
    made = quiet(accumulation=accumulation, outputMode=poptorch.OutputMode.All, **others)
    return made.setExecutionStrategy(poptorch.PipelinedExecution(*(stages or ("front", "back"))))


def correct(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return out, F.cross_entropy(out, y)


def trains(loss: Any = correct, wrong: poptorch.Options | None = None, inputs: Any = (DATA, CLASS)) -> None:
    torch.manual_seed(0)
    model = TwoBlocks(loss, a=nn.Linear(3, 5), b=nn.Linear(5, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    executor = training(model, wrong or pipelined())
    try:
        executor(*inputs)
    except Exception:
        assert not executor.isCompiled()
        assert not poptorch.isRunningOnIpu()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        executor.destroy()
        corrected = training(TwoBlocks(correct, a=model.a, b=model.b), pipelined())
        first, second = (corrected(DATA, CLASS)[1].mean().item() for _ in range(2))
        assert second < first
        assert not torch.equal(model.a.weight, before["a.weight"])
        raise


@every(TRAINING)
def test_a_program_can_be_corrected(call: str, error: type[Exception], words: list[str]) -> None:
    refuses(lambda: eval(call, {**NAMES, **globals(), "MANY": torch.ones(512, 3)}), error, words)


@pytest.mark.parametrize("where", ["MultiConv()", "Attribute(a={'b': 'c'})", "NameScope('a')", "CPU"])
def test_an_error_of_the_programs_own_comes_out_as_it_is(where: str) -> None:
    fails = Mock(side_effect=KeyError("mine"))

    def forward(m: Any, x: Tensor) -> Any:
        return poptorch.CPU(fails, "op")(m.linear(x)) if where == "CPU" else within(eval(where, NAMES), fails)

    executor = on_device(forward)
    with pytest.raises(KeyError, match="mine"):
        executor(X)
    assert type(executor.model.linear.weight) is nn.Parameter
    assert not poptorch.isRunningOnIpu()
    assert not poptorch.poptorch_core.isCompilingWithDispatcher()


if __name__ == "__main__":
    print(json.dumps(said(CALLS + OPTIONS)))
