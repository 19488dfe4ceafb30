// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "tests/launch/commands/files.hpp"
#include "tests/launch/commands/program.hpp"

using testing::floats;
using testing::read_file;
using testing::run_program;
using testing::safetensors_of;
using testing::TemporaryFolder;
using testing::write_file;
namespace fs = std::filesystem;

namespace {

testing::Ran merge(const std::vector<std::string>& arguments) {
  return run_program("accelerate_merge_weights", arguments);
}

const testing::SmallTensor a{"a.weight", "F32", {2}, floats({1, 2})};
const testing::SmallTensor b{"b.mask", "BOOL", {3}, "101"};
const testing::SmallTensor c{"c.weight", "F32", {}, floats({3})};

void write_index(const fs::path& folder, const std::string& map) {
  write_file(folder / "model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
}

struct Sharded : TemporaryFolder {
  Sharded() {
    write_file(path / "1.safetensors", safetensors_of({a, b}, {{"format", "pt"}, {"part", "1"}}));
    write_file(path / "2.safetensors", safetensors_of({c}, {{"format", "pt"}, {"part", "2"}}));
    write_index(path, R"("a.weight":"1.safetensors","b.mask":"1.safetensors","c.weight":"2.safetensors")");
  }
};

}  // namespace

TEST_CASE("shards are merged into one file with their common metadata") {
  const Sharded from;
  const TemporaryFolder to;
  const auto ran = merge({from.path.string(), to / "one.safetensors"});
  CHECK(ran.err.empty());
  CHECK(ran.code == 0);
  const std::string file = read_file(to.path / "one.safetensors");
  CHECK(file == safetensors_of({a, c, b}, {{"format", "pt"}}));
  CHECK(ran.out == (to / "one.safetensors") + ": 3 tensors of 2 shards, " + std::to_string(file.size()) + " B\n");
  CHECK(merge({from / "model.safetensors.index.json", to.path.string()}).code == 0);
  CHECK(read_file(to.path / "model.safetensors") == file);
  CHECK(std::distance(fs::directory_iterator(to.path), fs::directory_iterator()) == 2);
}

TEST_CASE("ties of save_model() are found in the shard's metadata and kept") {
  const TemporaryFolder from;
  const TemporaryFolder to;
  const auto write = [&](const std::string& of) {
    write_file(from.path / "1.safetensors", safetensors_of({a}, {{"format", "pt"}, {"tied", of}}));
  };
  write_file(from.path / "2.safetensors", safetensors_of({c}, {{"format", "pt"}}));
  write_index(from.path, R"("a.weight":"1.safetensors","tied":"1.safetensors","c.weight":"2.safetensors")");
  write("a.weight");
  const auto ran = merge({from.path.string(), to / "f"});
  CHECK(ran.err.empty());
  CHECK(read_file(to.path / "f") == safetensors_of({a, c}, {{"format", "pt"}, {"tied", "a.weight"}}));
  for (const char* other : {"c.weight", "tied", "no.such"}) {
    write(other);
    CHECK(merge({from.path.string(), to / "g"}).err ==
          "accelerate_merge_weights: " + (from / "model.safetensors.index.json") +
              ": the index maps 'tied' to 1.safetensors, which does not contain it\n");
  }
}

TEST_CASE("an existing file is replaced only on request") {
  const Sharded from;
  const TemporaryFolder to;
  write_file(to.path / "f", "old");
  const auto kept = merge({from.path.string(), to / "f"});
  CHECK(kept.code == 2);
  CHECK(kept.err == "accelerate_merge_weights: " + (to / "f") + " is there already; --overwrite replaces it\n");
  CHECK(read_file(to.path / "f") == "old");
  CHECK(merge({"--overwrite", from.path.string(), to / "f"}).code == 0);
  CHECK(read_file(to.path / "f").size() > 3);
}

TEST_CASE("an index that contradicts its shards is refused, and nothing is written") {
  const Sharded from;
  const TemporaryFolder to;
  const auto refused = [&] {
    const auto ran = merge({from.path.string(), to / "f"});
    CHECK(ran.code == 1);
    CHECK(fs::is_empty(to.path));
    return ran.err;
  };
  const std::string index = "accelerate_merge_weights: " + (from / "model.safetensors.index.json") + ": ";
  write_index(from.path, R"("a.weight":"1.safetensors","c.weight":"2.safetensors")");
  CHECK(refused() == index + "1.safetensors holds 'b.mask', which the index does not name\n");
  write_index(from.path, R"("a.weight":"1.safetensors","b.mask":"2.safetensors","c.weight":"2.safetensors")");
  CHECK(refused() == index + "the index maps 'b.mask' to 2.safetensors, but 1.safetensors contains it too\n");
  write_index(from.path, R"("a.weight":"1.safetensors","b.mask":"1.safetensors","z":"1.safetensors")");
  CHECK(refused() == index + "the index maps 'z' to 1.safetensors, which does not contain it\n");
  write_index(from.path, R"("a.weight":"3.safetensors")");
  CHECK(refused() ==
        "accelerate_merge_weights: " + (from / "3.safetensors") + " cannot be opened: No such file or directory\n");
  write_index(from.path, R"("a.weight":"../1.safetensors")");
  CHECK(refused() ==
        index + "the index maps 'a.weight' to '../1.safetensors', expected a file's name without folders\n");
  write_index(from.path, "");
  CHECK(refused() ==
        "accelerate_merge_weights: " + (from / "model.safetensors.index.json") + ": the index lists no tensor\n");
  write_file(from.path / "1.bin", safetensors_of({a}));
  write_index(from.path, R"("a.weight":"1.bin")");
  CHECK(refused() == "accelerate_merge_weights: " + (from / "1.bin") + " is not a safetensors file\n");
}

TEST_CASE("folders without an index, or with several, are refused by name") {
  const TemporaryFolder from;
  CHECK(merge({from.path.string(), "f"}).err ==
        "accelerate_merge_weights: " + from.path.string() +
            " has no *.safetensors.index.json, which lists the shards of a model\n");
  write_file(from.path / "model.safetensors", safetensors_of({a}));
  CHECK(merge({from.path.string(), "f"}).err == "accelerate_merge_weights: " + from.path.string() +
                                                    " has no shards: its model.safetensors is one file already\n");
  write_file(from.path / "x.safetensors.index.json", "");
  write_file(from.path / "y.safetensors.index.json", "");
  const auto two = merge({from.path.string(), "f"});
  CHECK(two.code == 2);
  CHECK(two.err == "accelerate_merge_weights: " + from.path.string() +
                       " has 2 indices (x.safetensors.index.json, y.safetensors.index.json); name the file of one\n");
  CHECK(merge({"/no/such", "f"}).err ==
        "accelerate_merge_weights: /no/such cannot be opened: No such file or directory\n");
}
