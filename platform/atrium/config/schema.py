"""The whole configuration of a run, validated and frozen: `RunConfig` and the loop's sections.

A section per group and kind; the policy's stand in `models`, the task's in `tasks`, the method's in
`method`. Ranges of single settings are checked here, combinations in `consistency`. Settings
that may be given as `auto` hold what was chosen for them (see `machine`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atrium.base.metric_names import MetricNames
from atrium.base.section import Count, FolderName, Section, Seed, Text
from atrium.config.compute import ComputeConfig
from atrium.config.tasks import BenchmarkConfig, DatasetConfig
from atrium.engines.declaration import EngineUse, Sampling
from atrium.engines.settings import EngineSettings
from atrium.grading.rewards import Reward
from atrium.grading.several import SeveralReward  # noqa: F401 - declares the last kind of reward
from atrium.grading.verifiers import Verifier
from atrium.method.algorithm import Algorithm
from atrium.method.divergences import Divergence
from atrium.method.method import Method
from atrium.method.needs import Use
from atrium.method.regularizers import Regularizer
from atrium.models.settings import ModelSettings
from atrium.train.settings import OptimizerSettings

MIN_PLANNED_SEEDS = 3
"""With fewer seeds nothing is judged."""
PlannedSeeds = Annotated[int, Field(ge=MIN_PLANNED_SEEDS, le=1000)]


class EvaluationConfig(Sampling):
    """When and how held-out problems are answered."""

    every_num_steps: Count | None
    """Steps between evaluations on the validation problems; null for none while training."""
    num_samples: Annotated[int, Field(ge=1, le=100_000)]
    """Answers sampled per problem: the K of Mean@K."""
    pass_at: tuple[Count, ...] | None = None
    """The k of Pass@k, each at most num_samples; null for the powers of two up to it, and itself."""
    seed: Seed = 0
    """The start of the answers' randomness. Once a run has trained, its own seed keys the draws too: equal
    seeds of two methods share them, different seeds share none."""


class CheckpointConfig(Section):
    """When the state of training is saved, and what is kept."""

    every_num_steps: Count
    """Steps between checkpoints; the last step always has one."""
    keep_last: Count
    """Newest checkpoints that are kept."""
    keep_best: bool
    """Whether the one with the highest Mean@K on the validation problems is kept besides."""


class MLflowConfig(Section):
    """A mirror of the run folder in MLflow."""

    uri: Text | None
    """The tracking server; null for MLFLOW_TRACKING_URI, or else a database below runs_dir."""


class WandbConfig(Section):
    """A mirror of the run folder in W&B; its key is read from the environment only."""

    project: Text
    """The project that runs are filed in."""
    entity: Text | None
    """User or team; null for the default of the key."""
    mode: Literal["online", "offline"]
    """Whether runs are sent, or kept in the run folder for `wandb sync`."""


class TensorBoardConfig(Section):
    """A mirror of the run folder in TensorBoard's event files, inside it; there is nothing to choose."""


class TrackioConfig(Section):
    """A mirror of the run folder in Trackio's local database."""

    project: Text
    """The project that runs are filed in."""


class TrackingConfig(Section):
    """What the run folder records, and where it is mirrored to."""

    kind: Literal["run_folder"]
    """The only kind: a folder per run, with optional mirrors."""
    rollouts_every_num_steps: Count | None = 10
    """Steps between records of rollouts with their tokens; null for none."""
    rollouts_max_mb: Count = 256
    """Megabytes of rollouts after which no more are recorded."""
    figures: bool = True
    """Whether figures are drawn at the end."""
    progress: Literal["auto", "on", "off"] = "auto"
    """The live display in the terminal; auto shows it only there."""
    names: MetricNames = "atrium"
    """Whose names training metrics have in mirrors. Metrics without a name in TRL or verl keep Atrium's; the
    run directory always has Atrium's."""
    mlflow: MLflowConfig | None = None
    """The mirror in MLflow; null for none."""
    wandb: WandbConfig | None = None
    """The mirror in W&B; null for none."""
    tensorboard: TensorBoardConfig | None = None
    """The mirror in TensorBoard's files; null for none."""
    trackio: TrackioConfig | None = None
    """The mirror in Trackio; null for none."""

    @property
    def mirrors(self) -> tuple[str, ...]:
        """The trackers that the run folder is mirrored to."""
        chosen = {
            "mlflow": self.mlflow,
            "wandb": self.wandb,
            "tensorboard": self.tensorboard,
            "trackio": self.trackio,
        }
        return tuple(kind for kind, settings in chosen.items() if settings is not None)


class BranchConfig(Section):
    """Where a run began that goes on from a step of another: what `--resume RUN@STEP` records."""

    run: Text
    """The run that it goes on from."""
    step: Count
    """The last step that both share."""
    method: Text
    """The key of that run's method (`runs.method_settings`), which the shared steps were trained by."""


class RunConfig(Section):
    """Everything that determines a run."""

    seed: Seed
    """The start of every random choice of the run, the built-in model's and the dataset's excepted."""
    num_steps: Count
    """Training steps: sample, grade, update."""
    experiment_name: FolderName
    """The folder below runs_dir that the run is filed in."""
    label: Text | None = None
    """What the run's method is called in figures and tables; null for the name of its algorithm."""
    planned_seeds: PlannedSeeds | None = None
    """Seeds per method at which comparisons give their verdict; null where no number is planned."""
    looks: tuple[PlannedSeeds, ...] = ()
    """Numbers of seeds at which comparisons give verdicts at alpha / their number; the last one is
    planned_seeds. Empty for the one verdict at planned_seeds."""
    runs_dir: Text
    """The folder below which everything is written."""
    resume: Text | None
    """The run that is continued; null for a new one."""
    branch: BranchConfig | None = None
    """The run and step that it began from, as `--resume RUN@STEP` records it; null for a run of its own."""
    model: ModelSettings
    """The policy that is trained."""
    dataset: DatasetConfig
    """The problems it trains on."""
    benchmark: BenchmarkConfig
    """The problems it is judged on."""
    grader: Verifier
    """How an answer is compared with the reference answer."""
    reward: Reward
    """The reward of a completion, given its verdict."""
    rollout: EngineSettings
    """The engine that samples completions, and its settings."""
    optimizer: OptimizerSettings
    """How the policy is updated."""
    evaluation: EvaluationConfig
    """How held-out problems are answered."""
    checkpoint: CheckpointConfig
    """When checkpoints are written, and which are kept."""
    tracking: TrackingConfig
    """What the run folder records, and the trackers it is mirrored to."""
    compute: ComputeConfig
    """Device, precision, processes and memory."""
    algorithm: Algorithm
    """The method: advantage, ratio, surrogate, reduction and the other axes."""
    divergence: Divergence
    """The trust region of the method."""
    regularizer: Regularizer
    """Terms added to the objective: a KL to a reference policy, an entropy bonus."""

    def as_record(self) -> dict[str, object]:
        """The content of a run's `config.json`: `resume` belongs to a command, not to the run."""
        return {**self.model_dump(mode="json"), "resume": None}

    @property
    def method(self) -> Method:
        """The three sections that together are the method."""
        return Method(self.algorithm, self.divergence, self.regularizer)

    @property
    def model_seed(self) -> int:
        """The start of the model's weights: its own, or the run's."""
        return self.seed if self.model.seed is None else self.model.seed

    @property
    def num_updates_per_batch(self) -> int:
        """Optimiser updates that each batch of rollouts gets."""
        return self.optimizer.num_minibatches * self.optimizer.num_epochs

    @property
    def use(self) -> Use:
        """The use that this run makes of its method."""
        return Use(
            num_updates_per_batch=self.num_updates_per_batch,
            group_size=self.rollout.group_size,
            behavior_logprobs=self.compute.behavior_logprobs,
            lag=self.rollout.lag,
            reads_stored=self.rollout.reads_stored,
            dtype=self.compute.dtype,
            max_length=self.rollout.max_new_tokens,
        )

    @property
    def engine_use(self) -> EngineUse:
        """What this run does around its engine."""
        return EngineUse(
            device=self.compute.device,
            num_ranks=self.compute.world_size,
            num_nodes=self.compute.num_nodes,
            evaluation_top_p=self.evaluation.top_p,
            evaluation_temperature=self.evaluation.temperature,
            behavior_logprobs=self.compute.behavior_logprobs,
            compiles=self.compute.compile,
            has_stop_strings=bool(self.model.prompt.stop),
        )
