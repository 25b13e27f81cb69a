"""Inductor under the switch: patches, refusals, a check that no older code is called; Triton's autotuning.

Inductor is private to torch: patched for tested versions only, when it is imported, and restored.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

import torch

from samebits._context import Across
from samebits._inspect.patching import Patches
from samebits.determinism._compile import cpp_reductions
from samebits.determinism._environment import TESTED_TORCH, running_version
from samebits.errors import ConflictError, SamebitsError, UnimplementedError

_EAGER = (
    "run it without torch.compile (torch.compiler.set_stance('force_eager') does so for the whole program)"
)


def pin_shapes(config: Any, patches: Patches) -> None:
    """Compiles each shape separately, or raises, whatever shapes were seen before.

    Torch's default makes a size dynamic at its second value, and such code has other bits; past 8
    recompilations it runs eagerly. Both depend on the past of the process, which a resumed run does not have.
    """
    patches.force(config, "automatic_dynamic_shapes", False)
    patches.force(config, "fail_on_recompile_limit_hit", True)
    patches.put(config._config["recompile_limit"], "default", 64)


def patch(compile_fx: ModuleType, patches: Patches, mode: str, across: Across) -> None:
    """Applies everything to Inductor, whose module `torch._inductor.compile_fx` has just been imported.

    `across`: the code has the same bits in all "runs", for all "threads" or on all "machines".
    """
    why = _refusal_of_all(across)
    patches.put(compile_fx, "_compile_fx_inner", _check_settings(compile_fx._compile_fx_inner, why))
    if why is not None and across == "threads":
        return
    output_code = import_module("torch._inductor.output_code")
    graph = output_code.CompiledFxGraph
    patches.put(graph, "post_compile", _stamp_code(graph.post_compile, mode))
    patches.put(graph, "__call__", _refuse_older_code(graph.__call__, mode))
    cpp = import_module("torch._inductor.codegen.cpp")
    details = import_module("torch._inductor.codecache").FxGraphHashDetails
    patches.put(details, "__init__", _with_threads(details.__init__, cpp.parallel_num_threads))
    for kernel in (cpp.CppKernel, cpp.CppVecKernel):
        patches.put(kernel, "store", _refuse_atomics(kernel.store))
    patches.when_imported("torch._inductor.codegen.triton", lambda module: _patch_triton(module, patches))
    patches.when_imported(
        "torch._inductor.codegen.triton_split_scan", lambda module: _patch_scan(module, patches)
    )
    if across == "threads":
        ir = import_module("torch._inductor.ir")
        split = cpp_reductions.split_by_size(ir, ir.Reduction.num_splits)
        patches.put(ir.Reduction, "num_splits", staticmethod(split))
        create = cpp_reductions.split_evenly(ir, vars(ir.Reduction)["create"].__func__)
        patches.put(ir.Reduction, "create", classmethod(create))
        nest = cpp.LoopNest
        patches.put(
            nest, "max_parallel_depth", cpp_reductions.parallel_over_results(cpp, nest.max_parallel_depth)
        )
        patches.put(cpp.CppScheduling, "codegen_template", _refuse_template)


def _refusal_of_all(across: Across) -> tuple[str, str] | None:
    """Returns what is wrong with Inductor's code under `across`, and the cure; None where it can be kept."""
    if across == "machines":
        return (
            'torch.compile has other bits on another CPU (enable_op_determinism(across="machines"))',
            _EAGER,
        )
    if across == "threads" and running_version() not in TESTED_TORCH:
        what = (
            'torch.compile under enable_op_determinism(across="threads") was tested with torch '
            f"{', '.join(TESTED_TORCH)}, "
            f"not with {torch.__version__}"
        )
        return what, f'call enable_op_determinism(across="runs"), or {_EAGER}'
    return None


def _check_settings(compile_inner: Any, refusal: tuple[str, str] | None) -> Any:
    @functools.wraps(compile_inner)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if refusal is not None:
            _refuse(*refusal)
        _refuse_settings(kwargs)
        return compile_inner(*args, **kwargs)

    return checked


def _refuse_settings(kwargs: Any) -> None:
    config: Any = sys.modules["torch._inductor.config"]
    if (
        not torch.are_deterministic_algorithms_enabled()
        or torch.is_deterministic_algorithms_warn_only_enabled()
    ):
        _refuse(
            "torch.compile under op determinism, but torch's own flag was set to off or to warn without a "
            "call of samebits (torch.use_deterministic_algorithms, torch.set_deterministic_debug_mode)",
            "take that call away, or compile inside `with samebits.enable_op_determinism(False):`",
            ConflictError,
        )
    if not config.deterministic:
        _refuse(
            "torch.compile under op determinism with torch._inductor.config.deterministic = False",
            "take that setting away, or compile inside `with samebits.enable_op_determinism(False):`",
            ConflictError,
        )
    if (
        kwargs.get("cpp_wrapper")
        or config.cpp_wrapper
        or sys.modules["torch._inductor.virtualized"].V.aot_compilation
    ):
        _refuse(
            "Inductor's C++ wrapper and AOTInductor call torch's kernels past the deterministic ones",
            "leave torch._inductor.config.cpp_wrapper False and use torch.compile",
        )
    if config.freezing:
        _refuse(
            "Inductor's freezing packs weights for oneDNN ops that have no deterministic version",
            "leave torch._inductor.config.freezing False",
        )
    if config.cpu_backend != "cpp":
        _refuse(
            f"Inductor's CPU backend {config.cpu_backend!r} was never tested",
            "leave torch._inductor.config.cpu_backend at 'cpp'",
        )


def _stamp_code(post_compile: Any, mode: str) -> Any:
    @functools.wraps(post_compile)
    def stamped(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._samebits_mode = mode
        return post_compile(self, *args, **kwargs)

    return stamped


def _refuse_older_code(call: Any, mode: str) -> Any:
    """Refuses code older than the switch that Dynamo does not recompile, such as a pending backward."""

    @functools.wraps(call)
    def checked(self: Any, inputs: Any) -> Any:
        if self.__dict__.get("_samebits_mode") != mode:
            _refuse(
                "code that Inductor compiled before enable_op_determinism() is called under it",
                "enable op determinism before the forward pass and before code is compiled by hand",
            )
        return call(self, inputs)

    return checked


def _with_threads(init: Any, threads: Any) -> Any:
    """Compiles CPU code for the current number of threads; before torch 2.13 the caches' keys omit it."""

    @functools.wraps(init)
    def with_threads(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.cpp_runtime_thread_count = threads()

    return with_threads


def _refuse_atomics(store: Any) -> Any:
    @functools.wraps(store)
    def checked(self: Any, name: str, index: Any, value: Any, mode: Any = None) -> Any:
        if mode == "atomic_add":
            _refuse(f"Inductor adds to {name} with atomics, in the order in which threads arrive", _EAGER)
        return store(self, name, index, value, mode)

    return checked


def _patch_triton(triton: ModuleType, patches: Patches) -> None:
    patches.put(triton.TritonKernel, "store", _refuse_atomics(triton.TritonKernel.store))


def _patch_scan(module: ModuleType, patches: Patches) -> None:
    patches.put(module.TritonSplitScanKernel, "scan", _allow_integer_scans(module.TritonSplitScanKernel.scan))


def _allow_integer_scans(scan: Any) -> Any:
    """Refuses a scan in blocks: each adds the sums before it in the groups that are there (look-back)."""

    @functools.wraps(scan)
    def checked(self: Any, dtypes: Any, combine_fn: Any, values: Any) -> Any:
        if any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
            _refuse(
                "Inductor scans a long row (torch.cumsum) in blocks, and adds up those before it as they "
                "happen to be done",
                "compute it on the CPU, or as a product with torch.tril(torch.ones(n, n))",
            )
        return scan(self, dtypes, combine_fn, values)

    return checked


def _refuse_template(self: Any, template_node: Any, *args: Any, **kwargs: Any) -> NoReturn:
    _refuse(
        f"Inductor's C++ template for {template_node.node.get_name()} ({type(template_node.node).__name__}) "
        "divides its work by the thread count",
        "leave 'ATEN' in torch._inductor.config.max_autotune_gemm_backends, compile flex_attention on a GPU "
        "only, or " + _EAGER,
    )


def _refuse(feature: str, cure: str, kind: type[SamebitsError] = UnimplementedError) -> NoReturn:
    raise dynamo_error(kind)(f"{feature}: {cure}.", first_useful_frame=None)


@functools.cache
def dynamo_error(kind: type[SamebitsError]) -> Any:
    """Returns the error class as Dynamo lets it through: it wraps other errors in BackendCompilerFailed."""
    pass_through = import_module("torch._dynamo.exc").ShortenTraceback
    return type(kind.__name__, (pass_through, kind), {"__module__": kind.__module__})


# Triton's autotuning of a user's kernels: timings choose between configurations, and configurations may
# round differently.


def pin_first_configuration(autotuner: Any, patches: Patches) -> None:
    """Makes a user's `triton.autotune` take its first configuration: the fastest varies from run to run."""
    run = autotuner.Autotuner.run

    @functools.wraps(run)
    def with_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        every, self.configs = self.configs, self.configs[:1]
        try:
            return run(self, *args, **kwargs)
        finally:
            self.configs = every

    patches.put(autotuner.Autotuner, "run", with_first)
