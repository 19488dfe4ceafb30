// SPDX-License-Identifier: Apache-2.0
// Tokenised text in one mapped file, for language models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/data/batch_memory.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

struct TokenFile {
  /// One token after another: bare numbers, or an array of one dimension in a .npy file.
  std::filesystem::path path;
  /// T, tokens that the model sees at once.
  int64_t block_size;
  /// For raw numbers: uint16, uint32, int32 or int64. A .npy file contains its dtype.
  at::ScalarType dtype = at::kUInt16;
  /// Distance between the starts of consecutive blocks. If unset, T + 1, so that blocks share no token. With T the last
  /// token of a block is the first of the next, and every token except the first is a target.
  std::optional<int64_t> stride{};
  /// If set, tokens must be 0 to vocabulary-1, which is checked in every block that is read.
  std::optional<int64_t> vocabulary{};
  /// Of a block with another token. skip looks at the whole file, on several threads, before the first epoch: which
  /// blocks there are is then known, and the same on every rank; it needs vocabulary. A file that ends within a token
  /// is an error either way.
  OnError on_error = OnError::fail;
};

/// Blocks of T + 1 tokens in a mapped file: untouched data is not read, and all ranks of a machine share one copy.
class TokenBlocks final : public Source {
 public:
  /// \throws Error (io, data) for an unusable file, and if every block is broken; Error (usage) for a block, stride or
  ///         vocabulary below 1.
  explicit TokenBlocks(const TokenFile& file);

  /// Blocks.
  [[nodiscard]] int64_t size() const override { return blocks_ - skipped(); }
  /// data [B, T] and target [B, T] int64: target is the token after each token of data. Into reused memory; a large
  /// batch by several threads.
  [[nodiscard]] Batch read(const at::Tensor& indices) const override { return read_in_pass(indices, {}); }
  [[nodiscard]] Batch read_in_pass(const at::Tensor& indices, const ReadContext& context) const override;

  [[nodiscard]] int64_t tokens() const { return tokens_.size(0); }
  /// At the end, too few for another block.
  [[nodiscard]] int64_t dropped_tokens() const;
  /// Blocks that were left out.
  [[nodiscard]] int64_t skipped() const { return skipped_; }

 private:
  template <typename Token>
  void copy(const at::Tensor& indices, int64_t* data, int64_t* target) const;
  template <typename Token>
  void copy_block(int64_t block, int64_t* data, int64_t* target) const;
  void leave_out_broken();
  [[nodiscard]] at::Tensor block_of(int64_t block) const;
  /// A token of the block is outside the vocabulary.
  [[nodiscard]] bool is_broken(int64_t block) const;
  [[nodiscard]] std::string problem_of(int64_t block) const;

  TokenFile file_;
  int64_t stride_;
  at::Tensor tokens_;  // [tokens] in the file
  int64_t blocks_;     // in the file
  int64_t skipped_ = 0;
  std::vector<int64_t> whole_{};  // those that are left, where any were left out
  mutable BatchMemory memory_;
};

/// A loader over TokenBlocks: text_blocks({.path = "train.bin", .block_size = 1024}, {.batch_size = 8}). The numbers of
/// blocks and remaining tokens are logged at level info.
[[nodiscard]] Loader text_blocks(const TokenFile& file, const LoaderOptions& options = {});

}  // namespace accelerate::data
