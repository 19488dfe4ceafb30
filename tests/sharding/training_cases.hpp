// SPDX-License-Identifier: Apache-2.0
// Training with sharded optimizer state, for any kind of ranks. The including file defines
// with_sharded_ranks(), which omits numbers of ranks that dp_shard_size does not divide.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "tests/checkpoint/folder.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/models.hpp"

namespace sharding_testing {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using testing::refusal;

/// Units of 512 bytes or 30 elements, so that small models have several and parameters are cut.
/// Replicas of the hybrid strategies have one rank.
inline AcceleratorOptions sharded(ShardingStrategy strategy = ShardingStrategy::shard_optim_op) {
  AcceleratorOptions options{.cpu = true,
                             .sharding = strategy,
                             .fsdp_plugin = {.min_num_params = 30},
                             .buckets = {.cap_bytes = 512, .first_cap_bytes = 512}};
  if (accelerate::sharding::is_hybrid(strategy)) options.fsdp_plugin.dp_shard_size = 1;
  return options;
}
inline AcceleratorOptions not_sharded() { return {.cpu = true}; }

/// Replicas of `ranks` ranks each.
inline AcceleratorOptions hybrid(int64_t ranks, ShardingStrategy strategy = ShardingStrategy::hybrid_shard) {
  auto options = sharded(strategy);
  options.fsdp_plugin.dp_shard_size = ranks;
  return options;
}

/// On the CPU the parts are in the memory of the host anyway. A single rank is sharded, too.
inline AcceleratorOptions offloaded(ShardingStrategy strategy = ShardingStrategy::full_shard) {
  auto options = sharded(strategy);
  options.fsdp_plugin.cpu_offload = true;
  return options;
}

/// The hybrid strategies run on multiples of their ranks only.
inline void with_strategies(const std::function<void(Accelerator&)>& check, int64_t accumulation_steps = 1) {
  using enum ShardingStrategy;
  for (AcceleratorOptions options : {sharded(shard_optim_op), sharded(shard_grad_op), sharded(full_shard), offloaded(),
                                     sharded(hybrid_shard), hybrid(2), hybrid(2, hybrid_shard_zero2)}) {
    CAPTURE(strategy_name(*options.sharding));
    CAPTURE(options.fsdp_plugin.cpu_offload.value_or(false));
    CAPTURE(options.fsdp_plugin.dp_shard_size.value_or(0));
    options.gradient_accumulation_steps = accumulation_steps;
    with_sharded_ranks(options, check);
  }
}

/// Collective.
template <typename Model>
double difference(const Model& model, const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  const auto whole = Accelerator::summon_full_params(model);
  return largest_difference(a, b);
}

inline torch::Tensor rows_of(const Accelerator& accelerator, const torch::Tensor& batch) {
  const int64_t rows = batch.size(0) / accelerator.num_processes();
  return batch.narrow(0, accelerator.process_index() * rows, rows);
}

inline void stock_step(AnyNet& net, torch::optim::Optimizer& optimizer, const torch::Tensor& batch) {
  optimizer.zero_grad();
  loss_of(net.forward(batch)).backward();
  optimizer.step();
}

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// One step of each rank on its rows.
template <typename Model, typename Optimizer>
void step(Accelerator& accelerator, Model& model, Optimizer& optimizer, const torch::Tensor& batch) {
  optimizer.zero_grad();
  accelerator.backward(loss_of(model(rows_of(accelerator, batch))));
  optimizer.step();
}

TEST_CASE("20 steps are those of one process with LibTorch's optimizer, for every model and optimizer") {
  with_strategies([](Accelerator& accelerator) {
    for (const ModelCase& of : model_cases()) {
      for (const OptimizerCase& with : optimizer_cases(of)) {
        CAPTURE(of.name);
        CAPTURE(with.name);
        const auto reference = of.make();
        const auto stock = with.make(reference->parameters());
        const auto net = of.make();
        auto own = with.make(net->parameters());
        auto [model, optimizer] = accelerator.prepare(net, *own);
        for (int64_t i = 0; i < 20; ++i) {
          stock_step(*reference, *stock, of.inputs(i));
          step(accelerator, model, optimizer, of.inputs(i));
        }
        CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
        CHECK(largest_difference(net->buffers(), reference->buffers()) < 1e-12);
        accelerator.check_synchronized(model);
        accelerator.free_memory();
      }
    }
  });
}

TEST_CASE("cpu_offload trains bit for bit as full_shard without it") {
  with_sharded_ranks(offloaded(), [](Accelerator& accelerator) {
    if (accelerator.num_processes() == 1) return;  // without cpu_offload a single rank is not sharded
    Accelerator without(accelerator.group(), sharded(ShardingStrategy::full_shard));
    for (const ModelCase& of : model_cases()) {
      CAPTURE(of.name);
      const auto net = of.make(), other = of.make();
      torch::optim::AdamW own(net->parameters(), 1e-2), stock(other->parameters(), 1e-2);
      auto [model, optimizer] = accelerator.prepare(net, own);
      auto [plain, plain_optimizer] = without.prepare(other, stock);
      for (int64_t i = 0; i < 5; ++i) {
        step(accelerator, model, optimizer, of.inputs(i));
        step(without, plain, plain_optimizer, of.inputs(i));
      }
      {
        const auto whole = Accelerator::summon_full_params(model);
        CHECK(difference(plain, net->parameters(), other->parameters()) == 0);
      }
      accelerator.free_memory();
      without.free_memory();
    }
  });
}

TEST_CASE("cpu_offload divides the model of a single rank, too") {
  with_sharded_ranks(offloaded(), [](Accelerator& accelerator) {
    const auto net = mlp();
    torch::optim::AdamW adamw(net->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    CHECK(accelerator.sharding_plan(model).find(fmt::format("elements on {} ranks", accelerator.num_processes())) !=
          std::string::npos);
    step(accelerator, model, optimizer, model_cases()[0].inputs(0));
    CHECK(refusal<c10::Error>([&] { (void)net->parameters()[0].data_ptr(); }).find("is sharded") != std::string::npos);
  });
}

TEST_CASE("the ranks together keep the optimizer state once, each an equal part") {
  with_sharded_ranks(sharded(), [](Accelerator& accelerator) {
    const auto net = mlp();
    torch::optim::AdamW adamw(net->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    step(accelerator, model, optimizer, model_cases()[0].inputs(0));
    int64_t all = 0;
    for (const auto& parameter : net->parameters()) all += parameter.numel();
    const int64_t mine = state_elements(adamw, net->parameters());
    CHECK(accelerator.reduce(torch::tensor({mine})).item<int64_t>() == 2 * all);
    if (accelerator.num_processes() == 1) {
      CHECK(accelerator.sharding_plan(model) == "not sharded");
      return;
    }
    const auto text = accelerator.sharding_plan(model);
    CHECK(text.find(fmt::format("{} elements on {} ranks, {} on this one\nunit 0: Double cpu", all,
                                accelerator.num_processes(), mine / 2)) != std::string::npos);
    CHECK(text.find("parameters from layers.0.weight to layers.0.weight") != std::string::npos);
    CHECK(mine <= 2 * (all / accelerator.num_processes() + 16 * 5));  // padding of five units
  });
}

/// What a program may do with parameters between a step and the next forward. Each copies the values that it saw into
/// the list, in the order of the parameters. Collective.
struct Reader {
  std::string name;
  std::function<void(Accelerator&, accelerate::PreparedModel<AnyNet>&, std::vector<torch::Tensor>&)> read;
};

inline torch::Tensor memory_of(const torch::Tensor& parameter) {
  return torch::from_blob(parameter.data_ptr(), parameter.sizes(), parameter.options().requires_grad(false)).clone();
}

inline std::vector<Reader> readers() {
  using Model = accelerate::PreparedModel<AnyNet>;
  using Tensors = std::vector<torch::Tensor>;
  const auto add_all = [](const torch::OrderedDict<std::string, torch::Tensor>& dict, const AnyNet& net,
                          Tensors& seen) {
    for (const auto& item : net.named_parameters()) seen.push_back(dict[item.key()].clone());
  };
  return {{"operators, the last parameter first",
           [](Accelerator&, Model& model, Tensors& seen) {
             auto list = model.core().parameters();
             for (auto it = list.rbegin(); it != list.rend(); ++it)
               seen.insert(seen.begin(), it->tensor.detach().clone());
           }},
          {"data()",
           [](Accelerator&, Model& model, Tensors& seen) {
             for (const auto& [name, tensor] : model.core().parameters()) seen.push_back(tensor.data() + 0);
           }},
          {"memory of parameters()",
           [](Accelerator&, Model& model, Tensors& seen) {
             for (const auto& parameter : model.parameters()) seen.push_back(memory_of(parameter));
           }},
          {"memory of the module",
           [](Accelerator&, Model& model, Tensors& seen) {
             for (const auto& parameter : model->parameters()) seen.push_back(memory_of(parameter));
           }},
          {"clone() of the module",
           [](Accelerator&, Model& model, Tensors& seen) {
             for (const auto& parameter : model.unwrap()->children()[0]->clone()->parameters())
               seen.push_back(parameter);
           }},
          {"wait_for_everyone()",
           [](Accelerator& accelerator, Model& model, Tensors& seen) {
             accelerator.wait_for_everyone();
             for (const auto& [name, tensor] : model.core().parameters()) seen.push_back(memory_of(tensor));
           }},
          {"summon_full_params()",
           [](Accelerator&, Model& model, Tensors& seen) {
             const auto whole = Accelerator::summon_full_params(model);
             for (const auto& [name, tensor] : model.core().parameters()) seen.push_back(memory_of(tensor));
           }},
          {"get_state_dict()", [=](Accelerator& accelerator, Model& model,
                                   Tensors& seen) { add_all(accelerator.get_state_dict(model), *model, seen); }},
          {"torch::save()",
           [](Accelerator&, Model& model, Tensors& seen) {
             std::stringstream file;
             torch::save(model->children()[0]->parameters(), file);
             torch::load(seen, file);
           }},
          {"save_model()",
           [=](Accelerator& accelerator, Model& model, Tensors& seen) {
             const testing::SharedFolder folder(accelerator.group());
             accelerator.save_model(model, folder.path);
             const auto saved = Accelerator::load(folder.path / "model.safetensors");
             for (const auto& [name, parameter] : model.core().parameters()) seen.push_back(saved[name].clone());
             accelerator.wait_for_everyone();
           }},
          {"check_synchronized()",
           [](Accelerator& accelerator, Model& model, Tensors& seen) {
             accelerator.check_synchronized(model);
             for (const auto& [name, tensor] : model.core().parameters()) seen.push_back(memory_of(tensor));
           }},
          {"gather()",
           [](Accelerator& accelerator, Model& model, Tensors& seen) {
             for (const auto& [name, tensor] : model.core().parameters()) {
               const auto all = accelerator.gather(tensor.detach());
               seen.push_back(all.narrow(0, all.size(0) - tensor.size(0), tensor.size(0)).clone());
             }
           }},
          {"moving averages", [](Accelerator&, Model& model, Tensors& seen) {
             accelerate::optim::ExponentialMovingAverage average(model, {.decay = 0.5});
             for (const auto& tensor : average.averages()) seen.push_back(tensor.clone());
           }}};
}

TEST_CASE("after a step every way to read parameters waits for the values of all ranks") {
  using enum ShardingStrategy;
  for (const auto strategy : {shard_optim_op, shard_grad_op}) {
    CAPTURE(strategy_name(strategy));
    with_sharded_ranks(sharded(strategy), [](Accelerator& accelerator) {
      const auto net = mlp(), reference = mlp();
      torch::optim::AdamW own(net->parameters(), 1e-2), stock(reference->parameters(), 1e-2);
      auto [model, optimizer] = accelerator.prepare(net, own);
      int64_t i = 0;
      for (const Reader& reader : readers()) {
        CAPTURE(reader.name);
        stock_step(*reference, stock, model_cases()[0].inputs(i));
        step(accelerator, model, optimizer, model_cases()[0].inputs(i++));
        std::vector<torch::Tensor> seen;
        reader.read(accelerator, model, seen);
        REQUIRE(seen.size() == reference->parameters().size());
        CHECK(largest_difference(seen, reference->parameters()) < 1e-12);
      }
    });
  }
}

TEST_CASE("evaluation, a second step, writes and the end of the model follow a step without a forward between") {
  using enum ShardingStrategy;
  for (const auto strategy : {shard_optim_op, shard_grad_op, hybrid_shard_zero2}) {
    CAPTURE(strategy_name(strategy));
    with_sharded_ranks(sharded(strategy), [strategy](Accelerator& first) {
      const auto own_net = mlp(), reference = mlp();
      torch::optim::AdamW own(own_net->parameters(), 1e-2), stock(reference->parameters(), 1e-2);
      {
        Accelerator accelerator(first.group(), sharded(strategy));
        auto [model, optimizer] = accelerator.prepare(own_net, own);
        const auto batch = model_cases()[0].inputs(0);
        stock_step(*reference, stock, batch);
        step(accelerator, model, optimizer, batch);
        {
          const torch::NoGradGuard no_grad;
          CHECK((model(batch) - reference->forward(batch)).abs().max().item<double>() < 1e-12);
        }
        optimizer.step();  // with the same gradients
        stock.step();
        optimizer.step();
        stock.step();
        {
          const torch::NoGradGuard no_grad;
          for (const auto& parameter : own_net->parameters()) parameter.clamp_(-0.2, 0.2);
          for (const auto& parameter : reference->parameters()) parameter.clamp_(-0.2, 0.2);
        }
        stock_step(*reference, stock, batch);
        step(accelerator, model, optimizer, batch);
        accelerator.free_memory();
        auto [again, stepped] = accelerator.prepare(own_net, own);
        stock_step(*reference, stock, batch);
        step(accelerator, again, stepped, batch);
      }
      std::vector<torch::Tensor> seen;
      for (const auto& parameter : own_net->parameters()) seen.push_back(memory_of(parameter));
      CHECK(largest_difference(seen, reference->parameters()) < 1e-12);
    });
  }
}

TEST_CASE("without prefetch a step waits for the parameters") {
  using enum ShardingStrategy;
  for (const auto strategy : {shard_optim_op, shard_grad_op}) {
    CAPTURE(strategy_name(strategy));
    auto options = sharded(strategy);
    options.fsdp_plugin.forward_prefetch = false;
    with_sharded_ranks(options, [](Accelerator& accelerator) {
      const auto net = mlp(), reference = mlp();
      torch::optim::AdamW own(net->parameters(), 1e-2), stock(reference->parameters(), 1e-2);
      auto [model, optimizer] = accelerator.prepare(net, own);
      for (int64_t i = 0; i < 3; ++i) {
        stock_step(*reference, stock, model_cases()[0].inputs(i));
        step(accelerator, model, optimizer, model_cases()[0].inputs(i));
        std::vector<torch::Tensor> seen;
        for (const auto& parameter : net->parameters()) seen.push_back(memory_of(parameter));
        CHECK(largest_difference(seen, reference->parameters()) < 1e-12);
      }
    });
  }
}

TEST_CASE("accumulation, no_sync and clipping are those of one process") {
  with_strategies(
      [](Accelerator& accelerator) {
        const ModelCase of = model_cases()[0];
        const auto reference = of.make(), net = of.make();
        torch::optim::AdamW stock(reference->parameters(), 1e-2), own(net->parameters(), 1e-2);
        auto [model, optimizer] = accelerator.prepare(net, own);
        for (int64_t i = 0; i < 6; ++i) {
          stock.zero_grad();
          for (int64_t half = 0; half < 2; ++half) {
            (loss_of(reference->forward(of.inputs(2 * i + half))) / 2).backward();
            auto window = accelerator.accumulate(model);
            optimizer.zero_grad();
            accelerator.backward(loss_of(model(rows_of(accelerator, of.inputs(2 * i + half)))));
            const auto norm = accelerator.clip_grad_norm_(model, 0.01);
            if (half == 1) {
              const double expected = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.01);
              CHECK(norm.item<double>() == doctest::Approx(expected).epsilon(1e-12));
            }
            optimizer.step();
          }
          stock.step();
        }
        CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
      },
      /*accumulation_steps=*/2);
}

TEST_CASE("windows of 4 micro-batches, with no_sync and without, and a short last window are those of one process") {
  with_strategies(
      [](Accelerator& accelerator) {
        const ModelCase of = model_cases()[0];
        std::vector<torch::Tensor> batches;
        for (int64_t i = 0; i < 10; ++i) batches.push_back(of.inputs(i));
        for (const bool with_no_sync : {false, true}) {
          CAPTURE(with_no_sync);
          const auto reference = of.make(), net = of.make();
          torch::optim::AdamW stock(reference->parameters(), 1e-2), own(net->parameters(), 1e-2);
          auto rows = accelerate::data::from_tensors(torch::cat(batches), torch::zeros({120}),
                                                     {.batch_size = 12 / accelerator.num_processes()});
          auto [model, optimizer, loader] = accelerator.prepare(net, own, rows);
          for (int64_t epoch = 0; epoch < 2; ++epoch) {
            for (auto& batch : loader) {
              const auto window = accelerator.accumulate(model);
              const auto backward = [&, &to = model] { accelerator.backward(loss_of(to(batch.data))); };
              if (with_no_sync && !accelerator.sync_gradients()) {
                const auto local = accelerator.no_sync(model);
                backward();
              } else {
                backward();
              }
              optimizer.step();
              optimizer.zero_grad();
            }
            for (int64_t i = 0; i < 10; ++i) {
              (loss_of(reference->forward(batches[static_cast<size_t>(i)])) / (i < 8 ? 4 : 2)).backward();
              if (i != 3 && i != 7 && i != 9) continue;
              stock.step();
              stock.zero_grad();
            }
          }
          CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
          accelerator.free_memory();
        }
      },
      /*accumulation_steps=*/4);
}

TEST_CASE("frozen, unused and empty parameters, and one with other strides") {
  with_strategies([](Accelerator& accelerator) {
    const auto make = [] {
      auto net = mlp();
      net->parameters()[0].requires_grad_(false);
      net->register_parameter("unused", waves({30}, 1));
      net->register_parameter("empty", torch::zeros({0, 3}, torch::kDouble));
      const auto turned =
          net->register_parameter("turned", waves({4, 2, 3, 3}, 2).contiguous(at::MemoryFormat::ChannelsLast));
      const auto scalar = net->register_parameter("scalar", torch::tensor(0.5, torch::kDouble));
      auto inner = net->run;
      net->run = [=](const torch::Tensor& x) { return inner(x) * scalar + torch::tanh(turned).sum(0).mean(); };
      return net;
    };
    const auto reference = make(), net = make();
    torch::optim::AdamW stock(reference->parameters(), 1e-2), own(net->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, own);
    for (int64_t i = 0; i < 5; ++i) {
      stock_step(*reference, stock, model_cases()[0].inputs(i));
      step(accelerator, model, optimizer, model_cases()[0].inputs(i));
    }
    CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
    const auto whole = Accelerator::summon_full_params(model);
    CHECK(net->named_parameters()["turned"].is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(net->named_parameters()["unused"].detach().equal(waves({30}, 1)));
  });
}

TEST_CASE("an optimizer that stepped before prepare() keeps this rank's part of its state") {
  with_strategies([](Accelerator& accelerator) {
    for (const OptimizerCase& with : optimizer_cases()) {
      CAPTURE(with.name);
      const ModelCase of = model_cases()[0];
      const auto reference = of.make(), net = of.make();
      const auto stock = with.make(reference->parameters());
      auto own = with.make(net->parameters());
      for (int64_t i = 0; i < 3; ++i) {
        stock_step(*reference, *stock, of.inputs(i));
        stock_step(*net, *own, of.inputs(i));
      }
      auto [optimizer, model] = accelerator.prepare(*own, net);
      for (int64_t i = 3; i < 8; ++i) {
        stock_step(*reference, *stock, of.inputs(i));
        step(accelerator, model, optimizer, of.inputs(i));
      }
      CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
      accelerator.free_memory();
    }
  });
}

TEST_CASE("two optimizers of one model and a parameter of two models") {
  with_strategies([](Accelerator& accelerator) {
    struct Pair {
      std::shared_ptr<AnyNet> first = mlp(), second = mlp();
      Pair() {
        auto shared = first->parameters()[0];
        auto inner = second->run;
        second->register_parameter("shared", shared);
        second->run = [=](const torch::Tensor& x) { return inner(x + shared.sum(0)); };
      }
    } reference, ours;
    const auto optimizers = [](const Pair& pair) {
      auto list = pair.first->parameters();
      std::vector<torch::Tensor> one(list.begin(), list.begin() + 3), rest(list.begin() + 3, list.end());
      for (auto& p : pair.second->children()[0]->parameters()) rest.push_back(p);
      return std::pair(std::make_unique<torch::optim::AdamW>(one, 1e-2),
                       std::make_unique<torch::optim::SGD>(rest, 1e-2));
    };
    auto [stock_a, stock_b] = optimizers(reference);
    auto [own_a, own_b] = optimizers(ours);
    auto [first, second, a, b] = accelerator.prepare(ours.first, ours.second, *own_a, *own_b);
    for (int64_t i = 0; i < 5; ++i) {
      const auto batch = model_cases()[0].inputs(i);
      for (auto* stock : std::initializer_list<torch::optim::Optimizer*>{stock_a.get(), stock_b.get()}) {
        stock->zero_grad();
      }
      (loss_of(reference.first->forward(batch)) + loss_of(reference.second->forward(batch))).backward();
      stock_a->step();
      stock_b->step();
      a.zero_grad();
      b.zero_grad();
      const auto rows = rows_of(accelerator, batch);
      accelerator.backward(loss_of(first(rows)) + loss_of(second(rows)));
      a.step();
      b.step();
    }
    const auto whole = Accelerator::summon_full_params(second);  // and the parameter of the first model in it
    const auto rest = Accelerator::summon_full_params(first);
    CHECK(largest_difference(ours.first->parameters(), reference.first->parameters()) < 1e-12);
    CHECK(largest_difference(ours.second->parameters(), reference.second->parameters()) < 1e-12);
  });
}

TEST_CASE("bf16 and fp16 autocast give the parameters of unsharded training") {
  for (const auto precision : {accelerate::Precision::bf16, accelerate::Precision::fp16}) {
    std::vector<std::vector<torch::Tensor>> results;
    for (auto options :
         {not_sharded(), sharded(), sharded(ShardingStrategy::shard_grad_op), sharded(ShardingStrategy::full_shard),
          offloaded(), offloaded(ShardingStrategy::hybrid_shard), sharded(ShardingStrategy::hybrid_shard)}) {
      options.mixed_precision = precision;
      options.grad_scaler.init_scale = 1e6;  // the first steps are skipped
      with_sharded_ranks(options, [&](Accelerator& accelerator) {
        const auto net = mlp();
        net->to(torch::kFloat);
        torch::optim::AdamW adamw(net->parameters(), 1e-3);
        auto [model, optimizer] = accelerator.prepare(net, adamw);
        for (int64_t i = 0; i < 12; ++i) {
          step(accelerator, model, optimizer, model_cases()[0].inputs(i).to(torch::kFloat) * 30);
        }
        accelerator.check_synchronized(model);
        const auto whole = Accelerator::summon_full_params(model);
        if (accelerator.process_index() != 0) return;
        results.emplace_back();
        for (const auto& parameter : net->parameters()) results.back().push_back(parameter.detach().clone());
      });
    }
    const size_t counts = results.size() / 7;  // numbers of ranks
    for (size_t i = counts; i < results.size(); ++i) {
      CHECK(largest_difference(results[i], results[i % counts]) < 1e-5);
    }
  }
}

TEST_CASE("bfloat16 parameters with float32 masters train as without sharding, and continue from a checkpoint") {
  using enum ShardingStrategy;
  for (auto options :
       {sharded(shard_grad_op), sharded(full_shard), offloaded(), hybrid(2), sharded(hybrid_shard_zero2)}) {
    CAPTURE(strategy_name(*options.sharding));
    options.precision_policy = accelerate::precision::pure_bf16();
    with_sharded_ranks(options, [&](Accelerator& accelerator) {
      auto plain = not_sharded();
      plain.precision_policy = options.precision_policy;
      testing::SharedFolder shared(accelerator.group());
      Accelerator unsharded(accelerator.group(), plain), second(accelerator.group(), options);
      const auto make = [] {
        auto net = mlp();
        net->to(torch::kFloat);
        return net;
      };
      const auto net = make(), reference = make(), resumed = make();
      torch::optim::AdamW own(net->parameters(), 1e-3), stock(reference->parameters(), 1e-3),
          later(resumed->parameters(), 1e-3);
      auto [model, optimizer] = accelerator.prepare(net, own);
      auto [plain_model, plain_optimizer] = unsharded.prepare(reference, stock);
      auto [resumed_model, resumed_optimizer] = second.prepare(resumed, later);
      const auto inputs = [](int64_t i) { return model_cases()[0].inputs(i).to(torch::kBFloat16); };
      for (int64_t i = 0; i < 8; ++i) {
        step(accelerator, model, optimizer, inputs(i));
        step(unsharded, plain_model, plain_optimizer, inputs(i));
      }
      // The sums of gradients are rounded to bfloat16 without sharding only.
      CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-2);
      if (*options.sharding == full_shard) {
        const auto shards = model.core().parameter_shards();
        const auto whole = Accelerator::summon_full_params(model);
        for (const auto& shard : shards) {
          if (shard.begin == shard.end) continue;
          const auto rounded = shard.master.flatten().to(torch::kBFloat16);
          CHECK(net->named_parameters()[shard.name].detach().flatten().slice(0, shard.begin, shard.end).equal(rounded));
        }
      }
      accelerator.save_state(shared.path / "c");
      second.load_state(shared.path / "c");
      for (int64_t i = 8; i < 12; ++i) {
        step(accelerator, model, optimizer, inputs(i));
        step(second, resumed_model, resumed_optimizer, inputs(i));
      }
      const auto whole = Accelerator::summon_full_params(model);
      CHECK(difference(resumed_model, resumed->parameters(), net->parameters()) == 0);
      CHECK((net->parameters()[0].scalar_type() == torch::kBFloat16));
    });
  }
}

TEST_CASE("the masters of sharded bfloat16 parameters keep steps that bfloat16 loses") {
  auto options = sharded(ShardingStrategy::full_shard);
  options.precision_policy = accelerate::precision::pure_bf16();
  with_sharded_ranks(options, [&](Accelerator& accelerator) {
    auto net = std::make_shared<AnyNet>(nullptr);
    auto weight = net->register_parameter("weight", torch::ones({40}));
    net->run = [weight](const torch::Tensor& x) { return weight.sum() * x; };
    torch::optim::SGD sgd(net->parameters(), 1e-4);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int64_t i = 0; i < 1000; ++i) {
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({}, torch::kBFloat16)));
      optimizer.step();
    }
    const auto whole = Accelerator::summon_full_params(model);
    CHECK(weight.to(torch::kFloat).sub(0.9).abs().max().item<double>() < 4e-3);  // bfloat16 near 0.9
  });
}

TEST_CASE("a backward through a graph from before the step is an error, on every rank") {
  with_strategies([](Accelerator& accelerator) {
    const auto net = mlp();
    torch::optim::SGD sgd(net->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto batch = model_cases()[0].inputs(0);
    const auto old = loss_of(model(batch));
    step(accelerator, model, optimizer, batch);
    CHECK(refusal<c10::Error>([&] { old.backward(); }).find("modified by an inplace operation") != std::string::npos);
  });
}

TEST_CASE("a checkpoint continues the training, sharded or not, with the files of unsharded training") {
  const auto train = [](Accelerator& accelerator, auto& model, auto& optimizer, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) step(accelerator, model, optimizer, model_cases()[1].inputs(i));
  };
  for (const OptimizerCase& with : optimizer_cases()) {
    CAPTURE(with.name);
    using enum ShardingStrategy;
    for (const auto& [saved_with, loaded_with] :
         std::vector<std::pair<ShardingStrategy, ShardingStrategy>>{{shard_optim_op, shard_optim_op},
                                                                    {shard_optim_op, no_shard},
                                                                    {no_shard, shard_optim_op},
                                                                    {shard_grad_op, full_shard},
                                                                    {full_shard, shard_optim_op},
                                                                    {full_shard, full_shard},
                                                                    {no_shard, full_shard},
                                                                    {hybrid_shard, full_shard},
                                                                    {shard_grad_op, hybrid_shard}}) {
      CAPTURE(strategy_name(saved_with));
      CAPTURE(strategy_name(loaded_with));
      {
        const auto full = [](ShardingStrategy strategy) {
          auto options = sharded(strategy);
          options.fsdp_plugin.state_dict_type = accelerate::StateDictType::full_state_dict;
          return options;
        };
        with_sharded_ranks(full(saved_with), [&, loaded_with = loaded_with](Accelerator& accelerator) {
          const bool load_sharded = loaded_with != no_shard;
          testing::SharedFolder shared(accelerator.group());
          const auto net = conv_net(), other = conv_net();
          auto own = with.make(net->parameters()), resumed = with.make(other->parameters());
          auto [saved, stepped] = accelerator.prepare(net, *own);
          train(accelerator, saved, stepped, 0, 4);
          accelerator.save_state(shared.path / "first", {.async = load_sharded, .durable = false});
          train(accelerator, saved, stepped, 4, 7);
          accelerator.wait_for_checkpoint();
          Accelerator second(accelerator.group(), full(loaded_with));
          auto [model, optimizer] = second.prepare(other, *resumed);
          second.load_state(shared.path / "first");
          second.save_state(shared.path / "again", {.durable = false});
          for (const char* file : {"optimizer.bin", "model.safetensors"}) {
            CAPTURE(file);
            CHECK(file_text(shared.path / "again" / file) == file_text(shared.path / "first" / file));
          }
          train(second, model, optimizer, 4, 7);
          const auto whole = Accelerator::summon_full_params(saved);
          CHECK(difference(model, other->parameters(), net->parameters()) < 1e-12);
        });
      }
    }
  }
}

TEST_CASE("after an exception in a forward or a backward the next step is right") {
  with_strategies([](Accelerator& accelerator) {
    const auto net = mlp(), reference = mlp();
    bool fails = false;
    net->run = [inner = net->run, &fails](const torch::Tensor& x) {
      auto y = inner(x);
      if (fails) throw std::runtime_error("in forward");
      return y;
    };
    torch::optim::AdamW own(net->parameters(), 1e-2), stock(reference->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, own);
    const auto train = [&](int64_t i) {
      stock_step(*reference, stock, model_cases()[0].inputs(i));
      step(accelerator, model, optimizer, model_cases()[0].inputs(i));
    };
    train(0);
    fails = true;
    CHECK_THROWS_AS(step(accelerator, model, optimizer, model_cases()[0].inputs(1)), std::runtime_error);
    fails = false;
    train(2);
    auto output = model(rows_of(accelerator, model_cases()[0].inputs(3)));
    output.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
      if (gradient.defined()) throw std::runtime_error("in backward");
      return gradient;
    });
    CHECK_THROWS_AS(accelerator.backward(loss_of(output)), std::runtime_error);
    train(4);
    CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
  });
}

TEST_CASE("after an exception between the layers of a forward or a backward the next step is right") {
  with_strategies([](Accelerator& accelerator) {
    const auto net = mlp(), reference = mlp();
    enum class Fails { no, forward, backward } fails = Fails::no;
    size_t after = 0;  // this layer
    net->run = [&, list = net->parameters()](torch::Tensor x) {
      for (size_t layer = 0; layer < 3; ++layer) {
        x = at::linear(x, list[2 * layer], list[2 * layer + 1]);
        if (layer < 2) x = x.tanh();
        if (layer != after) continue;
        if (fails == Fails::forward) throw std::runtime_error("in forward");
        if (fails == Fails::backward)
          x.register_hook([](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("in backward"); });
      }
      return x;
    };
    torch::optim::AdamW own(net->parameters(), 1e-2), stock(reference->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, own);
    int64_t i = 0;
    for (after = 0; after < 2; ++after) {
      for (const Fails how : {Fails::no, Fails::forward, Fails::backward}) {
        fails = how;
        const auto batch = model_cases()[0].inputs(i++);
        if (how != Fails::no) CHECK_THROWS_AS(step(accelerator, model, optimizer, batch), std::runtime_error);
        fails = Fails::no;
        stock_step(*reference, stock, batch);
        step(accelerator, model, optimizer, batch);
        CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
      }
    }
  });
}

TEST_CASE("a graphed step, which runs directly on the CPU, is a step") {
  with_strategies([](Accelerator& accelerator) {
    const auto net = mlp(), reference = mlp();
    torch::optim::AdamW own(net->parameters(), 1e-2), stock(reference->parameters(), 1e-2);
    auto model = accelerator.prepare(net);
    auto optimizer = accelerator.prepare(own);
    auto graphed = accelerator.graphed_step([&](const at::Tensor& x) {
      optimizer.zero_grad();
      auto loss = loss_of(model(x));
      accelerator.backward(loss);
      optimizer.step();
      return loss;
    });
    for (int64_t i = 0; i < 5; ++i) {
      stock_step(*reference, stock, model_cases()[0].inputs(i));
      (void)graphed(rows_of(accelerator, model_cases()[0].inputs(i)));
    }
    CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
  });
}

TEST_CASE("a checkpoint before the first step has the state that Adagrad makes at once") {
  with_strategies([](Accelerator& accelerator) {
    testing::SharedFolder shared(accelerator.group());
    const auto net = mlp(), other = mlp();
    torch::optim::Adagrad own(net->parameters(), torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.5));
    torch::optim::Adagrad plain(other->parameters(), torch::optim::AdagradOptions(1e-2));
    auto [model, optimizer] = accelerator.prepare(net, own);
    accelerator.save_state(shared.path / "c");
    Accelerator second(accelerator.group(), not_sharded());
    auto [whole, loaded] = second.prepare(other, plain);
    second.load_state(shared.path / "c");
    for (const auto& parameter : other->parameters()) {
      const auto& state =
          static_cast<torch::optim::AdagradParamState&>(*plain.state()[parameter.unsafeGetTensorImpl()]);
      CHECK(state.sum().equal(torch::full_like(parameter, 0.5)));
    }
  });
}

TEST_CASE("calls that need whole parameters or whole optimizer state on a rank are refused on every rank") {
  with_sharded_ranks(sharded(), [](Accelerator& accelerator) {
    if (accelerator.num_processes() == 1) return;  // some are refused for the division of parameters only
    const auto ends = [](const std::string& text, std::string_view end) { CHECK_MESSAGE(text.ends_with(end), text); };
    const auto net = mlp();
    torch::optim::SGD sgd(net->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    ends(refusal([&] { (void)accelerator.local_sgd(model, 2); }),
         "local_sgd: with sharding shard_optim_op it is not supported, because ranks step alone between two averages, "
         "while each has the optimizer state of a part only; use no_shard");
    ends(refusal([&] { accelerator.save_state("/nowhere", {.share_work = true}); }),
         "save_state with share_work: with sharding shard_optim_op it is not supported, because each rank writes "
         "its parts, and rank 0 everything else; use no_shard");
    torch::optim::LBFGS lbfgs(net->parameters());
    ends(refusal([&] { (void)accelerator.prepare(lbfgs); }),
         "prepare: an optimizer of type torch::optim::LBFGS steps on whole parameters; with sharding shard_optim_op it "
         "must be torch::optim::SGD, Adam, AdamW, Adagrad or RMSprop, not a subclass");
    // A parameter that changes its dtype.
    net->to(torch::kFloat);
    const auto batch = model_cases()[0].inputs(0).to(torch::kFloat);
    ends(refusal([&] { step(accelerator, model, optimizer, batch); }),
         "optimizer.step: parameter layers.0.weight was Double cpu of shape [11, 7] with strides [7, 1] in prepare() "
         "and "
         "is Float cpu of shape [11, 7] with strides [7, 1] now; with sharding change a module before prepare()");
    // Frozen parameters change the division.
    accelerator.free_memory();
    const auto frozen = mlp();
    torch::optim::SGD all(frozen->parameters(), 1e-2);
    (void)accelerator.prepare(frozen, all);
    accelerator.free_memory();
    frozen->parameters()[3].requires_grad_(false);
    const auto changed = refusal([&] { (void)accelerator.prepare(frozen); });
    CHECK_MESSAGE(changed.find("owned elements ") != std::string::npos, changed);
    ends(changed,
         ", but its optimizer state has no other elements; prepare the same parameters on as many ranks, or build the "
         "model and its optimizer again and load a checkpoint");
    frozen->parameters()[3].requires_grad_(true);
    auto again = accelerator.prepare(frozen, all);  // the first division
    step(accelerator, std::get<0>(again), std::get<1>(again), model_cases()[0].inputs(0));
  });
}

TEST_CASE("join_uneven_inputs is refused with every strategy, on every rank") {
  using enum ShardingStrategy;
  for (const auto strategy : {shard_optim_op, shard_grad_op, full_shard, hybrid_shard, hybrid_shard_zero2}) {
    with_sharded_ranks(sharded(strategy), [&](Accelerator& accelerator) {
      if (accelerator.num_processes() == 1) return;
      const auto net = mlp();
      torch::optim::SGD sgd(net->parameters(), 1e-2);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto text = refusal([&] { (void)accelerator.join_uneven_inputs(model); });
      CHECK_MESSAGE(text.ends_with(fmt::format("] join_uneven_inputs: with sharding {} it is not supported, because a "
                                               "rank without batches does not join the other ranks' optimizer steps; "
                                               "use no_shard",
                                               strategy_name(strategy))),
                    text);
      step(accelerator, model, optimizer, model_cases()[0].inputs(0));  // the refusal changed nothing
    });
  }
}

TEST_CASE("parameters and gradients that cannot be divided are refused and not changed") {
  with_sharded_ranks(sharded(), [](Accelerator& accelerator) {
    if (accelerator.num_processes() == 1) return;
    const auto ends = [](const std::string& text, std::string_view end) { CHECK_MESSAGE(text.ends_with(end), text); };
    const auto with_parameter = [](const torch::Tensor& tensor) {
      auto net = mlp();
      net->register_parameter("extra", tensor);
      return net;
    };
    ends(refusal([&] { (void)accelerator.prepare(with_parameter(torch::zeros({3}, torch::kBFloat16))); }),
         "prepare: parameter extra is BFloat16 cpu; with sharding a parameter must be Float or Double");
    ends(refusal([&] {
           (void)accelerator.prepare(with_parameter(torch::zeros({4, 6}).slice(1, 0, 3)));
         }),
         "prepare: parameter extra of shape [4, 3] has strides [6, 1], so it has gaps or overlaps in memory and cannot "
         "be divided over the ranks; register a contiguous copy of it");
    const auto make = [] {
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(9, 4));
      auto net = std::make_shared<AnyNet>([table](const torch::Tensor& x) mutable {
        return at::embedding(table->weight, x, -1, false, /*sparse=*/x.size(-1) == 3);
      });
      net->register_module("table", table);
      net->to(torch::kDouble);
      fill(*net);
      return net;
    };
    const auto net = make(), reference = make();
    torch::optim::SGD sgd(net->parameters(), 1e-2), stock(reference->parameters(), 1e-2);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto sparse = torch::arange(36).remainder(9).reshape({12, 3});
    ends(
        refusal([&] { step(accelerator, model, optimizer, sparse); }),
        "optimizer.step: the gradient of parameter table.weight is sparse; with sharding each rank steps on a range of "
        "its elements, which needs a dense gradient: set sparse to false in the embedding");
    CHECK(difference(model, net->parameters(), reference->parameters()) == 0);
  });
}

TEST_CASE("options that sharding does not support are refused at the start, for any number of ranks") {
  with_sharded_ranks(not_sharded(), [](Accelerator& accelerator) {
    const auto refused = [&](const AcceleratorOptions& options) {
      return refusal([&] { const Accelerator made(accelerator.group(), options); });
    };
    const auto ends = [](const std::string& text, std::string_view end) { CHECK_MESSAGE(text.ends_with(end), text); };
    auto options = sharded();
    options.precision_policy = accelerate::precision::pure_bf16();
    ends(refused(options),
         "sharding: shard_optim_op is not supported with parameters in BFloat16 and float32 master weights; use "
         "shard_grad_op or full_shard, which divide the masters, or mixed_precision bf16");
    options = sharded();
    options.fused_optimizer = false;
    ends(refused(options),
         "sharding: shard_optim_op needs fused_optimizer, which is false: an optimizer's own step() needs whole "
         "parameters; set it to true, or use no_shard");
    options = sharded();
    options.project.save_on_each_node = true;
    ends(refused(options),
         "sharding: shard_optim_op is not supported with project.save_on_each_node, because no machine would have "
         "all parts; set it to false, or use no_shard");
  });
}

}  // namespace sharding_testing
