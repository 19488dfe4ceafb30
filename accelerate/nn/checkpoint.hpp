// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: a part of the forward that keeps its inputs only and runs again in backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/tree/tree.hpp"

namespace accelerate::nn {

struct CheckpointOptions {
  /// Random numbers are drawn alike in both runs (dropout): LibTorch's generators of the CPU and of the inputs' devices
  /// are set back for the second. False saves the copies of their states.
  bool preserve_rng_state = true;
};

/// A checkpointed function runs for the second time, on this thread. A layer that counts its calls can look here.
[[nodiscard]] bool recomputing();

namespace detail {

/// The function again, on these inputs; its outputs as a list.
using Again = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// While it lives checkpoint() on this thread keeps owner, which its functions refer to, until their backward is over.
class FunctionsOwner {
 public:
  explicit FunctionsOwner(std::shared_ptr<void> owner);
  ~FunctionsOwner();
  FunctionsOwner(const FunctionsOwner&) = delete;
  FunctionsOwner& operator=(const FunctionsOwner&) = delete;

 private:
  std::shared_ptr<void> before_;
};

/// One call of checkpoint(): opened before the function runs, closed with what it returned.
class Segment {
 public:
  Segment(const CheckpointOptions& options, std::vector<at::Tensor> inputs);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  [[nodiscard]] const std::vector<at::Tensor>& inputs() const;
  /// outputs   replaced by tensors without the function's graph, whose backward runs `again`
  void close(std::vector<at::Tensor>& outputs, Again again);

 private:
  void check_inputs() const;

  struct State;
  std::unique_ptr<State> state_;
};

template <typename Function, typename... Inputs>
struct Call {
  Function function;
  std::tuple<Inputs...> inputs;

  auto operator()([[maybe_unused]] const std::vector<at::Tensor>& tensors) {
    auto given = [&] {
      if constexpr (tree::holds_tensors<std::tuple<Inputs...>>) {
        return tree::rebuild(inputs, std::span(tensors));
      } else {
        return inputs;
      }
    }();
    return std::apply(function, given);
  }
  [[nodiscard]] std::vector<at::Tensor> tensors() const {
    if constexpr (tree::holds_tensors<std::tuple<Inputs...>>) {
      return tree::flatten(inputs);
    } else {
      return {};
    }
  }
};

}  // namespace detail

/// function(inputs...), whose intermediate results are not kept: backward runs it again. Trades one more forward of the
/// function for the memory of all its activations but the outputs.
///
///   auto hidden = accelerate::nn::checkpoint([this](const at::Tensor& x) { return block->forward(x); }, input);
///
/// function   any callable, module holders included; it is copied and called again in backward, so what it refers to
///            must live until then. It must compute the same from the same inputs.
/// inputs     anything; the tensors in trees of them (tree/README.md) are kept, the rest is copied
/// returns    the function's result, a tree of tensors; those that need no gradient are as the function gave them
///
/// Gradients reach the inputs and every other tensor that the function uses (parameters, captured results) in the one
/// backward that runs, exactly as without checkpoint(): hooks fire once, a gradient engine reduces once, and
/// torch::autograd::grad(), second derivatives and checkpoints within checkpoints work. Autocast and random numbers are
/// as they were; under autocast a weight is cast at each use, since its cached copy would not be there again.
/// Without gradients (NoGradGuard) it is the plain call.
///
/// What the function changes is changed twice: a stock BatchNorm's running statistics, not those of our SyncBatchNorm.
/// Ranks that are threads share LibTorch's CPU generator, so there a mask may differ in the second run.
/// Throws Error (usage) where it changes an input in place. Backward does where the second run gave other shapes or
/// used other tensors, or where a leaf that needs a gradient was changed in between; LibTorch's own error for an input
/// that was. Of what else the function captures (frozen weights, masks, results) nothing is watched: give it as an
/// input.
template <typename Function, typename... Inputs>
auto checkpoint(const CheckpointOptions& options, Function&& function, Inputs&&... inputs) {
  using Recorded = detail::Call<std::decay_t<Function>, std::decay_t<Inputs>...>;
  using Output = std::remove_cvref_t<decltype(std::declval<Recorded&>()({}))>;
  static_assert(tree::holds_tensors<Output>, "accelerate::nn::checkpoint: the function returns no tensor");
  if (!at::GradMode::is_enabled()) {
    std::decay_t<Function> own(std::forward<Function>(function));  // a holder's operator() is not const
    return Output(std::invoke(own, inputs...));
  }
  auto call = std::make_shared<Recorded>(
      Recorded{std::forward<Function>(function), std::tuple<std::decay_t<Inputs>...>(std::forward<Inputs>(inputs)...)});
  detail::Segment segment(options, call->tensors());
  const Output output = (*call)(segment.inputs());
  std::vector<at::Tensor> tensors = tree::flatten(output);
  segment.close(tensors, [call](const std::vector<at::Tensor>& again) { return tree::flatten((*call)(again)); });
  return Output(tree::rebuild(output, std::span<const at::Tensor>(tensors)));
}

template <typename Function, typename... Inputs>
auto checkpoint(Function&& function,
                Inputs&&... inputs) requires(!std::is_same_v<std::remove_cvref_t<Function>, CheckpointOptions>) {
  return checkpoint(CheckpointOptions{}, std::forward<Function>(function), std::forward<Inputs>(inputs)...);
}

}  // namespace accelerate::nn
