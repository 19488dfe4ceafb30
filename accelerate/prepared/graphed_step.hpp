// SPDX-License-Identifier: Apache-2.0
// A training step that the device records once and replays from then on: the host gives it one command instead of
// hundreds.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/device/graph.hpp"
#include "accelerate/optim/recorded_numbers.hpp"
#include "accelerate/prepared/graph_shelf.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

class OptimizerCore;

/// What runs, records and replays; GraphedStep is its shell.
class GraphedStepCore {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Step = std::function<Tensors(const Tensors&)>;

  /// reads_losses   the host looks at each loss (stop_at_nan_loss)
  GraphedStepCore(std::shared_ptr<Shared> shared, const GraphOptions& options, bool reads_losses);
  ~GraphedStepCore();
  GraphedStepCore(const GraphedStepCore&) = delete;
  GraphedStepCore& operator=(const GraphedStepCore&) = delete;

  Tensors run(const Tensors& inputs, const Step& step);
  [[nodiscard]] std::string why_plain() const;
  [[nodiscard]] int64_t graphs() const { return shelf_.graphs(); }

 private:
  struct Recorded;
  [[nodiscard]] std::string why_not() const;
  [[nodiscard]] uint64_t made_of() const;
  Tensors run_plain(const Tensors& inputs, const Step& step, const std::string& why) const;
  Tensors record(size_t graph, const Tensors& inputs, const Step& step);
  [[nodiscard]] std::string try_to_record(Recorded& recorded, const Tensors& inputs, const Step& step);
  void take_back(const Recorded& recorded);
  Tensors replay(const Recorded& recorded, const Tensors& inputs);
  Tensors give_to_device(const Recorded& recorded);

  std::shared_ptr<Shared> shared_;
  GraphShelf shelf_;
  bool reads_losses_;
  std::string failed_;  ///< why recording was given up
  std::vector<std::unique_ptr<Recorded>> graphs_;
};

/// A whole training step as a function of its inputs. Copies share their graphs.
///
/// The first calls run it as it is (GraphOptions::warmup_steps, for each set of input shapes). The next one is
/// recorded: forward, backward, all-reduce, unscaling, clipping, the optimizers' updates and the loss scale's. From
/// then on the inputs are copied into the recording's own and it is replayed. Where that cannot be (on the CPU, for
/// one) each call runs the step as it is; why_plain() says why, and so does one line of the log where the device is no
/// CPU.
///
/// On several ranks all call it alike, with inputs of the same shapes in the same calls: ranks record together, and one
/// that would record in another call than the rest waits for them until it fails.
///
/// What the function does on the host happens when it runs, not in replays: read batches, move schedules, update
/// averages, log and branch on numbers outside of it. It zeroes the gradients, first or last; none is carried from call
/// to call. Steps and calls in between (evaluation, loading, other rates) may come at any time; what changes the step
/// itself (options but rates, parameters, another optimizer) drops the graphs, and they are recorded anew. Gradients
/// that a replay leaves are the recording's own memory, which the next replay overwrites: clone() those that are kept.
/// A module's mode is not looked at: call it with the modules in training mode, as it was recorded.
template <typename Function>
class GraphedStep {
 public:
  GraphedStep(Function function, std::shared_ptr<GraphedStepCore> core)
      : function_(std::move(function)), core_(std::move(core)) {}

  /// inputs    tensors, of one device for all calls; any number. The host waits until those in pinned memory are read
  /// returns   what the function returns, without its graph of autograd: a tensor, a vector of tensors or nothing; of a
  ///           replay copies, which the next one leaves alone
  template <std::convertible_to<at::Tensor>... Inputs>
  auto operator()(const Inputs&... inputs) {
    using Result = std::invoke_result_t<Function&, const Inputs&...>;
    static_assert(
        std::is_void_v<Result> || std::is_same_v<Result, at::Tensor> || std::is_same_v<Result, std::vector<at::Tensor>>,
        "a graphed step returns a tensor, a std::vector of tensors, or nothing");
    const auto call = [this](const GraphedStepCore::Tensors& list) -> GraphedStepCore::Tensors {
      return call_with(list, std::index_sequence_for<Inputs...>{});
    };
    auto results = core_->run({inputs...}, call);
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      return std::move(results.front());
    } else if constexpr (!std::is_void_v<Result>) {
      return results;
    }
  }

  /// Why it is not replayed; empty: it is, or will be when it is warm.
  [[nodiscard]] std::string why_plain() const { return core_->why_plain(); }
  [[nodiscard]] int64_t graphs() const { return core_->graphs(); }

 private:
  template <size_t... I>
  GraphedStepCore::Tensors call_with(const GraphedStepCore::Tensors& list, std::index_sequence<I...>) {
    using Result = decltype(function_(list[I]...));
    if constexpr (std::is_void_v<Result>) {
      function_(list[I]...);
      return {};
    } else {
      return {function_(list[I]...)};
    }
  }

  Function function_;
  std::shared_ptr<GraphedStepCore> core_;
};

}  // namespace accelerate::prepared
