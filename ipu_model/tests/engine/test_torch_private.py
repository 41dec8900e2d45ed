"""Canaries for every private PyTorch name that capture relies on: if one fails, capture must be looked at again."""

import torch

from ipu_model.capture import torch_private as private


def test_each_autograd_node_gets_the_next_sequence_number() -> None:
    x = torch.ones(3, requires_grad=True)
    first = x * 2
    assert private.last_sequence_number() == private.sequence_number(first.grad_fn)
    second = first + 1
    assert private.sequence_number(second.grad_fn) == private.sequence_number(first.grad_fn) + 1


def test_backward_is_told_apart_from_forward_and_names_its_node() -> None:
    seen = []

    class Spy(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            node = private.autograd_node_in_progress()
            seen.append((private.in_backward(), node.name() if node is not None else None))
            return func(*args, **(kwargs or {}))

    x = torch.ones(3, requires_grad=True)
    with Spy():
        y = x.sin()
        torch.autograd.grad(y, x, torch.ones(3))
    assert (False, None) in seen
    assert (True, "SinBackward0") in seen
    assert not private.in_backward()


def test_fake_tensors_refuse_data_and_carry_shapes() -> None:
    with private.FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(4, 5) @ torch.empty(5, 6)
        assert isinstance(fake, private.FakeTensor)
        assert fake.shape == (4, 6)
        for action, error in (
            (lambda: fake.sum().item(), private.DataDependentOutputException),
            (lambda: fake.nonzero(), private.DynamicOutputShapeException),
        ):
            try:
                action()
            except error:
                continue
            raise AssertionError(f"{error.__name__} expected")


def test_mkldnn_is_off_inside_and_as_before_afterwards() -> None:
    before = torch._C._get_mkldnn_enabled()
    with private.mkldnn_disabled():
        assert not torch._C._get_mkldnn_enabled()
    assert torch._C._get_mkldnn_enabled() == before


def test_transformers_do_not_look_at_their_mask_inside() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder, x = torch.nn.TransformerEncoder(layer, 1), torch.randn(2, 3, 8)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(3)
    with private.causal_masks_undetected():
        inside = encoder(x, mask)
        with private.FakeTensorMode(allow_non_fake_inputs=True):
            assert encoder(torch.empty(2, 3, 8), torch.empty(3, 3)).shape == (2, 3, 8)
    assert torch.allclose(inside, encoder(x, mask), atol=1e-6)


def test_gradient_hooks_are_those_registered_in_order() -> None:
    x = torch.ones(2, requires_grad=True)
    assert private.gradient_hooks(x) == []
    hooks = [lambda gradient: gradient * 2, lambda gradient: gradient + 1]
    handles = [x.register_hook(hook) for hook in hooks]
    assert private.gradient_hooks(x) == hooks
    handles[0].remove()
    assert private.gradient_hooks(x) == hooks[1:]


def test_an_adaptive_softmax_returns_its_pair() -> None:
    softmax = torch.nn.AdaptiveLogSoftmaxWithLoss(4, 10, cutoffs=[3])
    result = softmax(torch.zeros(2, 4), torch.tensor([0, 9]))
    assert type(result) is private.AdaptiveSoftmaxOutput
    assert result._fields == ("output", "loss")
