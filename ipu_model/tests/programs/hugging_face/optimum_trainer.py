# needs: optimum.graphcore, transformers
# environment: IPU_MODEL_AS_HARDWARE=1
"""A text-classification script in the style of optimum-graphcore's examples, without a tokenizer or a download."""

import logging
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
import torch
import transformers
from optimum.graphcore import IPUConfig, IPUTrainer
from optimum.graphcore import IPUTrainingArguments as TrainingArguments
from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, HfArgumentParser, set_seed

logger = logging.getLogger(__name__)


@dataclass
class DataTrainingArguments:
    max_seq_length: int = field(default=16, metadata={"help": "The length that texts are padded to."})
    max_train_samples: Optional[int] = field(default=320)
    max_eval_samples: Optional[int] = field(default=32)


@dataclass
class ModelArguments:
    hidden_size: int = field(default=32)
    layers: int = field(default=2)


class Texts(torch.utils.data.Dataset):
    def __init__(self, n, length, seed):
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(5, 50, (n, length))
        self.labels = rng.integers(0, 2, n)
        self.ids[:, 1] = 3 + self.labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i].tolist(),
            "attention_mask": [1] * self.ids.shape[1],
            "token_type_ids": [0] * self.ids.shape[1],
            "label": int(self.labels[i]),
        }


def compute_metrics(p: EvalPrediction):
    predictions = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
    return {"accuracy": (np.argmax(predictions, axis=1) == p.label_ids).astype(np.float32).mean().item()}


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    with tempfile.TemporaryDirectory() as folder:
        argv = sys.argv[1:] or [
            "--output_dir", folder, "--do_train", "--do_eval", "--num_train_epochs", "5", "--learning_rate", "5e-3",
            "--per_device_train_batch_size", "4", "--per_device_eval_batch_size", "4", "--logging_steps", "2",
            "--save_strategy", "no", "--report_to", "none", "--disable_tqdm", "True", "--dataloader_drop_last", "True",
            "--fp32", "--warmup_ratio", "0.1", "--n_ipu", "4",
        ]  # fmt: skip
        model_args, data_args, training_args = parser.parse_args_into_dataclasses(argv)
        logging.basicConfig(handlers=[logging.StreamHandler(sys.stdout)])
        logger.setLevel(training_args.get_process_log_level())
        transformers.utils.logging.set_verbosity_error()
        set_seed(training_args.seed)

        config = BertConfig(
            vocab_size=50, hidden_size=model_args.hidden_size, num_hidden_layers=model_args.layers,
            num_attention_heads=2, intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, num_labels=2,
        )  # fmt: skip
        model = BertForSequenceClassification(config)
        ipu_config = IPUConfig(
            layers_per_ipu=[1, 1],
            ipus_per_replica=2,
            gradient_accumulation_steps=4,
            replication_factor=2,
            inference_replication_factor=1,
            matmul_proportion=0.25,
            optimizer_state_offchip=True,
            output_mode="all",
            inference_device_iterations=2,
        )
        trainer = IPUTrainer(
            model=model,
            ipu_config=ipu_config,
            args=training_args,
            train_dataset=Texts(data_args.max_train_samples, data_args.max_seq_length, 0),
            eval_dataset=Texts(data_args.max_eval_samples, data_args.max_seq_length, 1),
            compute_metrics=compute_metrics,
            data_collator=transformers.default_data_collator,
        )
        result = trainer.train()
        trainer.save_model()
        trainer.save_state()
        print(result.metrics)
        metrics = trainer.evaluate()
        print(metrics)
        history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert result.global_step == 5 * 320 // (4 * 4 * 2)
        assert history[-1] < history[0]
        assert metrics["eval_accuracy"] > 0.9
        BertForSequenceClassification.from_pretrained(folder)


if __name__ == "__main__":
    main()
