// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loss_count.hpp"

#include <ATen/ops/full.h>

#include <array>
#include <string_view>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/guards.hpp"

namespace accelerate::prepared {
namespace {

std::string_view loss_unit_name(LossUnit unit) {
  constexpr std::array<std::string_view, 4> names{"nothing", "means", "samples", "tokens"};
  return names.at(static_cast<size_t>(unit));
}

struct Sum {
  LossUnit unit;
  int64_t over;
};

Sum checked(const LossCount& count, const RankContext& place) {
  if (count.samples && count.tokens) {
    base::fail(ErrorKind::usage, place, "backward", "the loss is a sum over {} samples and {} tokens; give one of them",
               *count.samples, *count.tokens);
  }
  if (!count.samples && !count.tokens) {
    base::fail(ErrorKind::usage, place, "backward",
               "the loss has a count without samples or tokens; give one of them, or no count where it is a mean");
  }
  const Sum sum = count.samples ? Sum{LossUnit::samples, *count.samples} : Sum{LossUnit::tokens, *count.tokens};
  if (sum.over < 0) {
    base::fail(ErrorKind::usage, place, "backward", "the loss is a sum over {} {}, must be at least 0", sum.over,
               loss_unit_name(sum.unit));
  }
  return sum;
}

// Sums are divided at the end of a window. no_sync(), local SGD and ranks that ran out of inputs have no such end.
void refuse_outside_windows(AcceleratorState& shared, const LossCount& count) {
  const Sum sum = checked(count, shared.place);
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.in_no_sync()) {
      base::fail(
          ErrorKind::usage, shared.place, "backward",
          "the loss is a sum over {} {}, to be divided at the end of a window; no_sync() and local SGD have none, "
          "use accumulate()",
          sum.over, loss_unit_name(sum.unit));
    }
    if (model.gradient_reducer() != nullptr && model.gradient_reducer()->joining()) {
      base::fail(ErrorKind::usage, shared.place, "backward",
                 "the loss is a sum over {} {}, to be divided by what all ranks count, and those that have left "
                 "join_uneven_inputs() do not; take losses that are means",
                 sum.over, loss_unit_name(sum.unit));
    }
  }
}

int64_t total_over_ranks(const AcceleratorState& shared) {
  const int64_t mine = shared.window.count.total();
  if (shared.group.size() == 1) return mine;
  const auto total = at::full({1}, mine, at::kLong);
  comm::with_operation_context("backward", "the losses' counts are not added up", shared.place,
                               [&] { shared.group.all_reduce(total); });
  return total.item<int64_t>();
}

}  // namespace

void WindowCount::begin_micro_batch(bool of_new_window, bool of_several) {
  strict_ = of_several;
  counted_ = false;
  if (!of_new_window) return;
  unit_ = LossUnit::none;
  divided();
}

void WindowCount::take(LossUnit unit, const RankContext& place) {
  if (strict_ && unit_ != LossUnit::none && unit_ != unit) {
    base::fail(
        ErrorKind::usage, place, "backward",
        "this loss counts {}, the others of its accumulation window {}; count all losses of a window in one unit",
        loss_unit_name(unit), loss_unit_name(unit_));
  }
  unit_ = unit;
}

void WindowCount::add(const LossCount& count, const RankContext& place) {
  const auto [unit, over] = checked(count, place);
  take(unit, place);
  if (strict_ && counted_) {
    base::fail(
        ErrorKind::usage, place, "backward",
        "a second loss of this micro-batch is a sum, over {} {}, the window's count is {}; add the losses up and "
        "call backward once",
        over, loss_unit_name(unit_), total_);
  }
  counted_ = true;
  total_ += over;
  ++undivided_;
}

double weight_of_sum(AcceleratorState& shared, const LossCount& count) {
  WindowCount& window = shared.window.count;
  refuse_outside_windows(shared, count);
  if (shared.capturing) {
    const Sum sum = checked(count, shared.place);
    base::fail(ErrorKind::usage, shared.place, "backward",
               "the loss is a sum over {} {} in a captured step, and replays would divide by the same number; take "
               "losses that are means",
               sum.over, loss_unit_name(sum.unit));
  }
  window.add(count, shared.place);
  if (!shared.window.ends) return 1.0;
  const int64_t total = total_over_ranks(shared);
  const bool gathered = window.undivided() > 1;
  window.divided();
  if (total == 0) {
    base::log_once(base::LogLevel::warning, shared.place,
                   "backward: the losses of a whole window are sums over 0 {} on all ranks; its gradients are set to 0",
                   loss_unit_name(window.unit()));
  }
  // The gradient reducers divide by the world size.
  const double weight = total == 0 ? 0.0 : static_cast<double>(shared.group.size()) / static_cast<double>(total);
  if (gathered) scale_gradients(shared.registry, weight);
  return weight;
}

double weight_of_mean(AcceleratorState& shared) {
  shared.window.count.add_mean(shared.place);
  return shared.window.scale / static_cast<double>(shared.window.options.steps);
}

void check_divided(const AcceleratorState& shared) {
  const WindowCount& window = shared.window.count;
  if (window.undivided() == 0) return;
  base::fail(
      ErrorKind::usage, shared.place, "optimizer.step",
      "the gradients are sums over {} {} of {} micro-batches, not yet divided: the window's last backward did not "
      "run; run it in every micro-batch",
      window.total(), loss_unit_name(window.unit()), window.undivided());
}

}  // namespace accelerate::prepared
