// SPDX-License-Identifier: Apache-2.0
// Sharded, tensor, pipeline and context parallel training against one process on the same device: the ranks' GPUs over
// nccl, or the CPU. bench/ranks_on_one_gpu.sh starts it with `--test-suite=SUITE`. Every suite prints a line with its
// largest difference and its device.
#include "tests/testing.hpp"
//
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu_models.hpp"
#include "tests/context_parallel/training.hpp"
#include "tests/pipeline/prepared_training.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/sharding/models.hpp"
#include "tests/tensor_parallel/mesh_training.hpp"
#include "tests/world.hpp"

namespace {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ParallelismConfig;
using accelerate::Precision;
using accelerate::ShardingStrategy;
using accelerate::comm::Group;
using Schedule = accelerate::PipelineSchedule;
using testing::world;

bool on_gpu() { return world().device().has_value(); }

at::Device device() { return world().device().value_or(at::kCPU); }

/// Limit of differences of float64 results. A GPU adds in another order for each shape, so its limit is the one that
/// bench/gpu.sh uses for comparisons with PyTorch.
double tolerance() { return on_gpu() ? 1e-10 : 1e-12; }

/// Checks the difference on each rank, and prints the largest one on rank 0, for bench/ranks_on_one_gpu.sh. Collective.
void print_difference(const std::string& what, double largest) {
  CHECK(largest < tolerance());
  const auto all = world().all_gather(torch::tensor({largest}, at::kDouble));
  if (world().rank() != 0) return;
  fmt::print("{}: the largest difference is {:.1e} on {} ranks, limit {:.0e}, {}\n", what, all.max().item<double>(),
             world().size(), tolerance(), device().str());
  std::fflush(stdout);
}

double difference_of(const std::vector<double>& seen, const std::vector<double>& expected) {
  return pipeline_testing::largest_difference(seen, expected);
}

/// Largest difference of the whole parameters. Collective.
template <typename Split, typename Stock>
double difference_of_whole(const Split& split, const Stock& stock) {
  const auto whole = accelerate::nn::whole_state_dict(*split);
  double largest = 0;
  for (const auto& item : stock->named_parameters()) {
    REQUIRE(whole[item.key()].device() == device());
    largest = std::max(largest, sharding_testing::largest_difference({whole[item.key()]}, {item.value().detach()}));
  }
  return largest;
}

/// Trains on each mesh, and prints the difference of numbers and parameters from those of one process.
template <typename Meshes, typename Expected, typename Make>
void compare_on_meshes(const std::string& suite, const Meshes& meshes, Expected& expected, int64_t epochs,
                       const Make& make) {
  const auto expected_seen = expected.epochs(epochs);
  for (const auto& mesh : meshes) {
    CAPTURE(mesh.text());
    Accelerator accelerator = mesh_testing::on_mesh(world(), mesh, device().str());
    REQUIRE(accelerator.device() == device());
    auto training = make(accelerator);
    const double of_seen = difference_of(training.epochs(epochs), expected_seen);
    accelerator.check_synchronized(std::get<0>(training.objects));
    const auto whole = Accelerator::summon_full_params(std::get<0>(training.objects));
    print_difference(suite + ": " + mesh.text(),
                     std::max(of_seen, difference_of_whole(training.module, expected.module)));
  }
}

}  // namespace

TEST_SUITE_BEGIN("sharded");

namespace {

/// Units of 512 bytes or 30 elements, so that small models have several and parameters are cut. With 4 ranks also 2
/// replicas of 2 ranks.
std::vector<AcceleratorOptions> sharding_options() {
  using enum ShardingStrategy;
  std::vector<AcceleratorOptions> all;
  const auto add = [&](ShardingStrategy strategy, std::optional<int64_t> ranks) {
    all.push_back({.device = device().str(),
                   .sharding = strategy,
                   .fsdp_plugin = {.dp_shard_size = ranks, .min_num_params = 30},
                   .buckets = {.cap_bytes = 512, .first_cap_bytes = 512}});
  };
  for (const auto strategy : {shard_optim_op, shard_grad_op, full_shard}) add(strategy, std::nullopt);
  if (world().size() % 4 == 0) {
    for (const auto strategy : {hybrid_shard, hybrid_shard_zero2}) add(strategy, 2);
  }
  return all;
}

/// 20 steps of AdamW on a part of the rows and on all rows. Returns the largest difference of parameters and buffers.
double train_sharded(Accelerator& accelerator, const sharding_testing::ModelCase& of) {
  const auto options = torch::optim::AdamWOptions(1e-2).weight_decay(1e-2);
  const auto net = of.make(), reference = of.make();
  reference->to(accelerator.device());
  torch::optim::AdamW own(net->parameters(), options), stock(reference->parameters(), options);
  auto [model, optimizer] = accelerator.prepare(net, own);
  for (int64_t step = 0; step < 20; ++step) {
    const auto batch = of.inputs(step).to(accelerator.device());
    const int64_t rows = batch.size(0) / accelerator.num_processes();
    stock.zero_grad();
    sharding_testing::loss_of(reference->forward(batch)).backward();
    stock.step();
    optimizer.zero_grad();
    accelerator.backward(sharding_testing::loss_of(model(batch.narrow(0, accelerator.process_index() * rows, rows))));
    optimizer.step();
  }
  accelerator.check_synchronized(model);
  const auto whole = Accelerator::summon_full_params(model);
  return std::max(sharding_testing::largest_difference(net->parameters(), reference->parameters()),
                  sharding_testing::largest_difference(net->buffers(), reference->buffers()));
}

}  // namespace

TEST_CASE("20 AdamW steps with every strategy are those of one process") {
  for (const AcceleratorOptions& options : sharding_options()) {
    double largest = 0;
    for (const auto& of : sharding_testing::model_cases()) {
      CAPTURE(of.name);
      CAPTURE(strategy_name(*options.sharding));
      Accelerator accelerator(world().duplicate(), options);
      REQUIRE(accelerator.device() == device());
      const double difference = train_sharded(accelerator, of);
      CHECK(difference < tolerance());
      largest = std::max(largest, difference);
    }
    print_difference(fmt::format("sharded: {}", strategy_name(*options.sharding)), largest);
  }
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("gpt2");

namespace {

/// Largest relative differences of the losses, of the gradients' norms and of all updates together. They are between
/// the differences of bf16 from float32, 2e-5, 1.2e-2 and 1.6e-2, and those of a rank that trains on its own sequences
/// only, 3.5e-2, 0.41 and 0.93 (the small model, 2 ranks on the CPU, where full_shard differs by 0, 2e-6 and 0).
constexpr double kLossLimit = 1e-2, kNormLimit = 5e-2, kUpdateLimit = 0.1;

/// Bytes of other tensors that a rank may keep between steps: 12 on the CPU. No GPU has been measured; 1 MiB is 0.3 %
/// of a rank's part on 4 ranks.
int64_t most_small_tensors() { return on_gpu() ? 1 << 20 : 4096; }

/// GPT-2 124M, and on the CPU a small model of the same form.
bench::GpuSizes gpt2_sizes() {
  bench::GpuSizes sizes;
  sizes.gpt2 = {.vocabulary = 50257, .length = 256, .layers = 12, .heads = 12, .width = 768};
  if (!on_gpu()) sizes.gpt2 = {.vocabulary = 512, .length = 64, .layers = 4, .heads = 2, .width = 64};
  sizes.sequences = 4;
  return sizes;
}

/// Bytes of tensors on the device of the ranks, without the rounding of the allocator.
int64_t bytes_of_tensors() {
  if (!on_gpu()) return sharding_testing::CountingAllocator::instance().held;
  torch::cuda::synchronize();
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device().type()));
  REQUIRE(allocator != nullptr);
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device().index()).requested_bytes[all].current;
}

struct Gpt2Run {
  std::vector<double> losses{}, norms{};  ///< of each step: the mean of the ranks, and the norm of all gradients
  std::vector<at::Tensor> initial_parameters{}, parameters{};  ///< on the CPU
  int64_t held = 0;                                            ///< bytes between two steps
  int64_t parameter_bytes = 0;
  int64_t padding_bytes = 0;  ///< the most that alignment adds to the parameters of all ranks
};

/// 20 steps of AdamW in bf16, each on the same sequences, which differ by rank.
Gpt2Run train_gpt2(ShardingStrategy strategy) {
  Accelerator accelerator(world().duplicate(), {.mixed_precision = Precision::bf16,
                                                .device = device().str(),
                                                .sharding = strategy,
                                                .fsdp_plugin = {.transformer_cls_names_to_wrap = {"Block"}}});
  const auto sizes = gpt2_sizes();
  torch::manual_seed(static_cast<uint64_t>(world().rank()) + 2);
  const auto tokens =
      torch::randint(sizes.gpt2.vocabulary, {sizes.sequences, sizes.gpt2.length + 1}).to(accelerator.device());
  const int64_t before = bytes_of_tensors();
  Gpt2Run run;
  auto net = bench::with_weights(bench::LanguageLoss(sizes.gpt2, /*the_fused=*/false));
  for (const auto& parameter : net->parameters()) {
    run.initial_parameters.push_back(parameter.detach().clone());
    run.parameter_bytes += static_cast<int64_t>(parameter.nbytes());
    run.padding_bytes += 64 * (1 + world().size());  // each parameter, and at most as many units
  }
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-4));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int step = 0; step < 20; ++step) {
    const auto loss = model(tokens);
    accelerator.backward(loss);
    run.norms.push_back(accelerator.clip_grad_norm_(model, 1.0).item<double>());
    optimizer.step();
    optimizer.zero_grad();
    run.losses.push_back(accelerator.reduce(loss.detach(), accelerate::comm::ReduceOp::mean).item<double>());
  }
  accelerator.wait_for_everyone();
  run.held = bytes_of_tensors() - before - (on_gpu() ? 0 : run.parameter_bytes);  // without the initial parameters
  const auto whole = Accelerator::summon_full_params(model);
  for (const auto& parameter : net->parameters()) run.parameters.push_back(parameter.detach().cpu().clone());
  return run;
}

double largest_relative_difference(const std::vector<double>& seen, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(seen.at(i) - expected[i]) / expected[i];
    largest = std::max(largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
  }
  return largest;
}

double norm_of_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]).square().sum().item<double>();
  return std::sqrt(sum);
}

/// Returns the largest value of all ranks. Collective.
double largest_of_ranks(double value) {
  return world().all_gather(torch::tensor({value}, at::kDouble)).max().item<double>();
}

}  // namespace

TEST_CASE("GPT-2 in bf16 with full_shard trains like no_shard, and a rank holds its part") {
  std::optional<sharding_testing::CountedMemory> counted;
  if (!on_gpu()) counted.emplace();
  const Gpt2Run whole = train_gpt2(ShardingStrategy::no_shard);  // also allocates the workspaces of cuBLAS
  const Gpt2Run sharded = train_gpt2(ShardingStrategy::full_shard);

  const double of_losses = largest_relative_difference(sharded.losses, whole.losses);
  const double of_norms = largest_relative_difference(sharded.norms, whole.norms);
  const double of_update = norm_of_difference(sharded.parameters, whole.parameters) /
                           norm_of_difference(whole.parameters, whole.initial_parameters);
  CHECK(of_losses < kLossLimit);
  CHECK(of_norms < kNormLimit);
  CHECK(of_update < kUpdateLimit);

  const int64_t ranks = world().size(), states = 3 * whole.parameter_bytes;  // parameters and two states of AdamW
  const int64_t least = states / ranks, most = least + 3 * sharded.padding_bytes / ranks + most_small_tensors();
  CHECK(sharded.held >= least);
  CHECK(sharded.held <= most);
  CHECK(whole.held >= states);

  const double largest[] = {largest_of_ranks(of_losses), largest_of_ranks(of_norms), largest_of_ranks(of_update),
                            largest_of_ranks(static_cast<double>(sharded.held)),
                            largest_of_ranks(static_cast<double>(whole.held))};
  if (world().rank() != 0) return;
  fmt::print(
      "gpt2: full_shard and no_shard on {} ranks, {}: in 20 steps the losses, {:.4f} to {:.4f}, differ by {:.1e} "
      "(limit {:.0e}), the norms, {:.4f} to {:.4f}, by {:.1e} ({:.0e}), and the updates by {:.1e} ({:.0e}) of their "
      "size. "
      "Between steps a rank holds at most {:.0f} bytes; (P + S) / {} is {}, with padding and small tensors at most {}. "
      "With no_shard it holds {:.0f}.\n",
      ranks, device().str(), whole.losses.front(), whole.losses.back(), largest[0], kLossLimit, whole.norms.front(),
      whole.norms.back(), largest[1], kNormLimit, largest[2], kUpdateLimit, largest[3], ranks, least, most, largest[4]);
  std::fflush(stdout);
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("tensor");

TEST_CASE("20 AdamW steps of networks with split layers are those of one process") {
  using namespace tensor_parallel_testing;
  const Group group = world().duplicate();
  const auto on_device = [](auto net) {
    net->to(device());
    return net;
  };
  const auto batch = [](at::IntArrayRef shape, uint64_t step) { return numbers(shape, step).to(device()); };
  const auto ids = [](uint64_t seed) { return tokens({8, 2}, seed, 12).to(device()); };
  {
    auto stock = on_device(seeded([] { return StockConvNet(); }));
    auto split = on_device(seeded([&] { return SplitConvNet(group); }));
    const auto loss = [&](auto& net) {
      return [&](uint64_t step) { return (net(batch({2, 3, 6, 6}, step)) - 0.3).square().mean(); };
    };
    train_both(split, stock, loss(split), loss(stock), tolerance());
    print_difference("tensor: conv net", difference_of_whole(split, stock));
  }
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    auto stock = on_device(seeded([] { return StockGpt(); }));
    auto split = on_device(seeded([&] { return SplitGpt(group, sequence); }));
    const auto loss = [&](auto& net) { return [&](uint64_t step) { return net->loss(ids(step), ids(step + 50)); }; };
    train_both(split, stock, loss(split), loss(stock), tolerance());
    print_difference(sequence ? "tensor: language model, sequence parallel" : "tensor: language model",
                     difference_of_whole(split, stock));
  }
}

TEST_CASE("the loop of one process trains on every mesh of data and tensor parallel ranks like one process") {
  Accelerator one = mesh_testing::alone(device().str());
  auto expected = mesh_testing::reference(one);
  compare_on_meshes("tensor", mesh_testing::meshes(world().size()), expected, 7,
                    [](Accelerator& accelerator) { return mesh_testing::split(accelerator); });
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("pipeline");

namespace {

struct StagedMesh {
  ParallelismConfig sizes{};
  AcceleratorOptions options{};
};

/// Meshes with 1, 2 and 4 stages, and with 2 stages of 2 data parallel ranks also every sharding strategy.
std::vector<StagedMesh> staged_meshes() {
  using enum ShardingStrategy;
  std::vector<StagedMesh> all;
  for (const auto& sizes : pipeline_testing::pipeline_meshes(world().size())) {
    all.push_back({sizes, {.device = device().str(), .sharding = no_shard}});
  }
  if (world().size() % 4 != 0) return all;
  for (const auto sharding : {shard_optim_op, shard_grad_op, full_shard}) {
    all.push_back({{.dp_shard_size = world().size() / 2, .pp_size = 2},
                   {.device = device().str(), .sharding = sharding, .fsdp_plugin = {.min_num_params = 1}}});
  }
  return all;
}

/// 21 AdamW steps, each clipped.
void train_stages(const pipeline_testing::Task& task, const std::string& name,
                  const std::vector<std::pair<Schedule, int64_t>>& schedules) {
  Accelerator one = pipeline_testing::alone({.device = device().str()});
  pipeline_testing::WholeTraining whole(one, task);
  const auto expected = whole.epochs(7);
  for (const StagedMesh& mesh : staged_meshes()) {
    const auto text =
        fmt::format("pipeline: {}, {}, {}", name, mesh.sizes.text(), strategy_name(mesh.options.sharding.value()));
    CAPTURE(text);
    double largest = 0;
    for (const auto& [schedule, stages] : schedules) {
      CAPTURE(schedule_name(schedule));
      Accelerator accelerator = pipeline_testing::on_mesh(world(), mesh.sizes, mesh.options);
      REQUIRE(accelerator.device() == device());
      pipeline_testing::PipelineTraining training(
          accelerator, task, {.schedule = schedule, .micro_batches = 2, .stages_per_rank = stages});
      largest = std::max(largest, difference_of(training.epochs(7), expected));
      accelerator.check_synchronized(std::get<0>(training.objects));
      const auto scope = Accelerator::summon_full_params(std::get<0>(training.objects));
      largest = std::max(largest, pipeline_testing::difference(*training.pipeline, whole.layers));
    }
    print_difference(text, largest);
  }
}

}  // namespace

TEST_CASE("pipelines train on every mesh like one process, with every schedule") {
  train_stages({}, "MLP", {{Schedule::gpipe, 1}, {Schedule::one_forward_one_backward, 1}, {Schedule::interleaved, 2}});
  train_stages(pipeline_testing::tied_task(), "tied transformer", {{Schedule::one_forward_one_backward, 1}});
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("context");

TEST_CASE("a causal transformer trains on every context parallel mesh like one process") {
  using namespace context_parallel_testing;
  Accelerator one = mesh_testing::alone(device().str());
  ContextTraining expected(one);
  compare_on_meshes("context", context_meshes(world().size()), expected, 4,
                    [](Accelerator& accelerator) { return ContextTraining(accelerator); });
}

TEST_SUITE_END();
