// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <numeric>

#include "accelerate/archive/dcp_folder.hpp"
#include "tests/archive/dcp_files.hpp"
#include "tests/refusal.hpp"
#include "tests/temporary_folder.hpp"

using namespace dcp_files;
using testing::refusal;

namespace {

std::string parse(const Builder& builder) {
  return refusal([&] { static_cast<void>(read_dcp_metadata(builder.metadata(), {.path = "m", .operation = "load"})); });
}

std::string parse(const std::function<void(Builder&)>& fill) {
  Builder builder;
  fill(builder);
  return parse(builder);
}

std::string with_storage(PickleEntries members) {
  return parse([&](Builder& builder) {
    builder.add("a", bytes());
    builder.items.emplace_back(index("a", PickleNone{}), storage(std::move(members)));
  });
}

std::vector<float> elements(DcpFolder& folder, const std::string& name, uint64_t begin, uint64_t end) {
  std::vector<float> values(end - begin, -1);
  folder.read(*folder.find(name), begin, end, [&] { return reinterpret_cast<char*>(values.data()); });
  return values;
}

std::vector<float> counted(float first, size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// A 4 x 6 tensor with the values 0 to 23 in four blocks of uneven sizes, each in its own file.
Builder grid() {
  Builder builder;
  PickleItems chunks;
  int64_t number = 0;
  for (const auto& [row, rows] : {std::pair{0, 3}, std::pair{3, 1}}) {
    for (const auto& [column, columns] : {std::pair{0, 2}, std::pair{2, 4}}) {
      std::vector<float> values;
      for (int r = row; r < row + rows; ++r) {
        for (int c = column; c < column + columns; ++c) values.push_back(static_cast<float>(r * 6 + c));
      }
      chunks.push_back(chunk({row, column}, {rows, columns}));
      builder.add_item("a", {row, column}, {rows, columns}, values, "__" + std::to_string(number++) + "_0.distcp");
    }
  }
  builder.add("a", tensor({4, 6}, chunks));
  return builder;
}

// A vector of four elements with the given chunks, of which each has the item of its size.
std::string read_of(const std::vector<std::pair<int64_t, int64_t>>& chunks) {
  testing::TemporaryFolder folder;
  Builder builder;
  PickleItems parts;
  for (const auto& [offset, count] : chunks) {
    parts.push_back(chunk({offset}, {count}));
    builder.add_item("a", {offset}, {count}, counted(0, static_cast<size_t>(count)));
  }
  builder.add("a", tensor({4}, parts));
  builder.write(folder.path);
  return refusal([&] {
    DcpFolder opened(folder.path, "load");
    static_cast<void>(elements(opened, "a", 0, 4));
  });
}

// Reads a vector of two elements of which this is the item.
std::string read_item(const std::string& item) {
  testing::TemporaryFolder folder;
  Builder builder;
  builder.add("a", tensor({2}, {chunk({0}, {2})}));
  builder.add_bytes(index("a", size({0})), item);
  builder.write(folder.path);
  const std::string text = refusal([&] {
    DcpFolder opened(folder.path, "load");
    static_cast<void>(elements(opened, "a", 0, 2));
  });
  const std::string prefix = "load: " + folder / "__0_0.distcp" + ": the item of 'a': ";
  REQUIRE(text.starts_with(prefix));
  return text.substr(prefix.size());
}

}  // namespace

TEST_CASE("every range of a tensor in blocks is read, and only from the files that contain it") {
  testing::TemporaryFolder folder;
  grid().write(folder.path);
  DcpFolder opened(folder.path, "load");
  const DcpTensor& tensor = *opened.find("a");
  CHECK(tensor.dtype == "F32");
  CHECK(tensor.shape == std::vector<uint64_t>{4, 6});
  CHECK(tensor.elements == 24);
  CHECK(tensor.chunks.size() == 4);
  CHECK(opened.find("b") == nullptr);
  for (uint64_t begin = 0; begin <= 24; ++begin) {
    for (uint64_t end = begin; end <= 24; ++end) {
      CHECK(elements(opened, "a", begin, end) == counted(static_cast<float>(begin), end - begin));
    }
  }
  for (const auto* name : {"__0_0.distcp", "__1_0.distcp", "__3_0.distcp"}) std::filesystem::remove(folder / name);
  DcpFolder part(folder.path, "load");
  CHECK(elements(part, "a", 18, 20) == counted(18, 2));
}

TEST_CASE("a range outside the tensor is a usage error") {
  testing::TemporaryFolder folder;
  grid().write(folder.path);
  DcpFolder opened(folder.path, "load");
  for (const auto& [begin, end] : {std::pair<uint64_t, uint64_t>{3, 25}, {5, 4}}) {
    CHECK(refusal([&, b = begin, e = end] {
            opened.read(*opened.find("a"), b, e, [] { return static_cast<char*>(nullptr); });
          }) ==
          fmt::format("load: {}: elements {} to {} of 'a' are read, it has 24", folder / ".metadata", begin, end));
  }
}

TEST_CASE("tensors without dimensions or elements, transposed items and plain values are read") {
  testing::TemporaryFolder folder;
  Builder builder;
  builder.add("scalar", tensor({}, {chunk({}, {})}));
  builder.add_item("scalar", {}, {}, {2.5F});
  builder.add("empty", tensor({0, 3}, {chunk({0, 0}, {0, 3})}));
  builder.add("uneven", tensor({1}, {chunk({0}, {1}), chunk({1}, {0})}));  // rank 1 has no element and writes no item
  builder.add_item("uneven", {0}, {1}, {7.0F});
  builder.add("transposed", tensor({2, 3}, {chunk({0, 0}, {2, 3})}));
  builder.add_bytes(index("transposed", size({0, 0})),
                    Builder::torch_file(Builder::saved_tensor({2, 3}, {1, 2}, 6), {0, 3, 1, 4, 2, 5}));
  builder.add_value("rates", list({0.5, text("x")}));
  builder.add_path("rates", {"optimizer", "rates"});
  builder.write(folder.path);
  DcpFolder opened(folder.path, "load");
  CHECK(elements(opened, "scalar", 0, 1) == std::vector<float>{2.5F});
  CHECK(elements(opened, "empty", 0, 0).empty());
  CHECK(elements(opened, "uneven", 0, 1) == std::vector<float>{7.0F});
  CHECK(elements(opened, "transposed", 0, 6) == counted(0, 6));
  CHECK(elements(opened, "transposed", 2, 5) == counted(2, 3));
  REQUIRE(opened.metadata().values.size() == 1);
  CHECK(opened.metadata().values[0].path == std::vector<std::string>{"optimizer", "rates"});
  CHECK(opened.metadata().tensors[0].path == std::vector<std::string>{"scalar"});
  const PickleValue rates = opened.value(opened.metadata().values[0]);
  REQUIRE(rates.as<PickleList>() != nullptr);
  CHECK(*rates.as<PickleList>()->items->front().as<double>() == 0.5);
}

TEST_CASE("the enumerators in .metadata are read in both forms of Python") {
  for (const PickleValue& format : {memory_format(), memory_format_by_name()}) {
    testing::TemporaryFolder folder;
    Builder builder;
    builder.add("a", tensor({2}, {chunk({0}, {2})}, PickleGlobal{"torch", "float32"}, format));
    builder.add_item("a", {0}, {2}, {7.0F, 8.0F});
    builder.write(folder.path);
    DcpFolder opened(folder.path, "load");
    CHECK(elements(opened, "a", 0, 2) == std::vector<float>{7, 8});
  }
}

TEST_CASE("elements in no item or in two are refused") {
  CHECK(read_of({{0, 2}, {2, 2}}).empty());
  CHECK(read_of({{0, 2}, {3, 1}}).ends_with(".metadata: elements 2 to 3 of 'a' are in no item"));
  CHECK(read_of({{0, 3}}).ends_with(".metadata: elements 3 to 4 of 'a' are in no item"));
  CHECK(read_of({{0, 3}, {2, 2}}).ends_with(".metadata: elements 2 to 3 of 'a' are in two items"));
}

TEST_CASE("items that do not match .metadata are refused with file and item") {
  const auto saved = [](const Sizes& sizes, const Sizes& strides, const std::string& type = "FloatStorage") {
    return Builder::torch_file(Builder::saved_tensor(sizes, strides, 2, type), {1, 2});
  };
  CHECK(read_item("no ZIP file").find("ZIP") != std::string::npos);
  CHECK(read_item(Builder::torch_file(int64_t{1}, {})) == "'a' is an integer, expected a tensor");
  CHECK(read_item(saved({2}, {1}, "IntStorage")) == "its dtype is I32, .metadata has F32");
  CHECK(read_item(saved({1}, {1})) == "its shape differs from that of the chunk in .metadata");
  CHECK(read_item(saved({2}, {2})).find("reaches beyond its storage") != std::string::npos);
  CHECK(read_item(Builder::torch_file(Builder::saved_tensor({2}, {0}, 1), {1})) ==
        "its 2 elements are more than those of its storage");
  PickleValue negative = Builder::saved_tensor({2}, {1}, 2);
  negative.as<PickleObject>()->parts->arguments.push_back(dict({{text("neg"), true}}));
  CHECK(read_item(Builder::torch_file(negative, {1, 2})) == "its conj or neg bit is set, which is not read here");
}

TEST_CASE("a cut file and a missing file are reported") {
  testing::TemporaryFolder folder;
  grid().write(folder.path);
  const auto size = std::filesystem::file_size(folder / "__2_0.distcp");
  std::filesystem::resize_file(folder / "__2_0.distcp", size - 1);
  DcpFolder opened(folder.path, "load");
  CHECK(refusal([&] { static_cast<void>(elements(opened, "a", 0, 24)); }) ==
        fmt::format("load: {}: the item of 'a': {} bytes from byte 0 on are expected, the file has {}; it was cut",
                    folder / "__2_0.distcp", size, size - 1));
  std::filesystem::remove(folder / "__0_0.distcp");
  CHECK(refusal([&] {
          DcpFolder again(folder.path, "load");
          static_cast<void>(elements(again, "a", 0, 24));
        }) == "load: " + folder / "__0_0.distcp" + " cannot be opened: No such file or directory");
}

TEST_CASE("a pickle of another program, and forbidden names, are refused") {
  const auto read = [](const PickleValue& value) {
    return refusal([&] { static_cast<void>(read_dcp_metadata(pickle(value), {.path = "m", .operation = "load"})); });
  };
  CHECK(read(int64_t{1}) == "load: m: it holds an integer, expected a torch.distributed.checkpoint.metadata.Metadata");
  CHECK(read(of_metadata("Metadata", PickleNone{})) == "load: m: the metadata is None, expected a dict");
  CHECK(read(of_metadata("Metadata", dict({}))) == "load: m: the metadata lacks 'storage_data'");
  CHECK(read(of_metadata("Metadata", dict({{text("storage_data"), int64_t{1}}}))) ==
        "load: m: 'storage_data' of the metadata is an integer, expected a dict");
  CHECK(read(object("os", "system", {text("true")}, {})).find("it names 'os.system', which is not read") !=
        std::string::npos);
}

TEST_CASE("invalid tensors in .metadata are refused by name") {
  const auto with = [](const PickleValue& value) { return parse([&](Builder& builder) { builder.add("a", value); }); };
  const std::string of_a = "load: m: 'a' ";
  CHECK(with(int64_t{1}) == of_a + "is an integer, expected a tensor or bytes");
  CHECK(with(tensor({2}, {chunk({0}, {2})})) == "load: m: 'storage_data' has no item of 'a' at [0]");
  CHECK(with(bytes()) == "load: m: 'storage_data' has no item of 'a'");
  CHECK(with(tensor({2}, {chunk({1}, {2})})) == "load: m: a chunk of 'a' of shape [2] at [1] is outside its shape [2]");
  CHECK(with(tensor({2}, {chunk({3}, {0})})) == "load: m: a chunk of 'a' of shape [0] at [3] is outside its shape [2]");
  CHECK(with(tensor({2}, {chunk({0, 0}, {2})})) ==
        "load: m: a chunk of 'a' of shape [2] at [0, 0] is outside its shape [2]");
  CHECK(with(tensor({2}, {int64_t{1}})) == "load: m: 'chunks' of 'a' is an integer, expected chunks");
  CHECK(with(tensor({-1}, {})) == of_a + "has -1 as a size, expected an integer from 0");
  CHECK(with(tensor(Sizes(65, 1), {})) == of_a + "has 65 dimensions, expected at most 64");
  CHECK(with(tensor({int64_t{1} << 40, int64_t{1} << 40}, {})) == of_a + "has more elements than can be counted");
  CHECK(with(tensor({int64_t{1} << 61}, {})) == of_a + "has more elements than can be counted");
  CHECK(with(tensor({1}, {}, PickleGlobal{"torch", "Size"})) == of_a + "has an unknown dtype");
  const auto changed = [&](const std::string& member, const PickleValue& value) {
    PickleValue whole = tensor({2}, {});
    for (auto& [key, old] : *whole.as<PickleObject>()->parts->state.as<PickleDict>()->entries) {
      if (*key.as<std::string>() == member) old = value;
    }
    return with(whole);
  };
  CHECK(changed("properties", int64_t{1}) == of_a + "has an integer as properties, expected TensorProperties");
  CHECK(changed("size", int64_t{1}) == of_a + "has an integer as size, expected a torch.Size");
  CHECK(changed("size", tuple({text("x")})) == of_a + "has a text as a size, expected an integer from 0");
}

TEST_CASE("invalid items in .metadata are refused by name") {
  const PickleEntries whole{
      {text("relative_path"), text("f")}, {text("offset"), int64_t{0}}, {text("length"), int64_t{1}}};
  CHECK(with_storage(whole).empty());
  for (const std::string file : {"", ".", "..", "../f", "/f", "a\\f"}) {
    auto changed = whole;
    changed[0].second = text(file);
    CHECK(with_storage(changed) ==
          "load: m: the item of 'a' is in '" + file + "', expected a file name in the same folder");
  }
  auto negative = whole;
  negative[1].second = int64_t{-1};
  CHECK(with_storage(negative) == "load: m: 'offset' of the item of 'a' is -1, expected an integer from 0");
  auto compressed = whole;
  compressed.emplace_back(text("transform_descriptors"), tuple({text("zstd")}));
  CHECK(with_storage(compressed) ==
        "load: m: the item of 'a' is transformed (compressed), which is not read; save it without stream transforms");
  compressed.back().second = tuple({});
  CHECK(with_storage(compressed).empty());
  CHECK(parse([](Builder& builder) { builder.items.emplace_back(text("a"), int64_t{1}); }) ==
        "load: m: 'storage_data' maps a text to an integer, expected a MetadataIndex and a _StorageInfo");
  CHECK(parse([](Builder& builder) {
          builder.items.emplace_back(index("a", PickleNone{}), storage("f", 0, 1));
          builder.items.emplace_back(index("a", PickleNone{}), storage("f", 1, 1));
        }) == "load: m: 'a' is in 'storage_data' twice");
  CHECK(parse([](Builder& builder) {
          builder.items.emplace_back(index("a", size({0})), storage("f", 0, 5));
          builder.items.emplace_back(index("b", PickleNone{}), storage("f", 4, 5));
        }) == "load: m: the items of 'a' and 'b' share bytes of f");
}

TEST_CASE("invalid names and paths in .metadata are refused") {
  CHECK(parse([](Builder& builder) { builder.tensors.emplace_back(int64_t{1}, bytes()); }) ==
        "load: m: a name in state_dict_metadata is an integer, expected a text");
  CHECK(parse([](Builder& builder) { builder.paths.emplace_back(text("a"), tuple({})); }) ==
        "load: m: the path of 'a' is a tuple, expected a tuple of keys");
  CHECK(parse([](Builder& builder) { builder.paths.emplace_back(text("a"), tuple({0.5})); }) ==
        "load: m: a name in planner_data is a float, expected a text");
  testing::TemporaryFolder folder;
  Builder builder;
  for (int i = 0; i < 2; ++i) builder.add("a", tensor({0}, {}));
  builder.write(folder.path);
  CHECK(refusal([&] { DcpFolder(folder.path, "load"); }) ==
        "load: " + folder / ".metadata" + ": two tensors have the name 'a'");
}
