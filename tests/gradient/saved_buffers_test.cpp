// SPDX-License-Identifier: Apache-2.0
// Buffers that a graph saved, if a later forward sets them to rank 0's values before the backward.
#include <limits>

#include "accelerate/gradient/coalesced.hpp"
#include "support.hpp"

using namespace gradient_testing;
using accelerate::comm::run_threads;
using accelerate::gradient::BufferBroadcast;

namespace {

constexpr const char* kChangedInPlace = "modified by an inplace operation";

at::Tensor filled_with(double value) { return torch::full({3}, value, at::kDouble); }
at::Tensor leaf_of_ones() { return torch::ones({3}, torch::dtype(at::kDouble).requires_grad(true)); }

}  // namespace

TEST_CASE("a graph with a saved buffer throws in backward only if the broadcast changed the buffer") {
  run_threads(3, [](const Group& group) {
    const at::Tensor scale = filled_with(0);
    BufferBroadcast buffers(group, {{"scale", scale}});
    const at::Tensor w = leaf_of_ones();
    buffers.before_forward(true);
    scale.fill_(static_cast<double>(group.rank() + 1));
    const at::Tensor first = (w * scale).sum();
    buffers.before_forward(true);
    const at::Tensor second = (w * scale).sum();
    if (group.rank() == 0) {
      first.backward();
    } else {
      CHECK_THROWS_WITH(first.backward(), doctest::Contains(kChangedInPlace));
      CHECK(scale[0].item<double>() == 1);
    }
    w.mutable_grad().reset();
    second.backward();
    CHECK(w.grad()[0].item<double>() == 1);
  });
}

TEST_CASE("a buffer that only rank 0 changed makes graphs of the other ranks throw") {
  run_threads(2, [](const Group& group) {
    const at::Tensor scale = filled_with(1);
    BufferBroadcast buffers(group, {{"scale", scale}});
    const at::Tensor w = leaf_of_ones();
    buffers.before_forward(true);
    const at::Tensor loss = (w * scale).sum();
    if (group.rank() == 0) scale.add_(1);
    buffers.before_forward(true);
    CHECK_THROWS_WITH(loss.backward(), doctest::Contains(kChangedInPlace));
  });
}

TEST_CASE("constant buffers may be used by several forwards before one backward, NaN and any layout included") {
  run_threads(2, [](const Group& group) {
    const at::Tensor table = filled_with(2);
    const at::Tensor turned = torch::arange(6, at::kDouble).view({2, 3}).t();
    const at::Tensor repeated = torch::full({1, 3}, 4.0, at::kDouble).expand({5, 3});
    const at::Tensor none = torch::zeros({0, 3}, at::kDouble);
    const at::Tensor odd = torch::tensor({std::numeric_limits<double>::quiet_NaN(), -0.0, 1.0}, at::kDouble);
    BufferBroadcast buffers(
        group, {{"table", table}, {"turned", turned}, {"repeated", repeated}, {"none", none}, {"odd", odd}});
    const at::Tensor w = leaf_of_ones();
    at::Tensor loss = torch::zeros({}, at::kDouble);
    for (int forward = 0; forward < 3; ++forward) {
      buffers.before_forward(true);
      loss = loss + (w * table).sum() + (turned * w[0]).sum() + (repeated * w).sum() + (none * w).sum() + (odd * w)[2];
    }
    loss.backward();
    CHECK(w.grad()[2].item<double>() == 3 * (2 + 5 * 4 + 1));
    CHECK(w.grad()[1].item<double>() == 3 * (2 + 5 * 4));
  });
}

TEST_CASE("batch normalisation statistics that differ per rank keep graphs of training forwards usable") {
  run_threads(2, [](const Group& group) {
    auto norm = built([] { return torch::nn::BatchNorm1d(4); });
    norm->to(torch::kDouble);
    std::vector<NamedTensor> named_buffers;
    for (const auto& item : norm->named_buffers()) named_buffers.push_back({item.key(), item.value()});
    BufferBroadcast buffers(group, named_buffers);
    for (int step = 0; step < 3; ++step) {
      buffers.before_forward(true);
      const at::Tensor first = norm->forward(batch(group.rank(), 2 * step));
      buffers.before_forward(true);
      CHECK(bit_equal(group, {norm->running_mean, norm->running_var, norm->num_batches_tracked}));
      const at::Tensor second = norm->forward(batch(group.rank(), 2 * step + 1));
      (first.pow(3).sum() - second.pow(2).sum()).backward();
      norm->zero_grad();
      norm->running_mean.mul_(0.5);  // as loading does: a write with a new version before the next forward
    }
  });
}

TEST_CASE("a graph of an evaluation forward throws if the broadcast changes its saved statistics") {
  run_threads(3, [](const Group& group) {
    auto norm = built([] { return torch::nn::BatchNorm1d(4); });
    norm->to(torch::kDouble);
    std::vector<NamedTensor> named_buffers;
    for (const auto& item : norm->named_buffers()) named_buffers.push_back({"body.0." + item.key(), item.value()});
    BufferBroadcast buffers(group, named_buffers);
    buffers.before_forward(false);
    norm->forward(batch(group.rank(), 0));  // each rank has its own statistics from here on
    norm->eval();
    buffers.before_forward(true);
    const at::Tensor evaluated = norm->forward(batch(group.rank(), 1)).pow(2).sum();
    norm->train();
    buffers.before_forward(true);
    const at::Tensor trained = norm->forward(batch(group.rank(), 2)).pow(2).sum();
    if (group.rank() == 0) {
      evaluated.backward();
    } else {
      CHECK_THROWS_WITH(evaluated.backward(), doctest::Contains(kChangedInPlace));
    }
    norm->zero_grad();
    buffers.before_forward(true);
    norm->eval();
    const at::Tensor of_equal = norm->forward(batch(group.rank(), 3)).pow(2).sum();
    buffers.before_forward(true);  // the statistics keep their values
    (trained + of_equal).backward();
    CHECK(norm->weight.grad().defined());
  });
}

TEST_CASE("a buffer with a statistic's name that user code writes in forward is no exception") {
  run_threads(2, [](const Group& group) {
    const at::Tensor running_var = filled_with(1);
    BufferBroadcast buffers(group, {{"scaler.running_var", running_var}});
    const at::Tensor w = leaf_of_ones();
    buffers.before_forward(true);
    running_var.mul_(0.5).add_(static_cast<double>(group.rank()));
    const at::Tensor loss = (w * running_var).sum();
    buffers.before_forward(true);
    if (group.rank() == 0) {
      loss.backward();
    } else {
      CHECK_THROWS_WITH(loss.backward(), doctest::Contains(kChangedInPlace));
    }
  });
}

TEST_CASE("averaging or broadcasting parameters makes graphs that saved them throw") {
  for (const bool averages : {true, false}) {
    run_threads(2, [&](const Group& group) {
      const at::Tensor w = leaf_of_ones();
      const at::Tensor x = leaf_of_ones();
      const at::Tensor loss = (w * x).sum();
      if (averages) {
        accelerate::gradient::average_parameters(group, {w});
      } else {
        accelerate::gradient::broadcast_tensors(group, {w}, 1);
      }
      if (averages || group.rank() == 0) {
        CHECK_THROWS_WITH(loss.backward(), doctest::Contains(kChangedInPlace));
      } else {
        loss.backward();
      }
    });
  }
}
