// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/dcp_tensors.hpp"

#include "tests/testing.hpp"
//
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/archive/dcp_files.hpp"
#include "tests/checkpoint/folder.hpp"

// Named, because other files that are compiled together have functions of the same names.
namespace dcp_tensors_testing {

namespace archive = accelerate::archive;
namespace fs = std::filesystem;
namespace state = accelerate::state;
using accelerate::checkpoint::DcpTensors;
using dcp_files::Builder;
using dcp_files::Sizes;

namespace {

// A block of a matrix with the values 0, 1, 2, ... in row-major order.
void add_block(Builder& builder, const std::string& name, const Sizes& whole, const Sizes& offsets, const Sizes& sizes,
               const std::string& file) {
  std::vector<float> values;
  for (int64_t row = 0; row < sizes[0]; ++row) {
    for (int64_t column = 0; column < sizes[1]; ++column) {
      values.push_back(static_cast<float>((offsets[0] + row) * whole[1] + offsets[1] + column));
    }
  }
  builder.add_item(name, offsets, sizes, values, file);
}

/// A matrix in two chunks, in two files.
/// \param shift  Bytes before the first chunk.
struct Saved {
  Saved(const Sizes& sizes, size_t dimension, int64_t shift = 0) : whole(sizes) {
    if (shift > 0) {
      builder.add_bytes(dcp_files::index("shift", archive::PickleNone{}), std::string(static_cast<size_t>(shift), 'x'));
    }
    Sizes first = sizes, second = sizes, offset(2, 0);
    first[dimension] = offset[dimension] = sizes[dimension] / 2;
    second[dimension] -= offset[dimension];
    builder.add("w", dcp_files::tensor(sizes, {dcp_files::chunk({0, 0}, first), dcp_files::chunk(offset, second)}));
    add_block(builder, "w", sizes, {0, 0}, first, "__0_0.distcp");
    add_block(builder, "w", sizes, offset, second, "__1_0.distcp");
    builder.write(folder.path);
    opened = std::make_shared<archive::DcpFolder>(folder.path, "load");
    placeholder = tensors.tensor(opened, *opened->find("w"));
  }

  // Reads elements as one tensor.
  [[nodiscard]] torch::Tensor elements(int64_t begin, int64_t end, c10::ScalarType dtype = torch::kFloat) {
    const auto flat = torch::full({end - begin}, -1, dtype);
    for (const auto& piece : tensors.read(placeholder, begin, end)) {
      const auto [to, from] = state::copy_of(piece, placeholder, flat, begin);
      to.copy_(from);
    }
    return flat;
  }
  [[nodiscard]] bool refers_to_files(int64_t begin, int64_t end) {
    const auto pieces = tensors.read(placeholder, begin, end);
    return std::ranges::all_of(pieces, [](const auto& piece) {
      return piece.values.storage().data_ptr().get_deleter() != c10::GetCPUAllocator()->raw_deleter();
    });
  }

  testing::SharedFolder folder{};
  Sizes whole;
  Builder builder{};
  std::shared_ptr<archive::DcpFolder> opened{};
  DcpTensors tensors{};
  torch::Tensor placeholder{};
};

}  // namespace

TEST_CASE("a tensor of a DCP folder is a placeholder, of which ranges are read at any alignment") {
  for (const int64_t shift : {0, 1, 2, 3, 4}) {
    for (const size_t dimension : {0U, 1U}) {
      CAPTURE(shift);
      CAPTURE(dimension);
      Saved saved({4, 6}, dimension, shift);
      CHECK(saved.placeholder.is_meta());
      CHECK(saved.placeholder.sizes() == torch::IntArrayRef({4, 6}));
      CHECK((saved.placeholder.scalar_type() == torch::kFloat));
      for (int64_t begin = 0; begin <= 24; ++begin) {
        for (int64_t end = begin; end <= 24; ++end) {
          const auto expected = torch::arange(begin, end, torch::kFloat);
          CHECK(saved.elements(begin, end).equal(expected));
          CHECK(saved.elements(begin, end, torch::kDouble).equal(expected.to(torch::kDouble)));
        }
      }
      const auto read = [&](const torch::Tensor& placeholder, int64_t begin, int64_t end) {
        return saved.tensors.read(placeholder, begin, end);
      };
      CHECK(state::whole_of(saved.placeholder, read).equal(torch::arange(24, torch::kFloat).reshape({4, 6})));
    }
  }
}

TEST_CASE("long runs of elements refer to the files, and short ones are copied together") {
  for (const int64_t shift : {0, 1}) {
    Saved by_rows({256, 256}, 0, shift);
    CHECK(by_rows.refers_to_files(0, 256 * 256));
    CHECK(by_rows.refers_to_files(100, 200 * 256));
    CHECK(by_rows.tensors.read(by_rows.placeholder, 100, 200 * 256).size() == 2);
    Saved by_columns({256, 256}, 1, shift);
    CHECK_FALSE(by_columns.refers_to_files(0, 256 * 256));
    CHECK(by_columns.tensors.read(by_columns.placeholder, 0, 256 * 256).size() == 1);
    CHECK(by_columns.elements(100, 200 * 256).equal(torch::arange(100, 200 * 256, torch::kFloat)));
    CHECK(by_columns.refers_to_files(0, 128));
  }
}

TEST_CASE("only the files of a range are read") {
  Saved saved({4, 6}, 0);
  fs::remove(saved.folder.path / "__0_0.distcp");
  saved.opened = std::make_shared<archive::DcpFolder>(saved.folder.path, "load");
  CHECK_THROWS_WITH(static_cast<void>(saved.tensors.tensor(saved.opened, *saved.opened->find("w"))),
                    doctest::Contains("__0_0.distcp cannot be opened: No such file or directory"));
  archive::DcpFolder part(saved.folder.path, "load");
  const auto elements = part.mapped(*part.find("w"), 12, 24);
  REQUIRE(elements);
  REQUIRE(elements->size() == 1);
  CHECK(elements->front().bytes.size() == 12 * sizeof(float));
}

TEST_CASE("a piece keeps its file mapped, and another placeholder is refused") {
  std::vector<state::SavedElements> pieces;
  {
    Saved saved({256, 256}, 0);
    pieces = saved.tensors.read(saved.placeholder, 0, 128);
    CHECK_THROWS_WITH(static_cast<void>(saved.tensors.read(torch::empty({4, 6}, torch::kMeta), 0, 1)),
                      doctest::Contains("the placeholder belongs to another checkpoint"));
  }
  REQUIRE(pieces.size() == 1);
  const auto flat = torch::zeros({128});
  const auto [to, from] = state::copy_of(pieces[0], torch::empty({256, 256}, torch::kMeta), flat, 0);
  to.copy_(from);
  CHECK(flat.equal(torch::arange(128, torch::kFloat)));
}

TEST_CASE("a tensor of at most one element is read at once") {
  const testing::SharedFolder folder;
  Builder builder;
  builder.add("step", dcp_files::tensor({}, {dcp_files::chunk({}, {})}));
  builder.add_item("step", {}, {}, {4});
  builder.add("none", dcp_files::tensor({0, 3}, {}));
  builder.write(folder.path);
  const auto opened = std::make_shared<archive::DcpFolder>(folder.path, "load");
  DcpTensors tensors;
  CHECK(tensors.tensor(opened, *opened->find("step")).item<float>() == 4);
  const auto none = tensors.tensor(opened, *opened->find("none"));
  CHECK_FALSE(none.is_meta());
  CHECK(none.sizes() == torch::IntArrayRef({0, 3}));
}

}  // namespace dcp_tensors_testing
