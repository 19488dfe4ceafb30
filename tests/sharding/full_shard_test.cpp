// SPDX-License-Identifier: Apache-2.0
// full_shard on ranks that are threads: gathers by operators, and refusals.
#include "tests/testing.hpp"
//
#include <torch/script.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/base/log.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/models.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using sharding_testing::AnyNet;
using sharding_testing::largest_difference;
using sharding_testing::loss_of;
using sharding_testing::waves;
using testing::refusal;

namespace {

AcceleratorOptions fully_sharded() {
  return {.cpu = true, .fsdp_plugin = {.sharding_strategy = ShardingStrategy::full_shard, .min_num_params = 20}};
}

void ends(const std::string& text, std::string_view end) { CHECK_MESSAGE(text.ends_with(end), text); }

/// A sharded MLP on this rank, and the same model as one process trains it.
struct Sharded {
  explicit Sharded(Accelerator& the_accelerator, const std::shared_ptr<AnyNet>& the_net = sharding_testing::mlp(),
                   const std::shared_ptr<AnyNet>& the_reference = sharding_testing::mlp())
      : accelerator(the_accelerator),
        net(the_net),
        reference(the_reference),
        own(net->parameters(), 1e-2),
        stock(reference->parameters(), 1e-2) {
    std::tie(model, optimizer) = accelerator.prepare(net, own);
  }

  /// Trains both on a batch that is the same on all ranks.
  template <typename LossOf>
  void train(const LossOf& loss) {
    optimizer.zero_grad();
    stock.zero_grad();
    accelerator.backward(loss(model));
    loss(*reference).backward();
    optimizer.step();
    stock.step();
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

void with_ranks(int64_t ranks, const std::function<void(Accelerator&)>& check,
                const AcceleratorOptions& options = fully_sharded()) {
  accelerate::simulate(ranks, [&] {
    Accelerator accelerator(options);
    check(accelerator);
  });
}

torch::Tensor batch(int64_t step = 0) { return waves({6, 7}, 0.1 * static_cast<double>(step)); }

/// The loss of a prepared model, or of a module.
const auto plain_loss = [](auto& net) { return loss_of(net.forward(batch())); };

bool has_memory(const torch::Tensor& parameter) {
  return parameter.unsafeGetTensorImpl()
             ->unsafe_storage()
             .unsafeGetStorageImpl()
             ->_mutable_data_ptr_no_checks()
             .get() != nullptr;
}

}  // namespace

TEST_CASE("between steps no parameter has memory, and the plan lists the units") {
  with_ranks(2, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    const auto check_freed = [&] {
      for (const auto& parameter : it.net->parameters()) CHECK_FALSE(has_memory(parameter));
    };
    check_freed();
    for (int64_t i = 0; i < 3; ++i) {
      it.train([&](auto& net) { return loss_of(net.forward(batch(i))); });
      check_freed();
      for (const auto& parameter : it.net->parameters()) CHECK_FALSE(parameter.grad().defined());
    }
    it.check();
    check_freed();
    CHECK(accelerator.distributed_type() == accelerate::DistributedType::fsdp);
    const auto plan = accelerator.sharding_plan(it.model);
    CHECK_MESSAGE(plan.starts_with("3 units, "), plan);
    CHECK(plan.find("unit 1: Double cpu, ") != std::string::npos);
    CHECK(plan.find("from layers.2.weight to layers.2.bias") != std::string::npos);
  });
}

TEST_CASE("prepare() logs the first line of the plan once per model, on rank 0 at level info") {
  using accelerate::base::LogLevel;
  std::vector<std::string> lines;
  const auto level = accelerate::base::log_level();
  accelerate::base::set_log_level(LogLevel::info);
  const auto before = accelerate::base::set_log_handler([&](LogLevel, std::string_view line) {
    if (line.find("prepare: sharding") != std::string_view::npos) lines.emplace_back(line);
  });
  for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_optim_op}) {
    with_ranks(2,
               [](Accelerator& accelerator) {
                 const Sharded it(accelerator);
                 const auto again = accelerator.prepare(it.net);
                 const auto evaluated = accelerator.prepare_model(it.net, /*evaluation_mode=*/true);
               },
               {.cpu = true, .fsdp_plugin = {.sharding_strategy = strategy, .min_num_params = 20}});
  }
  with_ranks(1, [](Accelerator& accelerator) { const Sharded it(accelerator); });
  with_ranks(2, [](Accelerator& accelerator) { const Sharded it(accelerator); }, {.cpu = true});
  accelerate::base::set_log_handler(before);
  accelerate::base::set_log_level(level);
  REQUIRE(lines.size() == 2);
  CHECK_MESSAGE(lines[0].starts_with("[rank 0 of 2"), lines[0]);
  ends(lines[0],
       "prepare: sharding full_shard divides the model (layers.0.weight and 5 more): 3 units, 286 elements on 2 ranks, "
       "152 on this one; sharding_plan() lists the units");
  CHECK_MESSAGE(lines[1].find("prepare: sharding shard_optim_op divides the model") != std::string::npos, lines[1]);
}

namespace {

/// Runs a check on two ranks after one step.
void after_a_step(const std::function<void(Sharded&)>& check) {
  with_ranks(2, [&](Accelerator& accelerator) {
    Sharded it(accelerator);
    it.train(plain_loss);
    check(it);
    it.train(plain_loss);
    it.check();
  });
}

}  // namespace

TEST_CASE("operators gather: two forwards, one backward") {
  after_a_step([](Sharded& it) {
    it.train([](auto& net) { return loss_of(net.forward(batch(1))) + loss_of(net.forward(batch(2))); });
  });
}

TEST_CASE("operators gather: evaluation between steps, without a graph and in inference mode") {
  after_a_step([](Sharded& it) {
    for (int64_t i = 0; i < 2; ++i) {
      torch::Tensor here, there;
      {
        const torch::NoGradGuard no_grad;
        here = it.model(batch(i));
        there = it.reference->forward(batch(i));
      }
      CHECK((here - there).abs().max().item<double>() < 1e-12);
      const c10::InferenceMode inference;
      CHECK((it.model(batch(i)) - there).abs().max().item<double>() < 1e-12);
    }
    for (const auto& parameter : it.net->parameters()) CHECK_FALSE(has_memory(parameter));
    it.train(plain_loss);
  });
}

TEST_CASE("operators gather: a forward without a backward") {
  after_a_step([](Sharded& it) {
    (void)it.model(batch(5));
    it.train(plain_loss);
  });
}

TEST_CASE("operators gather: activation checkpointing") {
  after_a_step([](Sharded& it) {
    auto inner = it.net->run;
    it.net->run = [inner](const torch::Tensor& x) { return accelerate::nn::checkpoint(inner, x); };
    const auto needs = [](auto& net) { return loss_of(net.forward(batch().requires_grad_(true))); };
    it.train(needs);
    it.train(needs);
  });
}

TEST_CASE("operators gather: a gradient with a graph, and the derivative of a gradient") {
  after_a_step([](Sharded& it) {
    const auto penalty = [](auto& net) {
      const auto x = batch().requires_grad_(true);
      const auto y = loss_of(net.forward(x));
      return y + torch::autograd::grad({y}, {x}, {}, true, true)[0].square().sum();
    };
    it.train(penalty);
  });
}

TEST_CASE("operators gather: one operator with parameters of several units") {
  after_a_step([](Sharded& it) {
    auto inner = it.net->run;
    auto list = it.net->parameters();
    it.net->run = [=](const torch::Tensor& x) {
      std::vector<torch::Tensor> flat;
      for (const auto& parameter : list) flat.push_back(parameter.flatten());
      return inner(x) * torch::cat(flat).square().mean();
    };
    auto reference_inner = it.reference->run;
    auto reference_list = it.reference->parameters();
    it.reference->run = [=](const torch::Tensor& x) {
      std::vector<torch::Tensor> flat;
      for (const auto& parameter : reference_list) flat.push_back(parameter.flatten());
      return reference_inner(x) * torch::cat(flat).square().mean();
    };
    it.train(plain_loss);
  });
}

TEST_CASE("operators gather: a plain loss.backward()") {
  after_a_step([](Sharded& it) {
    for (int64_t i = 0; i < 2; ++i) {
      it.optimizer.zero_grad();
      it.stock.zero_grad();
      loss_of(it.model(batch(i))).backward();
      loss_of(it.reference->forward(batch(i))).backward();
      it.optimizer.step();
      it.stock.step();
    }
    it.check();
  });
}

TEST_CASE("operators gather: views, shapes and copies of shapes need no values") {
  after_a_step([](Sharded& it) {
    const auto weight = it.net->parameters()[0];
    CHECK(weight.t().sizes() == at::IntArrayRef({7, 11}));
    CHECK(torch::zeros_like(weight).sum().item<double>() == 0);
    CHECK(weight.detach().view({77}).size(0) == 77);
    CHECK_FALSE(has_memory(weight));
  });
}

TEST_CASE("layers are sharded: LSTM and GRU") {
  with_ranks(2, [](Accelerator& accelerator) {
    const auto make = [] {
      torch::nn::LSTM lstm(torch::nn::LSTMOptions(7, 5).num_layers(2));
      torch::nn::GRU gru(torch::nn::GRUOptions(5, 3));
      auto net = std::make_shared<AnyNet>(
          [lstm, gru](const torch::Tensor& x) mutable { return std::get<0>(gru(std::get<0>(lstm(x.unsqueeze(0))))); });
      net->register_module("lstm", lstm);
      net->register_module("gru", gru);
      net->to(torch::kDouble);
      sharding_testing::fill(*net);
      return net;
    };
    Sharded it(accelerator, make(), make());
    for (int64_t i = 0; i < 4; ++i) it.train([&](auto& net) { return loss_of(net.forward(batch(i))); });
    it.check();
  });
}

TEST_CASE("layers are sharded: BatchNorm") {
  with_ranks(2, [](Accelerator& accelerator) {
    const auto make = [] {
      torch::nn::Sequential layers(torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 4, 3).bias(false)),
                                   torch::nn::BatchNorm1d(4), torch::nn::ReLU(),
                                   torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 8, 3).bias(false)),
                                   torch::nn::BatchNorm1d(8));
      auto net = std::make_shared<AnyNet>(
          [layers](const torch::Tensor& x) mutable { return layers->forward(x.unsqueeze(1)); });
      net->register_module("layers", layers);
      net->to(torch::kDouble);
      sharding_testing::fill(*net);
      return net;
    };
    Sharded it(accelerator, make(), make());
    for (int64_t i = 0; i < 4; ++i) it.train([&](auto& net) { return loss_of(net.forward(batch(i))); });
    it.check();
    CHECK(largest_difference(it.net->buffers(), it.reference->buffers()) < 1e-12);
  });
}

TEST_CASE("layers are sharded: sparse gradients become dense") {
  with_ranks(2, [](Accelerator& accelerator) {
    const auto make = [](bool is_sparse) {
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 6));
      auto net = std::make_shared<AnyNet>([table, is_sparse](const torch::Tensor& x) mutable {
        return at::embedding(table->weight, x, -1, false, is_sparse);
      });
      net->register_module("table", table);
      net->to(torch::kDouble);
      sharding_testing::fill(*net);
      return net;
    };
    Sharded it(accelerator, make(true), make(false));
    for (int64_t i = 0; i < 3; ++i) {
      it.train([&](auto& net) { return loss_of(net.forward(torch::arange(4) + i)); });
    }
    it.check();
  });
}

TEST_CASE("a TorchScript module is sharded") {
  with_ranks(2, [](Accelerator& accelerator) {
    const auto make = [] {
      auto module = std::make_shared<torch::jit::Module>("net");
      module->register_parameter("first", (waves({5, 7}, 1) * 0.3).requires_grad_(true), false);
      module->register_parameter("second", (waves({3, 5}, 2) * 0.3).requires_grad_(true), false);
      module->define("def forward(self, x):\n  return torch.tanh(x @ self.first.t()) @ self.second.t()\n");
      return module;
    };
    const auto net = make(), reference = make();
    const auto parameters_of = [](torch::jit::Module& module) {
      std::vector<torch::Tensor> list;
      for (const auto& parameter : module.parameters()) list.push_back(parameter);
      return list;
    };
    torch::optim::SGD own(parameters_of(*net), 0.1), stock(parameters_of(*reference), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, own);
    for (int64_t i = 0; i < 4; ++i) {
      optimizer.zero_grad();
      stock.zero_grad();
      accelerator.backward(loss_of(model({batch(i)}).toTensor()));
      loss_of(reference->forward({batch(i)}).toTensor()).backward();
      optimizer.step();
      stock.step();
    }
    const auto whole = Accelerator::summon_full_params(model);
    CHECK(largest_difference(parameters_of(*net), parameters_of(*reference)) < 1e-12);
  });
}

TEST_CASE("writes under no_grad, through data(), and in a scope with whole parameters persist") {
  with_ranks(3, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    auto inner = it.net->run;
    bool clamps = false;
    it.net->run = [inner, &clamps, net = it.net.get()](const torch::Tensor& x) {
      if (clamps) {
        const torch::NoGradGuard no_grad;
        net->parameters()[0].clamp_(-0.1, 0.1);
        net->parameters()[2].data().mul_(0.5);
      }
      return inner(x);
    };
    clamps = true;
    {
      const torch::NoGradGuard no_grad;
      (void)it.model(batch());
      it.reference->parameters()[0].clamp_(-0.1, 0.1);
      it.reference->parameters()[2].mul_(0.5);
    }
    clamps = false;
    it.check();
    {
      const auto whole = Accelerator::summon_full_params(it.model);
      it.net->parameters()[1].data_ptr<double>()[3] = 7;
      it.reference->parameters()[1].data_ptr<double>()[3] = 7;
    }
    it.train([&](auto& net) { return loss_of(net.forward(batch())); });
    it.check();
  });
}

TEST_CASE("without wrapping the model is one unit") {
  auto options = fully_sharded();
  options.fsdp_plugin.min_num_params.reset();
  options.fsdp_plugin.auto_wrap_policy = accelerate::AutoWrapPolicy::no_wrap;
  with_ranks(
      2,
      [](Accelerator& accelerator) {
        Sharded it(accelerator);
        CHECK(accelerator.sharding_plan(it.model).starts_with("1 units, "));
        for (int64_t i = 0; i < 3; ++i) it.train(plain_loss);
        it.check();
      },
      options);
}

TEST_CASE("a scope on rank 0 only, and one that drops changes, are refused with the remedy") {
  with_ranks(2, [](Accelerator& accelerator) {
    const Sharded it(accelerator);
    ends(refusal([&] { const auto whole = Accelerator::summon_full_params(it.model, {.rank0_only = true}); }),
         "summon_full_params: rank0_only is true, and the scope makes the parameters whole on every rank; call "
         "get_state_dict(model), which gathers them on rank 0 only, one after another");
    ends(refusal([&] { const auto whole = Accelerator::summon_full_params(it.model, {.writeback = false}); }),
         "summon_full_params: writeback is false, and changes in the scope always persist; change copies, such as "
         "parameter.clone()");
    it.check();
  });
}

TEST_CASE("options: parameters stay whole until the backward, no prefetch, and units by name") {
  for (int64_t variant = 0; variant < 4; ++variant) {
    auto options = fully_sharded();
    if (variant == 0) options.fsdp_plugin.reshard_after_forward = false;
    if (variant == 1) options.fsdp_plugin.forward_prefetch = false;
    if (variant == 2) options.fsdp_plugin.shard_units = {"layers.2"};
    if (variant == 3) options.fsdp_plugin.transformer_cls_names_to_wrap = {"Linear"};
    with_ranks(
        2,
        [&](Accelerator& accelerator) {
          Sharded it(accelerator);
          for (int64_t i = 0; i < 3; ++i) {
            it.train([&](auto& net) {
              const auto loss = loss_of(net.forward(batch(i)));
              if (variant == 0 && !std::is_same_v<decltype(net), AnyNet&>) {
                for (const auto& parameter : it.net->parameters()) CHECK(has_memory(parameter));
              }
              return loss;
            });
            for (const auto& parameter : it.net->parameters()) CHECK_FALSE(has_memory(parameter));
          }
          it.check();
          if (variant == 2)
            CHECK(accelerator.sharding_plan(it.model).find("from layers.2.weight") != std::string::npos);
        },
        options);
  }
}

TEST_CASE("uses outside a forward, direct memory accesses and moves are errors that name the parameter") {
  with_ranks(2, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    const auto weight = it.net->parameters()[0];
    ends(refusal([&] { (void)weight.sum(); }),
         "sharding: parameter layers.0.weight is sharded, and an operator used it outside model(x) and backward, where "
         "the 2 ranks do not gather it; call on all ranks: auto whole = accelerator.summon_full_params(model)");
    ends(refusal([&] { (void)it.model->forward(batch()); }), "accelerator.summon_full_params(model)");
    const auto memory = refusal<c10::Error>([&] { (void)weight.data_ptr(); });
    CHECK_MESSAGE(memory.find("parameter layers.0.weight is sharded, so it has no memory here; use operators, or "
                              "summon_full_params()") != std::string::npos,
                  memory);
    const auto moves = [&] {
      const auto whole = Accelerator::summon_full_params(it.model);
      it.net->to(torch::kFloat);
    };
    const auto saved = refusal<c10::Error>([&] { torch::save(it.net, "/dev/null"); });
    CHECK_MESSAGE(saved.find("parameter layers.0.weight is sharded, so it has no memory here") != std::string::npos,
                  saved);
    it.train([&](auto& net) { return loss_of(net.forward(batch())); });
    it.check();
    moves();
    ends(refusal([&] { (void)it.model(batch()); }),
         "forward: parameter layers.0.weight was moved or replaced after prepare(), is Float on cpu now, and is no "
         "longer "
         "sharded; move a module to another dtype or device before prepare()");
    ends(refusal([&] { it.optimizer.step(); }), "move a module to another dtype or device before prepare()");
  });
}

TEST_CASE("parameters of an Accelerator that no longer exists are errors, after free_memory() they are whole") {
  accelerate::simulate(2, [] {
    const auto net = sharding_testing::mlp(), freed = sharding_testing::mlp(), reference = sharding_testing::mlp();
    {
      Accelerator accelerator(fully_sharded());
      torch::optim::SGD sgd(freed->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(freed, sgd);
      accelerator.free_memory();
      CHECK(largest_difference(freed->parameters(), reference->parameters()) == 0);
      auto again = accelerator.prepare(net);
    }
    CHECK(freed->forward(batch()).equal(reference->forward(batch())));
    CHECK(freed->parameters()[0].data_ptr() != nullptr);
    ends(refusal([&] { (void)net->forward(batch()); }),
         ".bias is sharded, and the Accelerator that divided it no longer exists, so this rank has "
         "only a part of its values; before the Accelerator ends, save the model, or call free_memory() on all ranks, "
         "which makes the parameters whole");
  });
}

namespace {

/// A net with parameters of 7 elements, of which min_num_params = 14 makes units of two.
std::shared_ptr<AnyNet> net_of_vectors(const std::string& names) {
  auto net = std::make_shared<AnyNet>(nullptr);
  for (const char name : names) net->register_parameter(std::string(1, name), waves({7}, name));
  return net;
}

AcceleratorOptions units_of_14(ShardingStrategy strategy) {
  return {.cpu = true, .fsdp_plugin = {.sharding_strategy = strategy, .min_num_params = 14}};
}

using ForwardOfRank = std::function<torch::Tensor(const AnyNet& net, const torch::Tensor& x, int64_t rank)>;

/// Compares ranks with different forwards with one process that averages their losses.
void train_different_forwards(Accelerator& accelerator, Sharded& it, const ForwardOfRank& forward) {
  const int64_t ranks = accelerator.num_processes();
  it.net->run = [&](const torch::Tensor& x) { return forward(*it.net, x, accelerator.process_index()); };
  for (int64_t i = 0; i < 4; ++i) {
    it.optimizer.zero_grad();
    it.stock.zero_grad();
    accelerator.backward(loss_of(it.model(batch(i))));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      (loss_of(forward(*it.reference, batch(i), rank)) / static_cast<double>(ranks)).backward();
    }
    const auto norm = accelerator.clip_grad_norm_(it.model, 100);
    CHECK(norm.item<double>() ==
          doctest::Approx(torch::nn::utils::clip_grad_norm_(it.reference->parameters(), 100)).epsilon(1e-12));
    it.optimizer.step();
    it.stock.step();
  }
  it.check();
}

}  // namespace

TEST_CASE("a parameter that only some ranks use within a unit has zeros on the others, as in DDP") {
  enum class Use { none, without_loss };
  for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op}) {
    for (const Use on_others : {Use::none, Use::without_loss}) {
      for (const int64_t ranks : {2, 3, 4}) {
        with_ranks(
            ranks,
            [&](Accelerator& accelerator) {
              Sharded it(accelerator, net_of_vectors("abcdef"), net_of_vectors("abcdef"));
              CHECK(accelerator.sharding_plan(it.model).starts_with("3 units"));
              train_different_forwards(accelerator, it, [&](const AnyNet& net, const torch::Tensor& x, int64_t rank) {
                const auto p = net.named_parameters();
                auto y = torch::tanh(x * p["a"] + p["b"]) * p["c"];
                if (rank == 0) y = y + p["d"];
                if (rank != 0 && on_others == Use::without_loss) (void)(y + p["d"]);
                return torch::tanh(y) * p["e"] + p["f"];
              });
            },
            units_of_14(strategy));
      }
    }
  }
}

TEST_CASE("with shard_grad_op each rank may use other units in another order") {
  for (const int64_t ranks : {2, 3, 4}) {
    with_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          Sharded it(accelerator, net_of_vectors("abcdefgh"), net_of_vectors("abcdefgh"));
          CHECK(accelerator.sharding_plan(it.model).starts_with("4 units"));
          train_different_forwards(accelerator, it, [&](const AnyNet& net, const torch::Tensor& x, int64_t rank) {
            const auto p = net.named_parameters();
            if (rank == 0) return torch::tanh(torch::tanh(x * p["a"] + p["b"]) * p["c"] + p["d"]) * p["e"];
            if (rank == 1) return torch::tanh(x * p["e"] + p["f"]) * p["b"] + p["a"];
            return x * p["a"];
          });
          // The weight decay of AdamW does not change parameters that no rank used.
          const auto initial = net_of_vectors("gh"), trained = it.net;
          CHECK(trained->named_parameters()["g"].equal(initial->named_parameters()["g"]));
        },
        units_of_14(ShardingStrategy::shard_grad_op));
  }
}

TEST_CASE("a warning names zero_grad() and step() of LibTorch's optimizer, which do not reach sharded gradients") {
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto handler = accelerate::base::set_log_handler([&](auto, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  const auto warned = [&](const std::string& end) {
    return std::ranges::any_of(lines, [&](const std::string& line) { return line.ends_with(end); });
  };
  const std::string not_zeroed =
      " was not zeroed after the last step, and later backwards added to it. zero_grad() of the module or of "
      "LibTorch's optimizer does not reach sharded gradients: call that of the prepared optimizer or model";
  for (const auto strategy : {ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard}) {
    accelerate::base::reset_log_once();
    lines.clear();
    const auto train = [&](bool zeroes) {
      with_ranks(2, [&](Accelerator&) {
        Accelerator accelerator({.cpu = true, .sharding = strategy});
        Sharded sharded(accelerator);
        for (int step = 0; step < 2; ++step) {
          zeroes ? sharded.model.zero_grad() : sharded.net->zero_grad();
          accelerator.backward(loss_of(sharded.model(batch())));
          sharded.optimizer.step();
          sharded.optimizer.step();  // on the same gradients
        }
      });
    };
    train(/*zeroes=*/true);
    CHECK_FALSE(warned(not_zeroed));
    train(/*zeroes=*/false);
    CHECK(warned(not_zeroed));
    with_ranks(2, [&](Accelerator&) {
      Accelerator accelerator({.cpu = true, .sharding = strategy});
      Sharded sharded(accelerator);
      for (int step = 0; step < 4; ++step) {
        accelerator.backward(loss_of(sharded.model(batch())));
        sharded.own.step();
        sharded.optimizer.zero_grad();
      }
    });
    CHECK(
        warned("zero_grad: sharded gradients were zeroed 3 times without a step of the prepared optimizer, so the "
               "parameters did not change; call step() of the optimizer that prepare() returned, because that of "
               "LibTorch's optimizer does not reach sharded gradients"));
  }
  accelerate::base::set_log_handler(handler);
}

TEST_CASE("gradients that are not reduced are refused at the step") {
  with_ranks(2, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    {
      const auto local = accelerator.no_sync(it.model);
      accelerator.backward(loss_of(it.model(batch())));
    }
    ends(refusal([&] { it.optimizer.step(); }),
         "optimizer.step: the gradient of parameter layers.0.weight is this rank's own, not the mean of 2 ranks, "
         "because "
         "its backward ran under no_sync; run the last backward before a step outside");
    it.optimizer.zero_grad();
    it.net->parameters()[1].mutable_grad() = torch::ones({11}, torch::kDouble);
    ends(refusal([&] { it.optimizer.step(); }),
         "optimizer.step: parameter layers.0.bias has a gradient that was not reduced over the 2 ranks; set "
         "requires_grad "
         "before prepare(), and do not assign gradients of sharded parameters");
    it.optimizer.zero_grad();
    it.train([&](auto& net) { return loss_of(net.forward(batch())); });
    it.check();
  });
}

TEST_CASE("what cannot be sharded is refused in prepare()") {
  with_ranks(2, [](Accelerator& accelerator) {
    auto net = sharding_testing::mlp();
    net->register_parameter("again", net->parameters()[0].detach().view({7, 11}));
    ends(refusal([&] { (void)accelerator.prepare(net); }),
         "prepare: parameters again and layers.0.weight are two tensors that share memory; with sharding register one "
         "tensor under both names");
  });
  auto options = fully_sharded();
  options.comm_hook = accelerate::gradient::fp16_compress_hook();
  with_ranks(
      2,
      [](Accelerator& accelerator) {
        ends(refusal([&] { (void)accelerator.prepare(sharding_testing::mlp()); }),
             "prepare: a communication hook is set, which reduces whole gradients, while sharding full_shard reduces "
             "them "
             "to parts; remove the hook, or use shard_optim_op");
      },
      options);
}

TEST_CASE("a checkpoint within an accumulation window is refused") {
  auto options = fully_sharded();
  options.gradient_accumulation_steps = 2;
  with_ranks(
      2,
      [](Accelerator& accelerator) {
        Sharded it(accelerator);
        {
          const auto window = accelerator.accumulate(it.model);
          accelerator.backward(loss_of(it.model(batch())));
          it.optimizer.step();
        }
        ends(refusal([&] { accelerator.save_state("/tmp/never-written"); }),
             "save_state: the accumulation window is open, and with sharding full_shard each rank has a part of its "
             "gradients, which is not saved; save where sync_gradients() is true");
      },
      options);
}

TEST_CASE("moving averages of parts are those of the whole") {
  with_ranks(2, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    accelerate::optim::ExponentialMovingAverage ours(it.model, {.decay = 0.9}), stock(*it.reference, {.decay = 0.9});
    for (int64_t i = 0; i < 4; ++i) {
      it.train([&](auto& net) { return loss_of(net.forward(batch(i))); });
      ours.update();
      stock.update();
    }
    ends(refusal([&] { (void)ours.state_dict(); }),
         " elements of its average; give the averages to register_for_checkpointing(), so that save_state() writes the "
         "elements of all ranks, or call average_parameters(), and save the model with save_model() while the averages "
         "are its weights");
    CHECK_THROWS_AS(ours.load_state_dict(stock.state_dict()), accelerate::Error);
    {
      const auto averaged = ours.average_parameters();
      const auto other = stock.average_parameters();
      const torch::NoGradGuard no_grad;
      CHECK((it.model(batch(9)) - it.reference->forward(batch(9))).abs().max().item<double>() < 1e-12);
    }
    it.train([&](auto& net) { return loss_of(net.forward(batch(5))); });
    it.check();
  });
}

TEST_CASE("the norm of gradients counts each element once") {
  with_ranks(3, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    accelerator.backward(loss_of(it.model(batch())));
    loss_of(it.reference->forward(batch())).backward();
    const double expected = torch::nn::utils::clip_grad_norm_(it.reference->parameters(), 0.01);
    CHECK(accelerator.clip_grad_norm_(it.model, 0.01).item<double>() == doctest::Approx(expected).epsilon(1e-12));
    CHECK(accelerator.clip_grad_norm_(it.model, 1e9).item<double>() == doctest::Approx(0.01).epsilon(1e-6));
    it.optimizer.step();
    it.stock.step();
    it.check();
    const auto whole = torch::zeros({4}, torch::kDouble).requires_grad_(true);
    whole.mutable_grad() = torch::ones({4}, torch::kDouble);
    auto list = it.net->parameters();
    list.push_back(whole);
    ends(
        refusal([&] { (void)accelerator.clip_grad_norm_(list, 1.0); }),
        "clip_grad_norm_: 6 of the parameters are sharded over the ranks, and one of shape [4] has a whole gradient on "
        "each rank, so their common norm would count it 3 times; clip them in separate calls");
  });
}

TEST_CASE("get_state_dict() and save_model() have the whole model") {
  const testing::TemporaryFolder folder;
  with_ranks(2, [&](Accelerator& accelerator) {
    Sharded it(accelerator);
    it.train([&](auto& net) { return loss_of(net.forward(batch())); });
    const auto dict = accelerator.get_state_dict(it.model);
    CHECK(dict.is_empty() == (accelerator.process_index() != 0));
    for (const auto& parameter : it.reference->named_parameters()) {
      if (accelerator.process_index() != 0) break;
      CHECK((dict[parameter.key()] - parameter.value()).abs().max().item<double>() < 1e-12);
    }
    accelerator.save_model(it.model, folder.path);
    for (const auto& parameter : it.net->parameters()) CHECK_FALSE(has_memory(parameter));
    const auto other = sharding_testing::mlp();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : other->parameters()) parameter.zero_();
    }
    Accelerator second(accelerator.group(), fully_sharded());
    auto loaded = second.prepare(other);
    second.load_model(loaded, folder.path);
    const auto whole = Accelerator::summon_full_params(loaded);
    CHECK(largest_difference(other->parameters(), it.reference->parameters()) < 1e-12);
  });
}

TEST_CASE("gradients without a prepared optimizer, and a step within a scope with whole parameters, are refused") {
  with_ranks(2, [](Accelerator& accelerator) {
    const auto net = sharding_testing::mlp();
    auto model = accelerator.prepare(net);
    accelerator.backward(loss_of(model(batch())));
    ends(refusal([&] { accelerator.backward(loss_of(model(batch()))); }),
         "backward: with sharding full_shard the gradients of parameter layers.0.weight and 5 more are kept for "
         "prepared "
         "optimizers, and no prepared optimizer has these parameters; give the optimizer to prepare()");
    accelerator.free_memory();
    Sharded it(accelerator);
    it.optimizer.zero_grad();
    accelerator.backward(loss_of(it.model(batch())));
    {
      const auto whole = Accelerator::summon_full_params(it.model);
      ends(refusal([&] { it.optimizer.step(); }),
           "optimizer.step: a scope of summon_full_params() is open, which would overwrite the step at its end; step "
           "outside of it");
    }
    it.train(plain_loss);
    it.check();
  });
}

TEST_CASE("a model that is saved in a scope with whole parameters has the values of the scope") {
  const testing::TemporaryFolder folder;
  with_ranks(2, [&](Accelerator& accelerator) {
    Sharded it(accelerator);
    const auto other = sharding_testing::mlp();
    {
      const auto whole = Accelerator::summon_full_params(it.model);
      const torch::NoGradGuard no_grad;
      it.net->parameters()[2].mul_(0.5);
      it.reference->parameters()[2].mul_(0.5);
      accelerator.save_model(it.model, folder.path);
    }
    it.check();
    Accelerator plain(accelerator.group(), {.cpu = true});
    auto loaded = plain.prepare(other);
    plain.load_model(loaded, folder.path);
    CHECK(largest_difference(other->parameters(), it.reference->parameters()) < 1e-12);
    accelerator.free_memory();
  });
}

TEST_CASE("gradients that are set to zero count as gradients, also after a failed backward") {
  with_ranks(2, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    it.train(plain_loss);
    auto output = it.model(batch());
    output.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
      if (gradient.defined()) throw std::runtime_error("in backward");
      return gradient;
    });
    CHECK_THROWS_AS(accelerator.backward(loss_of(output)), std::runtime_error);
    it.optimizer.zero_grad(/*set_to_none=*/false);
    it.stock.zero_grad(/*set_to_none=*/false);
    it.optimizer.step();  // by momentum and weight decay
    it.stock.step();
    it.check();
    accelerator.backward(plain_loss(it.model));
    plain_loss(*it.reference).backward();
    it.optimizer.step();
    it.stock.step();
    it.check();
  });
}

TEST_CASE("a handle for evaluation gathers the parameters of the training model") {
  with_ranks(2, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    auto evaluated = accelerator.prepare_model(it.net, /*evaluation_mode=*/true);
    it.train(plain_loss);
    const torch::NoGradGuard no_grad;
    CHECK((evaluated(batch()) - it.reference->forward(batch())).abs().max().item<double>() < 1e-12);
    it.check();
  });
}

TEST_CASE("two optimizers of one model keep their gradients in the last micro-batch") {
  auto options = fully_sharded();
  options.gradient_accumulation_steps = 2;
  with_ranks(
      2,
      [](Accelerator& accelerator) {
        const auto net = sharding_testing::mlp(), reference = sharding_testing::mlp();
        const auto halves = [](AnyNet& of, double rate) {
          const auto list = of.parameters();
          return std::pair(
              std::make_unique<torch::optim::SGD>(std::vector<torch::Tensor>(list.begin(), list.begin() + 2), rate),
              std::make_unique<torch::optim::SGD>(std::vector<torch::Tensor>(list.begin() + 2, list.end()), rate));
        };
        auto [own_a, own_b] = halves(*net, 0.1);
        auto [stock_a, stock_b] = halves(*reference, 0.1);
        auto [model, a, b] = accelerator.prepare(net, *own_a, *own_b);
        // Each optimizer's loss reaches its own parameters only.
        const auto loss_of_a = [](AnyNet& of) { return of.parameters()[0].square().sum(); };
        const auto loss_of_b = [](AnyNet& of) { return of.parameters()[2].square().sum() + of.parameters()[4].sum(); };
        const auto inner = net->run;
        for (int64_t half = 0; half < 2; ++half) {
          const auto window = accelerator.accumulate(model);
          a.zero_grad();
          net->run = [&](const torch::Tensor&) { return loss_of_a(*net); };
          accelerator.backward(model(batch()));
          a.step();
          b.zero_grad();
          net->run = [&](const torch::Tensor&) { return loss_of_b(*net); };
          accelerator.backward(model(batch()));
          b.step();
          (loss_of_a(*reference) / 2).backward();
          (loss_of_b(*reference) / 2).backward();
        }
        net->run = inner;
        stock_a->step();
        stock_b->step();
        const auto whole = Accelerator::summon_full_params(model);
        CHECK(largest_difference(net->parameters(), reference->parameters()) < 1e-12);
      },
      options);
}

TEST_CASE("averages of parts that end between parameters are refused as a state, and after another division") {
  with_ranks(2,
             [](Accelerator& accelerator) {
               torch::nn::Sequential layers(torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)),
                                            torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)));
               auto net =
                   std::make_shared<AnyNet>([layers](const torch::Tensor& x) mutable { return layers->forward(x); });
               net->register_module("layers", layers);
               net->to(torch::kDouble);
               torch::optim::SGD sgd(net->parameters(), 0.1);
               auto [model, optimizer] = accelerator.prepare(net, sgd);
               accelerate::optim::ExponentialMovingAverage averages(model);
               ends(refusal([&] { (void)averages.state_dict(); }),
                    " elements of its average; give the averages to register_for_checkpointing(), so that save_state() "
                    "writes the elements of all ranks, or call average_parameters(), and save the model with "
                    "save_model() while the averages are its weights");
               averages.update();
               accelerator.free_memory();
               ends(refusal([&] { averages.update(); }),
                    " when the averages began: its model was sharded in another way, or free_memory() was called; make "
                    "new averages");
             },
             {.cpu = true, .fsdp_plugin = {.sharding_strategy = ShardingStrategy::full_shard, .min_num_params = 100}});
}

TEST_CASE("an out-of-memory report counts the parts of this rank") {
  with_ranks(2, [](Accelerator& accelerator) {
    Sharded it(accelerator);
    accelerator.backward(loss_of(it.model(batch())));
    it.optimizer.step();
    it.optimizer.zero_grad();
    accelerator.backward(loss_of(it.model(batch())));
    int64_t parameters = 0, gradients = 0, parameters_of_all = 0, state = 0, state_of_all = 0;
    bool names_part = false;
    for (const auto& entry : it.model.core().memory_inventory()) {
      if (entry.kind == "parameters") parameters += entry.bytes, parameters_of_all += entry.whole_bytes;
      if (entry.kind.starts_with("optimizer")) state += entry.bytes, state_of_all += entry.whole_bytes;
      if (entry.kind == "gradients") gradients += entry.bytes;
      names_part = names_part || entry.text.ends_with(" of 77 elements");
    }
    int64_t whole = 0;
    for (const auto& parameter : it.net->parameters()) whole += static_cast<int64_t>(parameter.nbytes());
    CHECK(accelerator.reduce(torch::tensor({parameters})).item<int64_t>() == whole);
    CHECK(parameters_of_all == whole);
    CHECK(accelerator.reduce(torch::tensor({state})).item<int64_t>() == state_of_all);
    CHECK(state_of_all == 2 * whole);
    CHECK(gradients >= parameters);
    CHECK(gradients <= parameters + 64 * 8);  // padding
    CHECK(names_part);
  });
}

TEST_CASE("a rank that leaves in a forward is named with the unit") {
  accelerate::comm::run_threads(
      2,
      [](const accelerate::comm::Group& group) {
        Accelerator accelerator(group, fully_sharded());
        Sharded it(accelerator);
        if (group.rank() == 1) return;
        const auto text = refusal([&] { (void)it.model(batch()); });
        CHECK_MESSAGE(text.find("forward: unit 0 (layers.0.weight and 1 more) is not gathered: ") != std::string::npos,
                      text);
        CHECK_MESSAGE(text.find("rank 1") != std::string::npos, text);
      },
      std::chrono::seconds(5));
}

TEST_CASE("a rank that leaves in a backward is named with the unit whose gradients it does not reduce") {
  accelerate::comm::run_threads(
      2,
      [](const accelerate::comm::Group& group) {
        Accelerator accelerator(group, fully_sharded());
        Sharded it(accelerator);
        it.train(plain_loss);
        bool leaves = false;
        it.net->run = [&, list = it.net->parameters()](torch::Tensor x) {
          for (size_t layer = 0; layer < 3; ++layer) {
            if (leaves && layer == 2) x.register_hook([](const torch::Tensor&) { throw std::runtime_error("leaves"); });
            x = at::linear(x, list[2 * layer], list[2 * layer + 1]).tanh();
          }
          return x;
        };
        leaves = group.rank() == 1;
        const auto loss = loss_of(it.model(batch()));
        if (leaves) {
          CHECK_THROWS_AS(accelerator.backward(loss), std::runtime_error);
          return;
        }
        const auto text = refusal([&] { accelerator.backward(loss); });
        // Unit 0 starts its reduction before rank 0 waits for that of unit 1.
        CHECK_MESSAGE(text.find("backward: the gradients of unit 1 (layers.2.weight and 1 more) are not reduced: ") !=
                          std::string::npos,
                      text);
        CHECK_MESSAGE(text.find("rank 1") != std::string::npos, text);
      },
      std::chrono::seconds(5));
}

TEST_CASE("a rank that leaves before it gathers a unit is named by the one that gathered ahead and needs it no more") {
  accelerate::comm::run_threads(
      2,
      [](const accelerate::comm::Group& group) {
        auto options = fully_sharded();
        options.fsdp_plugin.forward_prefetch = group.rank() == 0;
        Accelerator accelerator(group, options);
        Sharded it(accelerator);
        it.train(plain_loss);
        it.net->run = [list = it.net->parameters()](const torch::Tensor& x) { return at::linear(x, list[0], list[1]); };
        (void)it.model(batch());
        if (group.rank() == 1) return;
        const auto text = refusal([&] { (void)it.model(batch()); });
        CHECK_MESSAGE(text.find("forward: unit 1 (layers.2.weight and 1 more) is not gathered: ") != std::string::npos,
                      text);
        CHECK_MESSAGE(text.find("rank 1") != std::string::npos, text);
      },
      std::chrono::seconds(5));
}
