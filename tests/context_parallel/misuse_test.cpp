// SPDX-License-Identifier: Apache-2.0
// Refusals of context parallelism, with their texts.
#include "tests/context_parallel/training.hpp"
//
#include "accelerate/trainer/trainer.hpp"

using namespace context_parallel_testing;
using accelerate::comm::run_threads;

namespace {

struct SequenceTrainer : accelerate::Trainer<torch::nn::LinearImpl> {
  using Trainer::Trainer;
  LossAndOutputs compute_loss(Model& /*model*/, const Inputs& /*inputs*/) override { return {}; }
};

}  // namespace

TEST_CASE("a sequence that cannot be divided into chunks is refused with both numbers") {
  run_threads(2, [](const Group& group) {
    CHECK(
        refused([&] {
          std::ignore = split_sequence(group, torch::ones({3, 10}), 1);
        }) ==
        "split_sequence: dimension 1 of the tensor [3, 10] has 10 tokens, must be divisible by 4, because each of the "
        "2 ranks has 2 chunks; pad the sequence to 12 tokens");
    CHECK(refused([&] { std::ignore = split_sequence(group, torch::ones({4}), -2); }) ==
          "split_sequence: the tensor is [4], it has no dimension -2");
    CHECK(refused([&] { std::ignore = merge_sequence(group, torch::ones({4}), 1); }) ==
          "merge_sequence: the tensor is [4], it has no dimension 1");
    CHECK(refused([&] {
            std::ignore = merge_sequence(group, torch::ones({2, 5}), 1);
          }) ==
          "merge_sequence: the tensor is [2, 5] with 5 tokens in dimension 1, must have an even number, because a rank "
          "has 2 chunks of the sequence; split the sequence with context_parallel_split()");
  });
}

TEST_CASE("attention refuses tensors that do not fit together before any collective") {
  run_threads(2, [](const Group& group) {
    const auto text = [&](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          bool is_causal = false) {
      return refused(
          [&] { std::ignore = context_parallel_attention(group, query, key, value, {.is_causal = is_causal}); });
    };
    const at::Tensor x = torch::ones({2, 4, 6, 8});
    CHECK(text(x.flatten(0, 1), x, x) ==
          "context_parallel_attention: query is [8, 6, 8], must be [batch, heads, own tokens, head size]");
    CHECK(text(x, x, torch::ones({2, 4, 4, 8})) ==
          "context_parallel_attention: key is [2, 4, 6, 8] and value [2, 4, 4, 8]; only the head size may differ");
    CHECK(text(x, torch::ones({2, 4, 6, 4}), x) ==
          "context_parallel_attention: query is [2, 4, 6, 8] and key [2, 4, 6, 4]; batch and head size must be equal");
    const at::Tensor three = torch::ones({2, 3, 6, 8});
    CHECK(text(x, three, three) ==
          "context_parallel_attention: query has 4 heads, must be divisible by the 3 heads of key");
    CHECK(text(torch::ones({2, 4, 4, 8}), x, x, true) ==
          "context_parallel_attention: query has 4 tokens and key 6; with is_causal they must be equal");
    CHECK(text(x, x, x.to(at::kDouble)) ==
          "context_parallel_attention: query is Float, key Float and value Double; the dtypes must be equal");
    const at::Tensor odd = torch::ones({2, 4, 5, 8});
    CHECK(text(odd, odd, odd) ==
          "context_parallel_attention: key is [2, 4, 5, 8] with 5 tokens in dimension 2, must have an even number, "
          "because a rank has 2 chunks of the sequence; split the sequence with context_parallel_split()");
  });
}

TEST_CASE("combinations that context parallelism does not support are refused") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.cp_size = 2}}});
    torch::nn::Linear module(2, 3);
    const auto model = accelerator.prepare(module);
    CHECK(refused([&] { std::ignore = accelerator.local_sgd(model, 2); }) ==
          "local_sgd: cp_size is 2, and ranks with parts of one sequence must not step on different parameters; set "
          "cp_size to 1, or use accumulate()");
  });
  accelerate::simulate(2, [] {
    accelerate::TrainerParts parts;
    parts.accelerator = {.cpu = true, .parallelism_config = {{.cp_size = 2}}};
    CHECK(refused([&] { const SequenceTrainer trainer(std::make_shared<torch::nn::LinearImpl>(2, 3), {}, parts); }) ==
          "Trainer: cp_size is 2, and Trainer does not divide sequences; set cp_size to 1, or write a loop with "
          "context_parallel_split()");
  });
}
