// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/weights.hpp"

#include "tests/testing.hpp"
//
#include <fstream>
#include <set>

#include "accelerate/base/error.hpp"
#include "accelerate/checkpoint/safetensors_file.hpp"
#include "tests/checkpoint/folder.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;
using checkpoint::NamedTensors;
using testing::SharedFolder;

namespace {

NamedTensors four() {
  const auto shared = torch::full({5}, 3.0F);
  return {{"a", torch::arange(10, torch::kFloat)},   // 40 bytes
          {"b", torch::arange(100, torch::kFloat)},  // 400
          {"c", shared},                             // 20
          {"tied", shared},
          {"d", torch::arange(10, torch::kDouble)}};  // 80
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void check_four(const fs::path& path) {
  const auto expected = four();
  const auto read = checkpoint::read_weights(path, "load_model");
  CHECK(read.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    const auto found = std::find_if(read.begin(), read.end(), [&](const auto& one) { return one.first == name; });
    REQUIRE(found != read.end());
    CHECK(torch::equal(found->second, tensor));
  }
}

}  // namespace

TEST_CASE("sizes have Accelerate's units: decimal, binary, and bits with a small b") {
  using checkpoint::parse_size;
  CHECK(parse_size("0MB") == 0);
  CHECK(parse_size("100MB") == 100'000'000);
  CHECK(parse_size("2GiB") == uint64_t{1} << 31);
  CHECK(parse_size("512KiB") == 524288);
  CHECK(parse_size("1.5GB") == 1'500'000'000);
  CHECK(parse_size("100KB") == 100'000);
  CHECK(parse_size("500") == 500);
  CHECK(parse_size("8Kb") == 1000);
  for (const char* wrong : {"5MBB", "5k0MB", "-1GB", "", "GB", "nan", "1e30GB"}) {
    CHECK_THROWS_WITH(static_cast<void>(parse_size(wrong)),
                      fmt::format("save_model: max_shard_size is '{}', must be a number of bytes, or one with KB, MB, "
                                  "GB, KiB, MiB or GiB (\"5GB\")",
                                  wrong)
                          .c_str());
  }
}

TEST_CASE("weights are saved as one file, or as shards with an index, and old files are removed") {
  const SharedFolder folder;
  const auto save = [&](const checkpoint::WeightsOptions& options) {
    checkpoint::save_weights(folder.path, four(), options, "save_model");
    check_four(folder.path);
  };
  std::ofstream(folder.path / "config.json") << "{}";
  save({});
  CHECK(names_in(folder.path) == std::set<std::string>{"config.json", "model.safetensors"});
  // First shard a; b is too large and alone; then c with its tie, and d.
  save({.max_shard_size = "100"});
  CHECK(names_in(folder.path) ==
        std::set<std::string>{"config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                              "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
  save({.max_shard_size = "450", .safe_serialization = false});
  CHECK(names_in(folder.path) == std::set<std::string>{"config.json", "pytorch_model-00001-of-00002.bin",
                                                       "pytorch_model-00002-of-00002.bin",
                                                       "pytorch_model.bin.index.json"});
  save({.safe_serialization = false});
  CHECK(names_in(folder.path) == std::set<std::string>{"config.json", "pytorch_model.bin"});
}

TEST_CASE("the user's files stay: other names, and pytorch_model.bin beside safetensors") {
  const SharedFolder folder;
  for (const char* name : {"model-big-of-mine.safetensors", "pytorch_model.bin", "model-1-of-2.safetensors"}) {
    std::ofstream(folder.path / name) << "mine";
  }
  checkpoint::save_weights(folder.path, four(), {}, "save_model");
  CHECK(names_in(folder.path) == std::set<std::string>{"model-1-of-2.safetensors", "model-big-of-mine.safetensors",
                                                       "model.safetensors", "pytorch_model.bin"});
}

TEST_CASE("an index that refers to itself or to a folder is refused") {
  const SharedFolder folder;
  fs::create_directories(folder.path / "inner");
  for (const char* file : {"model.safetensors.index.json", "inner"}) {
    std::ofstream(folder.path / "model.safetensors.index.json") << "{\"weight_map\": {\"a\": \"" << file << "\"}}";
    CHECK_THROWS_AS((void)checkpoint::read_weights(folder.path, "load_model"), accelerate::Error);
  }
}

TEST_CASE("tensors may have names that the header uses") {
  const SharedFolder folder;
  const auto shared = torch::arange(3, torch::kFloat);
  const NamedTensors odd{{"pt", torch::ones({2})}, {"first", shared}, {"format", shared}};
  checkpoint::save_file(folder.path / "odd.safetensors", odd, "save");
  const auto read = checkpoint::read_weights(folder.path / "odd.safetensors", "load");
  REQUIRE(read.size() == 3);
  for (const auto& [name, tensor] : read) CHECK(torch::equal(tensor, name == "pt" ? odd[0].second : shared));
}

TEST_CASE("save_file() chooses the format by name, and keeps the values of views and strides") {
  const SharedFolder folder;
  const auto base = torch::arange(12, torch::kFloat).reshape({3, 4});
  const NamedTensors views{{"whole", base}, {"column", base.select(1, 2)}, {"transposed", base.t()}};
  for (const char* name : {"v.safetensors", "v.pt"}) {
    checkpoint::save_file(folder.path / "sub" / name, views, "save");
    const auto read = checkpoint::read_weights(folder.path / "sub" / name, "load");
    REQUIRE(read.size() == 3);
    for (const auto& [key, tensor] : read) {
      for (const auto& [name_of, view] : views) {
        if (name_of == key) CHECK(torch::equal(tensor, view));
      }
    }
  }
}

TEST_CASE("tensors with the same bytes and shape are tied; tensors without bytes are not") {
  using checkpoint::same_memory;
  const auto one = torch::arange(6, torch::kFloat);
  CHECK(same_memory(one, one.detach()));
  CHECK_FALSE(same_memory(one, one.clone()));
  CHECK_FALSE(same_memory(one, one.view({2, 3})));
  CHECK_FALSE(same_memory(one.slice(0, 0, 3), one.slice(0, 0, 6, 2)));
  CHECK_FALSE(same_memory(one.slice(0, 0, 3), one.slice(0, 3, 6)));
  CHECK_FALSE(same_memory(one, one.view(torch::kInt)));
  CHECK_FALSE(same_memory(one, at::_neg_view(one)));
  const auto none = torch::empty({0, 3});
  CHECK_FALSE(same_memory(none, none));
  CHECK_FALSE(same_memory(torch::Tensor(), torch::Tensor()));
  const auto sparse = torch::eye(2).to_sparse();
  CHECK_FALSE(same_memory(sparse, sparse));
  CHECK(checkpoint::tied({{"a", one}, {"none", none}, {"b", one.detach()}, {"nothing", none}}) ==
        std::map<std::string, std::string>{{"b", "a"}});
}

TEST_CASE("dtypes that the formats do not support are refused by name") {
  const SharedFolder folder;
  const auto save = [&](const char* file, const torch::Tensor& tensor) {
    checkpoint::save_file(folder.path / file, {{"w", tensor}}, "save");
  };
  CHECK_THROWS_WITH(save("v.safetensors", torch::zeros({2}, torch::kComplexDouble)),
                    "save: w is of dtype ComplexDouble, which safetensors lacks");
  CHECK_THROWS_WITH(save("v.pt", torch::zeros({2}, torch::kUInt16)),
                    "save: w is of dtype UInt16, which torch.load does not read from such a file");
  CHECK_THROWS_WITH(save("v.pt", torch::eye(2).to_sparse()), "save: w is sparse, only dense tensors can be saved");
  CHECK_THROWS_WITH(save("v.safetensors", {}), "save: w is an undefined tensor, only dense tensors can be saved");
  CHECK(fs::is_empty(folder.path));
}

TEST_CASE("no index exists while new shards replace old ones") {
  const SharedFolder folder;
  const checkpoint::WeightsOptions options{.max_shard_size = "100"};
  checkpoint::save_weights(folder.path, four(), options, "save_model");
  // The second of three shards is missing, as after an earlier kill.
  fs::remove(folder.path / "model-00002-of-00003.safetensors");
  fs::create_directories(folder.path / "model-00002-of-00003.safetensors" / "in the way");
  CHECK_THROWS_AS(checkpoint::save_weights(folder.path, four(), options, "save_model"), accelerate::Error);
  CHECK_FALSE(fs::exists(folder.path / "model.safetensors.index.json"));
  CHECK_THROWS_WITH((void)checkpoint::read_weights(folder.path, "load_model"),
                    doctest::Contains("has neither model.safetensors, nor "));
}
