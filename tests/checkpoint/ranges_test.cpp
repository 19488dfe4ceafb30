// SPDX-License-Identifier: Apache-2.0
// Tensors stored as ranges in one or several files.
#include "tests/testing.hpp"
//
#include <fstream>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/checkpoint/saved_ranges.hpp"
#include "accelerate/checkpoint/torch_file.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/checkpoint/small_content.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;
using accelerate::archive::Manifest;
using accelerate::archive::ManifestRange;
using testing::SharedFolder;

namespace {

/// "w" of [3, 4], 0 to 11, in three ranges of three files; the second overlaps the third.
struct Saved {
  SharedFolder folder;
  Manifest manifest{.library = "test"};
  torch::Tensor w = torch::arange(12, torch::kFloat);

  Saved() {
    add("a.safetensors", 0, 3);
    add("b.safetensors", 3, 9);
    add("c.safetensors", 8, 12);
  }
  void add(const std::string& file, int64_t begin, int64_t end) {
    checkpoint::save_file(folder.path / file, {{"part", w.slice(0, begin, end)}}, "save");
    manifest.ranges.insert(
        manifest.ranges.begin(),
        ManifestRange{"model.0/w", {3, 4}, static_cast<uint64_t>(begin), static_cast<uint64_t>(end), file, "part"});
  }
  [[nodiscard]] checkpoint::SavedRanges ranges() const { return {folder.path, manifest, "load_state"}; }
  [[nodiscard]] std::string error_of(int64_t begin, int64_t end) const {
    try {
      static_cast<void>(ranges().elements("model.0/w", begin, end));
    } catch (const accelerate::Error& error) {
      CHECK(error.kind() == accelerate::ErrorKind::data);
      const std::string what = error.what(), prefix = "load_state: " + folder.path.string() + ": ";
      CHECK(what.starts_with(prefix));
      return what.substr(prefix.size());
    }
    return "";
  }
};

}  // namespace

TEST_CASE("every part of a tensor is read from the ranges that overlap it, and from no other file") {
  const Saved saved;
  for (int64_t begin = 0; begin <= 12; ++begin) {
    for (int64_t end = begin; end <= 12; ++end) {
      CAPTURE(begin);
      CAPTURE(end);
      CHECK(saved.ranges().elements("model.0/w", begin, end).equal(saved.w.slice(0, begin, end)));
    }
  }
  CHECK(saved.ranges().whole("model.0/w").equal(saved.w.reshape({3, 4})));
  CHECK(saved.ranges().names("model.0/") == std::vector<std::string>{"model.0/w"});
  CHECK(saved.ranges().names("model.1/").empty());
  fs::remove(saved.folder.path / "b.safetensors");
  CHECK(saved.ranges().elements("model.0/w", 0, 3).equal(saved.w.slice(0, 0, 3)));
  CHECK(saved.ranges().elements("model.0/w", 9, 12).equal(saved.w.slice(0, 9, 12)));
  CHECK_THROWS_WITH(static_cast<void>(saved.ranges().elements("model.0/w", 0, 4)),
                    doctest::Contains("b.safetensors cannot be opened: No such file or directory"));
}

TEST_CASE("missing ranges, and ranges that do not match their files, are reported") {
  Saved saved;
  CHECK(saved.error_of(0, 12).empty());
  CHECK(saved.error_of(0, 13) == "elements 12 to 13 of 'model.0/w' are in no file");
  std::erase_if(saved.manifest.ranges, [](const auto& range) { return range.file == "b.safetensors"; });
  CHECK(saved.error_of(1, 12) == "elements 3 to 12 of 'model.0/w' are in no file");
  CHECK(saved.error_of(8, 12).empty());
  saved.manifest.ranges[0].end = 13;
  CHECK(saved.error_of(8, 12) == "elements 8 to 13 of 'model.0/w' are 4 elements in c.safetensors, of a tensor of 12");
  saved.manifest.ranges[0].sizes = {uint64_t{1} << 40, uint64_t{1} << 40};
  CHECK_THROWS_WITH(static_cast<void>(saved.ranges()), doctest::Contains("'model.0/w' has two shapes"));
  saved.manifest.ranges.resize(1);
  CHECK(saved.error_of(8, 12) == "'model.0/w' has more elements than can be counted");
}

TEST_CASE("a tensor of several ranges is a placeholder, of which pieces are read") {
  Saved saved;
  auto ranges = saved.ranges();
  const auto placeholder = ranges.tensor("model.0/w");
  CHECK(placeholder.is_meta());
  CHECK(placeholder.sizes() == torch::IntArrayRef({3, 4}));
  CHECK((placeholder.scalar_type() == torch::kFloat));
  for (int64_t begin = 0; begin <= 12; ++begin) {
    for (int64_t end = begin; end <= 12; ++end) {
      CAPTURE(begin);
      CAPTURE(end);
      int64_t covered = begin;
      for (const auto& piece : ranges.read(placeholder, begin, end)) {
        CHECK(piece.begin == covered);
        covered += piece.values.numel();
        CHECK(piece.values.equal(saved.w.slice(0, piece.begin, covered)));
      }
      CHECK(covered == end);
    }
  }
  std::erase_if(saved.manifest.ranges, [](const auto& range) { return range.file == "b.safetensors"; });
  auto incomplete = saved.ranges();
  CHECK_THROWS_WITH(static_cast<void>(incomplete.tensor("model.0/w")),
                    doctest::Contains("elements 3 to 12 of 'model.0/w' are in no file"));
  CHECK_THROWS_WITH(static_cast<void>(ranges.read(torch::empty({3, 4}, torch::kMeta), 0, 1)),
                    doctest::Contains("the placeholder belongs to another checkpoint"));
  saved.manifest.ranges.resize(1);  // c.safetensors, elements 8 to 12
  saved.manifest.ranges[0].sizes = {4};
  saved.manifest.ranges[0].begin = 0;
  saved.manifest.ranges[0].end = 4;
  auto whole = saved.ranges();
  CHECK(whole.tensor("model.0/w").equal(saved.w.slice(0, 8, 12)));
}

TEST_CASE("a range in a file of another dtype is reported") {
  Saved saved;
  checkpoint::save_file(saved.folder.path / "b.safetensors", {{"part", saved.w.slice(0, 3, 9).to(torch::kDouble)}},
                        "save");
  CHECK(saved.error_of(0, 12) == "'model.0/w' has two dtypes");
}

TEST_CASE("every tensor of a checkpoint except random states has a complete range") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  auto content = testing::small_content();
  content.buffers = {{"model.0/bn.running_mean", torch::ones({3})}};
  content.comm_hooks = {{"model.0/error of 3", torch::arange(4, torch::kFloat)}};
  testing::save(place, content);
  checkpoint::NamedTensors all;
  const auto add = [&](const std::string& prefix, const checkpoint::NamedTensors& list) {
    for (const auto& [name, tensor] : list) all.emplace_back(prefix + name, tensor);
  };
  for (size_t i = 0; i < content.models.size(); ++i) add(fmt::format("model.{}/", i), content.models[i]);
  add("masters/", content.masters);
  for (const auto& [number, tensors] : content.optimizers[0].tensors)
    add(fmt::format("optimizer.0/{}.", number), tensors);
  add("custom.1/", std::get<checkpoint::NamedTensors>(content.customs[1]));
  add("window.0/", content.window->gradients);
  add("buffers.0/", content.buffers);
  add("comm_hooks.0/", content.comm_hooks);
  const auto manifest = accelerate::archive::manifest_of(place, "load_state");
  CHECK(manifest.ranges.size() == all.size());
  checkpoint::SavedRanges ranges(place, manifest, "load_state");
  for (const auto& [name, tensor] : all) {
    CAPTURE(name);
    CHECK(torch::equal(ranges.whole(name), tensor));
  }
}

TEST_CASE("an optimizer's tensors are read from the manifest's ranges") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  testing::save(place, testing::small_content());
  auto manifest = accelerate::archive::manifest_of(place, "load_state");
  const auto average = torch::arange(6, torch::kFloat);
  checkpoint::save_file(place / "of_rank_0.safetensors", {{"x", average.slice(0, 0, 4)}}, "save");
  checkpoint::save_file(place / "of_rank_1.safetensors", {{"x", average.slice(0, 4, 6)}}, "save");
  std::erase_if(manifest.ranges, [](const auto& range) { return range.tensor == "optimizer.0/1.exp_avg"; });
  manifest.files.push_back({"of_rank_0.safetensors", 0, ""});
  manifest.files.push_back({"of_rank_1.safetensors", 0, ""});
  manifest.ranges.push_back({"optimizer.0/1.exp_avg", {2, 3}, 4, 6, "of_rank_1.safetensors", "x"});
  manifest.ranges.push_back({"optimizer.0/1.exp_avg", {2, 3}, 0, 4, "of_rank_0.safetensors", "x"});
  const auto write = [&] { std::ofstream(place / "manifest.json") << write_manifest(manifest); };
  write();
  const auto read = checkpoint::read_checkpoint(place, 0, torch::kCPU, "load_state");
  const auto& tensors = read.content.optimizers[0].tensors.at(1);
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[0].second.item<float>() == 3);  // "step", in optimizer.bin
  CHECK(tensors[1].second.is_meta());
  CHECK(tensors[1].second.sizes() == torch::IntArrayRef({2, 3}));
  const auto pieces = read.elements(tensors[1].second, 1, 5);
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].values.equal(average.slice(0, 1, 4)));
  CHECK(pieces[1].begin == 4);
  CHECK(pieces[1].values.equal(average.slice(0, 4, 5)));
  for (auto& range : manifest.ranges) {
    if (range.tensor == "optimizer.0/1.exp_avg") range.tensor = "optimizer.0/first.exp_avg";
  }
  write();
  CHECK_THROWS_WITH(
      static_cast<void>(testing::load(place)),
      doctest::Contains("the manifest has 'optimizer.0/first.exp_avg', expected a parameter's number and a "
                        "name"));
}

TEST_CASE("a manifest with impossible tensor sizes is refused before memory is allocated") {
  Saved saved;
  const auto told_of = [&](std::vector<uint64_t> sizes) {
    for (auto& range : saved.manifest.ranges) range.sizes = sizes;
    try {
      static_cast<void>(saved.ranges().whole("model.0/w"));
    } catch (const accelerate::Error& error) {
      return std::string(error.what()).substr(14 + saved.folder.path.string().size());
    }
    return std::string();
  };
  CHECK(told_of({uint64_t{1} << 50}) == "elements 12 to 1125899906842624 of 'model.0/w' are in no file");
  CHECK(told_of({0, uint64_t{1} << 63}) == "'model.0/w' has more elements than can be counted");
  saved.manifest.ranges.front().end = uint64_t{1} << 50;
  CHECK(told_of({uint64_t{1} << 50}) ==
        "elements 8 to 1125899906842624 of 'model.0/w' are 4 elements in c.safetensors, of a tensor of "
        "1125899906842624");
}
