// SPDX-License-Identifier: Apache-2.0
// Steps that the device captures and replays. docs/design/stand_in.md describes its graphs and the differences from
// CUDA's.
#include "accelerate/device/graph.hpp"

#include <c10/core/StreamGuard.h>
#include <unistd.h>

#include <filesystem>
#include <type_traits>

#include "accelerate/base/remove_tree.hpp"
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::Precision;
using accelerate::ShardingStrategy;
using stand_in::Tensors;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr accelerate::GraphOptions kWarmAtOnce{.warmup_steps = 2, .max_graphs = 2};

AcceleratorOptions with_sharding(ShardingStrategy strategy) {
  return {.fsdp_plugin = {.sharding_strategy = strategy, .min_num_params = 20}};
}

/// A temporary folder.
struct CheckpointOfGraphs {
  ~CheckpointOfGraphs() { accelerate::base::remove_tree(path); }
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("accelerate-stand-in-graphs-{}", ::getpid());
};

/// Uses only operators with equal autocast lists on every device: the CPU's lists differ in softmax, losses and norms.
struct PlainNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) { return last(torch::relu(hidden(images.flatten(1)))); }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(36, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 5));
};
TORCH_MODULE(PlainNet);

/// The second head is used only on request.
struct TwoHeadsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images, bool both) {
    const auto features = torch::relu(hidden(images.flatten(1)));
    return both ? first(features) + second(features) : first(features);
  }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(36, 16));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(16, 5));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 5));
};
TORCH_MODULE(TwoHeads);

/// Runs the plain step on the CPU, and a graph on the device.
template <typename Step>
void check_graphs(const Accelerator& accelerator, const Step& step, int64_t graphs) {
  if (accelerator.device().is_cpu()) {
    CHECK(step.not_captured_reason() == "the CPU has no graphs");
    CHECK(step.graphs() == 0);
  } else {
    CHECK(step.not_captured_reason() == "");
    CHECK(step.graphs() == graphs);
  }
}

/// Runs eight steps; the rate is halved after each of the first four. \param between  Called before the step of that
/// number.
template <typename Optimizer, typename Net = stand_in::SmallNet, typename Options>
auto trains_graphed(const Options& of_optimizer,
                    const std::function<void(Accelerator&, Net&, Optimizer&, int64_t)>& between = {}) {
  return [=](Accelerator& accelerator) -> Tensors {
    stand_in::Job<Net, Optimizer> job(accelerator, of_optimizer, 24 * accelerator.num_processes());
    auto& [model, optimizer, loader] = job.prepared;
    accelerate::optim::LambdaLR falling(
        job.stock, [](int64_t steps) { return std::pow(0.5, static_cast<double>(std::min<int64_t>(steps, 4))); });
    auto scheduler = accelerator.prepare(falling);
    auto step = accelerator.graphed_step(
        [&, &model = model, &optimizer = optimizer](const at::Tensor& images, const at::Tensor& labels) {
          optimizer.zero_grad();
          const auto loss = stand_in::loss_of(model(images), labels);
          accelerator.backward(loss);
          accelerator.clip_grad_norm_(model, 0.5);
          optimizer.step();
          return loss;
        },
        kWarmAtOnce);
    Tensors losses;
    int64_t steps = 0;
    for (auto& [images, labels] : loader) {
      if (between) between(accelerator, job.net, job.stock, ++steps);
      losses.push_back(step(images, labels));
      scheduler.step();
    }
    check_graphs(accelerator, step, 1);
    Tensors all = stand_in::state_of(model);
    all.insert(all.end(), losses.begin(), losses.end());  // kept losses: no replay overwrote them
    return all;
  };
}

/// Runs eight steps in fp16, of which four overflow. The last results are flags, step counts, scale and rate.
template <typename Optimizer, typename State, typename Options>
auto overflows_now_and_then(const Options& of_optimizer) {
  return [=](Accelerator& accelerator) -> Tensors {
    stand_in::Job<PlainNet, Optimizer> job(accelerator, of_optimizer, 24 * accelerator.num_processes());
    auto& [model, optimizer, loader] = job.prepared;
    accelerate::optim::LambdaLR falling(job.stock,
                                        [](int64_t steps) { return std::pow(0.5, static_cast<double>(steps)); });
    auto scheduler = accelerator.prepare(falling);
    auto step = accelerator.graphed_step(
        [&, &model = model, &optimizer = optimizer](const at::Tensor& images, const at::Tensor& labels) {
          accelerator.backward(stand_in::loss_of(model(images), labels));
          const auto norm = accelerator.clip_grad_norm_(model, 0.5);
          optimizer.step();
          optimizer.zero_grad();
          return norm;
        },
        kWarmAtOnce);
    std::vector<double> seen;
    int64_t steps = 0;
    for (auto& [images, labels] : loader) {
      const bool overflows = ++steps == 2 || steps == 5 || steps == 6 || steps == 8;
      step(overflows ? images * kInfinity : images, labels);
      scheduler.step();
      if (steps % 3 == 0) seen.push_back(optimizer.step_was_skipped() ? 1.0 : 0.0);
    }
    check_graphs(accelerator, step, 1);
    std::ignore = &optimizer.state();  // its counts are those of the steps that were not skipped
    for (const auto& parameter : model->parameters()) {
      auto& state = *job.stock.state().at(parameter.unsafeGetTensorImpl());
      seen.push_back(static_cast<double>(static_cast<State&>(state).step()));
    }
    seen.insert(seen.end(), {accelerator.loss_scale(), scheduler.get_last_lr().at(0)});
    Tensors all = stand_in::state_of(model);
    all.push_back(torch::tensor(seen));
    return all;
  };
}

/// As same_as_on_cpu(), for results that are not bit-identical.
void close_to_cpu(const std::function<Tensors(Accelerator&)>& body, AcceleratorOptions options, double tolerance) {
  options.device = "cpu";
  const auto expected = stand_in::results(1, body, options).front();
  options.device = stand_in::device_name();
  stand_in::at_every_pace(
      [&] {
        const auto found = stand_in::results(1, body, options).front();
        REQUIRE(found.size() == expected.size());
        for (size_t i = 0; i < expected.size(); ++i) CHECK(at::allclose(found[i], expected[i], 0, tolerance));
      },
      500);
}

/// Runs four steps of a function that cannot be captured; the results must still be correct. Returns the reason.
template <typename Make>
std::string runs_plain(const Make& make, AcceleratorOptions options = {}, int64_t ranks = 1) {
  std::string reason;
  const auto body = [&](Accelerator& accelerator) -> Tensors {
    stand_in::Job<PlainNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(0.015625),
                                                     12 * accelerator.num_processes());
    auto& [model, optimizer, loader] = job.prepared;
    auto step = accelerator.graphed_step(make(accelerator, model, optimizer), kWarmAtOnce);
    for (auto& [images, labels] : loader) step(images, labels);
    if (!accelerator.device().is_cpu() && accelerator.is_main_process()) reason = step.not_captured_reason();
    CHECK((step.graphs() == 0 && !step.not_captured_reason().empty()));
    return stand_in::state_of(model);
  };
  stand_in::same_as_on_cpu(body, options, {ranks}, 200);
  return reason;
}

/// A step with an additional part.
template <typename More>
auto step_and(const More& more) {
  return [=](Accelerator& accelerator, auto& model, auto& optimizer) {
    return [=, &accelerator, &model, &optimizer](const at::Tensor& images, const at::Tensor& labels) {
      optimizer.zero_grad();
      auto loss = stand_in::loss_of(model(images), labels);
      more(accelerator, loss);
      accelerator.backward(loss);
      optimizer.step();
      return loss;
    };
  };
}

const auto nothing = [](Accelerator&, at::Tensor&) {};

}  // namespace

TEST_CASE("a captured step has the plain step's bits: optimizers, clipping, a schedule, 1 and 2 ranks") {
  using namespace torch::optim;  // NOLINT
  const auto options = stand_in::with_small_buckets();
  stand_in::same_as_on_cpu(trains_graphed<SGD>(SGDOptions(0.125).momentum(0.5).weight_decay(0.25)), options);
  stand_in::same_as_on_cpu(trains_graphed<AdamW>(AdamWOptions(0.015625)), options);
  stand_in::same_as_on_cpu(trains_graphed<Adam>(AdamOptions(0.015625).amsgrad(true)), options, {1});
  stand_in::same_as_on_cpu(trains_graphed<Adagrad>(AdagradOptions(0.0625)), options, {1});
}

TEST_CASE("a captured step with shard_optim_op exchanges the parameters in each replay, with the plain step's bits") {
  using namespace torch::optim;  // NOLINT
  stand_in::same_as_on_cpu(trains_graphed<SGD>(SGDOptions(0.125).momentum(0.5).weight_decay(0.25)),
                           with_sharding(ShardingStrategy::shard_optim_op), {1, 2, 3});
  stand_in::same_as_on_cpu(trains_graphed<AdamW>(AdamWOptions(0.015625)),
                           with_sharding(ShardingStrategy::shard_optim_op));
}

TEST_CASE("evaluation and a plain step between replays see and change the values of shard_optim_op") {
  const auto between = [](Accelerator& accelerator, stand_in::SmallNet& net, torch::optim::AdamW&, int64_t step) {
    if (step != 5 && step != 7) return;
    const torch::NoGradGuard no_grad;
    const auto x = stand_in::small_data(3).first.to(accelerator.device());
    net->eval();
    CHECK(net->forward(x).isfinite().all().item<bool>());  // operators wait for nothing after a replay
    net->train();
    if (step == 7) net->last->weight.mul_(0.5);
  };
  stand_in::same_as_on_cpu(
      trains_graphed<torch::optim::AdamW, stand_in::SmallNet>(torch::optim::AdamWOptions(0.015625), {between}),
      with_sharding(ShardingStrategy::shard_optim_op));
}

TEST_CASE("a step with parts of parameters is not captured, with a reason, and runs without capture") {
  for (const auto strategy : {ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard}) {
    CAPTURE(strategy_name(strategy));
    const auto body = [&](Accelerator& accelerator) -> Tensors {
      stand_in::Job<PlainNet> job(accelerator, stand_in::kMomentum);
      auto& [model, optimizer, loader] = job.prepared;
      auto step = accelerator.graphed_step(
          [&, &model = model, &optimizer = optimizer](const at::Tensor& images, const at::Tensor& labels) {
            optimizer.zero_grad();
            const auto loss = stand_in::loss_of(model(images), labels);
            accelerator.backward(loss);
            optimizer.step();
            return loss;
          },
          kWarmAtOnce);
      Tensors losses;
      for (auto& [images, labels] : loader) losses.push_back(step(images, labels));
      CHECK(step.graphs() == 0);
      CHECK(step.not_captured_reason() ==
            (accelerator.device().is_cpu()
                 ? "the CPU has no graphs"
                 : fmt::format("with sharding {} the host decides when the ranks gather", strategy_name(strategy))));
      return losses;
    };
    stand_in::same_as_on_cpu(body, with_sharding(strategy), {2}, 200);
  }
}

TEST_CASE("fp16 in a captured step skips overflows: parameters, scale, rate and flag as on the CPU") {
  using namespace torch::optim;  // NOLINT
  stand_in::same_as_on_cpu(overflows_now_and_then<AdamW, AdamWParamState>(AdamWOptions(0.015625)),
                           stand_in::with_precision(Precision::fp16));
}

TEST_CASE("a captured RMSprop has the plain numbers to rounding, with its rate and skipped steps") {
  using namespace torch::optim;  // NOLINT
  for (const bool more : {false, true}) {
    const auto of_optimizer =
        RMSpropOptions(0.03125).eps(0.0625).momentum(more ? 0.5 : 0).centered(more).weight_decay(more ? 0.25 : 0);
    close_to_cpu(trains_graphed<RMSprop>(of_optimizer), stand_in::with_small_buckets(), 1e-5);
    close_to_cpu(overflows_now_and_then<RMSprop, RMSpropParamState>(of_optimizer),
                 stand_in::with_precision(Precision::fp16), 1e-2);
  }
}

TEST_CASE("with bfloat16 parameters a captured step updates float32 masters, loaded ones too") {
  auto options = stand_in::with_small_buckets();
  options.precision_policy = accelerate::precision::pure_bf16();
  const auto load = [](Accelerator&, PlainNet& net, torch::optim::SGD&, int64_t step) {
    const torch::NoGradGuard no_grad;
    if (step == 6) net->parameters()[0].fill_(0.5);
  };
  stand_in::same_as_on_cpu(
      trains_graphed<torch::optim::SGD, PlainNet>(torch::optim::SGDOptions(0.125).momentum(0.5), {load}), options);
}

TEST_CASE("evaluation, a plain step and reading the state between replays have no effect") {
  const auto between = [](Accelerator& accelerator, stand_in::SmallNet& net, torch::optim::AdamW& stock, int64_t step) {
    const auto x = stand_in::small_data(3).first.to(accelerator.device());
    if (step == 5) {
      const torch::NoGradGuard no_grad;
      net->eval();
      net->forward(x);
      net->train();
    }
    if (step == 6) {
      auto [model, optimizer] = accelerator.prepare(net, stock);
      optimizer.zero_grad();
      accelerator.backward(model(x).square().mean());
      optimizer.step();
      std::ignore = &optimizer.state();
    }
  };
  stand_in::same_as_on_cpu(
      trains_graphed<torch::optim::AdamW>(
          torch::optim::AdamWOptions(0.015625),
          std::function<void(Accelerator&, stand_in::SmallNet&, torch::optim::AdamW&, int64_t)>(between)),
      stand_in::with_small_buckets());
}

TEST_CASE("leftover gradients are not part of a captured step") {
  stand_in::same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<PlainNet> job(accelerator, torch::optim::SGDOptions(0.125).momentum(0.5), 24);
        auto& [model, optimizer, loader] = job.prepared;
        auto step = accelerator.graphed_step(
            [&, &model = model, &optimizer = optimizer](const at::Tensor& images, const at::Tensor& labels) {
              accelerator.backward(stand_in::loss_of(model(images), labels));
              optimizer.step();
              optimizer.zero_grad();
            },
            kWarmAtOnce);
        int64_t steps = 0;
        for (auto& [images, labels] : loader) {
          const bool records = ++steps == kWarmAtOnce.warmup_steps + 1 && !accelerator.device().is_cpu();
          if (records) accelerator.backward(stand_in::loss_of(model(images), labels));
          step(images, labels);
        }
        check_graphs(accelerator, step, 1);
        return stand_in::state_of(model);
      },
      stand_in::with_small_buckets(), {1});
}

TEST_CASE("another weight decay is detected: the step is captured again") {
  stand_in::same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<PlainNet> job(accelerator, torch::optim::SGDOptions(0.125).momentum(0.5), 30);
        auto& [model, optimizer, loader] = job.prepared;
        auto step = accelerator.graphed_step(step_and(nothing)(accelerator, model, optimizer), kWarmAtOnce);
        int64_t steps = 0;
        for (auto& [images, labels] : loader) {
          if (++steps == 5) {
            static_cast<torch::optim::SGDOptions&>(job.stock.param_groups()[0].options()).weight_decay(0.5);
            check_graphs(accelerator, step, 1);
          }
          step(images, labels);
          if (steps == 5) check_graphs(accelerator, step, 0);
        }
        check_graphs(accelerator, step, 1);
        return stand_in::state_of(model);
      },
      stand_in::with_small_buckets(), {1});
}

TEST_CASE("a hook with state on the host is not captured, with a reason; a casting hook is") {
  for (const bool casts : {false, true}) {
    auto options = stand_in::with_small_buckets();
    options.comm_hook =
        casts ? accelerate::gradient::bf16_compress_hook() : accelerate::gradient::power_sgd_hook({.start_step = 3});
    stand_in::same_as_on_cpu(
        [casts](Accelerator& accelerator) -> Tensors {
          stand_in::Job<PlainNet> job(accelerator, torch::optim::SGDOptions(0.125), 48);
          auto& [model, optimizer, loader] = job.prepared;
          auto step = accelerator.graphed_step(step_and(nothing)(accelerator, model, optimizer), kWarmAtOnce);
          for (auto& [images, labels] : loader) step(images, labels);
          if (casts) {
            check_graphs(accelerator, step, 1);
          } else if (!accelerator.device().is_cpu()) {
            CHECK(step.graphs() == 0);
            CHECK(step.not_captured_reason() ==
                  "PowerSGD keeps count and factors from one reduction to the next, which a replay would not");
          }
          return stand_in::state_of(model);
        },
        options, {2});
  }
}

TEST_CASE("another growth interval of the loss scale is detected: the step is captured again") {
  stand_in::same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<PlainNet> job(accelerator, torch::optim::SGDOptions(0.125), 36);
        auto& [model, optimizer, loader] = job.prepared;
        auto step = accelerator.graphed_step(step_and(nothing)(accelerator, model, optimizer), kWarmAtOnce);
        int64_t steps = 0;
        std::vector<double> scales;
        for (auto& [images, labels] : loader) {
          if (++steps == 5) accelerator.load_scaler_state({.scale = 8, .growth_interval = 1});
          step(images, labels);
          scales.push_back(accelerator.loss_scale());
        }
        check_graphs(accelerator, step, 1);
        CHECK(scales.back() == 8 * 256);  // doubled in each of eight steps
        return {torch::tensor(scales)};
      },
      stand_in::with_precision(Precision::fp16), {1});
}

TEST_CASE("each shape has its own graph, up to the limit") {
  for (const int64_t limit : {1, 2}) {
    stand_in::on_devices(1, [&](Accelerator& accelerator) {
      stand_in::Job<PlainNet> job(accelerator, torch::optim::SGDOptions(0.125), 8, 3);  // batches of 3, 3 and 2
      auto& [model, optimizer, loader] = job.prepared;
      auto step = accelerator.graphed_step(step_and(nothing)(accelerator, model, optimizer),
                                           {.warmup_steps = 1, .max_graphs = limit});
      for (int epoch = 0; epoch < 4; ++epoch) {
        for (auto& [images, labels] : loader) step(images, labels);
      }
      CHECK(step.graphs() == limit);
      CHECK(step.not_captured_reason() ==
            (limit == 2 ? "" : "there are 1 graphs, as many as max_graphs; inputs of other shapes are not captured"));
    });
  }
}

TEST_CASE("a replayed step is one command for the device, and the host waits for nothing") {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    stand_in::on_devices(
        1,
        [&](Accelerator& accelerator) {
          stand_in::Job<PlainNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(1e-3), 30);
          auto& [model, optimizer, loader] = job.prepared;
          auto step = accelerator.graphed_step(step_and(nothing)(accelerator, model, optimizer), kWarmAtOnce);
          const auto batch = stand_in::small_data(3);
          const auto images = batch.first.to(accelerator.device()), labels = batch.second.to(accelerator.device());
          for (int i = 0; i < 4; ++i) step(images, labels);
          const auto waits = stand_in::host_waits(accelerator.device().index());
          stand_in::start_trace();
          step(images, labels);
          const auto trace = stand_in::take_trace();
          CHECK(stand_in::host_waits(accelerator.device().index()) == waits);
          if (stand_in::on_gpu()) return;
          CHECK(std::ranges::count(trace, "graph", &stand_in::Launch::what) == 1);
          // Two inputs, a rate and a count per kernel call, the loss; with fp16 a flag.
          CHECK(trace.size() <= 8);
        },
        stand_in::with_precision(precision));
  }
}

TEST_CASE("a step that needs the host is not captured, with a reason, and runs without capture") {
  using std::string;
  const auto reads = [](Accelerator&, at::Tensor& loss) { std::ignore = loss.item<float>(); };
  const string wait = string("it could not be captured: ") +
                      (stand_in::on_gpu() ? "CUDA error: operation not permitted when stream is capturing"
                                          : "standin: a wait of the host cannot be captured");
  CHECK(runs_plain(step_and(reads)) == wait);
  CHECK(runs_plain(step_and(reads), stand_in::with_precision(Precision::fp16)) == wait);
  const auto reads_at_the_end = [](Accelerator& accelerator, auto& model, auto& optimizer) {
    return [&](const at::Tensor& images, const at::Tensor& labels) {
      optimizer.zero_grad();
      const at::Tensor loss = stand_in::loss_of(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      std::ignore = loss.item<float>();
    };
  };
  CHECK(runs_plain(reads_at_the_end) == wait);
  CHECK(runs_plain(reads_at_the_end, stand_in::with_precision(Precision::fp16)) == wait);
  CHECK(runs_plain(step_and(nothing), {.gradient_accumulation_steps = 2}) ==
        "gradient_accumulation_steps is 2; a captured step has one micro-batch");
  CHECK(runs_plain(step_and(nothing), {.check_synchronized_every = 3}) ==
        "check_synchronized_every is 3; the host reads the compared values");
  CHECK(runs_plain(step_and(nothing), {.stop_at_nan_loss = true}) ==
        "stop_at_nan_loss is set; the host reads each loss");
  const auto sums = [](Accelerator& accelerator, auto& model, auto& optimizer) {
    return [&](const at::Tensor& images, const at::Tensor& labels) {
      optimizer.zero_grad();
      const auto loss = torch::nll_loss(torch::log_softmax(model(images), 1), labels, {}, torch::Reduction::Sum);
      accelerator.backward(loss, {.samples = images.size(0)});
      optimizer.step();
    };
  };
  CHECK(runs_plain(sums).find("backward: the loss is a sum over 3 samples in a captured step, and replays would divide "
                              "by the same number; take losses that are means") != string::npos);
  // 40: two for each parameter, and 32.
  const auto steps_often = [](Accelerator& accelerator, auto& model, auto& optimizer) {
    return [&](const at::Tensor& images, const at::Tensor& labels) {
      optimizer.zero_grad();
      accelerator.backward(stand_in::loss_of(model(images), labels));
      for (int i = 0; i < 41; ++i) optimizer.step();
    };
  };
  CHECK(runs_plain(steps_often)
            .find(fmt::format("optimizer.step: 41 kernel calls of the optimizer are captured on {}, at most 40 can be; "
                              "reduce the number of steps in the captured function",
                              stand_in::device().str())) != string::npos);

  if (stand_in::devices() < 2) return;
  CHECK(runs_plain(reads_at_the_end, stand_in::with_small_buckets(), 2) == wait);
  CHECK(runs_plain(step_and(reads), stand_in::with_small_buckets(), 2) == wait);
  const auto on_rank_1 = [=](Accelerator& accelerator, at::Tensor& loss) {
    if (accelerator.process_index() == 1) reads(accelerator, loss);
  };
  CHECK(runs_plain(step_and(on_rank_1), stand_in::with_small_buckets(), 2) ==
        "it could not be captured on another rank");
  auto hooked = stand_in::with_small_buckets();
  hooked.comm_hook = accelerate::gradient::comm_hook([](const auto& bucket, const auto& group) {
    group.all_reduce(bucket.gradients);
    return bucket.gradients;
  });
  CHECK(runs_plain(step_and(nothing), hooked, 2) ==
        "comm_hook's function runs on the host in each reduction; write a BucketReducer for one that may be captured");
}

TEST_CASE("an optimizer that needs numbers on the host, and a schedule within the step, are named") {
  stand_in::on_devices(1, [](Accelerator& accelerator) {
    struct OwnStep : torch::optim::SGD {
      using SGD::SGD;
    };
    PlainNet net, other;
    OwnStep own(net->parameters(), 0.125);
    torch::optim::SGD sgd(other->parameters(), 0.125);
    accelerate::optim::ConstantLR constant(sgd);
    const auto [images, labels] = stand_in::small_data(3);
    {
      auto [model, optimizer] = accelerator.prepare(net, own);
      auto step = accelerator.graphed_step(step_and(nothing)(accelerator, model, optimizer));
      step(images.to(accelerator.device()), labels.to(accelerator.device()));
      CHECK(step.not_captured_reason() ==
            "optimizer steps with numbers of the host; SGD, Adam, AdamW, Adagrad and RMSprop do not");
      accelerator.free_memory();
    }
    auto [model, optimizer, scheduler] = accelerator.prepare(other, sgd, constant);
    auto step = accelerator.graphed_step(step_and([&, &scheduler = scheduler](Accelerator&, at::Tensor&) {
                                           scheduler.step();
                                         })(accelerator, model, optimizer),
                                         kWarmAtOnce);
    for (int i = 0; i < 4; ++i) step(images.to(accelerator.device()), labels.to(accelerator.device()));
    CHECK(step.not_captured_reason().find("scheduler.step: scheduler is moved within a captured step, and its replays "
                                          "would not move it; call it after the graphed step") != std::string::npos);
    CHECK(scheduler->steps() == 4);
  });
}

TEST_CASE("a first gradient in the captured step is named, and the step runs without capture") {
  const auto trains = [](const auto& of_optimizer, auto optimizer_type) {
    using Optimizer = typename decltype(optimizer_type)::type;
    stand_in::same_as_on_cpu(
        [of_optimizer](Accelerator& accelerator) -> Tensors {
          stand_in::Job<TwoHeads, Optimizer> job(accelerator, of_optimizer, 18);
          auto& [model, optimizer, loader] = job.prepared;
          int64_t steps = 0;
          auto step = accelerator.graphed_step(
              [&, &model = model, &optimizer = optimizer](const at::Tensor& images, const at::Tensor& labels) {
                optimizer.zero_grad();
                accelerator.backward(stand_in::loss_of(model(images, steps > kWarmAtOnce.warmup_steps), labels));
                optimizer.step();
              },
              kWarmAtOnce);
          for (auto& [images, labels] : loader) {
            ++steps;
            step(images, labels);
          }
          CHECK(step.graphs() == 0);
          if (!accelerator.device().is_cpu()) {
            CHECK(step.not_captured_reason().find(
                      "a parameter of shape [5, 16] has its first gradient in a captured step, must have had one "
                      "before: its averages would restart in each replay") != std::string::npos);
          }
          return stand_in::state_of(model);
        },
        {}, {1});
  };
  using namespace torch::optim;  // NOLINT
  trains(SGDOptions(0.125).momentum(0.5), std::type_identity<SGD>());
  trains(AdamWOptions(0.015625), std::type_identity<AdamW>());
  trains(AdagradOptions(0.0625), std::type_identity<Adagrad>());
}

TEST_CASE("two optimizer steps in a captured step count as two in each replay") {
  stand_in::same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<PlainNet, torch::optim::AdamW> job(accelerator, torch::optim::AdamWOptions(0.015625), 18);
        auto& [model, optimizer, loader] = job.prepared;
        auto step = accelerator.graphed_step(
            [&, &model = model, &optimizer = optimizer](const at::Tensor& images, const at::Tensor& labels) {
              optimizer.zero_grad();
              accelerator.backward(stand_in::loss_of(model(images), labels));
              optimizer.step();
              optimizer.step();
            },
            kWarmAtOnce);
        for (auto& [images, labels] : loader) step(images, labels);
        check_graphs(accelerator, step, 1);
        return stand_in::state_of(model);
      },
      {}, {1});
}

TEST_CASE("in fp16 an optimizer that keeps gradients of the step is named, and nothing is captured") {
  std::string reason;
  // only a single model: models in a group are not captured
  const auto train = [&reason](const std::string& device) -> Tensors {
    auto options = stand_in::with_precision(Precision::fp16);
    options.device = device;
    Accelerator accelerator(options);
    auto net = stand_in::made_equal([] { return PlainNet(); });
    auto judge = stand_in::made_equal([] { return PlainNet(); });
    auto [model, other, optimizer, others] = accelerator.prepare(
        net, judge, torch::optim::SGD(net->parameters(), 0.125), torch::optim::SGD(judge->parameters(), 0.125));
    auto step = accelerator.graphed_step(
        [&, &model = model, &other = other, &optimizer = optimizer](const at::Tensor& images,
                                                                    const at::Tensor& labels) {
          optimizer.zero_grad();
          accelerator.backward(stand_in::loss_of(model(images) + other(images), labels));
          optimizer.step();
        },
        kWarmAtOnce);
    const auto batch = stand_in::small_data(3);
    const auto images = batch.first.to(accelerator.device()), labels = batch.second.to(accelerator.device());
    for (int64_t i = 1; i <= 8; ++i) {
      const bool overflows = i == 2 || i == 5 || i == 6;
      step(overflows ? images * kInfinity : images, labels);
      others.zero_grad();
    }
    reason = step.not_captured_reason();
    Tensors all = stand_in::to_cpu(net->parameters());
    all.push_back(torch::tensor({accelerator.loss_scale()}));
    return all;
  };
  const auto expected = train("cpu");
  stand_in::at_every_pace([&] {
    const auto found = train(stand_in::device_name());
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      stand_in::check_same(found[i], expected[i]);
    }
  });
  CHECK(reason ==
        "optimizer_1 has gradients of the step and neither steps nor zeroes them in it, so the loss scale would not be "
        "updated in replays; zero them there");
}

TEST_CASE("two models on two ranks, and a step of local SGD, are not captured") {
  stand_in::on_devices(2, [](Accelerator& accelerator) {
    auto model = accelerator.prepare(stand_in::made_equal([] { return PlainNet(); }));
    auto step = accelerator.graphed_step([](const at::Tensor& x) { return x; });
    CHECK(step.not_captured_reason().empty());
    {
      auto local = accelerator.local_sgd(model, 2);
      CHECK(step.not_captured_reason() == "local SGD counts steps on the host");
    }
    CHECK(step.not_captured_reason().empty());
  });
  stand_in::on_devices(2, [](Accelerator& accelerator) {
    auto [a, b] = accelerator.prepare(stand_in::made_equal([] { return PlainNet(); }),
                                      stand_in::made_equal([] { return PlainNet(); }));
    auto step = accelerator.graphed_step([](const at::Tensor& x) { return x; });
    CHECK(step.not_captured_reason() == "in each backward the 2 ranks exchange which of 2 models it reached");
  });
}

TEST_CASE("a replay counts as a step of the job and of a moving average unless fp16 skips it") {
  const CheckpointOfGraphs checkpoint;
  for (const auto precision : {Precision::no, Precision::fp16}) {
    const bool skips = precision == Precision::fp16;
    CAPTURE(skips);
    stand_in::same_as_on_cpu(
        [&](Accelerator& accelerator) -> Tensors {
          stand_in::Job<PlainNet> job(accelerator, torch::optim::SGDOptions(0.125), 24);
          auto& [model, optimizer, loader] = job.prepared;
          accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
          auto step = accelerator.graphed_step(step_and(nothing)(accelerator, model, optimizer), kWarmAtOnce);
          int64_t steps = 0;
          for (auto& [images, labels] : loader) {
            const bool overflows = skips && (++steps == 2 || steps == 5 || steps == 6 || steps == 8);
            step(overflows ? images * kInfinity : images, labels);
            ema.update(optimizer.skip_flag());
          }
          check_graphs(accelerator, step, 1);
          accelerator.save_state(checkpoint.path, {.durable = false});
          CHECK(accelerator.load_state(checkpoint.path).step == (skips ? 4 : 8));
          CHECK(ema.updates() == (skips ? 4 : 8));
          return ema.averages();
        },
        stand_in::with_precision(precision), {1});
  }
}

TEST_CASE("a captured step may return a tensor, several or none, without autograd, for any number of inputs") {
  stand_in::on_devices(1, [](Accelerator& accelerator) {
    const auto x = torch::ones({2}).to(accelerator.device()), y = x + 1;
    auto several = accelerator.graphed_step(
        [](const at::Tensor& a, const at::Tensor& b) {
          return Tensors{a + b, a - b};
        },
        {.warmup_steps = 1});
    auto none = accelerator.graphed_step([&] { x.add_(1); }, {.warmup_steps = 1});
    for (int i = 0; i < 4; ++i) {
      const Tensors got = several(x, y * i);
      const double before = x[0].item<double>();
      CHECK(got[0][1].item<double>() == before + 2 * i);
      CHECK(got[1][0].item<double>() == before - 2 * i);
      none();
      CHECK(x[0].item<double>() == before + 1);
    }
    CHECK(several.graphs() == 1);
    CHECK(none.graphs() == 1);
  });
}

TEST_CASE("pinned inputs of a captured step may be overwritten when it returns") {
  stand_in::at_every_pace([] {
    stand_in::on_devices(1, [](Accelerator& accelerator) {
      const auto staging = torch::empty({100}).pin_memory();
      auto step = accelerator.graphed_step([&](const at::Tensor& x) { return x.to(accelerator.device()) * 2; },
                                           {.warmup_steps = 1});
      Tensors results;
      for (int i = 0; i < 6; ++i) {
        staging.fill_(i);
        results.push_back(step(staging));
      }
      staging.fill_(-1);
      CHECK(step.graphs() == 1);
      for (int i = 0; i < 6; ++i) CHECK(results[static_cast<size_t>(i)].mean().item<double>() == 2 * i);
    });
  });
}

TEST_CASE("within autocast neither a capture nor a forward after a replay uses an outdated cast of a weight") {
  stand_in::same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<PlainNet> job(accelerator, torch::optim::SGDOptions(0.125), 24);
        auto& [model, optimizer, loader] = job.prepared;
        auto step = accelerator.graphed_step(step_and(nothing)(accelerator, model, optimizer), kWarmAtOnce);
        Tensors all;
        const auto region = accelerator.autocast();  // casts of weights are cached while it is open
        for (auto& [images, labels] : loader) {
          step(images, labels);
          all.push_back(model(images).detach());  // a live autograd graph would prevent the capture
        }
        check_graphs(accelerator, step, 1);
        return all;
      },
      stand_in::with_precision(Precision::bf16), {1});
}

TEST_CASE("a capture runs after earlier work of the caller's stream, and before its later work") {
  stand_in::at_every_pace([] {
    const auto x = torch::zeros({1}).to(stand_in::device());
    const auto graph = accelerate::device::find_graphs(stand_in::tested_type())->make();
    x.add_(1);
    accelerate::device::capture_graph(
        *graph, stand_in::device(), [&] { x.mul_(3); }, [&] { x.add_(100); });
    x.add_(10);
    CHECK(x.item<double>() == 13);
  });
}

TEST_CASE("the stand-in captures like CUDA: side streams join the capture, the default stream does not" *
          stand_in::needs_stand_in()) {
  const c10::impl::VirtualGuardImpl streams(stand_in::tested_type());
  const auto graphs = accelerate::device::find_graphs(stand_in::tested_type());
  REQUIRE(graphs != nullptr);
  const auto x = torch::zeros({1}).to(stand_in::device());
  const auto record = [&](const std::function<void()>& work) {
    auto graph = graphs->make();
    accelerate::device::capture_graph(
        *graph, stand_in::device(), [] {}, work);
    return graph;
  };
  const auto other = streams.getNewStream(stand_in::device());
  auto graph = record([&] {
    const auto origin = streams.getStream(stand_in::device());
    stand_in::make_wait(other, origin);
    {
      const c10::StreamGuard guard(other);
      x.add_(1);
    }
    stand_in::make_wait(origin, other);
    x.mul_(2);
  });
  CHECK(x.item<double>() == 0);
  graph->replay();
  CHECK(x.item<double>() == 2);
  graph->replay();
  CHECK(x.item<double>() == 6);
  CHECK_THROWS_WITH(record([&] {
                      stand_in::make_wait(other, streams.getStream(stand_in::device()));
                      const c10::StreamGuard guard(other);
                      x.add_(1);
                    }),
                    doctest::Contains("standin: a capture ended before all of its streams were joined"));
  CHECK_THROWS_WITH(record([&] {
                      stand_in::make_wait(streams.getDefaultStream(stand_in::device()),
                                          streams.getStream(stand_in::device()));
                    }),
                    doctest::Contains("standin: the default stream cannot wait for a capture"));
  CHECK_THROWS_WITH(record([&] {
                      stand_in::make_wait(streams.getStream(stand_in::device()),
                                          streams.getDefaultStream(stand_in::device()));
                    }),
                    doctest::Contains("standin: a capturing stream cannot wait for work outside the capture"));
  CHECK_THROWS_WITH(record([&] { std::ignore = x.item<double>(); }),
                    doctest::Contains("standin: a wait of the host cannot be captured"));
  CHECK(x.item<double>() == 6);
}
