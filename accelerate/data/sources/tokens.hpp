// SPDX-License-Identifier: Apache-2.0
// Tokenised text in a mapped file, for language models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/data/batch_buffer_pool.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

struct TokenFile {
  /// File of tokens: raw numbers, or a one-dimensional array in a .npy file.
  std::filesystem::path path;
  /// T, the context length of the model in tokens.
  int64_t block_size;
  /// For raw numbers: uint16, uint32, int32 or int64. A .npy file contains its dtype.
  at::ScalarType dtype = at::kUInt16;
  /// Distance between the starts of consecutive blocks. If unset, T + 1, so that blocks share no token. With T the last
  /// token of a block is the first of the next, and every token except the first is a target.
  std::optional<int64_t> stride{};
  /// If set, tokens must be 0 to vocabulary-1, which is checked in every block that is read.
  std::optional<int64_t> vocabulary{};
  /// Treatment of a block with another token; skip requires vocabulary. With skip, several threads read the whole file
  /// before the first epoch, so that all ranks know the same blocks. A file that ends within a token is always an
  /// error.
  OnError on_error = OnError::fail;
};

/// Blocks of T + 1 tokens in a mapped file: untouched data is not read, and all ranks of a machine share one copy.
class TokenBlocks final : public Source {
 public:
  /// \throws Error (io, data) for an unusable file, and if every block is broken; Error (usage) for a block, stride or
  ///         vocabulary below 1.
  explicit TokenBlocks(const TokenFile& file);

  /// Number of blocks.
  [[nodiscard]] int64_t size() const override { return blocks_ - skipped(); }
  /// data [B, T] and target [B, T] int64: target is the token after each token of data. Uses reused memory, and several
  /// threads for a large batch.
  [[nodiscard]] Batch read(const at::Tensor& indices) const override { return read_in_pass(indices, {}); }
  [[nodiscard]] Batch read_in_pass(const at::Tensor& indices, const ReadContext& context) const override;

  [[nodiscard]] int64_t tokens() const { return tokens_.size(0); }
  /// Number of tokens at the end that do not fill a block.
  [[nodiscard]] int64_t dropped_tokens() const;
  /// Number of omitted blocks.
  [[nodiscard]] int64_t skipped() const { return skipped_; }

 private:
  template <typename Token>
  void copy(const at::Tensor& indices, int64_t* data, int64_t* target) const;
  template <typename Token>
  void copy_block(int64_t block, int64_t* data, int64_t* target) const;
  void drop_broken();
  [[nodiscard]] at::Tensor block_of(int64_t block) const;
  /// True if a token of the block is outside the vocabulary.
  [[nodiscard]] bool is_broken(int64_t block) const;
  [[nodiscard]] std::string problem_of(int64_t block) const;

  TokenFile file_;
  int64_t stride_;
  at::Tensor tokens_;  // [tokens], mapped
  int64_t blocks_;     // number of blocks in the file
  int64_t skipped_ = 0;
  std::vector<int64_t> whole_{};  // valid blocks, if any block was omitted
  mutable BatchBufferPool memory_;
};

/// A loader over TokenBlocks: text_blocks({.path = "train.bin", .block_size = 1024}, {.batch_size = 8}). The numbers of
/// blocks and remaining tokens are logged at level info.
[[nodiscard]] Loader text_blocks(const TokenFile& file, const LoaderOptions& options = {});

}  // namespace accelerate::data
