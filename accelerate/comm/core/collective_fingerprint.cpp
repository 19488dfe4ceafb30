// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/collective_fingerprint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace accelerate::comm {
namespace {

constexpr std::array<std::string_view, 13> kOperationNames{
    "all_reduce", "broadcast", "all_gather", "gather",  "scatter", "reduce",   "reduce_scatter",
    "all_to_all", "send",      "recv",       "barrier", "split",   "duplicate"};
constexpr std::array<std::string_view, 5> kReduceNames{"sum", "mean", "max", "min", "product"};

thread_local int64_t thread_item = -1;

bool tails_agree(const CollectiveFingerprint& a, const CollectiveFingerprint& b) {
  return a.shape.size() == b.shape.size() &&
         (a.shape.empty() || std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1));
}

bool shapes_agree(const CollectiveFingerprint& a, const CollectiveFingerprint& b, Agreement agreement) {
  switch (agreement) {
    case Agreement::whole_shape:
      return a.shape == b.shape;
    case Agreement::all_but_first:
      return tails_agree(a, b);
    case Agreement::dtype_only:
    case Agreement::operation_only:
      return true;
  }
  return true;
}

std::string_view advice(Agreement agreement) {
  return agreement == Agreement::all_but_first ? "only the first dimension may differ."
         : agreement == Agreement::dtype_only  ? "the dtypes must be equal."
                                               : "they must be equal.";
}

/// Returns nothing if the two signatures match.
std::optional<std::string> difference(const CollectiveFingerprint& mine, const CollectiveFingerprint& theirs,
                                      int64_t rank, Agreement agreement) {
  if (mine.operation != theirs.operation || mine.sequence != theirs.sequence) {
    return fmt::format(
        "operation {} of this rank is {}, rank {}'s operation {} is {}; all ranks must call the same "
        "operations in the same order.",
        mine.sequence, collective_name(mine.operation), rank, theirs.sequence, collective_name(theirs.operation));
  }
  if (mine.into_given != theirs.into_given) {
    const auto call = [](const CollectiveFingerprint& of) { return of.into_given ? "all_gather_async" : "all_gather"; };
    return fmt::format("this rank calls {}, rank {} calls {}; all ranks must call the same.", call(mine), rank,
                       call(theirs));
  }
  if (mine.root != theirs.root) {
    return fmt::format("this rank's root is {}, rank {}'s is {}; they must be equal.", mine.root, rank, theirs.root);
  }
  if (mine.reduce != theirs.reduce) {
    const auto reduce_name = [](int64_t i) { return i < 0 ? "none" : kReduceNames.at(static_cast<size_t>(i)); };
    return fmt::format("this rank's reduction is {}, rank {}'s is {}; they must be equal.", reduce_name(mine.reduce),
                       rank, reduce_name(theirs.reduce));
  }
  if (mine.item != theirs.item) {
    const auto item_name = [](int64_t item) { return item < 0 ? "no item" : fmt::format("item {}", item); };
    return fmt::format(
        "this rank transfers {}, rank {} transfers {}; all ranks must call the same operations in the same order.",
        item_name(mine.item), rank, item_name(theirs.item));
  }
  if (agreement == Agreement::operation_only) return std::nullopt;
  if (mine.dtype == theirs.dtype && mine.device == theirs.device && shapes_agree(mine, theirs, agreement))
    return std::nullopt;
  return fmt::format("this rank sends {}, rank {} sends {}; {}", describe_fingerprint(mine), rank,
                     describe_fingerprint(theirs), advice(agreement));
}

}  // namespace

std::string_view collective_name(Operation operation) { return kOperationNames.at(static_cast<size_t>(operation)); }

std::string_view dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kComplexHalf:
      return "complex32";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    case at::kBool:
      return "bool";
    case at::kBFloat16:
      return "bfloat16";
    case at::kUInt16:
      return "uint16";
    case at::kUInt32:
      return "uint32";
    case at::kUInt64:
      return "uint64";
    default:
      return c10::toString(dtype);
  }
}

CollectiveFingerprint fingerprint_of(Operation operation, const at::Tensor& tensor, std::optional<ReduceOp> op,
                                     int64_t root) {
  CollectiveFingerprint signature{.operation = operation,
                                  .root = root,
                                  .reduce = op ? static_cast<int64_t>(*op) : -1,
                                  .dtype = tensor.scalar_type(),
                                  .device = tensor.device().type(),
                                  .item = item_of_thread()};
  const auto sizes = tensor.sizes();
  signature.shape.assign(sizes.begin(), sizes.end());
  return signature;
}

int64_t exchange_item_of_thread(int64_t item) { return std::exchange(thread_item, item); }
int64_t item_of_thread() { return thread_item; }

std::string describe_fingerprint(const CollectiveFingerprint& signature) {
  if (!signature.dtype) return "no tensor";
  return fmt::format("[{}] {}{}", fmt::join(signature.shape.begin(), signature.shape.end(), ", "),
                     dtype_name(*signature.dtype),
                     signature.device == at::kCPU ? "" : " on " + c10::DeviceTypeName(signature.device, true));
}

std::array<int64_t, CollectiveFingerprint::kWords> encode(const CollectiveFingerprint& signature) {
  std::array<int64_t, CollectiveFingerprint::kWords> words{};
  words[0] = static_cast<int64_t>(signature.operation);
  words[1] = signature.sequence;
  words[2] = signature.root;
  words[3] = signature.reduce;
  words[4] = signature.dtype ? static_cast<int64_t>(*signature.dtype) : -1;
  words[5] = static_cast<int64_t>(signature.shape.size());
  words[6] = static_cast<int64_t>(signature.device);
  words[7] = signature.into_given ? 1 : 0;
  words[8] = signature.item;
  std::copy_n(signature.shape.begin(), std::min(signature.shape.size(), CollectiveFingerprint::kMaxDims),
              words.begin() + 9);
  return words;
}

CollectiveFingerprint decode(std::span<const int64_t> words) {
  CollectiveFingerprint signature{.operation = static_cast<Operation>(words[0]),
                                  .sequence = words[1],
                                  .root = words[2],
                                  .reduce = words[3],
                                  .device = static_cast<at::DeviceType>(words[6]),
                                  .item = words[8]};
  if (words[4] >= 0) signature.dtype = static_cast<at::ScalarType>(words[4]);
  const auto dims = std::min(static_cast<size_t>(words[5]), CollectiveFingerprint::kMaxDims);
  signature.shape.assign(words.begin() + 9, words.begin() + 9 + static_cast<std::ptrdiff_t>(dims));
  signature.into_given = words[7] != 0;
  return signature;
}

std::optional<std::string> disagreement(std::span<const CollectiveFingerprint> signatures, size_t rank,
                                        Agreement agreement, std::span<const int64_t> job_ranks) {
  for (size_t other = 0; other < signatures.size(); ++other) {
    if (other == rank) continue;
    if (auto text = difference(signatures[rank], signatures[other], job_ranks[other], agreement)) return text;
  }
  return std::nullopt;
}

}  // namespace accelerate::comm
