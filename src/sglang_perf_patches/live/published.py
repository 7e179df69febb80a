"""Which server this process runs, as sglang published it, and which patches that keeps off.

Nothing of sglang is imported here. Where the arguments are depends on the release:

- up to 0.5.14, a function of ``server_args`` stores the resolved ``ServerArgs``;
- from 0.5.15 on, a ``RuntimeContext`` holds them;
- from 0.5.17 on, that context also holds resolved values in groups. A group's value wins over the
  argument of the same name.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..model import setups
from ..model.feature import MISSING, Server, Setup
from ..model.patch import Patch
from ..model.ruling import Ruling, ruling
from . import verified
from .imports import Watched, is_loaded, is_ready, wait_for
from .member import Member

ARGUMENTS = "sglang.srt.server_args"
CONTEXT = "sglang.srt.runtime_context"
UTILS = "sglang.srt.utils"
MODULES = (UTILS, ARGUMENTS, CONTEXT)
"""The modules that publish the server's arguments or name its platform."""

_KEPT = ("_model_config", "model_config")
"""The attribute of ``ServerArgs`` that holds the ``ModelConfig``: from 0.5.19 on, and before."""
_WINDOWS = ("sliding_window", "sliding_window_size", "sliding_window_pattern")
_CHUNKS = "attention_chunk_size"  # Llama 4's windows
_STATES = "mamba2_cache_params"
_GRANITE, _BAILING = ("GraniteMoeHybridConfig",), ("BailingHybridConfig",)
_MAMBA2 = (
    *("NemotronHConfig", "FalconH1Config", *_GRANITE),
    *("Mamba2Config", "MambaConfig", "FalconMambaConfig"),
)
"""The classes of the release whose models it runs by Mamba2's backend. LFM2 and ZAYA, which have
short convolutions only, have another backend from 0.5.15 on, and were never tested."""


class Published:
    """A `model.feature.Server`: the arguments that this process has published.

    Before it has published any, only the platform can be read.

    Args:
        arguments: the published ``ServerArgs``.
        context: the ``RuntimeContext`` that holds them, if the release has one.
    """

    def __init__(self, arguments: Any = None, context: Any = None) -> None:
        self._arguments = arguments
        self._context = context

    def read(self, name: str) -> Any:
        """See `model.feature.Server.read`.

        Besides arguments it reads ``is_…`` (the functions of ``sglang.srt.utils``), ``model.…``
        (see `of_model`), ``attention.…`` (see `_attention`), ``graphs.prefill``,
        ``gpu.capability``, ``GROUP.NAME`` (what the context computes) and names in capitals
        (environment variables).
        """
        if name.startswith("is_") and is_loaded(UTILS) and hasattr(sys.modules[UTILS], name):
            return bool(getattr(sys.modules[UTILS], name)())
        if self._arguments is None:
            return MISSING
        if name.isupper():
            return os.environ.get(name)
        if name.startswith("model."):
            return of_model(self._arguments, name.partition(".")[2])
        if name == "gpu.capability":
            from . import gpu  # a server without a GPU never asks

            return gpu.capability()
        if name.startswith("attention."):
            return self._attention(name.partition(".")[2])
        if name == "graphs.prefill":
            config = self.read("cuda_graph_config")
            return config if config is MISSING else config.prefill.backend
        if "." in name:
            return self._derived(*name.split("."))
        kind = type(self._arguments)
        path = _namespaces(kind).get(name) if self._context is not None else None
        if path is None:
            return getattr(self._arguments, name, MISSING)
        group, *parts = path.split(".")
        bag = self._context.config_bag(group)
        for part in parts:
            bag = getattr(bag, part)
        return getattr(bag, name)

    def unlike_default(self) -> Mapping[str, Any]:
        """See `model.feature.Server.unlike_default`."""
        changed = {}
        kind: Any = type(self._arguments)
        for name, default in _defaults(kind):
            value = getattr(self._arguments, name, default)
            if value is not default and value != default:
                changed[name] = value
        return changed

    def _attention(self, phase: str) -> Any:
        """The attention backend of ``prefill``, ``decode`` or ``draft``; or ``is_split``.

        Raises:
            LookupError: the release chooses it later.
        """
        if phase == "is_split":
            return self._attention("prefill") != self._attention("decode")
        names = ("speculative_draft_attention_backend",) if phase == "draft" else ()
        own = "prefill" if phase == "prefill" else "decode"
        for name in (*names, f"{own}_attention_backend", "attention_backend"):
            backend = self.read(name)
            if backend is not MISSING and backend:
                return backend
        raise LookupError(phase)

    def _derived(self, group: str, name: str) -> Any:
        """A value that the context computes from arguments; `MISSING` if the release has none."""
        group_of_context = getattr(self._context, group, None)
        return getattr(group_of_context, name) if hasattr(type(group_of_context), name) else MISSING


def published() -> Server:
    """What this process has published so far; if that can't be read, everything counts as on.

    While a module that publishes is still being imported, nothing has been published.
    """
    try:
        if is_loaded(CONTEXT) and _publishing_class() is not None:
            context = sys.modules[CONTEXT].get_context()
            return Published(context.server_args, context)
        arguments = sys.modules[ARGUMENTS] if is_loaded(ARGUMENTS) else None
        if hasattr(arguments, "get_global_server_args"):
            return Published(arguments.get_global_server_args())  # type: ignore[union-attr]
    except ValueError:  # nothing yet
        pass
    except Exception as error:
        return _Unreadable(error)
    return Published()


class _Unreadable:
    """A server whose arguments can't be read: each feature counts as on, each use as unknown."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self, name: str = "") -> Any:
        raise self._error

    unlike_default = read


class Gatekeeper:
    """Keeps patches off servers that do not need them or use features they were not proven with.

    `model.ruling` has the rule. It is applied before a patch goes live, after each publication of
    the server's arguments, and at each check, because sglang resolves some arguments later.

    Args:
        members: every patch of this process, by its id.
        on_publication: called after each publication; it must lead to `rule`.
    """

    def __init__(self, members: Mapping[str, Member], on_publication: Callable[[], None]) -> None:
        self._members = members
        self._had: frozenset[str] = frozenset()
        self._on_publication = on_publication
        self._watched = Watched(on_publication)

    def watch(self, members: Iterable[Member]) -> None:
        """Hook the publishing function once its module is imported, for those ruled. Idempotent."""
        if any(map(self._is_ruled, members)):
            wait_for(MODULES, self._on_publication)
            if is_ready(ARGUMENTS):
                self._watched.begin(*_publishing())

    def leave(self) -> bool:
        """Stop watching publications; False if a thread is publishing."""
        return self._watched.leave()

    def rule(self, members: Iterable[Member]) -> Iterator[tuple[Member, Ruling | None]]:
        """Each patch that this server may keep off, and why it does; None if it doesn't.

        While any thread is publishing there is none: it is asked again when that call has returned.
        """
        ruled = [each for each in members if self._is_ruled(each)]
        if ruled and not self._watched.is_under_way():
            setup = self._setup()
            for member in ruled:
                yield member, self._rule(member, setup)

    def _is_ruled(self, member: Member) -> bool:
        has_rule = member.patch.proven_with is not None or bool(member.patch.only_with)
        # Without a rule of its own it is "not needed" only because a patch that it requires is.
        return has_rule or member.state == "not needed"

    def _setup(self) -> Setup:
        """The server as published now, with every use that it ever had."""
        # A draft model's arguments are published for a moment in between. They must not make a
        # patch of the main model "not needed".
        setup = setups.FEATURES.setup(published())
        self._had |= setup.having
        lacking = {use: why for use, why in setup.lacking.items() if use not in self._had}
        return dataclasses.replace(setup, lacking=lacking)

    def _rule(self, member: Member, setup: Setup) -> Ruling | None:
        needed = [self._members[name] for name in member.patch.requires]
        # Those that apply here, so not those that are built in upstream.
        acting = [each.patch for each in needed if each.verdict and each.verdict.word == "applies"]
        patch = member.patch.proven_in(member.variant)
        return ruling(patch, acting, setup, self._lacking_record)

    def _lacking_record(self, patch: Patch) -> str | None:
        verdict = self._members[patch.id].verdict
        assert verdict is not None  # it applies, or it would not be ruled
        return verified.lacking(verdict)


def _publishing() -> tuple[Any, str]:
    """The owner and the name of the function that publishes arguments."""
    context_class = _publishing_class()
    if context_class is not None:
        return context_class, "set_server_args"
    return sys.modules[ARGUMENTS], "set_global_server_args_for_scheduler"


def _publishing_class() -> Any:
    """The ``RuntimeContext`` class that holds arguments; None up to 0.5.14, whose has none."""
    context_class = getattr(sys.modules.get(CONTEXT), "RuntimeContext", None)
    return context_class if hasattr(context_class, "set_server_args") else None


def _namespaces(kind: type) -> Mapping[str, str]:
    """Argument → path of its group in the context; empty before 0.5.17, which has no groups."""
    module = sys.modules.get("sglang.srt.arg_groups.arg_utils")
    return module.namespace_of(kind) if hasattr(module, "namespace_of") else {}  # type: ignore[union-attr]


@functools.cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """``(name, default)`` of each field of a dataclass or msgspec struct that has a default."""
    fields: Any = ()
    none: Any = dataclasses.MISSING
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
    elif hasattr(kind, "__struct_fields__"):
        msgspec: Any = sys.modules["msgspec"]
        fields, none = msgspec.structs.fields(kind), msgspec.NODEFAULT
    return tuple(
        (each.name, each.default_factory() if each.default is none else each.default)
        for each in fields
        if each.default is not none or each.default_factory is not none
    )


def of_model(arguments: Any, name: str) -> Any:
    """Read a property of a server's model from the ``ModelConfig`` that the arguments hold.

    sglang makes that object when it resolves the arguments.

    Args:
        arguments: ``ServerArgs``.
        name: one of `_ANSWERS`, such as ``has_mla``, or an attribute of ``ModelConfig``.

    Returns:
        its value; `MISSING` if there is no ``ModelConfig``, or it has no such attribute.

    Raises:
        Exception: the configuration lacks something that every known one has.
    """
    kept = (getattr(arguments, each, None) for each in _KEPT)
    config = next((each for each in kept if hasattr(each, "hf_config")), None)
    if config is None:
        return MISSING
    return _ANSWERS[name](config) if name in _ANSWERS else getattr(config, name, MISSING)


def _has_states(config: Any) -> bool:
    """Whether any part of the model has states, by the property that sglang sizes their pool by."""
    return any(hasattr(type(part), _STATES) for part in _parts(config))


def _has_delta_nets(config: Any) -> bool:
    """Whether any part has them, by the heads of their values; Jet's have none of that name."""
    return any(
        hasattr(part, "linear_num_value_heads")
        or str(getattr(part, "model_type", "")).startswith("jet")
        for part in _parts(config)
    )


def _has_mamba2(config: Any) -> bool:
    """Whether stock computes a part of the model by Mamba2 layers."""
    return any(
        _is_a(part, _MAMBA2) and (not _is_a(part, _GRANITE) or "mamba" in part.layer_types)
        for part in _parts(config)
    )


def _has_lightning(config: Any) -> bool:
    """Whether stock computes a part of the model by lightning attention."""
    return any(
        (_is_a(part, _BAILING) and not getattr(part, "use_kda", False))
        or getattr(part, "has_lightning_layers", False)
        for part in _parts(config)
    )


def _has_mrope(config: Any) -> bool:
    text = config.hf_text_config
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    return scaling is not None and "mrope_section" in scaling


def _has_window_pool(config: Any) -> bool:
    """Whether stock keeps KV of windows in its usual pool; DeepSeek V4 has pools of its own."""
    return bool(config.is_hybrid_swa) and not _architecture(config).startswith("DeepseekV4")


def _architecture(config: Any) -> str:
    return str(config.hf_config.architectures[0])


def _is_a(part: Any, names: tuple[str, ...]) -> bool:
    """Whether a configuration is of one of these classes of the release."""
    return any(kind.__name__ in names for kind in type(part).__mro__)


def _has_windows(config: Any) -> bool:
    """Whether any layer may attend within a window, with a pool of its own or without."""
    return bool(config.is_hybrid_swa) or any(
        any(getattr(part, name, None) for name in (*_WINDOWS, _CHUNKS))
        or any("sliding" in str(kind) for kind in getattr(part, "layer_types", None) or ())
        for part in _parts(config)
    )


def _parts(config: Any) -> Iterator[Any]:
    """The Hugging Face configurations of the model and of its parts, such as its text model."""
    yield config.hf_config
    yield config.hf_text_config
    yield from (part for part in vars(config.hf_config).values() if hasattr(part, "model_type"))


_ANSWERS: dict[str, Callable[[Any], Any]] = {
    "architecture": _architecture,
    "has_mla": lambda config: config.attention_arch.name == "MLA",
    "has_states": _has_states,
    "has_delta_nets": _has_delta_nets,
    "has_mamba2": _has_mamba2,
    "has_lightning": _has_lightning,
    "linear_kernel": lambda config: getattr(config.hf_config, "linear_backend", "seg_la"),
    "has_mrope": _has_mrope,
    "has_windows": _has_windows,
    "has_window_pool": _has_window_pool,
}
