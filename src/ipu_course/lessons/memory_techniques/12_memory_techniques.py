# %% [markdown]
# # Memory techniques, each with its price
#
# A language model with eight blocks trains on one IPU, in half precision, ten sentences at a time. Its fullest tile
# would have to hold **896 of 624 KiB** (modelled): 44 % too many.
#
# This lesson takes eight techniques against that, and asks two questions of each: which bytes does it save, and what do
# you pay? In the end you combine them, and the program not only fits. It is also faster than at the beginning.
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
# **Predict:** how many of the eight techniques make the program fit *alone*?

# %%
import torch

import poptorch
from ipu_course import show
from ipu_course.lessons.memory_techniques import (
    LanguageModel, as_one_operation, captured, course_options, fit_alone, lesson, modelled_training, more_code_kib,
    plain_program, show_alone, show_code, show_hills, show_own_activation, show_partials, show_schemes,
    show_sets, show_slices, show_sweep, show_trade_off, two_ipus)

torch.set_num_threads(1)
show.memory(plain_program(), "Temporary data, optimiser state and activations are the largest parts.")

# %% tags=["prediction"]
alone = lesson.predict("techniques of the eight that make the program fit alone", ...)

# %%
alone.reveal(fit_alone(), "modelled")
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
# it, it drops the limit altogether [1]. So in a program that is out of memory, you may see no effect.

# %%
language = captured()
show_sweep(language)
print(f"{lesson.published('proportions').kind}: {lesson.published('proportions').text} "
      f"{lesson.published('proportions').source}")
lesson.explore(language)

# %% [markdown]
# **Exercise 1** (5 min). The explorer shows the program over time. What is the smallest proportion of the slider that
# costs at most 2 % of the throughput, with partial sums in float32 (`single`) and in float16 (`half`)?

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
# The price rises slowly down to these, and steeply below them. At 0.05 the tile is hardly emptier than at 0.15.

# %% [markdown]
# Below about 0.05, hardware pays twice: plans of so many steps need more code, which is always live [3]. The model
# shows hardly anything of that.
#
# ## Count partial sums, and cut a product into slices
#
# A tile multiplies numbers and adds up the products. The running sums are **partials**. By default they are float32,
# even for float16 operands. A plan that cuts the sum into *k* parts, for *k* groups of tiles, has *k* partial sums for
# each result: results x *k* x 4 bytes. With `options.Precision.setPartialsType(torch.half)` it is 2 bytes.
#
# A program can also cut the product itself: `poptorch.serializedMatMul(rows, weight, mode, factor)` computes it in
# `factor` slices, one after another. Our network's last product, 1,280 rows by 8,192 words, takes a number of slices:

# %%
show_partials(language)

class Sliced(LanguageModel):  # the network of this lesson, with what its argument `slices` does
    def logits(self, rows):
        by_columns = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(rows, self.head.weight.t(), by_columns, self.slices)

show_slices((0, 2, 4, 8))

# %% [markdown]
# Half partials did not halve the temporary data. The planner chose other plans, cut the sums into more parts, and spent
# the bytes on speed: compare the cycles. Half partials round more; [lesson 01](01) shows when that matters.
#
# Slices save as much as a small proportion, for this one product, and the planner cannot ignore them. From some number
# on they save nothing, because the peak is now elsewhere. Look at *its peak* in the table before you cut any further.
#
# ## Choose what is computed again
#
# With the spike gone, the hill is next: every block keeps its results until the backward pass has used them. With
# **recomputation**, a block keeps only what a **checkpoint** marks, and computes the rest again, just before its
# backward pass. So only one block has all of its results at any time. (Of the guide's sections on this we know the
# headings only; how we choose is our own way.)
#
# Our network marks what each block begins with. If everything else is computed again, then every sample needs its
# forward pass twice. A backward pass takes about twice as long as a forward pass. **Predict:** by what percentage does
# the time for a sample grow?

# %% tags=["prediction"]
price = lesson.predict("percent more time for a sample, with each block computed again", ...)

# %%
sliced = captured(8)
kept_all = sliced.profile()  # the option for a program of your own: options._Popart.set("autoRecomputation", 4)
kept_ends = sliced.profile(recomputation="all", checkpoints=["embedded", *(f"blocks.{block}" for block in range(7))])
price.reveal(100 * (kept_all.samples_per_second / kept_ends.samples_per_second - 1), "modelled")
show_hills({"all results kept": kept_all, "only what blocks begin with": kept_ends}, lesson.takeaway("hills"))
print(f"{lesson.published('sections').kind}: {lesson.published('sections').text} {lesson.published('sections').source}")

# %% [markdown]
# You need not compute all of a block again. Some results are small and took many cycles; others are large and took
# few. A checkpoint can stand inside a block, too.
#
# **Exercise 2** (10 min). Finish `run_block`: pass some of its results through `poptorch.recomputationCheckpoint`,
# which returns the tensor that it marks. It is for the network with eight slices. The program has to fit, and be as
# fast as possible. A block has eight results to keep or not: the score compares yours with all 256 sets. (`qkv`, `out`,
# `up` and `down` are linear layers. `weights` is the softmax of queries times keys, and `mix` multiplies it by the
# values, 128 x 128 and 128 x 64 for each head.)

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def run_block(block, x):
### STARTER:     attention, feed = block.attention, block.feed
### STARTER:     queries, keys, values = attention.split(attention.qkv(attention.norm(x)))
### STARTER:     mixed = attention.mix(attention.weights(queries, keys), values)
### STARTER:     x = x + attention.out(mixed)
### STARTER:     ...
### STARTER:     return x + feed.down(feed.activation(feed.up(feed.norm(x))))
def run_block(block, x):
    attention, feed, keep = block.attention, block.feed, poptorch.recomputationCheckpoint
    queries, keys, values = attention.split(keep(attention.qkv(attention.norm(x))))
    mixed = attention.mix(attention.weights(queries, keys), values)
    x = keep(x + attention.out(mixed))
    wide = keep(feed.up(feed.norm(x)))
    return x + feed.down(feed.activation(wide))
### END SOLUTION
lesson.check(2, run_block)

# %% [markdown] tags=["hint"]
# Ask of each result: how long would it take to make again, and how many bytes would it keep? An element-wise op is
# cheap; a product is not.

# %% [markdown] tags=["solution"]
# Keep the results of products that something after them needs, and compute norms, softmax, mixing and activation again.
# People who train large transformers on GPUs came to the same answer [5].

# %%
show_sets(run_block)

# %% [markdown]
# The command `python -m ipu_course.lessons.memory_techniques.every_choice --check` models all of these again, in about
# a minute on two cores.
#
# ## Write an operation with its own backward pass
#
# The activation `x * sigmoid(1.702 x)` is three ops to PyTorch. Two of the tensors wait for the backward pass: x and
# the sigmoid. One operation of your own could keep x alone, and compute the sigmoid again. On hardware such an
# operation is a C++ class with a gradient class, compiled with the SDK and loaded with `ctypes`; `poptorch.custom_op`
# calls it by its name. The IPU Model cannot run that code. Here you register Python functions under the same name
# instead, which is enough to test the arithmetic and the memory.
#
# **Exercise 3** (8 min). Write `gradient(inputs, outputs, gradients, attributes)`. The first three are lists of
# tensors: x, the result, and the gradient of the result. Return a list with the gradient of x. Let *s* be the sigmoid:
# its derivative is *s (1 - s)*, times what is inside. The check compares with autograd.

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
# The result is a product, *x s*, and both factors depend on x. Last comes the chain rule.

# %% [markdown] tags=["solution"]
# The product rule gives *s + x s'*, and *s' = 1.702 s (1 - s)*. Times the gradient that arrives.

# %%
activation = as_one_operation(gradient)  # registers it, and returns: lambda x: poptorch.custom_op([x], name, ...)[0]
show_own_activation(activation)

# %% [markdown]
# It saves one wide tensor in each block. The model's time for it is a guess: it costs every custom operation as plain
# code that reads and writes. Before you write C++, look for an op that does the same: `torch.nn.functional.silu`, with
# 1 in place of 1.702, keeps x alone, too.
#
# (Why not a `torch.autograd.Function`? The IPU Model honours its backward pass, because it differentiates with PyTorch.
# On hardware, PopART makes the backward pass from the ops of the forward pass. We found no source that says that it
# would use yours, so do not count on it.)
#
# ## Let equal blocks share their code, and move or share state
#
# The floor consists of state and code. For **state**, [lesson 08](08) has two techniques: streaming memory, which costs
# two trips per update, and sharing among replicas, which costs more IPUs and their all-reduce. Both are in the table
# below.
#
# **Code** is shared where it can be. Two ops with the same shapes, types and attributes become one function, which is
# called twice. This is **outlining**, and it is on by default. Our eight blocks are equal. **Predict:** give their wide
# layers eight different widths, from 1,152 to 2,944, with the same number of weights in all. How many more KiB of code
# does the fullest tile hold?

# %% tags=["prediction"]
code = lesson.predict("KiB of code that eight different blocks need in addition", ...)

# %%
code.reveal(more_code_kib(), "modelled")
show_code()

# %% [markdown]
# Eight equal blocks need hardly more code than four: control code calls them, and the host loads their weights. Eight
# different ones need more with each block, and a longer compilation. So keep blocks equal, and pad an odd size: a few
# wasted elements are cheaper than another copy of the exchange code. (Outlining costs a call and some copies; the model
# does not count those.)
#
# ## Compare other execution schemes
#
# If nothing on one IPU is enough, take more. A **pipeline** does so at the best speed, and PopTorch then recomputes by
# default ([lesson 06](06)). **Sharded** execution runs one IPU at a time ([lesson 07](07)). **Phased** execution runs a
# part of the network, moves its tensors to streaming memory, and loads the next part. The guide calls two more a last
# resort: cutting single layers over IPUs (*tensor parallel*) and *domain sharding* [1]. They suit very large models or
# very large code, and you would have to write them yourself.

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
show_alone()

# %% [markdown]
# In phases, much less of a tile is enough, even though the spike is still there. But the program is many times slower,
# because weights and activations travel with every micro-batch. The error band of that row is wide: nobody has
# published a program to compare with.
#
# ## Combine techniques, and see the trade-off
#
# The second table has each technique alone. The results of the training stay the same, unless the column *also
# changes* says otherwise. (The model's times for transformers may be off by half. It is better at comparing two forms
# of one program than at absolute times.)
#
# **Exercise 4** (7 min). Write `make_program()`, which returns the network and the options of a program that fits on
# one IPU and is at most 10 % slower than the best combination. `LanguageModel(slices=..., block=..., activation=...)`
# takes your `run_block` and `activation`. Keep the weights and the accumulation of `course_options()`.

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
    options.setAvailableMemoryProportion({"IPU0": 0.2})
    options._Popart.set("autoRecomputation", 4)
    network = LanguageModel(block=run_block, activation=activation)
    return network, options
### END SOLUTION
lesson.check(4, make_program)

# %% [markdown] tags=["hint"]
# First spike, then hill, then floor. Which technique makes the program *faster*, and so pays for the others? How far
# is it then from fitting?

# %% [markdown] tags=["solution"]
# Half partials pay for everything. A proportion of 0.2, or four slices, cuts the spikes, and your checkpoints lower the
# hill. The floor may stay: moving the state costs more than all of the others.

# %%
show_trade_off(make_program)

# %% [markdown]
# ## Summary
#
# * A technique lowers a spike, the hill or the floor. Look at the peak first, and again after each change.
# * Spikes: a smaller proportion, or slices. Both are cheap until plans become too small.
# * Hill: compute cheap results again, and keep those of products. Other ways are smaller micro-batches, and operations
#   that keep less.
# * Floor: equal blocks share code; state can move off the chip, or be shared.
# * Half partials buy speed, and speed pays for memory.
#
# **Takeaway:** the cheapest program that fits is a combination, and you find it by measuring each part.
#
# Your predictions and exercises: `python -m ipu_course report`.
#
# ## On real hardware
#
# All options are the same. Set `POPLIBS_LOG_LEVEL=WARN` to see when the planner drops the limit. Make sections between
# checkpoints equal, so that outlining can share their code [4]. Compile after each change, offline if you like, and
# look at the liveness report. Custom operations need C++ and the SDK.
#
# ## What transfers
#
# `torch.utils.checkpoint` recomputes on GPUs, and its selective policies choose by op, as you did. Fused kernels with
# a backward pass of their own keep less, such as those of attention. Workspace limits of cuDNN are spikes, too. Equal
# layers help compilers there as well; tile memory is the IPU's own.
#
# ## References
#
# 1. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.1, 4.9, 5.1 and the
#    beginning of 5.2. Of 5.3 to 5.5 and 5.7 we know the headings only; the procedures for them are ours.
# 2. Published configurations: Graphcore's ResNet-50 in [MLPerf
#    training](https://github.com/mlcommons/training_results_v1.1), and the `ipu_config.json` files of
#    [optimum-graphcore](https://github.com/huggingface/optimum-graphcore).
# 3. Graphcore, [PopLibs](https://github.com/graphcore/poplibs), public headers of convolutions and products.
# 4. Graphcore, [tutorials](https://github.com/graphcore/tutorials), recomputation of an LSTM in TensorFlow.
# 5. Korthikanti et al., *[Reducing Activation Recomputation in Large Transformer
#    Models](https://arxiv.org/abs/2205.05198)*, 2022.
#
# **Next:** You have the remedies. Now five programs do not fit, each for another reason. Find out which of them needs
# what.
