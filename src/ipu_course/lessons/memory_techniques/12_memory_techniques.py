# %% [markdown]
# # Memory techniques, each with its price
#
# A language model with eight blocks trains on one IPU, in half precision, ten sentences at a time. Its fullest tile
# would need **897 KiB, and it has 624** (modelled). That is 44 % too much.
#
# This lesson tries eight techniques on it: a smaller proportion of memory for products, half-precision partial sums,
# the largest product in slices, recomputation, an operation of your own, half the micro-batch, and optimiser state off
# the chip or shared by four replicas. Which bytes does each of them save, and what do you pay? In the end the program
# fits, and it is faster than at the beginning.
#
# *Plan 75 minutes, 30 of them for the exercises; the notebook itself runs in under one. Before it: lessons [01](01),
# [08](08) and [11](11).* You will
#
# * sweep the available-memory proportion, and read its price,
# * count partial sums, and cut a product into slices,
# * choose what is computed again,
# * write an operation with its own backward pass,
# * let equal blocks share their code, and move or share state,
# * compare other execution schemes,
# * combine techniques, and see the trade-off.
#
# The next picture shows what fills the tile; 273 KiB of it have to go. **Predict:** imagine that you try the eight
# techniques one at a time. With how many of them does the program fit?

# %%
import torch

import poptorch
from ipu_course import show
from ipu_course.lessons.memory_techniques import (
    LanguageModel, captured, course_options, fit_alone, lesson, modelled_training, more_code_kib, plain_program,
    register_activation, show_alone, show_code, show_hills, show_own_activation, show_partials, show_schemes, show_sets,
    show_slices, show_sweep, show_trade_off, two_ipus)

torch.set_num_threads(1)
show.memory(plain_program(), "Temporary data, optimiser state and activations are the largest parts.")

# %% tags=["prediction"]
enough = lesson.predict("techniques of the eight with which the program fits", ...)

# %%
enough.reveal(fit_alone(), "modelled")
show_hills({"no technique": plain_program()},
           "Spikes stand on a hill, and the hill stands on a floor: each needs techniques of its own.")

# %% [markdown]
# The picture says why. The fullest tile has a **floor** that is always live, a **hill** of activations, and **spikes**
# of temporary data ([lesson 11](11)). A technique lowers one of them, and the other two remain. So take them in the
# order in which they matter: first the highest spike, then the hill, then the floor.
#
# ## Sweep the available-memory proportion, and read its price
#
# The highest spike hides everything below it. It belongs to the network's last product. A product rearranges its
# operands and adds up partial results, and may use a share of each tile for that: the **available-memory proportion**,
# 0.6 by default [3]. With less, the planner has to find a plan of smaller steps, which usually takes more cycles. The
# other way round, large operations take fewer cycles when they have more memory. That is one reason why saving memory
# makes programs faster [1].
#
# `options.setAvailableMemoryProportion({"IPU0": 0.2})` sets it for all products, convolutions and lookups of an IPU,
# and `poptorch.set_available_memory(product, 0.2)` for one of them. It is a wish: if the planner finds no plan within
# it, it raises the limit, and in the end drops it. So in a program that is out of memory, you may see no effect [1].

# %%
language = captured()
show_sweep(language)
print(f"{lesson.published('proportions').kind}: {lesson.published('proportions').text} "
      f"{lesson.published('proportions').source}")
lesson.explore(language)

# %% [markdown]
# **Exercise 1** (5 min). Move the slider, and watch the spikes in the middle. What is the smallest proportion that
# costs at most 2 % of the throughput: with partial sums in float32 (`single`), and with partial sums in float16
# (`half`)?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: single = ...
### STARTER: half = ...
single = 0.2
half = 0.15
### END SOLUTION
lesson.check(1, single, half, using=language)

# %% [markdown] tags=["hint"]
# The last column compares with the default of the *same* type of partial sums.

# %% [markdown] tags=["solution"]
# The price rises slowly down to these, and steeply below them. At 0.05 the tile is hardly emptier than at 0.15, because
# by then another op is at the peak.

# %% [markdown]
# A proportion below about 0.05 often saves nothing on hardware: a plan of so many steps needs more code, and code is
# always live [3]. The model shows hardly any of that. (The clock is constant, so 2 % less throughput means about 2 %
# more cycles.)
#
# ## Count partial sums, and cut a product into slices
#
# A tile multiplies numbers and adds up the products. The running sums are called **partials**. By default they are
# float32, even for float16 operands. If a plan cuts each sum into *k* parts, for *k* groups of tiles, then there are
# *k* partials for each result: together results x *k* x 4 bytes. After `options.Precision.setPartialsType(torch.half)`,
# a partial has 2 bytes instead of 4.
#
# You can also cut the product itself: `poptorch.serializedMatMul(rows, weight, mode, factor)` computes it in `factor`
# slices, one after another. The lesson's network does so with its last product, of 1,280 rows and 8,192 words, if you
# give it a number of slices:

# %%
show_partials(language)

class Sliced(LanguageModel):  # what LanguageModel(slices=...) does
    def logits(self, rows):
        by_columns = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(rows, self.head.weight.t(), by_columns, self.slices)

show_slices((0, 2, 4, 8))

# %% [markdown]
# Half partials did not halve the temporary data. Most of that is operands, copied together for the plan, and partials
# are the smaller part. And the planner chose other plans, with sums in more parts. What half partials buy is speed,
# because the matrix units multiply twice as fast with them: compare the cycles. The price is rounding, and
# [lesson 01](01) shows when that matters.
#
# For this one product, slices save as much as a small proportion, and the planner cannot ignore them. Eight slices save
# no more than four, because the peak is elsewhere by then. So look at the column *its peak* before you cut any further.
#
# ## Choose what is computed again
#
# With the spike gone, the hill is next: every block keeps its results until the backward pass has used them. With
# **recomputation**, the program keeps only what a **checkpoint** marks. Before the backward pass of a block, it
# computes the other results of this block again. So only one block at a time has all of its results. (Of the guide's
# sections on this we know the headings only; the way to choose checkpoints is our own.)
#
# Our network marks what each block begins and ends with. If all the rest is computed again, every block runs its
# forward pass twice, and a backward pass takes about twice as long as a forward pass. **Predict:** by what percentage
# does the time for a sample grow?

# %% tags=["prediction"]
price = lesson.predict("percent more time for a sample, with each block computed again", ...)

# %%
sliced = captured(8)
kept_all = sliced.profile()
kept_ends = sliced.profile(recomputation="all", checkpoints=["embedded", *(f"blocks.{block}" for block in range(8))])
price.reveal(100 * (kept_all.samples_per_second / kept_ends.samples_per_second - 1), "modelled")
show_hills({"all results kept": kept_all, "only ends of blocks kept": kept_ends}, lesson.takeaway("hills"))
print(f"{lesson.published('sections').kind}: {lesson.published('sections').text} {lesson.published('sections').source}")

# %% [markdown]
# If everything ran twice, a third more would be right. But the last product, the copies and the update run once.
#
# In a program of your own, `options._Popart.set("autoRecomputation", 4)` asks for this: 4 is PopART's *RecomputeAll*,
# which computes everything again but the checkpoints. And checkpoints can stand inside a block, too. Some results are
# small and took many cycles, others are large and took few.
#
# **Exercise 2** (10 min). Finish `run_block`: pass some of its results through `poptorch.recomputationCheckpoint`,
# which returns the tensor that it marks. The program, with its last product in eight slices, has to fit (*too close to
# call* does not count), and should be as fast as possible. A block has eight results that you can keep or not: those of
# its two norms, `qkv`, `weights`, `mix`, `up` and `activation`, and the sum after attention. The score compares your
# choice with all 256 sets, and you need 95 % of the best. (`qkv`, `out`, `up` and `down` are linear layers. `weights`
# is the softmax of queries times keys, and `mix` multiplies it by the values: 128 x 128 times 128 x 64 in each head.)

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def run_block(block, x):
### STARTER:     attention, feed = block.attention, block.feed
### STARTER:     queries, keys, values = attention.split(attention.qkv(attention.norm(x)))
### STARTER:     mixed = attention.mix(attention.weights(queries, keys), values)
### STARTER:     x = x + attention.out(mixed)
### STARTER:     ...  # mark results in the other lines, and take this one out
### STARTER:     return x + feed.down(feed.activation(feed.up(feed.norm(x))))
def run_block(block, x):
    attention, feed, keep = block.attention, block.feed, poptorch.recomputationCheckpoint
    queries, keys, values = attention.split(keep(attention.qkv(attention.norm(x))))
    mixed = keep(attention.mix(attention.weights(queries, keys), values))
    x = keep(x + attention.out(mixed))
    wide = keep(feed.up(feed.norm(x)))
    return x + feed.down(feed.activation(wide))
### END SOLUTION
lesson.check(2, run_block, using=language)

# %% [markdown] tags=["hint"]
# Ask of each result: how many bytes does it keep, and how long would it take to compute it again? The results of `up`
# and `activation` are equally large, for example.

# %% [markdown] tags=["solution"]
# Keep what products give: queries, keys and values, the mixed values, the sum after attention, and the wide layer.
# Norms, softmax and activation are cheap to compute again. For large transformers on GPUs, attention's softmax is
# computed again for the same reason [5].

# %%
show_sets(run_block)

# %% [markdown]
# You need not take this picture on trust: `python -m ipu_course.lessons.memory_techniques.every_choice --check` models
# all sets again, in a minute or two.
#
# ## Write an operation with its own backward pass
#
# The activation `x * sigmoid(1.702 x)` is three ops to PyTorch, and two tensors wait for its backward pass: x and the
# sigmoid. An operation of your own can keep x alone and compute the sigmoid again. On hardware, a custom operation is
# C++: one class for the forward pass, and one for the gradient. You compile it with the SDK, load it with `ctypes`, and
# call it by its name with `poptorch.custom_op`. The IPU Model cannot run compiled code for IPUs. Here you register
# Python functions under that name instead, and so test the arithmetic and the memory before anybody writes C++.
#
# **Exercise 3** (8 min). Write `gradient(inputs, outputs, gradients, attributes)`. The first three are lists of one
# tensor each: x, the result, and the gradient of the result. Return a list with the gradient of x. If *s* is the
# sigmoid of *z*, its derivative by *z* is *s (1 - s)*. The check compares with PyTorch's autograd.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def gradient(inputs, outputs, gradients, attributes):
### STARTER:     ...
def gradient(inputs, outputs, gradients, attributes):
    x = inputs[0]
    s = torch.sigmoid(1.702 * x)
    return [gradients[0] * (s + x * 1.702 * s * (1 - s))]
### END SOLUTION
lesson.check(3, gradient)

# %% [markdown] tags=["hint"]
# The result is a product, *x s*, and both factors depend on x. The chain rule comes in twice: for what is inside the
# sigmoid, and for the gradient that arrives.

# %% [markdown] tags=["solution"]
# The product rule gives *s + x s'*, with *s' = 1.702 s (1 - s)*. Multiply it by the gradient that arrives.

# %%
register_activation("QuickGelu", gradient)  # x * sigmoid(1.702 x) with your gradient; on hardware, C++ does it

def activation(x):
    return poptorch.custom_op([x], "QuickGelu", "course.ops", 1, example_outputs=[x])[0]

show_own_activation(activation)

# %% [markdown]
# The cell has trained a small model with both forms of the activation, for real, and the losses agree. In the lesson's
# program, the operation saves one wide tensor in each block. Its time is a guess, because the model counts every custom
# operation as plain code that reads and writes its tensors. Before you write C++, look for an op that does nearly the
# same: `torch.nn.functional.silu` is *x sigmoid(x)*, and keeps x alone, too.
#
# (Would a `torch.autograd.Function` do? No: PopART makes the backward pass from the ops of the forward pass, and never
# runs yours. The IPU Model does the same, with a warning that names your function.)
#
# ## Let equal blocks share their code, and move or share state
#
# The floor consists of weights, state and code. For **state**, [lesson 08](08) has two techniques. Off the chip, it has
# to come and go with each update. Shared among replicas, it takes more IPUs, which have to exchange gradients and
# weights. The table before exercise 4 has the price of both.
#
# **Code** is shared where that is possible. Ops with equal shapes, types and attributes become one function that is
# called several times. This is **outlining**, and PopART does it by default [3]. Our eight blocks are equal.
# **Predict:** if their wide layers have eight different widths, from 1,152 to 2,944, but as many weights together, how
# many more KiB of code does the fullest tile hold?

# %% tags=["prediction"]
code = lesson.predict("KiB of code that eight different blocks need in addition", ...)

# %%
code.reveal(more_code_kib(), "modelled")
show_code()

# %% [markdown]
# Eight equal blocks need little more code than four: there are more calls, and more weights to load from the host. With
# different blocks, the code for exchanges grows with each of them. So keep blocks equal, and pad an odd size, because a
# few wasted elements take less room than another copy of the code. (Outlining costs calls and copies. The model does
# not count those.)
#
# ## Compare other execution schemes
#
# If nothing is enough on one IPU, take two. A **pipeline** keeps both of them busy ([lesson 06](06)), and PopTorch then
# recomputes by default. **Sharded** execution runs one IPU at a time ([lesson 07](07)). **Phased** execution runs a
# part of the network, moves its tensors to streaming memory, and loads the next part. The guide names two more as a
# last resort, for very large models or very large code: tensor-parallel execution, which cuts single layers over IPUs,
# and domain sharding [1]. High-level frameworks hardly support these two, and the IPU Model has no costs for them.

# %%
def in_phases():
    network = LanguageModel()
    network.embedded = poptorch.BeginBlock(network.embedded, "first", ipu_id=0)
    network.blocks[4] = poptorch.BeginBlock(network.blocks[4], "second", ipu_id=0)
    return network

options = course_options()
options.setExecutionStrategy(poptorch.SerialPhasedExecution(poptorch.Phase("first"), poptorch.Phase("second")))
phased = modelled_training(in_phases, options).profile()
show_schemes({"plain": plain_program(), "pipeline over 2 IPUs": two_ipus("pipelined"),
              "sharded over 2 IPUs": two_ipus("sharded"), "two phases on 1 IPU": phased})

# %% [markdown]
# In phases, much less of a tile is enough, even though the spike is still there. But the program is many times slower,
# because weights, accumulators and activations travel with every micro-batch. The error band of that row is wide:
# nobody has published a program to compare with.
#
# ## Combine techniques, and see the trade-off
#
# Here is what each of the eight techniques saves and costs, if you use no other:

# %%
show_alone()

# %% [markdown]
# Only two of them change the results of the training: half partials, by rounding, and replicas, by a larger global
# batch. (The model's times for transformers may be off by half. It is better at comparing two forms of one program than
# at absolute times.)
#
# **Exercise 4** (7 min). Write `make_program()`, which returns the network and the options of a program that fits on
# one IPU and has at least 90 % of the throughput of the best combination, out of 216. Your `run_block` and `activation`
# are arguments: `LanguageModel(slices=..., block=..., activation=...)`. Checkpoints need `"autoRecomputation"`, as
# above. Keep the sizes of the network, what it computes, and the accumulation of `course_options()`.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def make_program():
### STARTER:     options = course_options()
### STARTER:     network = LanguageModel()
### STARTER:     ...
### STARTER:     return network, options
def make_program():
    options = course_options()
    options.Precision.setPartialsType(torch.half)
    options._Popart.set("autoRecomputation", 4)
    network = LanguageModel(slices=4, block=run_block, activation=activation)
    return network, options
### END SOLUTION
lesson.check(4, make_program, using=language)

# %% [markdown] tags=["hint"]
# First the spike, then the hill, then the floor. Which technique makes the program *faster*, and so pays for the
# others? How far is it from fitting then?

# %% [markdown] tags=["solution"]
# Half partials pay for everything else. Four slices, or a proportion of 0.1, cut the spikes, and your checkpoints
# lower the hill. (With a proportion of 0.2 and no slices, the program is too close to call.) The floor can stay as it
# is: moving the state would cost more time than all the others together.

# %%
show_trade_off(make_program)

# %% [markdown]
# The fastest program fills nearly 99 % of its fullest tile. The model says that it fits, but the model errs, and so for
# a program of your own, keep room: what the model recommends (`ipu_model.make_it_fit`) leaves 5 % of the fullest tile
# free. In the picture, such programs lie left of 593 KiB. The fastest of them keeps only the ends of blocks, and is
# 11 % slower.
#
# ## Summary
#
# * A technique lowers a spike, the hill or the floor. Look at the peak first, and again after each change.
# * For spikes, take a smaller proportion, or slices. Both are cheap until the steps become too small.
# * For the hill, compute cheap results again, and keep those of products. A smaller micro-batch, or an operation that
#   keeps less, also helps.
# * For the floor, keep blocks equal, so that they share code. State can move off the chip, or be shared.
# * Half partials buy speed, and speed pays for memory.
#
# **Takeaway:** the fastest program that fits is a combination, and you find it by pricing each technique.
#
# Your predictions and exercises: `python -m ipu_course report`.
#
# ## On real hardware
#
# The options are the same. With `POPLIBS_LOG_LEVEL=WARN`, the planner says when it exceeds the proportion [3]. Make the
# sections between checkpoints equal, so that outlining can share their code [4]. Compile after each change, offline if
# you like, and look for the peak in PopVision's liveness report. Custom operations need C++ and the SDK.
#
# ## What transfers
#
# `torch.utils.checkpoint` recomputes on GPUs, and its selective policies choose op by op, as you did. Fused kernels
# with their own backward pass keep less, too; those for attention are the best known. The workspaces of cuDNN are
# spikes. State is offloaded and shared there as well ([lesson 08](08)). Only code on every tile is special to the IPU.
#
# ## References
#
# 1. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.1, 4.9, 5.1 and the
#    beginning of 5.2. Of 5.3 to 5.5 and 5.7 we know the headings only; the procedures for them are ours.
# 2. Published configurations: Graphcore's ResNet-50 in [MLPerf
#    training](https://github.com/mlcommons/training_results_v1.1), and the `ipu_config.json` files of
#    [optimum-graphcore](https://github.com/huggingface/optimum-graphcore).
# 3. Graphcore, [PopLibs](https://github.com/graphcore/poplibs), public headers of convolutions and products, and
#    [PopART](https://github.com/graphcore/popart), options of a session.
# 4. Graphcore, [tutorials](https://github.com/graphcore/tutorials), recomputation of an LSTM in TensorFlow.
# 5. Korthikanti et al., *[Reducing Activation Recomputation in Large Transformer
#    Models](https://arxiv.org/abs/2205.05198)*, 2022.
#
# **Next:** You have the remedies. Now five programs do not fit, each for another reason. Find out which of them needs
# what.
