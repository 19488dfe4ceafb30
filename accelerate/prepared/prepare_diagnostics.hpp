// SPDX-License-Identifier: Apache-2.0
// Compile-time errors for arguments that prepare() and similar functions do not accept. Each is one message with a
// remedy.
#pragma once

#include <torch/serialize/archive.h>

#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "accelerate/prepared/concepts.hpp"

namespace accelerate::prepared {

template <typename>
inline constexpr bool never = false;

/// Returns the rejected type, so that the rest of the program compiles and no further errors follow. Never called.
template <typename T>
T refused() {
  std::abort();
}

/// For objects that are neither prepared nor a module, optimizer, schedule or loader.
template <typename Object>
constexpr void static_assert_preparable() {
  using Plain = std::remove_cvref_t<Object>;
  if constexpr (std::is_pointer_v<Plain>) {
    static_assert(never<Object>, "prepare() takes no raw pointers: give it *pointer, or a smart pointer");
  } else if constexpr (!Changeable<Object> &&
                       (AnyModule<Plain&> || AnyOptimizer<Plain&> || AnyScheduler<Plain&> || AnyLoader<Plain&>)) {
    static_assert(
        never<Object>,
        "prepare() takes nothing const, because training changes models, optimizers and schedules, and a pass "
        "changes its loader: take the const away");
  } else if constexpr (AnyLoader<Object>) {
    static_assert(never<Object>,
                  "prepare() takes loaders of batches that hold tensors; give the batch's struct tree_members()");
  } else if constexpr (std::invocable<Plain, int64_t>) {
    static_assert(never<Object>,
                  "prepare() takes a schedule as an object: wrap the function, "
                  "accelerate::optim::LambdaLR(optimizer, function)");
  } else {
    static_assert(never<Object>,
                  "prepare() takes a module, an optimizer, a loader or a scheduler (the object, a smart pointer or a "
                  "module holder): keep anything else as it is");
  }
}

/// For a loader with a sampler that already divides the samples among the ranks.
template <typename Object>
constexpr void refuse_distributed_sampler() {
  static_assert(never<Object>,
                "prepare() divides a loader's samples among the ranks, and a DistributedSampler of torch::data has "
                "divided them already: make the loader with torch::data::samplers::RandomSampler or "
                "SequentialSampler");
}

/// Returns true if all arguments are prepared models.
template <typename... Models>
constexpr bool check_prepared() {
  constexpr bool prepared = (is_prepared_model<std::remove_cvref_t<Models>> && ...);
  static_assert(prepared,
                "accumulate(), no_sync() and join_uneven_inputs() take models as prepare() returned them: "
                "auto model = accelerator.prepare(net), then accumulate(model)");
  return prepared;
}

/// torch::save() and torch::load() use these operators. Without them the compiler lists all failed candidates.
template <typename Prepared>
requires AlreadyPrepared<Prepared> torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                                               const Prepared&) {
  static_assert(never<Prepared>,
                "torch::save() takes the object that was given to prepare(): torch::save(model.unwrap(), file), "
                "torch::save(*optimizer, file), on the main process");
  return archive;
}
template <typename Prepared>
requires AlreadyPrepared<Prepared> torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                                              const Prepared&) {
  static_assert(never<Prepared>,
                "torch::load() takes the object that was given to prepare(): auto module = model.unwrap(), then "
                "torch::load(module, file); torch::load(*optimizer, file)");
  return archive;
}

}  // namespace accelerate::prepared
