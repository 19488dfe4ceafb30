// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
namespace data = accelerate::data;
using Strings = std::vector<std::string>;

namespace {

/// Sample i: a tensor with value i, the number i, a name.
struct Files {
  [[nodiscard]] size_t size() const { return 5; }
  [[nodiscard]] std::tuple<at::Tensor, int, std::string> get(int64_t i) const {
    return {torch::full({2}, i), static_cast<int>(i), "f" + std::to_string(i)};
  }
};

}  // namespace

TEST_CASE("a custom dataset is prepared like any loader") {
  std::vector<std::vector<Strings>> names(2);
  std::vector<int64_t> labels;
  Strings gathered;
  on_ranks(2, [&](Accelerator& accelerator) {
    auto loader = accelerator.prepare(data::from_dataset(Files(), {.batch_size = 2}));
    CHECK(loader.size() == 2);
    for (auto& [pixels, label, name] : loader) {
      CHECK(pixels.sizes() == at::IntArrayRef{2, 2});
      names[static_cast<size_t>(accelerator.process_index())].push_back(name);
      const auto all = numbers(accelerator.gather_for_metrics(label));
      const auto all_names = accelerator.gather_for_metrics(name);
      if (!accelerator.is_main_process()) continue;
      labels.insert(labels.end(), all.begin(), all.end());
      gathered.insert(gathered.end(), all_names.begin(), all_names.end());
    }
  });
  CHECK(names == std::vector<std::vector<Strings>>{{{"f0", "f1"}, {"f4", "f0"}}, {{"f2", "f3"}, {"f1", "f2"}}});
  CHECK(labels == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(gathered == Strings{"f0", "f1", "f2", "f3", "f4"});
}

TEST_CASE("combined and transformed sources are prepared, and random transforms draw from rank 0's seed") {
  const auto source = data::transform(data::memory_source(torch::arange(10 * 4).view({10, 1, 2, 2}), torch::arange(10)),
                                      data::RandomHorizontalFlip(), data::RandomCrop({.size = {2, 2}, .padding = 1}));
  const auto all = source->read_in_pass(torch::arange(10), {.seed = 100, .epoch = 1}).data;
  on_ranks(2, [&](Accelerator& accelerator) {
    const auto seed = static_cast<uint64_t>(100 + accelerator.process_index());
    auto loader = accelerator.prepare(data::LoaderOf(data::repeat(source, 2), {.batch_size = 2, .seed = seed}));
    loader.set_epoch(1);
    for (auto& [images, labels] : loader) CHECK(images.equal(all.index_select(0, labels)));
  });
}
