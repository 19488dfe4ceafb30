// SPDX-License-Identifier: Apache-2.0
// Registered objects with tensors of tensor parallel layers, such as moving averages, in checkpoints.
#include "tests/tensor_parallel/support.hpp"
//
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/optim/ema.hpp"
#include "accelerate/pipeline/pipeline.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/pipeline/prepared_training.hpp"
#include "tests/tensor_parallel/mesh_training.hpp"

namespace {

using accelerate::comm::run_threads;
using accelerate::optim::ExponentialMovingAverage;
using namespace mesh_testing;
using pipeline_testing::PipelineTraining;
using pipeline_testing::Task;
using pipeline_testing::WholeTraining;

using State = torch::OrderedDict<std::string, at::Tensor>;

/// A training with a registered average of its model's weights.
template <typename Training>
struct Averaged {
  template <typename Make>
  explicit Averaged(Accelerator& accelerator, const Make& make)
      : training(make(accelerator)), average(std::get<0>(training.objects), {.decay = 0.8}) {
    accelerator.register_for_checkpointing(average);
  }
  void epochs(int64_t count) {
    for (int64_t epoch = 0; epoch < count; ++epoch) {
      std::ignore = training.epochs(1);
      average.update();
    }
  }
  /// The averages as one process has them. Collective over the tensor parallel group.
  State whole() {
    const auto swapped = average.average_parameters();
    const auto scope = Accelerator::summon_full_params(std::get<0>(training.objects));
    return whole_state_dict(*training.module);
  }
  Training training;
  ExponentialMovingAverage average;
};

using AveragedStock = Averaged<Training<StockMlp>>;
using AveragedSplit = Averaged<Training<SplitMlp>>;
AveragedStock averaged_stock(Accelerator& accelerator) { return AveragedStock(accelerator, reference); }
AveragedSplit averaged_split(Accelerator& accelerator, uint64_t seed = 11) {
  return AveragedSplit(accelerator, [&](Accelerator& one) { return split(one, seed); });
}

void check_same(const State& seen, const State& expected, double tolerance = 1e-12) {
  CHECK(seen.size() == expected.size());
  for (const auto& item : expected) {
    CAPTURE(item.key());
    CHECK(close(seen[item.key()], item.value(), tolerance));
  }
}

/// Replicated and sharded data parallelism with each number of tensor parallel ranks.
std::vector<Mesh> meshes_of(int64_t ranks) {
  std::vector<Mesh> all;
  for (const int64_t tensor : {1, 2, 4}) {
    if (ranks % tensor != 0) continue;
    const int64_t data = ranks / tensor;
    all.push_back({{.dp_replicate_size = data, .tp_size = tensor}});
    if (data > 1) all.push_back({{.dp_shard_size = data, .tp_size = tensor}, accelerate::ShardingStrategy::full_shard});
  }
  return all;
}

TEST_CASE("averages of tensor parallel layers are saved whole, and continue on any mesh and on one process") {
  for (const int64_t ranks : {2, 4}) {
    run_threads(ranks, [](const Group& world) {
      const testing::SharedFolder folder(world);
      Accelerator alone_before = alone();
      auto expected = averaged_stock(alone_before);
      expected.epochs(2);
      const State at_save = expected.whole();
      expected.epochs(1);
      const State at_end = expected.whole();
      for (const Mesh& mesh : meshes_of(world.size())) {
        CAPTURE(mesh.sizes.text());
        const auto place = folder.path / mesh.sizes.text();
        {
          Accelerator accelerator = on_mesh(world, mesh);
          auto saved = averaged_split(accelerator);
          saved.epochs(2);
          check_same(saved.whole(), at_save);
          accelerator.save_state(place);
          saved.epochs(1);
          check_same(saved.whole(), at_end);
        }
        for (const Mesh& other : meshes_of(world.size())) {
          CAPTURE(other.sizes.text());
          Accelerator accelerator = on_mesh(world, other);
          auto loaded = averaged_split(accelerator, /*seed=*/12);
          accelerator.load_state(place);
          check_same(loaded.whole(), at_save);
          CHECK(loaded.average.updates() == 2);
          loaded.epochs(1);
          check_same(loaded.whole(), at_end);
        }
        Accelerator single = alone();
        auto loaded = averaged_stock(single);
        single.load_state(place);
        check_same(loaded.whole(), at_save);
        world.barrier();
      }
    });
  }
}

template <typename Mlp, typename... Arguments>
torch::nn::Sequential two_layers(const Arguments&... arguments) {
  return seeded([&] {
    torch::nn::Sequential layers(Mlp(arguments...), torch::nn::Linear(5, 5));
    layers->to(at::kDouble);
    return layers;
  });
}

Task averaged_task(const std::function<torch::nn::Sequential()>& make) {
  return {.make = make,
          .inputs = numbers({24, 6}, 3),
          .targets = numbers({24, 5}, 4),
          .make_optimizer = [](const std::vector<at::Tensor>& parameters) {
            return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
          }};
}

TEST_CASE("averages of tensor parallel layers in pipeline stages are saved whole") {
  run_threads(4, [](const Group& world) {
    const testing::SharedFolder folder(world);
    const auto stages = [](Accelerator& accelerator) {
      return PipelineTraining(accelerator,
                              averaged_task([&] { return two_layers<SplitMlp>(accelerator.tensor_parallel_group()); }));
    };
    State saved;
    {
      Accelerator accelerator = on_mesh(world, {{.tp_size = 2, .pp_size = 2}});
      Averaged<PipelineTraining> training(accelerator, stages);
      training.epochs(2);
      accelerator.save_state(folder.path / "c");
      saved = training.average.state_dict();
    }
    Accelerator accelerator = on_mesh(world, {{.tp_size = 2, .pp_size = 2}});
    Averaged<PipelineTraining> loaded(accelerator, stages);
    accelerator.load_state(folder.path / "c");
    check_same(loaded.average.state_dict(), saved, 0);
    const auto whole_layers = [](Accelerator& one) { return WholeTraining(one, averaged_task(two_layers<StockMlp>)); };
    Accelerator single = alone(), reference_accelerator = alone();
    Averaged<WholeTraining> continued(single, whole_layers), expected(reference_accelerator, whole_layers);
    single.load_state(folder.path / "c");
    expected.epochs(2);
    check_same(continued.average.state_dict(), expected.average.state_dict());
    world.barrier();
  });
}

/// A user's object with the last update of each parameter.
struct Updates {
  explicit Updates(SplitMlp the_module) : module(std::move(the_module)) {
    for (const auto& item : module->named_parameters()) last.insert(item.key(), item.value().detach().clone());
  }
  State state_dict() { return last; }
  void load_state_dict(const State& saved) { last = saved; }
  SplitMlp module;
  State last;
};
struct NamedUpdates : Updates {
  using Updates::Updates;
  State state_parameters() {
    State parameters;
    for (const auto& item : module->named_parameters()) parameters.insert(item.key(), item.value());
    return parameters;
  }
};

TEST_CASE("a registered object names the parameters of its tensors, or must be equal in a tensor parallel group") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator accelerator = on_mesh(world, {{.tp_size = 2}});
    auto training = split(accelerator);
    NamedUpdates named(training.module);
    accelerator.register_for_checkpointing(named);
    accelerator.save_state(folder.path / "c");
    const State saved = named.last;
    named.last.clear();
    accelerator.load_state(folder.path / "c");
    check_same(named.last, saved, 0);
    Updates unnamed(training.module);
    accelerator.register_for_checkpointing(unnamed);
    CHECK(refused([&] { accelerator.save_state(folder.path / "d"); }) ==
          "save_state: up.weight of registered object 1 differs between ranks 0 and 1 of a tensor parallel group, and "
          "a checkpoint has one of it; if it belongs to a parameter of a tensor parallel layer, give the object "
          "state_parameters(), which returns the parameter by that name");
    CHECK_FALSE(std::filesystem::exists(folder.path / "d"));
  });
}

TEST_CASE("a saved part of one rank of a tensor parallel group is refused") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    {
      Accelerator accelerator = on_mesh(world, {{.tp_size = 2}});
      auto training = split(accelerator);
      Updates unnamed(training.module);
      for (auto& item : unnamed.last) item.value().zero_();
      accelerator.register_for_checkpointing(unnamed);
      accelerator.save_state(folder.path / "c");
    }
    Accelerator accelerator = on_mesh(world, {{.tp_size = 2}});
    auto training = split(accelerator);
    NamedUpdates named(training.module);
    const State before = named.last;
    accelerator.register_for_checkpointing(named);
    CHECK(refused([&] { accelerator.load_state(folder.path / "c"); }, accelerate::ErrorKind::data) ==
          "load_state: up.weight of a registered object is [4, 6], the part of one rank of a tensor parallel group, "
          "expected the whole tensor, [8, 6]: when the checkpoint was written, the object had no state_parameters(), "
          "and the parts of the other ranks were not saved; load the checkpoint without this object");
    check_same(named.last, before, 0);
  });
}

TEST_CASE("values of a registered object that belong to replicated parameters may differ by rounding") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator accelerator = on_mesh(world, {{.tp_size = 2}});
    auto training = split(accelerator);
    NamedUpdates named(training.module);
    named.last["down.bias"].add_(1e-15 * static_cast<double>(world.rank()));
    const State saved = named.last;
    accelerator.register_for_checkpointing(named);
    accelerator.save_state(folder.path / "c");
    named.last.clear();
    accelerator.load_state(folder.path / "c");
    check_same(named.last, saved);
  });
}

TEST_CASE("the refusal of a registered object names the tensor that only one rank of a tensor parallel group has") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    for (const int64_t rank_with_more : {0, 1}) {
      Accelerator accelerator = on_mesh(world, {{.tp_size = 2}});
      auto training = split(accelerator);
      Updates updates(training.module);
      updates.last = State();
      updates.last.insert("both", torch::ones({2}));
      if (world.rank() == rank_with_more) updates.last.insert("one", torch::ones({2}));
      accelerator.register_for_checkpointing(updates);
      const std::string text = refused([&] { accelerator.save_state(folder.path / "d"); });
      CHECK_MESSAGE(text.starts_with("save_state: one of registered object 0 differs between ranks 0 and 1"), text);
    }
  });
}

TEST_CASE("an object that only one rank of a tensor parallel group registered is refused on all ranks") {
  run_threads(
      2,
      [](const Group& world) {
        const testing::SharedFolder folder(world);
        Accelerator accelerator = on_mesh(world, {{.tp_size = 2}});
        auto training = split(accelerator);
        NamedUpdates first(training.module), second(training.module);
        accelerator.register_for_checkpointing(first);
        if (world.rank() == 1) accelerator.register_for_checkpointing(second);
        const std::string text = refused([&] { accelerator.save_state(folder.path / "d"); });
        CHECK_MESSAGE(text.find("of registered object 1 differs between ranks 0 and 1") != std::string::npos, text);
      },
      std::chrono::seconds(5));
}

/// An object that fails on rank 1.
struct FailingUpdates : NamedUpdates {
  FailingUpdates(SplitMlp the_module, bool the_fails) : NamedUpdates(std::move(the_module)), fails(the_fails) {}
  State state_parameters() {
    if (fails) throw std::runtime_error("no parameters");
    return NamedUpdates::state_parameters();
  }
  bool fails;
};

TEST_CASE("if an object cannot name its parameters on one rank, save_state() fails on all ranks with its error") {
  run_threads(
      2,
      [](const Group& world) {
        const testing::SharedFolder folder(world);
        Accelerator accelerator = on_mesh(world, {{.tp_size = 2}});
        auto training = split(accelerator);
        FailingUpdates updates(training.module, world.rank() == 1);
        accelerator.register_for_checkpointing(updates);
        std::string text;
        try {
          accelerator.save_state(folder.path / "d");
        } catch (const std::exception& error) {
          text = error.what();
        }
        CHECK_MESSAGE(text.find("no parameters") != std::string::npos, text);
      },
      std::chrono::seconds(5));
}

TEST_CASE("a model with averages as weights is saved whole") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator accelerator = on_mesh(world, {{.tp_size = 2}}), single = alone();
    auto training = averaged_split(accelerator);
    training.epochs(2);
    {
      const auto swapped = training.average.average_parameters();
      accelerator.save_model(std::get<0>(training.training.objects), folder.path);
    }
    auto loaded = reference(single);
    std::ignore = single.load_model(std::get<0>(loaded.objects), folder.path);
    check_same(whole_state_dict(*loaded.module), training.whole(), 0);
    world.barrier();
  });
}

}  // namespace
