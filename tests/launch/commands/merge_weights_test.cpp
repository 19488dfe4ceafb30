// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/archive/manifest.hpp"
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
  CHECK(kept.err == "accelerate_merge_weights: " + (to / "f") + " already exists; --overwrite replaces it\n");
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
  CHECK(refused() == index + "1.safetensors holds 'b.mask', which the index does not list\n");
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

namespace {

/// A checkpoint of two ranks: w of [5] cut after 3 elements, tied with v; the buffer n is whole.
struct InParts : TemporaryFolder {
  accelerate::archive::Manifest manifest{.library = "test", .world_size = 2};

  InParts() {
    add_file("parts_0.safetensors", safetensors_of({{"model.0/w", "F32", {3}, floats({1, 2, 3})}}, {}));
    add_file("parts_1.safetensors", safetensors_of({{"model.0/w", "F32", {2}, floats({4, 5})}}, {}));
    add_file("whole_tensors.safetensors", safetensors_of({{"n", "I64", {}, std::string(8, '\1')}}, {}));
    for (const char* name : {"model.0/w", "model.0/v"}) {
      manifest.ranges.push_back({name, {5}, 3, 5, "parts_1.safetensors", "model.0/w"});
      manifest.ranges.push_back({name, {5}, 0, 3, "parts_0.safetensors", "model.0/w"});
    }
    manifest.ranges.push_back({"model.0/n", {}, 0, 1, "whole_tensors.safetensors", "n"});
    write();
  }
  void add_file(const std::string& name, const std::string& content) {
    write_file(path / name, content);
    manifest.files.push_back({name, content.size(), accelerate::archive::checksum_of(content)});
  }
  void write() const { write_file(path / "manifest.json", accelerate::archive::write_manifest(manifest)); }
  [[nodiscard]] std::string refused() const {
    const TemporaryFolder to;
    const auto ran = merge({path.string(), to / "m.safetensors"});
    CHECK(ran.code != 0);
    CHECK(fs::is_empty(to.path));
    return ran.err;
  }
};

bool ends(const std::string& text, const std::string& with) { return text.ends_with(with + "\n"); }

}  // namespace

TEST_CASE("the ranks' parts of a checkpoint are joined to one file, which keeps ties") {
  const InParts from;
  const TemporaryFolder to;
  const auto ran = merge({from.path.string(), to / "m.safetensors"});
  CHECK(ran.err.empty());
  CHECK(ran.code == 0);
  CHECK(read_file(to.path / "m.safetensors") ==
        safetensors_of({{"n", "I64", {}, std::string(8, '\1')}, {"v", "F32", {5}, floats({1, 2, 3, 4, 5})}},
                       {{"format", "pt"}, {"w", "v"}}));
  CHECK(ran.out.ends_with(": 2 tensors of 3 files, " + std::to_string(fs::file_size(to.path / "m.safetensors")) +
                          " B\n"));
  CHECK(merge({from.path.string(), to.path.string()}).code == 0);
  CHECK(read_file(to.path / "model.safetensors") == read_file(to.path / "m.safetensors"));
}

TEST_CASE("parts that are damaged, missing or of another shape are refused, and nothing is written") {
  {
    InParts from;
    from.manifest.ranges.erase(from.manifest.ranges.begin() + 1);
    from.manifest.ranges.erase(from.manifest.ranges.begin() + 2);
    from.write();
    CHECK(ends(from.refused(), "elements 0 to 5 of 'v' are in no file"));
  }
  {
    InParts from;
    from.manifest.ranges[1].sizes = {6};
    from.manifest.ranges[3].sizes = {6};
    from.write();
    CHECK(ends(from.refused(), "'v' has two dtypes or shapes"));
  }
  {
    InParts from;
    for (auto& range : from.manifest.ranges) range.sizes = {uint64_t{1} << 40, uint64_t{1} << 40};
    from.write();
    CHECK(from.refused().find("has more elements than can be counted") != std::string::npos);
  }
  {
    InParts from;
    from.manifest.ranges[0].begin = 4;
    from.manifest.ranges[2].begin = 4;
    from.write();
    CHECK(ends(from.refused(), "elements 4 to 5 of 'model.0/v' are 2 elements in parts_1.safetensors"));
  }
  {
    InParts from;
    for (auto& range : from.manifest.ranges) range.key = "absent";
    from.write();
    CHECK(from.refused().find("has no tensor 'absent', which the manifest names") != std::string::npos);
  }
  {
    const InParts from;
    write_file(from.path / "parts_1.safetensors", "damaged");
    CHECK(from.refused().find("parts_1.safetensors") != std::string::npos);
  }
  {
    const InParts from;
    fs::remove(from.path / "parts_0.safetensors");
    CHECK(ends(from.refused(), "parts_0.safetensors is missing"));
  }
  const InParts from;
  const TemporaryFolder to;
  CHECK(merge({"--model", "1", from.path.string(), to / "m.safetensors"}).err.find("has no *.safetensors.index.json") !=
        std::string::npos);
}

TEST_CASE("accelerate_checkpoint shows the elements of a part, and verifies the files") {
  const InParts from;
  const auto ran = run_program("accelerate_checkpoint", {"inspect", "--tensors", from.path.string()});
  CHECK(ran.code == 0);
  CHECK(
      ran.out.ends_with("tensors:\n"
                        "  model.0/w F32 elements 0 to 3 of [5] in parts_0.safetensors\n"
                        "  model.0/w F32 elements 3 to 5 of [5] in parts_1.safetensors\n"
                        "  n I64 [] in whole_tensors.safetensors\n"));
  CHECK(run_program("accelerate_checkpoint", {"verify", from.path.string()}).code == 0);
}
