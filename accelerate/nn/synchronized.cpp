// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/synchronized.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "accelerate/base/hash.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/nn/checksum.hpp"

namespace accelerate::nn {
namespace {

using Names = std::vector<std::string>;

std::vector<int64_t> checksums_of(const std::vector<CheckedTensor>& tensors) {
  std::map<std::string, std::vector<at::Tensor>> by_device;  // one copy to the host per device
  for (const CheckedTensor& one : tensors) by_device[one.tensor.device().str()].push_back(checksum(one.tensor));
  std::map<std::string, at::Tensor> on_host;
  for (const auto& [device, sums] : by_device) on_host[device] = at::stack(sums).to(at::kCPU);
  std::map<std::string, int64_t> next;
  std::vector<int64_t> list;
  for (const CheckedTensor& one : tensors) {
    const std::string device = one.tensor.device().str();
    list.push_back(on_host[device].const_data_ptr<int64_t>()[next[device]++]);
  }
  return list;
}

std::string describe_tensor(const CheckedTensor& one) {
  return fmt::format("{} [{}] {}", one.name, c10::Join(", ", one.tensor.sizes()),
                     c10::toString(one.tensor.scalar_type()));
}

uint64_t digest(const Names& lines) {
  uint64_t hash = base::kEmptyHash;
  for (const std::string& line : lines) hash = base::hash_text(line + '\n', hash);
  return hash;
}

Names split_fields(const std::string& text) {
  Names lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// A rank's description of tensor i, followed by a tab and its checksum.
std::string line_of(const Names& lines, size_t i) { return i < lines.size() ? lines[i] : "no such tensor\t"; }
std::string before_tab(const std::string& line) { return line.substr(0, line.find('\t')); }

std::string ranks_text(const std::vector<size_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

/// What the ranks with the same part have.
struct Comparison {
  std::vector<size_t> ranks;
  std::vector<Names> lines;  // of each of the ranks
};

/// Returns "has one value on ranks 0, 2 and another on rank 1".
std::string agreeing_ranks_text(const Comparison& all, size_t i) {
  std::vector<std::pair<std::string, std::vector<size_t>>> classes;
  for (size_t k = 0; k < all.ranks.size(); ++k) {
    const size_t rank = all.ranks[k];
    const std::string line = line_of(all.lines[k], i);
    const auto same = std::find_if(classes.begin(), classes.end(), [&](const auto& one) { return one.first == line; });
    if (same != classes.end()) {
      same->second.push_back(rank);
    } else {
      classes.push_back({line, {rank}});
    }
  }
  std::string text;
  const std::string first = before_tab(classes.front().first);
  for (const auto& [line, ranks] : classes) {
    const bool looks_equal = before_tab(line) == first;
    const std::string what = text.empty() ? "one value" : looks_equal ? "another" : before_tab(line);
    text += fmt::format("{}{} on {}", text.empty() ? "has " : ", ", what, ranks_text(ranks));
  }
  return text;
}

// Every rank throws the same error. Part `differing_part` is not the same on its ranks.
[[noreturn]] void fail_first_difference(const comm::Group& group, const Names& mine, std::string_view when,
                                        int64_t own_part, int64_t differing_part) {
  std::string text = fmt::format("{}\n", own_part);
  for (const std::string& line : mine) text += line + '\n';
  Comparison all;
  size_t count = 0;
  const auto texts = comm::with_operation_context("check_synchronized", "the differences are unknown", group.place(),
                                                  [&] { return group.all_gather_bytes(text); });
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    Names lines = split_fields(texts[rank]);
    if (lines.front() != std::to_string(differing_part)) continue;
    lines.erase(lines.begin());
    count = std::max(count, lines.size());
    all.ranks.push_back(rank);
    all.lines.push_back(std::move(lines));
  }
  std::vector<size_t> differing;
  for (size_t i = 0; i < count; ++i) {
    const auto other = [&](const Names& lines) { return line_of(lines, i) != line_of(all.lines[0], i); };
    if (std::ranges::any_of(all.lines, other)) differing.push_back(i);
  }
  const size_t first = differing.front();
  base::fail(ErrorKind::usage, group.place(), "check_synchronized",
             "{}{} {} ({} of {} tensors differ); something changed it on some ranks alone: a step of an optimizer that "
             "was not prepared, code under is_main_process(), random numbers that differ between ranks; load the same "
             "state on all "
             "ranks to continue",
             when.empty() ? "" : fmt::format("{} ", when), before_tab(line_of(all.lines[0], first)),
             agreeing_ranks_text(all, first), differing.size(), count);
}

}  // namespace

void check_synchronized(const comm::Group& group, const std::vector<CheckedTensor>& tensors, std::string_view when,
                        const ComparedPart& part) {
  if (group.size() == 1) return;
  std::vector<CheckedTensor> there;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(there),
               [](const CheckedTensor& one) { return one.tensor.defined(); });
  const auto sums = checksums_of(there);
  Names lines;
  for (size_t i = 0; i < there.size(); ++i)
    lines.push_back(fmt::format("{}\t{:x}", describe_tensor(there[i]), sums[i]));
  // max(x) equals ~max(~x), which is min(x), if every rank has the same x.
  const int64_t mine = static_cast<int64_t>(digest(lines));
  const at::Tensor extremes = at::full({2 * part.count}, std::numeric_limits<int64_t>::min(), at::kLong);
  extremes.narrow(0, 2 * part.index, 2).copy_(at::tensor({mine, ~mine}, at::kLong));
  comm::with_operation_context("check_synchronized", "the tensors are not compared", group.place(),
                               [&] { group.all_reduce(extremes, comm::ReduceOp::max); });
  const auto* seen = extremes.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < part.count; ++i, seen += 2) {
    if (seen[0] != ~seen[1]) fail_first_difference(group, lines, when, part.index, i);
  }
}

}  // namespace accelerate::nn
