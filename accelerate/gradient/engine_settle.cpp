// SPDX-License-Identifier: Apache-2.0
// What a reduction needs to know from the other ranks, and what gradients are when it is over.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "accelerate/gradient/engine_core.hpp"
#include "accelerate/gradient/sparse.hpp"

namespace accelerate::gradient {

// One exchange says what the first reduction needs: per slot how many ranks have a dense and how many a sparse
// gradient, the axes of the sparse ones, and rank 0's order of arrival.
void Engine::Core::learn_layout() {
  const auto n = static_cast<int64_t>(slots.size());
  const at::Tensor report = at::zeros({4, n}, at::kLong);
  auto facts = report.accessor<int64_t, 2>();
  for (int64_t i = 0; i < n; ++i) {
    const Slot& slot = slots[static_cast<size_t>(i)];
    if (!slot.used()) continue;
    const bool is_sparse = slot.gradient().is_sparse();
    facts[is_sparse ? 1 : 0][i] = 1;
    if (is_sparse) facts[2][i] = slot.gradient().sparse_dim();
  }
  if (group.rank() == 0) {
    std::vector<bool> listed(slots.size());
    for (const int64_t i : order_) listed[static_cast<size_t>(i)] = true;
    // What did not arrive: backward meets the last registered first.
    for (int64_t i = n - 1; i >= 0; --i) {
      if (!listed[static_cast<size_t>(i)]) order_.push_back(i);
    }
    for (int64_t at = 0; at < n; ++at) facts[3][at] = order_[static_cast<size_t>(at)];
  }
  group.all_reduce(report);

  std::vector<BucketItem> items;
  std::vector<int64_t> dense;
  for (int64_t i = 0; i < n; ++i) {
    Slot& slot = slots[static_cast<size_t>(i)];
    slot.uses = facts[0][i] + facts[1][i];
    if (facts[0][i] == 0 && facts[1][i] > 0) slot.sparse_dim = facts[2][i] / facts[1][i];
    items.push_back({static_cast<int64_t>(slot.parameter.nbytes()), bucket_key(slot.parameter)});
  }
  for (int64_t at = 0; at < n; ++at) {
    if (slots[static_cast<size_t>(facts[3][at])].sparse_dim == 0) dense.push_back(facts[3][at]);
  }
  plan = plan_buckets(items, dense, options.buckets, group.place());
  buckets = lay_out(slots, plan, options.static_graph ? 0 : n);
}

void Engine::Core::write_counts(const at::Tensor& counts) {
  if (std::all_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.contributes; })) {
    counts.fill_(1);
    return;
  }
  const at::Tensor mine = at::empty({counts.numel()}, at::kFloat);
  auto* out = mine.mutable_data_ptr<float>();
  for (const Slot& slot : slots) *out++ = slot.contributes ? 1.0F : 0.0F;
  counts.copy_(mine);
}

// Makes the host wait for the device, so only ranks that left something unused come here.
void Engine::Core::read_counts() {
  const at::Tensor sums = buckets.back().counts.to(at::kCPU, at::kFloat);
  const auto* sum = sums.const_data_ptr<float>();
  for (Slot& slot : slots) slot.uses = static_cast<int64_t>(*sum++);
}

void Engine::Core::settle_unused() {
  const auto is_unused = [](const Slot& slot) { return !slot.contributes; };
  if (std::none_of(slots.begin(), slots.end(), is_unused)) return;
  if (!options.static_graph) read_counts();
  for (Slot& slot : slots) {
    if (slot.contributes || slot.sparse_dim > 0) continue;
    if (slot.uses > 0) {
      slot.gradient() = slot.view;
      slot.blank = false;
    } else {
      slot.gradient().reset();
    }
  }
}

void Engine::Core::settle_sparse(double factor) {
  for (Slot& slot : slots) {
    if (slot.sparse_dim == 0) continue;
    at::Tensor& gradient = slot.gradient();
    const at::Tensor mean =
        reduce_sparse(group, slot.contributes ? gradient : at::Tensor(), slot.parameter, slot.sparse_dim, factor);
    gradient = slot.contributes || slot.uses > 0 ? mean : at::Tensor();
  }
}

// A rank that joins without a graph of its own says nothing about the graph.
void Engine::Core::check_static_graph() const {
  if (!touched) return;
  for (const Slot& slot : slots) {
    if (slot.uses != 0 && slot.uses != group.size()) {
      base::fail(ErrorKind::usage, group.place(), "backward",
                 "static_graph is set, but parameter {} was used on {} of {} ranks in the first reduction; leave "
                 "static_graph off",
                 slot.name, slot.uses, group.size());
    }
    if (slot.contributes != (slot.uses > 0)) {
      base::fail(
          ErrorKind::usage, group.place(), "backward",
          "static_graph is set, but parameter {} was {} in the first reduction and is {} now; leave static_graph "
          "off",
          slot.name, slot.uses > 0 ? "used" : "unused", slot.contributes ? "used" : "unused");
    }
  }
}

void Engine::Core::reset() {
  active_ = false;
  touched = false;
  graph_task_ = -1;
  next_ = 0;
  order_.clear();
  for (FlatBucket& bucket : buckets) bucket.pending = static_cast<int64_t>(bucket.members.size());
  for (Slot& slot : slots) {
    slot.arrived = false;
    slot.contributes = false;
    if (slot.sparse_dim > 0) ++buckets.back().pending;
  }
}

const Slot* Engine::Core::unreduced() const {
  for (const Slot& slot : slots) {
    if ((slot.local || broken_off) && slot.used()) return &slot;
  }
  return nullptr;
}

void Engine::Core::before_step() {
  complete();
  const Slot* slot = local_allowed ? nullptr : unreduced();
  if (slot != nullptr && broken_off) {
    base::fail(ErrorKind::usage, group.place(), "optimizer.step",
               "the reduction of the gradients broke off with an error, so they differ between the {} ranks; zero them "
               "before the next backward",
               group.size());
  }
  if (slot != nullptr) {
    base::fail(
        ErrorKind::usage, group.place(), "optimizer.step",
        "the gradient of parameter {} is this rank's own, not the mean of {} ranks: it is from before prepare(), "
        "or no_sync was open at the last model(x) before its backward (model->forward(x) does not count); run "
        "one synchronised backward before the step",
        slot->name, group.size());
  }
}

void Engine::Core::zero(Slot& slot) {
  slot.local = false;
  slot.gradient().reset();
}

void Engine::Core::zero_in_place(Slot& slot) {
  if (!slot.used()) return zero(slot);
  slot.local = false;
  at::Tensor& gradient = slot.gradient();
  if (slot.view.defined()) {
    slot.view.zero_();
    slot.blank = false;
    gradient = slot.view;
  } else {
    gradient = gradient.detach();
    gradient.zero_();
  }
}

void Engine::Core::forgive() {
  broken_off = broken_off && std::any_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.used(); });
}

void Engine::Core::zero_all() {
  complete();
  broken_off = false;
  for (Slot& slot : slots) zero(slot);
}

std::vector<at::Tensor> Engine::Core::gradients() {
  complete();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (Slot& slot : slots) {
    at::Tensor& gradient = slot.gradient();
    if (slot.view.defined()) {
      // What user code dropped or replaced must show in the bucket.
      slot.used() ? slot.attach() : slot.blank_out();
    } else if (gradient.defined() && gradient.is_sparse()) {
      gradient = gradient.coalesce();
      all.push_back(gradient._values());
    } else if (gradient.defined()) {
      all.push_back(gradient);
    }
  }
  for (const FlatBucket& bucket : buckets) {
    if (bucket.gradients.numel() > 0) all.push_back(bucket.gradients);
  }
  return all;
}

}  // namespace accelerate::gradient
