// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/unsupported_options.hpp"

#include <algorithm>
#include <array>

namespace accelerate::launch {
namespace {

struct Foreign {
  std::string_view name;  ///< a trailing _ matches all options with this prefix
  std::string_view reason;
};

constexpr std::string_view kDeepSpeed =
    "files and hosts of DeepSpeed are not read; --use_deepspeed --zero_stage N shards the training, --hostfile names "
    "hosts";
constexpr std::string_view kOffload =
    "--use_fsdp --fsdp_sharding_strategy FULL_SHARD --fsdp_offload_params true keeps parameters and optimizer state on "
    "the host";
constexpr std::string_view kZero3 =
    "prepare() divides a whole model, and save_model() writes whole tensors in the dtype of the model";
constexpr std::string_view kModelParallel =
    "Megatron-LM is a Python library; --use_parallelism_config with --parallelism_config_tp_size N is tensor "
    "parallelism";
constexpr std::string_view kContext =
    "ranks of a context parallel group gather keys and values, as with allgather; --parallelism_config_cp_size N is "
    "their number";
constexpr std::string_view kSequence =
    "DeepSpeed's sequence parallelism is not supported; --parallelism_config_cp_size N divides the sequence";
constexpr std::string_view kCompiler =
    "it compiles Python code; tools/export_compiled.py compiles a module for a C++ program";
constexpr std::string_view kPrecision = "fp8 is not supported; --mixed_precision takes bf16 and fp16";
constexpr std::string_view kTpu = "LibTorch does not support TPUs; ranks run on GPUs or CPUs";
constexpr std::string_view kPython = "a program is an executable; pass its path";
constexpr std::string_view kCloud = "the launcher does not start machines; it runs on existing ones";
constexpr std::string_view kInCode = "the program clips; call accelerator.clip_grad_norm_()";

constexpr std::array<Foreign, 25> kForeign{
    {{"deepspeed_", kDeepSpeed},
     {"zero3_", kZero3},
     {"offload_", kOffload},
     {"use_megatron_lm", kModelParallel},
     {"megatron_lm_", kModelParallel},
     {"parallelism_config_cp_", kContext},
     {"parallelism_config_", kSequence},
     {"dynamo_", kCompiler},
     {"fp8_", kPrecision},
     {"tpu", kTpu},
     {"tpu_", kTpu},
     {"no_tpu_cluster", kTpu},
     {"vm", kTpu},
     {"env", kTpu},
     {"main_training_function", kTpu},
     {"downcast_bf16", kTpu},
     {"module", kPython},
     {"m", kPython},
     {"no_python", kPython},
     {"aws_", kCloud},
     {"use_mps_device", "LibTorch for Linux does not support MPS"},
     {"use_xpu", "--device xpu selects one"},
     {"ipex", "it is a Python package"},
     {"rdzv_conf", "--main_process_ip and --main_process_port are the address of the rendezvous"},
     {"gradient_clipping", kInCode}}};

}  // namespace

std::optional<std::string_view> unsupported_reason(std::string_view name) {
  const auto fits = [&](const Foreign& each) {
    return each.name.ends_with('_') ? name.starts_with(each.name) : name == each.name;
  };
  const auto found = std::find_if(kForeign.begin(), kForeign.end(), fits);
  return found == kForeign.end() ? std::nullopt : std::optional(found->reason);
}

}  // namespace accelerate::launch
