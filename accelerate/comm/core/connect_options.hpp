// SPDX-License-Identifier: Apache-2.0
// Options of connect().
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>

namespace accelerate::comm {

/// Options for connecting the ranks of a job.
struct ConnectOptions {
  /// CPU backend: "mpi" or "gloo". If unset, mpi is used if the ranks were started with MPI's wire-up, otherwise gloo.
  /// "nccl" counts as unset on a rank with a GPU, which always uses NCCL, and is refused without a GPU.
  std::optional<std::string> backend{};
  /// Time limit of an operation; the error then names the missing ranks.
  std::chrono::milliseconds timeout = std::chrono::seconds(600);
  /// GPU of this rank, for nccl. If unset, the group supports CPU tensors only.
  std::optional<c10::Device> device{};
  /// If true, operation, shape and dtype of every collective are compared across the ranks before it runs.
  bool debug = false;
  /// If true, a job of one process gets a connected group too (for tests of nccl on a machine with one GPU).
  bool force_group = false;
};

}  // namespace accelerate::comm
