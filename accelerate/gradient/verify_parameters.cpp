// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/verify_parameters.hpp"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "accelerate/base/hash.hpp"
#include "accelerate/units/gather_on_use.hpp"

namespace accelerate::gradient {
namespace {

using Lines = std::vector<std::string>;

std::string join_fields(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

Lines split_fields(const std::string& text) {
  Lines lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Reduced to 62 bits so that its negation also fits.
int64_t digest(const std::string& text) { return static_cast<int64_t>(base::hash_text(text) >> 2U); }

// max(x) == -max(-x) if every rank has the same x.
bool agrees(const comm::Group& group, const std::string& text) {
  const int64_t mine = digest(text);
  const at::Tensor extremes = at::tensor({mine, -mine}, at::kLong);
  group.all_reduce(extremes, comm::ReduceOp::max);
  const auto* seen = extremes.const_data_ptr<int64_t>();
  return seen[0] == -seen[1];
}

}  // namespace

namespace {

/// Memory layout of the gradient in a bucket; empty for row-major order.
std::string layout_of(const at::Tensor& parameter) {
  if (parameter.layout() != at::kStrided || parameter.is_contiguous()) return {};
  std::vector<int64_t> strides;
  for (int64_t dim = 0; dim < parameter.dim(); ++dim) {
    if (parameter.size(dim) > 1) strides.push_back(parameter.stride(dim));
  }
  return fmt::format(", strides [{}]", fmt::join(strides, ", "));
}

}  // namespace

std::string describe_tensor(const NamedTensor& named, std::string_view what) {
  const at::Tensor& tensor = named.tensor;
  const bool is_parameter = what == "parameter";
  return fmt::format("{} [{}] {}{}{}{}", named.name, fmt::join(tensor.sizes().vec(), ", "),
                     c10::toString(tensor.scalar_type()), is_parameter ? layout_of(tensor) : "",
                     is_parameter && !tensor.requires_grad() ? ", frozen" : "",
                     units::is_offloaded(tensor) ? ", offloaded" : "");
}

void verify_parameters(const comm::Group& group, std::string_view what, const std::vector<NamedTensor>& tensors) {
  if (group.size() == 1) return;
  Lines mine;
  for (const NamedTensor& tensor : tensors) mine.push_back(describe_tensor(tensor, what));
  const std::string text = join_fields(mine);
  if (agrees(group, text)) return;

  const std::vector<std::string> all = group.all_gather_bytes(text);
  const Lines first = split_fields(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const Lines other = split_fields(all[rank]);
    const auto differs = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    const auto say = [](const Lines& lines, Lines::const_iterator at) { return at == lines.end() ? "missing" : *at; };
    base::fail(ErrorKind::usage, group.place(), "prepare",
               "{} {} of the model is {} on rank 0, {} on rank {}; build the same model on every rank", what,
               differs.first - first.begin(), say(first, differs.first), say(other, differs.second), rank);
  }
}

}  // namespace accelerate::gradient
