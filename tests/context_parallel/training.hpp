// SPDX-License-Identifier: Apache-2.0
// A small causal transformer, and its training by one process and on meshes with context parallelism.
#pragma once

#include "tests/tensor_parallel/support.hpp"
//
#include <utility>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/context_parallel/attention.hpp"
#include "accelerate/context_parallel/sequence.hpp"
#include "tests/tensor_parallel/mesh_training.hpp"

namespace context_parallel_testing {

using namespace mesh_testing;

constexpr int64_t kTokens = 24, kVocabulary = 12, kWidth = 8, kHeads = 4;

/// The groups of a model; one rank each in one process.
struct ModelGroups {
  Group context{}, tensor{};
};

inline ModelGroups groups_of(const Accelerator& accelerator) {
  return {accelerator.context_parallel_group(), accelerator.tensor_parallel_group()};
}

/// A causal block with the input [batch, tokens, width]. The projections of attention have no bias, because the
/// gradient of a key's bias is rounding noise, which Adam amplifies.
struct CausalBlockImpl : torch::nn::Module {
  explicit CausalBlockImpl(const ModelGroups& groups) : context(groups.context) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    project = register_module(
        "project", ColumnParallelLinear(ColumnParallelLinearOptions(kWidth, 3 * kWidth).bias(false), groups.tensor));
    out = register_module("out", RowParallelLinear(kWidth, kWidth, groups.tensor));
    last_norm = register_module("last_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up = register_module("up", ColumnParallelLinear(kWidth, 2 * kWidth, groups.tensor));
    down = register_module("down", RowParallelLinear(2 * kWidth, kWidth, groups.tensor));
    to(at::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    // [batch, tokens, heads of this rank, query-key-value, features], so that columns are whole heads
    const auto heads = project(norm(x)).unflatten(2, {-1, 3, kWidth / kHeads}).transpose(1, 2).unbind(3);
    const at::Tensor y = context_parallel_attention(context, heads[0], heads[1], heads[2], {.is_causal = true});
    x = x + out(y.transpose(1, 2).flatten(2));
    return x + down(torch::gelu(up(last_norm(x))));
  }
  Group context;
  torch::nn::LayerNorm norm{nullptr}, last_norm{nullptr};
  ColumnParallelLinear project{nullptr}, up{nullptr};
  RowParallelLinear out{nullptr}, down{nullptr};
};
TORCH_MODULE(CausalBlock);

struct CausalGptImpl : torch::nn::Module {
  explicit CausalGptImpl(const ModelGroups& groups) {
    for (int i = 0; i < 2; ++i) blocks->push_back(CausalBlock(groups));
    to(at::kDouble);
  }
  /// Returns the loss of each token, [batch, tokens].
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& positions, const at::Tensor& targets) {
    at::Tensor x = embed(ids) + place(positions);
    for (const auto& block : *blocks) x = block->as<CausalBlockImpl>()->forward(x);
    const at::Tensor logits = torch::linear(x, embed->weight);
    return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten(), {}, at::Reduction::None).view_as(targets);
  }
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(kVocabulary, kWidth));
  torch::nn::Embedding place = register_module("place", torch::nn::Embedding(kTokens, kWidth));
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
};
TORCH_MODULE(CausalGpt);

/// Sequences and their next tokens. Targets of padding are -100, and not equally many in both halves of a sequence.
inline accelerate::data::Loader sequences(int64_t batch_size, int64_t count = 20, bool padded = false) {
  const at::Tensor all = tokens({count, kTokens + 1}, 5, kVocabulary);
  at::Tensor targets = all.slice(1, 1).clone();
  if (padded) {
    for (int64_t row = 0; row < count; ++row) targets[row].slice(0, kTokens - row % 7) = -100;
  }
  return accelerate::data::from_tensors(all.slice(1, 0, kTokens).contiguous(), targets,
                                        {.batch_size = batch_size, .shuffle = true, .seed = 7});
}

/// Meshes with context parallelism and every sharding strategy, and at most two data parallel ranks.
inline std::vector<Mesh> context_meshes(int64_t ranks) {
  using enum ShardingStrategy;
  std::vector<Mesh> all;
  for (int64_t context = 1; context <= ranks; ++context) {
    const int64_t data = ranks / context;
    if (data * context != ranks || data > 2) continue;
    all.push_back({{.dp_replicate_size = data, .cp_size = context}});
    if (context == 1) continue;
    for (const auto sharding : {shard_optim_op, shard_grad_op, full_shard}) {
      all.push_back({{.dp_shard_size = data, .cp_size = context}, sharding});
    }
    // Two replicas, each divided over the ranks of a context parallel group.
    if (data > 1) all.push_back({{.dp_replicate_size = data, .cp_size = context}, full_shard});
  }
  return all;
}

/// Prepared model, optimizer and loader of one rank. The total batch size is 4 on every mesh.
struct ContextTraining {
  explicit ContextTraining(Accelerator& the_accelerator, uint64_t seed = 11, bool padded = false)
      : accelerator(the_accelerator),
        module(seeded([&] { return CausalGpt(groups_of(accelerator)); }, seed)),
        stock_optimizer(module->parameters(), torch::optim::AdamWOptions(1e-2)),
        objects(accelerator.prepare(module, stock_optimizer,
                                    sequences(4 / accelerator.parallelism_config().data_parallel_size(), 20, padded))) {
  }

  /// Returns the norms before clipping and the losses of all samples of each of five steps.
  std::vector<double> epochs(int64_t count) {
    auto& [model, optimizer, loader] = objects;
    const Group& group = accelerator.context_parallel_group();
    const at::Tensor positions = accelerator.context_parallel_split(torch::arange(kTokens, accelerator.device()), 0);
    std::vector<double> seen;
    for (int64_t epoch = 0; epoch < count; ++epoch) {
      for (auto& batch : loader) {
        const auto [ids, targets] = accelerator.context_parallel_split(batch, 1);
        optimizer.zero_grad();
        const at::Tensor losses = model(ids, positions, targets);
        accelerator.backward(losses.mean());
        seen.push_back(accelerator.clip_grad_norm_(model, 0.5).template item<double>());
        optimizer.step();
        const at::Tensor of_samples = merge_sequence(group, losses.detach(), 1).mean(1);
        seen.push_back(accelerator.gather_for_metrics(of_samples).sum().template item<double>());
      }
    }
    return seen;
  }

  void check_same_state(const CausalGpt& stock, double tolerance = 1e-12) {
    const auto whole = Accelerator::summon_full_params(std::get<0>(objects));
    tensor_parallel_testing::check_same_state(module, stock, tolerance);
  }

  Accelerator& accelerator;
  CausalGpt module;
  torch::optim::AdamW stock_optimizer;
  using Prepared = decltype(std::declval<Accelerator&>().prepare(std::declval<CausalGpt&>(),
                                                                 std::declval<torch::optim::AdamW&>(), sequences(1)));
  Prepared objects;
};

}  // namespace context_parallel_testing
