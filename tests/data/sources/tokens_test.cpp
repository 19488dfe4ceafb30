// SPDX-License-Identifier: Apache-2.0
#include "tests/data/sources/files.hpp"
//
#include "accelerate/base/log.hpp"
#include "accelerate/data/sources/tokens.hpp"

using accelerate::ErrorKind;
using accelerate::data::OnError;
using accelerate::data::text_blocks;
using accelerate::data::TokenBlocks;
using accelerate::data::TokenFile;
using namespace test_files;

namespace {

const fs::path recorded = TEST_SOURCE_DIR "/tests/data/sources/recorded";

/// A file of raw tokens first, first + 1, ...
template <typename Token>
void write_tokens(const fs::path& path, Token first, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += bytes<Token>({static_cast<Token>(first + static_cast<Token>(i))});
  write(path, all);
}

at::Tensor longs(std::vector<int64_t> values, at::IntArrayRef shape) {
  return torch::tensor(values, torch::kLong).view(shape);
}

std::string refused(const TokenFile& file, ErrorKind kind = ErrorKind::data) {
  return message([&] { (void)text_blocks(file); }, kind);
}

}  // namespace

TEST_CASE("a block is T tokens and the same shifted by one; the incomplete rest is dropped and counted") {
  const Folder folder;
  write_tokens<uint16_t>(folder.path / "x.bin", 65000, 11);
  const TokenBlocks blocks({.path = folder.path / "x.bin", .block_size = 3});
  CHECK(blocks.size() == 2);
  CHECK(blocks.tokens() == 11);
  CHECK(blocks.dropped_tokens() == 3);
  const auto batch = blocks.read(longs({1, 0, 1}, {3}));
  CHECK(batch.data.equal(longs({4, 5, 6, 0, 1, 2, 4, 5, 6}, {3, 3}) + 65000));
  CHECK(batch.target.equal(batch.data + 1));
  CHECK(batch.data.dtype() == torch::kLong);
}

TEST_CASE("block indices may be a strided column, and indices out of range are refused") {
  const Folder folder;
  write_tokens<uint16_t>(folder.path / "x.bin", 0, 40);
  const TokenBlocks blocks({.path = folder.path / "x.bin", .block_size = 3});
  const auto of = [](const at::Tensor& numbers) { return numbers * 4; };  // the first token of each block
  const auto column = torch::arange(8).view({4, 2}).select(1, 0);
  CHECK(blocks.read(column).data.select(1, 0).equal(of(column)));
  CHECK(message(
            [&] {
              (void)blocks.read(torch::tensor({1, 99}));
            },
            ErrorKind::usage) == "text_blocks: sample 99 is requested, there are 10 samples");
}

TEST_CASE("a batch equals NumPy's reshape of the tokens, for every dtype of the file") {
  const Folder folder;
  write_tokens<uint16_t>(folder.path / "16", 60000, 100);
  write_tokens<uint32_t>(folder.path / "32", 4000000000U, 100);
  write_tokens<int32_t>(folder.path / "i32", 7, 100);
  write_tokens<int64_t>(folder.path / "64", 1LL << 40, 100);
  const auto check = [&](const std::string& name, at::ScalarType dtype, int64_t first) {
    CAPTURE(name);
    auto loader = text_blocks({.path = folder.path / name, .block_size = 9, .dtype = dtype}, {.batch_size = 10});
    const auto batch = *loader.begin();
    const auto whole = (torch::arange(100, torch::kLong) + first).view({10, 10});
    CHECK(batch.data.equal(whole.slice(1, 0, 9)));
    CHECK(batch.target.equal(whole.slice(1, 1, 10)));
  };
  check("16", torch::kUInt16, 60000);
  check("32", torch::kUInt32, 4000000000);
  check("i32", torch::kInt, 7);
  check("64", torch::kLong, 1LL << 40);
}

TEST_CASE("with a stride of T every token but the first is a target once") {
  const Folder folder;
  write_tokens<uint16_t>(folder.path / "x.bin", 0, 10);
  const TokenBlocks blocks({.path = folder.path / "x.bin", .block_size = 3, .stride = 3});
  CHECK(blocks.size() == 3);
  CHECK(blocks.dropped_tokens() == 0);
  CHECK(blocks.read(longs({0, 1, 2}, {3})).target.equal(longs({1, 2, 3, 4, 5, 6, 7, 8, 9}, {3, 3})));
  const TokenBlocks one({.path = folder.path / "x.bin", .block_size = 9});
  CHECK(one.size() == 1);
  CHECK(one.dropped_tokens() == 0);
}

TEST_CASE("data and target have separate memory, so one may be changed without the other") {
  const Folder folder;
  write_tokens<uint16_t>(folder.path / "x.bin", 0, 8);
  const TokenBlocks blocks({.path = folder.path / "x.bin", .block_size = 3});
  auto batch = blocks.read(longs({0, 1}, {2}));
  batch.data.fill_(-100);
  CHECK(batch.target.equal(longs({1, 2, 3, 5, 6, 7}, {2, 3})));
  CHECK(blocks.read(longs({0}, {1})).data.equal(longs({0, 1, 2}, {1, 3})));
}

TEST_CASE("tokens in a .npy file use its dtype") {
  const Folder folder;
  const std::string dict = "{'descr': '<u4', 'fortran_order': False, 'shape': (4,), }";
  std::string header = dict + std::string(128 - 10 - 1 - dict.size(), ' ') + "\n";
  write(folder.path / "x.npy", "\x93NUMPY" + std::string("\1\0\x76\0", 4) + header + bytes<uint32_t>({70000, 1, 2, 3}));
  const TokenBlocks blocks({.path = folder.path / "x.npy", .block_size = 3});
  CHECK(blocks.read(longs({0}, {1})).data.equal(longs({70000, 1, 2}, {1, 3})));

  CHECK(refused({.path = recorded / "f4.npy", .block_size = 3}) ==
        "text_blocks: " + (recorded / "f4.npy").string() + " holds float32: expected uint16, uint32, int32 or int64");
  CHECK(refused({.path = recorded / "i8.npy", .block_size = 3}) ==
        "text_blocks: " + (recorded / "i8.npy").string() + " has 2 dimensions: expected 1, one token after another");
}

TEST_CASE("the log contains the number of blocks and of remaining tokens") {
  const Folder folder;
  write_tokens<uint16_t>(folder.path / "x.bin", 0, 11);
  std::vector<std::string> lines;
  const auto level = accelerate::base::log_level();
  accelerate::base::set_log_level(accelerate::base::LogLevel::info);
  auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  (void)text_blocks({.path = folder.path / "x.bin", .block_size = 3});
  accelerate::base::set_log_handler(before);
  accelerate::base::set_log_level(level);
  CHECK(lines == std::vector<std::string>{"text_blocks: " + folder.file("x.bin") +
                                          " has 11 tokens: 2 blocks of 3 and the token after, 3 left over"});
}

TEST_CASE("files shorter than a block or cut within a token, and invalid options, are refused") {
  const Folder folder;
  const auto path = folder.file("x.bin");
  write(path, std::string(6, '\0'));
  CHECK(refused({.path = path, .block_size = 3}) ==
        "text_blocks: " + path + " has 3 tokens: expected at least 4, a block of 3 and the token after it");
  CHECK(refused({.path = path, .block_size = std::numeric_limits<int64_t>::max()}) ==
        "text_blocks: " + path +
            " has 3 tokens: expected at least 9223372036854775807, a block of 9223372036854775807 "
            "and the token after it");
  write(path, "");
  CHECK(refused({.path = path, .block_size = 3}) ==
        "text_blocks: " + path + " has 0 tokens: expected at least 4, a block of 3 and the token after it");
  write(path, std::string(9, '\0'));
  CHECK(refused({.path = path, .block_size = 3}) ==
        "map_raw: " + path + " has 9 bytes: expected a multiple of 2, a sample [] of uint16, found 1 more");
  CHECK(refused({.path = path, .block_size = 0}, ErrorKind::usage) ==
        "text_blocks: block_size is 0, must be at least 1");
  CHECK(refused({.path = path, .block_size = 3, .stride = 0}, ErrorKind::usage) ==
        "text_blocks: stride is 0, must be at least 1");
  CHECK(refused({.path = path, .block_size = 3, .vocabulary = -5}, ErrorKind::usage) ==
        "text_blocks: vocabulary is -5, must be at least 1");
}

TEST_CASE("a token outside the vocabulary is refused with its position when its block is read") {
  const Folder folder;
  const auto path = folder.file("x.bin");
  const auto error_of = [&](const TokenFile& file, int64_t block) {
    const TokenBlocks blocks(file);
    return message([&] { (void)blocks.read(longs({block}, {1})); }, ErrorKind::data);
  };
  write(path, bytes<int64_t>({0, 1, 2, 3, 4, 5, 6, -1}));
  const TokenFile file{.path = path, .block_size = 3, .dtype = torch::kLong, .vocabulary = 6};
  CHECK(TokenBlocks(file).read(longs({0}, {1})).target.equal(longs({1, 2, 3}, {1, 3})));
  CHECK(error_of(file, 1) == "text_blocks: " + path + " has token 6 at place 6, in block 1: expected 0 to 5");
  write(path, bytes<int64_t>({-7, 1, 2, 3}));
  CHECK(error_of(file, 0) == "text_blocks: " + path + " has token -7 at place 0, in block 0: expected 0 to 5");
  write(path, bytes<int64_t>({0, 1, 2, -1}));
  CHECK(error_of(file, 0) == "text_blocks: " + path + " has token -1 at place 3, in block 0: expected 0 to 5");
}

TEST_CASE("with skip, blocks with a token outside the vocabulary are omitted, counted and logged once") {
  const Folder folder;
  const auto path = folder.file("x.bin");
  write(path, bytes<int64_t>({0, 1, 2, 9, 4, 5, 3, 3, 3, 1, -1, 1, 5}));
  const TokenFile file{
      .path = path, .block_size = 2, .dtype = torch::kLong, .vocabulary = 6, .on_error = OnError::skip};
  const auto lines = logged([&] {
    const TokenBlocks blocks(file);
    CHECK(blocks.size() == 2);
    CHECK(blocks.skipped() == 2);
    CHECK(blocks.dropped_tokens() == 1);
    const auto batch = blocks.read(longs({1, 0}, {2}));
    CHECK(batch.data.equal(longs({3, 3, 0, 1}, {2, 2})));
    CHECK(batch.target.equal(longs({3, 3, 1, 2}, {2, 2})));
  });
  CHECK(lines == std::vector<std::string>{"text_blocks: 2 of 4 blocks are left out; the first: " + path +
                                          " has token 9 at place 3, in block 1: expected 0 to 5"});

  write(path, bytes<uint16_t>({7, 8, 9, 7, 8, 9}));
  CHECK(refused({.path = path, .block_size = 2, .vocabulary = 7, .on_error = OnError::skip}) ==
        "text_blocks: all 2 blocks are broken; the first: " + path +
            " has token 7 at place 0, in block 0: expected 0 to 6");
  CHECK(refused({.path = path, .block_size = 2, .on_error = OnError::skip}, ErrorKind::usage) ==
        "text_blocks: on_error is skip, but vocabulary is not given, so no block can be recognised as broken; give "
        "vocabulary, or remove on_error");
  const TokenFile all{.path = path, .block_size = 2, .vocabulary = 10, .on_error = OnError::skip};
  CHECK(logged([&] { CHECK(TokenBlocks(all).size() == 2); }).empty());
}
