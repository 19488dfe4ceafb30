// SPDX-License-Identifier: Apache-2.0
// Options of connect().
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>

namespace accelerate::comm {

/// How a job's ranks find one another.
struct ConnectOptions {
  /// CPU backend: "mpi" or "gloo". If unset, mpi is used if the ranks were started with MPI's wire-up, otherwise gloo.
  /// "nccl" counts as unset on a rank with a GPU, which always uses NCCL, and is refused without a GPU.
  std::optional<std::string> backend{};
  /// Longest wait for a peer before an operation fails and names it.
  std::chrono::milliseconds timeout = std::chrono::seconds(600);
  /// The GPU of this rank, for nccl; unset: CPU tensors only.
  std::optional<c10::Device> device{};
  /// Compares operation, shape and dtype of every collective across the ranks first.
  bool debug = false;
  /// Makes a real group for a job of one process too (tests: nccl on a machine with one GPU).
  bool force_group = false;
};

}  // namespace accelerate::comm
