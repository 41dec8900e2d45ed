"""Hugging Face's optimum-graphcore, unmodified: pipelined transformers compute exactly what the plain ones do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from companion_packages import Computes, need, seeded
from torch import Tensor, nn

import poptorch

need("transformers", "optimum")

import transformers as hf  # noqa: E402
from optimum.graphcore import (  # noqa: E402
    IPUConfig,
    IPUSeq2SeqTrainer,
    IPUSeq2SeqTrainingArguments,
    IPUTrainer,
    IPUTrainingArguments,
)
from optimum.graphcore.modeling_utils import to_pipelined  # noqa: E402

WORDS, LENGTH, SEQUENCES = 64, 12, 2
ACCUMULATION = 8
IGNORED = -100
LABELS = ("labels", "next_sentence_label", "start_positions", "end_positions")

torch.manual_seed(5)
Inputs = dict[str, Tensor]


def words() -> Tensor:
    return torch.randint(3, WORDS, (SEQUENCES, LENGTH))


def text(**labels: Tensor) -> Inputs:
    return {"input_ids": words(), "attention_mask": torch.ones(SEQUENCES, LENGTH, dtype=torch.long), **labels}


def words_to_fill() -> Inputs:
    return text(labels=torch.where(torch.arange(LENGTH) < 4, words(), IGNORED))


def question() -> Inputs:
    return text(start_positions=torch.tensor([1, 2]), end_positions=torch.tensor([3, 4]))


def classes() -> Tensor:
    return torch.tensor([0, 1])


def pictures(side: int) -> Inputs:
    return {"pixel_values": torch.randn(SEQUENCES, 3, side, side), "labels": classes()}


def sounds(length: int) -> Inputs:
    return {"input_values": torch.randn(SEQUENCES, length), "labels": classes()}


# Without dropout, so that training can be compared.
SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 32}
FOUR_LAYERS = {"num_hidden_layers": 4, **SMALL, **NO_DROPOUT}
TWO_STACKS = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
SOUNDS = {
    "num_hidden_layers": 2, "num_labels": 2, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16,
    "apply_spec_augment": False, "layerdrop": 0.0, **SMALL,
    **{f"{part}_dropout": 0.0 for part in ("hidden", "attention", "activation", "feat_proj", "final")},
}  # fmt: skip
PICTURES = {"image_size": 16, "patch_size": 4}

BERT = hf.BertConfig(**TEXT, **FOUR_LAYERS)
GPT2 = hf.GPT2Config(
    vocab_size=WORDS, n_embd=32, n_layer=4, n_head=2, n_positions=32,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    pad_token_id=0, bos_token_id=1, eos_token_id=1,
)  # fmt: skip
T5 = hf.T5Config(
    vocab_size=WORDS, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_decoder_layers=2,
    num_heads=2, dropout_rate=0.0, decoder_start_token_id=0,
)  # fmt: skip
BART = hf.BartConfig(max_position_embeddings=32, **TWO_STACKS)
WHISPER = hf.WhisperConfig(
    max_source_positions=16, max_target_positions=32, num_mel_bins=8, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **TWO_STACKS,
)  # fmt: skip
HUBERT = hf.HubertConfig(
    vocab_size=WORDS, conv_dim=[16, 16], conv_stride=[5, 2], conv_kernel=[10, 3],
    num_feat_extract_layers=2, num_conv_pos_embeddings=8, **SOUNDS,
)  # fmt: skip
VIT = hf.ViTConfig(**PICTURES, **FOUR_LAYERS)
CONVNEXT = hf.ConvNextConfig(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], image_size=32, drop_path_rate=0.0)
DISTILBERT = hf.DistilBertConfig(
    dim=32, n_layers=4, n_heads=2, hidden_dim=48, **TEXT,
    dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
)  # fmt: skip

# A model, inputs with labels, and what differs from two IPUs with two layers each.
Family = tuple[Callable[[], nn.Module], Callable[[], Inputs], dict[str, Any]]
FAMILIES: dict[str, Family] = {
    "BERT, sentences": (lambda: hf.BertForSequenceClassification(BERT), lambda: text(labels=classes()), {}),
    "BERT, answers": (lambda: hf.BertForQuestionAnswering(BERT), question, {}),
    "BERT, pretraining on four IPUs": (
        lambda: hf.BertForPreTraining(BERT),
        lambda: {**words_to_fill(), "next_sentence_label": classes()},
        {"layers_per_ipu": [0, 2, 2, 0], "ipus_per_replica": 4, "embedding_serialization_factor": 2},
    ),
    "RoBERTa": (lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**TEXT, **FOUR_LAYERS)), words_to_fill, {}),
    "DistilBERT": (lambda: hf.DistilBertForMaskedLM(DISTILBERT), words_to_fill, {}),
    "MPNet": (lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**TEXT, **FOUR_LAYERS)), words_to_fill, {}),
    "GPT-2": (lambda: hf.GPT2LMHeadModel(GPT2), lambda: text(labels=words()), {}),
    "T5": (lambda: hf.T5ForConditionalGeneration(T5), lambda: text(labels=words()), {}),
    "BART": (lambda: hf.BartForConditionalGeneration(BART), lambda: text(labels=words()), {}),
    "Whisper": (
        lambda: hf.WhisperForConditionalGeneration(WHISPER),
        lambda: {"input_features": torch.randn(SEQUENCES, 8, 32), "labels": words()},
        {},
    ),
    "HuBERT": (lambda: hf.HubertForSequenceClassification(HUBERT), lambda: sounds(400), {"layers_per_ipu": [1, 1]}),
    "ViT": (lambda: hf.ViTForImageClassification(VIT), lambda: pictures(16), {}),
    "ConvNext": (lambda: hf.ConvNextForImageClassification(CONVNEXT), lambda: pictures(32), {}),
}

DEBERTA = hf.DebertaConfig(
    num_hidden_layers=2, relative_attention=True, type_vocab_size=0, pos_att_type=["c2p", "p2c"],
    max_relative_positions=16, position_biased_input=False, **TEXT, **SMALL, **NO_DROPOUT,
)  # fmt: skip
WAV2VEC2 = hf.Wav2Vec2Config(
    conv_dim=(16, 16, 16), conv_stride=(5, 4, 2), conv_kernel=(10, 8, 4), feat_extract_norm="group",
    num_conv_pos_embeddings=16, **SOUNDS,
)  # fmt: skip
MAE = hf.ViTMAEConfig(
    num_hidden_layers=2, decoder_hidden_size=32, decoder_num_hidden_layers=1, mask_ratio=0.75,
    decoder_num_attention_heads=2, decoder_intermediate_size=48, **SMALL, **PICTURES, **NO_DROPOUT,
)  # fmt: skip
SWIN = hf.SwinConfig(
    embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, image_size=32, patch_size=4,
    drop_path_rate=0.0,
)  # fmt: skip
CLIP_TEXT = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "bos_token_id": 0, "eos_token_id": 2}
CLIP = hf.CLIPConfig(
    text_config=hf.CLIPTextConfig(num_hidden_layers=2, **CLIP_TEXT, **SMALL).to_dict(),
    vision_config=hf.CLIPVisionConfig(num_hidden_layers=2, **SMALL, **PICTURES).to_dict(),
    projection_dim=16,
)
# Models that run as they are, on one IPU.
UNCHANGED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "DeBERTa": (lambda: hf.DebertaForQuestionAnswering(DEBERTA), question),
    "wav2vec 2.0": (lambda: hf.Wav2Vec2ForSequenceClassification(WAV2VEC2), lambda: sounds(640)),
    "masked autoencoder": (
        lambda: hf.ViTMAEForPreTraining(MAE),
        lambda: {"pixel_values": torch.randn(SEQUENCES, 3, 16, 16), "noise": torch.rand(SEQUENCES, 16)},
    ),
    "Swin": (lambda: hf.SwinForImageClassification(SWIN), lambda: pictures(32)),
    "CLIP": (
        lambda: hf.CLIPModel(CLIP),
        lambda: {"input_ids": words(), "pixel_values": torch.randn(SEQUENCES, 3, 16, 16)},
    ),
}
# They make the decoder's inputs from the labels.
NEED_LABELS = ("T5", "BART", "Whisper")


def ipu_config(**more: Any) -> IPUConfig:
    layers = more.get("layers_per_ipu", [2, 2])
    return IPUConfig(**{
        "layers_per_ipu": layers, "ipus_per_replica": 2, "gradient_accumulation_steps": ACCUMULATION,
        "inference_layers_per_ipu": layers, "inference_ipus_per_replica": more.get("ipus_per_replica", 2), **more,
    })  # fmt: skip


def tensors_of(outputs: Any) -> list[Tensor]:
    values = outputs.values() if isinstance(outputs, dict) else [outputs] if isinstance(outputs, Tensor) else outputs
    return [value for value in values if isinstance(value, Tensor)]


@pytest.mark.parametrize("name", FAMILIES)
def test_inference_equals_the_plain_model(name: str) -> None:
    make, inputs_of, more = FAMILIES[name]
    inputs = inputs_of()
    if name not in NEED_LABELS:
        inputs = {key: value for key, value in inputs.items() if key not in LABELS}
    with torch.no_grad():
        expected = tensors_of(seeded(make).eval()(**inputs))
    config = ipu_config(**more).eval()
    model = to_pipelined(seeded(make), config).parallelize().eval()
    found = tensors_of(poptorch.inferenceModel(model, config.to_options(for_inference=True))(**inputs))
    assert found
    for result in found:
        same_shape = [each for each in expected if each.shape == result.shape]
        assert any(torch.equal(result, each) for each in same_shape)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_starts_at_the_loss_of_the_plain_model_and_learns(name: str) -> None:
    make, inputs_of, more = FAMILIES[name]
    inputs = inputs_of()
    with torch.no_grad():
        expected = tensors_of(seeded(make).train()(**inputs))[0]
    config = ipu_config(**more).train()
    model = to_pipelined(seeded(make), config).parallelize().train()
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=1e-3)
    training = poptorch.trainingModel(model, config.to_options(), optimiser)
    repeated = {key: torch.cat([value] * ACCUMULATION) for key, value in inputs.items()}
    losses = [float(tensors_of(training(**repeated))[0].mean()) for _ in range(3)]
    assert losses[0] == pytest.approx(float(expected), rel=1e-5)
    assert losses[2] < losses[1] < losses[0]


def loss_of(model: Any, **inputs: Any) -> Tensor:
    if isinstance(model, hf.CLIPModel):
        inputs["return_loss"] = True
    return poptorch.identity_loss(model(**inputs).loss, "none")


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_model_as_it_is_computes_and_starts_to_train_as_without_poptorch(name: str) -> None:
    make, inputs_of = UNCHANGED[name]
    inputs = inputs_of()
    with torch.no_grad():
        expected = tensors_of(seeded(make).eval()(**inputs))
    found = tensors_of(poptorch.inferenceModel(seeded(make).eval())(**inputs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, check_dtype=False)  # int64 comes back as int32

    model, plain = (Computes(loss_of, seeded(make)).train() for _ in range(2))
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.01)
    for _ in range(3):
        loss = plain(**inputs)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        torch.testing.assert_close(training(**inputs), loss.detach(), rtol=1e-4, atol=1e-5)


def sentences(translate: bool) -> Any:
    """Return sentences whose first word gives the class away; for translation, sentences to copy."""
    made = []
    for index in range(64):
        sentence = torch.randint(4, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        sentence[0] = index % 2
        labels = sentence.clone() if translate else torch.tensor(index % 2)
        made.append({"input_ids": sentence, "attention_mask": torch.ones_like(sentence), "labels": labels})
    return made


def told(folder: Path, **more: Any) -> dict[str, Any]:
    """Return the arguments of a trainer."""
    quiet = {"report_to": [], "disable_tqdm": True, "learning_rate": 3e-3, "per_device_eval_batch_size": 2}
    return {"output_dir": str(folder), **quiet, **more}


def test_the_trainer_trains_evaluates_and_keeps_checkpoints(tmp_path: Path) -> None:
    every = {"save_strategy": "epoch", "evaluation_strategy": "epoch"}
    trainer = IPUTrainer(
        model=seeded(lambda: hf.BertForSequenceClassification(BERT)),
        ipu_config=ipu_config(gradient_accumulation_steps=4, inference_device_iterations=2),
        args=IPUTrainingArguments(**told(tmp_path, num_train_epochs=6, per_device_train_batch_size=2, **every)),
        train_dataset=sentences(translate=False),
        eval_dataset=sentences(translate=False),
        compute_metrics=lambda found: {"right": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )
    trainer.train()
    assert trainer.evaluate()["eval_right"] == 1.0
    assert len(list(tmp_path.glob("checkpoint-*"))) == 6
    assert trainer.predict(sentences(translate=False)).predictions.shape == (64, 2)


def test_the_trainer_of_translations_generates(tmp_path: Path) -> None:
    how = {"num_train_epochs": 2, "per_device_train_batch_size": 1, "save_strategy": "no", "logging_steps": 1}
    trainer = IPUSeq2SeqTrainer(
        model=seeded(lambda: hf.T5ForConditionalGeneration(hf.T5Config(**{**T5.to_dict(), "use_cache": False}))),
        ipu_config=ipu_config(),
        args=IPUSeq2SeqTrainingArguments(**told(tmp_path, predict_with_generate=True, **how)),
        train_dataset=sentences(translate=True),
        eval_dataset=sentences(translate=True),
        compute_metrics=lambda found: {"sentences": len(found.predictions)},
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert trainer.evaluate()["eval_sentences"] == 64


GENERATION: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "T5": (lambda: hf.T5ForConditionalGeneration(T5), {}),
    "T5 with four beams": (lambda: hf.T5ForConditionalGeneration(T5), {"num_beams": 4}),
    "T5 with cached keys and values": (lambda: hf.T5ForConditionalGeneration(T5), {"use_cache": True}),
    "BART with cached keys and values": (lambda: hf.BartForConditionalGeneration(BART), {"use_cache": True}),
    "GPT-2": (lambda: hf.GPT2LMHeadModel(GPT2), {}),
}


@pytest.mark.parametrize("name", GENERATION)
def test_generated_words_are_those_of_the_plain_model(name: str) -> None:
    make, chosen = GENERATION[name]
    prompt = words()
    length = 2 * LENGTH
    how = {"max_length": length, "do_sample": False, "use_cache": False, **chosen}
    expected = seeded(make).eval().generate(prompt, **how)
    config = ipu_config().eval()
    cached = {"use_cache": True, "batch_size": SEQUENCES, "max_length": length} if chosen.get("use_cache") else {}
    model = to_pipelined(seeded(make), config).parallelize(for_generation=True, **cached).eval()
    found = model.generate(prompt, **how)
    assert torch.equal(found, expected)
