# %% [markdown]
# # Data parallelism: many replicas, many processes
#
# *Plan 60 minutes, 16 of them for the exercises; the notebook itself runs in under one. Before it: lessons 02
# and 05. Lesson 08 helps.*
#
# A POD64 has 64 IPUs. The simplest way to use them all is to copy the program onto each. Then something else becomes
# too slow. You will
#
# * count with replicas, and show that they change no result,
# * read a scaling curve,
# * feed the replicas,
# * start instances with poprun, and find three mistakes,
# * measure what does not shrink,
# * share the state out, and say when that helps.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, show
from ipu_course.datasets import mnist
from ipu_course.lessons.data_parallelism.checks import check_changes, check_counts, check_third_run
from ipu_course.digit_training import Digits
from ipu_course.lessons.data_parallelism.poprun_run import run_poprun, source_of
from ipu_course.published_resnet50 import PUBLISHED_RATE, PUBLISHED_REPLICAS, published_resnet50
from ipu_course.lessons.data_parallelism.explorer import explore_scaling, loading_host
from ipu_course.lesson import Lesson
from ipu_course.lessons.data_parallelism.constant_batch import UpdateFit, show_constant_batch
from ipu_course.lessons.data_parallelism.scaling import show_hosts, show_scaling
from ipu_course.lessons.data_parallelism.state_in_parts import show_state_in_parts

# %%
lesson = Lesson("10")
torch.set_num_threads(1)
REPLICAS = (1, 2, 4, 8, 16, 32, 64)

# %% [markdown]
# ## Count with replicas
#
# A **replica** is a copy of the whole program, with its own weights, on IPUs of its own. Each replica works on other
# samples. Once per weight update, the replicas average their gradients: an **all-reduce**. All then make the same
# update, so their weights stay equal.
#
# * **Global batch**, the samples of one weight update: micro-batch x accumulation x replicas.
# * **Rows of a call**, what the loader gives: that, times the device iterations.
# * **Results of a call**: one micro-batch of *each* replica, the last one (PopTorch's default for training).
# * **Memory**: every replica holds everything. Replicas make no room.
#
# Four replicas in one process need one option. The digits, a small network, 16 weight updates; then the same in plain
# PyTorch, with batches of 8 x 2 x 4 = 64 digits:

# %%
digits = mnist(train=True, images=1024)

def train(data):
    options = poptorch.Options().showCompilationProgressBar(False)  # keeps this page tidy
    options.replicationFactor(4)
    options.Training.gradientAccumulation(2)
    network = Digits()  # the same first weights every time
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=0.1))
    loader = poptorch.DataLoader(options, data, batch_size=8)
    for images, labels in loader:
        _, loss = model(images, labels)
    model.copyWeightsToHost()
    model.detachFromDevice()
    return list(network.parameters()), images.shape, loss.shape

weights, rows, losses = train(digits)
print("rows of a call:", rows[0], "- losses that come back:", losses[0])

# %%
def same(some, others):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(some, others))

network = Digits()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for images, labels in torch.utils.data.DataLoader(digits, batch_size=64):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(network.layers(images), labels).backward()
    optimizer.step()
print("the same weights as with 4 replicas?", same(weights, network.parameters()))
print("trained at all?", not same(weights, Digits().parameters()))

# %% [markdown]
# Replicas are a larger batch. (Batch normalisation breaks this: its
# statistics are those of one micro-batch.)
#
# An **instance** is one process on the host. A run may have several, each with its own loader and some of the
# replicas; `replicationFactor` then counts the replicas of *one* instance.
#
# **Exercise 1** (5 min). Micro-batch 20, accumulation 10, 4 device iterations, 64 replicas in 32 instances. Give the
# global batch, the rows of one item of one instance's loader, and the calls that each instance makes in an epoch
# of 1,281,167 images.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: global_batch = ...
### STARTER: rows_per_item = ...
### STARTER: calls = ...
global_batch = 20 * 10 * 64
rows_per_item = 20 * 10 * 4 * 2
calls = 1_281_167 // (rows_per_item * 32)
### END SOLUTION
check_counts(global_batch, rows_per_item, calls)

# %% [markdown] tags=["hint"]
# Which replicas share one update? Which of them does one loader feed? How many loaders share the images?

# %% [markdown] tags=["solution"]
# 12,800 images an update, 1,600 rows an item. All instances take 51,200 images in a call: 25 full calls.

# %% [markdown]
# ## Read a scaling curve
#
# Now full size: ResNet-50 on photographs of 224 x 224, one IPU per replica, as a submission to MLPerf trained it on a
# POD16 [2]: micro-batch 20, accumulation 10, half precision, images as bytes, recomputation.
#
# **Predict:** images a second with 16 replicas, after a look at those of one replica alone. **Efficiency** is the rate
# divided by theory: 16 times one replica's. (Memory: it only just fits.)

# %%
program = published_resnet50()
alone = program and program.profile()
if alone:
    print(f"images a second, modelled: {alone.samples_per_second:,.0f}; memory: {engine.memory_verdict(alone)}")

# %%
guess = lesson.predict("images a second with 16 replicas", ...)

points = program.scaling(REPLICAS) if program else ()
guess.reveal(round(points[4].samples_per_second) if points else None, "modelled",
             f"{PUBLISHED_RATE:,.0f}, whole run of MLPerf v1.1 [2]")
show_scaling(points, (PUBLISHED_REPLICAS, PUBLISHED_RATE))

# %% [markdown]
# Nearly perfect, and from 4 to 32 replicas it hardly gets worse. Why? The all-reduce runs in a ring: each of R replicas
# sends and receives 2 (R - 1) / R times the gradient's bytes, so less than twice.
# Up to 4 replicas, the IPUs of an IPU-M2000 come to share its host link: see "streams". With 64, one
# process has too many images to copy.
# And code for exchange between IPUs grows with the replicas, until tiles are nearly full; published, from 1.0 to 4.7 MB
# for BERT-Large, 1 to 4 replicas [1].
#
# ## Feed the replicas
#
# 16 replicas need about 30,000 images a second, and so far they cost nothing. Assume that a core decodes and
# crops one photograph in 2 ms, while the IPUs work. (Measure yours, as in lesson 05.) One process with 8 workers
# then loads up to 4,000 images a second, whatever the number of replicas.
#
# **Predict:** how many times as fast is such a process with 16 replicas as with one?

# %%
guess = lesson.predict("times as fast with 16 replicas as with one, in one process", ...)

hosts = {}
if program:
    hosts = {
        "1 process": program.scaling(REPLICAS, host=loading_host(8)),
        "1 process for 2 replicas": program.scaling(REPLICAS, host=loading_host(8), replicas_per_instance=2),
        "the same on 4 hosts": program.scaling(REPLICAS, host=loading_host(8, hosts=4), replicas_per_instance=2)}
    rates = [point.samples_per_second for point in hosts["1 process"]]
guess.reveal(round(rates[4] / rates[0], 2) if hosts else None, "modelled",
             "1.4 times with 8 IPUs as with 2 (7.8 k and 5.6 k images a second), another network, one process [3]")
show_hosts(hosts, points)

# %% [markdown]
# Ask at each step what limits:
#
# * The line of one process is flat from about 2 replicas on. More **workers** help as long as the process can hand on
#   what they load.
# * With an **instance** for every two replicas, as in the MLPerf run, loaders grow with the replicas.
# * A host has 64 **cores** here: 8 instances of 8 workers. More only take turns. More **hosts** help.
#
# ## Start instances with poprun
#
# `poprun` starts the same program several times, and tells each instance by environment variables which replicas are
# its own. The lesson's program begins as all do, and trains on the digits, as above. Two instances with two replicas
# each make four again:

# %%
for function in ("start", "make_options"):
    print(source_of("ipu_course.lessons.data_parallelism.distributed_digits", function), end="\n\n")
run = run_poprun(
    "poprun --num-replicas 4 --num-instances 2 python -m ipu_course.lessons.data_parallelism.distributed_digits")
print(run.problem or "all instances ended well")
show.table(run.rows[:4], index="fact")

# %% [markdown]
# Two loaders, with half of the digits each. Are the weights those of one process with four replicas? Each update now
# takes 32 digits of the first half and 32 of the second. To compare, one process gets its digits in that order.
#
# **Bug hunt.** The same run went on with three mistakes that all train without an error, and one repair. Say for each
# line what is wrong before you read on.

# %%
order = torch.arange(1024).view(2, 16, 32).transpose(0, 1).flatten()  # [instance, call, row] to [call, instance, row]
weights, _, _ = train(torch.utils.data.Subset(digits, order.tolist()))
if run.weights:
    print("4 replicas in 1 process and in 2 instances, the same weights?", same(weights, run.weights))
show.table(run.rows[4:], index="fact")

# %% [markdown]
# 1. *Plain `poptorch.Options()`.* It finds the instances in the environment, but not the replicas: each instance has
#    one. Half of the IPUs have nothing to do, and the global batch is half as large. Use `popdist.poptorch.Options()`.
# 2. *`auto_distributed_partitioning=False`*, or PyTorch's own loader: all instances load all digits, so each digit is
#    shown twice in an epoch.
# 3. *A seed of its own for each instance.* PopTorch does not share first weights. Equal updates of different weights
#    leave them different: each instance trains another network, with gradients of neither. Use the same seed, or, as
#    the last line does, Horovod's `hvd.broadcast_parameters(model.state_dict(), root_rank=0)` before wrapping the
#    model.
#
# ## Measure what does not shrink
#
# So far, more replicas made the global batch larger. Learning may not allow that. At a constant global batch,
# replicas share out the micro-batches. An update of *G* micro-batches takes *T(G) = G m + u*; the all-reduce, the
# update itself and the start of a call are in *u*, once per update. **Amdahl's law**: with a constant share *s* of
# the time, R replicas are at most 1 / (*s* + (1 - *s*) / R) times as fast.
#
# Two runs with 16 replicas give *m* and *u*. **Predict** from them the milliseconds of an update with accumulation 1.
# Then one replica with accumulation 64 shares its micro-batches out.

# %%
def seconds(accumulation):
    return program.profile(replicas=16, machine="POD16", gradient_accumulation=accumulation).call_seconds

runs = [(count, seconds(count)) for count in (10, 20)] if program else []
for count, time in runs:
    print(f"accumulation {count}: {1000 * time:.1f} ms an update, modelled")

# %%
guess = lesson.predict("milliseconds of an update with accumulation 1", ...)

fit = UpdateFit(*runs) if runs else None
if fit:
    print(f"m = {1000 * fit.m:.2f} ms, u = {1000 * fit.u:.2f} ms, so m + u = {1000 * fit.seconds(1):.1f} ms")
guess.reveal(round(1000 * seconds(1), 1) if program else None, "modelled",
             "107.9 ms with accumulation 10 (the first run above) [2]")

show_constant_batch(program, REPLICAS, 64, fit)

# %% [markdown]
# With 64 replicas each update has one micro-batch, and nearly a third of the time goes into *u*. One replica's profile
# does not show this: alone, it has no all-reduce. (The law's curve lies above the model's, as its *m* includes the
# shared host link from the start.)
#
# **Exercise 2** (5 min). Another program takes 52 ms an update with accumulation 4, and 132 ms with 12. How
# many milliseconds with 1? And which is the smallest accumulation with which *u* is at most a tenth of the time?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: milliseconds = ...
### STARTER: accumulation = ...
m = (132 - 52) / (12 - 4)
u = 52 - 4 * m
milliseconds = m + u
accumulation = 11
### END SOLUTION
check_third_run(milliseconds, accumulation)

# %% [markdown] tags=["hint"]
# What do 8 micro-batches more cost? Then *u* is what is left of 52 ms.

# %% [markdown] tags=["solution"]
# *m* = 10 ms, *u* = 12 ms. *u* is a tenth of 120 ms, so the micro-batches take 108 ms or more: 11 of them.

# %% [markdown]
# In the explorer, find a setting with 64 replicas and an efficiency above 90 %. Is there one at a constant global
# batch?

# %%
explore_scaling(program)

# %% [markdown]
# **Exercise 3** (6 min). Five programs, all with asynchronous loaders, times of one call. What is to be changed
# first in each: `"loaders"` (more workers, instances or cores), `"8-bit input"`, `"accumulation"`, `"state in
# parts"` (the next section) or `"nothing"`?
#
# | program | replicas | accumulation | loader | device | of it streams | all-reduce, update | copies of state |
# |---|---|---|---|---|---|---|---|
# | A | 16 | 10 | 330 ms | 110 ms | 9 % | 4 % | none |
# | B | 16 | 10 | 90 ms | 210 ms | 55 % | 2 % | none |
# | C | 64 | 2 | 15 ms | 26 ms | 9 % | 31 % | none |
# | D | 16 | 10 | 80 ms | 160 ms | 7 % | 3 % | 32 % |
# | E | 64 | 10 | 95 ms | 110 ms | 9 % | 4 % | none |

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: changes = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
changes = {"A": "loaders", "B": "8-bit input", "C": "accumulation", "D": "state in parts", "E": "nothing"}
### END SOLUTION
check_changes(changes)

# %% [markdown] tags=["hint"]
# First compare loader and device: the longer one is the time of a call. If it is the device's, look for a large share.

# %% [markdown] tags=["solution"]
# A waits for its loader. B sends too much, C adds up gradients too often, D moves the whole state for each replica.
# E's loader is nearly as slow as its device, but hidden: today there is nothing to gain.

# %% [markdown]
# ## Share the state out
#
# Replicas that make the same update need not all make all of it. With **replicated tensor sharding** (RTS), replica
# *i* keeps one part of the optimiser's state (ceil(*n* / R) of *n* elements) and updates that part of the weights. The
# all-reduce becomes a **reduce-scatter** (each gets the sum of its part) before the update, and an **all-gather** of
# the new weights after it.

# %%
show_state_in_parts(program, (1, 2, 4, 8, 16), machine="POD16")

with torch.device("meta"):
    sizes = [weight.numel() for weight in torchvision.models.resnet50().parameters()]
small = [size for size in sizes if size < 8192]
print(f"below 8,192: {len(small)} of {len(sizes)} tensors, with {sum(small) / sum(sizes):.1%} of the elements")

# %% [markdown]
# The state of each replica falls as 1 / R, for about the same time. Here that saves little. It helps when the state is
# large (Adam's in 32 bits is four times this one), or lives off the chip: the replicas of a machine share its
# streaming memory, so whole copies are slow, and parts are cheap.
#
# PopTorch leaves tensors with fewer than 8,192 elements whole. For this network, a lower threshold
# (`minElementsForReplicatedTensorSharding`) would mean many more calls for no memory.
#
# ## Summary
#
# * Global batch: micro-batch x accumulation x all replicas. The weights are those of that batch in plain PyTorch.
# * First the host limits, then, at little accumulation, *u*.
# * Instances multiply loaders; cores and hosts bound them. Equal first weights are your task.
# * RTS divides the state by R for about the same time.
#
# **Ask what limits before you add replicas.**
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# The same `poprun` command starts the same program on IPUs, from several hosts with `--host`. Leave out the first
# reported rate and average the rest. Each instance compiles: share an executable cache. PopVision's System Analyser
# shows who waits for whom, its Graph Analyser the all-reduce.
#
# ## What transfers
#
# `torchrun` with `DistributedDataParallel` is the same on GPUs, and broadcasts the first weights for you.
# `DistributedSampler` is the partition, `no_sync` the accumulation; ZeRO and FSDP share the state.
#
# ## References
#
# 1. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.3, 4.7 and 7.
# 2. MLCommons, *[MLPerf Training v1.1 results](https://github.com/mlcommons/training_results_v1.1)*, Graphcore,
#    IPU-POD16, ResNet-50: 43.19 s an epoch, 107.9 ms an update with micro-batch 20 and accumulation 10.
# 3. IPU hands-on training workshop (2022), day 04, *Distributed data parallelism*.
#
# **Next:** the course ends here; `python -m ipu_course bench` asks the same questions of the benchmark page's programs.
