// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: a part of the forward keeps only its inputs and runs again in backward.
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
  /// If true, both runs draw the same random numbers (dropout): the states of LibTorch's generators for the CPU and the
  /// inputs' devices are restored for the second run. False saves the copies of these states.
  bool preserve_rng_state = true;
};

/// True while a checkpointed function runs for the second time on this thread, for layers that count their calls.
[[nodiscard]] bool recomputing();

namespace detail {

/// Runs the function again on these inputs and returns its outputs as a list.
using RecomputeCall = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// During its lifetime, checkpoint() on this thread keeps owner alive until the backward of its functions has ended.
class FunctionsOwner {
 public:
  explicit FunctionsOwner(std::shared_ptr<void> owner);
  ~FunctionsOwner();
  FunctionsOwner(const FunctionsOwner&) = delete;
  FunctionsOwner& operator=(const FunctionsOwner&) = delete;

 private:
  std::shared_ptr<void> before_;
};

/// One call of checkpoint(): constructed before the function runs, closed with its result.
class Segment {
 public:
  Segment(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  [[nodiscard]] const std::vector<at::Tensor>& inputs() const;
  /// \param outputs  Replaced by tensors without the function's graph; their backward calls `again`.
  void close(std::vector<at::Tensor>& outputs, RecomputeCall again);

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

/// Calls function(inputs...) without keeping its intermediate results; backward runs it again. Saves the memory of all
/// activations except the outputs, for one more forward of the function.
///
///   auto hidden = accelerate::nn::checkpoint([this](const at::Tensor& x) { return block->forward(x); }, input);
///
/// Gradients reach the inputs and every other tensor that the function uses (parameters, captured results) in the same
/// backward, exactly as without checkpoint(): hooks fire once, the gradient reducer reduces once, and
/// torch::autograd::grad(), second derivatives and nested checkpoints work. Autocast and random numbers are restored.
/// Under autocast a weight is cast at each use, because its cached copy would not exist again. Without gradients
/// (NoGradGuard) it is a plain call.
///
/// \param function  Any callable, including module holders. It is copied and called again in backward, so objects that
///                  it refers to must live until then. It must compute the same result from the same inputs.
/// \param inputs    Any values; tensors in trees (tree/README.md) are kept, other values are copied.
/// \returns the function's result, a tree of tensors; those without gradient are returned unchanged.
/// \throws Error (usage) if the function modifies an input in place. Backward throws if the second run gives other
///         shapes or uses other tensors, or if a leaf that needs a gradient was modified in between; for a modified
///         input it throws LibTorch's own error. Other captured values (frozen weights, masks, results) are not
///         checked: pass them as inputs.
/// \note Side effects are repeated: the running statistics of a stock BatchNorm, not those of our SyncBatchNorm. Ranks
///       as threads share LibTorch's CPU generator, so a mask may differ in the second run there.
template <typename Function, typename... Inputs>
auto checkpoint(const CheckpointOptions& options, Function&& function, Inputs&&... inputs) {
  using Recorded = detail::Call<std::decay_t<Function>, std::decay_t<Inputs>...>;
  using Output = std::remove_cvref_t<decltype(std::declval<Recorded&>()({}))>;
  static_assert(tree::holds_tensors<Output>, "accelerate::nn::checkpoint: the function returns no tensor");
  if (!at::GradMode::is_enabled()) {
    std::decay_t<Function> own(std::forward<Function>(function));  // the operator() of a module holder is not const
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
