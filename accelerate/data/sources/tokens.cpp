// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/tokens.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "accelerate/base/log.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/parallel_for_samples.hpp"
#include "accelerate/data/sources/files.hpp"
#include "accelerate/data/sources/labels.hpp"
#include "accelerate/data/sources/npy.hpp"

namespace accelerate::data {
namespace {

constexpr std::string_view kTokensOperation = "text_blocks";

void check_at_least_one(int64_t value, std::string_view name) {
  if (value < 1) base::fail(ErrorKind::usage, {}, kTokensOperation, "{} is {}, must be at least 1", name, value);
}

at::Tensor map_tokens(const TokenFile& file) {
  const at::Tensor tokens =
      file.path.extension() == ".npy" ? map_npy(file.path) : map_raw({.path = file.path, .dtype = file.dtype});
  const auto dtype = tokens.scalar_type();
  if (dtype != at::kUInt16 && dtype != at::kUInt32 && dtype != at::kInt && dtype != at::kLong)
    base::fail(ErrorKind::data, {}, kTokensOperation, "{} holds {}: expected uint16, uint32, int32 or int64",
               file.path.string(), dtype_name(dtype));
  if (tokens.dim() != 1)
    base::fail(ErrorKind::data, {}, kTokensOperation, "{} has {} dimensions: expected 1, one token after another",
               file.path.string(), tokens.dim());
  return tokens;
}

int64_t after(int64_t block_size) { return std::min(block_size, std::numeric_limits<int64_t>::max() - 1) + 1; }

}  // namespace

TokenBlocks::TokenBlocks(const TokenFile& file) : file_(file), stride_(file.stride.value_or(after(file.block_size))) {
  check_at_least_one(file.block_size, "block_size");
  check_at_least_one(stride_, "stride");
  check_at_least_one(file.vocabulary.value_or(1), "vocabulary");
  check_can_skip(file.on_error, file.vocabulary.has_value(), kTokensOperation, "vocabulary", "block");
  tokens_ = map_tokens(file);
  if (tokens() <= file.block_size)
    base::fail(ErrorKind::data, {}, kTokensOperation,
               "{} has {} tokens: expected at least {}, a block of {} and the token after it", file.path.string(),
               tokens(), after(file.block_size), file.block_size);
  blocks_ = (tokens() - file.block_size - 1) / stride_ + 1;
  if (file.on_error == OnError::skip) drop_broken();
}

void TokenBlocks::drop_broken() {
  const auto broken = at::zeros({blocks_}, at::TensorOptions().dtype(at::kByte));
  auto* const is = broken.data_ptr<uint8_t>();
  parallel_for_samples(broken, kBytesOfPart / (8 * file_.block_size), [&](int64_t first, int64_t count) {
    for (int64_t block = first; block < first + count; ++block) is[block] = is_broken(block) ? 1 : 0;
  });
  SkippedSamples left_out;
  for (int64_t block = 0; block < blocks_; ++block)
    if (is[block] != 0) left_out.add(1, left_out.samples == 0 ? problem_of(block) : "");
  left_out.tell(kTokensOperation, blocks_, "blocks");
  skipped_ = left_out.samples;
  for (int64_t block = 0; skipped_ > 0 && block < blocks_; ++block)
    if (is[block] == 0) whole_.push_back(block);
}

int64_t TokenBlocks::dropped_tokens() const { return tokens() - ((blocks_ - 1) * stride_ + file_.block_size + 1); }

Batch TokenBlocks::read_in_pass(const at::Tensor& requested, const ReadContext& context) const {
  const at::Tensor indices = checked_indices(kTokensOperation, requested, size());
  const std::array<int64_t, 2> shape{indices.size(0), file_.block_size};
  Batch batch{.data = memory_.take(shape, at::kLong, context.pinned),
              .target = memory_.take(shape, at::kLong, context.pinned)};
  auto* const data = batch.data.data_ptr<int64_t>();
  auto* const target = batch.target.data_ptr<int64_t>();
  switch (tokens_.scalar_type()) {
    case at::kUInt16:
      copy<uint16_t>(indices, data, target);
      break;
    case at::kUInt32:
      copy<uint32_t>(indices, data, target);
      break;
    case at::kInt:
      copy<int32_t>(indices, data, target);
      break;
    default:
      copy<int64_t>(indices, data, target);
      break;
  }
  return batch;
}

template <typename Token>
void TokenBlocks::copy(const at::Tensor& indices, int64_t* data, int64_t* target) const {
  const int64_t length = file_.block_size;
  const auto* const block = indices.const_data_ptr<int64_t>();
  parallel_for_samples(indices, kBytesOfPart / (16 * length), [&](int64_t first, int64_t count) {
    for (int64_t b = first; b < first + count; ++b) {
      const int64_t here = skipped_ == 0 ? block[b] : whole_.at(static_cast<size_t>(block[b]));
      copy_block<Token>(here, data + b * length, target + b * length);
    }
  });
}

template <typename Token>
void TokenBlocks::copy_block(int64_t block, int64_t* data, int64_t* target) const {
  const int64_t length = file_.block_size;
  const Token* const from = static_cast<const Token*>(tokens_.const_data_ptr()) + block * stride_;
  std::copy(from, from + length, data);
  std::copy(from + 1, from + length + 1, target);
  const auto limit = static_cast<uint64_t>(file_.vocabulary.value_or(0));
  if (limit == 0) return;
  bool outside = static_cast<uint64_t>(*data) >= limit;  // a negative number becomes a large one
  for (int64_t i = 0; i < length; ++i) outside |= static_cast<uint64_t>(target[i]) >= limit;
  if (outside) base::fail(ErrorKind::data, {}, kTokensOperation, "{}", problem_of(block));
}

/// Returns [T + 1] int64.
at::Tensor TokenBlocks::block_of(int64_t block) const {
  const int64_t first = block * stride_;
  return tokens_.slice(0, first, first + file_.block_size + 1).to(at::kLong);
}

bool TokenBlocks::is_broken(int64_t block) const {
  const at::Tensor tokens = block_of(block);
  const auto* const values = tokens.const_data_ptr<int64_t>();
  return std::any_of(values, values + tokens.size(0),
                     [&](int64_t value) { return value < 0 || value >= *file_.vocabulary; });
}

std::string TokenBlocks::problem_of(int64_t block) const {
  const int64_t first = block * stride_;
  const at::Tensor tokens = block_of(block);
  const auto* const values = tokens.const_data_ptr<int64_t>();
  const auto* const bad = std::find_if(values, values + tokens.size(0),
                                       [&](int64_t value) { return value < 0 || value >= *file_.vocabulary; });
  return fmt::format("{} has token {} at place {}, in block {}: expected 0 to {}", file_.path.string(), *bad,
                     first + (bad - values), block, *file_.vocabulary - 1);
}

Loader text_blocks(const TokenFile& file, const LoaderOptions& options) {
  const auto blocks = std::make_shared<TokenBlocks>(file);
  base::log_once(base::LogLevel::info, {},
                 "text_blocks: {} has {} tokens: {} blocks of {} and the token after, {} left over", file.path.string(),
                 blocks->tokens(), blocks->size(), file.block_size, blocks->dropped_tokens());
  return Loader(blocks, options);
}

}  // namespace accelerate::data
