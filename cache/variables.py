"""The register of environment variables: which may change generated code, which may not, and why.

Read from torch 2.11 to 2.13 (`torch/_inductor`, `torch/_functorch`, `torch/_dynamo`) and Triton 3.6 to 3.9
(`triton/knobs.py`). A prefix row catches variables that later versions add: an unknown one counts, because a needless
build is cheaper than a wrong one. The most specific row decides: an exact name before a prefix, a longer prefix
before a shorter one.
"""

from dataclasses import dataclass

__all__ = ["COUNTED", "EXCLUDED", "VariableRule", "rule_for_variable"]


@dataclass(frozen=True, slots=True)
class VariableRule:
    """One row of the register.

    Attributes:
        pattern: A variable's name, or a prefix followed by `*`.
        reason: Why it counts, or why it does not.
    """

    pattern: str
    reason: str

    def fits(self, name: str) -> bool:
        """Tell whether this row speaks of a variable."""
        if self.pattern.endswith("*"):
            return name.startswith(self.pattern[:-1])
        return name == self.pattern


def _rows(reason: str, patterns: str) -> tuple[VariableRule, ...]:
    return tuple(VariableRule(pattern, reason) for pattern in patterns.split())


COUNTED: tuple[VariableRule, ...] = (
    *_rows("An option of Inductor; most change the generated code", "TORCHINDUCTOR_* INDUCTOR_*"),
    *_rows("An option of AOTInductor's wrapper and its C++ compile", "AOT_INDUCTOR_* AOTINDUCTOR_*"),
    *_rows("An option of Dynamo; it may change the traced graph", "TORCHDYNAMO_* TORCH_DYNAMO_*"),
    *_rows(
        "An option of the compile stack; it may change graph or code",
        "TORCH_COMPILE_* TORCH_COMPILER_* TORCHAOTAUTOGRAD_*",
    ),
    *_rows(
        "An option of the tracer's fake tensors",
        "FAKE_ALLOW_META TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE",
    ),
    *_rows(
        "It changes how the partitioner cuts or reorders the graph",
        "TENSORIFY_PYTHON_SCALARS FX_PATCH_GETITEM",
    ),
    *_rows(
        "It limits how Inductor moves collectives",
        "PYTORCH_REORDER_COLLECTIVES_LIMIT PYTORCH_SINK_WAITS_LIMIT",
    ),
    *_rows(
        "It merges or splits the graph's fusion groups",
        "_SPLITTER_MERGE_OVERLAPPING_FUSIONS PYTORCH_NVFUSER_*",
    ),
    *_rows("It chooses or tunes GEMM templates", "CUTLASS_* CUTEDSL_* ENABLE_PERSISTENT_TMA_MATMUL"),
    *_rows("It chooses TMA in templates", "ENABLE_TEMPLATE_TMA_STORE ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE"),
    *_rows("A knob of Triton; most change the kernels", "TRITON_*"),
    *_rows("It changes how Triton lowers for AMD", "AMDGCN_*"),
    *_rows("It changes the passes or flags behind Triton", "DISABLE_LLVM_OPT DISABLE_PTXAS_OPT PTXAS_OPTIONS"),
    *_rows("It changes the line info inside kernels", "USE_IR_LOC LLVM_EXTRACT_DI_LOCAL_VARIABLES"),
    *_rows("The C++ compiler in use; only its name counts, never its place", "CC CXX CUDACXX PYTORCH_NVCC"),
    *_rows("Flags of the C++ compiler", "CFLAGS CXXFLAGS"),
    *_rows("It lowers the CPU instruction set that Inductor generates for", "ATEN_CPU_CAPABILITY"),
    *_rows(
        "It decides whether float32 products use TF32",
        "NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    ),
)

EXCLUDED: tuple[VariableRule, ...] = (
    *_rows(
        "A place on this machine: where something is stored never changes what is generated",
        "CUDA_HOME CUDA_PATH TORCHINDUCTOR_CACHE_DIR TORCHINDUCTOR_CK_DIR TORCHINDUCTOR_CUTLASS_DIR "
        "TORCHINDUCTOR_WORKER_LOGPATH TORCH_COMPILE_DEBUG_DIR TRITON_CACHE_DIR TRITON_CUDACRT_PATH "
        "TRITON_CUDART_PATH TRITON_CUPTI_* TRITON_DUMP_DIR TRITON_HOME TRITON_HSA_RUNTIME_* "
        "TRITON_LIBCUDA_PATH TRITON_LIBHIP_PATH TRITON_OVERRIDE_DIR TRITON_ROCPROFILER_* "
        "TRITON_ROCTRACER_* TRITON_ROCTX_*",
    ),
    *_rows(
        "A folder of this user or of another cache: where something is stored never changes what is generated",
        "CONDA_PREFIX HF_ASSETS_CACHE HF_DATASETS_CACHE HF_HOME HF_HUB_CACHE HOME HUGGINGFACE_HUB_CACHE "
        "PRECAST_CACHE_DIR TEMP TMP TMPDIR TRANSFORMERS_CACHE VIRTUAL_ENV VLLM_ASSETS_CACHE VLLM_CACHE_ROOT "
        "VLLM_CONFIG_ROOT VLLM_RPC_BASE_PATH VLLM_TORCH_PROFILER_DIR XDG_*",
    ),
    *_rows(
        "An address, a port or the name of a host",
        "HOST HOSTNAME HOST_IP MASTER_ADDR MASTER_PORT NODE_IP NODE_NAME POD_IP POD_NAME POD_NAMESPACE "
        "VLLM_DP_MASTER_IP VLLM_DP_MASTER_PORT VLLM_HOST_IP VLLM_LOOPBACK_IP VLLM_MOONCAKE_BOOTSTRAP_PORT "
        "VLLM_NIXL_SIDE_CHANNEL_HOST VLLM_NIXL_SIDE_CHANNEL_PORT VLLM_PORT",
    ),
    *_rows(
        "It says where among others a process runs; code is generated for a target, not for a place",
        "CUDA_VISIBLE_DEVICES GROUP_RANK HIP_VISIBLE_DEVICES LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK OMPI_COMM_WORLD_* "
        "PMI_RANK PMI_SIZE RANK ROCR_VISIBLE_DEVICES SLURM_* VLLM_DP_RANK VLLM_DP_RANK_LOCAL VLLM_RAY_BUNDLE_INDICES "
        "WORLD_SIZE",
    ),
    *_rows("It gives access to files; it says nothing about their content", "HF_TOKEN HUGGING_FACE_HUB_TOKEN"),
    *_rows("Hashes of texts never get into a key", "PYTHONHASHSEED"),
    *_rows(
        "A cache of torch or Triton: it changes whether something is compiled again, not the result",
        "TORCHINDUCTOR_AUTOGRAD_CACHE TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD "
        "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE "
        "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS "
        "TORCHINDUCTOR_FILE_LOCK_TIMEOUT TORCHINDUCTOR_FX_GRAPH_CACHE "
        "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE "
        "TORCHINDUCTOR_NON_BLOCKING_REMOTE_CACHE_WRITE TORCHINDUCTOR_REDIS_* TORCH_CACHING_PRECOMPILE "
        "TORCH_COMPILE_CACHE_KEY_TAG TORCH_COMPILE_JOB_ID TORCH_COMPILE_STICKY_PGO_* "
        "TORCH_FAKE_TENSOR_DISPATCH_CACHE* TORCH_STRICT_PRECOMPILE TRITON_ALWAYS_COMPILE "
        "TRITON_CACHE_AUTOTUNING TRITON_CACHE_MANAGER TRITON_REDIS_* TRITON_REMOTE_CACHE_BACKEND "
        "TRITON_STORE_BINARY_ONLY",
    ),
    *_rows(
        "How many processes compile, and how long they are waited for",
        "TORCHINDUCTOR_AUTOTUNE_POOL_INACTIVITY_TIMEOUT TORCHINDUCTOR_COLLECTIVE_BENCHMARK_TIMEOUT "
        "TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_COMPILE_WORKER_WAIT_TIMEOUT "
        "TORCHINDUCTOR_PRECOMPILATION_TIMEOUT_SECONDS TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL "
        "TORCHINDUCTOR_WORKER_START TRITON_WARMUP_*",
    ),
    *_rows(
        "Logging: it changes what is said, not what is made",
        "LOG_AUTOTUNE_RESULTS LOG_TLPARSE TORCHDYNAMO_DEBUG_FUNCTION TORCHDYNAMO_EXTENDED_ADVICE "
        "TORCHDYNAMO_EXTENDED_DEBUG_* TORCHDYNAMO_PRINT_MISSING TORCHDYNAMO_VERBOSE "
        "TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED TORCHINDUCTOR_CONV_LOGGING_FILE "
        "TORCHINDUCTOR_DEBUG_FUSION TORCHINDUCTOR_MAX_AUTOTUNE_REPORT_CHOICES_STATS "
        "TORCHINDUCTOR_MM_LOGGING_FILE TORCHINDUCTOR_PATTERN_MATCH_DEBUG TORCHINDUCTOR_WARN_MIX_LAYOUT "
        "TORCHINDUCTOR_WORKER_SUPPRESS_LOGGING TORCH_LOGS TORCH_LOGS_* TORCH_TRACE "
        "TRITON_FRONT_END_DEBUGGING TRITON_PRINT_AUTOTUNING VLLM_CONFIGURE_LOGGING VLLM_LOGGING_*",
    ),
    *_rows(
        "A dump or a repro for debugging, beside the generated code",
        "AMDGCN_ENABLE_DUMP AOTINDUCTOR_REPRO_LEVEL AOT_PARTITIONER_DEBUG DUMP_AOTI_MINIFIER "
        "FX_GRAPH_SHOW_* HALIDE_REPRO INDUCTOR_DOT_GRAPH_SHAPE_SVG INDUCTOR_LOG_URL_FOR_GRAPH_XFORM "
        "INDUCTOR_ORIG_FX_* INDUCTOR_POST_FUSION_* INDUCTOR_WRITE_SCHEDULER_GRAPH LLVM_ENABLE_TIMING "
        "LLVM_IR_ENABLE_DUMP NVPTX_ENABLE_DUMP PARTITIONER_MEMORY_BUDGET_PARETO* TORCHDYNAMO_REPRO_* "
        "TORCHINDUCTOR_DUMP_LAUNCH_* TORCHINDUCTOR_ENABLED_METRIC_TABLES TORCHINDUCTOR_SAVE_ARGS "
        "TORCHINDUCTOR_WRITE_MISSING_OPS TORCH_COMPILE_DEBUG TORCH_COMPILE_DEBUG_SAVE_REAL "
        "TORCH_COMPILE_GRAPH_FORMAT TORCH_COMPILE_REPLAY_RECORD TRITON_DUMP_* TRITON_KERNEL_DUMP",
    ),
    *_rows(
        "Profiling of the compiler itself",
        "TORCHINDUCTOR_PROFILE_OUTPUT TORCHINDUCTOR_TRITON_PROTON_* TORCH_COMPILE_CPROFILE "
        "TORCH_COMPILE_DYNAMO_PROFILER TORCH_COMPILE_STROBELIGHT TRITON_ENABLE_HW_TRACE "
        "TRITON_ENABLE_NVTX TRITON_PROFILE_* TRITON_PROTON_*",
    ),
    *_rows(
        "It names a job, a rank or a runner, not the code",
        "CI INDUCTOR_TEST_DISABLE_FRESH_CACHE MAST_HPC_JOB_NAME PT2_COMPILE_ID_PREFIX ROLE_RANK "
        "TORCHINDUCTOR_WINDOWS_TESTS TRITON_CI_* TRITON_TEST_*",
    ),
    *_rows(
        "The target is a factor of its own",
        "PYTORCH_ROCM_ARCH TORCH_CUDA_ARCH_LIST",
    ),
    *_rows(
        "It acts on training or on guards; precast compiles inference graphs and drops guards",
        "TORCHINDUCTOR_ANNOTATE_TRAINING UNSAFE_SKIP_FSDP_MODULE_GUARDS",
    ),
    *_rows(
        "It acts when the code runs, not when it is generated",
        "CUBLASLT_WORKSPACE_SIZE CUBLAS_WORKSPACE_CONFIG TORCH_BLAS_PREFER_* TORCH_CUDAGRAPH_GC "
        "TORCH_DYNAMO_RUN_GC_AFTER_COMPILE TORCH_LINALG_PREFER_*",
    ),
)


def rule_for_variable(name: str) -> tuple[VariableRule, bool] | None:
    """Return the row that decides about a variable and whether it counts; None where no row speaks of it."""
    fitting = [(rule, True) for rule in COUNTED if rule.fits(name)]
    fitting += [(rule, False) for rule in EXCLUDED if rule.fits(name)]
    return max(fitting, key=lambda row: _precision(row[0]), default=None)


def _precision(rule: VariableRule) -> tuple[bool, int]:
    return not rule.pattern.endswith("*"), len(rule.pattern)
