// SPDX-License-Identifier: Apache-2.0
// The command line of accelerate_launch.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/env/settings.hpp"
#include "launch/plan/error.hpp"

namespace accelerate::launch {

/// What the user asked for; unset means "not given".
struct LaunchOptions {
  env::GivenSettings settings{};           ///< what the ranks are told
  std::optional<int64_t> num_processes{};  ///< 1 to 4096; unset: one per visible GPU, one on the CPU, without GPUs or
                                           ///< on a device by number
  std::optional<int64_t> main_process_port{};
  std::optional<std::chrono::milliseconds> grace_time{};  ///< between SIGTERM and SIGKILL; unset: 5 s
  std::vector<std::string> command{};                     ///< program and its arguments

  bool operator==(const LaunchOptions&) const = default;
};

/// The ranks train on the CPU although GPUs are there.
bool on_cpu(const LaunchOptions& options);

/// A backend is asked for that carries no tensors of the CPU.
bool needs_gpus(const LaunchOptions& options);

/// Either options to act on, or a text to print on stdout (--help, --version).
struct Parsed {
  LaunchOptions options;
  std::optional<std::string> print{};
};

/// arguments   without the program's name. Everything from the first word that is no option belongs to the program.
/// Throws LaunchError (2) for an unknown option, a value out of range or a missing program.
Parsed parse(const std::vector<std::string>& arguments);

}  // namespace accelerate::launch
