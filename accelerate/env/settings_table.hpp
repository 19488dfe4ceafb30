// SPDX-License-Identifier: Apache-2.0
// The table of all settings. Reading the code's options, the config file, the environment and the command line of
// accelerate_launch, and writing its help and the variables of the ranks, are loops over these rows.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "accelerate/env/backends.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/settings.hpp"
#include "accelerate/env/value_types.hpp"

namespace accelerate::env {

/// Option of accelerate_launch for a setting.
struct CommandLineOption {
  std::string_view name;        ///< without dashes
  std::string_view value_name;  ///< placeholder in the help, "N"; empty if the option takes no value
  std::string help;
};

/// Help text for a default that is determined at run time. Empty for "off" or "none".
struct DerivedDefault {
  std::string_view how{};
};

template <typename Type, typename Member, typename Default = DerivedDefault>
struct Setting {
  std::string_view name;      ///< in the code
  std::string_view key;       ///< in the config file
  std::string_view variable;  ///< in the environment
  CommandLineOption option;
  Type type;                ///< valid values (value_types.hpp)
  Default default_value{};  ///< value if none is given
  Member member;            ///< member in a struct of all settings
  /// True for an OpenMP variable with one number per nesting level, "5,2": the first number is used.
  bool first_of_list = false;

  static constexpr bool has_default = !std::is_same_v<Default, DerivedDefault>;

  /// Returns the default as shown in help texts.
  [[nodiscard]] std::string default_text() const {
    if constexpr (has_default) {
      return type.text(typename Type::Value(default_value));
    } else {
      return std::string(default_value.how);
    }
  }

  /// Returns this setting's member in GivenSettings, Settings or AcceleratorOptions.
  [[nodiscard]] auto& of(auto& all) const { return *member(all); }
};

/// Calls each(row) for every setting, in the order of Settings.
template <typename Each>
void for_each_setting(Each&& each) {
  each(Setting{.name = "gradient_accumulation_steps",
               .key = "gradient_accumulation_steps",
               .variable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
               .option = {"gradient_accumulation_steps", "N",
                          "Micro-batches per optimizer step if the program does not set it."},
               .type = Integer{.lowest = 1},
               .default_value = Settings{}.gradient_accumulation_steps,
               .member = [](auto& all) { return &all.gradient_accumulation_steps; }});
  each(Setting{.name = "mixed_precision",
               .key = "mixed_precision",
               .variable = "ACCELERATE_MIXED_PRECISION",
               .option = {"mixed_precision", "NAME", "no, bf16 or fp16: what forward and backward compute in."},
               .type = Choice<Precision, kPrecisions.size()>{kPrecisions},
               .default_value = Settings{}.mixed_precision,
               .member = [](auto& all) { return &all.mixed_precision; }});
  each(Setting{.name = "cpu",
               .key = "cpu",
               .variable = "ACCELERATE_USE_CPU",
               .option = {"cpu", "", "Train on the CPU even if there are GPUs."},
               .type = Flag{},
               .member = [](auto& all) { return &all.cpu; }});
  each(Setting{
      .name = "backend",
      .key = "backend",
      .variable = "ACCELERATE_BACKEND",
      .option = {"backend", "NAME", backend_choice("cpu") + " on the CPU, " + backend_choice("cuda") + " on GPUs."},
      .type = Word{[](std::string_view text) { return text == kAnyBackend || is_backend(text); }, backend_choice()},
      .default_value = DerivedDefault{"auto: the best available"},
      .member = [](auto& all) { return &all.backend; }});
  // Larger seconds or thread counts would overflow the clock or LibTorch.
  each(Setting{.name = "timeout",
               .key = "timeout",
               .variable = "ACCELERATE_TIMEOUT",
               .option = {"timeout", "SECONDS", "Longest wait for another rank."},
               .type = Seconds{{.lowest = 1, .highest = 1'000'000'000}},
               .default_value = Settings{}.timeout,
               .member = [](auto& all) { return &all.timeout; }});
  each(Setting{.name = "debug",
               .key = "debug",
               .variable = "ACCELERATE_DEBUG_MODE",
               .option = {"debug", "", "Compare every collective across the ranks first."},
               .type = Flag{},
               .member = [](auto& all) { return &all.debug; }});
  each(Setting{.name = "device",
               .key = "torch_device",
               .variable = "ACCELERATE_TORCH_DEVICE",
               .option = {"device", "NAME", "cpu, cuda, cuda:N or another of LibTorch's."},
               .type = Word{[](std::string_view text) { return parse_device(text).has_value(); },
                            "cpu, cuda, cuda:N or another device of LibTorch's"},
               .default_value = DerivedDefault{"by local rank"},
               .member = [](auto& all) { return &all.device; }});
  each(Setting{.name = "threads_per_rank",
               .key = "threads_per_rank",
               .variable = "OMP_NUM_THREADS",
               .option = {"num_cpu_threads_per_process", "N", "OMP_NUM_THREADS of a rank."},
               .type = Integer{.lowest = 1, .highest = 65536},
               .default_value = DerivedDefault{"the library's share of the cores"},
               .member = [](auto& all) { return &all.threads_per_rank; },
               .first_of_list = true});
  each(Setting{.name = "allow_shared_gpus",
               .key = "allow_shared_gpus",
               .variable = "ACCELERATE_ALLOW_SHARED_GPUS",
               .option = {"allow_shared_gpus", "", "Allow more ranks than GPUs, which is otherwise an error."},
               .type = Flag{},
               .member = [](auto& all) { return &all.allow_shared_gpus; }});
  each(Setting{.name = "memory_format",
               .key = "memory_format",
               .variable = "ACCELERATE_MEMORY_FORMAT",
               .option = {"memory_format", "NAME", "Order in memory of image weights and batches."},
               .type = Choice<MemoryFormat, kMemoryFormats.size()>{kMemoryFormats},
               .default_value = Settings{}.memory_format,
               .member = [](auto& all) { return &all.memory_format; }});
  each(Setting{.name = "float32_matmul_precision",
               .key = "float32_matmul_precision",
               .variable = "ACCELERATE_FLOAT32_MATMUL_PRECISION",
               .option = {"float32_matmul_precision", "NAME", "highest, high or medium: float32 matrix products."},
               .type = Choice<Float32MatmulPrecision, kFloat32MatmulPrecisions.size()>{kFloat32MatmulPrecisions},
               .default_value = DerivedDefault{"LibTorch's"},
               .member = [](auto& all) { return &all.float32_matmul_precision; }});
  each(Setting{.name = "cudnn_benchmark",
               .key = "cudnn_benchmark",
               .variable = "ACCELERATE_CUDNN_BENCHMARK",
               .option = {"cudnn_benchmark", "", "cuDNN times its convolutions and picks the fastest."},
               .type = Flag{},
               .member = [](auto& all) { return &all.cudnn_benchmark; }});
}

}  // namespace accelerate::env
