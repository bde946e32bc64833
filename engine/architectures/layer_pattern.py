"""Which layers of a model have windows, and which rope turns their queries and keys."""

from dataclasses import dataclass, replace

from engine.architectures.fields import Fields
from engine.architectures.rotary import FULL, WINDOW, read_ropes
from engine.config import LayerSpec, ModelConfig
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPattern:
    """How a family alternates its layers, where config.json does not list them.

    Attributes:
        full_every: of so many layers the last one attends to all tokens; 0 if every layer has a
            window, None if no layer has.
        window_flag: field that must be true for windows to count; empty for always.
        window_theta: see `read_ropes`.
        nope_every: of so many layers the last one has no rope; 0 for rope on all layers.
        turns_windows: whether the layers without a window have no rope, where others have windows.
        is_interleaved: see `RopeConfig`.
    """

    full_every: int | None = None
    window_flag: str = ""
    window_theta: float = 0.0
    nope_every: int = 0
    turns_windows: bool = False
    is_interleaved: bool = False

    def apply(self, fields: Fields, model: ModelConfig) -> ModelConfig:
        """Add ropes and layers to a model.

        Raises:
            ConfigError: if a field is wrong, or says what is not supported.
        """
        kinds = read_ropes(
            fields,
            model.head_dim,
            model.max_position,
            is_interleaved=self.is_interleaved,
            window_theta=self.window_theta,
        )
        windows = self._windows(fields, model.num_layers)
        turns = self._turns(fields, model.num_layers)
        if self.turns_windows and any(windows):
            turns = [window > 0 for window in windows]
        used = [kinds[WINDOW if window else FULL] for window in windows]
        ropes = tuple(dict.fromkeys(used))
        layers = [
            replace(
                model.spec.layer(index),
                window=windows[index],
                rope=ropes.index(used[index]) if turns[index] else None,
            )
            for index in range(model.num_layers)
        ]
        return replace(model, spec=replace(model.spec, ropes=ropes, layers=_folded(layers)))

    def _windows(self, fields: Fields, num_layers: int) -> list[int]:
        """The window of each layer; 0 for none."""
        kinds = fields.items("layer_types", num_layers)
        is_on = False
        if self.full_every is not None:
            is_on = not self.window_flag or fields.flag(self.window_flag)
            is_on = fields.value("sliding_window") is not None and is_on
            listed = self._kinds(fields, num_layers)
            kinds = listed if kinds is None else kinds
        if unknown := sorted(set(kinds or []) - {FULL, WINDOW}):
            raise ConfigError(f"layer_types {unknown[0]!r} is not supported")
        if not is_on or kinds is None:
            # then the kinds name no window either
            return [0] * num_layers
        window = fields.size("sliding_window")
        return [window if kind == WINDOW else 0 for kind in kinds]

    def _kinds(self, fields: Fields, num_layers: int) -> list[str]:
        full_every = fields.value("sliding_window_pattern", self.full_every)
        # with such a field the first layers attend to all
        first = fields.value("max_window_layers", 0) if self.window_flag else 0
        if isinstance(full_every, str) and full_every == "L" * (len(full_every) - 1) + "G":
            # each letter is a layer of local or global attention
            full_every = len(full_every)
        if type(full_every) is not int or type(first) is not int:
            raise ConfigError(f"sliding_window_pattern {full_every!r} is not supported")
        return [
            FULL if index < first or (full_every and (index + 1) % full_every == 0) else WINDOW
            for index in range(num_layers)
        ]

    def _turns(self, fields: Fields, num_layers: int) -> list[bool]:
        """Whether the rope turns the queries and keys of each layer."""
        if not self.nope_every:
            return [True] * num_layers
        every = fields.size("no_rope_layer_interval", self.nope_every)
        listed = fields.items("no_rope_layers", num_layers)
        if listed is None:
            return [bool((index + 1) % every) for index in range(num_layers)]
        return [bool(turns) for turns in listed]


# windows on all layers where the file has them; in Qwen's files also a flag that must be true
WINDOWS = LayerPattern(full_every=0)
QWEN_WINDOWS = LayerPattern(full_every=0, window_flag="use_sliding_window")


def _folded(layers: list[LayerSpec]) -> tuple[LayerSpec, ...]:
    """The shortest list that repeats to the same layers, where all are alike."""
    return tuple(layers[:1]) if len(set(layers)) == 1 else tuple(layers)
