// SPDX-License-Identifier: Apache-2.0
// Whole training programs on two ranks that are threads, compared with one process.
#include "tests/testing.hpp"
//
#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <future>
#include <optional>
#include <sstream>
#include <string>

#include "accelerate/accelerate.hpp"
#include "accelerate/trainer/trainer.hpp"
#include "tests/refusal.hpp"
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

namespace {

void on_thread(const std::function<void()>& call) { std::async(std::launch::async, call).get(); }

using Forward = std::function<torch::Tensor(torch::Tensor)>;

/// Wraps the forward of the model and of the reference.
void wrap_forwards(Program& it,
                   const std::function<torch::Tensor(AnyNet&, const Forward&, const torch::Tensor&)>& wrapper) {
  for (const auto& net : {it.net, it.reference}) {
    net->run = [forward = net->run, net = net.get(), wrapper](const torch::Tensor& x) {
      return wrapper(*net, forward, x);
    };
  }
}

/// x * w^T with a backward of the user.
struct Product : torch::autograd::Function<Product> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& w) {
    context->save_for_backward({x, w});
    return x.matmul(w.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].matmul(saved[1]), gradients[0].t().matmul(saved[0])};
  }
};

}  // namespace

TEST_CASE("layers are sharded: weight norm, a TransformerEncoderLayer and a Function with its own backward") {
  const auto make = [] {
    torch::nn::TransformerEncoderLayer layer(
        torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0));
    auto net = std::make_shared<AnyNet>(nullptr);
    net->register_module("layer", layer);
    net->register_parameter("direction", torch::zeros({8, 7}));
    net->register_parameter("length", torch::zeros({8, 1}));
    net->register_parameter("product", torch::zeros({9, 8}));
    net->to(torch::kDouble);
    sharding_testing::fill(*net);
    // The bias of the keys is frozen, because its gradient is rounding noise, which Adam amplifies.
    layer->self_attn->in_proj_bias.set_requires_grad(false);
    net->run = [layer, net = net.get()](const torch::Tensor& x) mutable {
      const auto parameters = net->named_parameters();
      const auto weight = at::_weight_norm(parameters["direction"], parameters["length"], 0);
      const auto y = layer(at::linear(x, weight).transpose(0, 1)).transpose(0, 1);
      return Product::apply(y.reshape({-1, 8}), parameters["product"]);
    };
    return net;
  };
  with_strategies([&](Accelerator& accelerator) {
    Program it(accelerator, make(), make());
    for (int64_t i = 0; i < 5; ++i) it.step(waves({12, 4, 7}, 0.1 * static_cast<double>(i)));
    it.check();
  });
}

TEST_CASE("steps without callbacks of RecordFunction, and steps on other threads, are those of one process") {
  with_strategies([](Accelerator& accelerator) {
    Program it(accelerator);
    it.step(batch(0));
    {
      const at::RecordFunctionGuard off(false);
      it.step(batch(1));
    }
    on_thread([&] { it.step(batch(2)); });
    torch::Tensor loss;
    it.optimizer.zero_grad();
    on_thread([&] { loss = loss_of(it.model(rows_of(accelerator, batch(3)))); });
    on_thread([&] { accelerator.backward(loss); });
    on_thread([&] { it.optimizer.step(); });
    it.stock.zero_grad();
    loss_of(it.reference->forward(batch(3))).backward();
    it.stock.step();
    it.step(batch(4));
    it.check();
  });
}

TEST_CASE("threads within a forward, equal() and item() of parameters are those of one process") {
  with_strategies([](Accelerator& accelerator) {
    Program it(accelerator);
    it.step(batch(0));
    wrap_forwards(it, [](AnyNet& net, const Forward& forward, const torch::Tensor& x) {
      const auto parameters = net.parameters();
      CHECK(parameters[1].equal(parameters[1]));
      CHECK_FALSE(parameters[1].equal(parameters[3]));
      return forward(x) * parameters[3][0].item<double>();
    });
    it.step(batch(1));
    wrap_forwards(it, [](AnyNet&, const Forward& forward, const torch::Tensor& x) {
      std::vector<torch::Tensor> outputs;
      // In turn, because the threads of all ranks must gather in one order.
      for (const auto& rows : x.chunk(3)) outputs.push_back(std::async(std::launch::async, forward, rows).get());
      return torch::cat(outputs);
    });
    for (int64_t i = 2; i < 6; ++i) it.step(batch(i));
    it.check();
  });
}

TEST_CASE("forwards on four threads at once have the outputs of one process, also with parameters on the host") {
  // With several ranks, threads would gather the units in another order on each rank.
  for (const bool cpu_offload : {false, true}) {
    CAPTURE(cpu_offload);
    accelerate::simulate(1, [&] {
      auto options = sharded(full_shard);
      options.fsdp_plugin.cpu_offload = cpu_offload;
      Accelerator accelerator(options);
      Program it(accelerator);
      it.step(batch(0));
      const torch::NoGradGuard no_grad;
      const auto expected = it.reference->forward(batch(1));
      const auto evaluate = [&] {
        const torch::NoGradGuard no_grad_here;
        double largest = 0;
        for (int64_t i = 0; i < 50; ++i) {
          largest = std::max(largest, (it.model(batch(1)) - expected).abs().max().item<double>());
        }
        return largest;
      };
      std::vector<std::future<double>> running;
      for (int64_t i = 0; i < 4; ++i) running.push_back(std::async(std::launch::async, evaluate));
      for (auto& each : running) CHECK(each.get() < 1e-12);
    });
  }
}

TEST_CASE("a forward prints clones of parameters, and float32 parameters, but LibTorch prints float64 from memory") {
  const auto text_of = [](const torch::Tensor& tensor) { return (std::stringstream() << tensor).str(); };
  for (const auto strategy : {full_shard, shard_grad_op}) {
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      CAPTURE(strategy_name(strategy));
      CAPTURE(c10::toString(dtype));
      accelerate::simulate(2, [&] {
        Accelerator accelerator(sharded(strategy));
        const auto net = mlp(), reference = mlp();
        for (const auto& each : {net, reference}) each->to(dtype);
        const auto model = accelerator.prepare(net);
        const std::string expected = text_of(reference->parameters()[0]);
        net->run = [&, forward = net->run](const torch::Tensor& x) {
          const auto weight = net->parameters()[0];
          if (dtype == torch::kFloat) CHECK(text_of(weight) == expected);
          if (dtype == torch::kDouble && strategy == full_shard) {
            const std::string text = testing::refusal<c10::Error>([&] { (void)text_of(weight); });
            CHECK_MESSAGE(text.find("parameter layers.0.weight is sharded, so it has no memory here; use operators") !=
                              std::string::npos,
                          text);
          }
          CHECK(text_of(weight.clone()) == expected);
          return forward(x);
        };
        const auto x = batch(0).to(dtype);
        CHECK((model(x) - reference->forward(x)).abs().max().template item<double>() < 1e-6);
      });
    }
  }
}

TEST_CASE("two forwards in one autocast region give the parameters of unsharded training") {
  std::vector<torch::Tensor> expected;
  for (const auto strategy : {no_shard, full_shard, shard_grad_op}) {
    CAPTURE(strategy_name(strategy));
    auto options = sharded(strategy);
    options.mixed_precision = accelerate::Precision::bf16;
    accelerate::simulate(2, [&] {
      Accelerator accelerator(options);
      const auto net = mlp();
      net->to(torch::kFloat);
      torch::optim::AdamW own(net->parameters(), 1e-3);
      auto [model, optimizer] = accelerator.prepare(net, own);
      const auto loss = [&](int64_t i) { return loss_of(model(rows_of(accelerator, batch(i)).to(torch::kFloat))); };
      for (int64_t i = 0; i < 6; ++i) {
        optimizer.zero_grad();
        torch::Tensor sum;
        {
          const auto region = accelerator.autocast();
          sum = loss(i) + loss(i + 1);
        }
        accelerator.backward(sum);
        optimizer.step();
      }
      const auto whole = Accelerator::summon_full_params(model);
      if (accelerator.process_index() != 0) return;
      std::vector<torch::Tensor> trained;
      for (const auto& parameter : net->parameters()) trained.push_back(parameter.detach().clone());
      if (strategy == no_shard) expected = trained;
      // The ranks of a sharded model and of DDP may add the float32 gradients in another order.
      CHECK(largest_difference(trained, expected) < 1e-5);
    });
    CHECK(expected.size() == 6);
  }
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
