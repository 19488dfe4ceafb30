// SPDX-License-Identifier: Apache-2.0
// bench_parallel tensor|pipeline MODEL: a training step of a model with split layers, or in pipeline stages. Weights
// and batch are those of peers/parallel.py.
#include <accelerate/accelerate.hpp>
#include <accelerate/tensor_parallel/attention.hpp>
#include <accelerate/tensor_parallel/cross_entropy.hpp>
#include <accelerate/tensor_parallel/embedding.hpp>
#include <accelerate/tensor_parallel/linear.hpp>
#include <accelerate/tensor_parallel/whole_state.hpp>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

using accelerate::Accelerator;
using accelerate::comm::Group;
namespace nn = accelerate::nn;

/// Trains one batch and returns the loss, undefined on ranks without it.
using Step = std::function<torch::Tensor()>;

struct Sizes {
  int64_t layers = 4, width = 128, vocabulary = 256, sequences = 8;
  int64_t heads = 4, length = 128;
};

/// bench::Block with split layers, for activations [T, B, C].
struct SplitBlockImpl : torch::nn::Module {
  SplitBlockImpl(const Sizes& sizes, const Group& group)
      : norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        attention(register_module("attention", nn::ParallelMultiheadAttention(sizes.width, sizes.heads, group))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        wide(register_module("wide", nn::ColumnParallelLinear(sizes.width, 4 * sizes.width, group))),
        narrow(register_module("narrow", nn::RowParallelLinear(4 * sizes.width, sizes.width, group))) {}
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& later) {
    const auto y = norm1(x);
    x = x + attention(y, y, y, torch::Tensor(), later);
    return x + narrow(torch::gelu(wide(norm2(x)), "tanh"));
  }
  torch::nn::LayerNorm norm1;
  nn::ParallelMultiheadAttention attention;
  torch::nn::LayerNorm norm2;
  nn::ColumnParallelLinear wide;
  nn::RowParallelLinear narrow;
};
TORCH_MODULE(SplitBlock);

/// bench::Transformer with split layers; the output layer's weight is the embedding's.
struct SplitTransformerImpl : torch::nn::Module {
  SplitTransformerImpl(const Sizes& sizes, const Group& group)
      : token(register_module("token", nn::VocabParallelEmbedding(sizes.vocabulary, sizes.width, group))),
        position(register_module("position", torch::nn::Embedding(sizes.length, sizes.width))),
        later(torch::ones({sizes.length, sizes.length}, torch::kBool).triu(1)) {
    for (int64_t i = 0; i < sizes.layers; ++i) {
      blocks.push_back(register_module(fmt::format("block{}", i), SplitBlock(sizes, group)));
    }
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})));
  }
  /// \param tokens  [T, B]. \returns the input of the output layer, [T, B, C].
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = token(tokens) + position->weight.unsqueeze(1);
    for (auto& block : blocks) x = block(x, later);
    return norm(x);
  }
  nn::VocabParallelEmbedding token;
  torch::nn::Embedding position;
  torch::Tensor later;  // [T, T], true above the diagonal
  std::vector<SplitBlock> blocks;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(SplitTransformer);

Step tensor_parallel_step(const std::string& model, const Group& group) {
  if (model != "transformer-128" && model != "transformer-384") {
    throw std::invalid_argument("bench_parallel: there is no split model '" + model + "'");
  }
  const Sizes sizes =
      model == "transformer-128" ? Sizes{} : Sizes{.layers = 8, .width = 384, .vocabulary = 1000, .sequences = 2};
  const auto text = torch::randint(sizes.vocabulary, {sizes.sequences, sizes.length + 1}).t();
  const auto x = text.narrow(0, 0, sizes.length).contiguous(), y = text.narrow(0, 1, sizes.length).contiguous();
  SplitTransformer net(sizes, group);
  auto whole = nn::whole_state_dict(*net);
  bench::draw_weights(whole, 0.02);
  nn::load_whole_state_dict(*net, whole);
  // The group of this rank alone: all ranks read the same batch.
  auto accelerator = std::make_shared<Accelerator>(Group(), accelerate::AcceleratorOptions{.cpu = true});
  auto [prepared, optimizer] =
      accelerator->prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-5));
  return [=, prepared = prepared, optimizer = optimizer]() mutable {
    optimizer.zero_grad();
    const auto loss = nn::vocab_parallel_linear_cross_entropy(prepared(x), net->token->weight, y, group);
    accelerator->backward(loss);
    optimizer.step();
    return loss.detach();
  };
}

struct PipelineModel {
  torch::nn::Sequential layers;
  torch::Tensor x, y;
  double deviation = 0.02;
};

/// Models of two equal stages. The batch is drawn first, because layers draw initial values.
PipelineModel pipeline_model(const std::string& model) {
  PipelineModel result;
  if (model == "mlp") {
    constexpr int64_t width = 512;
    result.x = torch::randn({64, width});
    result.y = torch::randn({64, width});
    result.deviation = std::sqrt(2.0 / width);
    for (int64_t i = 0; i < 8; ++i) {
      result.layers->push_back(torch::nn::Linear(width, width));
      result.layers->push_back(torch::nn::ReLU());
    }
  } else if (model == "blocks") {
    constexpr int64_t width = 256;
    result.x = torch::randn({8, 128, width});
    result.y = torch::randn({8, 128, width});
    for (int64_t i = 0; i < 8; ++i) result.layers->push_back(bench::Block(width, 4, /*fused_bias=*/true));
  } else {
    throw std::invalid_argument("bench_parallel: there is no pipeline model '" + model + "'");
  }
  auto weights = result.layers->named_parameters();
  bench::draw_weights(weights, result.deviation);
  return result;
}

constexpr int64_t kMicroBatches = 8;

torch::Tensor squared_error(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target);
}

/// The pipeline over the ranks, and the work of one rank without transfers and without waits.
struct PipelineSteps {
  PipelineSteps(const std::string& model, const Group& group) : group_(group) {
    PipelineModel whole = pipeline_model(model);
    x_ = whole.x;
    y_ = whole.y;
    const auto half = static_cast<int64_t>(whole.layers->size()) / 2;
    torch::nn::Sequential stage;
    const torch::nn::Sequential others = pipeline_model(model).layers;
    for (int64_t i = 0; i < half; ++i) stage->push_back(*std::next(others->begin(), i));
    alone = std::make_shared<nn::Pipeline>(std::vector<torch::Device>{torch::kCPU}, std::move(stage),
                                           accelerate::PipelineOptions{.micro_batches = kMicroBatches});
    pipeline = std::make_shared<nn::Pipeline>(
        group, std::move(whole.layers),
        accelerate::PipelineOptions{
            .micro_batches = kMicroBatches, .layers_per_stage = {half, half}, .broadcast_loss = false});
    Accelerator accelerator(Group(), {.cpu = true});
    optimizer_ = std::make_shared<accelerate::AnyOptimizer>(
        accelerator.prepare(std::make_shared<torch::optim::AdamW>(pipeline->parameters(), 1e-5)));
  }

  torch::Tensor step() {
    optimizer_->zero_grad();
    const auto loss = pipeline->train_step(x_, y_, squared_error);
    optimizer_->step();
    return loss;
  }
  /// Share of the time of forward and backward in which a rank waits: 1 - (time of its own work) / (time over ranks).
  double bubble(int64_t iterations) {
    group_.barrier();
    const double work = bench::seconds_per_step(iterations, [this] { alone->train_step(x_, y_, squared_error); });
    group_.barrier();
    return 1 - work / bench::seconds_per_step(iterations, [this] { pipeline->train_step(x_, y_, squared_error); });
  }
  [[nodiscard]] double planned_bubble() const { return accelerate::pipeline::bubble_share(pipeline->plan()); }

  std::shared_ptr<nn::Pipeline> pipeline, alone;

 private:
  Group group_;
  torch::Tensor x_, y_;
  std::shared_ptr<accelerate::AnyOptimizer> optimizer_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "tensor", model = argc > 2 ? argv[2] : "transformer-128";
  const Accelerator accelerator({.cpu = true});
  const Group group = accelerator.group();
  torch::manual_seed(100);  // the same batch on all ranks
  std::shared_ptr<PipelineSteps> pipeline;
  if (kind == "pipeline") pipeline = std::make_shared<PipelineSteps>(model, group);
  const Step step = pipeline ? [pipeline] { return pipeline->step(); } : tensor_parallel_step(model, group);
  std::vector<bench::Case> cases{bench::timed("step", [&step] { step(); })};
  for (int i = 1; i <= 3; ++i) {
    const auto own = step();
    const auto loss = own.defined() ? own.to(torch::kFloat64) : torch::zeros({}, torch::kFloat64);
    group.all_reduce(loss, pipeline ? accelerate::comm::ReduceOp::sum : accelerate::comm::ReduceOp::mean);
    cases.push_back({"loss-" + std::to_string(i), [loss](int64_t) { return loss.item<double>(); }});
  }
  if (pipeline) {
    cases.push_back({"bubble", [pipeline](int64_t iterations) { return pipeline->bubble(iterations); }});
    cases.push_back({"planned-bubble", [pipeline](int64_t) { return pipeline->planned_bubble(); }});
  }
  return bench::serve(accelerator.process_index(),
                      fmt::format("{}, {} {}, AdamW", bench::about(accelerator), kind, model), cases);
}
