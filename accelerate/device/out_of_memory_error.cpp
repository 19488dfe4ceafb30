// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/out_of_memory_error.hpp"

#include <algorithm>

#include "accelerate/base/bytes_text.hpp"

namespace accelerate::device {
namespace {

// The CPU allocator has no exception type for this error.
constexpr std::string_view kCpuAllocator = "DefaultCPUAllocator: can't allocate memory";

struct KindSum {
  std::string_view kind;
  int64_t bytes = 0, whole_bytes = 0;
};

/// Returns " (parameters 3.5 MiB, gradients 3.5 MiB, optimizer 7.0 MiB)" in the given order, or "" without kinds. If a
/// rank has a part: "parameters 3.5 MiB of 14 MiB on all ranks".
std::string by_kind(const std::vector<MemoryEntry>& known) {
  std::vector<KindSum> sums;
  for (const auto& tensor : known) {
    if (tensor.kind.empty()) continue;
    auto found = std::ranges::find(sums, tensor.kind, &KindSum::kind);
    if (found == sums.end()) found = sums.insert(found, {tensor.kind});
    found->bytes += tensor.bytes;
    found->whole_bytes += tensor.whole_bytes > 0 ? tensor.whole_bytes : tensor.bytes;
  }
  std::string text;
  for (const auto& [kind, bytes, whole_bytes] : sums) {
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", kind, base::bytes_text(bytes));
    if (whole_bytes != bytes) text += fmt::format(" of {} on all ranks", base::bytes_text(whole_bytes));
  }
  return text.empty() ? text : text + ")";
}

/// Returns "; known tensors: 14 MiB in 16 tensors (...), the largest ...; the rest is mostly what forward keeps for
/// backward: ...", or "" if no tensor is known.
std::string memory_usage_text(std::vector<MemoryEntry> known) {
  if (known.empty()) return "";
  constexpr size_t shown = 3;
  const std::string kinds = by_kind(known);  // before sorting, to keep the given order
  std::stable_sort(known.begin(), known.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  int64_t sum = 0;
  for (const auto& tensor : known) sum += tensor.bytes;
  std::string text = fmt::format("; known tensors: {} in {} tensor{}{}, the largest", base::bytes_text(sum),
                                 known.size(), known.size() == 1 ? "" : "s", kinds);
  for (size_t i = 0; i < std::min(shown, known.size()); ++i) {
    text += fmt::format("{} {} ({})", i == 0 ? "" : ",", known[i].text, base::bytes_text(known[i].bytes));
  }
  return text +
         "; the rest is mostly what forward keeps for backward: mixed_precision and nn::checkpoint() make it smaller";
}

}  // namespace

bool is_out_of_memory_error(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  return std::string_view(error.what()).find(kCpuAllocator) != std::string_view::npos;
}

void fail_out_of_memory(const c10::Error& error, const RankContext& place, std::string_view operation,
                        const std::vector<MemoryEntry>& known) {
  std::string message = error.what_without_backtrace();
  if (const auto at = message.find(kCpuAllocator); at != std::string::npos) {
    message.erase(std::min(message.find('\n', at), message.size()));
    const auto source =
        message.find('[');  // "[enforce fail at alloc_cpu.cpp:121] err == 0. ": position in LibTorch's source
    if (source < at) message.erase(source, at - source);
  }
  while (!message.empty() && (message.back() == '.' || message.back() == '\n' || message.back() == ' '))
    message.pop_back();
  base::fail(ErrorKind::device, place, operation, "{}{}; use a smaller batch, or call find_executable_batch_size()",
             message, memory_usage_text(known));
}

}  // namespace accelerate::device
