// SPDX-License-Identifier: Apache-2.0
// hybrid_shard on ranks that are threads: replicas of the parts.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/models.hpp"
#include "tests/sharding/ranks.hpp"
#include "tests/temporary_folder.hpp"

// Test files are compiled together, and others have helpers of the same names.
namespace hybrid_testing {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using sharding_testing::AnyNet;
using sharding_testing::largest_difference;
using sharding_testing::loss_of;
using sharding_testing::mlp;
using sharding_testing::waves;
using sharding_testing::with_ranks;
using testing::refusal;
using enum accelerate::ShardingStrategy;

namespace {

AcceleratorOptions hybrid(int64_t dp_shard_size, ShardingStrategy strategy = hybrid_shard) {
  return {.cpu = true, .sharding = strategy, .fsdp_plugin = {.dp_shard_size = dp_shard_size, .min_num_params = 30}};
}

void ends(const std::string& text, std::string_view end) { CHECK_MESSAGE(text.ends_with(end), text); }
void contains(const std::string& text, std::string_view part) {
  CHECK_MESSAGE(text.find(part) != std::string::npos, text);
}

torch::Tensor batch(int64_t step) { return waves({12, 7}, 0.1 * static_cast<double>(step)); }

torch::Tensor rows_of(const Accelerator& accelerator, const torch::Tensor& whole) {
  const int64_t rows = whole.size(0) / accelerator.num_processes();
  return whole.narrow(0, accelerator.process_index() * rows, rows);
}

/// A model that each rank trains on its rows, and the same model as one process trains it.
struct Training {
  explicit Training(Accelerator& the_accelerator, const std::shared_ptr<AnyNet>& the_net = mlp(),
                    const std::shared_ptr<AnyNet>& the_reference = mlp())
      : accelerator(the_accelerator),
        net(the_net),
        reference(the_reference),
        own(net->parameters(), 1e-2),
        stock(reference->parameters(), 1e-2) {
    std::tie(model, optimizer) = accelerator.prepare(net, own);
  }

  void backward(int64_t step) {
    optimizer.zero_grad();
    stock.zero_grad();
    accelerator.backward(loss_of(model(rows_of(accelerator, batch(step)))));
    loss_of(reference->forward(batch(step))).backward();
  }
  void train(int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      backward(i);
      optimizer.step();
      stock.step();
    }
  }
  void check() const {
    const auto whole = Accelerator::summon_full_params(model);
    CHECK(largest_difference(net->parameters(), reference->parameters()) < 1e-12);
  }

  Accelerator& accelerator;
  std::shared_ptr<AnyNet> net, reference;
  torch::optim::AdamW own, stock;
  accelerate::PreparedModel<AnyNet> model;
  accelerate::PreparedOptimizer<torch::optim::AdamW> optimizer;
};

}  // namespace

TEST_CASE("1, 2 and 4 replicas train as one process, and each replica keeps the optimizer state once") {
  for (const auto strategy : {hybrid_shard, hybrid_shard_zero2}) {
    for (const int64_t size : {1, 2, 4}) {
      CAPTURE(strategy_name(strategy));
      CAPTURE(size);
      with_ranks(4, hybrid(size, strategy), [&](Accelerator& accelerator) {
        Training it(accelerator);
        it.train(0, 20);
        it.check();
        accelerator.check_synchronized(it.model);
        const int64_t own = sharding_testing::state_elements(it.own, it.net->parameters());
        int64_t all = 0;
        for (const auto& parameter : it.net->parameters()) all += parameter.numel();
        CHECK(accelerator.reduce(torch::tensor({own})).item<int64_t>() == 4 / size * 2 * all);
        const std::string plan = accelerator.sharding_plan(it.model);
        const std::string replicas = size == 4 ? "" : fmt::format(", {} replicas", 4 / size);
        contains(plan,
                 fmt::format("{} elements on {} ranks, {} on this one{}\nunit 0: ", all, size, own / 2, replicas));
        for (const auto& parameter : it.net->parameters()) CHECK_FALSE(parameter.grad().defined());
      });
    }
  }
}

TEST_CASE("without dp_shard_size the ranks of this machine are one replica") {
  AcceleratorOptions options{.cpu = true, .sharding = hybrid_shard};
  with_ranks(4, options, [](Accelerator& accelerator) {
    Training it(accelerator);
    it.train(0, 3);
    it.check();
    const std::string plan = accelerator.sharding_plan(it.model);
    contains(plan, " on 4 ranks, ");
    CHECK(plan.find("replicas") == std::string::npos);
    CHECK(accelerator.distributed_type() == accelerate::DistributedType::fsdp);
  });
}

TEST_CASE("a shard size that does not divide the number of ranks is refused in prepare(), on every rank") {
  with_ranks(4, hybrid(3), [](Accelerator& accelerator) {
    const auto net = mlp();
    ends(refusal([&] { (void)accelerator.prepare(net); }),
         "sharding: fsdp_plugin.dp_shard_size is 3 and the job has 4 ranks; the size must divide the number of ranks");
  });
}

TEST_CASE("clipping counts each element once, and averages the gradients of all replicas") {
  for (const bool by_value : {false, true}) {
    with_ranks(4, hybrid(2), [&](Accelerator& accelerator) {
      auto net = std::make_shared<AnyNet>(nullptr);
      const auto weight = net->register_parameter("weight", torch::zeros({16}, torch::kDouble));
      auto slope = torch::zeros({16}, torch::kDouble);
      slope[0] = 3;
      slope[15] = -4;  // in the part of the other rank of a replica
      net->run = [=](const torch::Tensor& x) { return (weight * slope).sum() * x; };
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      // The mean of the ranks' factors is 1.
      const double factor = 0.4 * static_cast<double>(accelerator.process_index() + 1);
      accelerator.backward(model(torch::full({}, factor, torch::kDouble)));
      if (by_value) {
        accelerator.clip_grad_value_(model, 3.5);
      } else {
        CHECK(accelerator.clip_grad_norm_(model, 1e9).item<double>() == doctest::Approx(5).epsilon(1e-12));
        CHECK(accelerator.clip_grad_norm_(model, 1e9, INFINITY).item<double>() == doctest::Approx(4).epsilon(1e-12));
        CHECK(accelerator.clip_grad_norm_(model, 2.5).item<double>() == doctest::Approx(5).epsilon(1e-12));
      }
      optimizer.step();
      const auto whole = Accelerator::summon_full_params(model);
      CHECK(weight[0].item<double>() == doctest::Approx(by_value ? -3 : -1.5).epsilon(1e-6));
      CHECK(weight[15].item<double>() == doctest::Approx(by_value ? 3.5 : 2).epsilon(1e-6));
    });
  }
}

TEST_CASE("fp16: an overflow on one rank of one replica skips the step of all ranks") {
  auto options = hybrid(2);
  options.mixed_precision = accelerate::Precision::fp16;
  options.grad_scaler.init_scale = 1024;
  with_ranks(4, options, [](Accelerator& accelerator) {
    const auto net = mlp();
    net->to(torch::kFloat);
    torch::optim::AdamW adamw(net->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const auto values = [&, &model = model] {
      const auto whole = Accelerator::summon_full_params(model);
      std::vector<torch::Tensor> list;
      for (const auto& parameter : net->parameters()) list.push_back(parameter.detach().clone());
      return list;
    };
    for (const bool overflows : {true, false}) {
      const auto before = values();
      auto rows = rows_of(accelerator, batch(0)).to(torch::kFloat);
      if (overflows && accelerator.process_index() == 3) rows = rows * INFINITY;
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(rows)));
      optimizer.step();
      CHECK(accelerator.optimizer_step_was_skipped() == overflows);
      CHECK(accelerator.loss_scale() == 512);
      CHECK((largest_difference(before, values()) == 0) == overflows);
      accelerator.check_synchronized(model);
    }
  });
}

TEST_CASE("a checkpoint of replicas continues with full_shard, without sharding, and with other replicas") {
  struct Stage {
    int64_t ranks;
    AcceleratorOptions options;
  };
  const std::vector<Stage> stages{{4, hybrid(2)},
                                  {3, {.cpu = true, .sharding = full_shard}},
                                  {4, hybrid(2, hybrid_shard_zero2)},
                                  {1, {.cpu = true}},
                                  {2, hybrid(1)},
                                  {4, hybrid(4)}};
  const testing::TemporaryFolder folder;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    CAPTURE(stage);
    with_ranks(stages[stage].ranks, stages[stage].options, [&](Accelerator& accelerator) {
      Training it(accelerator);
      const auto at = [&](size_t number) { return folder.path / fmt::format("stage_{}", number); };
      for (int64_t i = 0; i < static_cast<int64_t>(3 * stage); ++i) {  // of one process
        it.stock.zero_grad();
        loss_of(it.reference->forward(batch(i))).backward();
        it.stock.step();
      }
      if (stage > 0) accelerator.load_state(at(stage));
      it.check();
      it.train(static_cast<int64_t>(3 * stage), static_cast<int64_t>(3 * stage + 3));
      it.check();
      accelerator.check_synchronized(it.model);
      accelerator.save_state(at(stage + 1), {.durable = false});
    });
  }
}

TEST_CASE("check_synchronized() compares the parts of the replicas") {
  auto options = hybrid(2);
  options.check_synchronized_every = 2;
  with_ranks(4, options, [](Accelerator& accelerator) {
    Training it(accelerator);
    it.train(0, 1);
    accelerator.check_synchronized(it.model);
    {
      const auto whole = Accelerator::summon_full_params(it.model);
      const torch::NoGradGuard no_grad;
      if (accelerator.process_index() >= 2) it.net->parameters()[3].add_(1);  // both ranks of a replica
    }
    const std::string difference =
        "elements 0 to 13 of parameter layers.2.bias [13] Double has one value on rank 1, another on rank 3 (1 of ";
    contains(refusal([&] { accelerator.check_synchronized(it.model); }), "check_synchronized: " + difference);
    it.backward(1);
    contains(refusal([&] { it.optimizer.step(); }), "check_synchronized: after 2 optimizer steps " + difference);
  });
}

TEST_CASE("check_synchronized() compares the masters of bfloat16 parameters that every rank has") {
  auto options = hybrid(2, hybrid_shard_zero2);
  options.precision_policy = accelerate::precision::pure_bf16();
  with_ranks(4, options, [](Accelerator& accelerator) {
    auto net = std::make_shared<AnyNet>(nullptr);
    const auto weight = net->register_parameter("weight", torch::ones({80}));
    net->run = [weight](const torch::Tensor& x) { return weight.sum() * x; };
    torch::optim::SGD sgd(net->parameters(), 1e-4);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({}, torch::kBFloat16)));
    // Different learning rates move the masters by less than a bfloat16 step.
    static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options())
        .lr(accelerator.process_index() < 2 ? 1e-4 : 2e-4);
    optimizer.step();
    contains(refusal([&, &model = model] { accelerator.check_synchronized(model); }), " of the master of weight [");
  });
}

namespace {

torch::Tensor both_layers(torch::nn::ModuleList layers, const torch::Tensor& x, bool is_turned) {
  auto first = layers->ptr<torch::nn::LinearImpl>(is_turned ? 1 : 0);
  auto second = layers->ptr<torch::nn::LinearImpl>(is_turned ? 0 : 1);
  return second->forward(torch::tanh(first->forward(x)));
}

/// A net of two layers of equal size.
std::shared_ptr<AnyNet> two_layers(
    const std::function<torch::Tensor(const torch::nn::ModuleList& layers, const torch::Tensor& x)>& forward) {
  const torch::nn::ModuleList layers(torch::nn::Linear(7, 7), torch::nn::Linear(7, 7));
  auto net = std::make_shared<AnyNet>([=](const torch::Tensor& x) { return forward(layers, x); });
  net->register_module("layers", layers);
  net->to(torch::kDouble);
  sharding_testing::fill(*net);
  return net;
}

std::shared_ptr<AnyNet> two_layers_in_order(bool is_turned) {
  return two_layers([=](const auto& layers, const torch::Tensor& x) { return both_layers(layers, x, is_turned); });
}

}  // namespace

TEST_CASE("replicas may use and reduce units in different orders") {
  with_ranks(4, hybrid(2), [](Accelerator& accelerator) {
    Training it(accelerator);
    it.train(0, 2);
    if (accelerator.process_index() >= 2) {  // evaluates alone
      const torch::NoGradGuard no_grad;
      CHECK((it.model(batch(9)) - it.reference->forward(batch(9))).abs().max().item<double>() < 1e-12);
    }
    it.train(2, 5);
    it.check();
  });
  with_ranks(4, hybrid(2), [](Accelerator& accelerator) {
    const auto reference = two_layers([](const auto& layers, const torch::Tensor& x) {
      return torch::cat({both_layers(layers, x.narrow(0, 0, 6), false), both_layers(layers, x.narrow(0, 6, 6), true)});
    });
    Training it(accelerator, two_layers_in_order(accelerator.process_index() >= 2), reference);
    it.train(0, 4);
    it.check();
  });
}

TEST_CASE("the ranks of a replica must use units in one order") {
  with_ranks(4, hybrid(2), [](Accelerator& accelerator) {
    Training it(accelerator, two_layers_in_order(accelerator.process_index() == 3), mlp());
    const int64_t rank = accelerator.process_index();
    if (rank < 2) return;  // the other replica
    ends(refusal([&] { std::ignore = it.model(rows_of(accelerator, batch(0))); }),
         fmt::format(
             "this rank transfers item {}, rank {} transfers item {}; all ranks must call the same operations in "
             "the same order.",
             rank - 2, 5 - rank, 3 - rank));
  });
}

TEST_CASE("a parameter that only one replica uses is stepped on by all") {
  for (const bool first_replica : {true, false}) {
    auto options = hybrid(2);
    options.fsdp_plugin.min_num_params = 100'000;  // one unit
    with_ranks(4, options, [&](Accelerator& accelerator) {
      const auto make = [](const std::function<bool()>& is_used) {
        auto net = mlp();
        const auto extra = net->register_parameter("extra", waves({3}, 0.5));
        net->run = [inner = net->run, extra, is_used](const torch::Tensor& x) {
          return is_used() ? inner(x) + extra : inner(x);
        };
        return net;
      };
      const bool is_here = (accelerator.process_index() < 2) == first_replica;
      bool is_reference_half = true;
      Training it(accelerator, make([=] { return is_here; }), make([&] { return is_reference_half; }));
      for (int64_t i = 0; i < 3; ++i) {
        it.optimizer.zero_grad();
        it.stock.zero_grad();
        accelerator.backward(loss_of(it.model(rows_of(accelerator, batch(i)))));
        for (const bool first_half : {true, false}) {
          is_reference_half = first_half == first_replica;
          (loss_of(it.reference->forward(batch(i).narrow(0, first_half ? 0 : 6, 6))) / 2).backward();
        }
        it.optimizer.step();
        it.stock.step();
      }
      it.check();
      accelerator.check_synchronized(it.model);
    });
  }
}

TEST_CASE("a backward that reaches a unit twice, and a step after a failed backward") {
  with_ranks(4, hybrid(2), [](Accelerator& accelerator) {
    Training it(accelerator);
    it.train(0, 1);
    auto output = it.model(rows_of(accelerator, batch(1)));
    output.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
      if (gradient.defined()) throw std::runtime_error("in backward");
      return gradient;
    });
    CHECK_THROWS_AS(accelerator.backward(loss_of(output)), std::runtime_error);
    it.train(2, 3);
    // The gradients of a recomputed segment arrive in a backward of its own.
    for (AnyNet* net : {it.net.get(), it.reference.get()}) {
      net->run = [inner = net->run](const torch::Tensor& x) {
        const auto segment = [inner](const torch::Tensor& input) { return inner(input); };
        return inner(x) + accelerate::nn::checkpoint(segment, x.clone().requires_grad_(true));
      };
    }
    it.train(3, 6);
    it.check();
  });
}

TEST_CASE("moving averages of parts are those of the whole, and are saved once") {
  const testing::TemporaryFolder folder;
  with_ranks(4, hybrid(2), [&](Accelerator& accelerator) {
    Training it(accelerator);
    accelerate::optim::ExponentialMovingAverage ours(it.model, {.decay = 0.9}), stock(*it.reference, {.decay = 0.9});
    for (int64_t i = 0; i < 4; ++i) {
      it.train(i, i + 1);
      ours.update();
      stock.update();
    }
    {
      const auto averaged = ours.average_parameters();
      const auto other = stock.average_parameters();
      accelerator.save_model(it.model, folder.path);
      const torch::NoGradGuard no_grad;
      CHECK((it.model(batch(9)) - it.reference->forward(batch(9))).abs().max().item<double>() < 1e-12);
      const auto loaded = mlp();
      Accelerator plain(accelerator.group(), {.cpu = true});
      auto whole = plain.prepare(loaded);
      plain.load_model(whole, folder.path);
      CHECK(largest_difference(loaded->parameters(), it.reference->parameters()) < 1e-12);
    }
    it.train(5, 6);
    it.check();
  });
}

TEST_CASE("a parameter that had another part before is refused on every rank") {
  accelerate::simulate(4, [] {
    const auto net = mlp();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    {
      Accelerator accelerator(hybrid(2));
      auto prepared = accelerator.prepare(net, sgd);
      accelerator.free_memory();
    }
    Accelerator accelerator({.cpu = true, .sharding = full_shard});
    contains(refusal([&] { (void)accelerator.prepare(net, sgd); }), "rank 0 owned elements ");
  });
}

TEST_CASE("a rank that leaves is named by the reduction over the replicas") {
  accelerate::comm::run_threads(
      2,
      [](const accelerate::comm::Group& group) {
        Accelerator accelerator(group, hybrid(1));
        Training it(accelerator);
        const auto loss = loss_of(it.model(rows_of(accelerator, batch(0))));
        if (group.rank() == 1) return;
        const auto text = refusal([&] { accelerator.backward(loss); });
        contains(text, "backward: the gradients ");
        contains(text, "not reduced: ");
        contains(text, "rank 1");
      },
      std::chrono::seconds(5));
}

}  // namespace hybrid_testing
