// SPDX-License-Identifier: Apache-2.0
// Batches with lists, texts and structs inside: every row of every part belongs to its sample, for any number of ranks
// and any kind of sharding. The ranks are threads.
#include "tests/testing.hpp"
//
#include <fmt/ranges.h>

#include <array>
#include <map>
#include <mutex>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using torch::Tensor;

namespace {

using Texts = std::vector<std::string>;

struct Item {
  int64_t id = 0;
};
struct Items {
  int64_t samples;
  [[nodiscard]] int64_t size() const { return samples; }
  [[nodiscard]] Item get(int64_t i) const { return {i}; }
};

struct View {
  Tensor x;
  Texts texts;
  auto tree_members() { return std::tie(x, texts); }
};

/// Two views of each sample in a list of any kind.
template <typename Views>
struct ViewsBatch {
  Tensor id;
  Views views;
  auto tree_members() { return std::tie(id, views); }
};
struct Mixed {
  Tensor id;
  std::map<std::string, std::pair<Tensor, Texts>> map;
  std::optional<Texts> maybe;
  std::vector<Texts> lists;
  std::vector<bool> odd;
  auto tree_members() { return std::tie(id, map, maybe, lists, odd); }
};
/// tree_members() does not list its texts.
struct Unnamed {
  Tensor id;
  Texts texts;
  auto tree_members() { return std::tie(id); }
};

Texts texts_of(const Tensor& ids) {
  Texts texts;
  for (const int64_t id : numbers(ids)) texts.push_back("t" + std::to_string(id));
  return texts;
}

void fill(Tensor& view, const Tensor& ids) { view = ids.clone(); }
void fill(View& view, const Tensor& ids) { view = {ids.clone(), texts_of(ids)}; }
void fill(std::pair<Tensor, Tensor>& view, const Tensor& ids) { view = {ids.clone(), ids.clone()}; }
void fill(std::tuple<Tensor, Texts>& view, const Tensor& ids) { view = {ids.clone(), texts_of(ids)}; }
void fill(std::map<std::string, Tensor>& view, const Tensor& ids) { view = {{"x", ids.clone()}}; }
bool fits(const Tensor& view, const Tensor& ids) { return view.equal(ids); }
bool fits(const View& view, const Tensor& ids) { return view.x.equal(ids) && view.texts == texts_of(ids); }
bool fits(const std::pair<Tensor, Tensor>& view, const Tensor& ids) {
  return view.first.equal(ids) && view.second.equal(ids);
}
bool fits(const std::tuple<Tensor, Texts>& view, const Tensor& ids) {
  return std::get<0>(view).equal(ids) && std::get<1>(view) == texts_of(ids);
}
bool fits(const std::map<std::string, Tensor>& view, const Tensor& ids) { return view.at("x").equal(ids); }

template <typename Views>
void fill(ViewsBatch<Views>& batch, const Tensor& ids) {
  batch.id = ids;
  if constexpr (requires { batch.views.resize(2); }) batch.views.resize(2);
  fill(batch.views[0], ids);
  fill(batch.views[1], ids + 100);
}
template <typename Views>
bool fits(const ViewsBatch<Views>& batch, const Tensor& ids) {
  return batch.views.size() == 2 && fits(batch.views[0], ids) && fits(batch.views[1], ids + 100);
}
void fill(Mixed& batch, const Tensor& ids) {
  batch = {ids, {{"a", {ids.clone(), texts_of(ids)}}}, texts_of(ids), {}, {}};
  for (const auto& text : texts_of(ids)) batch.lists.push_back({text, text});
  for (const int64_t id : numbers(ids)) batch.odd.push_back(id % 2 == 1);
}
bool fits(const Mixed& batch, const Tensor& ids) {
  Mixed right;
  fill(right, ids);
  return batch.map.at("a").first.equal(ids) && batch.map.at("a").second == texts_of(ids) &&
         batch.maybe == right.maybe && batch.lists == right.lists && batch.odd == right.odd;
}
void fill(Unnamed& batch, const Tensor& ids) { batch = {ids, texts_of(ids)}; }
bool fits(const Unnamed& batch, const Tensor& ids) { return batch.texts == texts_of(ids); }

template <typename Batch>
Batch batch_of(const std::vector<Item>& items) {
  std::vector<int64_t> ids;
  for (const Item& item : items) ids.push_back(item.id);
  Batch batch;
  fill(batch, torch::tensor(ids));
  return batch;
}

template <typename Batch>
std::vector<Batch> batches_of(int64_t samples, int64_t batch_size) {
  std::vector<Batch> batches;
  for (int64_t first = 0; first < samples; first += batch_size) {
    std::vector<Item> items;
    for (int64_t id = first; id < std::min(samples, first + batch_size); ++id) items.push_back({id});
    batches.push_back(batch_of<Batch>(items));
  }
  return batches;
}

/// Returns the error of a pass over the loader, or "" if every row matches its id and every sample is gathered once.
template <typename Loader>
std::string wrong_in(Accelerator& accelerator, const Loader& loader, int64_t samples) {
  std::string wrong;
  std::vector<int64_t> all;
  for (auto& batch : loader) {
    if (!fits(batch, batch.id))
      wrong += fmt::format("rank {}: ids {}; ", accelerator.process_index(), numbers(batch.id));
    for (const int64_t id : numbers(accelerator.gather_for_metrics(batch.id))) all.push_back(id);
  }
  if (all != up_to(samples)) wrong += fmt::format("gathered {}", all);
  return wrong;
}

template <typename Batch>
void check_ranks(int64_t ranks, int64_t samples, int64_t batch_size, bool dispatch, bool numbered) {
  AcceleratorOptions options{.dispatch_batches = dispatch};
  std::mutex mutex;
  std::string wrong;
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        const auto walk = [&](auto&& loader) { return wrong_in(accelerator, accelerator.prepare(loader), samples); };
        auto own = batches_of<Batch>(samples, batch_size);
        const auto found =
            numbered
                ? walk(accelerate::data::from_dataset(Items{samples}, {.batch_size = batch_size}, &batch_of<Batch>))
                : walk(own);
        const std::lock_guard lock(mutex);
        wrong += found;
      },
      options);
  INFO(ranks, " ranks, ", samples, " samples, batch ", batch_size, dispatch ? ", dispatched" : "",
       numbered ? ", numbered" : ", a list of batches");
  CHECK(wrong == "");
}

template <typename Batch>
void check_batches(bool may_dispatch = true) {
  for (const int64_t ranks : {2, 3, 4})
    for (const int64_t samples : {1, 2, 3, 5, 7, 8})
      for (const int64_t batch_size : {1, 2, 3}) {
        for (const bool numbered : {true, false}) check_ranks<Batch>(ranks, samples, batch_size, false, numbered);
        if (may_dispatch) check_ranks<Batch>(ranks, samples, batch_size, true, samples % 2 == 0);
      }
}

}  // namespace

TEST_CASE("views in a list of tensors, structs, pairs, tuples or maps keep the rows of their samples") {
  check_batches<ViewsBatch<std::vector<Tensor>>>();
  check_batches<ViewsBatch<std::vector<View>>>();
  check_batches<ViewsBatch<std::vector<std::pair<Tensor, Tensor>>>>();
  check_batches<ViewsBatch<std::array<View, 2>>>();
  check_batches<ViewsBatch<std::vector<std::tuple<Tensor, Texts>>>>();
  check_batches<ViewsBatch<std::vector<std::map<std::string, Tensor>>>>();
}

TEST_CASE("texts, lists of texts and bools beside the tensors keep their samples") { check_batches<Mixed>(); }

TEST_CASE("members that tree_members() does not name stay with their batch and prevent dispatch") {
  check_batches<Unnamed>(/*may_dispatch=*/false);
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto loader = batches_of<Unnamed>(4, 2);
             CHECK_THROWS_WITH_AS(
                 (void)accelerator.prepare(loader),
                 doctest::Contains("prepare: dispatch_batches is on, and tree_members() of a struct in (anonymous "
                                   "namespace)::Unnamed does not name all of its members: the others would be empty on "
                                   "every rank but rank 0; name all members, or turn dispatch_batches off"),
                 accelerate::Error);
           },
           {.dispatch_batches = true});
}

TEST_CASE("split_batches throws for a batch that can be split in two ways") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto batches = batches_of<Mixed>(4, 2);  // two rows, lists of two texts
             const auto loader = accelerator.prepare(batches);
             CHECK_THROWS_WITH_AS(
                 (void)loader.begin(),
                 doctest::Contains("loader: split_batches: batch 0 of 2 rows cannot be cut for the 2 ranks: a list in "
                                   "it can be read as one item per row and as columns, or a struct has members that "
                                   "tree_members() does not name; use another batch size, name all members, or turn "
                                   "split_batches off"),
                 accelerate::Error);
           },
           {.split_batches = true});
}
