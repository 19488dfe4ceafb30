// SPDX-License-Identifier: Apache-2.0
// Whole training programs on two ranks that are threads, compared with one process.
#include "tests/testing.hpp"
//
#include <algorithm>
#include <optional>

#include "accelerate/accelerate.hpp"
#include "accelerate/trainer/trainer.hpp"
#include "tests/sharding/models.hpp"

// Test files are compiled together, and others have helpers of the same names.
namespace programs_testing {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using sharding_testing::AnyNet;
using sharding_testing::largest_difference;
using sharding_testing::loss_of;
using sharding_testing::mlp;
using sharding_testing::waves;
using enum accelerate::ShardingStrategy;

namespace {

AcceleratorOptions sharded(ShardingStrategy strategy) {
  return {.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 30}};
}

void with_strategies(const std::function<void(Accelerator&)>& check) {
  for (const auto strategy : {full_shard, shard_grad_op}) {
    CAPTURE(strategy_name(strategy));
    accelerate::simulate(2, [&] {
      Accelerator accelerator(sharded(strategy));
      check(accelerator);
    });
  }
}

torch::Tensor batch(int64_t step) { return waves({12, 7}, 0.1 * static_cast<double>(step)); }

torch::Tensor rows_of(const Accelerator& accelerator, const torch::Tensor& whole) {
  const int64_t rows = whole.size(0) / accelerator.num_processes();
  return whole.narrow(0, accelerator.process_index() * rows, rows);
}

std::shared_ptr<AnyNet> net_of(torch::nn::Sequential layers) {
  auto net = std::make_shared<AnyNet>([layers](const torch::Tensor& x) mutable { return layers->forward(x); });
  net->register_module("layers", layers);
  net->to(torch::kDouble);
  sharding_testing::fill(*net);
  return net;
}

/// A model that each rank trains on its rows, and the same model as one process trains it.
struct Program {
  explicit Program(Accelerator& the_accelerator, std::shared_ptr<AnyNet> the_net = mlp(),
                   std::shared_ptr<AnyNet> the_reference = mlp())
      : accelerator(the_accelerator), net(std::move(the_net)), reference(std::move(the_reference)) {
    std::tie(model, optimizer) = accelerator.prepare(net, own);
  }

  void step(const torch::Tensor& x) {
    optimizer.zero_grad();
    stock.zero_grad();
    accelerator.backward(loss_of(model(rows_of(accelerator, x))));
    loss_of(reference->forward(x)).backward();
    optimizer.step();
    stock.step();
  }
  void check() const {
    const auto whole = Accelerator::summon_full_params(model);
    CHECK(largest_difference(net->parameters(), reference->parameters()) < 1e-12);
    CHECK(largest_difference(net->buffers(), reference->buffers()) < 1e-12);
  }

  Accelerator& accelerator;
  std::shared_ptr<AnyNet> net, reference;
  torch::optim::AdamW own{net->parameters(), 1e-2}, stock{reference->parameters(), 1e-2};
  accelerate::PreparedModel<AnyNet> model{};
  accelerate::PreparedOptimizer<torch::optim::AdamW> optimizer{};
};

}  // namespace

TEST_CASE("two models with two optimizers in turn, a generator and a discriminator, are trained") {
  with_strategies([](Accelerator& accelerator) {
    const auto critic = [] {
      return net_of(torch::nn::Sequential(torch::nn::Linear(3, 11), torch::nn::Tanh(), torch::nn::Linear(11, 1)));
    };
    const auto generator = mlp(), discriminator = critic(), stock_generator = mlp(), stock_discriminator = critic();
    torch::optim::AdamW own_g(generator->parameters(), 1e-2), own_d(discriminator->parameters(), 1e-2),
        stock_g(stock_generator->parameters(), 1e-2), stock_d(stock_discriminator->parameters(), 1e-2);
    auto [g, d, optimizer_g, optimizer_d] = accelerator.prepare(generator, discriminator, own_g, own_d);
    const auto train = [](auto& make, auto& judge, auto& step_g, auto& step_d, const torch::Tensor& noise,
                          const torch::Tensor& real, const auto& backward) {
      step_d.zero_grad();
      backward(loss_of(judge.forward(real)) + judge.forward(make.forward(noise).detach()).square().mean());
      step_d.step();
      step_g.zero_grad();
      backward(loss_of(judge.forward(make.forward(noise))));  // adds to gradients of the discriminator, too
      step_g.step();
    };
    for (int64_t i = 0; i < 10; ++i) {
      const auto noise = batch(i), real = waves({12, 3}, 0.2 * static_cast<double>(i));
      train(*stock_generator, *stock_discriminator, stock_g, stock_d, noise, real,
            [](const torch::Tensor& loss) { loss.backward(); });
      train(g, d, optimizer_g, optimizer_d, rows_of(accelerator, noise), rows_of(accelerator, real),
            [&](const torch::Tensor& loss) { accelerator.backward(loss); });
    }
    const auto whole_g = Accelerator::summon_full_params(g);
    const auto whole_d = Accelerator::summon_full_params(d);
    CHECK(largest_difference(generator->parameters(), stock_generator->parameters()) < 1e-12);
    CHECK(largest_difference(discriminator->parameters(), stock_discriminator->parameters()) < 1e-12);
  });
}

TEST_CASE("BatchNorm that is converted to SyncBatchNorm, before or after prepare(), is that of one process") {
  const auto make = [] {
    return net_of(torch::nn::Sequential(torch::nn::Linear(torch::nn::LinearOptions(7, 11).bias(false)),
                                        torch::nn::BatchNorm1d(11), torch::nn::Tanh(), torch::nn::Linear(11, 3)));
  };
  with_strategies([&](Accelerator& accelerator) {
    const auto converted = make();
    CHECK(accelerator.convert_sync_batchnorm(converted) == 1);
    Program before(accelerator, converted, make()), after(accelerator, make(), make());
    CHECK(accelerator.convert_sync_batchnorm(after.net) == 1);
    for (int64_t i = 0; i < 5; ++i) {
      before.step(batch(i));
      after.step(batch(i));
    }
    before.check();
    after.check();
  });
}

TEST_CASE("a learning rate schedule sets the rate of every part") {
  with_strategies([](Accelerator& accelerator) {
    Program it(accelerator);
    auto schedule = accelerator.prepare(accelerate::optim::StepLR(it.own, 2, 0.5));
    accelerate::optim::StepLR stock(it.stock, 2, 0.5);
    for (int64_t i = 0; i < 7; ++i) {
      it.step(batch(i));
      schedule.step();
      stock.step();
    }
    CHECK(it.own.param_groups()[0].options().get_lr() == 1e-2 / 8);
    it.check();
  });
}

TEST_CASE("a profiler records steps, and does not change them") {
  with_strategies([](Accelerator& accelerator) {
    Program it(accelerator);
    it.step(batch(0));
    // A process has one profiler at a time.
    std::optional<accelerate::Profiler> profiler;
    if (accelerator.process_index() == 0)
      profiler.emplace(accelerate::ProfileOptions{}, accelerate::comm::Group(), at::kCPU);
    for (int64_t i = 1; i < 4; ++i) {
      it.step(batch(i));
      if (profiler) profiler->step();
    }
    if (profiler) {
      profiler->stop();
      CHECK(profiler->recordings() == 1);
      CHECK(std::ranges::any_of(profiler->summary().operators,
                                [](const auto& each) { return each.name == "aten::addmm"; }));
    }
    it.step(batch(4));
    it.check();
  });
}

TEST_CASE("layers are sharded: MultiheadAttention") {
  const auto make = [] {
    // Without a bias, because the gradient of a key's bias is rounding noise, which Adam amplifies.
    torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(6, 2).bias(false));
    auto net = std::make_shared<AnyNet>([attention](const torch::Tensor& x) mutable {
      const auto y = x.transpose(0, 1);  // [length, samples, width]
      return std::get<0>(attention(y, y, y)).transpose(0, 1);
    });
    net->register_module("attention", attention);
    net->to(torch::kDouble);
    sharding_testing::fill(*net);
    return net;
  };
  with_strategies([&](Accelerator& accelerator) {
    Program it(accelerator, make(), make());
    for (int64_t i = 0; i < 5; ++i) it.step(waves({12, 4, 6}, 0.1 * static_cast<double>(i)));
    it.check();
  });
}

TEST_CASE("autograd::grad() to parameters has this rank's whole gradients, and changes no step") {
  with_strategies([](Accelerator& accelerator) {
    Program it(accelerator);
    for (int64_t i = 0; i < 3; ++i) {
      const auto x = rows_of(accelerator, batch(i + 7));
      const auto ours = torch::autograd::grad({loss_of(it.model(x))}, it.net->parameters());
      const auto expected = torch::autograd::grad({loss_of(it.reference->forward(x))}, it.reference->parameters());
      CHECK(largest_difference(ours, expected) < 1e-12);
      it.step(batch(i));
    }
    it.check();
  });
}

TEST_CASE("a clone of a parameter from a scope with whole parameters keeps its values") {
  with_strategies([](Accelerator& accelerator) {
    Program it(accelerator);
    it.step(batch(0));
    std::vector<torch::Tensor> copies, expected;
    {
      const auto whole = Accelerator::summon_full_params(it.model);
      for (const auto& parameter : it.net->parameters()) copies.push_back(parameter.detach().clone());
      copies.push_back(it.net->parameters()[0].clone());  // with a graph
    }
    for (const auto& parameter : it.reference->parameters()) expected.push_back(parameter.detach().clone());
    expected.push_back(expected[0]);
    it.step(batch(1));
    CHECK(largest_difference(copies, expected) < 1e-12);
    copies[0].data_ptr<double>()[0] = 5;
    CHECK(copies[0].sum().item<double>() ==
          doctest::Approx(5 + expected[0].flatten().slice(0, 1).sum().item<double>()));
    it.check();
  });
}

namespace {

struct Rows {
  [[nodiscard]] int64_t size() const { return 24; }
  [[nodiscard]] int64_t get(int64_t i) const { return i; }
};

accelerate::Inputs collate(const std::vector<int64_t>& rows) {
  std::vector<torch::Tensor> x;
  for (const int64_t row : rows) x.push_back(waves({7}, 0.3 * static_cast<double>(row)));
  return {{"x", torch::stack(x)}, {"labels", torch::full({std::ssize(rows), 3}, 0.3, torch::kDouble)}};
}

struct RowTrainer : accelerate::Trainer<AnyNet> {
  explicit RowTrainer(ShardingStrategy strategy)
      : Trainer(mlp(),
                {.per_device_train_batch_size = 2,
                 .num_train_epochs = 2,
                 .gradient_accumulation_steps = 2,
                 .learning_rate = 0.01,
                 .max_grad_norm = 0.5},
                {.train_dataset = accelerate::data::dataset_source(Rows{}, collate),
                 .eval_dataset = accelerate::data::dataset_source(Rows{}, collate),
                 .accelerator = sharded(strategy)}) {
    remove_callback<accelerate::PrinterCallback>();
    remove_callback<accelerate::ProgressCallback>();
  }
  accelerate::LossAndOutputs compute_loss(Model& model, const accelerate::Inputs& inputs) override {
    const auto outputs = model(inputs["x"]);
    return {torch::mse_loss(outputs, inputs["labels"]), outputs};
  }
};

}  // namespace

TEST_CASE("a Trainer has the weights and the evaluation of training without sharding") {
  accelerate::simulate(2, [] {
    std::vector<torch::Tensor> expected;
    double expected_loss = 0;
    for (const auto strategy : {no_shard, full_shard, shard_grad_op}) {
      CAPTURE(strategy_name(strategy));
      RowTrainer trainer(strategy);
      CHECK(trainer.train().global_step == 6);
      const double loss = trainer.evaluate().at("eval_loss");
      const auto whole = Accelerator::summon_full_params(trainer.model());
      std::vector<torch::Tensor> trained;
      for (const auto& parameter : trainer.parameters()) trained.push_back(parameter.detach().clone());
      if (strategy == no_shard) {
        expected = trained;
        expected_loss = loss;
      }
      REQUIRE(trained.size() == 6);
      CHECK(largest_difference(trained, expected) < 1e-12);
      CHECK(loss == doctest::Approx(expected_loss).epsilon(1e-12));
    }
    CHECK(largest_difference(expected, mlp()->parameters()) > 1e-3);
  });
}

TEST_CASE("BestModelCallback restores the best weights on all ranks") {
  accelerate::simulate(2, [] {
    for (const auto strategy : {no_shard, full_shard, shard_grad_op}) {
      CAPTURE(strategy_name(strategy));
      RowTrainer trainer(strategy);
      const auto weights = [&] {
        const auto whole = Accelerator::summon_full_params(trainer.model());
        std::vector<torch::Tensor> copies;
        for (const auto& parameter : trainer.parameters()) copies.push_back(parameter.detach().clone());
        return copies;
      };
      const auto best = weights();
      const auto state = trainer.state_dict();
      accelerate::BestModelCallback::StateDict saved;
      for (const auto& item : state) saved.insert("model." + item.key(), item.value().clone());
      accelerate::BestModelCallback callback;
      callback.load_state_dict(saved);
      trainer.train();
      CHECK(largest_difference(weights(), best) > 1e-3);
      accelerate::trainer::TrainerControl control;
      callback.on_train_end({trainer.arguments(), trainer.state(), trainer, {}}, control);
      CHECK(largest_difference(weights(), best) == 0);
    }
  });
}

}  // namespace programs_testing
