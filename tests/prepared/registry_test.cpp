// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/accelerator/ranks.hpp"

using namespace accelerate::prepared;

namespace {

/// Parts of an Accelerator on one rank, with access to the registry.
struct Bench {
  std::shared_ptr<AcceleratorState> shared = std::make_shared<AcceleratorState>();

  template <typename Object>
  auto prepare(Object&& object) {
    return accelerate::prepared::prepare(shared, {}, std::forward<Object>(object));
  }
  std::vector<std::string> names() {
    std::vector<std::string> list;
    for (const auto& entry : shared->registry.entries()) list.push_back(entry->name());
    return list;
  }
};

using Names = std::vector<std::string>;

torch::optim::SGD sgd_of(const OneWeight& net) { return torch::optim::SGD(net->parameters(), 1.0); }

}  // namespace

TEST_CASE("prepared objects are listed in order with kind, index within the kind, and name") {
  Bench bench;
  OneWeight first, second;
  auto sgd = sgd_of(first);
  torch::optim::StepLR halving(sgd, 2, 0.5);
  const auto handles = std::tuple{bench.prepare(first), bench.prepare(sgd), bench.prepare(second),
                                  bench.prepare(counting(4, 2)), bench.prepare(halving)};
  CHECK(bench.names() == Names{"model", "optimizer", "model_1", "loader", "scheduler"});
  const auto& entries = bench.shared->registry.entries();
  CHECK(entries[2]->kind() == Kind::model);
  CHECK(entries[2]->index() == 1);
  CHECK(entries[2]->identity() == second.get());
  std::vector<const void*> models;
  for (const ModelCore& model : bench.shared->registry.of<ModelCore>()) models.push_back(model.identity());
  CHECK(models == std::vector<const void*>{first.get(), second.get()});
}

TEST_CASE("the version changes only if an entry is added or removed") {
  Bench bench;
  Registry& registry = bench.shared->registry;
  OneWeight net;
  const auto empty = registry.version();
  auto model = bench.prepare(net);
  const auto one = registry.version();
  CHECK(one != empty);
  auto again = bench.prepare(net);
  CHECK(registry.version() == one);
  registry.clear();
  CHECK(registry.version() != one);
  CHECK(bench.names().empty());
}

TEST_CASE("a module that is prepared anew replaces its previous entry") {
  Bench bench;
  OneWeight first, second;
  const auto handles = std::tuple{bench.prepare(first), bench.prepare(second)};
  first->w.requires_grad_(false);
  auto anew = bench.prepare(first);
  CHECK_FALSE(anew == std::get<0>(handles));
  CHECK(bench.names() == Names{"model", "model_1"});
  CHECK(bench.shared->registry.entries()[0].get() == &anew.core());
}

TEST_CASE("a referenced object is removed with its last handle, an owned object stays") {
  Bench bench;
  OneWeight net;
  auto sgd = sgd_of(net);
  {
    auto handle = bench.prepare(sgd);
    auto of_another_call = bench.prepare(sgd);
    CHECK(handle == of_another_call);
    auto copy = std::make_unique<decltype(handle)>(handle);
    CHECK(bench.names() == Names{"optimizer"});
  }
  CHECK(bench.names().empty());
  { auto handle = bench.prepare(sgd_of(net)); }
  CHECK(bench.names() == Names{"optimizer"});
  auto first = std::make_unique<PreparedOptimizer<torch::optim::SGD>>(bench.prepare(sgd));
  auto second = bench.prepare(sgd);
  first.reset();
  CHECK(bench.names() == Names{"optimizer", "optimizer_1"});
}

TEST_CASE("a loader is removed with its last handle, a model stays until free_memory()") {
  Bench bench;
  OneWeight net;
  {
    auto model = bench.prepare(net);
    auto loader = bench.prepare(counting(4, 2));
    CHECK(bench.names() == Names{"model", "loader"});
  }
  CHECK(bench.names() == Names{"model"});
}

TEST_CASE("handles keep the Accelerator's state after it is destroyed, and the last handle releases it") {
  std::weak_ptr<AcceleratorState> watched;
  OneWeight net;
  auto sgd = sgd_of(net);
  {
    Bench bench;
    watched = bench.shared;
    auto model = bench.prepare(net);
    auto optimizer = bench.prepare(sgd);
    bench.shared.reset();
    CHECK_FALSE(watched.expired());
    model(torch::ones({1}, torch::kDouble)).sum().backward();
    optimizer.step();
    CHECK(net->w.item<double>() == -1.0);
  }
  CHECK(watched.expired());
}
