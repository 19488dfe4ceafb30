// SPDX-License-Identifier: Apache-2.0
// Ranks as threads.
#include "tests/testing.hpp"
//
#include <functional>

#include "accelerate/accelerate.hpp"

namespace {

void with_sharded_ranks(const accelerate::AcceleratorOptions& options,
                        const std::function<void(accelerate::Accelerator&)>& check) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    if (ranks % options.fsdp_plugin.dp_shard_size.value_or(1) != 0) continue;
    accelerate::simulate(ranks, [&] {
      accelerate::Accelerator accelerator(options);
      check(accelerator);
    });
  }
}

}  // namespace

#include "tests/sharding/training_cases.hpp"

namespace sharding_testing {

TEST_CASE("a checkpoint of 4 ranks continues on 1, 2 and 3 ranks, and one of 1 rank on 4") {
  const ModelCase of = model_cases()[2];
  const auto train = [&](Accelerator& accelerator, auto& model, auto& optimizer, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) step(accelerator, model, optimizer, of.inputs(i));
  };
  const testing::SharedFolder folder;
  const auto reference = of.make();
  torch::optim::AdamW stock(reference->parameters(), 1e-2);
  for (int64_t i = 0; i < 9; ++i) stock_step(*reference, stock, of.inputs(i));
  using enum ShardingStrategy;
  struct Change {
    ShardingStrategy strategy;
    int64_t saving, loading;
  };
  for (const auto& [strategy, saving, loading] : std::vector<Change>{{shard_optim_op, 4, 1},
                                                                     {shard_optim_op, 4, 2},
                                                                     {shard_optim_op, 4, 3},
                                                                     {shard_optim_op, 1, 4},
                                                                     {full_shard, 4, 1},
                                                                     {full_shard, 4, 3},
                                                                     {full_shard, 1, 4},
                                                                     {shard_grad_op, 3, 2}}) {
    CAPTURE(strategy_name(strategy));
    CAPTURE(saving);
    CAPTURE(loading);
    for (const bool is_loading : {false, true}) {
      accelerate::simulate(is_loading ? loading : saving, [&, strategy = strategy, path = folder.path / "c"] {
        Accelerator accelerator(sharded(strategy));
        const auto net = of.make();
        torch::optim::AdamW own(net->parameters(), 1e-2);
        auto [model, optimizer] = accelerator.prepare(net, own);
        if (!is_loading) {
          train(accelerator, model, optimizer, 0, 4);
          accelerator.save_state(path);
          return;
        }
        accelerator.load_state(path);
        train(accelerator, model, optimizer, 4, 9);
        CHECK(difference(model, net->parameters(), reference->parameters()) < 1e-12);
      });
    }
  }
}

// Ranks that are threads add in the order of the ranks, and a mean over 2 or 4 of them is exact.
TEST_CASE("every strategy has the bits of training without sharding on ranks that are threads") {
  using enum ShardingStrategy;
  for (const int64_t ranks : {2, 4}) {
    for (const auto strategy : {shard_optim_op, shard_grad_op, full_shard}) {
      CAPTURE(ranks);
      CAPTURE(strategy_name(strategy));
      accelerate::simulate(ranks, [&] {
        Accelerator accelerator(sharded(strategy)), plain(not_sharded());
        for (const ModelCase& of : model_cases()) {
          for (const OptimizerCase& with : optimizer_cases(of)) {
            CAPTURE(of.name);
            CAPTURE(with.name);
            const auto net = of.make(), other = of.make();
            auto own = with.make(net->parameters()), stock = with.make(other->parameters());
            auto [model, optimizer] = accelerator.prepare(net, *own);
            auto [whole_model, whole_optimizer] = plain.prepare(other, *stock);
            for (int64_t i = 0; i < 5; ++i) {
              step(accelerator, model, optimizer, of.inputs(i));
              step(plain, whole_model, whole_optimizer, of.inputs(i));
            }
            CHECK(difference(model, net->parameters(), other->parameters()) == 0);
            accelerator.free_memory();
            plain.free_memory();
          }
        }
      });
    }
  }
}

TEST_CASE("the state of an optimizer that was sharded cannot be used without sharding") {
  accelerate::simulate(2, [] {
    const auto net = mlp();
    torch::optim::AdamW own(net->parameters(), 1e-2);
    {
      Accelerator accelerator(sharded());
      auto [model, optimizer] = accelerator.prepare(net, own);
      step(accelerator, model, optimizer, model_cases()[0].inputs(0));
    }
    Accelerator accelerator(not_sharded());
    auto [model, optimizer] = accelerator.prepare(net, own);
    const auto text = refusal([&] { step(accelerator, model, optimizer, model_cases()[0].inputs(0)); });
    CHECK_MESSAGE(
        text.ends_with("elements, the parameter has 77 here; the state of an optimizer that was sharded cannot "
                       "be used without sharding: load a checkpoint or make a new optimizer"),
        text);
  });
}

}  // namespace sharding_testing
