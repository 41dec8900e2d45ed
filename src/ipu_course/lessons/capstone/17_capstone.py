# %% [markdown]
# # Capstone: fit a transformer, make it fast, and defend it
#
# BERT-base as PyTorch users write it needs **3.5 times the memory of a tile** (modelled). An even split over four IPUs
# does not fit either. `make_it_fit`, the search of the IPU Model, tries 37 programs and finds one that fits with room
# to spare. It is **9 % faster** than the best of the 640 plans that this lesson compares (modelled), partly with means
# that you will not have. But a search does not defend its plan. You have twelve compilations to find one, and reasons.
#
# There is no new technique here. You choose among those of the other lessons, and then you say why.
#
# *Plan 120 minutes, 72 of them for the exercises; the notebook itself runs in under one. Before it: lessons 01, 02, 05,
# 06, 08 and 10 to 13.* You will
#
# * train the small transformer for real,
# * write a plan within a budget,
# * compare with every plan,
# * scale to more replicas,
# * reduce inside a Pod and between Pods,
# * mend a program that its loader limits,
# * write the report.

# %%
import torch

import poptorch
from ipu_course import quiz
from ipu_course.lessons.capstone import (
    SIZES, all_plans, full_size_cnn, lesson, new_budget, plan_to_scale, show_as_it_is, show_every_plan, show_ladder,
    show_plans_compared, show_published, show_replicas, show_slow_program, show_small, train_small,
    waiting_percent, write_report)

torch.set_num_threads(1)
size = SIZES["base"]  # or "large": 24 layers of 1,024
show_as_it_is(size)

# %% [markdown]
# ## Train the small transformer for real
#
# The network fills in masked words, as BERT does: an `embedding`, encoder `layers`, and a `head` whose projection to
# the vocabulary has the embedding's weight. It is written for one device. Its weights, accumulators and LAMB's two
# moments take 16 bytes a weight in float32, and activations come on top. So the network has to be split.
#
# A **plan** is a function that changes the network and returns its options. This one is the obvious first try. First
# it trains a network of 4 layers, for real, on made-up sentences. Then it is compiled at full size:

# %%
def even_plan(model, global_batch):
    for number, layer in enumerate(model.layers):
        poptorch.BeginBlock(layer, f"layer {number}", ipu_id=number * 4 // len(model.layers))
    poptorch.BeginBlock(model.head, "head", ipu_id=3)
    options = poptorch.Options()
    options.Training.gradientAccumulation(global_batch // 4)  # micro-batches of 4 sequences
    return options

show_small(train_small(even_plan))
budget = new_budget(size)
budget.compile(even_plan)
show_ladder(budget)

# %% [markdown]
# A plan changes where and when something is computed, and not what: the small network learns exactly as in plain
# PyTorch. But the full size does not fit on IPUs 0 and 3.
#
# ## Write a plan within a budget
#
# On hardware, each trial takes minutes to compile, so you have a **budget of twelve** modelled compilations, and one is
# used. What is fixed: the network, LAMB, four IPUs of a Bow-2000, one replica, no host work, and **1,024 sequences in
# an update**, because the learning rate allows no more. So the accumulation decides the micro-batch. You choose
#
# * **the precision**: `model.half()` and `options.Precision.setPartialsType(torch.half)`;
# * **the layers of each IPU**: `poptorch.BeginBlock(layer, name, ipu_id=...)`; the embedding is on IPU 0;
# * **the place of the head**: on IPU 3, or on IPU 0, which holds the weight that it shares with the embedding. On
#   IPU 0, its stage is still the last one, so the pipeline comes back to the first IPU, and that needs
#   `options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))`;
# * **the micro-batch**: `options.Training.gradientAccumulation(...)`;
# * **the checkpoints**: what enters a stage, by default; or every layer's output, too, with
#   `layer.register_forward_hook(lambda module, inputs, output: poptorch.recomputationCheckpoint(output))`;
# * **the place of the optimiser state**: on the chip by default, or
#   `options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))`;
# * **the available memory proportion**: `options.setAvailableMemoryProportion({"IPU0": 0.25, ...})`; by default 0.6.
#
# **Exercise 1** (32 min). Write `plan(model, global_batch)`. It has to fit with **5 % of every tile free**, because the
# model's bytes are not exact, and reach **85 %** of the best plan that does. Every run of this cell is a compilation,
# so decide before you run it what you expect. Change one thing at a time: the ladder (`show_ladder(budget)`) shows what
# changed from plan to plan, and you need it for the report. A new budget is allowed, but your records and your report
# count it.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def plan(model, global_batch):
### STARTER:     ...
def plan(model, global_batch):
    model.half()
    for number, layer in enumerate(model.layers):
        layer.register_forward_hook(lambda module, inputs, output: poptorch.recomputationCheckpoint(output))
        poptorch.BeginBlock(layer, f"layer {number}", ipu_id=(number + 3) // 4)
    poptorch.BeginBlock(model.head, "head", ipu_id=0)
    options = poptorch.Options()
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Precision.setPartialsType(torch.half)
    options.Training.gradientAccumulation(global_batch // 16)
    options.setAvailableMemoryProportion({f"IPU{ipu}": 0.25 for ipu in range(4)})
    return options
### END SOLUTION
lesson.check(1, plan, using=budget)

# %% [markdown] tags=["hint"]
# Begin with precision, because it helps memory and speed alike. Then look at the categories of the fullest tile, and at
# the IPUs with room. The copies of the optimiser state cost time once for each update: what does 1,024 sequences mean
# for their share? If the state is to stay on the chip, what has to become smaller?

# %% [markdown] tags=["solution"]
# The head is beside the vocabulary's weight, which then crosses no link, and nearly the whole encoder is on the other
# three IPUs. So the state has room on the chip, and nothing has to be copied from outside. A micro-batch of 16 is the
# largest for which the activations still fit, with every layer's output as a checkpoint. A proportion of 0.4 would be
# 1 % faster, but IPU 0 would be too full. (This is the plan for BERT-base. For BERT-large, other values win.)

# %% [markdown]
# ## Compare with every plan
#
# What is "the best plan"? We have modelled every plan of a space that we can state. In its four cuts, IPUs 1 and 2 have
# three layers each or four, no other IPU has more than they, and IPU 3 has at least two. There are two places of the
# head, four micro-batches (4 to 32), two kinds of checkpoints, two places of the state, and five proportions (0.1 to
# 0.6), the same on all IPUs. Everything is in half precision with half partials.
#
# `python -m ipu_course.lessons.capstone.every_plan` models all of them again, in some minutes, and compares them with
# the stored ones (`--size large` does so for BERT-large). Your plan may lie outside this space, and may even beat it.
#
# The next cell shows the best plan. So run it when you are content with your own plan, or when your budget is used up,
# and then open the discussion below it:

# %%
every = all_plans(size)
show_ladder(budget)
show_every_plan(every, budget)
show_plans_compared(every)
show_published(size, every)

# %% [markdown]
# All these figures are modelled. The model compares two programs better than it knows either of them: the ratio of two
# published programs that differ in one thing is 2 % off in the middle case, and 16 % in the worst. So a plan in the
# grey band may be better on hardware than the star: **too close to call**.
#
# <details>
# <summary>For after exercise 1: why is the search faster, and the published configuration slower?</summary>
#
# **What does the search do?** `make_it_fit` begins with the program as it is. It comes to most of the best plan's
# decisions: the head on IPU 0, a micro-batch of 16, every layer's output as a checkpoint, the state on the chip. Then
# it does what our space does not have. It cuts inside of layers, so the IPUs have more equal work. It sets the
# proportion of IPU 0 alone. And it keeps first moments in half precision: IPU 0 has room for more of the encoder then,
# but this changes the numerics. On hardware, compare the accuracy before you take it.
#
# **Why is the published configuration slower here?** Its cut, its head and its checkpoints are those of the best plan.
# But it was tuned for another task. For BERT-base, four replicas share an update of 65,536 sequences, so each copies
# a quarter of the state, and 16 times as rarely. (The model gives our network more than the published rate on that
# task, partly because it has no dropout, no attention mask and no second loss. With all of these, its rate was about a
# tenth too low when it was *scored blind*. The model has been improved with this row in view, and is now about 4 % too
# high.)
#
# </details>
#
# (`python -m ipu_course report --export FILE` writes your score for the [room's leaderboard](../docs/workshop.md),
# where equal scores share a place.)
#
# What is a single decision worth? Here is the best plan with another value, first alone, then with everything else
# chosen anew:

# %%
lesson.explore(every)

# %% [markdown]
# **Exercise 2** (8 min). Go through all six decisions. For how many other values does the best plan still fit with 5 %
# of every tile free when you change nothing else? (`fitting`) And what percentage of its throughput do you lose with
# the head in the other place, if you choose everything else anew? (`head_loss`)

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: fitting = ...
### STARTER: head_loss = ...
fitting = 7
head_loss = 20
### END SOLUTION
lesson.check(2, fitting, head_loss, using=every)

# %% [markdown] tags=["hint"]
# The first bars say "not enough room" where a value alone does not work. Do not count the best plan's own
# values. For the loss, divide two second bars.

# %% [markdown] tags=["solution"]
# Every decision's worst value costs less than a quarter of the throughput, because the other decisions make up for
# some of it. That is why a search that changes one thing at a time often stops early: from most plans of this space,
# the way to the best one leads through plans that are slower or do not fit.

# %% [markdown]
# ## Scale to more replicas
#
# The guide's quick advice on scaling [2]: if the program does not compile, use the memory techniques; if it compiles
# but does not scale, look at the host first, then at more accumulation to communicate less; only then at the rest.
# (Of the rest, sections 7.7 to 7.9, we know only the headings. What follows is this course's own procedure.)
#
# **Leave room for more replicas.** The collectives need code, so a plan that nearly fills a tile on one replica may not
# compile on four:

# %%
print(lesson.published("code_growth").line)
module = plan_to_scale(size)
show_replicas(module, size)

# %% [markdown]
# This is the fastest plan with its state off the chip that leaves 5 % of every tile. **Replicated tensor sharding**
# gives each replica only its part of the state. Then two things happen that are impossible with one replica: the copies
# nearly vanish, so efficiency (the rate of each replica, compared with one alone) exceeds 100 %, and from some number
# of replicas on, the state is small enough to stay on the chip (a hollow point marks where it is too close to call
# whether that fits). So the order is
#
# 1. Make one replica fit, with about 5 % of a tile left.
# 2. Add replicas, and shard the state. Use the memory that this frees: state on the chip, a larger micro-batch.
# 3. Ask again whether the pipeline has to be so long. Two pipelines of two IPUs have fewer bubbles than one of four,
#    but hold all weights twice, and each IPU has twice as many bytes to reduce.
#
# ## Reduce inside a Pod and between Pods
#
# A Bow Pod64 is 16 machines of four IPUs whose **IPU-Links** form a ladder, closed into a torus. Larger systems are
# racks of 64, joined by slower **gateway links**, 100 Gb/s each, two for each machine [3]. GCL, Graphcore's
# library of collectives, chooses among several rings inside a Pod: one direction, two opposite ones, or four parts over
# two rings. Of a very small tensor, every replica sends all it has to every other, because only latency counts [3].
#
# Between Pods it pays to be hierarchical: reduce-scatter inside each Pod; then each replica reduces **its own part**
# with its partners in the other Pods, in a ring of Pods; finally, an all-gather inside each Pod.
#
# **Exercise 3** (8 min). Write `sent(gradient, replicas, pods)`: the bytes that each replica sends inside its Pod, and
# between Pods, as a pair. `replicas` are those of one Pod. What would a ring over all replicas send over the slow
# links?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def sent(gradient, replicas, pods):
### STARTER:     ...
def sent(gradient, replicas, pods):
    inside = 2 * (replicas - 1) / replicas * gradient
    between = 2 * (pods - 1) / pods * gradient / replicas
    return inside, between
### END SOLUTION
lesson.check(3, sent)

# %% [markdown] tags=["hint"]
# In [lesson 10](10), each of n replicas sends 2 (n - 1) / n times the gradient. After the reduce-scatter, how large is
# the part that a replica holds?

# %% [markdown] tags=["solution"]
# With 16 replicas in a Pod, each sends nearly twice the gradient inside, and less than an eighth of it between Pods.
# That is why the all-reduce of the table above hardly grows from 16 to 64 replicas, although the links between its
# Pods are slower.

# %% [markdown]
# ## Mend a program that its loader limits
#
# The second capstone is a program as one finds them in public: ResNet-50 on photographs, on one IPU, with
#
# ```python
# def make_options():
#     options = poptorch.Options()
#     options.Training.gradientAccumulation(10)
#     return options
#
# def make_loader(options, data):
#     return poptorch.DataLoader(options, data, batch_size=20)
# ```
#
# Decoding and cropping a photograph takes 2 ms of a core (assumed, as in lesson 10), and the host has 16 cores.
#
# **Predict:** what percentage of the rate that the IPU alone would reach is lost?

# %% tags=["prediction"]
lost = lesson.predict("percent of the IPU's own rate that is lost", ...)

# %%
cnn = full_size_cnn()
lost.reveal(waiting_percent(cnn), "modelled")
show_slow_program(cnn)

# %% [markdown]
# **Exercise 4** (12 min). Mend both functions, so that the program reaches at least 95 % of the IPU's own rate, and
# **nothing changes in its results**. Keep the micro-batch and the accumulation, too, because ResNet-50 normalises each
# micro-batch by itself. The check trains a tiny network with your functions, for real, and compares the
# weights at the end with those of the program as it is. Then it profiles ResNet-50 with your options and loader. (It
# counts your workers, but starts none.)

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def make_options():
### STARTER:     ...
### STARTER:
### STARTER: def make_loader(options, data):
### STARTER:     ...
def make_options():
    options = poptorch.Options()
    options.Training.gradientAccumulation(10)
    options.deviceIterations(8)
    return options

def make_loader(options, data):
    return poptorch.DataLoader(options, data, batch_size=20, num_workers=8, mode=poptorch.DataLoaderMode.Async)
### END SOLUTION
lesson.check(4, make_options, make_loader, using=cnn)

# %% [markdown] tags=["hint"]
# There are two bottlenecks, one behind the other. How many photographs does one core decode in a second, and how many
# does the IPU train on? `num_workers` and `mode=poptorch.DataLoaderMode.Async` are arguments of `poptorch.DataLoader`
# ([lesson 05](05)). Then compare the row of the host with that of the device, and think of [lesson 03](03).

# %% [markdown] tags=["solution"]
# One worker loads 500 photographs a second, so five keep up with the IPU, and a few more are a reserve. After that,
# every call still has the host's overhead of 34 ms, and eight device iterations share it among eight updates.

# %% [markdown]
# ## Write the report
#
# A plan that nobody understands is thrown away with the next model. **Exercise 5** (12 min). Give a reason for each
# decision, in a sentence with a figure that you saw: KiB, sequences/s, a percentage. The cell after the check writes
# the report, with your ladder and the code of your best plan. Then swap reports with a neighbour.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: reasons = {"split": ..., "head": ..., "micro-batch": ..., "recomputation": ..., "state": ...,
### STARTER:            "proportion": ..., "loader": ...}
reasons = {
    "split": "The embedding fills much of IPU 0, so it has 1 layer, and IPUs 1 and 2 have 4 each.",
    "head": "Beside the embedding, its weight crosses no link; on IPU 3 I lose 20 %.",
    "micro-batch": "16 is the largest that fits with the state on the chip; 8 loses 10 %.",
    "recomputation": "With every layer as a checkpoint, the fullest tile holds 579 KiB instead of 656.",
    "state": "Off the chip, its copies take a quarter of an update of only 1,024 sequences.",
    "proportion": "0.25 loses only 1 % against 0.4, and IPU 0 needs 74 KiB less.",
    "loader": "8 workers load 4,000 images a second, twice what the IPU needs.",
}
### END SOLUTION
lesson.check(5, reasons)

# %% [markdown] tags=["hint"]
# A reason names what you compared: this value, another one, and what the ladder or the explorer showed for both.

# %% [markdown] tags=["solution"]
# The check only sees that there is a sentence with a figure. Whether the reason is good, your neighbour will tell you.

# %%
write_report(budget, reasons, plan=plan, make_options=make_options, make_loader=make_loader)

# %% [markdown]
# At the beginning of part two you answered some questions about memory. What do you answer now?

# %%
quiz.after("memory", ...)

# %% [markdown]
# ## Summary
#
# * Fit first, with room to spare, then make it fast. Both ask for the same decisions, and they depend on each other.
# * The best plan belongs to a task: with another global batch or number of replicas, another plan wins.
# * A search only knows its own moves. Know which of them change your results.
# * Replicas with sharded state are memory. Between Pods, send only parts.
# * Profile the whole program, host included, and change nothing that does not limit.
#
# **Takeaway:** a plan is finished when you can say why.
#
# ## On real hardware
#
# The same functions give the same programs on IPUs. Without an IPU Model, this notebook trains the small network and
# checks exercises 3 and 5; compile your plans with `useOfflineIpuTarget` and read their
# memory in PopVision ([lesson 13](13)). Budget compilations there, too: a cache keeps those that you have made.
#
# ## What transfers
#
# Pipeline, micro-batch, recomputation, sharded and offloaded state are the same decisions on GPUs, in Megatron or
# DeepSpeed, with other prices. You can enumerate plans before you rent a machine wherever you have a model of it
# that you trust. The hierarchical all-reduce is common there, too: NVLink inside, Ethernet or InfiniBand between.
#
# ## References
#
# 1. Graphcore, performance results for PyTorch on Bow Pod16 (SDK 3), and the public application for BERT, whose
#    configurations these are.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.3 (table 4.1) and 7.
# 3. Graphcore, datasheets of Bow-2000, Bow Pod64 and IPU-POD128, and the *GCL User Guide*.
#
# **Next:** The course ends here. Take a program of your own: `python -m ipu_model fit` finds what fits, and now you
# know how to judge it.
