// SPDX-License-Identifier: Apache-2.0
// A training step that is captured once as a device graph and then replayed: one host call instead of hundreds.
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
#include "accelerate/optim/captured_scalars.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/graph_cache.hpp"

namespace accelerate::prepared {

class OptimizerCore;

/// Runs, captures and replays steps for GraphedStep.
class GraphedStepCore {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Step = std::function<Tensors(const Tensors&)>;

  /// \param reads_losses  Whether the host reads each loss (stop_at_nan_loss).
  GraphedStepCore(std::shared_ptr<AcceleratorState> shared, const GraphOptions& options, bool reads_losses);
  ~GraphedStepCore();
  GraphedStepCore(const GraphedStepCore&) = delete;
  GraphedStepCore& operator=(const GraphedStepCore&) = delete;

  Tensors run(const Tensors& inputs, const Step& step);
  [[nodiscard]] std::string not_captured_reason() const;
  [[nodiscard]] int64_t graphs() const { return graph_cache_.graphs(); }

 private:
  struct Recorded;
  [[nodiscard]] std::string plain_run_reason() const;
  [[nodiscard]] uint64_t made_of() const;
  Tensors run_plain(const Tensors& inputs, const Step& step, const std::string& reason) const;
  Tensors record(size_t graph, const Tensors& inputs, const Step& step);
  [[nodiscard]] std::string try_capture(Recorded& recorded, const Tensors& inputs, const Step& step);
  void take_back(const Recorded& recorded);
  Tensors replay(const Recorded& recorded, const Tensors& inputs);
  Tensors upload_scalars(const Recorded& recorded);

  std::shared_ptr<AcceleratorState> accelerator_state_;
  GraphCache graph_cache_;
  bool reads_losses_;
  std::string failed_;  ///< reason why capture was abandoned
  std::vector<std::unique_ptr<Recorded>> graphs_;
};

/// A whole training step as a function of its inputs. Copies share their graphs.
///
/// For each set of input shapes, the first calls (GraphOptions::warmup_steps) run eagerly. The next call captures
/// forward, backward, all-reduce, unscaling, clipping, and the updates of the optimizers and the loss scale. Later
/// calls copy their inputs into the captured ones and replay the graph. If capture is impossible, for example on the
/// CPU, every call runs eagerly. not_captured_reason() returns the reason, which is also logged once unless the device
/// is a CPU.
///
/// All ranks must call it with inputs of the same shapes in the same calls. Ranks capture together: a rank that
/// captures in another call waits for the others until it times out.
///
/// Host code in the function runs only in eager and captured calls, not in replays. Read batches, step schedulers,
/// update averages, log and branch on numbers outside of it. The function must zero the gradients, first or last; no
/// gradient is carried over between calls. Between calls, other steps, evaluation, loading and new learning rates are
/// allowed. A change of the step itself (other options, parameters, another optimizer) drops the graphs, and the step
/// is captured again. Gradients after a replay are in memory of the graph, which the next replay overwrites: clone()
/// those that you keep. The training mode of modules is not checked: call it in the mode in which it was captured. Not
/// thread-safe: use it on the thread of its Accelerator.
template <typename Function>
class GraphedStep {
 public:
  GraphedStep(Function function, std::shared_ptr<GraphedStepCore> core)
      : function_(std::move(function)), core_(std::move(core)) {}

  /// \param inputs  Any number of tensors on one device, the same device in all calls. The host waits until inputs in
  /// pinned memory are read.
  /// \returns the function's result without its autograd graph: a tensor, a vector of tensors or nothing. A replay
  /// returns copies, which later replays do not change.
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

  /// Reason why the step is not replayed; empty if it is, or will be after the warm-up.
  [[nodiscard]] std::string not_captured_reason() const { return core_->not_captured_reason(); }
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
