// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/uneven_join.hpp"

#include <ATen/ops/zeros.h>

#include <exception>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/gradient/gradient_reducer_core.hpp"

namespace accelerate::gradient {
namespace {

// Operations of model m: its reduction and its buffer broadcast.
int64_t reduction_of(size_t model) { return static_cast<int64_t>(2 * model); }
int64_t broadcast_of(size_t model) { return static_cast<int64_t>(2 * model) + 1; }

constexpr int64_t kNone = -1;

}  // namespace

struct UnevenJoin::RankCoordinator : JoinCoordinator {
  RankCoordinator(const comm::Group& the_group, size_t models, JoinOptions the_options)
      : group(the_group), operations(static_cast<int64_t>(2 * models)), options(the_options) {}

  Answer announce(int64_t operation) override {
    if (!shadowing) exchange(operation);
    return {options.divide_by_all_ranks ? group.size() : active, root};
  }

  // Every rank sends its operation, or kNone without batches. Returns the others' operation, or kNone if none has
  // batches.
  int64_t exchange(int64_t operation) {
    const at::Tensor words = at::zeros({group.size() + operations}, at::kLong);
    auto* word = words.mutable_data_ptr<int64_t>();
    if (operation != kNone) {
      word[group.rank()] = 1;
      word[group.size() + operation] = 1;
    }
    comm::with_operation_context("join_uneven_inputs", "the state of the other ranks is unknown", group.place(),
                                 [&] { group.all_reduce(words); });
    int64_t now_active = 0;
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      now_active += word[rank];
      if (word[rank] != 0) root = rank;
    }
    if (now_active == 0) return kNone;
    active = now_active;
    int64_t next = 0;
    while (word[group.size() + next] == 0) ++next;
    if (word[group.size() + next] != active) differ(word + group.size());
    return next;
  }

  [[noreturn]] void differ(const int64_t* counts) const {
    std::string calls;
    for (int64_t i = 0; i < operations; ++i) {
      if (counts[i] == 0) continue;
      calls += fmt::format("{}{} {} model {}", calls.empty() ? "" : ", ", counts[i],
                           i % 2 == 0 ? "reduce the gradients of" : "broadcast the buffers of", i / 2);
    }
    base::fail(ErrorKind::usage, group.place(), "join_uneven_inputs",
               "of {} ranks that still have batches {}; their steps must be equal", active, calls);
  }

  const comm::Group& group;
  int64_t operations;
  JoinOptions options;
  int64_t active = 0;
  int64_t root = 0;  ///< highest rank that took part in the last announced operation, PyTorch's choice
  bool shadowing = false;
};

UnevenJoin::UnevenJoin(comm::Group group, std::vector<JoinModel> models, JoinOptions options, AtEnd at_end)
    : group_(std::move(group)),
      models_(std::move(models)),
      coordinator_(std::make_unique<RankCoordinator>(group_, models_.size(), options)),
      at_end_(std::move(at_end)),
      exceptions_(std::uncaught_exceptions()) {
  if (group_.size() == 1) return;
  for (const JoinModel& model : models_) {
    if (model.gradient_reducer != nullptr && model.gradient_reducer->core_->join_coordinator != nullptr) {
      base::fail(ErrorKind::usage, group_.place(), "join_uneven_inputs",
                 "a model is in another join_uneven_inputs already; end that one first");
    }
  }
  attach(coordinator_.get());
}

UnevenJoin::~UnevenJoin() {
  if (finished_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    try {
      finish();
    } catch (const std::exception& error) {
      base::log(base::LogLevel::error, group_.place(), "join_uneven_inputs ended with an error: {}", error.what());
    }
  }
  attach(nullptr);
}

void UnevenJoin::attach(JoinCoordinator* coordinator) {
  for (size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].gradient_reducer != nullptr) {
      models_[i].gradient_reducer->core_->join_coordinator = coordinator;
      models_[i].gradient_reducer->core_->join_operation = reduction_of(i);
    }
    if (models_[i].buffers == nullptr) continue;
    models_[i].buffers->join_coordinator_ = coordinator;
    models_[i].buffers->join_operation_ = broadcast_of(i);
  }
}

void UnevenJoin::shadow(int64_t operation) {
  const JoinModel& model = models_[static_cast<size_t>(operation / 2)];
  coordinator_->shadowing = true;
  if (operation % 2 == 0) {
    model.gradient_reducer->zero_all();  // gradients of this rank's last step, which the other ranks have zeroed too
    model.gradient_reducer->join_backward();
    model.gradient_reducer->zero_all();  // gradients of the other ranks' step
  } else {
    model.buffers->run();
  }
  coordinator_->shadowing = false;
}

void UnevenJoin::finish() {
  if (std::exchange(finished_, true) || group_.size() == 1) return;
  try {
    for (int64_t next = coordinator_->exchange(kNone); next != kNone; next = coordinator_->exchange(kNone))
      shadow(next);
  } catch (...) {
    attach(nullptr);
    throw;
  }
  attach(nullptr);
  std::vector<at::Tensor> tensors;
  for (const JoinModel& model : models_) {
    if (model.gradient_reducer != nullptr) {
      for (const ParameterState& state : model.gradient_reducer->core_->states) tensors.push_back(state.parameter);
    }
    if (model.buffers == nullptr) continue;
    for (const at::Tensor& buffer : model.buffers->tensors()) tensors.push_back(buffer);
  }
  comm::with_operation_context("join_uneven_inputs", "the parameters are not made equal at the end", group_.place(),
                               [&] { broadcast_tensors(group_, tensors, coordinator_->root); });
  for (const JoinModel& model : models_) {
    if (model.buffers != nullptr) model.buffers->due_ = false;  // on all ranks, independent of their last forward
  }
  if (at_end_) at_end_(group_, coordinator_->root);
}

}  // namespace accelerate::gradient
