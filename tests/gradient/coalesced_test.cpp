// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/coalesced.hpp"

#include "support.hpp"

using namespace gradient_testing;
using accelerate::comm::run_threads;
using accelerate::gradient::average_parameters;
using accelerate::gradient::broadcast_tensors;
using accelerate::gradient::BufferBroadcast;

namespace {

// Tensors of many dtypes and shapes filled with `value`.
std::vector<at::Tensor> tensors_of(double value) {
  return {torch::full({3}, value, at::kFloat),
          torch::full({}, value, at::kLong),
          torch::full({5}, value, at::kBFloat16),
          torch::full({0, 4}, value, at::kDouble),
          torch::full({2, 2}, value, at::kDouble),
          torch::full({3}, value > 0, at::kBool),
          torch::full({4, 3}, value, at::kFloat).t(),
          torch::full({7}, value, torch::dtype(at::kFloat).requires_grad(true))};
}

bool all_are(const std::vector<at::Tensor>& tensors, double value) {
  const auto expected = tensors_of(value);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!torch::equal(tensors[i].detach(), expected[i].detach())) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("broadcast_tensors copies root's values of any mix of dtypes, in slices of any size") {
  for (const int64_t cap : {int64_t{1}, int64_t{30}, int64_t{1} << 20}) {
    run_threads(3, [&](const Group& group) {
      for (const int64_t root : {0, 2}) {
        auto tensors = tensors_of(static_cast<double>(group.rank() + 1));
        broadcast_tensors(group, tensors, root, cap);
        CHECK(all_are(tensors, static_cast<double>(root + 1)));
      }
    });
  }
  auto alone = tensors_of(5);
  broadcast_tensors({}, alone);
  CHECK(all_are(alone, 5));
}

TEST_CASE("each call broadcasts rank 0's buffers of all dtypes") {
  run_threads(3, [](const Group& group) {
    torch::nn::BatchNorm1d norm(4);
    std::vector<NamedTensor> buffers;
    for (const auto& item : norm->named_buffers()) buffers.push_back({item.key(), item.value()});
    REQUIRE(buffers.size() == 3);
    BufferBroadcast broadcast(group, buffers);
    CHECK_FALSE(broadcast.empty());
    CHECK(broadcast.tensors().size() == 3);
    for (int step = 1; step <= 3; ++step) {
      norm->forward(numbers({6, 4}, group.rank() + 10 * step, at::kFloat));
      norm->num_batches_tracked.add_(group.rank());
      CHECK_FALSE(bit_equal(group, {norm->running_mean}));
      const at::Tensor mine = norm->running_var.clone();
      broadcast.run();
      CHECK(bit_equal(group, norm->buffers()));
      if (group.rank() == 0) CHECK(torch::equal(mine, norm->running_var));
      CHECK(norm->num_batches_tracked.item<int64_t>() == step);
    }
    norm->running_mean.fill_(static_cast<double>(group.rank()));
    broadcast.run(2);
    CHECK(norm->running_mean[0].item<double>() == 2.0);
  });
}

TEST_CASE("without buffers nothing is sent") {
  BufferBroadcast none(Group(), {});
  CHECK(none.empty());
  none.run();
  run_threads(2, [](const Group& group) {
    BufferBroadcast broadcast(group, {});
    if (group.rank() == 0) broadcast.run();  // would hang if it communicated
    CHECK(broadcast.empty());
  });
}

TEST_CASE("buffers that differ between ranks are refused by name") {
  run_threads(2, [](const Group& group) {
    const std::vector<NamedTensor> buffers{{"mean", torch::zeros({3 + group.rank()})}};
    CHECK_THROWS_WITH_AS(BufferBroadcast(group, buffers),
                         (accelerate::base::prefix(group.place()) +
                          "prepare: buffer 0 of the model is mean [3] Float on rank 0, mean [4] Float on rank 1; build "
                          "the same model on every rank")
                             .c_str(),
                         accelerate::Error);
  });
}

TEST_CASE("average_parameters averages every floating-point tensor and does not change integers") {
  run_threads(4, [](const Group& group) {
    auto tensors = tensors_of(static_cast<double>(group.rank() + 1));
    average_parameters(group, tensors);
    const std::vector<size_t> floating{0, 2, 4, 6, 7};
    for (const size_t i : floating) CHECK(tensors[i].detach().to(at::kDouble).eq(2.5).all().item<bool>());
    CHECK(tensors[1].item<int64_t>() == group.rank() + 1);
  });
}
