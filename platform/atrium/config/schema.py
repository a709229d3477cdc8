"""The whole configuration of a run, validated and frozen: `RunConfig` and some of its sections.

The sections defined in this module are `evaluation`, `checkpoint`, `tracking` and `branch`. Other sections
are defined elsewhere, such as the policy in `models`, the task in `tasks`, and the method in `method`. A
section checks the ranges of its settings, and `consistency` checks combinations of settings. Settings given
as `auto` are replaced by chosen values (see `machine`).
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
"""Minimum number of seeds for a verdict."""
PlannedSeeds = Annotated[int, Field(ge=MIN_PLANNED_SEEDS, le=1000)]


class EvaluationConfig(Sampling):
    """Schedule and sampling of evaluations on held-out problems."""

    every_num_steps: Count | None
    """Number of steps between evaluations on the validation problems; null for none during training."""
    num_samples: Annotated[int, Field(ge=1, le=100_000)]
    """Number of answers sampled per problem: the K of Mean@K."""
    tests_before: bool = True
    """Whether test problems are also evaluated before training; validation problems always are."""
    pass_at: tuple[Count, ...] | None = None
    """Values of k for Pass@k, each at most num_samples; null for num_samples and smaller powers of two."""
    seed: Seed = 0
    """Random seed of the sampled answers. After training has started, they also depend on the run's seed:
    runs with equal seeds use the same random numbers, and runs with different seeds independent ones."""


class CheckpointConfig(Section):
    """Schedule and retention of checkpoints."""

    every_num_steps: Count
    """Number of steps between checkpoints; the last step always has one."""
    keep_last: Count
    """Number of newest checkpoints to keep."""
    keep_best: bool
    """Whether to also keep the checkpoint with the highest Mean@K on the validation problems."""


class MLflowConfig(Section):
    """A mirror of the run directory in MLflow."""

    uri: Text | None
    """Address of the tracking server; null for the environment variable MLFLOW_TRACKING_URI, or if it is not
    set, a database in runs_dir."""


class WandbConfig(Section):
    """A mirror of the run directory in W&B; the API key is read from the environment only."""

    project: Text
    """Name of the W&B project."""
    entity: Text | None
    """W&B user or team; null for the default of the API key."""
    mode: Literal["online", "offline"]
    """Whether runs are sent to W&B, or kept in the run directory for `wandb sync`."""


class TensorBoardConfig(Section):
    """A mirror of the run's records as TensorBoard event files in the run directory; it has no settings."""


class TrackioConfig(Section):
    """A mirror of the run directory in Trackio's local database."""

    project: Text
    """Name of the Trackio project."""


class TrackingConfig(Section):
    """Content of the run directory, and its mirrors."""

    kind: Literal["run_folder"]
    """The only kind: a folder per run, with optional mirrors."""
    rollouts_every_num_steps: Count | None = 10
    """Number of steps between records of rollouts with their tokens; null for none."""
    rollouts_max_mb: Count = 256
    """Maximum size of all recorded rollouts in megabytes. Above it, evenly spaced steps are kept."""
    system_metrics: bool = True
    """Whether to record CPU, memory, disk, GPUs and the engine's queue every ten seconds."""
    figures: bool = True
    """Whether to draw figures at the end of the run."""
    progress: Literal["auto", "on", "off"] = "auto"
    """Live display in the terminal; auto shows it only in an interactive terminal."""
    names: MetricNames = "atrium"
    """Naming scheme for training metrics in mirrors. Metrics without a name in TRL or verl keep their Atrium
    name; the run directory always uses Atrium names."""
    mlflow: MLflowConfig | None = None
    """Mirror in MLflow; null for none."""
    wandb: WandbConfig | None = None
    """Mirror in W&B; null for none."""
    tensorboard: TensorBoardConfig | None = None
    """Mirror in TensorBoard's files; null for none."""
    trackio: TrackioConfig | None = None
    """Mirror in Trackio; null for none."""

    @property
    def mirrors(self) -> tuple[str, ...]:
        """The names of the trackers to which the run directory is mirrored."""
        kinds = ("mlflow", "wandb", "tensorboard", "trackio")
        return tuple(kind for kind in kinds if getattr(self, kind) is not None)


class BranchConfig(Section):
    """The origin of a branch: a run that starts from a step of another run (`--resume RUN@STEP`)."""

    run: Text
    """The run that the branch starts from."""
    step: Count
    """The last step that both runs share."""
    method: Text
    """Key (`runs.method_settings`) of the method that trained the shared steps."""


class RunConfig(Section):
    """All settings of a run."""

    seed: Seed
    """Random seed of the run; the built-in model's weights and the dataset may have their own seeds."""
    num_steps: Count
    """Number of training steps; each step samples completions, grades them, and updates the policy."""
    experiment_name: FolderName
    """Folder below runs_dir that contains the run."""
    label: Text | None = None
    """Label of the run's method in figures and tables; null for the name of its algorithm."""
    planned_seeds: PlannedSeeds | None = None
    """Number of seeds per method at which comparisons give their verdict; null if no number is planned."""
    looks: tuple[PlannedSeeds, ...] = ()
    """Numbers of seeds at which comparisons give a verdict, each at alpha divided by the number of looks; the
    last one must be planned_seeds. Empty for a single verdict at planned_seeds."""
    runs_dir: Text
    """Folder that contains all output."""
    resume: Text | None
    """Run to resume; null for a new run."""
    branch: BranchConfig | None = None
    """Run and step that this run branches from, recorded by `--resume RUN@STEP`; null for other runs."""
    model: ModelSettings
    """Policy to train."""
    dataset: DatasetConfig
    """Problems to train on."""
    benchmark: BenchmarkConfig
    """Test problems."""
    grader: Verifier
    """Comparison of an answer with the reference answer."""
    reward: Reward
    """Reward of a completion, given its verdict."""
    rollout: EngineSettings
    """Engine that samples completions, and its settings."""
    optimizer: OptimizerSettings
    """Optimizer and its schedule."""
    evaluation: EvaluationConfig
    """Schedule and sampling of evaluations on held-out problems."""
    checkpoint: CheckpointConfig
    """Schedule and retention of checkpoints."""
    tracking: TrackingConfig
    """Content of the run directory, and its mirrors."""
    compute: ComputeConfig
    """Device, precision, processes and memory."""
    algorithm: Algorithm
    """Method: advantage, ratio, surrogate, reduction and the other axes."""
    divergence: Divergence
    """Trust region of the method."""
    regularizer: Regularizer
    """Terms added to the objective: a KL to a reference policy, an entropy bonus."""

    def as_record(self) -> dict[str, object]:
        """Return the content of a run's `config.json`.

        `resume` is null in the record, because it applies to a single command only.
        """
        return {**self.model_dump(mode="json"), "resume": None}

    @property
    def method(self) -> Method:
        """The method: the sections `algorithm`, `divergence` and `regularizer` together."""
        return Method(self.algorithm, self.divergence, self.regularizer)

    @property
    def model_seed(self) -> int:
        """The random seed of the model's initial weights: `model.seed`, or the run's seed if that is null."""
        return self.seed if self.model.seed is None else self.model.seed

    @property
    def num_updates_per_batch(self) -> int:
        """The number of optimizer updates per batch of rollouts."""
        return self.optimizer.num_minibatches * self.optimizer.num_epochs

    @property
    def use(self) -> Use:
        """The properties of the run, apart from its method, that determine whether it can use a method."""
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
        """The properties of the run, apart from `rollout`, that determine whether an engine supports it."""
        return EngineUse(
            device=self.compute.device,
            num_ranks=self.compute.world_size,
            num_nodes=self.compute.num_nodes,
            evaluation_top_p=self.evaluation.top_p,
            evaluation_temperature=self.evaluation.temperature,
            behavior_logprobs=self.compute.behavior_logprobs,
            compiles=self.compute.compile is True,
            has_stop_strings=bool(self.model.prompt.stop),
        )
